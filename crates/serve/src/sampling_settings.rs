//! The samplers' settings of a request: those that are not set are the model's.

use std::collections::BTreeSet;

use girih::{Dry, Model, Result, Sampling};

use crate::error::ApiError;

/// The samplers' settings of a request. A field that is `None` has the model's default
/// ([`Model::default_sampling`]): that of its `generation_config.json`, else greedy, with seed 0.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)] // the fields of `girih::Sampling`
pub struct SamplingSettings {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub top_n_sigma: Option<f32>,
    pub typical_p: Option<f32>,
    pub xtc_probability: Option<f32>,
    pub xtc_threshold: Option<f32>,
    pub dynatemp_range: Option<f32>,
    pub dynatemp_exponent: Option<f32>,
    pub mirostat_tau: Option<f32>,
    pub mirostat_eta: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub penalty_range: Option<u32>,
    pub bias: Vec<(u32, f32)>,
    pub seed: Option<u64>,
    pub dry: DrySettings,
}

/// The settings of DRY.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)] // the fields of `girih::Dry`
pub struct DrySettings {
    pub multiplier: Option<f32>,
    pub base: Option<f32>,
    pub allowed_length: Option<u32>,
    pub range: Option<u32>,
    /// Texts that end a repetition; `None` for line end, `:`, `"` and `*`.
    pub breakers: Option<Vec<String>>,
}

/// The settings that the engine checks, as its sentences begin.
const CHECKED: [&str; 17] = [
    "temperature",
    "top_p",
    "min_p",
    "top_n_sigma",
    "typical_p",
    "xtc_probability",
    "xtc_threshold",
    "dynatemp_range",
    "dynatemp_exponent",
    "mirostat_tau",
    "mirostat_eta",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
];

/// Checks the ranges of settings.
///
/// # Errors
/// When a setting is outside its range; the error names it.
pub fn check_ranges(sampling: &Sampling) -> std::result::Result<(), ApiError> {
    sampling.check().map_err(|error| {
        let message = error.to_string();
        let name = message.split(' ').next().unwrap_or_default().to_owned();
        if CHECKED.contains(&name.as_str()) { ApiError::invalid(name, message) } else { error.into() }
    })
}

/// The breakers of DRY by default, those of llama.cpp.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The target surprise of Mirostat 2, from the version that a client asks for: 0 is off, and 2 aims at 5 bits
/// if the client names no target, as in llama.cpp.
///
/// # Errors
/// When it is another version.
pub fn mirostat_tau(
    param: &str,
    version: Option<u32>,
    tau: Option<f32>,
) -> std::result::Result<Option<f32>, ApiError> {
    match version {
        None => Ok(tau),
        Some(0) => Ok(None),
        Some(2) => Ok(Some(tau.unwrap_or(5.0))),
        Some(version) => {
            Err(ApiError::unsupported(param, format!("{param} is {version}; it must be 0 or 2")))
        }
    }
}

impl SamplingSettings {
    /// These settings with penalties that count the last `tokens` tokens only: -1 is all, and 0 none, which
    /// switches the penalties off.
    ///
    /// # Errors
    /// When the number is below -1.
    pub fn with_range(
        self,
        param: &str,
        tokens: Option<i64>,
    ) -> std::result::Result<SamplingSettings, ApiError> {
        match tokens {
            None => Ok(self),
            Some(-1) => Ok(SamplingSettings { penalty_range: Some(0), ..self }),
            Some(0) => Ok(SamplingSettings {
                repetition_penalty: Some(1.0),
                presence_penalty: Some(0.0),
                frequency_penalty: Some(0.0),
                ..self
            }),
            Some(count @ 1..) => {
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                Ok(SamplingSettings { penalty_range: Some(count), ..self })
            }
            Some(count) => {
                Err(ApiError::invalid(param, format!("{param} is {count}; it must be -1, 0 or more")))
            }
        }
    }

    /// These settings, and the model's where none is set.
    ///
    /// # Errors
    /// When breakers are to be found and the model has no tokenizer.
    pub fn over(&self, model: &Model) -> Result<Sampling> {
        let default = model.default_sampling();
        Ok(Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            top_n_sigma: self.top_n_sigma.unwrap_or(default.top_n_sigma),
            typical_p: self.typical_p.unwrap_or(default.typical_p),
            xtc_probability: self.xtc_probability.unwrap_or(default.xtc_probability),
            xtc_threshold: self.xtc_threshold.unwrap_or(default.xtc_threshold),
            dynatemp_range: self.dynatemp_range.unwrap_or(default.dynatemp_range),
            dynatemp_exponent: self.dynatemp_exponent.unwrap_or(default.dynatemp_exponent),
            mirostat_tau: self.mirostat_tau.unwrap_or(default.mirostat_tau),
            mirostat_eta: self.mirostat_eta.unwrap_or(default.mirostat_eta),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            penalty_range: self.penalty_range.unwrap_or(default.penalty_range),
            bias: self.bias.clone(),
            seed: self.seed.unwrap_or(default.seed),
            dry: self.dry.over(model)?,
        })
    }
}

impl DrySettings {
    fn over(&self, model: &Model) -> Result<Dry> {
        let default = Dry::default();
        let multiplier = self.multiplier.unwrap_or(default.multiplier);
        Ok(Dry {
            multiplier,
            base: self.base.unwrap_or(default.base),
            allowed_length: self.allowed_length.unwrap_or(default.allowed_length),
            range: self.range.unwrap_or(default.range),
            breakers: if multiplier > 0.0 { self.breaker_tokens(model)? } else { BTreeSet::new() },
        })
    }

    /// The tokens that contain a breaker.
    fn breaker_tokens(&self, model: &Model) -> Result<BTreeSet<u32>> {
        let tokenizer = &model.text_processor()?.tokenizer;
        Ok(match &self.breakers {
            Some(texts) => texts.iter().flat_map(|text| tokenizer.tokens_containing(text)).collect(),
            None => BREAKERS.iter().flat_map(|text| tokenizer.tokens_containing(text)).collect(),
        })
    }
}
