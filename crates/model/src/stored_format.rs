//! Chooses the format of each matrix when a model is quantized: F32 for exact ones, and a format whose blocks fill the
//! rows.

use girih_tensor::DType;

use crate::weights::ModelWeights;

/// Whether quantization leaves a weight as `f32`: vectors, the choice of experts, biases, which are used one by one, and
/// convolutions.
pub fn is_exact(weights: &ModelWeights, name: &str) -> bool {
    let is_vector = weights.info(name).is_some_and(|(_, shape)| shape.extents().len() < 2);
    is_vector || name.contains(".ffn.router.") || name.ends_with(".bias") || name.ends_with(".taps")
}

/// The closest format to `preferred` whose blocks fill rows of `columns` weights.
///
/// Where llama.cpp chooses Q5_1 (`tensor_type_fallback` in its `src/llama-quant.cpp`), which girih does not write, it is
/// the next more precise format.
pub fn fitting_format(preferred: DType, columns: usize) -> DType {
    let fits = |dtype: DType| columns.is_multiple_of(dtype.tile().1);
    let smaller = match preferred {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K | DType::Q6_K => DType::Q8_0,
        other => other,
    };
    [preferred, smaller].into_iter().find(|dtype| fits(*dtype)).unwrap_or(DType::F16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_partial_blocks_fall_back() {
        let fallen = |preferred, columns| fitting_format(preferred, columns);
        assert_eq!(fallen(DType::Q4_K, 512), DType::Q4_K);
        assert_eq!(fallen(DType::Q4_K, 64), DType::Q5_0);
        assert_eq!(fallen(DType::Q5_K, 64), DType::Q8_0);
        assert_eq!(fallen(DType::Q6_K, 64), DType::Q8_0);
        assert_eq!(fallen(DType::Q4_K, 172), DType::F16);
        assert_eq!(fallen(DType::Q4_0, 172), DType::F16);
    }
}
