//! The settings of the samplers, and their ranges.

use std::collections::BTreeSet;

use crate::{Error, ErrorKind, Result};

/// How the next token is chosen from the logits; see [`crate::sample`] for the order.
/// The default draws from the model's own distribution: every setting is neutral.
///
/// ```
/// let sampling = girih_engine::Sampling { temperature: 0.7, top_p: 0.9, ..Default::default() };
/// assert!(sampling.check().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy: always the most likely token. Default 1.
    pub temperature: f32,
    /// Keeps this number of most likely tokens; 0 keeps all. Default 0.
    pub top_k: u32,
    /// Keeps the most likely tokens up to this cumulative probability, in (0, 1].
    /// Default 1: all.
    pub top_p: f32,
    /// Keeps tokens at least this fraction as likely as the most likely one, in \[0, 1].
    /// Default 0: all.
    pub min_p: f32,
    /// Keeps tokens whose logit is at most this number of standard deviations below the
    /// highest one. Default 0: all.
    pub top_n_sigma: f32,
    /// Keeps the tokens whose information is nearest to the entropy, up to this cumulative
    /// probability, in (0, 1]. Default 1: all.
    pub typical_p: f32,
    /// The probability, per token, with which the most likely tokens are excluded, in \[0, 1].
    /// Default 0: never.
    pub xtc_probability: f32,
    /// XTC: the minimum probability of the tokens that may be excluded, in \[0, 1]; the least
    /// likely of them is kept. Default 0.1.
    pub xtc_threshold: f32,
    /// The temperature varies by at most this with the entropy of the distribution. Default 0:
    /// it is fixed.
    pub dynatemp_range: f32,
    /// The exponent of the normalized entropy in the dynamic temperature, above 0. Default 1.
    pub dynatemp_exponent: f32,
    /// The surprise in bits that Mirostat 2 aims at. Default 0: off.
    pub mirostat_tau: f32,
    /// How fast Mirostat 2 learns, in (0, 1]. Default 0.1.
    pub mirostat_eta: f32,
    /// The penalty on repeated sequences. Default off.
    pub dry: Dry,
    /// Divides positive and multiplies negative logits of every token that occurs in the
    /// prompt or the reply; above 0. Default 1: off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that occur in the reply. Default 0.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence of the token in the reply. Default 0.
    pub frequency_penalty: f32,
    /// The number of last tokens of the prompt and the reply that these three penalties count. Default 0: all.
    pub penalty_range: u32,
    /// Added to the logits of single tokens: −∞ rules one out, +∞ forces it. Entries of
    /// the same token add up; an infinite one replaces the logit. Default none.
    pub bias: Vec<(u32, f32)>,
    /// The seed of the random numbers. Default 0.
    pub seed: u64,
}

/// The penalty on tokens that would continue a repetition; see [`crate::sample::dry`].
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// The penalty on continuing a copy of the allowed length, 0 or above. Default 0: off.
    pub multiplier: f32,
    /// The factor for each further token of the copy, 1 or above. Default 1.75.
    pub base: f32,
    /// The length of copies, in tokens, from which their continuation is penalized, 1 or above.
    /// Default 2.
    pub allowed_length: u32,
    /// The number of last tokens among which copies are looked for. Default 0: all.
    pub range: u32,
    /// Tokens that end a copy, such as those of line ends; at most 65,536. Default none.
    pub breakers: BTreeSet<u32>,
}

impl Default for Dry {
    fn default() -> Dry {
        Dry { multiplier: 0.0, base: 1.75, allowed_length: 2, range: 0, breakers: BTreeSet::new() }
    }
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            mirostat_tau: 0.0,
            mirostat_eta: 0.1,
            dry: Dry::default(),
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_range: 0,
            bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Always chooses the most likely token.
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Whether no penalty and no bias changes a logit.
    pub(crate) fn keeps_logits(&self) -> bool {
        self.bias.is_empty() && !self.has_penalties() && self.dry.multiplier == 0.0
    }

