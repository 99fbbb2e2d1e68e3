//! The scales of quantized matrices, in their own precision and in half precision, which blocks have.

use std::ops::Range;

use girih_tensor::{DType, Error, ErrorKind, Result};

use crate::container::{Container, TensorInfo};

/// Some numbers of a tensor of floats, and as numbers of half precision.
pub(crate) struct ScaleNumbers {
    /// Each as a number of single precision.
    pub values: Vec<f32>,
    /// Two bytes each, and what they stand for.
    halves: Vec<u8>,
    of_halves: Vec<f32>,
}

impl ScaleNumbers {
    /// Reads the tensor as a string of numbers.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(container: &Container, info: &TensorInfo, range: Range<u64>) -> Result<ScaleNumbers> {
        let (each, count) = (info.dtype.block_bytes(), (range.end - range.start) as usize);
        let mut bytes = vec![0; count * each];
        container.read(info, range.start * each as u64, &mut bytes)?;
        let [mut values, mut of_halves] = [vec![0.0; count], vec![0.0; count]];
        info.dtype.unpack(&bytes, &mut values);
        let halves = DType::F16.pack_matrix(1, count, &values)?;
        DType::F16.unpack(&halves, &mut of_halves);
        Ok(ScaleNumbers { values, halves, of_halves })
    }

    /// A number in half precision.
    ///
    /// # Errors
    /// When it is rounded.
    pub fn half(&self, index: usize) -> Result<[u8; 2]> {
        let value = self.values[index];
        if self.is_half(index) {
            return Ok([self.halves[2 * index], self.halves[2 * index + 1]]);
        }
        let sentence = format!(
            "has the scale or bias {value:e}, which half precision does not hold; take the model's original"
        );
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }

    /// Whether half precision holds a number.
    pub fn is_half(&self, index: usize) -> bool {
        self.values[index] == self.of_halves[index]
    }
}
