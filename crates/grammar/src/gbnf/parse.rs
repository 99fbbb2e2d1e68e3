//! Reads GBNF, as llama.cpp's `grammars/README.md` describes it.

use std::collections::HashMap;

use girih_tensor::{Error, Result};

use super::grammar::{
    Alternatives, GbnfGrammar, GbnfItem, GbnfPiece, MAX_DEPTH, MAX_PIECES, MAX_REPETITIONS, MAX_RULES,
};
use crate::limits::{MAX_TEXT_BYTES, check_bytes, refused};

/// Reads a grammar.
///
/// # Errors
/// Names the line and what is wrong.
pub(super) fn grammar(text: &str) -> Result<GbnfGrammar> {
    check_bytes("grammar", text, MAX_TEXT_BYTES)?;
    let mut reader = GbnfReader { chars: text.chars().collect(), ..GbnfReader::default() };
    reader.space(true);
    while reader.peek().is_some() {
        reader.rule()?;
        reader.space(true);
    }
    let root = reader.numbers.get("root").copied();
    let root = root.filter(|number| reader.rules[*number].is_some());
    let Some(root) = root else { return Err(refused("the grammar has no rule root")) };
    let mut rules = Vec::with_capacity(reader.rules.len());
    for (number, rule) in reader.rules.into_iter().enumerate() {
        let Some(rule) = rule else {
            let (name, line) = &reader.uses[number];
            return Err(refused(format!("line {line}: there is no rule {name}")));
        };
        rules.push(rule);
    }
    Ok(GbnfGrammar { rules, root })
}

/// A grammar on its way from text.
#[derive(Default)]
struct GbnfReader {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    pieces: usize,
    numbers: HashMap<String, usize>,
    /// The rules so far; `None` for one that was only used.
    rules: Vec<Option<Alternatives>>,
    /// The name of each rule, and the line in which it first stands.
    uses: Vec<(String, usize)>,
}

