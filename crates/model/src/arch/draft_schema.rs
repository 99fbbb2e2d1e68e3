//! The schema of a model's layer that predicts the token after the next one (multi-token prediction).

use std::collections::BTreeMap;

use serde::Deserialize;

use super::field::Field;
use super::weight_schema::Weight;

/// A layer, or a few, that read the model's hidden states and the embeddings of the next tokens, each normalized and multiplied
/// with a matrix, as a sum. What follows is a layer of the model, a norm, and the model's head.
///
/// Its weights are those of the model, with other names in the files, and these: `draft.tokens.norm`,
/// `draft.hidden.norm`, `draft.tokens.weight`, `draft.hidden.weight`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftSchema {
    /// The kind of the layer, or of each of those that are run one after the other.
    pub kinds: Vec<String>,
    /// The start of its tensors' names in safetensors, in place of that of layers of the model up to `{i}.`. `{n}` stands
    /// for the number of layers of the model, and `{i}` for the index among `kinds`. Of several such layers the first one
    /// is used.
    pub hf_start: String,
    /// Another start, of the names of all tensors that belong to such layers. A tensor of that start that the
    /// description lacks is refused, unless a further layer has it.
    pub hf_beside: Option<String>,
    /// The hidden states that it reads.
    pub reads: HiddenState,
    /// Its weights that are not those of a layer of the model, or have other names.
    pub weights: BTreeMap<String, Weight>,
}

/// A model that drafts for another one and reads its hidden states, its embedding, and the keys and values of its last
/// layers of each kind that have some; layers have none of their own. A row is a projection of the embedding of the last
/// token and of the hidden states before it, and is rotated as at the position after the newest key. Its weights beside
/// those of its layers: `draft.tokens.weight`, `draft.hidden.weight`, and `draft.out.weight`, by which its own hidden
/// states take the place of the model's.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssistantSchema {
    /// The hidden size of the model that it drafts for.
    pub width: Field,
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
        named(&self.hf_start, layers).replace("{i}", "0")
    }

    /// The start of the names of its tensors in a GGUF of a model of this number of layers, which numbers it as the next
    /// one; `None` if the description has no names of GGUF.
    pub fn gguf_start(&self, layers: usize) -> Option<String> {
        let is_described =
            self.weights.get("draft.tokens.weight").is_some_and(|weight| weight.gguf.is_some());
        is_described.then(|| format!("blk.{layers}."))
    }

    /// Whether a tensor of a model of this number of layers belongs to the layer.
    pub fn owns(&self, tensor: &str, layers: usize) -> bool {
        let start = self.start(layers);
        // `mtp.layers.` of `mtp.layers.0.`
        let all = start.trim_end_matches('.').rsplit_once('.').map_or("", |(all, _)| all);
        let is_of_other = tensor.starts_with(&format!("{all}."));
        let is_beside = self.hf_beside.as_ref().is_some_and(|beside| tensor.starts_with(beside));
        let start_of = |index: usize| named(&self.hf_start, layers).replace("{i}", &index.to_string());
        let is_own = (0..self.kinds.len()).any(|index| tensor.starts_with(&start_of(index)));
        is_own || is_beside && !is_of_other
    }
}

/// A name for a model of this number of layers.
pub(super) fn named(name: &str, layers: usize) -> String {
    name.replace("{n}", &layers.to_string())
}
