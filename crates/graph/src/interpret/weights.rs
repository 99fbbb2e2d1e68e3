//! Weights as the definition of ops reads them: numbers, row by row.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use girih_tensor::{Error, Result, View};

use crate::backend::WeightSource;
use crate::graph::Graph;
use crate::memory::zeroed;
use crate::value::Value;

/// Weights as numbers, row by row. A weight of one dimension is one row.
pub trait WeightRows {
    /// Returns consecutive rows of a weight, one after another.
    ///
    /// # Errors
    /// When the weight or a row does not exist.
    fn rows(&self, name: &str, rows: Range<usize>) -> Result<Cow<'_, [f32]>>;
}

/// Every weight as `f32`, by name.
#[derive(Debug)]
pub struct InterpreterWeights(HashMap<String, DecodedWeight>);

#[derive(Debug)]
struct DecodedWeight {
    columns: usize,
    numbers: Vec<f32>,
}

impl WeightRows for InterpreterWeights {
    fn rows(&self, name: &str, rows: Range<usize>) -> Result<Cow<'_, [f32]>> {
        let weight = self.0.get(name);
        let found = weight.and_then(|DecodedWeight { columns, numbers }| {
            numbers.get(rows.start.checked_mul(*columns)?..rows.end.checked_mul(*columns)?)
        });
        let missing = || {
            let Range { start, end } = rows;
            Error::new(format!("there are no rows {start}..{end} of a weight '{name}'"))
        };
        found.map(Cow::Borrowed).ok_or_else(missing)
    }
}

impl InterpreterWeights {
    /// Reads and decodes all weights of a graph.
    pub(super) fn read(graph: &Graph, source: &dyn WeightSource) -> Result<InterpreterWeights> {
        let mut weights = HashMap::new();
        for (_, value) in graph.weights() {
            let (columns, numbers) = (value.shape.columns(), read(value, source)?);
            weights.insert(value.name.clone(), DecodedWeight { columns, numbers });
        }
        Ok(InterpreterWeights(weights))
    }
}

/// Reads a weight as `f32` numbers.
fn read(value: &Value, source: &dyn WeightSource) -> Result<Vec<f32>> {
    let mut bytes = zeroed(&value.name, Some(value.dtype.bytes(&value.shape)?))?;
    source.read(&value.name, 0, &mut bytes)?;
    let view = View::new(value.dtype, value.shape.rows(), value.shape.columns(), &bytes)?;
    let mut numbers = zeroed(&value.name, Some(value.shape.elements()))?;
    view.unpack_rows(0..view.rows(), &mut numbers);
    Ok(numbers)
}
