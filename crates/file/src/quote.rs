//! Untrusted text in errors.

use std::fmt::Display;

/// The maximum number of characters of a name in an error.
const QUOTED: usize = 80;

/// The maximum number of characters of a foreign sentence in an error.
const SHORTENED: usize = 200;

/// The number of these characters that are the sentence's last ones.
const LAST: usize = 60;

/// How serde begins what it expected instead of what it found.
const EXPECTED: &str = ", expected ";

/// The maximum number of characters of what serde expected: names of fields or variants of girih.
const EXPECTED_SHOWN: usize = 400;

/// An untrusted name for an error: in quotes, with control characters escaped,
/// and shortened to 80 characters.
pub fn quote(name: &str) -> String {
    let mut shown = String::new();
    let mut left = QUOTED;
    for c in name.chars() {
        let escaped = c.escape_debug();
        let Some(rest) = left.checked_sub(escaped.len()) else {
            shown.push('…');
            break;
        };
        left = rest;
        shown.extend(escaped);
    }
    format!("'{shown}'")
}

/// An untrusted sentence for an error, such as that of a parser which repeats its input: with
/// control characters escaped, and without its middle if it has more than 200 characters.
pub fn shorten(sentence: impl Display) -> String {
    let shown: Vec<char> = sentence.to_string().trim_end().chars().flat_map(printed).collect();
    if shown.len() <= SHORTENED {
        return shown.into_iter().collect();
    }
    // The sign of the cut counts, too.
    let (first, rest) = shown.split_at(SHORTENED - LAST - 1);
    first.iter().chain(&['…']).chain(&rest[rest.len() - LAST..]).collect()
}

/// As [`shorten`], for an error of serde about JSON. What serde says it expected is kept, as it
/// repeats nothing of the input.
pub fn shorten_parse(error: &serde_json::Error) -> String {
    // Only an error about a value says what was expected instead.
    if error.is_data() { shorten_found(&error.to_string()) } else { shorten(error) }
}

/// Shortens what serde found, and keeps what it expected, if that has at most 400 characters as they
/// are shown.
fn shorten_found(sentence: &str) -> String {
    let text = sentence.trim_end();
    // The last one is serde's own, whatever the input contains: it ends each sentence that repeats
    // the input.
    let split = text.rfind(EXPECTED).map(|at| text.split_at(at));
    let split = split.map(|(found, tail)| (found, tail.chars().flat_map(printed).collect::<Vec<char>>()));
    match split.filter(|(_, tail)| tail.len() <= EXPECTED_SHOWN) {
        Some((found, tail)) => shorten(found) + &tail.into_iter().collect::<String>(),
        None => shorten(text),
    }
}

/// The fault of serde in a text that a person wrote: the line, and its sentence as in
/// [`shorten_parse`]. `at` is the position of the fault in bytes, if the parser tells it.
pub fn fault_in_line(text: &str, at: Option<usize>, sentence: impl Display) -> String {
    let before = at.and_then(|at| text.as_bytes().get(..at));
    let line = before.map(|before| 1 + before.iter().filter(|byte| **byte == b'\n').count());
    let named = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    format!("{named}{}", shorten_found(&sentence.to_string()))
}

/// A character as an error shows it: escaped if it controls a terminal or the direction of text.
fn printed(c: char) -> Vec<char> {
    let is_obeyed = c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if is_obeyed { c.escape_unicode().collect() } else { vec![c] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_is_cut_and_a_short_one_kept() {
        assert_eq!(quote("a.b"), "'a.b'");
        assert_eq!(quote(&"a".repeat(80)), format!("'{}'", "a".repeat(80)));
        assert_eq!(quote(&"a".repeat(81)), format!("'{}…'", "a".repeat(80)));
        // Escapes count, too.
        assert!(quote(&"\u{1b}".repeat(1000)).chars().count() <= 83);
        assert_eq!(quote("a\n\u{202e}"), "'a\\n\\u{202e}'");
    }

    #[test]
    fn a_long_sentence_loses_its_middle() {
        let kept = "é".repeat(200);
        assert_eq!(shorten(&kept), kept);
        let shown = shorten(format!("unknown {} at line 1 column 2", "x".repeat(70_000)));
        assert_eq!(shown.chars().count(), 200);
        assert!(shown.starts_with("unknown xxx") && shown.ends_with("xxx at line 1 column 2"), "{shown}");
        assert!(shorten("\u{1b}\u{9b}\u{202e}".repeat(500)).chars().count() <= 200);
        assert_eq!(shorten("a\nb\u{7}"), "a\\u{a}b\\u{7}");
    }

    #[test]
    fn what_a_parser_expected_is_kept() {
        let end = format!(", expected one of {} at line 1 column 2", "`field`, ".repeat(20));
        // The input may contain the same words.
        let long = format!("unknown field {}, expected x{end}", "x".repeat(70_000));
        assert_eq!(shorten(&long).chars().count(), 200, "not the tail of any other sentence");
        let shown = shorten_found(&long);
        assert!(shown.starts_with("unknown field xxx") && shown.ends_with(&end), "{shown}");
        assert_eq!(shown.chars().count(), 200 + end.len());
        // Escapes count, too.
        for tail in ["x".repeat(70_000), "\u{1b}".repeat(300)] {
            assert!(shorten_found(&format!(", expected {tail}")).chars().count() <= 200);
        }
        let json = format!("\"{}, expected {}\"", "x".repeat(500), "y".repeat(300));
        let shown = shorten_parse(&serde_json::from_str::<bool>(&json).unwrap_err());
        assert!(shown.ends_with(", expected a boolean at line 1 column 813"), "{shown}");
        assert!(shown.chars().count() <= 250, "{shown}");
    }

    #[test]
    fn a_fault_has_its_line() {
        assert_eq!(fault_in_line("a\nb = ]", Some(6), "no"), "line 2: no");
        assert_eq!(fault_in_line("a", None, "no"), "no");
        assert_eq!(fault_in_line("a", Some(7), "no"), "no");
    }
}
