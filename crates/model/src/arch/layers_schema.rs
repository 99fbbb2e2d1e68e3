//! The schema of the kinds of layers: which kind each layer has.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::block_schema::BlocksSchema;
use super::ffn_schema::DenseLayersSchema;
use super::field::Field;

/// Which kind each layer has: by a list of the model, else by its period, else by a pattern.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayersSchema {
    /// The kinds, repeated over the layers. May be omitted if there is one, and is empty if only the model's list
    /// says which layer has which.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// The key under which a `config.json` lists the kinds of its layers.
    pub listed: Option<ListedKinds>,
    /// Another key for the list, in a model without the first one.
    pub listed_or: Option<ListedKinds>,
    /// Another list of the model, which must say the same.
    pub confirmed: Option<ListedKinds>,
    /// The key of the indexes of the layers of one kind in a `config.json` without the list.
    pub indexed: Option<IndexedKind>,
    /// The key of GGUF that has a number for each layer, with 0 for one kind.
    pub gguf_listed: Option<GgufKinds>,
    /// The kind that the last layer must have.
    pub last: Option<String>,
    /// The number of last layers that read the keys and values of earlier ones, instead of having their own: each
    /// those of the last layer of its kind before them.
    pub shared_kv: Option<Field>,
    /// The layers that share the weights of blocks.
    pub blocks: Option<BlocksSchema>,
    /// The period n of a model: every n-th layer has the last of `kinds`, the others have the first.
    pub period: Option<Field>,
    /// Which layers have the feed-forward part of `[dense]`; their kind is `KIND_dense`.
    #[serde(default)]
    pub dense: DenseLayersSchema,
}

/// A list of the kinds of layers in `config.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListedKinds {
    /// The key.
    pub hf: String,
    /// The kind that each word of the list stands for.
    pub words: BTreeMap<String, String>,
    /// Whether an empty list counts as none.
    #[serde(default)]
    pub unless_empty: bool,
    /// Whether the list may be a string with a word in each character.
    #[serde(default)]
    pub letters: bool,
    /// If set, only a model that states null for this may lack the list.
    pub unless_null: Option<Field>,
}

/// A list of layers of one kind in `config.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexedKind {
    /// The key.
    pub hf: String,
    /// The kind of the listed layers.
    pub kind: String,
    /// The kind of the other layers.
    pub other: String,
    /// The key of the list of the other layers, which a model with the first list must have, too.
    pub others_hf: Option<String>,
    /// The index of the first layer.
    #[serde(default)]
    pub first: u64,
}

/// A list of numbers in GGUF that tells kinds of layers, such as that of KV heads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GgufKinds {
    /// The key.
    pub gguf: String,
    /// The kind of layers with 0, or another list that tells them apart.
    pub zero: KindOrList,
    /// The kind of the other layers.
    pub other: String,
}

/// A kind of layers, or a list that says which.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum KindOrList {
    /// A kind.
    Kind(String),
    /// A list.
    List(Box<GgufKinds>),
}

impl GgufKinds {
    /// This list, and those that tell apart what it has as 0.
    pub fn lists(&self) -> impl Iterator<Item = &GgufKinds> {
        std::iter::successors(Some(self), |list| match &list.zero {
            KindOrList::Kind(_) => None,
            KindOrList::List(list) => Some(&**list),
        })
    }

    /// The kinds of layers that it tells apart.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.lists().flat_map(|list| {
            let zero = match &list.zero {
                KindOrList::Kind(kind) => Some(kind.as_str()),
                KindOrList::List(_) => None,
            };
            std::iter::once(list.other.as_str()).chain(zero)
        })
    }
}
