//! The unrolled parts of kernels, in the place of marks in their sources.

/// The text with parts in the place of marks.
pub(crate) fn filled(text: String, parts: &[(&str, String)]) -> String {
    parts.iter().fold(text, |text, (mark, part)| text.replace(mark, part))
}
