//! `generation_config.json`: how a model's makers want it sampled.

use std::path::Path;

use girih_file::read_small;
use girih_tensor::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::limits::Limits;

/// Settings that a model's makers ship; `None` where they say nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Generation {
    /// Whether to sample at all; greedy if false.
    pub do_sample: Option<bool>,
    /// Divides logits.
    pub temperature: Option<f32>,
    /// Keeps the likeliest so many tokens; 0 keeps all.
    pub top_k: Option<u32>,
    /// Keeps the likeliest tokens up to this probability.
    pub top_p: Option<f32>,
    /// Drops tokens less likely than this share of the likeliest.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that have occurred.
    pub repetition_penalty: Option<f32>,
    /// Tokens that end a text.
    pub eos_token_id: Ids,
    /// The token that opens a text.
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

impl Generation {
    /// The settings in a model's folder; `None` where it ships none.
    ///
    /// # Errors
    /// When the file is not what transformers writes.
    pub fn read(folder: &Path, limits: &Limits) -> Result<Option<Generation>> {
        let path = folder.join("generation_config.json");
        if !path.exists() {
            return Ok(None);
        }
        let text = read_small(&path, limits.file.json_bytes)?;
        Generation::parse(&text).map(Some).map_err(|error| error.of(path.display()))
    }

    /// The settings in the text of a `generation_config.json`.
    ///
    /// # Errors
    /// When it is not what transformers writes.
    pub fn parse(text: &[u8]) -> Result<Generation> {
        serde_json::from_slice(text).map_err(|error| {
            Error::new(format!("is no generation_config.json as transformers writes it: {error}"))
        })
    }
}
