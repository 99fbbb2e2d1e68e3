//! A weight as the model's files have it, alone.

use std::ops::Range;
use std::sync::Arc;

use girih_file::TensorInfo;
use girih_graph::WeightSource as _;
use girih_graph::backend::RowSource;
use girih_tensor::{DType, Result, Shape};

use crate::quantized_weight::StoredMatrix;
use crate::weight_bytes::past_end;
use crate::weights::ModelWeights;

/// The only weight of `weights`, and its name.
pub(crate) struct LoneWeight {
    pub weights: ModelWeights,
    pub name: String,
}

impl StoredMatrix for LoneWeight {
    fn info(&self) -> Result<(DType, Shape)> {
        self.weights.info(&self.name).ok_or_else(past_end)
    }

    fn numbers(&self, range: Range<usize>) -> Result<Vec<f32>> {
        self.weights.numbers_within(&self.name, range)
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.weights.identity()
    }

    fn rows(&self) -> Option<Arc<dyn RowSource>> {
        self.weights.rows(&self.name)
    }

    fn tensor(&self) -> Option<(&str, &TensorInfo)> {
        self.weights.stored(&self.name)
    }

    fn tensor_name(&self) -> Option<&str> {
        self.weights.tensor_of(&self.name)
    }
}
