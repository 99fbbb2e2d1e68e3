//! The schema of a model's layer that predicts the token after the next one (multi-token prediction).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::weight_schema::Weight;

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
pub(super) fn named(name: &str, layers: usize) -> String {
    name.replace("{n}", &layers.to_string())
}
