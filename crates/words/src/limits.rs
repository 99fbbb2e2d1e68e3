//! The caps on everything read about text, in one place.
//!
//! Each is far above what real models need and far below what hurts; a file
//! that passes one is refused by name before anything is allocated.

/// Caps on the contents of tokenizers and templates.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Caps on the files themselves.
    pub file: girih_file::FileLimits,
    /// Bytes of a `tokenizer.json`.
    pub tokenizer_bytes: u64,
    /// Tokens in a vocabulary.
    pub vocabulary: u32,
    /// Bytes of a chat template.
    pub template_bytes: u64,
}

impl Limits {
    /// The caps that girih runs with.
    pub const DEFAULT: Limits = Limits {
        file: girih_file::FileLimits::DEFAULT,
        tokenizer_bytes: 128 << 20,
        vocabulary: 4_000_000,
        template_bytes: 1 << 20,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}
