//! Reads what follows the opening marker of a call, in any of the forms of its style, and keeps
//! the text of a call that is not certain yet.

use super::object::{ObjectReader, is_name};
use super::part::Parts;
use super::python::PythonReader;
use super::style::{ARGUMENTS, CALL_ID, Form};
use super::syntax::ReplySyntax;
use super::tagged::{TaggedReader, TextParameters};
use super::value::{Fault, Notation, ReadStep, ValueReader};

/// The maximum bytes of a call before its name and the beginning of its arguments are known.
const MAX_UNCERTAIN_BYTES: usize = 64 << 10;

/// The maximum bytes between a marker and the arguments of [`Form::Named`].
const MAX_NAMED_BYTES: usize = 512;

/// Reads the calls after one opening marker, or those of a bare reply.
#[derive(Debug)]
pub(super) struct CallReader {
    forms: &'static [Form],
    reader: FormReader,
    text_parameters: TextParameters,
    /// The text since the opening marker or since the last call, until a call begins.
    uncertain: String,
}

#[derive(Debug)]
enum FormReader {
    /// The first character that is no white space decides the form.
    Undecided,
    Object(ObjectReader),
    List(ListReader),
    Named(NamedReader),
    Python(PythonReader),
    Tagged(TaggedReader),
    /// Only arguments: the name was before.
    Arguments(ArgumentsReader),
}

impl CallReader {
    /// A reader of calls in one of `forms`, after the text `before`, which is given back with the
    /// rest if there is no call.
    pub fn new(forms: &'static [Form], before: String, text_parameters: TextParameters) -> CallReader {
        CallReader { forms, reader: FormReader::Undecided, text_parameters, uncertain: before }
    }

    /// A reader of the arguments of a call that has begun.
    pub fn of_arguments() -> CallReader {
        let reader = FormReader::Arguments(ArgumentsReader::new());
        let text_parameters = TextParameters::default();
        CallReader { forms: &[], reader, text_parameters, uncertain: String::new() }
    }

    /// Takes a character, and passes on what is certain. After a fault, the character was not
    /// taken.
    pub fn step(&mut self, c: char, syntax: &ReplySyntax, parts: &mut Parts) -> Result<ReadStep, Fault> {
        if let FormReader::Undecided = self.reader {
            self.decide(c)?;
        }
        let had_begun = self.has_begun();
        let calls = parts.calls;
        let step = match &mut self.reader {
            FormReader::Undecided => ReadStep::More,
            FormReader::Object(reader) => reader.step(c, parts)?,
            FormReader::List(reader) => reader.step(c, parts)?,
            FormReader::Named(reader) => reader.step(c, syntax, parts)?,
            FormReader::Python(reader) => reader.step(c, parts)?,
            FormReader::Tagged(reader) => reader.step(c, syntax, parts)?,
            FormReader::Arguments(reader) => reader.step(c, parts)?,
        };
        if parts.calls != calls || had_begun {
            self.uncertain.clear();
        } else if step != ReadStep::EndedBefore {
            if self.uncertain.len() >= MAX_UNCERTAIN_BYTES {
                return Err("the beginning of a call is longer than 64 KiB");
            }
            self.uncertain.push(c);
        }
        Ok(step)
    }

    fn decide(&mut self, c: char) -> Result<(), Fault> {
        let has = |form: Form| self.forms.contains(&form);
        let tags = self.forms.iter().find_map(|form| match form {
            Form::Tagged(tags) => Some(*tags),
            _ => None,
        });
        self.reader = match c {
            _ if c.is_ascii_whitespace() => FormReader::Undecided,
            '{' if has(Form::Object) => FormReader::Object(ObjectReader::new()),
            '[' if has(Form::ObjectList) => FormReader::List(ListReader::new()),
            '[' if has(Form::PythonList) => FormReader::Python(PythonReader::new(true)),
            _ if has(Form::Named) && is_name(c.encode_utf8(&mut [0; 4])) => {
                FormReader::Named(NamedReader::default())
            }
            'A'..='Z' | 'a'..='z' | '_' if has(Form::Python) => FormReader::Python(PythonReader::new(false)),
            _ => match tags {
                Some(tags) => FormReader::Tagged(TaggedReader::new(tags, self.text_parameters.clone())),
                None => return Err("there is no call after its marker"),
            },
        };
        Ok(())
    }

