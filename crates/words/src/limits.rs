//! The limits of everything read about text.
//!
//! Each is far above what real models need and far below what would exhaust
//! memory. A file that exceeds one is refused before anything is allocated.

/// The limits of tokenizers and templates.
#[derive(Clone, Debug)]
pub struct TextLimits {
    /// The limits of the files.
    pub file: girih_file::FileLimits,
    /// The maximum bytes of a `tokenizer.json`.
    pub tokenizer_bytes: u64,
    /// The maximum number of tokens of a vocabulary; ids must be below it.
    pub vocabulary: u32,
    /// The maximum bytes of a chat template.
    pub template_bytes: u64,
}

impl TextLimits {
    /// The limits that girih uses.
    pub const DEFAULT: TextLimits = TextLimits {
        file: girih_file::FileLimits::DEFAULT,
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
