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
pub(super) fn pre_tokenize(steps: &[PreTokenizerStep], text: String, position: TextPosition) -> Vec<String> {
    let mut words = vec![text];
    for step in steps {
        words = step.apply(words, position);
    }
    words.retain(|word| !word.is_empty());
    words
}

impl PreTokenizerStep {
    fn apply(&self, words: Vec<String>, position: TextPosition) -> Vec<String> {
        match self {
            PreTokenizerStep::Split { pattern, role, behavior } => {
                words.iter().flat_map(|word| cut(word, pattern, *role, *behavior)).collect()
            }
            PreTokenizerStep::PrefixSpace => words.into_iter().map(|word| with_prefix(word, ' ')).collect(),
            PreTokenizerStep::ByteLevel => words.iter().map(|word| byte_level::spell(word)).collect(),
            PreTokenizerStep::Metaspace { mark, scheme } => {
                let mut positions = std::iter::once(position).chain(std::iter::repeat(TextPosition::Later));
                let mut each = |word: String| {
                    let first = positions.next() == Some(TextPosition::Start);
                    let word = word.replace(' ', mark.encode_utf8(&mut [0; 4]));
                    let open = *scheme == PrependScheme::Always || *scheme == PrependScheme::First && first;
                    if open { with_prefix(word, *mark) } else { word }
                };
                words.into_iter().map(&mut each).collect()
            }
            PreTokenizerStep::Bert => words.iter().flat_map(|word| bert_words(word)).collect(),
            PreTokenizerStep::WhiteSpace => {
                words.iter().flat_map(|word| word.split_whitespace()).map(str::to_owned).collect()
            }
            PreTokenizerStep::Punctuation { behavior } => {
                let marks = |word: &str| {
                    let marks = word.char_indices().filter(|(_, char)| is_punctuation(*char));
                    marks.map(|(start, char)| start..start + char.len_utf8()).collect()
                };
                let delimiter = MatchRole::Delimiter;
                words.iter().flat_map(|word| cut_at(word, marks(word), delimiter, *behavior)).collect()
            }
        }
    }
}

/// Prepends `mark` to a word that is not empty and does not begin with it.
fn with_prefix(word: String, mark: char) -> String {
    if word.is_empty() || word.starts_with(mark) { word } else { format!("{mark}{word}") }
}

/// The words of a text: runs without white space and punctuation, and each
/// character of punctuation.
fn bert_words(text: &str) -> Vec<String> {
    let pieces = text.split_whitespace().flat_map(|run| run.split_inclusive(is_punctuation));
    let words = pieces.flat_map(|piece| {
        let word = piece.trim_end_matches(is_punctuation);
        [word, &piece[word.len()..]]
    });
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn cut(word: &str, pattern: &Pattern, role: MatchRole, behavior: DelimiterBehavior) -> Vec<String> {
    cut_at(word, pattern.matches(word), role, behavior)
}

/// Cuts a word at matches.
fn cut_at(
    word: &str,
    matches: Vec<Range<usize>>,
    role: MatchRole,
    behavior: DelimiterBehavior,
) -> Vec<String> {
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
    join_delimiters(parts, behavior).into_iter().map(|range| word[range].to_owned()).collect()
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
            TextPosition::Start,
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
    fn metaspace_is_prepended_as_its_scheme_states() {
        let steps = |scheme| [PreTokenizerStep::Metaspace { mark: '▁', scheme }];
        let of = |scheme, position| pre_tokenize(&steps(scheme), "a b".to_owned(), position);
        assert_eq!(of(PrependScheme::First, TextPosition::Start), ["▁a▁b"]);
        assert_eq!(of(PrependScheme::First, TextPosition::Later), ["a▁b"]);
        assert_eq!(of(PrependScheme::Always, TextPosition::Later), ["▁a▁b"]);
        assert_eq!(of(PrependScheme::Never, TextPosition::Start), ["a▁b"]);
    }

    #[test]
    fn the_patterns_of_all_families_are_supported() {
        for pattern in [GPT2, LLAMA3, QWEN2] {
            let steps = byte_level_steps(pattern).expect("a known pattern");
            let words = pre_tokenize(&steps, "I've 12345  dogs\n\n".to_owned(), TextPosition::Start);
            assert_eq!(words.concat(), "I've\u{120}12345\u{120}\u{120}dogs\u{10a}\u{10a}");
        }
    }
}
