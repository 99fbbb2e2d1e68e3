//! Rust text, split into code and comments.
//!
//! It knows comments, strings, characters and braces, which is enough for the
//! rules. It is not a parser, and it does not expand macros.

use std::ops::Range;

/// A Rust file as two texts with the same lines: one of code, one of comments.
pub struct Source {
    /// The text with comments and the contents of literals blanked.
    pub code: String,
    /// The text with all but the comments blanked.
    pub comments: String,
    /// The lines, from 1, of items under `#[cfg(test)]`.
    tests: Vec<Range<usize>>,
}

/// A token of the code, as detailed as finding paths requires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Token<'a> {
    /// A name or a keyword.
    Name(&'a str),
    /// `::`.
    Path,
    /// Any other character, except white space.
    Sign(char),
}

impl Source {
    pub fn new(text: &str) -> Source {
        let mut lexer = Lexer { rest: text.chars().collect(), at: 0, ..Lexer::default() };
        while lexer.at < lexer.rest.len() {
            lexer.token();
        }
        let mut source = Source { code: lexer.code, comments: lexer.comments, tests: Vec::new() };
        source.tests = source.find_tests();
        source
    }

    /// The byte offsets in `code` at which `word` occurs as a whole word.
    pub fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            !self.code[..at].ends_with(is_name) && !self.code[at + word.len()..].starts_with(is_name)
        })
    }

    /// The line, from 1, of a byte offset in `code`.
    pub fn line(&self, offset: usize) -> usize {
        self.code[..offset].matches('\n').count() + 1
    }

    /// Whether the line belongs to an item under `#[cfg(test)]`.
    pub fn is_test(&self, line: usize) -> bool {
        self.tests.iter().any(|lines| lines.contains(&line))
    }

    /// The code as tokens, without items under `#[cfg(test)]`.
    pub fn tokens_outside_tests(&self) -> Vec<Token<'_>> {
        let mut tokens = Vec::new();
        for (_, line) in self.code.lines().enumerate().filter(|(index, _)| !self.is_test(index + 1)) {
            let mut rest = line.trim_start();
            while let Some(first) = rest.chars().next() {
                let name = leading_name(rest);
                let (token, length) = match () {
                    () if !name.is_empty() => (Token::Name(name), name.len()),
                    () if rest.starts_with("::") => (Token::Path, 2),
                    () => (Token::Sign(first), first.len_utf8()),
                };
                tokens.push(token);
                rest = rest[length..].trim_start();
            }
        }
        tokens
    }

    /// The offset just past the item that begins at `from`: after its block, or
    /// after its semicolon if it has no block.
    fn item_end(&self, from: usize) -> usize {
        let (mut brackets, mut braces) = (0_usize, 0_usize);
        for (at, c) in self.code[from..].char_indices() {
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets = brackets.saturating_sub(1),
                '{' => braces += 1,
                '}' => braces = braces.saturating_sub(1),
                _ => {}
            }
            if brackets == 0 && braces == 0 && matches!(c, ';' | '}') {
                return from + at + 1;
            }
        }
        self.code.len()
    }

    fn find_tests(&self) -> Vec<Range<usize>> {
        const MARK: &str = "#[cfg(test)]";
        let marks = self.code.match_indices(MARK);
        marks.map(|(at, _)| self.line(at)..self.line(self.item_end(at + MARK.len())) + 1).collect()
    }
}

/// Whether `c` can be part of a name.
fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The name that `text` begins with, after white space; empty if there is none.
pub fn leading_name(text: &str) -> &str {
    let text = text.trim_start();
    &text[..text.find(|c| !is_name(c)).unwrap_or(text.len())]
}

/// The layer that a piece of text belongs to.
#[derive(Clone, Copy, PartialEq)]
enum Layer {
    Code,
    Comment,
    Literal,
}

