//! What the text of a reply turns out to be: content, thinking, and calls of tools.

use serde_json::{Value, json};

/// A part of a reply, in order. Neighbours of one kind may be joined: only the concatenation
/// of their texts has a meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyPart {
    /// Text for the user.
    Content(String),
    /// Text of the model for itself.
    Thinking(String),
    /// A call of a tool begins. Its arguments and its end follow before any other part.
    CallBegin {
        /// The id that the model wrote, or else `call` and the call's number in five digits: nine
        /// letters and digits, as Mistral's templates demand.
        id: String,
        /// The name of the tool. Whether there is such a tool is for the caller to check.
        name: String,
    },
    /// Text of the arguments of the call, which together are a JSON object.
    Arguments(String),
    /// The call ends.
    CallEnd {
        /// Why the arguments are not a JSON object. They are then what the model wrote.
        fault: Option<&'static str>,
    },
}

/// A whole call of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolCall {
    /// Its id; see [`ReplyPart::CallBegin`].
    pub id: String,
    /// The name of the tool.
    pub name: String,
    /// A JSON object, unless there is a fault.
    pub arguments: String,
    /// Why the arguments are not a JSON object.
    pub fault: Option<&'static str>,
}

impl ToolCall {
    /// The call in the form of OpenAI's `tool_calls`; `fault` is added if there is one.
    pub fn json(&self) -> Value {
        let function = json!({"name": self.name, "arguments": self.arguments});
        let mut call = json!({"id": self.id, "type": "function", "function": function});
        if let Some(fault) = self.fault {
            call["fault"] = json!(fault);
        }
        call
    }
}

/// A reply whose parts were put together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyMessage {
    /// The text for the user.
    pub content: String,
    /// The text of the model for itself.
    pub thinking: String,
    /// The calls of tools.
    pub calls: Vec<ToolCall>,
}

impl ReplyMessage {
    /// Adds the next part.
    pub fn push(&mut self, part: &ReplyPart) {
        match part {
            ReplyPart::Content(text) => self.content.push_str(text),
            ReplyPart::Thinking(text) => self.thinking.push_str(text),
            ReplyPart::CallBegin { id, name } => {
                self.calls.push(ToolCall { id: id.clone(), name: name.clone(), ..ToolCall::default() });
            }
            ReplyPart::Arguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(text);
                }
            }
            ReplyPart::CallEnd { fault } => {
                if let Some(call) = self.calls.last_mut() {
                    call.fault = *fault;
                }
            }
        }
    }
}

impl<'a> FromIterator<&'a ReplyPart> for ReplyMessage {
    fn from_iter<I: IntoIterator<Item = &'a ReplyPart>>(parts: I) -> ReplyMessage {
        let mut message = ReplyMessage::default();
        parts.into_iter().for_each(|part| message.push(part));
        message
    }
}

/// The parts that a piece of text completes.
#[derive(Debug, Default)]
pub(super) struct Parts {
    list: Vec<ReplyPart>,
    /// The number of calls that have begun, those of earlier replies included.
    pub calls: u32,
}

impl Parts {
    pub fn take(&mut self) -> Vec<ReplyPart> {
        std::mem::take(&mut self.list)
    }

    pub fn content(&mut self, text: &str) {
        match self.list.last_mut() {
            Some(ReplyPart::Content(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.list.push(ReplyPart::Content(text.to_owned())),
        }
    }

    pub fn thinking(&mut self, text: &str) {
        match self.list.last_mut() {
            Some(ReplyPart::Thinking(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.list.push(ReplyPart::Thinking(text.to_owned())),
        }
    }

    /// Begins a call with the id that the model wrote, or with a generated one.
    pub fn begin(&mut self, name: String, id: Option<String>) {
        let id = id.unwrap_or_else(|| format!("call{:05}", self.calls));
        self.calls = self.calls.wrapping_add(1);
        self.list.push(ReplyPart::CallBegin { id, name });
    }

    pub fn arguments(&mut self, text: &str) {
        match self.list.last_mut() {
            Some(ReplyPart::Arguments(last)) => last.push_str(text),
            _ if text.is_empty() => {}
            _ => self.list.push(ReplyPart::Arguments(text.to_owned())),
        }
    }

    pub fn end(&mut self, fault: Option<&'static str>) {
        self.list.push(ReplyPart::CallEnd { fault });
    }
}
