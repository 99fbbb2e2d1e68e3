//! Keeps special tokens that a user spells apart from those of the template.
//!
//! Before rendering, each spelling of a special token in the user's strings is
//! replaced by one private-use character that occurs nowhere else, the same
//! one for the same spelling. A single character survives what templates do to
//! strings (strip, join, replace, split, `tojson`, comparison with each other)
//! and cannot be cut in two. After rendering it turns into a span of its own.
//!
//! A spelling may also come about where two strings of the user meet (the parts
//! of one message, say). So a beginning of a spelling at the end of a string
//! gets its first character marked; if a special token then starts there, it
//! is the user's too.
//!
//! Not covered: a template that cuts characters out of a string and joins what
//! is left, one that puts together a spelling from its own and the user's text
//! (`'<|' + role + '|>'`: callers let only known roles through), and one that
//! looks for the spelling or counts the characters of a string that has one.

use std::collections::{HashMap, HashSet};

use girih_tensor::{Error, Result};
use serde_json::{Map, Value};

use crate::span::{TextOrigin, TextSpan};

/// The spellings that a tokenizer turns into special tokens.
#[derive(Clone, Debug)]
pub struct SpecialTokens {
    spellings: HashSet<String>,
    sorted: Vec<String>,
    /// The lengths that occur, in bytes, longest first.
    lengths: Vec<usize>,
}

impl SpecialTokens {
    /// From the spellings; empty ones are left out.
    pub fn new(spellings: &[String]) -> SpecialTokens {
        let spellings: HashSet<String> = spellings.iter().filter(|text| !text.is_empty()).cloned().collect();
        let mut sorted: Vec<String> = spellings.iter().cloned().collect();
        sorted.sort_unstable();
        let mut lengths: Vec<usize> = sorted.iter().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        SpecialTokens { spellings, sorted, lengths }
    }

    /// The longest special token that `text` begins with.
    fn at_start(&self, text: &str) -> Option<&str> {
        let fits = |&length: &usize| text.get(..length).and_then(|head| self.spellings.get(head));
        self.lengths.iter().find_map(fits).map(String::as_str)
    }

    /// Whether `text` is the beginning of a special token, and not all of it.
    fn begin_with(&self, text: &str) -> bool {
        if text.is_empty() || self.lengths.first().is_none_or(|&longest| longest <= text.len()) {
            return false;
        }
        let after = self.sorted.partition_point(|spelling| spelling.as_str() <= text);
        self.sorted.get(after).is_some_and(|spelling| spelling.starts_with(text))
    }
}

/// What a mark stands for.
enum Meaning {
    /// A whole special token.
    Token(String),
    /// The first character of what may become one.
    Start(char),
}

/// The marks of one request.
pub struct Marks<'a> {
    special: &'a SpecialTokens,
    free: Box<dyn Iterator<Item = char> + 'a>,
    tokens: HashMap<String, char>,
    starts: HashMap<char, char>,
    meanings: HashMap<char, Meaning>,
}

impl<'a> Marks<'a> {
    /// Marks that occur in none of `texts`.
    pub fn new(special: &'a SpecialTokens, texts: &[&str]) -> Marks<'a> {
        // Planes 15 and 16 are for private use, but for the last two of each.
        let private = ('\u{f0000}'..='\u{ffffd}').chain('\u{100000}'..='\u{10fffd}');
        let taken: HashSet<char> =
            texts.iter().flat_map(|text| text.chars()).filter(|&c| c >= '\u{f0000}').collect();
        Marks {
            special,
            free: Box::new(private.filter(move |c| !taken.contains(c))),
            tokens: HashMap::new(),
            starts: HashMap::new(),
            meanings: HashMap::new(),
        }
    }

    /// A user's value with its strings and keys marked.
    pub fn mark(&mut self, value: &Value) -> Result<Value> {
        Ok(match value {
            Value::String(text) => Value::String(self.mark_text(text)?),
            Value::Array(items) => {
                Value::Array(items.iter().map(|item| self.mark(item)).collect::<Result<_>>()?)
            }
            Value::Object(map) => Value::Object(self.mark_map(map)?),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        })
    }

    /// The same for a map.
    pub fn mark_map(&mut self, map: &Map<String, Value>) -> Result<Map<String, Value>> {
        map.iter().map(|(key, value)| Ok((self.mark_text(key)?, self.mark(value)?))).collect()
    }

    /// The same for one string.
    pub fn mark_text(&mut self, text: &str) -> Result<String> {
        let mut out = String::with_capacity(text.len());
        let trimmed = text.trim_end().len();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let at = text.len() - rest.len();
            let mut length = c.len_utf8();
            if let Some(token) = self.special.at_start(rest) {
                length = token.len();
                out.push(self.token(token)?);
            } else if self.special.begin_with(rest) || self.special.begin_with(&text[at..trimmed.max(at)]) {
                out.push(self.start(c)?);
            } else {
                out.push(c);
            }
            rest = &rest[length..];
        }
        Ok(out)
    }

