//! The caps on everything read about text, in one place.
//!
//! Each is far above what real models need and far below what hurts; a file
//! that passes one is refused by name before anything is allocated.

/// Caps on the contents of tokenizers and templates.
#[derive(Clone, Debug)]
pub struct TextLimits {
    /// Caps on the files themselves.
    pub file: girih_file::Limits,
    /// Bytes of a `tokenizer.json`.
    pub tokenizer_bytes: u64,
    /// Tokens in a vocabulary.
    pub vocabulary: u32,
    /// Bytes of a chat template.
    pub template_bytes: u64,
}

impl TextLimits {
    /// The caps that girih runs with.
    pub const DEFAULT: TextLimits = TextLimits {
        file: girih_file::Limits::DEFAULT,
        tokenizer_bytes: 128 << 20,
        vocabulary: 4_000_000,
        template_bytes: 1 << 20,
    };
}

impl Default for TextLimits {
    fn default() -> TextLimits {
        TextLimits::DEFAULT
    }
}
