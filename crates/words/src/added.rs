//! Added tokens: texts that become one token wherever they occur.
//!
//! The search in the `tokenizers` crate cannot tell which parts of a text a user
//! wrote, so this matcher replaces it, with the same rules.

use std::ops::Range;

use aho_corasick::{AhoCorasick, Input, MatchKind};
use girih_tensor::{Error, Result};

use super::pattern::Pattern;

/// The maximum length of an added token. After a special token in a user's text,
/// the search continues at the next character, so the length bounds the work per
/// match. Real ones have less than 64 bytes.
pub(super) const MAX_SPELLING_BYTES: usize = 512;

/// One added token, as in `tokenizer.json`.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    /// Matches only where no character of a word is adjacent.
    pub single_word: bool,
    /// Includes the white space before it.
    pub lstrip: bool,
    /// Includes the white space after it.
    pub rstrip: bool,
    /// Matches in the normalized text instead of the original.
    pub normalized: bool,
    /// Is a control token: ignored in a user's text, and left out of decoded text.
    pub special: bool,
}

/// The ranges of a text that a user wrote, ascending and disjoint.
#[derive(Debug, Default)]
pub(super) struct UserRanges(Vec<Range<usize>>);

impl UserRanges {
    pub(super) fn push(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            self.0.push(range);
        }
    }

    /// Whether a user wrote any part of `range`.
    pub(super) fn touch(&self, range: &Range<usize>) -> bool {
        let next = self.0.partition_point(|user| user.end <= range.start);
        self.0.get(next).is_some_and(|user| user.start < range.end)
    }
}

/// A segment of a text: an added token, or the text between two.
#[derive(Debug, PartialEq)]
pub(super) struct TextSegment {
    pub range: Range<usize>,
    pub token: Option<u32>,
}

/// Finds added tokens in a text, at each position the longest.
pub(super) struct Matcher {
    automaton: AhoCorasick,
    tokens: Vec<AddedToken>,
    /// Matches a character of a word, for tokens with `single_word`: a letter, a
    /// mark, a digit, a connector or a joiner (UTS #18, annex C).
    word_char: Option<Pattern>,
}

