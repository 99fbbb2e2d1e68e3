//! The caps on everything read about a model, in one place.
//!
//! Each is far above what real models need and far below what hurts; a file
//! that passes one is refused by name before anything is allocated.

/// Caps on what a model says of itself.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Caps on the files themselves.
    pub file: girih_file::Limits,
    /// Layers of one model.
    pub layers: u32,
    /// Components of one head of attention.
    pub head_size: usize,
}

impl Limits {
    /// The caps that girih runs with.
    pub const DEFAULT: Limits =
        Limits { file: girih_file::Limits::DEFAULT, layers: 10_000, head_size: 4_096 };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