    /// Whether a call has begun and not ended.
    pub fn has_begun(&self) -> bool {
        match &self.reader {
            FormReader::Undecided => false,
            FormReader::Object(reader) => reader.has_begun(),
            FormReader::List(reader) => reader.object.as_ref().is_some_and(ObjectReader::has_begun),
            FormReader::Named(reader) => reader.arguments.is_some(),
            FormReader::Python(reader) => reader.has_begun(),
            FormReader::Tagged(reader) => reader.has_begun(),
            FormReader::Arguments(_) => true,
        }
    }

    /// The text that was kept because no call has begun in it. It is empty where the text may
    /// end.
    pub fn into_uncertain(self) -> String {
        match &self.reader {
            FormReader::Python(reader) if reader.may_end() => String::new(),
            FormReader::Tagged(reader) if reader.may_end() => String::new(),
            _ => self.uncertain,
        }
    }
}

/// Reads a JSON list of calls.
#[derive(Debug)]
struct ListReader {
    has_opened: bool,
    /// The call that is being read.
    object: Option<ObjectReader>,
    may_continue: bool,
}

impl ListReader {
    fn new() -> ListReader {
        ListReader { has_opened: false, object: None, may_continue: false }
    }

    fn step(&mut self, c: char, parts: &mut Parts) -> Result<ReadStep, Fault> {
        if let Some(object) = &mut self.object {
            if object.step(c, parts)? == ReadStep::Ended {
                self.object = None;
                self.may_continue = true;
            }
            return Ok(ReadStep::More);
        }
        match c {
            '[' if !self.has_opened => self.has_opened = true,
            _ if c.is_ascii_whitespace() => {}
            ',' if self.may_continue => self.may_continue = false,
            ']' if self.may_continue => return Ok(ReadStep::Ended),
            '{' if !self.may_continue => {
                let mut object = ObjectReader::new();
                object.step(c, parts)?;
                self.object = Some(object);
            }
            _ => return Err("a list of calls has an item that is not a call"),
        }
        Ok(ReadStep::More)
    }
}

/// Reads a name, perhaps an id, and a JSON object.
#[derive(Debug, Default)]
struct NamedReader {
    /// What comes before the arguments.
    before: String,
    arguments: Option<ArgumentsReader>,
}

impl NamedReader {
    fn step(&mut self, c: char, syntax: &ReplySyntax, parts: &mut Parts) -> Result<ReadStep, Fault> {
        if let Some(arguments) = &mut self.arguments {
            return arguments.step(c, parts);
        }
        if c != '{' {
            if self.before.len() >= MAX_NAMED_BYTES {
                return Err("the name of a call is longer than 512 bytes");
            }
            self.before.push(c);
            return Ok(ReadStep::More);
        }
        let [call_id, arguments] = [CALL_ID, ARGUMENTS].map(|spelling| {
            let needle = syntax.needles().iter().find(|needle| needle.spelling == spelling);
            needle.map_or(spelling, |needle| needle.text.as_str())
        });
        let before = self.before.trim_end();
        let before = before.strip_suffix(arguments).unwrap_or(before);
        let (name, id) = match before.split_once(call_id) {
            Some((name, id)) => (name.trim_end(), Some(id.trim())),
            None => (before.trim_end(), None),
        };
        if !is_name(name) || id.is_some_and(|id| !is_name(id)) {
            return Err("the name or id of a call is not 1 to 128 letters, digits and _ - . : /");
        }
        parts.begin(name.to_owned(), id.map(str::to_owned));
        let mut reader = ArgumentsReader::new();
        reader.step(c, parts)?;
        self.arguments = Some(reader);
        Ok(ReadStep::More)
    }
}

/// Reads arguments that stand alone.
#[derive(Debug)]
struct ArgumentsReader {
    value: ValueReader,
    has_opened: bool,
}

impl ArgumentsReader {
    fn new() -> ArgumentsReader {
        ArgumentsReader { value: ValueReader::new(Notation::Json), has_opened: false }
    }

    fn step(&mut self, c: char, parts: &mut Parts) -> Result<ReadStep, Fault> {
        if !self.has_opened {
            match c {
                '{' => self.has_opened = true,
                _ if c.is_ascii_whitespace() => return Ok(ReadStep::More),
                _ => return Err("the arguments are not an object"),
            }
        }
        let mut json = String::new();
        let step = self.value.step(c, &mut json)?;
        parts.arguments(&json);
        if step == ReadStep::Ended {
            parts.end(None);
        }
        Ok(step)
    }
}
