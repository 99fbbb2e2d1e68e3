//! Pre-tokenizers: split a text into words, which the model encodes one by one.

use std::ops::Range;

use girih_tensor::Result;

use super::bert::is_punctuation;
use super::byte_level;
use super::pattern::Pattern;

/// The pattern of words in GPT-2 (`encoder.py`; llama.cpp `gpt-2`).
pub(super) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// The pattern of words in Llama 3 (its `tokenizer.json`; llama.cpp `llama-bpe`).
pub(super) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pattern of words in Qwen 2 and 3 (their `tokenizer.json`; llama.cpp `qwen2`).
pub(super) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// One step of a pre-tokenizer.
pub(super) enum PreTokenizerStep {
    /// Splits at the matches of a pattern.
    Split { pattern: Pattern, role: MatchRole, behavior: DelimiterBehavior },
    /// Prepends a space to a word that does not begin with one.
    PrefixSpace,
    /// Writes every byte in the byte-level alphabet.
    ByteLevel,
    /// Replaces spaces by `mark`, and prepends `mark` as `scheme` states.
    Metaspace { mark: char, scheme: PrependScheme },
    /// Removes white space, and makes each punctuation character a word.
    Bert,
    /// Splits at white space, which it removes.
    WhiteSpace,
    /// Splits at each character of punctuation.
    Punctuation { behavior: DelimiterBehavior },
}

/// Whether a pattern matches delimiters or words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MatchRole {
    /// The matches are delimiters.
    Delimiter,
    /// The matches are words, the text between them delimiters: `invert` in
    /// `tokenizer.json`.
    Word,
}

/// The handling of delimiters: `behavior` in `tokenizer.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub(super) enum DelimiterBehavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

/// The words that get a metaspace prepended: `prepend_scheme` in
/// `tokenizer.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum PrependScheme {
    First,
    Never,
    Always,
}

/// The position of a piece in an encoded or decoded text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TextPosition {
    /// At the start of the text.
    Start,
    /// After other text.
    Later,
}

/// The steps of the GPT-2 family: split by `pattern`, then the byte-level alphabet.
pub(super) fn byte_level_steps(pattern: &str) -> Result<Vec<PreTokenizerStep>> {
    let pattern = Pattern::regex(pattern)?;
    Ok(vec![
        PreTokenizerStep::Split {
            pattern,
            role: MatchRole::Delimiter,
            behavior: DelimiterBehavior::Isolated,
        },
        PreTokenizerStep::ByteLevel,
    ])
}

/// Splits `text` into words: applies `steps` in order, and drops empty words.
///
/// `opening` is the number of characters that come from the first character of the whole text. A
/// word that begins with one of these begins the text, as offsets in `tokenizers` say.
pub(super) fn pre_tokenize(steps: &[PreTokenizerStep], text: String, opening: usize) -> Vec<String> {
    let mut words = vec![Word { text, opening }];
    for step in steps {
        words = words.into_iter().flat_map(|word| step.apply(word)).collect();
        words.retain(|word| !word.text.is_empty());
    }
    words.into_iter().map(|word| word.text).collect()
}

/// A part of the text, and its number of characters that come from the text's first character.
struct Word {
    text: String,
    opening: usize,
}

impl Word {
    /// The parts of this word in ranges, which are in order.
    fn parts(&self, ranges: Vec<Range<usize>>) -> Vec<Word> {
        let (mut at, mut left) = (0, self.opening);
        let mut parts = Vec::with_capacity(ranges.len());
        for range in ranges {
            // Counting goes on from the last range, and stops with the opening.
            left -= self.text[at..range.start].chars().take(left).count();
            at = range.start;
            parts.push(Word { text: self.text[range].to_owned(), opening: left });
        }
        parts
    }

    /// This word with `mark` before it, unless it is empty or begins with it.
    fn with_prefix(self, mark: char) -> Word {
        if self.text.is_empty() || self.text.starts_with(mark) {
            return self;
        }
        let opening = if self.opening > 0 { self.opening + 1 } else { 0 };
        Word { text: format!("{mark}{}", self.text), opening }
    }