impl Matcher {
    /// Builds a matcher. `spellings` are the tokens as they occur in the searched
    /// text, which may be normalized.
    pub(super) fn new(tokens: Vec<AddedToken>, spellings: &[String]) -> Result<Matcher> {
        assert_eq!(tokens.len(), spellings.len(), "each token has its spelling");
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(spellings)
            .map_err(|error| Error::new(format!("the added tokens cannot be searched for: {error}")))?;
        let word_char = tokens.iter().any(|token| token.single_word).then(|| Pattern::regex(r"\w"));
        Ok(Matcher { automaton, tokens, word_char: word_char.transpose()? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Splits `text` at its added tokens. A special token is ignored where
    /// `is_users` is true: a user wrote a part of it.
    pub(super) fn split(&self, text: &str, is_users: impl Fn(&Range<usize>) -> bool) -> Vec<TextSegment> {
        let mut segments = Vec::new();
        let (mut done, mut from) = (0, 0);
        while let Some(found) = self.automaton.find(Input::new(text).range(from..)) {
            let token = &self.tokens[found.pattern().as_usize()];
            if token.special && is_users(&found.range()) {
                // A token of the template may overlap this match.
                from = after_first_char(text, found.start());
                continue;
            }
            from = found.end();
            if token.single_word && !self.is_single_word(text, found.range()) {
                continue;
            }
            let range = token.with_white_space(text, found.range(), done);
            if done < range.start {
                segments.push(TextSegment { range: done..range.start, token: None });
            }
            done = range.end;
            from = from.max(done);
            segments.push(TextSegment { range, token: Some(token.id) });
        }
        if done < text.len() {
            segments.push(TextSegment { range: done..text.len(), token: None });
        }
        segments
    }

    /// Whether no character of a word is beside `range`.
    fn is_single_word(&self, text: &str, range: Range<usize>) -> bool {
        let beside = [text[..range.start].chars().next_back(), text[range.end..].chars().next()];
        let is_word = |char: char| {
            self.word_char.as_ref().is_some_and(|word| !word.matches(&char.to_string()).is_empty())
        };
        !beside.into_iter().flatten().any(is_word)
    }
}

impl AddedToken {
    /// Extends a match by the white space that the token includes, but not before
    /// `done`.
    fn with_white_space(&self, text: &str, found: Range<usize>, done: usize) -> Range<usize> {
        let (mut start, mut end) = (found.start.max(done), found.end);
        if self.lstrip {
            start = done + text[done..start].trim_end().len();
        }
        if self.rstrip {
            end = text.len() - text[end..].trim_start().len();
        }
        start..end
    }
}

fn after_first_char(text: &str, start: usize) -> usize {
    start + text[start..].chars().next().map_or(1, char::len_utf8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, content: &str) -> AddedToken {
        AddedToken {
            id,
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special: true,
        }
    }

    fn split(tokens: &[AddedToken], text: &str, user: Range<usize>) -> Vec<(String, Option<u32>)> {
        let spellings: Vec<String> = tokens.iter().map(|token| token.content.clone()).collect();
        let matcher = Matcher::new(tokens.to_vec(), &spellings).expect("a small matcher");
        let mut users = UserRanges::default();
        users.push(user);
        let segments = matcher.split(text, |range| users.touch(range));
        segments.into_iter().map(|segment| (text[segment.range].to_owned(), segment.token)).collect()
    }

    fn owned(segments: &[(&str, Option<u32>)]) -> Vec<(String, Option<u32>)> {
        segments.iter().map(|(text, id)| ((*text).to_owned(), *id)).collect()
    }

    #[test]
    fn the_longest_token_wins_outside_user_text() {
        let tokens = [token(1, "<a>"), token(2, "<a><b>")];
        let segments = split(&tokens, "x<a><b><a>", 0..0);
        assert_eq!(segments, owned(&[("x", None), ("<a><b>", Some(2)), ("<a>", Some(1))]));
        assert_eq!(split(&tokens, "x<a><a>", 1..4), owned(&[("x<a>", None), ("<a>", Some(1))]));
    }

    #[test]
    fn user_text_can_neither_form_nor_hide_a_token_of_the_template() {
        let tokens = [token(1, "ab"), token(2, "bc")];
        assert_eq!(split(&tokens, "abc", 0..1), owned(&[("a", None), ("bc", Some(2))]));
        assert_eq!(split(&tokens, "ab", 1..2), owned(&[("ab", None)]));
    }

    #[test]
    fn flags_include_white_space_and_require_word_boundaries() {
        let both = AddedToken { lstrip: true, rstrip: true, ..token(1, "<m>") };
        assert_eq!(
            split(&[both], "a  <m>\n b", 0..0),
            owned(&[("a", None), ("  <m>\n ", Some(1)), ("b", None)])
        );
        let alone = AddedToken { single_word: true, ..token(1, "ab") };
        assert_eq!(
            split(&[alone], "ab cab ab", 0..0),
            owned(&[("ab", Some(1)), (" cab ", None), ("ab", Some(1))])
        );
        // A mark and a joiner belong to words.
        let alone = AddedToken { single_word: true, ..token(1, "ab") };
        assert_eq!(
            split(&[alone], "ab\u{307} \u{200D}ab-ab", 0..0),
            owned(&[("ab\u{307} \u{200D}ab-", None), ("ab", Some(1))])
        );
    }

    #[test]
    fn plain_added_tokens_match_in_user_text() {
        let plain = AddedToken { special: false, ..token(1, "\n\n") };
        assert_eq!(split(&[plain], "a\n\n", 0..3), owned(&[("a", None), ("\n\n", Some(1))]));
    }
}
