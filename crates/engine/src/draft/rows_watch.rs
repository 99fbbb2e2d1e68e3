//! Keeps the rows of one value of a step, such as hidden states.

use girih_graph::Watch;
use girih_tensor::Shape;

/// Keeps the rows of one value of a step.
pub(crate) struct RowsWatch {
    name: String,
    /// The values, row after row; empty if the step had none.
    pub values: Vec<f32>,
}

impl RowsWatch {
    /// Watches the value of this name.
    pub fn new(name: String) -> RowsWatch {
        RowsWatch { name, values: Vec::new() }
    }
}

impl Watch for RowsWatch {
    fn wants(&self, name: &str) -> bool {
        self.name == name
    }

    fn value(&mut self, _: &str, _: &Shape, data: &[f32]) {
        self.values.clear();
        self.values.extend(data);
    }
}