    /// This word with each byte in the byte-level alphabet.
    fn spelled(&self) -> Word {
        let opening = self.text.chars().take(self.opening).map(char::len_utf8).sum();
        Word { text: byte_level::spell(&self.text), opening }
    }
}

impl PreTokenizerStep {
    fn apply(&self, word: Word) -> Vec<Word> {
        let text = &word.text;
        match self {
            PreTokenizerStep::Split { pattern, role, behavior } => {
                word.parts(cut(text, pattern.matches(text), *role, *behavior))
            }
            PreTokenizerStep::PrefixSpace => vec![word.with_prefix(' ')],
            PreTokenizerStep::ByteLevel => vec![word.spelled()],
            PreTokenizerStep::Metaspace { mark, scheme } => {
                let opens = match scheme {
                    PrependScheme::Always => true,
                    PrependScheme::First => word.opening > 0,
                    PrependScheme::Never => false,
                };
                let text = text.replace(' ', mark.encode_utf8(&mut [0; 4]));
                let word = Word { text, ..word };
                vec![if opens { word.with_prefix(*mark) } else { word }]
            }
            PreTokenizerStep::Bert => word.parts(bert_words(text)),
            PreTokenizerStep::WhiteSpace => word.parts(runs_without_white_space(text)),
            PreTokenizerStep::Punctuation { behavior } => {
                let marks = text.char_indices().filter(|(_, char)| is_punctuation(*char));
                let marks = marks.map(|(start, char)| start..start + char.len_utf8()).collect();
                word.parts(cut(text, marks, MatchRole::Delimiter, *behavior))
            }
        }
    }
}

/// The runs of characters that are no white space.
fn runs_without_white_space(text: &str) -> Vec<Range<usize>> {
    let mut at = 0;
    let mut range = |run: &str| {
        let start = at;
        at += run.len();
        start..start + run.trim_end().len()
    };
    let runs: Vec<_> = text.split_inclusive(char::is_whitespace).map(&mut range).collect();
    runs.into_iter().filter(|run| !run.is_empty()).collect()
}

/// The words of a text: runs without white space and punctuation, and each
/// character of punctuation.
fn bert_words(text: &str) -> Vec<Range<usize>> {
    let mut words: Vec<Range<usize>> = Vec::new();
    // Whether the last word may go on.
    let mut is_open = false;
    for (start, char) in text.char_indices() {
        let range = start..start + char.len_utf8();
        let is_alone = is_punctuation(char);
        match words.last_mut() {
            _ if char.is_whitespace() => is_open = false,
            Some(last) if is_open && !is_alone => last.end = range.end,
            _ => {
                words.push(range);
                is_open = !is_alone;
            }
        }
    }
    words
}

/// Cuts a word at matches.
fn cut(
    word: &str,
    matches: Vec<Range<usize>>,
    role: MatchRole,
    behavior: DelimiterBehavior,
) -> Vec<Range<usize>> {
    let mut parts = Vec::new();
    let mut end = 0;
    for found in matches {
        if end < found.start {
            parts.push((end..found.start, role == MatchRole::Word));
        }
        end = found.end;
        parts.push((found, role == MatchRole::Delimiter));
    }
    if end < word.len() {
        parts.push((end..word.len(), role == MatchRole::Word));
    }
    join_delimiters(parts, behavior)
}

