//! A reader of printed forms: lines of words, with the line number in every
//! error. It is independent of the forms.

use std::str::{FromStr, SplitWhitespace};

use girih_tensor::{Error, Result};

/// The non-empty lines of a printed form, without comments.
#[derive(Clone, Debug)]
pub struct FormLines<'a> {
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
    ahead: Option<FormLine<'a>>,
}

/// One line, read word by word.
#[derive(Clone, Debug)]
pub struct FormLine<'a> {
    number: usize,
    words: SplitWhitespace<'a>,
}

impl<'a> FormLines<'a> {
    /// Creates a reader of a text; `//` begins a comment.
    pub fn new(text: &'a str) -> FormLines<'a> {
        let mut lines = FormLines { rest: text.lines().enumerate(), ahead: None };
        lines.ahead = lines.find();
        lines
    }

    /// Returns the first word of the next line without consuming it.
    pub fn peek(&self) -> Option<&'a str> {
        self.ahead.as_ref().and_then(|line| line.words.clone().next())
    }

    /// Returns the next line.
    pub fn next_line(&mut self) -> Option<FormLine<'a>> {
        let next = self.ahead.take();
        self.ahead = self.find();
        next
    }

    /// Returns the next line without its first word, if that is `word`.
    pub fn take(&mut self, word: &str) -> Option<FormLine<'a>> {
        if self.peek() != Some(word) {
            return None;
        }
        let mut line = self.next_line()?;
        line.words.next();
        Some(line)
    }

    /// Returns the next line without its first word, which must be `word`.
    ///
    /// # Errors
    /// When the first word differs, or the text has ended.
    pub fn need(&mut self, word: &str) -> Result<FormLine<'a>> {
        let found = self.peek();
        self.take(word).ok_or_else(|| match (found, &self.ahead) {
            (Some(found), Some(line)) => line.error(format!("has '{found}'; '{word}' is needed")),
            _ => Error::new(format!("the text ends; a line '{word}' is needed")),
        })
    }

    /// Checks that the text has ended.
    ///
    /// # Errors
    /// When a line is left.
    pub fn end(&self) -> Result<()> {
        match (&self.ahead, self.peek()) {
            (Some(line), Some(word)) => {
                Err(line.error(format!("begins with '{word}', which is not allowed here")))
            }
            _ => Ok(()),
        }
    }

    fn find(&mut self) -> Option<FormLine<'a>> {
        self.rest.find_map(|(index, text)| {
            let text = text.split_once("//").map_or(text, |(before, _)| before);
            let words = text.split_whitespace();
            words.clone().next().map(|_| FormLine { number: index + 1, words })
        })
    }
}

impl<'a> FormLine<'a> {
    /// Creates a line from a text.
    pub fn of(text: &'a str) -> FormLine<'a> {
        FormLine { number: 1, words: text.split_whitespace() }
    }

    /// Returns the next word.
    ///
    /// # Errors
    /// When the line has ended.
    pub fn word(&mut self, what: &str) -> Result<&'a str> {
        self.words.next().ok_or_else(|| self.error(format!("ends; {what} is needed")))
    }

    /// Returns the next word, if the line has one.
    pub fn optional(&mut self) -> Option<&'a str> {
        self.words.next()
    }

    /// Skips the next word if it is `word`; returns whether it was.
    pub fn skip(&mut self, word: &str) -> bool {
        let found = self.words.clone().next() == Some(word);
        if found {
            self.words.next();
        }
        found
    }

    /// Skips the next word, which must be `word`.
    ///
    /// # Errors
    /// When the next word differs.
    pub fn need(&mut self, word: &str) -> Result<()> {
        if self.skip(word) { Ok(()) } else { Err(self.error(format!("lacks the word '{word}'"))) }
    }

    /// Parses the next word.
    ///
    /// # Errors
    /// When the line has ended or the word does not parse.
    pub fn value<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let word = self.word(what)?;
        self.parsed(word, what)
    }

    /// Parses a word.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn parsed<T: FromStr>(&self, word: &str, what: &str) -> Result<T> {
        word.parse().map_err(|_| self.error(format!("has '{word}' where {what} is needed")))
    }

    /// Checks that the line has ended.
    ///
    /// # Errors
    /// When a word is left.
    pub fn end(&mut self) -> Result<()> {
        match self.words.next() {
            Some(word) => Err(self.error(format!("continues with '{word}'; its end is needed"))),
            None => Ok(()),
        }
    }

    /// Returns an error that names the line.
    pub fn error(&self, sentence: impl std::fmt::Display) -> Error {
        Error::new(format!("line {} {sentence}", self.number))
    }
}
