//! The hidden states of a run, numbered as transformers numbers them.

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
        let inner = (0..layers.saturating_sub(1)).map(layer_output);
        let names: Vec<String> =
            std::iter::once("embed".to_owned()).chain(inner).chain(["head.norm".to_owned()]).collect();
        Hidden { states: vec![Vec::new(); names.len()], names }
    }

    /// What every layer of a model of `layers` hands on, the last one too,
    /// beside what the first reads and what the head's norm makes.
    pub(crate) fn every(layers: usize) -> Hidden {
        let all = (0..layers).map(layer_output);
        let names: Vec<String> =
            std::iter::once("embed".to_owned()).chain(all).chain(["head.norm".to_owned()]).collect();
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
