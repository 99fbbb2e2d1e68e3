//! The hidden states of a run, numbered as transformers numbers them.

use std::iter;

use girih_graph::Watch;
use girih_model::layer_output;
use girih_tensor::Shape;

/// Collects the hidden states of a pass as transformers numbers them: what the
/// first layer reads, what each layer but the last hands on, and what the
/// head's norm makes of the last.
#[derive(Debug)]
pub struct Hidden {
    names: Vec<String>,
    /// One entry per hidden state: its rows, one after another.
    pub states: Vec<Vec<f32>>,
}

impl Hidden {
    /// The hidden states of a model of `layers` layers.
    pub fn of(layers: usize) -> Hidden {
        Hidden::after(layers.saturating_sub(1))
    }

    /// What every layer of a model of `layers` hands on, the last one too,
    /// beside what the first reads and what the head's norm makes.
    pub(crate) fn every(layers: usize) -> Hidden {
        Hidden::after(layers)
    }

    /// What the first layer reads, what the first `layers` hand on, and what the
    /// head's norm makes.
    fn after(layers: usize) -> Hidden {
        let (first, last) = ("embed".to_owned(), "head.norm".to_owned());
        let names: Vec<String> =
            iter::once(first).chain((0..layers).map(layer_output)).chain([last]).collect();
        Hidden { states: vec![Vec::new(); names.len()], names }
    }

    /// What a hidden state is called.
    pub fn name(&self, index: usize) -> &str {
        &self.names[index]
    }
}

impl Watch for Hidden {
    fn wants(&self, name: &str) -> bool {
        self.names.iter().any(|wanted| wanted == name)
    }

    fn value(&mut self, name: &str, _: &Shape, data: &[f32]) {
        let index = self.names.iter().position(|wanted| wanted == name);
        self.states[index.expect("only wanted values are handed over")].extend_from_slice(data);
    }
}
