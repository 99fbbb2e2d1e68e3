//! Distinguishes special tokens in a user's text from those of the template.
//!
//! Before rendering, each special token in the user's strings is replaced by one
//! private-use character that occurs nowhere else, the same one for the same
//! token. A single character survives the string operations of templates (strip,
//! join, replace, split, `tojson`, comparison) and cannot be split. After rendering
//! it becomes a separate span.
//!
//! Two adjacent strings of the user, such as the parts of one message, may also
//! form a special token. So if a string ends with the beginning of one, the first
//! character of that beginning is marked. If a special token starts there after
//! rendering, it is the user's too.
//!
//! Not covered are templates that delete characters inside a string, that form a
//! special token from their own and the user's text (`'<|' + role + '|>'`: callers
//! accept only known roles), that search for a special token in a string, or that
//! count the characters of a string with one.

use std::collections::{HashMap, HashSet};

use girih_tensor::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use crate::span::{TextOrigin, TextSpan};

/// The texts that a tokenizer converts to special tokens.
#[derive(Clone, Debug)]
pub struct SpecialTokens {
    spellings: HashSet<String>,
    sorted: Vec<String>,
    /// The distinct lengths in bytes, longest first.
    lengths: Vec<usize>,
}

impl SpecialTokens {
    /// Collects the texts of special tokens; empty ones are left out.
    pub fn new(spellings: &[String]) -> SpecialTokens {
        let spellings: HashSet<String> = spellings.iter().filter(|text| !text.is_empty()).cloned().collect();
        let mut sorted: Vec<String> = spellings.iter().cloned().collect();
        sorted.sort_unstable();
        let mut lengths: Vec<usize> = sorted.iter().map(String::len).collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.dedup();
        SpecialTokens { spellings, sorted, lengths }
    }

    /// The longest special token at the start of `text`.
    fn at_start(&self, text: &str) -> Option<&str> {
        let fits = |&length: &usize| text.get(..length).and_then(|head| self.spellings.get(head));
        self.lengths.iter().find_map(fits).map(String::as_str)
    }

    /// Whether `text` is the beginning of a longer special token.
    fn begin_with(&self, text: &str) -> bool {
        if text.is_empty() || self.lengths.first().is_none_or(|&longest| longest <= text.len()) {
            return false;
        }
        let after = self.sorted.partition_point(|spelling| spelling.as_str() <= text);
        self.sorted.get(after).is_some_and(|spelling| spelling.starts_with(text))
    }
}

/// The text that a mark replaces.
enum Meaning {
    /// A whole special token.
    Token(String),
    /// The first character of what may become a special token.
    Start(char),
    /// The end of the content that the reply continues; no text.
    End,
}

/// The end of the content that the reply continues.
struct ContentEnd {
    mark: char,
    /// The white space that the content ends with, if it has other text.
    spaces: String,
}

/// The marks of one request.
pub struct Marks<'a> {
    special: &'a SpecialTokens,
    free: Box<dyn Iterator<Item = char> + 'a>,
    tokens: HashMap<String, char>,
    starts: HashMap<char, char>,
    meanings: HashMap<char, Meaning>,
    end: Option<ContentEnd>,
}

impl<'a> Marks<'a> {
    /// Creates marks that do not occur in `texts`.
    pub fn new(special: &'a SpecialTokens, texts: &[&str]) -> Marks<'a> {
        // Planes 15 and 16 are for private use, except the last two of each.
        let private = ('\u{f0000}'..='\u{ffffd}').chain('\u{100000}'..='\u{10fffd}');
        let used: HashSet<char> =
            texts.iter().flat_map(|text| text.chars()).filter(|&c| c >= '\u{f0000}').collect();
        Marks {
            special,
            free: Box::new(private.filter(move |c| !used.contains(c))),
            tokens: HashMap::new(),
            starts: HashMap::new(),
            meanings: HashMap::new(),
            end: None,
        }
    }

    /// What to put behind `content` to find its end in the output: a mark, and a space by whose lack one sees
    /// that the template removes white space there.
    pub fn end_of(&mut self, content: &str) -> Result<String> {
        let mark = self.new_mark(Meaning::End)?;
        let text = content.trim_end();
        let spaces = if text.is_empty() { "" } else { &content[text.len()..] };
        self.end = Some(ContentEnd { mark, spaces: spaces.to_owned() });
        Ok(format!("{mark} "))
    }

    /// The output up to the end that was marked, without white space that the template would have removed.
    ///
    /// # Errors
    /// When the template does not write the end of the content.
    pub fn up_to_end<'t>(&self, rendered: &'t str) -> Result<&'t str> {
        let Some(ContentEnd { mark, spaces }) = &self.end else { return Ok(rendered) };
        let Some((before, after)) = rendered.rsplit_once(*mark) else {
            let sentence =
                "the chat template does not write the last message as it is, so it cannot be continued";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        };
        if after.starts_with(' ') {
            return Ok(before);
        }
        Ok(before.strip_suffix(spaces.as_str()).unwrap_or(before))
    }

    /// Marks the strings and keys of a user's value.
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

    /// Marks the strings and keys of a map.
    pub fn mark_map(&mut self, map: &Map<String, Value>) -> Result<Map<String, Value>> {
        map.iter().map(|(key, value)| Ok((self.mark_text(key)?, self.mark(value)?))).collect()
    }

    /// Marks the special tokens in a string.
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
        let mark = self.new_mark(Meaning::Token(spelling.to_owned()))?;
        self.tokens.insert(spelling.to_owned(), mark);
        Ok(mark)
    }

    fn start(&mut self, c: char) -> Result<char> {
        if let Some(&mark) = self.starts.get(&c) {
            return Ok(mark);
        }
        let mark = self.new_mark(Meaning::Start(c))?;
        self.starts.insert(c, mark);
        Ok(mark)
    }

    fn new_mark(&mut self, meaning: Meaning) -> Result<char> {
        let mark = self.free.next().ok_or_else(|| {
            Error::new(
                "the messages use all private-use characters, so special tokens in them cannot be marked",
            )
        })?;
        self.meanings.insert(mark, meaning);
        Ok(mark)
    }

    /// Replaces every mark by its text.
    pub fn restore(&self, text: &str) -> String {
        self.split(text).into_iter().map(|span| span.text).collect()
    }

    /// Splits a rendered text into spans, and replaces the marks by their texts.
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
                Some(Meaning::End) => {}
                Some(&Meaning::Start(first)) => {
                    starts.push(text.len());
                    text.push(first);
                }
                None => text.push(c),
            }
        }
        let token_at = |&at: &usize| self.special.at_start(&text[at..]).map(|token| (at, at + token.len()));
        user.extend(starts.iter().filter_map(token_at));
        user.sort_unstable();
        spans(&text, &user)
    }
}

