//! An assistant together with the model that it drafts for.

use std::sync::Arc;

use girih_graph::backend::RowSource;
use girih_graph::{Graph, Key, WeightSource};
use girih_tensor::{DType, Error, ErrorKind, Result};

use crate::arch::{AttentionFacts, HiddenState};
use crate::assemble::{self, GraphOptions, WeightTypes};
use crate::assistant_parts::{TARGET_TABLE, first_of_kinds};
use crate::model::ModelFiles;

/// An assistant, and the model that it drafts for.
#[derive(Clone, Copy, Debug)]
pub struct AssistantFiles<'a> {
    own: &'a ModelFiles,
    target: &'a ModelFiles,
}

impl<'a> AssistantFiles<'a> {
    /// The model `own` as an assistant of `target`.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when it is no assistant, or one of another model.
    pub fn new(own: &'a ModelFiles, target: &'a ModelFiles) -> Result<AssistantFiles<'a>> {
        let files = AssistantFiles { own, target };
        let Some(assistant) = own.facts.assistant else {
            return Err(refused("the model is no assistant of another one".to_owned()));
        };
        let vocabularies = [own, target].map(|files| files.facts.sizes.vocabulary);
        let widths = [assistant.width, target.facts.sizes.width];
        for (what, [own, target]) in [("a vocabulary of", vocabularies), ("a hidden size of", widths)] {
            if own != target {
                return Err(refused(format!(
                    "the assistant is of a model with {what} {own}, but the model has {what} {target}"
                )));
            }
        }
        if target.facts.streams.is_some() || target.facts.embed.norm.is_some() {
            let name = &target.facts.name;
            return Err(refused(format!("girih has no assistants of models of architecture {name}")));
        }
        files.layers()?;
        Ok(files)
    }

    /// The layers of the model whose keys and values the assistant reads, in the order of its inputs.
    fn layers(&self) -> Result<Vec<usize>> {
        let of_kind = |(kind, own): (&str, &AttentionFacts)| {
            let has_own =
                |attend: &&AttentionFacts| attend.values.of_layer.is_none() && attend.latent.is_none();
            let layers = self.target.facts.layers.iter().enumerate().rev();
            let mut layers = layers.filter(|(_, layer)| layer.kind == kind);
            let found = layers.find_map(|(index, layer)| {
                layer.mixer.attention().filter(has_own).map(|attend| (index, attend))
            });
            let Some((index, attend)) = found else {
                return Err(refused(format!("the model has no {kind} layer with keys and values")));
            };
            let sizes = |attend: &AttentionFacts| [attend.kv_heads, attend.head_size];
            if sizes(own) != sizes(attend) {
                let ([own_heads, own_size], [heads, size]) = (sizes(own), sizes(attend));
                return Err(refused(format!(
                    "the assistant reads {own_heads} heads of {own_size} values in {kind} layers, but the model has \
                     {heads} of {size}"
                )));
            }
            let is_normed = attend.qk_norm.is_some() && attend.values.norm.is_some();
            if attend.value_size.is_some_and(|size| size != attend.head_size) || !is_normed {
                return Err(refused(format!("girih has no assistants that read such {kind} layers")));
            }
            if own.rope != attend.rope {
                return Err(refused(format!(
                    "the assistant rotates heads of {kind} layers in another way than the model"
                )));
            }
            Ok(index)
        };
        first_of_kinds(&self.own.facts)?.into_iter().map(of_kind).collect()
    }

    /// The graph for steps up to `key`.
    ///
    /// # Errors
    /// As [`ModelFiles::graph`].
    pub fn graph(&self, key: Key, options: GraphOptions) -> Result<Graph> {
        assemble::assistant_graph([&self.own.facts, &self.target.facts], self, key, options)
    }

    /// The names of the values of the model's graph that it reads, in the order of its inputs.
    ///
    /// # Errors
    /// As [`AssistantFiles::new`].
    pub fn reads(&self) -> Result<Vec<String>> {
        let mut names = vec![self.target.hidden_name(HiddenState::Normed)];
        for layer in self.layers()? {
            // Keys before their rotation: their positions may be others here.
            names.extend(["k", "v"].map(|part| format!("layers.{layer}.mixer.{part}.normed")));
        }
        Ok(names)
    }

    /// The name of the value of its graph that its next row reads in place of the model's hidden states.
    pub fn own_hidden(&self) -> String {
        self.own.hidden_name(HiddenState::Normed)
    }

    /// The rows of the model's embedding under the name of a weight of the graph, if it may stay in its file; `None` for
    /// other weights.
    pub fn rows(target: &ModelFiles, name: &str) -> Option<Arc<dyn RowSource>> {
        (name == TARGET_TABLE).then(|| target.weights.rows("embed.table"))?
    }

    /// All values of a weight, row by row.
    ///
    /// # Errors
    /// When the weight does not exist, or its file cannot be read.
    pub fn numbers(&self, name: &str) -> Result<Vec<f32>> {
        match name {
            TARGET_TABLE => self.target.weights.numbers("embed.table"),
            _ => self.own.weights.numbers(name),
        }
    }
}

impl WeightTypes for AssistantFiles<'_> {
    fn stored_type(&self, name: &str, need: &[usize]) -> Result<DType> {
        match name {
            TARGET_TABLE => self.target.weights.stored_type("embed.table", need),
            _ => self.own.weights.stored_type(name, need),
        }
    }

    fn shared_name(&self, name: &str) -> Option<String> {
        self.own.weights.shared_name(name)
    }
}

impl WeightSource for AssistantFiles<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        match name {
            TARGET_TABLE => self.target.weights.read("embed.table", offset, into),
            _ => self.own.weights.read(name, offset, into),
        }
    }

    fn identity(&self) -> Option<[u8; 32]> {
        // Packed weights are cached for a model's own files.
        None
    }

    fn check_unchanged(&self) -> Result<()> {
        self.target.weights.check_unchanged()?;
        self.own.weights.check_unchanged()
    }
}

fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