impl GbnfReader {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let next = self.peek();
        self.at += usize::from(next.is_some());
        next
    }

    fn takes(&mut self, expected: char) -> bool {
        let is_it = self.peek() == Some(expected);
        self.at += usize::from(is_it);
        is_it
    }

    fn line(&self) -> usize {
        1 + self.chars[..self.at].iter().filter(|c| **c == '\n').count()
    }

    fn wrong(&self, sentence: impl std::fmt::Display) -> Error {
        refused(format!("line {}: {sentence}", self.line()))
    }

    /// Passes spaces and comments, and ends of lines if they have no meaning here.
    fn space(&mut self, crosses_lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if crosses_lines => self.at += 1,
                '#' => {
                    while self.peek().is_some_and(|c| !matches!(c, '\r' | '\n')) {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    /// The number of the rule with the name that follows.
    fn name(&mut self) -> Result<usize> {
        let start = self.at;
        while self.peek().is_some_and(is_name_character) {
            self.at += 1;
        }
        let name: String = self.chars[start..self.at].iter().collect();
        if name.is_empty() {
            let found = self.peek().map_or("the end".to_owned(), |c| format!("{c:?}"));
            return Err(self.wrong(format!("{found} was not expected")));
        }
        if let Some(number) = self.numbers.get(&name) {
            return Ok(*number);
        }
        let number = self.rules.len();
        if number >= MAX_RULES {
            return Err(self.wrong(format!("there are more than {MAX_RULES} rules")));
        }
        self.numbers.insert(name.clone(), number);
        self.rules.push(None);
        self.uses.push((name, self.line()));
        Ok(number)
    }

    fn rule(&mut self) -> Result<()> {
        let number = self.name()?;
        self.space(false);
        if !(self.takes(':') && self.takes(':') && self.takes('=')) {
            return Err(self.wrong("::= was expected after the name of a rule"));
        }
        if self.rules[number].is_some() {
            let name = &self.uses[number].0;
            return Err(self.wrong(format!("there are two rules {name}")));
        }
        self.space(true);
        let alternatives = self.alternatives(false)?;
        self.rules[number] = Some(alternatives);
        match self.peek() {
            None | Some('\r' | '\n') => Ok(()),
            Some(c) => Err(self.wrong(format!("{c:?} was not expected"))),
        }
    }

    /// Reads alternatives; in brackets, they may cross lines.
    fn alternatives(&mut self, is_nested: bool) -> Result<Alternatives> {
        let mut all = vec![self.sequence(is_nested)?];
        while self.takes('|') {
            self.space(true);
            all.push(self.sequence(is_nested)?);
        }
        Ok(all)
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Vec<GbnfItem>> {
        let mut items: Vec<GbnfItem> = Vec::new();
        while let Some(c) = self.peek() {
            let (min, max) = match c {
                '*' => (0, None),
                '+' => (1, None),
                '?' => (0, Some(1)),
                '{' => (0, None),
                _ => {
                    let Some(piece) = self.piece(c)? else { break };
                    items.push(GbnfItem { piece, min: 1, max: Some(1) });
                    self.space(is_nested);
                    continue;
                }
            };
            self.at += 1;
            let (min, max) = if c == '{' { self.counts(is_nested)? } else { (min, max) };
            let Some(last) = items.pop() else {
                return Err(self.wrong(format!("nothing stands before {c}")));
            };
            let piece = match last {
                GbnfItem { piece, min: 1, max: Some(1) } => piece,
                repeated => GbnfPiece::Group(vec![vec![repeated]]),
            };
            items.push(GbnfItem { piece, min, max });
            self.space(is_nested);
        }
        Ok(items)
    }

    /// The counts of a repetition, behind its opening bracket.
    fn counts(&mut self, is_nested: bool) -> Result<(u32, Option<u32>)> {
        self.space(is_nested);
        let min = self.number()?;
        self.space(is_nested);
        let max = if self.takes(',') {
            self.space(is_nested);
            let has_max = self.peek().is_some_and(|c| c.is_ascii_digit());
            has_max.then(|| self.number()).transpose()?
        } else {
            Some(min)
        };
        self.space(is_nested);
        if !self.takes('}') {
            return Err(self.wrong("} was expected after the counts of a repetition"));
        }
        if let Some(max) = max.filter(|max| *max < min) {
            return Err(self.wrong(format!("{{{min},{max}}} has a maximum below its minimum")));
        }
        Ok((min, max))
    }

    fn number(&mut self) -> Result<u32> {
        let start = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_digit()) {
            self.at += 1;
        }
        let digits: String = self.chars[start..self.at].iter().collect();
        if digits.is_empty() {
            return Err(self.wrong("a number was expected"));
        }
        let number = digits.parse().ok().filter(|number| *number <= MAX_REPETITIONS);
        number.ok_or_else(|| self.wrong(format!("the maximum of repetitions is {MAX_REPETITIONS}")))
    }

    /// The piece that begins with `c`; `None` if none does.
    fn piece(&mut self, c: char) -> Result<Option<GbnfPiece>> {
        let piece = match c {
            '"' => self.text()?,
            '[' => self.class()?,
            '(' => self.group()?,
            '.' => {
                self.at += 1;
                GbnfPiece::Class { is_negated: true, ranges: Vec::new() }
            }
            '<' | '!' => return Err(self.wrong("tokens by name or number are not supported")),
            c if is_name_character(c) => GbnfPiece::Rule(self.name()?),
            _ => return Ok(None),
        };
        self.count(1)?;
        Ok(Some(piece))
    }

    fn count(&mut self, pieces: usize) -> Result<()> {
        self.pieces += pieces;
        if self.pieces <= MAX_PIECES {
            return Ok(());
        }
        Err(self.wrong(format!("the grammar has more than {MAX_PIECES} characters, classes and names")))
    }

    fn text(&mut self) -> Result<GbnfPiece> {
        self.at += 1;
        let mut text = String::new();
        while !self.takes('"') {
            if self.peek().is_none() {
                return Err(self.wrong("a text in quotes does not end"));
            }
            text.push(self.character()?);
            self.count(1)?;
        }
        Ok(GbnfPiece::Text(text))
    }

    fn class(&mut self) -> Result<GbnfPiece> {
        self.at += 1;
        let is_negated = self.takes('^');
        let mut ranges = Vec::new();
        while !self.takes(']') {
            if self.peek().is_none() {
                return Err(self.wrong("a class in brackets does not end"));
            }
            let first = self.character()?;
            let is_range = self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(self.wrong(format!("the range {first}-{last} ends before it begins")));
            }
            ranges.push((first, last));
            self.count(1)?;
        }
        if ranges.is_empty() && !is_negated {
            return Err(self.wrong("a class in brackets has no characters"));
        }
        Ok(GbnfPiece::Class { is_negated, ranges })
    }

    fn group(&mut self) -> Result<GbnfPiece> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong(format!("brackets nest more than {MAX_DEPTH} levels")));
        }
        self.space(true);
        let alternatives = self.alternatives(true)?;
        if !self.takes(')') {
            return Err(self.wrong("a bracket ( does not end"));
        }
        self.depth -= 1;
        Ok(GbnfPiece::Group(alternatives))
    }

    /// A character of a text or a class, which may be escaped.
    fn character(&mut self) -> Result<char> {
        let Some(c) = self.next() else { return Err(self.wrong("the grammar ends within a text")) };
        if c != '\\' {
            return Ok(c);
        }
        let Some(escaped) = self.next() else { return Err(self.wrong("the grammar ends within an escape")) };
        match escaped {
            'x' => self.code(2),
            'u' => self.code(4),
            'U' => self.code(8),
            't' => Ok('\t'),
            'r' => Ok('\r'),
            'n' => Ok('\n'),
            '\\' | '"' | '[' | ']' | '-' => Ok(escaped),
            other => Err(self.wrong(format!("\\{other} is not known"))),
        }
    }

    fn code(&mut self, digits: usize) -> Result<char> {
        let end = (self.at + digits).min(self.chars.len());
        let text: String = self.chars[self.at..end].iter().collect();
        self.at = end;
        let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let code = if is_hex { u32::from_str_radix(&text, 16).ok() } else { None };
        let Some(code) = code else {
            return Err(self.wrong(format!("{digits} hexadecimal digits were expected")));
        };
        char::from_u32(code).ok_or_else(|| self.wrong(format!("{text} is no character")))
    }
}

/// Whether a name of a rule may have this character.
fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_')
}
