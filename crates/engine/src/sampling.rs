//! The settings of the samplers, and their ranges.

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
    /// Divides positive and multiplies negative logits of every token that occurs in the
    /// prompt or the reply; above 0. Default 1: off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that occur in the reply. Default 0.
    pub presence_penalty: f32,
    /// Subtracted once per occurrence of the token in the reply. Default 0.
    pub frequency_penalty: f32,
    /// Added to the logits of single tokens: −∞ rules one out, +∞ forces it. Entries of
    /// the same token add up; an infinite one replaces the logit. Default none.
    pub bias: Vec<(u32, f32)>,
    /// The seed of the random numbers. Default 0.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
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
        self.bias.is_empty() && !self.has_penalties()
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

/// Returns an error if a setting is outside its range.
fn within(name: &str, value: f32, inside: bool, range: &str) -> Result<()> {
    if inside {
        return Ok(());
    }
    Err(Error::with_kind(ErrorKind::Refused, format!("{name} is {value}; it must be {range}")))
}
