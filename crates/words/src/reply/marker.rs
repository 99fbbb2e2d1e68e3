//! How a special token reaches the parser: as one character that no text contains.
//!
//! Unicode reserves U+FDD0 to U+FDEF for the internal use of programs ("noncharacters", section
//! 23.7 of the standard). The detokenizer of a reply writes the special tokens of its style as
//! these, and replaces those that a model spells by U+FFFD. So a special token keeps its place in
//! the text, and text that looks like one stays text.

/// The first of the characters that stand for special tokens.
const FIRST: u32 = 0xFDD0;

/// The number of these characters.
const COUNT: u32 = 32;

/// Whether a character stands for a special token.
pub(super) fn is_mark(c: char) -> bool {
    (FIRST..FIRST + COUNT).contains(&u32::from(c))
}

/// The character of a style's special token with this number.
pub(super) fn mark(index: usize) -> char {
    let code = u32::try_from(index).ok().filter(|index| *index < COUNT).map(|index| FIRST + index);
    code.and_then(char::from_u32).expect("a style has fewer than 32 markers")
}

/// The number of the special token of a character.
pub(super) fn index_of(c: char) -> Option<usize> {
    is_mark(c).then(|| (u32::from(c) - FIRST) as usize)
}

/// Replaces the characters that are reserved for special tokens.
pub(super) fn without_marks(text: String) -> String {
    if text.contains(is_mark) { text.replace(is_mark, "\u{FFFD}") } else { text }
}
