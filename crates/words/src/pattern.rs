//! The regular expressions of pre-tokenizers, matched in linear time.
//!
//! Patterns come from a model's file. A file could make a backtracking engine
//! run forever, and the engine of `tokenizers` stops silently at its limit,
//! which gives wrong ids. The patterns of all families need lookahead only in
//! the ending `|\s+(?!\S)|\s+`, with which a run of white space leaves its
//! last character to the next word. This module implements that ending, and
//! digits in groups of three from the right; `regex-automata` must accept the
//! rest. It gives `$` the meaning that it has in Oniguruma, which `tokenizers`
//! uses: the end of a line.

use std::ops::Range;

use girih_tensor::{Error, Result};
use regex_automata::util::syntax;
use regex_automata::{Input, meta};

use super::short::short;

/// The longest pattern in use (gpt-oss) has 300 bytes.
const MAX_PATTERN_BYTES: usize = 4096;
/// Bytes of a compiled pattern, which bound the work per byte of text. The
/// largest in use (gpt-oss) needs less than half.
const MAX_COMPILED_BYTES: usize = 2 << 20;
/// The only lookahead in use, with the alternative that follows it.
const TRAILING: &str = r"|\s+(?!\S)|\s+";
/// The index of the `\s+` of `TRAILING` among the compiled patterns.
const WHITE_SPACE: usize = 1;

/// Parts of patterns with backtracking constructs, and parts without that match the same text.
///
/// A possessive repetition differs from a greedy one only where giving a character back lets the
/// rest match. The rest of a part cannot begin with such a character (`\p{L}` is not in the class
/// before it), or matches nothing, too (`[\r\n]*`). A greedy run of line ends is followed by none.
/// This holds only if the alternative ends with the part, and the part is in no group.
const EQUAL_PARTS: [(&str, &str); 4] = [
    (r"[^\r\n\p{L}\p{N}]?+\p{L}++", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r"[^\r\n\p{L}\p{N}]?+\p{L}+", r"[^\r\n\p{L}\p{N}]?\p{L}+"),
    (r"[^\s\p{L}\p{N}]++[\r\n]*", r"[^\s\p{L}\p{N}]+[\r\n]*"),
    (r"(?:\r?\n)+(?!\r?\n)", r"(?:\r?\n)+"),
];

/// Patterns of digits in groups of three from the right: the pattern, a run of its digits, and
/// whether a run is left alone if a character of a word follows it, as `\b` demands.
const DIGIT_GROUPS: [(&str, &str, bool); 3] = [
    (r"\d{1,3}(?=(?:\d{3})*\b)", r"\d+", true),
    (r"\d{1,3}(?=(?:\d{3})*(?!\d))", r"\d+", false),
    (r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", r"\p{N}+", false),
];

/// A compiled pattern.
pub(super) struct Pattern {
    regex: meta::Regex,
    groups: Option<DigitGroups>,
}

/// Splits the matches of a pattern, which are runs of digits, into groups of three from the right.
struct DigitGroups {
    /// A character after which a run is left alone.
    word: Option<meta::Regex>,
}

impl Pattern {
    /// Compiles a regular expression in the syntax of `tokenizer.json`.
    ///
    /// # Errors
    /// When it is too long, or uses something that needs backtracking.
    pub(super) fn regex(source: &str) -> Result<Pattern> {
        if source.len() > MAX_PATTERN_BYTES {
            return Err(Error::new(format!(
                "the pattern has {} bytes; the maximum is {MAX_PATTERN_BYTES}",
                source.len()
            )));
        }
        if let Some((_, run, alone)) = DIGIT_GROUPS.into_iter().find(|(known, ..)| *known == source) {
            // Oniguruma's `\w` has letters, marks, decimal digits and connectors, but no `①` and no joiners.
            let word = alone.then(|| build(&[r"[\w--[\x{200C}\x{200D}]]"], source)).transpose()?;
            return Ok(Pattern { regex: build(&[run], source)?, groups: Some(DigitGroups { word }) });
        }
        let plain = without_backtracking(source);
        if has_possessive(&plain) {
            return Err(unsupported(source, "it has a possessive repetition"));
        }
        match plain.strip_suffix(TRAILING) {
            Some(start) => Pattern::compile(&[start, r"\s+"], source),
            None => Pattern::compile(&[&plain], source),
        }
    }

    /// As [`Pattern::regex`], for a pattern that only matches texts, never the border between two.
    ///
    /// # Errors
    /// As [`Pattern::regex`], and when it matches an empty text.
    pub(super) fn of_text(source: &str) -> Result<Pattern> {
        let pattern = Pattern::regex(source)?;
        if pattern.regex.is_match("") || source.contains(r"\b") || source.contains(r"\B") {
            let source = short(source);
            return Err(Error::new(format!(
                "the pattern `{source}` may match an empty text, which cannot be replaced"
            )));
        }
        Ok(pattern)
    }

    /// Compiles a pattern that matches exactly this text.
    pub(super) fn literal(text: &str) -> Result<Pattern> {
        if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
            return Err(Error::new(format!(
                "the text to split at has {} bytes; it must have 1 to {MAX_PATTERN_BYTES}",
                text.len()
            )));
        }
        let escaped: String = text.chars().map(|char| format!(r"\x{{{:X}}}", u32::from(char))).collect();
        Pattern::compile(&[&escaped], text)
    }

    fn compile(patterns: &[&str], source: &str) -> Result<Pattern> {
        Ok(Pattern { regex: build(patterns, source)?, groups: None })
    }

    /// Returns the non-empty matches in order.
    pub(super) fn matches(&self, text: &str) -> Vec<Range<usize>> {
        let found = self.regex_matches(text);
        match &self.groups {
            Some(groups) => found.into_iter().flat_map(|run| groups.of(text, run)).collect(),
            None => found,
        }
    }

    fn regex_matches(&self, text: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        let mut start = 0;
        while let Some(hit) = self.regex.find(Input::new(text).range(start..)) {
            let mut end = hit.end();
            if hit.pattern().as_usize() == WHITE_SPACE {
                end = leave_last(text, hit.range());
            }
            if end > hit.start() {
                found.push(hit.start()..end);
            }
            start = if end > start { end } else { next_char(text, start) };
            if start > text.len() {
                break;
            }
        }
        found
    }
}

