//! Reads calls that are written in Python: `name(key=value, …)`. Arguments are given by keyword,
//! and their values are literals.

use super::object::is_name;
use super::part::Parts;
use super::value::{Fault, Notation, ReadStep, ValueReader};

/// The maximum bytes of a keyword.
const MAX_KEYWORD_BYTES: usize = 128;

#[derive(Debug)]
enum PythonAt {
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
    at: PythonAt,
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
            at: if is_list { PythonAt::ListOpen } else { PythonAt::Name },
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
        !self.is_list && self.ended > 0 && matches!(self.at, PythonAt::AfterCall)
    }

    /// Takes a character, and passes on what is certain. Calls in lines have no end of their own:
    /// a character that begins no further call is not theirs.
    pub fn step(&mut self, c: char, parts: &mut Parts) -> Result<ReadStep, Fault> {
        let is_space = c.is_ascii_whitespace();
        match &mut self.at {
            PythonAt::Value(reader) => {
                let mut json = String::new();
                let step = reader.step(c, &mut json)?;
                parts.arguments(&json);
                match step {
                    ReadStep::More => return Ok(ReadStep::More),
                    ReadStep::Ended => self.at = PythonAt::AfterValue,
                    ReadStep::EndedBefore => {
                        self.at = PythonAt::AfterValue;
                        return self.after_value(c, parts);
                    }
                }
            }
            PythonAt::Name if is_space && self.word.is_empty() => {}
            PythonAt::Name => return self.in_name(c),
            PythonAt::Keyword if is_keyword_character(c) => self.in_keyword(c)?,
            PythonAt::Keyword if is_space && !self.word.is_empty() => self.at = PythonAt::Equals,
            _ if is_space => {}
            PythonAt::ListOpen if c == '[' => self.at = PythonAt::Name,
            PythonAt::ListOpen => return Err("a list of calls does not begin with ["),
            PythonAt::Keyword if c == ')' && self.word.is_empty() && !self.has_begun => {
                self.begin(parts);
                self.end_call(parts);
            }
            PythonAt::Keyword | PythonAt::Equals if !self.word.is_empty() && c == '=' => {
                self.keyword_ended(parts)
            }
            PythonAt::Keyword | PythonAt::Equals => return Err("an argument has no keyword"),
            PythonAt::AfterValue => return self.after_value(c, parts),
            PythonAt::PrintClose if c == ')' => self.at = PythonAt::AfterCall,
            PythonAt::PrintClose => return Err("the parenthesis of print is not closed"),
            PythonAt::AfterCall if self.is_list && c == ',' => self.at = PythonAt::Name,
            PythonAt::AfterCall if self.is_list && c == ']' => return Ok(ReadStep::Ended),
            PythonAt::AfterCall if self.is_list => {
                return Err("a comma or the end of the list of calls is missing");
            }
            PythonAt::AfterCall if is_name_character(c) => {
                self.at = PythonAt::Name;
                return self.in_name(c);
            }
            PythonAt::AfterCall => return Ok(ReadStep::EndedBefore),
        }
        Ok(ReadStep::More)
    }

    fn in_name(&mut self, c: char) -> Result<ReadStep, Fault> {
        if is_name_character(c) {
            self.word.push(c);
            let is_long = self.word.len() > MAX_KEYWORD_BYTES;
            return if is_long {
                Err("the name of a call is longer than 128 bytes")
            } else {
                Ok(ReadStep::More)
            };
        }
        if c != '(' || self.word.is_empty() {
            return Err("a call has no parenthesis");
        }
        if self.word == "print" && !self.is_in_print && !self.is_list {
            self.is_in_print = true;
            self.word.clear();
            return Ok(ReadStep::More);
        }
        // Llama writes `.call` after the names of tools that are built into its prompt.
        let name = self.word.strip_suffix(".call").unwrap_or(&self.word);
        if !is_name(name) || name.starts_with(|c: char| c.is_ascii_digit()) {
            return Err("the name of a call is empty or begins with a digit");
        }
        self.name = name.to_owned();
        self.word.clear();
        self.at = PythonAt::Keyword;
        Ok(ReadStep::More)
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
        self.at = PythonAt::Value(ValueReader::new(Notation::Python));
    }

    fn begin(&mut self, parts: &mut Parts) {
        parts.begin(std::mem::take(&mut self.name), None);
        parts.arguments("{");
        self.has_begun = true;
    }

    fn after_value(&mut self, c: char, parts: &mut Parts) -> Result<ReadStep, Fault> {
        match c {
            ',' => self.at = PythonAt::Keyword,
            ')' => self.end_call(parts),
            _ if c.is_ascii_whitespace() => {}
            _ => return Err("a comma or the end of a call is missing"),
        }
        Ok(ReadStep::More)
    }

    fn end_call(&mut self, parts: &mut Parts) {
        parts.arguments("}");
        parts.end(None);
        self.has_begun = false;
        self.ended += 1;
        self.at =
            if std::mem::take(&mut self.is_in_print) { PythonAt::PrintClose } else { PythonAt::AfterCall };
    }
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '.'
}

fn is_keyword_character(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}
