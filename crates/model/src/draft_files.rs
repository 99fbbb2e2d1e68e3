//! The layer of a model that predicts the token after the next one, as a model of its own.

use girih_file::{Container, ContainerKind};
use girih_graph::{Graph, Key};
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::Value as Json;

use crate::arch::{self, Arch, Facts, HiddenState, ModelConfig};
use crate::assemble::{self, GraphOptions};
use crate::limits::ModelLimits;
use crate::weights::ModelWeights;

/// The layer, with the model's embedding and head.
#[derive(Debug)]
pub struct DraftFiles {
    /// Its parameters: those of a model of one layer.
    pub facts: Facts,
    /// Its weights, read on demand.
    pub weights: ModelWeights,
    /// The hidden states that it reads.
    pub reads: HiddenState,
}

impl DraftFiles {
    /// Opens the layer of a model of architecture `arch` with `layers` layers.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the description or the container has no such layer; when its tensors are
    /// not those of the description.
    pub(crate) fn open(
        container: Container,
        config: Option<&Json>,
        (arch, layers): (&Arch, usize),
        limits: &ModelLimits,
    ) -> Result<DraftFiles> {
        let refused = |sentence: String| Err(Error::with_kind(ErrorKind::Refused, sentence));
        let name = &arch.name;
        let Some(draft) = &arch.draft else {
            return refused(format!(
                "architecture {name} has no layer that predicts further tokens; draft by 'lookup' or with a smaller model"
            ));
        };
        let start = match container.kind() {
            ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
                Some(draft.start(layers))
            }
            ContainerKind::Gguf => draft.gguf_start(layers),
        };
        let Some(start) = start else {
            return refused(format!(
                "girih reads layers that predict further tokens of architecture {name} from safetensors only, not from \
                 GGUF; draft by 'lookup' or with a smaller model"
            ));
        };
        if !container.tensors().keys().any(|name| name.starts_with(&start)) {
            return refused(format!(
                "the model's files have no layer that predicts further tokens: no tensor's name begins with '{start}'; \
                 draft by 'lookup' or with a smaller model"
            ));
        }
        let mut own = arch::as_model(arch, draft, layers)?;
        // What is not the layer's own is the model's.
        let others = container.tensors().keys().chain(container.unreadable().keys());
        let is_gguf = container.kind() == ContainerKind::Gguf;
        let is_own = |name: &str| if is_gguf { name.starts_with(&start) } else { draft.owns(name, layers) };
        let others: Vec<String> = others.filter(|name| !is_own(name)).cloned().collect();
        (own.unused.hf, own.unused.gguf) = if is_gguf { (Vec::new(), others) } else { (others, Vec::new()) };
        own.sizes.drafting = None;
        let kinds: Vec<&str> = draft.kinds.iter().map(String::as_str).collect();
        let mut weights = ModelWeights::resolve(&own, container, &kinds, &[])?;
        let config = config.map_or(ModelConfig::Gguf(weights.container().metadata()), ModelConfig::Hf);
        let facts = arch::fill(&own, &config, &kinds, &weights, limits)?;
        weights.complete(&own, &facts)?;
        Ok(DraftFiles { facts, weights, reads: draft.reads })
    }

    /// The layer's graph for steps up to `key`: from tokens and hidden states to logits.
    ///
    /// # Errors
    /// As [`ModelFiles::graph`](crate::ModelFiles::graph).
    pub fn graph(&self, key: Key, options: GraphOptions) -> Result<Graph> {
        assemble::draft_graph(&self.facts, &self.weights, key, options)
    }

    /// The name of the value of its graph that its next row reads in place of the model's hidden states.
    pub fn own_hidden(&self) -> String {
        assemble::hidden_name(&self.facts, self.reads)
    }
}
