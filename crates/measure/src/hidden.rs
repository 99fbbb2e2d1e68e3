//! The hidden states of a run, numbered as in transformers.

use std::iter;

use girih_graph::Watch;
use girih_model::layer_output;
use girih_tensor::Shape;

/// Collects the hidden states of a run, numbered as in transformers: the embeddings, the
/// output of each layer but the last, and the output of the head's norm.
#[derive(Debug)]
pub struct HiddenStates {
    names: Vec<String>,
    /// The rows of each hidden state, one after another.
    pub states: Vec<Vec<f32>>,
}

impl HiddenStates {
    /// Collects the hidden states of a model of `layers` layers.
    pub fn of(layers: usize) -> HiddenStates {
        HiddenStates::after(layers.saturating_sub(1))
    }

    /// Collects the hidden states of an encoder of `layers` layers: the embeddings and the
    /// output of each layer.
    pub fn of_encoder(layers: usize) -> HiddenStates {
        HiddenStates::named(iter::once("embed".to_owned()).chain((0..layers).map(layer_output)))
    }

    /// Collects the output of the last layer as well.
    pub(crate) fn every(layers: usize) -> HiddenStates {
        HiddenStates::after(layers)
    }

    /// Collects the embeddings, the outputs of the first `layers` layers, and the output of
    /// the head's norm.
    fn after(layers: usize) -> HiddenStates {
        let (first, last) = ("embed".to_owned(), "head.norm".to_owned());
        HiddenStates::named(iter::once(first).chain((0..layers).map(layer_output)).chain([last]))
    }

    /// Collects the values of these names.
    pub(crate) fn named(names: impl Iterator<Item = String>) -> HiddenStates {
        let names: Vec<String> = names.collect();
        HiddenStates { states: vec![Vec::new(); names.len()], names }
    }

    /// The name of a hidden state.
    pub fn name(&self, index: usize) -> &str {
        &self.names[index]
    }
}

impl Watch for HiddenStates {
    fn wants(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| wanted == name)
    }

    fn value(&mut self, name: &str, _: &Shape, data: &[f32]) {
        let index = self.names.iter().position(|wanted| wanted == name);
        self.states[index.expect("only values that `wants` accepts are reported")].extend_from_slice(data);
    }
}