    fn token(&mut self, spelling: &str) -> Result<char> {
        if let Some(&mark) = self.tokens.get(spelling) {
            return Ok(mark);
        }
        let mark = self.take(Meaning::Token(spelling.to_owned()))?;
        self.tokens.insert(spelling.to_owned(), mark);
        Ok(mark)
    }

    fn start(&mut self, c: char) -> Result<char> {
        if let Some(&mark) = self.starts.get(&c) {
            return Ok(mark);
        }
        let mark = self.take(Meaning::Start(c))?;
        self.starts.insert(c, mark);
        Ok(mark)
    }

    fn take(&mut self, meaning: Meaning) -> Result<char> {
        let mark = self.free.next().ok_or_else(|| {
            Error::new(
                "the messages use up all private-use characters, so special tokens in them cannot be marked",
            )
        })?;
        self.meanings.insert(mark, meaning);
        Ok(mark)
    }

    /// Text with every mark turned back into what it stands for.
    pub fn restore(&self, text: &str) -> String {
        self.split(text).into_iter().map(|span| span.text).collect()
    }

    /// The spans of a rendered text.
    pub fn split(&self, rendered: &str) -> Vec<TextSpan> {
        let mut text = String::with_capacity(rendered.len());
        let mut user: Vec<(usize, usize)> = Vec::new();
        let mut starts = Vec::new();
        for c in rendered.chars() {
            match self.meanings.get(&c) {
                Some(Meaning::Token(spelling)) => {
                    user.push((text.len(), text.len() + spelling.len()));
                    text.push_str(spelling);
                }
                Some(&Meaning::Start(first)) => {
                    starts.push(text.len());
                    text.push(first);
                }
                None => text.push(c),
            }
        }
        let became = |&at: &usize| self.special.at_start(&text[at..]).map(|token| (at, at + token.len()));
        user.extend(starts.iter().filter_map(became));
        user.sort_unstable();
        spans(&text, &user)
    }
}

/// Cuts `text` at the sorted ranges that are the user's; ranges that meet or
/// overlap become one span.
fn spans(text: &str, user: &[(usize, usize)]) -> Vec<TextSpan> {
    let mut joined: Vec<(usize, usize)> = Vec::new();
    for &(start, end) in user {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    let mut spans = Vec::new();
    let mut push = |range: &str, origin| {
        if !range.is_empty() {
            spans.push(TextSpan { text: range.to_owned(), origin });
        }
    };
    let mut done = 0;
    for (start, end) in joined {
        push(&text[done..start], TextOrigin::Template);
        push(&text[start..end], TextOrigin::User);
        done = end;
    }
    push(&text[done..], TextOrigin::Template);
    spans
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn special() -> SpecialTokens {
        SpecialTokens::new(&["<|a|>", "<|a|>b", "<|end|>", "", "¿é"].map(str::to_owned))
    }

    fn text(text: &str, origin: TextOrigin) -> TextSpan {
        TextSpan { text: text.to_owned(), origin }
    }

    /// What strings of a user become when the template writes them one after
    /// the other, then `<|end|>`.
    fn round(strings: &[&str]) -> Vec<TextSpan> {
        let special = special();
        let mut marks = Marks::new(&special, strings);
        let marked: Vec<String> =
            strings.iter().map(|text| marks.mark_text(text).expect("enough marks")).collect();
        marks.split(&(marked.concat() + "<|end|>"))
    }

    #[test]
    fn spellings_become_spans_of_the_user() {
        use TextOrigin::{Template, User};
        assert_eq!(round(&["hello"]), [text("hello<|end|>", Template)]);
        assert_eq!(
            round(&["x<|a|>y"]),
            [text("x", Template), text("<|a|>", User), text("y<|end|>", Template)]
        );
        assert_eq!(round(&["<|a|>b¿é"]), [text("<|a|>b¿é", User), text("<|end|>", Template)]);
        // A token within a token is gone after marking; the halves stay apart.
        assert_eq!(
            round(&["<|e<|a|>nd|>"]),
            [text("<|e", Template), text("<|a|>", User), text("nd|><|end|>", Template)]
        );
        assert_eq!(round(&[""]), [text("<|end|>", Template)]);
    }

    #[test]
    fn spellings_across_strings_are_the_users_too() {
        use TextOrigin::{Template, User};
        let joined = [text("<|end|>", User), text("<|end|>", Template)];
        assert_eq!(round(&["<|e", "nd|>"]), joined);
        assert_eq!(round(&["<", "|end|", ">"]), joined);
        assert_eq!(
            round(&["a<", "b <|"]),
            [text("a<b <|<|end|>", Template)],
            "beginnings that become nothing leave no trace"
        );
    }

    #[test]
    fn marks_avoid_characters_in_use_and_equal_strings_stay_equal() {
        let special = special();
        let used = "\u{f0000}\u{f0001}";
        let mut marks = Marks::new(&special, &[used]);
        let marked = marks.mark(&json!({"<|a|>": ["<|a|>", used], "n": 1})).expect("enough marks");
        assert_eq!(marked, json!({"\u{f0002}": ["\u{f0002}", used], "n": 1}));
        assert_eq!(marks.restore("bad \u{f0002}!\u{f0000}"), "bad <|a|>!\u{f0000}");
    }
}