impl DigitGroups {
    /// The groups of a run of digits.
    fn of(&self, text: &str, run: Range<usize>) -> Vec<Range<usize>> {
        let next = text[run.end..].chars().next().map(|next| next.to_string());
        let is_word = |word: &meta::Regex| next.is_some_and(|next| word.is_match(&next));
        if self.word.as_ref().is_some_and(is_word) {
            return Vec::new();
        }
        let starts: Vec<usize> = text[run.clone()].char_indices().map(|(at, _)| run.start + at).collect();
        let count = starts.len();
        let first = (1..=3).find(|first| count.abs_diff(*first) % 3 == 0).unwrap_or(3);
        let borders = std::iter::once(0).chain((first..count).step_by(3));
        let ends = (first..count).step_by(3).map(|index| starts[index]).chain([run.end]);
        borders.map(|index| starts[index]).zip(ends).map(|(start, end)| start..end).collect()
    }
}

/// Compiles expressions. Where several match, the first one counts.
fn build(patterns: &[&str], source: &str) -> Result<meta::Regex> {
    let config = meta::Config::new()
        .nfa_size_limit(Some(MAX_COMPILED_BYTES))
        .onepass_size_limit(Some(MAX_COMPILED_BYTES));
    meta::Builder::new()
        .configure(config)
        .syntax(syntax::Config::new().multi_line(true))
        .build_many(patterns)
        .map_err(|error| unsupported(source, reason(&error)))
}

/// The end of the match of `\s+(?!\S)|\s+` in a longest run of white space: before
/// its last character, if it has at least two and a word follows.
fn leave_last(text: &str, run: Range<usize>) -> usize {
    if run.end == text.len() {
        return run.end;
    }
    match text[run.clone()].char_indices().next_back() {
        Some((last, _)) if last > 0 => run.start + last,
        _ => run.end,
    }
}

/// The start of the next character after `at`, or a position past the end.
fn next_char(text: &str, at: usize) -> usize {
    at + text[at..].chars().next().map_or(1, char::len_utf8)
}

/// Whether a repetition is followed by `+`. `regex-automata` reads `a?+` as
/// `(a?)+`, but the files mean a possessive `a?`, which never backtracks.
fn has_possessive(source: &str) -> bool {
    let mut chars = source.chars().peekable();
    let mut class = 0_usize;
    while let Some(char) = chars.next() {
        let is_repetition = match char {
            '\\' => {
                let named = matches!(chars.next(), Some('p' | 'P' | 'x' | 'u'));
                if named && chars.peek() == Some(&'{') {
                    chars.by_ref().find(|char| *char == '}');
                }
                false
            }
            '[' => {
                class += 1;
                false
            }
            ']' => {
                class = class.saturating_sub(1);
                false
            }
            '?' | '*' | '+' | '}' => class == 0,
            _ => false,
        };
        if is_repetition && chars.peek() == Some(&'+') {
            return true;
        }
    }
    false
}

/// The pattern with [`EQUAL_PARTS`] replaced where an alternative outside groups ends with one.
fn without_backtracking(source: &str) -> String {
    let mut ends = outer_bars(source);
    ends.push(source.len());
    let (mut plain, mut start) = (String::with_capacity(source.len()), 0);
    for end in ends {
        // The text from a bar up to the next.
        let alternative = &source[start..end];
        let replaced = |(part, equal)| Some((alternative.strip_suffix(part)?, equal));
        let (kept, equal) = EQUAL_PARTS.into_iter().find_map(replaced).unwrap_or((alternative, ""));
        plain += kept;
        plain += equal;
        start = end;
    }
    plain
}

