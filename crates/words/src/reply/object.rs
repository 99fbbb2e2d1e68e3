//! Reads a call that is a JSON object: `{"name": …, "arguments": {…}}`.
//!
//! The keys may have any order. Arguments that come before the name are kept until it is known.
//! A call needs both. Further keys are `id` and `type`; an object with any other key is not a call.

use super::part::Parts;
use super::value::{Fault, Notation, ReadStep, ValueReader, is_json_space};

/// The maximum bytes of a key, a name or an id, as JSON.
const MAX_FIELD_BYTES: usize = 256;

/// The maximum bytes of a name.
const MAX_NAME_BYTES: usize = 128;

/// Whether a text may be the name of a tool.
pub(super) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:/".contains(&byte);
    (1..=MAX_NAME_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

/// A key of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallField {
    Name,
    Arguments,
    Id,
    Type,
}

#[derive(Debug)]
enum ObjectAt {
    Open,
    Key {
        may_close: bool,
    },
    InKey(ValueReader),
    Colon(CallField),
    /// The value of a field; `None` until its first character.
    Value(CallField, Option<ValueReader>),
    AfterValue,
}

/// Reads one call.
#[derive(Debug)]
pub(super) struct ObjectReader {
    at: ObjectAt,
    /// The JSON of the key or the value that is being read, or of arguments without a name.
    text: String,
    name: Option<String>,
    id: Option<String>,
    /// The arguments, until the call begins.
    early_arguments: Option<String>,
    has_begun: bool,
    has_arguments: bool,
}

impl ObjectReader {
    pub fn new() -> ObjectReader {
        ObjectReader {
            at: ObjectAt::Open,
            text: String::new(),
            name: None,
            id: None,
            early_arguments: None,
            has_begun: false,
            has_arguments: false,
        }
    }

    /// Whether its beginning was passed on.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Takes a character, and passes on what is certain.
    pub fn step(&mut self, c: char, parts: &mut Parts) -> Result<ReadStep, Fault> {
        let is_space = is_json_space(c);
        match &mut self.at {
            ObjectAt::InKey(_) => self.in_key(c)?,
            ObjectAt::Value(_, Some(_)) => return self.in_value(c, parts),
            _ if is_space => {}
            ObjectAt::Open if c == '{' => self.at = ObjectAt::Key { may_close: false },
            ObjectAt::Open => return Err("a call does not begin with {"),
            ObjectAt::Key { .. } if c == '"' => {
                self.text.clear();
                self.at = ObjectAt::InKey(ValueReader::new(Notation::Json));
                self.in_key(c)?;
            }
            ObjectAt::Key { may_close: true } if c == '}' => return self.end(parts),
            ObjectAt::Key { .. } => return Err("a key of a call is missing"),
            ObjectAt::Colon(field) if c == ':' => self.at = ObjectAt::Value(*field, None),
            ObjectAt::Colon(_) => return Err("a colon is missing after a key of a call"),
            ObjectAt::Value(field, None) => {
                let field = *field;
                self.begin_value(field, c, parts)?;
                return self.in_value(c, parts);
            }
            ObjectAt::AfterValue if c == ',' => self.at = ObjectAt::Key { may_close: false },
            ObjectAt::AfterValue if c == '}' => return self.end(parts),
            ObjectAt::AfterValue => return Err("a comma or the end of a call is missing"),
        }
        Ok(ReadStep::More)
    }

    fn in_key(&mut self, c: char) -> Result<(), Fault> {
        let ObjectAt::InKey(reader) = &mut self.at else { return Ok(()) };
        let step = reader.step(c, &mut self.text)?;
        if step == ReadStep::Ended {
            let field = match self.text.as_str() {
                "\"name\"" if self.name.is_none() => CallField::Name,
                "\"arguments\"" | "\"parameters\"" if !self.has_arguments => CallField::Arguments,
                "\"id\"" if self.id.is_none() => CallField::Id,
                "\"type\"" => CallField::Type,
                _ => return Err("an object with this key is not a call"),
            };
            self.at = ObjectAt::Colon(field);
        }
        self.check_size()
    }

    fn check_size(&self) -> Result<(), Fault> {
        match self.text.len() > MAX_FIELD_BYTES {
            true => Err("a key, a name or an id is longer than 256 bytes"),
            false => Ok(()),
        }
    }

    /// Begins the value of a field with its first character.
    fn begin_value(&mut self, field: CallField, c: char, parts: &mut Parts) -> Result<(), Fault> {
        match field {
            CallField::Arguments if c != '{' => return Err("the arguments are not an object"),
            CallField::Arguments => {
                self.has_arguments = true;
                self.begin_if_named(parts);
            }
            CallField::Name | CallField::Id | CallField::Type if c != '"' => {
                return Err("the name, id or type of a call is not a string");
            }
            _ => {}
        }
        self.text.clear();
        self.at = ObjectAt::Value(field, Some(ValueReader::new(Notation::Json)));
        Ok(())
    }

    /// Passes on the beginning of a call whose name and arguments have been found.
    fn begin_if_named(&mut self, parts: &mut Parts) {
        if self.has_begun || !self.has_arguments {
            return;
        }
        if let Some(name) = &self.name {
            parts.begin(name.clone(), self.id.clone());
            self.has_begun = true;
            if let Some(arguments) = self.early_arguments.take() {
                parts.arguments(&arguments);
            }
        }
    }

    fn in_value(&mut self, c: char, parts: &mut Parts) -> Result<ReadStep, Fault> {
        let ObjectAt::Value(field, Some(reader)) = &mut self.at else { return Ok(ReadStep::More) };
        let field = *field;
        let step = reader.step(c, &mut self.text)?;
        match field {
            CallField::Arguments if self.has_begun => {
                parts.arguments(&self.text);
                self.text.clear();
            }
            // The parser bounds what it keeps of a call that has not begun.
            CallField::Arguments => {}
            _ => self.check_size()?,
        }
        if step == ReadStep::Ended {
            self.end_value(field, parts)?;
            self.at = ObjectAt::AfterValue;
        }
        Ok(ReadStep::More)
    }

    fn end_value(&mut self, field: CallField, parts: &mut Parts) -> Result<(), Fault> {
        let json = std::mem::take(&mut self.text);
        let text = || serde_json::from_str::<String>(&json).map_err(|_| "a string of a call is malformed");
        match field {
            CallField::Name => {
                let name = text()?;
                if !is_name(&name) {
                    return Err("the name of a call is not 1 to 128 letters, digits and _ - . : /");
                }
                self.name = Some(name);
                self.begin_if_named(parts);
            }
            CallField::Id => self.id = Some(text()?),
            CallField::Type => {}
            CallField::Arguments if self.has_begun => {}
            CallField::Arguments => self.early_arguments = Some(json),
        }
        Ok(())
    }

    fn end(&mut self, parts: &mut Parts) -> Result<ReadStep, Fault> {
        if !self.has_begun {
            return Err("a call has no name or no arguments");
        }
        parts.end(None);
        Ok(ReadStep::Ended)
    }
}
