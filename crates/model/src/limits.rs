//! The caps on a model's parameters.
//!
//! Each is far above the needs of real models and low enough to be harmless; a
//! model that exceeds one is refused before anything is allocated.

/// Caps on a model's files and parameters.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Caps on the files themselves.
    pub file: girih_file::Limits,
    /// Layers of one model.
    pub layers: u32,
    /// The size of an attention head.
    pub head_size: usize,
}

impl Limits {
    /// The default caps.
    pub const DEFAULT: Limits =
        Limits { file: girih_file::Limits::DEFAULT, layers: 10_000, head_size: 4_096 };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
