//! `generation_config.json`: the sampling settings that a model ships with.

use std::path::Path;

use girih_file::{read_companion, shorten_parse};
use girih_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::limits::ModelLimits;

/// The sampling settings of a model; `None` if not set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerationConfig {
    /// Whether to sample; greedy if false.
    pub do_sample: Option<bool>,
    /// The divisor of the logits.
    pub temperature: Option<f32>,
    /// Keeps this number of most likely tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keeps the most likely tokens up to this cumulative probability.
    pub top_p: Option<f32>,
    /// Drops tokens less likely than this fraction of the most likely one.
    pub min_p: Option<f32>,
    /// The divisor of the logits of tokens that have occurred.
    pub repetition_penalty: Option<f32>,
    /// Tokens that end a text.
    pub eos_token_id: Ids,
    /// The token that begins a text.
    pub bos_token_id: Option<u32>,
}

/// One id, several, or none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Ids {
    /// None.
    #[default]
    None,
    /// One.
    One(u32),
    /// Several.
    Many(Vec<u32>),
}

impl Ids {
    /// The ids.
    pub fn list(&self) -> &[u32] {
        match self {
            Ids::None => &[],
            Ids::One(id) => std::slice::from_ref(id),
            Ids::Many(ids) => ids,
        }
    }
}

impl GenerationConfig {
    /// Reads the settings in a model's folder; `None` if it has no such file.
    ///
    /// # Errors
    /// When the file is malformed.
    pub fn read(folder: &Path, limits: &ModelLimits) -> Result<Option<GenerationConfig>> {
        let name = "generation_config.json";
        let text = read_companion(folder, name, limits.file.json_bytes)?;
        let parsed = text.map(|text| GenerationConfig::parse(&text)).transpose();
        parsed.map_err(|error| error.of(folder.join(name).display()))
    }

    /// Parses the text of a `generation_config.json`.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn parse(text: &[u8]) -> Result<GenerationConfig> {
        serde_json::from_slice(text).map_err(|error| {
            Error::new(format!("is not a valid generation_config.json: {}", shorten_parse(&error)))
        })
    }
}
