//! The caps on a model's parameters.
//!
//! Each is far above what real models need and low enough to be harmless; a
//! model that exceeds one is refused before anything is allocated.

/// Caps on a model's files and parameters.
#[derive(Clone, Debug)]
pub struct ModelLimits {
    /// Caps on the files themselves.
    pub file: girih_file::FileLimits,
    /// Layers of one model.
    pub layers: u32,
    /// The size of an attention head.
    pub head_size: usize,
    /// The experts of a layer.
    pub experts: usize,
    /// The rank of an adapter's matrices.
    pub adapter_rank: usize,
    /// The adapters beside one model.
    pub adapters: usize,
}

impl ModelLimits {
    /// The default caps.
    pub const DEFAULT: ModelLimits = ModelLimits {
        file: girih_file::FileLimits::DEFAULT,
        layers: 10_000,
        head_size: 4_096,
        experts: 4_096,
        adapter_rank: 1_024,
        adapters: 64,
    };
}

impl Default for ModelLimits {
    fn default() -> ModelLimits {
        ModelLimits::DEFAULT
    }
}