    /// Whether a choice needs more than the largest logits and those that a bias or a penalty
    /// changes: all logits, or the whole history in order.
    pub(crate) fn needs_row(&self) -> bool {
        let has_filter = self.top_n_sigma > 0.0 || self.xtc_probability > 0.0;
        let has_temperature = self.dynatemp_range > 0.0 && self.temperature > 0.0;
        has_filter || has_temperature || self.mirostat_tau > 0.0 || self.dry.multiplier > 0.0
    }

    /// Whether a penalty changes a logit.
    pub(crate) fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Checks every number against its range.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`]; names the first setting outside its range.
    pub fn check(&self) -> Result<()> {
        let Sampling { temperature, top_p, min_p, repetition_penalty: repetition, .. } = *self;
        let finite = |x: f32| x.is_finite();
        // Comparisons with NaN are false, so NaN fails each of them.
        within("temperature", temperature, finite(temperature) && temperature >= 0.0, "0 or above")?;
        within("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1")?;
        within("min_p", min_p, (0.0..=1.0).contains(&min_p), "between 0 and 1")?;
        self.check_shape()?;
        within("repetition_penalty", repetition, finite(repetition) && repetition > 0.0, "above 0")?;
        for (name, penalty) in
            [("presence_penalty", self.presence_penalty), ("frequency_penalty", self.frequency_penalty)]
        {
            within(name, penalty, finite(penalty), "a number")?;
        }
        for (id, bias) in &self.bias {
            within(&format!("the bias of token {id}"), *bias, !bias.is_nan(), "a number or ±inf")?;
        }
        Ok(())
    }
}

impl Sampling {
    /// Checks the settings of the samplers that shape the distribution.
    fn check_shape(&self) -> Result<()> {
        let is_share = |x: f32| (0.0..=1.0).contains(&x);
        let is_amount = |x: f32| x.is_finite() && x >= 0.0;
        let dry = &self.dry;
        let typical = self.typical_p > 0.0 && self.typical_p <= 1.0;
        let rate = self.mirostat_eta > 0.0 && self.mirostat_eta <= 1.0;
        let exponent = is_amount(self.dynatemp_exponent) && self.dynatemp_exponent > 0.0;
        let base = dry.base.is_finite() && dry.base >= 1.0;
        let checks = [
            ("top_n_sigma", self.top_n_sigma, is_amount(self.top_n_sigma), "0 or above"),
            ("typical_p", self.typical_p, typical, "above 0 and at most 1"),
            ("xtc_probability", self.xtc_probability, is_share(self.xtc_probability), "between 0 and 1"),
            ("xtc_threshold", self.xtc_threshold, is_share(self.xtc_threshold), "between 0 and 1"),
            ("dynatemp_range", self.dynatemp_range, is_amount(self.dynatemp_range), "0 or above"),
            ("dynatemp_exponent", self.dynatemp_exponent, exponent, "above 0"),
            ("mirostat_tau", self.mirostat_tau, is_amount(self.mirostat_tau), "0 or above"),
            ("mirostat_eta", self.mirostat_eta, rate, "above 0 and at most 1"),
            ("dry_multiplier", dry.multiplier, is_amount(dry.multiplier), "0 or above"),
            ("dry_base", dry.base, base, "1 or above"),
            ("dry_allowed_length", dry.allowed_length as f32, dry.allowed_length > 0, "1 or above"),
            (
                "the number of DRY breakers",
                dry.breakers.len() as f32,
                dry.breakers.len() <= 65_536,
                "at most 65536",
            ),
        ];
        checks.into_iter().try_for_each(|(name, value, inside, range)| within(name, value, inside, range))
    }
}

/// Returns an error if a setting is outside its range.
fn within(name: &str, value: f32, inside: bool, range: &str) -> Result<()> {
    if inside {
        return Ok(());
    }
    Err(Error::with_kind(ErrorKind::Refused, format!("{name} is {value}; it must be {range}")))
}
