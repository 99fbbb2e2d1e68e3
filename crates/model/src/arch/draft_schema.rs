//! The schema of a model's layer that predicts the token after the next one (multi-token prediction), and the
//! description of that layer as a model of its own.

use std::collections::BTreeMap;

use girih_tensor::{Error, Result};
use serde::Deserialize;

use super::schema::{Arch, Weight};

/// A layer that reads the model's hidden states and the embeddings of the next tokens, each normalized and multiplied
/// with a matrix, as a sum. What follows is a layer of the model, a norm, and the model's head.
///
/// Its weights are those of the model, with other names in the files, and these: `draft.tokens.norm`,
/// `draft.hidden.norm`, `draft.tokens.weight`, `draft.hidden.weight`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftSchema {
    /// The kind of the layer.
    pub kind: String,
    /// The start of its tensors' names in safetensors, in place of that of layers of the model up to `{i}.`. `{n}` stands
    /// for the number of layers of the model. Of several such layers the first one is used.
    pub hf_start: String,
    /// Another start, of the names of all tensors that belong to such layers. A tensor of that start that the
    /// description lacks is refused, unless a further layer has it.
    pub hf_beside: Option<String>,
    /// The hidden states that it reads.
    pub reads: HiddenState,
    /// Its weights that are not those of a layer of the model, or have other names.
    pub weights: BTreeMap<String, Weight>,
}

/// Which hidden states of a model another program reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenState {
    /// Those after the norm before the head.
    Normed,
    /// Those of the last layer.
    LastLayer,
}

impl DraftSchema {
    /// The start of the names of its tensors in a model of this number of layers.
    pub fn start(&self, layers: usize) -> String {
        named(&self.hf_start, layers)
    }

    /// Whether a tensor of a model of this number of layers belongs to the layer.
    pub fn owns(&self, tensor: &str, layers: usize) -> bool {
        let start = self.start(layers);
        // `mtp.layers.` of `mtp.layers.0.`
        let all = start.trim_end_matches('.').rsplit_once('.').map_or("", |(all, _)| all);
        let is_of_other = tensor.starts_with(&format!("{all}."));
        let is_beside = self.hf_beside.as_ref().is_some_and(|beside| tensor.starts_with(beside));
        tensor.starts_with(&start) || is_beside && !is_of_other
    }
}

/// A name for a model of this number of layers.
fn named(name: &str, layers: usize) -> String {
    name.replace("{n}", &layers.to_string())
}

/// The description of the drafting layer of a model with `layers` layers, as a model of one layer.
///
/// # Errors
/// When the model's layers have names without `{i}.`.
pub(crate) fn as_model(arch: &Arch, draft: &DraftSchema, layers: usize) -> Result<Arch> {
    let start = draft.start(layers);
    let moved = |name: &str| {
        let rest = name.split_once("{i}.").map(|(_, rest)| rest);
        rest.map(|rest| format!("{start}{rest}")).ok_or_else(|| {
            let arch = &arch.name;
            Error::new(format!("architecture {arch}: the name '{name}' of a layer's tensor lacks '{{i}}.'"))
        })
    };
    let mut model = arch.clone();
    let of_layers = model.weights.iter_mut().filter(|(pattern, _)| pattern.contains("{i}"));
    for weight in of_layers.map(|(_, weight)| weight) {
        weight.hf = weight.hf.as_deref().map(moved).transpose()?;
        for other in &mut weight.hf_or {
            other.hf = moved(&other.hf)?;
        }
    }
    for (name, weight) in &draft.weights {
        let mut weight = weight.clone();
        weight.hf = weight.hf.as_deref().map(|name| named(name, layers));
        weight.hf_or.iter_mut().for_each(|other| other.hf = named(&other.hf, layers));
        model.weights.insert(name.clone(), weight);
    }
    model.draft = None;
    Ok(model)
}
