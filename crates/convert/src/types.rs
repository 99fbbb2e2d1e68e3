//! The storage format of each matrix: llama.cpp's file types, their mixes, and
//! the fallbacks for rows that are not a whole number of blocks.
//!
//! The mixes are those of `llama_tensor_get_type_impl` and the fallbacks those
//! of `tensor_type_fallback` (`girih_model::fitting_format`) in llama.cpp's `src/llama-quant.cpp`, for models
//! without experts and quantization without an importance matrix.

use girih_tensor::DType;

/// A type of GGUF file: the format of most matrices, and a mix for the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)] // llama.cpp's own spelling
pub enum FileType {
    /// All tensors in single precision.
    F32,
    /// Matrices in half precision.
    F16,
    /// Matrices in bf16.
    BF16,
    /// Matrices as Q8_0.
    Q8_0,
    /// Matrices as Q4_0, the head as Q6_K.
    Q4_0,
    /// Matrices as Q4_1, the head as Q6_K.
    Q4_1,
    /// Matrices as Q5_0, the head as Q6_K.
    Q5_0,
    /// Matrices as MXFP4, embedding and head as Q8_0. llama.cpp uses
    /// MXFP4 for experts only and has no type for other matrices; girih uses the
    /// same number for both.
    MXFP4,
    /// Matrices as Q4_K, a few of the first as Q5_K, the head as Q6_K.
    Q4_K_S,
    /// Matrices as Q4_K, half of the value and down projections as Q6_K.
    Q4_K_M,
    /// Matrices as Q5_K, the head as Q6_K.
    Q5_K_S,
    /// Matrices as Q5_K, half of the value and down projections as Q6_K.
    Q5_K_M,
    /// Matrices as Q6_K.
    Q6_K,
}

/// The types with their names, numbers (`enum llama_ftype`) and the format of
/// most matrices. The first name is the one shown.
const FILE_TYPES: [(FileType, &[&str], u32, DType); 13] = [
    (FileType::F32, &["f32"], 0, DType::F32),
    (FileType::F16, &["f16"], 1, DType::F16),
    (FileType::BF16, &["bf16"], 32, DType::BF16),
    (FileType::Q8_0, &["q8_0"], 7, DType::Q8_0),
    (FileType::Q4_0, &["q4_0"], 2, DType::Q4_0),
    (FileType::Q4_1, &["q4_1"], 3, DType::Q4_1),
    (FileType::Q5_0, &["q5_0"], 8, DType::Q5_0),
    (FileType::MXFP4, &["mxfp4"], 38, DType::MXFP4),
    (FileType::Q4_K_S, &["q4_k_s"], 14, DType::Q4_K),
    (FileType::Q4_K_M, &["q4_k_m", "q4_k"], 15, DType::Q4_K),
    (FileType::Q5_K_S, &["q5_k_s"], 16, DType::Q5_K),
    (FileType::Q5_K_M, &["q5_k_m", "q5_k"], 17, DType::Q5_K),
    (FileType::Q6_K, &["q6_k"], 18, DType::Q6_K),
];

/// The type with this name, in any case.
pub(super) fn parse(text: &str) -> Option<FileType> {
    let known = |names: &[&str]| names.iter().any(|name| name.eq_ignore_ascii_case(text));
    FILE_TYPES.iter().find(|row| known(row.1)).map(|row| row.0)
}

/// All names, for errors.
pub(super) fn names() -> String {
    FILE_TYPES.iter().flat_map(|row| row.1).copied().collect::<Vec<_>>().join(", ")
}

impl FileType {
    /// Every type.
    pub const ALL: [FileType; 13] = {
        let mut all = [FileType::F32; 13];
        let mut index = 0;
        while index < all.len() {
            all[index] = FILE_TYPES[index].0;
            index += 1;
        }
        all
    };

    /// The name in flags and reports: `q4_k_m`.
    pub fn name(self) -> &'static str {
        self.row().1[0]
    }

    /// llama.cpp's number: `general.file_type`.
    pub(super) fn number(self) -> u32 {
        self.row().2
    }

    /// The format of most matrices.
    pub fn dtype(self) -> DType {
        self.row().3
    }

    fn row(self) -> &'static (FileType, &'static [&'static str], u32, DType) {
        FILE_TYPES.iter().find(|row| row.0 == self).expect("the table has a row per type")
    }
}

/// The role of a matrix in a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MatrixRole {
    /// The embedding table of a model with a separate head.
    Embedding,
    /// The head, or the embedding table that is also the head.
    Head,
    /// The value projection of this layer.
    Values(usize),
    /// The down projection of this layer.
    Down(usize),
    /// Any other matrix.
    Other,
}

/// The properties of a model that a mix depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct MixContext {
    /// The number of layers.
    pub layers: usize,
    /// Whether several query heads share a KV head.
    pub shared_heads: bool,
}

impl MixContext {
    /// Whether mixes give a layer more bits: the first and the last eighth, and
    /// every third layer between (`use_more_bits`).
    fn favours(self, layer: usize) -> bool {
        let eighth = self.layers / 8;
        layer < eighth || layer >= 7 * self.layers / 8 || (layer - eighth) % 3 == 2
    }

    /// llama.cpp's test for models of 70 billion weights, whose value projections
    /// are small and get more bits.
    fn is_70b(self) -> bool {
        self.layers == 80 && self.shared_heads
    }
}

/// The format of a matrix with rows of `columns` weights in the mix of `file_type`.
pub(super) fn mixed(file_type: FileType, role: MatrixRole, columns: usize, context: MixContext) -> DType {
    let usual = file_type.dtype();
    if usual.tile() == (1, 1) {
        return usual;
    }
    let medium = matches!(file_type, FileType::Q4_K_M | FileType::Q5_K_M);
    let small = file_type == FileType::Q4_K_S;
    match role {
        MatrixRole::Head if usual == DType::Q8_0 || file_type == FileType::MXFP4 => DType::Q8_0,
        MatrixRole::Head if !columns.is_multiple_of(usual.tile().1) => DType::Q8_0,
        MatrixRole::Head => DType::Q6_K,
        MatrixRole::Embedding if file_type == FileType::MXFP4 => DType::Q8_0,
        MatrixRole::Values(layer) if medium && context.favours(layer) => DType::Q6_K,
        MatrixRole::Values(layer) if small && layer < 4 => DType::Q5_K,
        MatrixRole::Values(_) if usual == DType::Q4_K && context.is_70b() => DType::Q5_K,
        MatrixRole::Down(layer) if medium && context.favours(layer) => DType::Q6_K,
        MatrixRole::Down(layer) if small && layer < context.layers / 8 => DType::Q5_K,
        _ => usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_mix_favours_both_ends_and_every_third_layer() {
        let context = MixContext { layers: 16, shared_heads: true };
        let favoured: Vec<usize> = (0..16).filter(|layer| context.favours(*layer)).collect();
        assert_eq!(favoured, [0, 1, 4, 7, 10, 13, 14, 15]);
    }

    #[test]
    fn every_type_is_found_by_its_name() {
        for file_type in FileType::ALL {
            assert_eq!(parse(&file_type.name().to_uppercase()), Some(file_type));
        }
        assert_eq!(parse("q4_k"), Some(FileType::Q4_K_M));
        assert_eq!(parse("q3_k_m"), None);
    }
}
