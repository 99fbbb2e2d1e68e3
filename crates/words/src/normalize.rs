//! Normalizers: what is done to a text before it is cut into words.

use girih_tensor::{Error, Result};
use tokenizers::normalizers::{NormalizerWrapper, Prepend, Replace};
use tokenizers::{NormalizedString, Normalizer as _};

/// How much longer than its source a normalized text may become. `▁` for a space is 3.
const EXPANSION_MAX: usize = 64;
/// Bytes that a normalized text could come to: the library keeps 16 more for each.
const NORMAL_BYTES_MAX: usize = 64 << 20;
/// The longest text that is put before another. `▁` has 3 bytes.
const PREFIX_BYTES_MAX: usize = 16;

/// Steps of the library, and how much longer all of them can make a text.
pub(super) struct Normalization {
    steps: Vec<NormalizerWrapper>,
    expansion: usize,
}

impl Normalization {
    pub(super) fn none() -> Normalization {
        Normalization { steps: Vec::new(), expansion: 1 }
    }

    pub(super) fn is_none(&self) -> bool {
        self.steps.is_empty()
    }

    /// Adds a step that can make a text `expansion` times as long.
    pub(super) fn add(&mut self, step: NormalizerWrapper, expansion: usize) -> Result<()> {
        self.expansion = self.expansion.saturating_mul(expansion);
        if self.expansion > EXPANSION_MAX {
            return Err(Error::new(format!(
                "its steps could make a text {} times as long; at most {EXPANSION_MAX} times is taken",
                self.expansion
            )));
        }
        self.steps.push(step);
        Ok(())
    }

    /// Adds the replacement of one text by another.
    pub(super) fn add_replace(&mut self, pattern: String, content: String) -> Result<()> {
        assert!(!pattern.is_empty(), "the caller refuses empty patterns");
        let expansion = content.len().div_ceil(pattern.len()).max(1);
        let replace = Replace::new(pattern, content)
            .map_err(|error| Error::new(format!("the replacement is refused: {error}")))?;
        self.add(NormalizerWrapper::Replace(replace), expansion)
    }

    /// Adds a text that is put before each piece.
    pub(super) fn add_prepend(&mut self, prefix: String) -> Result<()> {
        if prefix.len() > PREFIX_BYTES_MAX {
            return Err(Error::new(format!(
                "Prepend has {} bytes; at most {PREFIX_BYTES_MAX} are taken",
                prefix.len()
            )));
        }
        self.add(NormalizerWrapper::Prepend(Prepend::new(prefix)), 1)
    }

    /// The normalized text, which knows where each part of it came from.
    pub(super) fn apply(&self, text: &str) -> Result<NormalizedString> {
        if text.len().saturating_mul(self.expansion) > NORMAL_BYTES_MAX {
            return Err(Error::new(format!(
                "a text of {} bytes could become {} times as long when it is normalized, which passes \
                 {NORMAL_BYTES_MAX} bytes; cut it into parts",
                text.len(),
                self.expansion
            )));
        }
        let mut normal = NormalizedString::from(text);
        for step in &self.steps {
            step.normalize(&mut normal)
                .map_err(|error| Error::new(format!("the text cannot be normalized: {error}")))?;
        }
        Ok(normal)
    }
}
