//! Where the text of a reply goes while it is generated: to standard output as text or as events,
//! or nowhere.

use std::io::{self, IsTerminal};

use serde_json::{Value, json};

use crate::error::Result;
use crate::output::{print_json, stream, stream_dimmed};
use crate::thinking::{ReplyPart, ThinkingSplitter};

/// Takes the text of one reply.
#[derive(Debug)]
pub enum ReplyStream {
    /// Prints it as it is.
    Text,
    /// Prints it with the thinking dimmed.
    DimmedThinking(ThinkingSplitter),
    /// Prints an event as a line of JSON for each token, with these fields.
    Events(Value),
    /// Prints nothing.
    Silent,
}

impl ReplyStream {
    /// A stream of text. `colour` says whether a terminal may get escape codes.
    pub fn text(first: ReplyPart, colour: bool) -> ReplyStream {
        match colour && io::stdout().is_terminal() {
            true => ReplyStream::DimmedThinking(ThinkingSplitter::new(first)),
            false => ReplyStream::Text,
        }
    }

    /// Takes the text that a token releases; the last text of a reply has no token.
    ///
    /// # Errors
    /// When standard output is closed or cannot be written.
    pub fn push(&mut self, id: Option<u32>, text: &str) -> Result<()> {
        match self {
            ReplyStream::Text => stream(text),
            ReplyStream::DimmedThinking(splitter) => splitter.push(text, print_part),
            ReplyStream::Events(_) if id.is_none() && text.is_empty() => Ok(()),
            ReplyStream::Events(fields) => print_event("text", &[fields, &json!({"text": text, "id": id})]),
            ReplyStream::Silent => Ok(()),
        }
    }

    /// Ends a reply that is complete.
    ///
    /// # Errors
    /// As [`ReplyStream::push`].
    pub fn finish(&mut self) -> Result<()> {
        match self {
            ReplyStream::DimmedThinking(splitter) => splitter.finish(print_part)?,
            ReplyStream::Text => {}
            ReplyStream::Events(_) | ReplyStream::Silent => return Ok(()),
        }
        stream("\n")
    }

    /// Ends a reply that was stopped; returns the number of bytes that were taken and not printed.
    ///
    /// # Errors
    /// As [`ReplyStream::push`].
    pub fn stop(&mut self) -> Result<usize> {
        let held = match self {
            ReplyStream::DimmedThinking(splitter) => splitter.held_bytes(),
            ReplyStream::Text => 0,
            ReplyStream::Events(_) | ReplyStream::Silent => return Ok(0),
        };
        stream("\n")?;
        Ok(held)
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

fn print_part(part: ReplyPart, text: &str) -> Result<()> {
    match part {
        ReplyPart::Thinking => stream_dimmed(text),
        ReplyPart::Answer => stream(text),
    }
}
