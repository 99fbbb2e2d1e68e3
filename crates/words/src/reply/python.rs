//! Reads calls that are written in Python: `name(key=value, …)`. Arguments are given by keyword,
//! and their values are literals.

use super::object::is_name;
use super::part::Parts;
use super::value::{Fault, Notation, Step, ValueReader};

/// The maximum bytes of a keyword.
const MAX_KEYWORD_BYTES: usize = 128;

#[derive(Debug)]
enum At {
    /// Before the bracket of a list.
    ListOpen,
    Name,
    /// A keyword, or before the first one the end of a call without arguments.
    Keyword,
    /// The equals sign after a keyword and white space.
    Equals,
    Value(ValueReader),
    AfterValue,
    /// The parenthesis that closes `print(`.
    PrintClose,
    AfterCall,
}

/// Reads the calls of one list, or of lines.
#[derive(Debug)]
pub(super) struct PythonReader {
    is_list: bool,
    at: At,
    /// The name or the keyword that is being read.
    word: String,
    /// The name of the call, until it begins.
    name: String,
    is_in_print: bool,
    has_begun: bool,
    /// The number of calls that have ended.
    ended: usize,
}

impl PythonReader {
    pub fn new(is_list: bool) -> PythonReader {
        PythonReader {
            is_list,
            at: if is_list { At::ListOpen } else { At::Name },
            word: String::new(),
            name: String::new(),
            is_in_print: false,
            has_begun: false,
            ended: 0,
        }
    }

    /// Whether the beginning of the present call was passed on.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether the text may end here.
    pub fn may_end(&self) -> bool {
        !self.is_list && self.ended > 0 && matches!(self.at, At::AfterCall)
    }

    /// Takes a character, and passes on what is certain. Calls in lines have no end of their own:
    /// a character that begins no further call is not theirs.
    pub fn step(&mut self, c: char, parts: &mut Parts) -> Result<Step, Fault> {
        let is_space = c.is_ascii_whitespace();
        match &mut self.at {
            At::Value(reader) => {
                let mut json = String::new();
                let step = reader.step(c, &mut json)?;
                parts.arguments(&json);
                match step {
                    Step::More => return Ok(Step::More),
                    Step::Ended => self.at = At::AfterValue,
                    Step::EndedBefore => {
                        self.at = At::AfterValue;
                        return self.after_value(c, parts);
                    }
                }
            }
            At::Name if is_space && self.word.is_empty() => {}
            At::Name => return self.in_name(c),
            At::Keyword if is_keyword_character(c) => self.in_keyword(c)?,
            At::Keyword if is_space && !self.word.is_empty() => self.at = At::Equals,
            _ if is_space => {}
            At::ListOpen if c == '[' => self.at = At::Name,
            At::ListOpen => return Err("a list of calls does not begin with ["),
            At::Keyword if c == ')' && self.word.is_empty() && !self.has_begun => {
                self.begin(parts);
                self.end_call(parts);
            }
            At::Keyword | At::Equals if !self.word.is_empty() && c == '=' => self.keyword_ended(parts),
            At::Keyword | At::Equals => return Err("an argument has no keyword"),
            At::AfterValue => return self.after_value(c, parts),
            At::PrintClose if c == ')' => self.at = At::AfterCall,
            At::PrintClose => return Err("the parenthesis of print is not closed"),
            At::AfterCall if self.is_list && c == ',' => self.at = At::Name,
            At::AfterCall if self.is_list && c == ']' => return Ok(Step::Ended),
            At::AfterCall if self.is_list => {
                return Err("a comma or the end of the list of calls is missing");
            }
            At::AfterCall if is_name_character(c) => {
                self.at = At::Name;
                return self.in_name(c);
            }
            At::AfterCall => return Ok(Step::EndedBefore),
        }
        Ok(Step::More)
    }

    fn in_name(&mut self, c: char) -> Result<Step, Fault> {
        if is_name_character(c) {
            self.word.push(c);
            let is_long = self.word.len() > MAX_KEYWORD_BYTES;
            return if is_long { Err("the name of a call is longer than 128 bytes") } else { Ok(Step::More) };
        }
        if c != '(' || self.word.is_empty() {
            return Err("a call has no parenthesis");
        }
        if self.word == "print" && !self.is_in_print && !self.is_list {
            self.is_in_print = true;
            self.word.clear();
            return Ok(Step::More);
        }
        // Llama writes `.call` after the names of tools that are built into its prompt.
        let name = self.word.strip_suffix(".call").unwrap_or(&self.word);
        if !is_name(name) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("the name of a call is no name of a tool");
        }
        self.name = name.to_owned();
        self.word.clear();
        self.at = At::Keyword;
        Ok(Step::More)
    }

    fn in_keyword(&mut self, c: char) -> Result<(), Fault> {
        if self.word.is_empty() && c.is_ascii_digit() {
            return Err("an argument has no keyword");
        }
        self.word.push(c);
        match self.word.len() > MAX_KEYWORD_BYTES {
            true => Err("a keyword is longer than 128 bytes"),
            false => Ok(()),
        }
    }

    /// Passes on a keyword.
    fn keyword_ended(&mut self, parts: &mut Parts) {
        let is_first = !self.has_begun;
        if is_first {
            self.begin(parts);
        }
        parts.arguments(&format!("{}\"{}\":", if is_first { "" } else { "," }, self.word));
        self.word.clear();
        self.at = At::Value(ValueReader::new(Notation::Python));
    }

    fn begin(&mut self, parts: &mut Parts) {
        parts.begin(std::mem::take(&mut self.name), None);
        parts.arguments("{");
        self.has_begun = true;
    }

    fn after_value(&mut self, c: char, parts: &mut Parts) -> Result<Step, Fault> {
        match c {
            ',' => self.at = At::Keyword,
            ')' => self.end_call(parts),
            _ if c.is_ascii_whitespace() => {}
            _ => return Err("a comma or the end of a call is missing"),
        }
        Ok(Step::More)
    }

    fn end_call(&mut self, parts: &mut Parts) {
        parts.arguments("}");
        parts.end(None);
        self.has_begun = false;
        self.ended += 1;
        self.at = if std::mem::take(&mut self.is_in_print) { At::PrintClose } else { At::AfterCall };
    }
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

fn is_keyword_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