/// The positions of the bars that are in no group and no class.
fn outer_bars(source: &str) -> Vec<usize> {
    let (mut groups, mut class, mut bars) = (0_usize, 0_usize, Vec::new());
    let mut chars = source.char_indices().peekable();
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => drop(chars.next()),
            '[' => {
                class += 1;
                // A bracket in the first place does not close the class.
                chars.next_if(|(_, char)| *char == '^');
                chars.next_if(|(_, char)| *char == ']');
            }
            ']' => class = class.saturating_sub(1),
            '(' if class == 0 => groups += 1,
            ')' if class == 0 => groups = groups.saturating_sub(1),
            '|' if class == 0 && groups == 0 => bars.push(at),
            _ => {}
        }
    }
    bars
}

/// The error of a pattern in one line.
fn reason(error: &meta::BuildError) -> String {
    let syntax = error.syntax_error().map(ToString::to_string);
    // The error shows the pattern first; the last line contains the reason.
    let last = syntax.as_deref().and_then(|drawn| drawn.lines().last());
    let line = last.map(|line| line.trim_start_matches("error: ").to_owned());
    line.unwrap_or_else(|| format!("it needs more than {MAX_COMPILED_BYTES} bytes when compiled"))
}

fn unsupported(source: &str, why: impl std::fmt::Display) -> Error {
    Error::new(format!(
        "the pattern `{}` is not supported: {why}; look-around is supported only as the ending `{TRAILING}`",
        short(source)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(pattern: &str, text: &str) -> Vec<String> {
        let pattern = Pattern::regex(pattern).expect("a supported pattern");
        pattern.matches(text).into_iter().map(|range| text[range].to_owned()).collect()
    }

    #[test]
    fn white_space_leaves_its_last_character_to_the_next_word() {
        let pattern = r" ?\p{L}+|\s+(?!\S)|\s+";
        assert_eq!(words(pattern, "a   b  "), ["a", "  ", " b", "  "]);
        assert_eq!(words(pattern, "\n\nb"), ["\n", "\n", "b"]);
        assert_eq!(words(pattern, "\u{3000}\u{3000} b"), ["\u{3000}\u{3000}", " b"]);
    }

    #[test]
    fn white_space_matched_by_an_earlier_alternative_stays_whole() {
        assert_eq!(words(r"\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+", " \n\nb  c"), [" \n\n", "b", " ", " ", "c"]);
    }

    #[test]
    fn empty_matches_are_skipped() {
        assert_eq!(words("a*", "baaé"), ["aa"]);
    }

    #[test]
    fn patterns_that_backtrack_are_refused() {
        for bad in [r"(a)\1", "(?=a)", r"\p{L}++", "(?!a)b|\\s+(?!\\S)|\\s+", "(", "((a{1000}){1000}){1000}"]
        {
            assert!(Pattern::regex(bad).is_err(), "{bad}");
        }
        assert!(Pattern::regex(&"a".repeat(MAX_PATTERN_BYTES + 1)).is_err());
    }

    #[test]
    fn parts_are_replaced_only_where_an_alternative_ends() {
        let marks = r"[^\s\p{L}\p{N}]++[\r\n]*";
        for good in [format!(" ?{marks}"), format!(r"{marks}|a|(b|[|])c"), format!(r"[](^|]+|\(|{marks}")] {
            let plain = without_backtracking(&good);
            assert_eq!(plain, good.replace("++", "+"), "{good}");
            Pattern::regex(&good).expect("a supported pattern");
        }
        // A possessive repetition takes both marks and fails; a greedy one gives the last back.
        assert_eq!(words(r"[^\s\p{L}\p{N}]+[\r\n]*!", "?!"), ["?!"]);
        let lines = r"(?:\r?\n)+(?!\r?\n)";
        for bad in [
            format!("{marks}!"),
            format!("(?:{marks}|b)!"),
            format!("({marks})"),
            format!(r"[](|]({marks}|b)"),
            format!("{lines}\n"),
            format!("(?:{lines}|a)\n"),
        ] {
            assert!(Pattern::regex(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn possessive_repetitions_are_detected() {
        for possessive in ["a?+", r"\p{L}*+", "[+?]++", "a{1,3}+"] {
            assert!(has_possessive(possessive), "{possessive}");
        }
        for plain in [r"\p{L}+", r"\?+", "[*+?+]", r"\++", "a+?", "(?i:b)+", r"[\]++]"] {
            assert!(!has_possessive(plain), "{plain}");
        }
    }

    #[test]
    fn literals_match_only_themselves() {
        let pattern = Pattern::literal("a.▁").expect("a literal");
        assert_eq!(pattern.matches("a.▁ ab▁ a.▁"), [0..5, 12..17]);
    }
}