/// Joins or drops delimiters. The flag of a part is `true` for a delimiter.
fn join_delimiters(mut parts: Vec<(Range<usize>, bool)>, behavior: DelimiterBehavior) -> Vec<Range<usize>> {
    let joins = |previous: bool, this: bool| match behavior {
        DelimiterBehavior::Removed | DelimiterBehavior::Isolated => false,
        DelimiterBehavior::Contiguous => previous == this,
        DelimiterBehavior::MergedWithPrevious | DelimiterBehavior::MergedWithNext => this && !previous,
    };
    let backwards = behavior == DelimiterBehavior::MergedWithNext;
    if behavior == DelimiterBehavior::Removed {
        parts.retain(|(_, delimiter)| !delimiter);
    }
    if backwards {
        parts.reverse();
    }
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(parts.len());
    let mut previous = false;
    for (range, delimiter) in parts {
        match joined.last_mut() {
            Some(last) if joins(previous, delimiter) => {
                *last = last.start.min(range.start)..last.end.max(range.end);
            }
            _ => joined.push(range),
        }
        previous = delimiter;
    }
    if backwards {
        joined.reverse();
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(behavior: DelimiterBehavior, text: &str) -> Vec<String> {
        let pattern = Pattern::literal("-").expect("a literal");
        pre_tokenize(
            &[PreTokenizerStep::Split { pattern, role: MatchRole::Delimiter, behavior }],
            text.to_owned(),
            1,
        )
    }

    #[test]
    fn delimiters_are_kept_as_the_library_documents() {
        // The example in the documentation of `SplitDelimiterBehavior`.
        let text = "the-final--countdown";
        assert_eq!(split(DelimiterBehavior::Removed, text), ["the", "final", "countdown"]);
        assert_eq!(split(DelimiterBehavior::Isolated, text), ["the", "-", "final", "-", "-", "countdown"]);
        assert_eq!(split(DelimiterBehavior::MergedWithPrevious, text), ["the-", "final-", "-", "countdown"]);
        assert_eq!(split(DelimiterBehavior::MergedWithNext, text), ["the", "-final", "-", "-countdown"]);
        assert_eq!(split(DelimiterBehavior::Contiguous, text), ["the", "-", "final", "--", "countdown"]);
    }

    #[test]
    fn a_part_begins_the_text_if_it_starts_within_the_first_character() {
        let word = Word { text: "añb·c".to_owned(), opening: 3 };
        let parts = |ranges: &[Range<usize>]| -> Vec<(String, usize)> {
            word.parts(ranges.to_vec()).into_iter().map(|part| (part.text, part.opening)).collect()
        };
        let part = |text: &str, opening| (text.to_owned(), opening);
        assert_eq!(
            parts(&[0..1, 1..3, 3..4, 4..7]),
            [part("a", 3), part("ñ", 2), part("b", 1), part("·c", 0)]
        );
        assert_eq!(parts(&[1..4, 6..7]), [part("ñb", 2), part("c", 0)]);
    }

    /// The bug: each part counted the opening from the start of the word, 5 * 10^11 characters here.
    #[test]
    fn a_mebibyte_of_one_word_splits_in_linear_time() {
        let text = "-".repeat(1 << 20);
        let pattern = Pattern::literal("-").expect("a literal");
        let (role, behavior) = (MatchRole::Delimiter, DelimiterBehavior::Isolated);
        let steps = [PreTokenizerStep::Split { pattern, role, behavior }];
        let started = std::time::Instant::now();
        let words = pre_tokenize(&steps, text, 1 << 20);
        assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
        assert_eq!(words.len(), 1 << 20);
    }

    #[test]
    fn metaspace_is_prepended_as_its_scheme_states() {
        let steps = |scheme| [PreTokenizerStep::Metaspace { mark: '▁', scheme }];
        let of = |scheme, opening| pre_tokenize(&steps(scheme), "a b".to_owned(), opening);
        assert_eq!(of(PrependScheme::First, 1), ["▁a▁b"]);
        assert_eq!(of(PrependScheme::First, 0), ["a▁b"]);
        assert_eq!(of(PrependScheme::Always, 0), ["▁a▁b"]);
        assert_eq!(of(PrependScheme::Never, 1), ["a▁b"]);
    }

    #[test]
    fn the_patterns_of_all_families_are_supported() {
        for pattern in [GPT2, LLAMA3, QWEN2] {
            let steps = byte_level_steps(pattern).expect("a known pattern");
            let words = pre_tokenize(&steps, "I've 12345  dogs\n\n".to_owned(), 1);
            assert_eq!(words.concat(), "I've\u{120}12345\u{120}\u{120}dogs\u{10a}\u{10a}");
        }
    }
}
