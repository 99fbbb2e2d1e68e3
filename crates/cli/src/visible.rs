//! Text from outside without the characters that a terminal obeys.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fmt::{self, Display, Write};

/// A text whose control characters are shown as escapes, such as `\u{1b}`.
///
/// A terminal obeys control characters (OSC 52 writes the clipboard), and overrides of the direction
/// of text (UAX #9) show it in another order than it has. Line feeds and tabs stay as they are.
#[derive(Debug)]
pub struct Visible<T>(pub T);

/// As [`Visible`], for text that is JSON: `\u001b`, which has the same meaning in a string of JSON
/// as the character itself.
#[derive(Debug)]
pub struct VisibleJson<T>(pub T);

impl<T: Display> Display for Visible<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { out: f, escape: |out, c| write!(out, "\\u{{{:x}}}", c as u32) }, "{}", self.0)
    }
}

impl<T: Display> Display for VisibleJson<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping { out: f, escape: |out, c| write!(out, "\\u{:04x}", c as u32) }, "{}", self.0)
    }
}

/// Whether a terminal does anything else than show the character in its place.
pub fn is_obeyed(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // C0, DEL and C1; line and paragraph separators; embeddings, overrides and isolates.
        c => c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'),
    }
}

/// The maximum bytes of a text that the parser's messages repeat as it is.
const REPEATED_BYTES: usize = 200;

/// Whether a text is long, or has characters that a terminal obeys.
pub fn is_unprintable(text: &OsStr) -> bool {
    text.len() > REPEATED_BYTES || text.to_string_lossy().contains(is_obeyed)
}

/// The maximum number of characters of a message. girih's own sentences are shorter.
const MESSAGE_CHARS: usize = 1000;

/// A message without its middle, if it repeats so much of something that it has more than 1000
/// characters.
pub fn capped(message: &str) -> Cow<'_, str> {
    let count = message.chars().count();
    if count <= MESSAGE_CHARS {
        return message.into();
    }
    let first: String = message.chars().take(MESSAGE_CHARS / 2).collect();
    let last: String = message.chars().skip(count - MESSAGE_CHARS / 2 + 1).collect();
    format!("{first}…{last}").into()
}

/// Writes text, and passes the characters that a terminal obeys to `escape`.
struct Escaping<'a, 'f> {
    out: &'a mut fmt::Formatter<'f>,
    escape: fn(&mut fmt::Formatter<'f>, char) -> fmt::Result,
}

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, mut text: &str) -> fmt::Result {
        while let Some((at, c)) = text.char_indices().find(|(_, c)| is_obeyed(*c)) {
            self.out.write_str(&text[..at])?;
            (self.escape)(self.out, c)?;
            text = &text[at + c.len_utf8()..];
        }
        self.out.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_a_terminal_obeys_are_escaped_and_others_kept() {
        let shown = |text: &str| Visible(text).to_string();
        assert_eq!(shown("a\u{1b}[2J\u{7}b\nc\td"), "a\\u{1b}[2J\\u{7}b\nc\td");
        assert_eq!(shown("\r\u{8}\u{7f}\u{80}\u{9b}\u{9f}"), "\\u{d}\\u{8}\\u{7f}\\u{80}\\u{9b}\\u{9f}");
        assert_eq!(
            shown("\u{2028}\u{202a}\u{202e}\u{2066}\u{2069}"),
            "\\u{2028}\\u{202a}\\u{202e}\\u{2066}\\u{2069}"
        );
        for kept in ["", "naïve – 日本語 ✓", "👩\u{200d}🔬", "ש\u{200f}", "\u{a0}\\n"] {
            assert_eq!(shown(kept), kept);
        }
    }

    #[test]
    fn every_control_character_is_escaped() {
        let controls = (0..0xa0).filter_map(char::from_u32).filter(|c| c.is_control());
        for c in controls.filter(|c| !matches!(c, '\n' | '\t')) {
            let shown = Visible(c).to_string();
            assert!(!shown.contains(char::is_control), "{c:?}");
        }
    }

    #[test]
    fn a_message_of_more_than_1000_characters_loses_its_middle() {
        let long = format!("girih: {}: cut it", "é".repeat(70_000));
        let shown = capped(&long);
        assert_eq!(shown.chars().count(), 1000);
        assert!(shown.starts_with("girih: é") && shown.ends_with("é: cut it") && shown.contains('…'));
        let short = "é".repeat(1000);
        assert_eq!(capped(&short), short);
    }

    /// The escapes of JSON mean the same characters.
    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({"text": "a\u{1b}]52;c;\u{9b}\u{202e}\u{7f}\n"});
        let shown = VisibleJson(value.to_string()).to_string();
        assert!(!shown.contains(is_obeyed), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
