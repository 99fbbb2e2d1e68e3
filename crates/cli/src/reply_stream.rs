//! Where a reply goes while it is generated: to standard output as text or as events, or nowhere.

use std::io::{self, IsTerminal};

use girih::tools::event_json;
use girih::{Event, ReplyPart};
use serde_json::{Value, json};

use crate::error::Result;
use crate::output::{allows_style, columns, print_json, stream, stream_dimmed};
use crate::visible::Visible;
use crate::word_wrap::WordWrap;

/// Takes one reply.
#[derive(Debug)]
pub enum ReplyStream {
    /// Prints its parts as text.
    Text(PartPrinter),
    /// Prints an event as a line of JSON for each token, with these fields, and events of calls.
    Events {
        /// The fields of each event.
        fields: Value,
        /// Whether the reply is split into content, thinking and calls.
        splits: bool,
        /// The id of the call that is being printed.
        call: String,
    },
    /// Prints nothing.
    Silent,
}

/// Prints the parts of a reply as text: thinking dimmed on a terminal and between tags elsewhere, and
/// each call on a line of its own. On a terminal, lines are broken between words.
#[derive(Debug, Default)]
pub struct PartPrinter {
    /// Whether escape codes may style the text.
    dims: bool,
    last: Printed,
    /// The word that is held back.
    wrap: WordWrap,
}

/// What was printed last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Printed {
    #[default]
    Nothing,
    Content,
    Thinking,
    Call,
}

impl ReplyStream {
    /// A stream of text.
    pub fn text() -> ReplyStream {
        let dims = allows_style() && io::stdout().is_terminal();
        ReplyStream::Text(PartPrinter { dims, ..PartPrinter::default() })
    }

    /// A stream of events with these fields.
    pub fn events(fields: Value, splits: bool) -> ReplyStream {
        ReplyStream::Events { fields, splits, call: String::new() }
    }

    /// Takes an event of the reply, and the text and the parts of it that are shown.
    ///
    /// # Errors
    /// When standard output is closed or cannot be written.
    pub fn push(&mut self, event: &Event, shown: &str, parts: &[ReplyPart]) -> Result<()> {
        match self {
            ReplyStream::Text(text) => parts.iter().try_for_each(|part| text.push(part)),
            ReplyStream::Events { fields, splits, call } => {
                let id = if let Event::Token { id, .. } = event { Some(*id) } else { None };
                let events = event_json(*splits, call, (id, shown), parts);
                events.iter().try_for_each(|(name, event)| print_event(name, &[fields, event]))
            }
            ReplyStream::Silent => Ok(()),
        }
    }

    /// Prints the text that the reply continues.
    ///
    /// # Errors
    /// As [`ReplyStream::push`].
    pub fn repeat_prompt(&mut self, prompt: &str) -> Result<()> {
        match self {
            ReplyStream::Text(text) => text.push(&ReplyPart::Content(prompt.to_owned())),
            ReplyStream::Events { .. } | ReplyStream::Silent => Ok(()),
        }
    }

    /// Prints what is held back of a reply that fails.
    ///
    /// # Errors
    /// As [`ReplyStream::push`].
    pub fn flush(&mut self) -> Result<()> {
        match self {
            ReplyStream::Text(text) => text.flush(),
            ReplyStream::Events { .. } | ReplyStream::Silent => Ok(()),
        }
    }

    /// Ends a reply.
    ///
    /// # Errors
    /// As [`ReplyStream::push`].
    pub fn finish(&mut self) -> Result<()> {
        match self {
            ReplyStream::Text(text) => text.finish(),
            ReplyStream::Events { .. } | ReplyStream::Silent => Ok(()),
        }
    }
}

impl PartPrinter {
    fn push(&mut self, part: &ReplyPart) -> Result<()> {
        match part {
            ReplyPart::Content(text) => {
                self.begin(Printed::Content)?;
                self.words(text)
            }
            ReplyPart::Thinking(text) => {
                self.begin(Printed::Thinking)?;
                self.words(text)
            }
            ReplyPart::CallBegin { name, .. } => {
                self.begin(Printed::Call)?;
                stream(&format!("{name}("))
            }
            ReplyPart::Arguments(text) => stream(text),
            ReplyPart::CallEnd { fault: Some(fault) } => stream(&format!(") [{fault}]")),
            ReplyPart::CallEnd { fault: None } => stream(")"),
            _ => Ok(()),
        }
    }

    /// Prints the words of content or thinking.
    fn words(&mut self, text: &str) -> Result<()> {
        match columns(io::stdout()) {
            Some(columns) => {
                let text = self.wrap.push(&Visible(text).to_string(), columns);
                self.styled(&text)
            }
            None => self.styled(text),
        }
    }

    /// Prints the word that is held back.
    fn flush(&mut self) -> Result<()> {
        let text = self.wrap.flush(columns(io::stdout()).unwrap_or(usize::MAX));
        self.styled(&text)
    }

    /// Prints text in the style of the last part.
    fn styled(&self, text: &str) -> Result<()> {
        match self.last {
            _ if text.is_empty() => Ok(()),
            Printed::Thinking if self.dims => stream_dimmed(text),
            _ => stream(text),
        }
    }

    /// Prints what separates a part of this kind from the last one.
    fn begin(&mut self, next: Printed) -> Result<()> {
        if self.last == next && next != Printed::Call {
            return Ok(());
        }
        self.flush()?;
        // Another part begins on a line of its own.
        self.wrap = WordWrap::default();
        let last = std::mem::replace(&mut self.last, next);
        let close = match last {
            Printed::Nothing => "",
            Printed::Thinking if self.dims => "\n\n",
            Printed::Thinking => "\n</think>\n\n",
            Printed::Content | Printed::Call => "\n",
        };
        let open = if next == Printed::Thinking && !self.dims { "<think>\n" } else { "" };
        if close.is_empty() && open.is_empty() { Ok(()) } else { stream(&format!("{close}{open}")) }
    }

    fn finish(&mut self) -> Result<()> {
        self.flush()?;
        let closes = self.last == Printed::Thinking && !self.dims;
        stream(if closes { "\n</think>\n" } else { "\n" })
    }
}

/// Prints an event: its name, then the fields of the objects.
///
/// # Errors
/// As [`ReplyStream::push`].
pub fn print_event(name: &str, objects: &[&Value]) -> Result<()> {
    print_json(&joined(&[&[&json!({"event": name})], objects].concat()))
}

/// One object with the fields of several; of equal ones the last counts.
pub fn joined(objects: &[&Value]) -> Value {
    let fields = objects.iter().filter_map(|object| object.as_object()).flatten();
    Value::Object(fields.map(|(name, value)| (name.clone(), value.clone())).collect())
}