/// Splits `text` at the user's ranges, which are sorted. Adjacent and overlapping
/// ranges become one span.
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

    /// The spans if a template concatenates a user's strings and appends `<|end|>`.
    fn spans_of(strings: &[&str]) -> Vec<TextSpan> {
        let special = special();
        let mut marks = Marks::new(&special, strings);
        let marked: Vec<String> =
            strings.iter().map(|text| marks.mark_text(text).expect("marks are left")).collect();
        marks.split(&(marked.concat() + "<|end|>"))
    }

    #[test]
    fn special_tokens_in_user_strings_become_user_spans() {
        use TextOrigin::{Template, User};
        assert_eq!(spans_of(&["hello"]), [text("hello<|end|>", Template)]);
        assert_eq!(
            spans_of(&["x<|a|>y"]),
            [text("x", Template), text("<|a|>", User), text("y<|end|>", Template)]
        );
        assert_eq!(spans_of(&["<|a|>b¿é"]), [text("<|a|>b¿é", User), text("<|end|>", Template)]);
        // After a token within a token is marked, its halves do not match.
        assert_eq!(
            spans_of(&["<|e<|a|>nd|>"]),
            [text("<|e", Template), text("<|a|>", User), text("nd|><|end|>", Template)]
        );
        assert_eq!(spans_of(&[""]), [text("<|end|>", Template)]);
    }

    #[test]
    fn special_tokens_across_user_strings_become_user_spans() {
        use TextOrigin::{Template, User};
        let joined = [text("<|end|>", User), text("<|end|>", Template)];
        assert_eq!(spans_of(&["<|e", "nd|>"]), joined);
        assert_eq!(spans_of(&["<", "|end|", ">"]), joined);
        assert_eq!(
            spans_of(&["a<", "b <|"]),
            [text("a<b <|<|end|>", Template)],
            "beginnings that form no special token remain plain text"
        );
    }

    #[test]
    fn the_output_ends_with_the_content_that_is_continued() {
        let special = special();
        let continued = |content: &str, template: fn(&str) -> String| {
            let mut marks = Marks::new(&special, &[content]);
            let marked = marks.mark_text(content).unwrap() + &marks.end_of(content).unwrap();
            marks
                .up_to_end(&template(&marked))
                .map(|text| marks.restore(text))
                .map_err(|error| error.to_string())
        };
        let plain = |text: &str| format!("a: {text}<|end|>");
        let trims = |text: &str| format!("a:\n{}<|end|>", text.trim());
        assert_eq!(continued("So <|a|> ", plain).unwrap(), "a: So <|a|> ");
        assert_eq!(continued("So \n", trims).unwrap(), "a:\nSo");
        assert_eq!(
            (continued("", trims).unwrap(), continued("\n", trims).unwrap()),
            ("a:\n".into(), "a:\n".into())
        );
        assert_eq!(continued("twice", |text| format!("{text}|{text}<|end|>")).unwrap(), "twice |twice");
        assert!(continued("gone", |_| String::new()).unwrap_err().contains("cannot be continued"));
    }

    #[test]
    fn marks_avoid_used_characters_and_preserve_equality() {
        let special = special();
        let used = "\u{f0000}\u{f0001}";
        let mut marks = Marks::new(&special, &[used]);
        let marked = marks.mark(&json!({"<|a|>": ["<|a|>", used], "n": 1})).expect("marks are left");
        assert_eq!(marked, json!({"\u{f0002}": ["\u{f0002}", used], "n": 1}));
        assert_eq!(marks.restore("bad \u{f0002}!\u{f0000}"), "bad <|a|>!\u{f0000}");
    }
}