#[derive(Default)]
struct Lexer {
    rest: Vec<char>,
    at: usize,
    code: String,
    comments: String,
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.rest.get(self.at + ahead).copied()
    }

    /// Moves past `count` characters, each kept in its layer and blank in the other.
    fn take(&mut self, count: usize, layer: Layer) {
        let end = (self.at + count).min(self.rest.len());
        for &c in &self.rest[self.at..end] {
            let blank = if c == '\n' { '\n' } else { ' ' };
            self.code.push(if layer == Layer::Code { c } else { blank });
            self.comments.push(if layer == Layer::Comment { c } else { blank });
        }
        self.at = end;
    }

    fn token(&mut self) {
        match (self.peek(0), self.peek(1)) {
            (Some('/'), Some('/')) => self.line_comment(),
            (Some('/'), Some('*')) => self.block_comment(),
            (Some('"'), _) => self.string(),
            (Some('\''), _) => self.character_or_lifetime(),
            (Some('r'), Some('"' | '#')) => self.raw_string_or_name(),
            (_, _) => self.take(1, Layer::Code),
        }
    }

    fn line_comment(&mut self) {
        let length = self.rest[self.at..].iter().take_while(|&&c| c != '\n').count();
        self.take(length, Layer::Comment);
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                (None, _) => return,
                _ => {
                    self.take(1, Layer::Comment);
                    continue;
                }
            }
            self.take(2, Layer::Comment);
            if depth == 0 {
                return;
            }
        }
    }

    fn string(&mut self) {
        self.take(1, Layer::Literal);
        while let Some(c) = self.peek(0) {
            self.take(if c == '\\' { 2 } else { 1 }, Layer::Literal);
            if c == '"' {
                return;
            }
        }
    }

    /// `'x'` and `'\n'` are literals; the `'` of `'static` is code.
    fn character_or_lifetime(&mut self) {
        let escaped = self.peek(1) == Some('\\');
        if !escaped && self.peek(2) != Some('\'') {
            return self.take(1, Layer::Code);
        }
        self.take(if escaped { 3 } else { 2 }, Layer::Literal);
        while let Some(c) = self.peek(0) {
            self.take(1, Layer::Literal);
            if c == '\'' {
                return;
            }
        }
    }

    /// `r"…"`, `r#"…"#` and, after their first letter, `br"…"` and `cr"…"` are
    /// literals; `r#type` and the end of a longer name are code.
    fn raw_string_or_name(&mut self) {
        let before = &self.rest[..self.at];
        let name = before.iter().rev().take_while(|&&c| is_name(c)).count();
        let prefix = name == 0 || (name == 1 && matches!(before.last(), Some('b' | 'c')));
        let hashes = self.rest[self.at + 1..].iter().take_while(|&&c| c == '#').count();
        if !prefix || self.peek(1 + hashes) != Some('"') {
            return self.take(1, Layer::Code);
        }
        self.take(hashes + 2, Layer::Literal);
        while let Some(c) = self.peek(0) {
            self.take(1, Layer::Literal);
            if c == '"' && (0..hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                return self.take(hashes, Layer::Literal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The code of `text` with its white space squeezed.
    fn code(text: &str) -> String {
        Source::new(text).code.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn comments_are_not_code() {
        assert_eq!(code("a // b\nc /* d /* e */ f */ g"), "a c g");
        assert_eq!(Source::new("a // b\nc").comments, "  // b\n ");
    }

    #[test]
    fn the_contents_of_literals_are_not_code() {
        assert_eq!(code(r#"a "b \" c" d"#), "a d");
        assert_eq!(code("a r#\"b \" c\"# d br\"\\\" e"), "a d b e");
        assert_eq!(code(r"a 'b' '\'' '\u{1F600}' '\\' d"), "a d");
        assert_eq!(code("\"//\" a"), "a");
    }

    #[test]
    fn names_that_look_like_literals_are_code() {
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
        assert_eq!(code("r#type bar#x"), "r#type bar#x");
    }

    #[test]
    fn an_unclosed_literal_or_comment_ends_with_the_file() {
        for text in ["\"a", "r#\"a\"", "/* a", "'\\", "b'\\n"] {
            let source = Source::new(text);
            assert_eq!(source.code.len(), text.len(), "{text}");
        }
    }

    #[test]
    fn test_items_know_their_lines() {
        let source = Source::new("fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n");
        let lines: Vec<usize> = (1..=6).filter(|&line| source.is_test(line)).collect();
        assert_eq!(lines, [2, 3, 4, 5]);
    }
}
