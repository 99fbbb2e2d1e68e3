//! Checks a request against the limits, marks it, and builds the worker's job.

use girih_file::quote;
use girih_tensor::{Error, ErrorKind, Result};
use serde_json::{Map, Value, json};

use super::limits::RenderLimits;
use super::mark::{Marks, SpecialTokens};
use super::protocol::RenderJob;

/// The maximum nesting of a message, tool or variable: JSON readers fail at 128
/// levels, and the job adds some.
const MAX_NESTING: usize = 100;

/// Reserved names, which further variables may not have.
const ARGUMENTS: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// The arguments of a chat template, as in transformers' `apply_chat_template`.
/// All of them count as written by the user.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Objects with `role`, `content` and other fields of the template.
    pub messages: Vec<Value>,
    /// JSON schemas of functions.
    pub tools: Option<Vec<Value>>,
    /// Objects with `title` and `text`.
    pub documents: Option<Vec<Value>>,
    /// Whether the prompt ends with the beginning of a reply.
    pub add_generation_prompt: bool,
    /// Whether the reply continues the content of the last message, a text: the prompt ends with it, without what the
    /// template writes after a message. `add_generation_prompt` is then false.
    pub continues_last: bool,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

impl Conversation {
    /// An empty conversation whose prompt ends with the beginning of a reply.
    ///
    /// ```
    /// use girih_words::template::Conversation;
    ///
    /// let conversation = Conversation::new().system("Be brief.").user("Why is the sky blue?");
    /// assert_eq!(conversation.messages.len(), 2);
    /// ```
    pub fn new() -> Conversation {
        Conversation { add_generation_prompt: true, ..Conversation::default() }
    }

    /// Adds a message of the system.
    #[must_use]
    pub fn system(self, text: impl Into<String>) -> Conversation {
        self.message("system", text)
    }

    /// Adds a message of the user.
    #[must_use]
    pub fn user(self, text: impl Into<String>) -> Conversation {
        self.message("user", text)
    }

    /// Adds a reply of the model.
    #[must_use]
    pub fn assistant(self, text: impl Into<String>) -> Conversation {
        self.message("assistant", text)
    }

    /// Adds a message with this role.
    #[must_use]
    pub fn message(mut self, role: &str, text: impl Into<String>) -> Conversation {
        self.messages.push(json!({"role": role, "content": text.into()}));
        self
    }
}

impl Conversation {
    /// The content of the last message, if the reply continues it.
    pub fn continued(&self) -> Option<&str> {
        let last = self.messages.last().filter(|_| self.continues_last)?;
        last.get("content")?.as_str()
    }
}

/// A conversation with the model's template and variables.
#[derive(Clone, Copy, Debug)]
pub struct RenderRequest<'a> {
    /// The source of the template.
    pub template: &'a str,
    /// The model's own variables (`bos_token` and so on), which are trusted.
    pub variables: &'a Map<String, Value>,
    /// Special tokens, which only the template may produce.
    pub special_tokens: &'a SpecialTokens,
    /// The conversation.
    pub conversation: &'a Conversation,
    /// Whether texts are given as parts of the type `text`, which some templates of models that read images need.
    pub has_typed_texts: bool,
    /// The time of `strftime_now`, in seconds since 1970-01-01 00:00. For local
    /// time, as in transformers, add the offset from UTC.
    pub unix_seconds: i64,
}

/// Builds the job for a worker, as JSON. Also returns its marks.
pub fn job<'a>(request: &RenderRequest<'a>, limits: &RenderLimits) -> Result<(Vec<u8>, Marks<'a>)> {
    let bytes = request.template.len();
    if bytes > limits.template_bytes {
        let max = limits.template_bytes;
        return Err(Error::new(format!("the chat template has {bytes} bytes, the maximum is {max}")));
    }
    let given = arguments(request.conversation)?;
    let text = json_text(&given);
    if text.len() > limits.input_bytes {
        let (bytes, max) = (text.len(), limits.input_bytes);
        let sentence = format!("the conversation has {bytes} bytes as JSON, the maximum is {max}");
        return Err(Error::with_kind(ErrorKind::TooLong, sentence));
    }
    let mut marks =
        Marks::new(request.special_tokens, &[request.template, &text, &json_text(request.variables)]);
    let mut variables = request.variables.clone();
    variables.extend(marks.mark_map(&given)?);
    if request.conversation.continues_last {
        mark_end(&mut variables, request.conversation, &mut marks)?;
    }
    if request.has_typed_texts {
        type_texts(&mut variables);
    }
    let job = RenderJob {
        template: request.template.to_owned(),
        variables,
        unix_seconds: request.unix_seconds,
        output_bytes: limits.output_bytes,
    };
    let job = serde_json::to_vec(&job).expect("strings and JSON values always serialize");
    Ok((job, marks))
}

/// Makes parts of the type `text` of the texts of messages.
fn type_texts(variables: &mut Map<String, Value>) {
    let messages = variables.get_mut("messages").and_then(Value::as_array_mut);
    for content in messages.into_iter().flatten().filter_map(|message| message.get_mut("content")) {
        if content.is_string() {
            *content = json!([{"type": "text", "text": content.take()}]);
        }
    }
}

/// Puts the mark of its end behind the content of the last message.
fn mark_end(
    variables: &mut Map<String, Value>,
    conversation: &Conversation,
    marks: &mut Marks<'_>,
) -> Result<()> {
    let last = variables.get_mut("messages").and_then(|messages| messages.as_array_mut()?.last_mut());
    let content = last.and_then(|message| message.get_mut("content"));
    let (Some(Value::String(content)), Some(text)) = (content, conversation.continued()) else {
        let sentence = "the last message has no text as its content, so it cannot be continued";
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    };
    content.push_str(&marks.end_of(text)?);
    Ok(())
}

fn json_text(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).expect("JSON values always serialize")
}

/// All variables of a conversation. Missing ones are `none`, as in transformers.
fn arguments(conversation: &Conversation) -> Result<Map<String, Value>> {
    let list = |values: &Option<Vec<Value>>| values.clone().map_or(Value::Null, Value::Array);
    let mut all = conversation.variables.clone();
    if let Some(name) = ARGUMENTS.iter().find(|&&name| all.contains_key(name)) {
        let sentence = format!("'{name}' is reserved; choose another name for the template variable");
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    all.insert("messages".to_owned(), Value::Array(conversation.messages.clone()));
    all.insert("tools".to_owned(), list(&conversation.tools));
    all.insert("documents".to_owned(), list(&conversation.documents));
    all.insert(
        "add_generation_prompt".to_owned(),
        Value::Bool(conversation.add_generation_prompt && !conversation.continues_last),
    );
    if let Some((name, _)) = all.iter().find(|(_, value)| nests_deeper(value, MAX_NESTING)) {
        let sentence = format!("{} nests deeper than {MAX_NESTING} levels", quote(name));
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    Ok(all)
}

/// Whether lists and objects in a value nest deeper than `levels`.
fn nests_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(_) | Value::Object(_) if levels == 0 => true,
        Value::Array(items) => items.iter().any(|item| nests_deeper(item, levels - 1)),
        Value::Object(map) => map.values().any(|item| nests_deeper(item, levels - 1)),
        _ => false,
    }
}
