//! Reading printed forms: lines of words, with the number of the line in every
//! error. It knows no form.

use std::str::{FromStr, SplitWhitespace};

use girih_tensor::{Error, Result};

/// The lines of a printed form that are not empty, without their comments.
#[derive(Clone, Debug)]
pub struct FormLines<'a> {
    rest: std::iter::Enumerate<std::str::Lines<'a>>,
    ahead: Option<FormLine<'a>>,
}

/// One line: its words are taken one after another.
#[derive(Clone, Debug)]
pub struct FormLine<'a> {
    number: usize,
    words: SplitWhitespace<'a>,
}

impl<'a> FormLines<'a> {
    /// The lines of a text; `//` begins a comment.
    pub fn new(text: &'a str) -> FormLines<'a> {
        let mut lines = FormLines { rest: text.lines().enumerate(), ahead: None };
        lines.ahead = lines.find();
        lines
    }

    /// The first word of the next line, which stays there.
    pub fn peek(&self) -> Option<&'a str> {
        self.ahead.as_ref().and_then(|line| line.words.clone().next())
    }

    /// The next line.
    pub fn next_line(&mut self) -> Option<FormLine<'a>> {
        let next = self.ahead.take();
        self.ahead = self.find();
        next
    }

    /// The next line, if its first word is `word`, which is then taken.
    pub fn take(&mut self, word: &str) -> Option<FormLine<'a>> {
        if self.peek() != Some(word) {
            return None;
        }
        let mut line = self.next_line()?;
        line.words.next();
        Some(line)
    }

    /// The next line, whose first word must be `word`.
    ///
    /// # Errors
    /// When it is another, or there is none.
    pub fn need(&mut self, word: &str) -> Result<FormLine<'a>> {
        let found = self.peek();
        self.take(word).ok_or_else(|| match (found, &self.ahead) {
            (Some(found), Some(line)) => line.error(format!("has '{found}'; '{word}' is needed")),
            _ => Error::new(format!("the text ends; a line '{word}' is needed")),
        })
    }

    /// The end of the text.
    ///
    /// # Errors
    /// When there is another line.
    pub fn end(&self) -> Result<()> {
        match (&self.ahead, self.peek()) {
            (Some(line), Some(word)) => {
                Err(line.error(format!("begins with '{word}', which has no meaning here")))
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
    /// A text as a line of its own.
    pub fn of(text: &'a str) -> FormLine<'a> {
        FormLine { number: 1, words: text.split_whitespace() }
    }

    /// The next word.
    ///
    /// # Errors
    /// When the line has ended.
    pub fn word(&mut self, what: &str) -> Result<&'a str> {
        self.words.next().ok_or_else(|| self.error(format!("ends; {what} is needed")))
    }

    /// The next word, if there is one.
    pub fn optional(&mut self) -> Option<&'a str> {
        self.words.next()
    }

    /// Takes the next word if it is `word`.
    pub fn skip(&mut self, word: &str) -> bool {
        let found = self.words.clone().next() == Some(word);
        if found {
            self.words.next();
        }
        found
    }

    /// Takes the next word, which must be `word`.
    ///
    /// # Errors
    /// When it is another.
    pub fn need(&mut self, word: &str) -> Result<()> {
        if self.skip(word) { Ok(()) } else { Err(self.error(format!("lacks the word '{word}'"))) }
    }

    /// The next word as a value.
    ///
    /// # Errors
    /// When the line has ended or the word is no such value.
    pub fn value<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let word = self.word(what)?;
        self.parsed(word, what)
    }

    /// A word as a value.
    ///
    /// # Errors
    /// When it is none.
    pub fn parsed<T: FromStr>(&self, word: &str, what: &str) -> Result<T> {
        word.parse().map_err(|_| self.error(format!("has '{word}' where {what} is needed")))
    }

    /// The end of the line.
    ///
    /// # Errors
    /// When it has more words.
    pub fn end(&mut self) -> Result<()> {
        match self.words.next() {
            Some(word) => Err(self.error(format!("goes on with '{word}'; nothing is needed"))),
            None => Ok(()),
        }
    }

    /// An error that names the line.
    pub fn error(&self, sentence: impl std::fmt::Display) -> Error {
        Error::new(format!("line {} {sentence}", self.number))
    }
}
