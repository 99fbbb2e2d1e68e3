//! What is to be rendered, checked against the limits and marked.

use girih_tensor::{Error, Result};
use serde_json::{Map, Value};

use super::limits::RenderLimits;
use super::mark::{Marks, SpecialTokens};
use super::protocol::RenderJob;

/// Nesting of a message, tool or variable: JSON readers stop at 128 levels, of
/// which the job takes some.
const MAX_NESTING: usize = 100;

/// Names that are not free for further variables.
const ARGUMENTS: [&str; 4] = ["messages", "tools", "documents", "add_generation_prompt"];

/// The arguments of a chat template, as in transformers'
/// `apply_chat_template`. All of it is taken for the user's.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Objects with `role`, `content` and what else the template knows.
    pub messages: Vec<Value>,
    /// JSON schemas of functions.
    pub tools: Option<Vec<Value>>,
    /// Objects with `title` and `text`.
    pub documents: Option<Vec<Value>>,
    /// Whether the prompt ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// Further variables, such as `enable_thinking`.
    pub variables: Map<String, Value>,
}

/// A conversation and what the model adds to it.
#[derive(Clone, Copy, Debug)]
pub struct RenderRequest<'a> {
    /// Source of the template.
    pub template: &'a str,
    /// The model's own variables (`bos_token` and so on), which are trusted.
    pub variables: &'a Map<String, Value>,
    /// Spellings that only the template may turn into special tokens.
    pub special_tokens: &'a SpecialTokens,
    /// The conversation.
    pub conversation: &'a Conversation,
    /// What `strftime_now` tells, in seconds since 1970-01-01 00:00 of the
    /// clock to be shown: for local time, as transformers has it, add the
    /// offset from UTC.
    pub unix_seconds: i64,
}

/// The job for a worker, as JSON, and the marks within it.
pub fn job<'a>(request: &RenderRequest<'a>, limits: &RenderLimits) -> Result<(Vec<u8>, Marks<'a>)> {
    let bytes = request.template.len();
    if bytes > limits.template_bytes {
        let most = limits.template_bytes;
        return Err(Error::new(format!("the chat template has {bytes} bytes, the most is {most}")));
    }
    let given = arguments(request.conversation)?;
    let text = json(&given);
    if text.len() > limits.input_bytes {
        let (bytes, most) = (text.len(), limits.input_bytes);
        return Err(Error::new(format!("the conversation has {bytes} bytes as JSON, the most is {most}")));
    }
    let mut marks = Marks::new(request.special_tokens, &[request.template, &text, &json(request.variables)]);
    let mut variables = request.variables.clone();
    variables.extend(marks.mark_map(&given)?);
    let job = RenderJob {
        template: request.template.to_owned(),
        variables,
        unix_seconds: request.unix_seconds,
        output_bytes: limits.output_bytes,
    };
    let job = serde_json::to_vec(&job).expect("strings and JSON values always serialize");
    Ok((job, marks))
}

fn json(map: &Map<String, Value>) -> String {
    serde_json::to_string(map).expect("JSON values always serialize")
}

/// All variables of a conversation. Those not given are there as `none`, as in
/// transformers.
fn arguments(conversation: &Conversation) -> Result<Map<String, Value>> {
    let list = |values: &Option<Vec<Value>>| values.clone().map_or(Value::Null, Value::Array);
    let mut all = conversation.variables.clone();
    if let Some(name) = ARGUMENTS.iter().find(|&&name| all.contains_key(name)) {
        return Err(Error::new(format!("'{name}' is not free as the name of a template variable")));
    }
    all.insert("messages".to_owned(), Value::Array(conversation.messages.clone()));
    all.insert("tools".to_owned(), list(&conversation.tools));
    all.insert("documents".to_owned(), list(&conversation.documents));
    all.insert("add_generation_prompt".to_owned(), Value::Bool(conversation.add_generation_prompt));
    if let Some((name, _)) = all.iter().find(|(_, value)| nests_deeper(value, MAX_NESTING)) {
        return Err(Error::new(format!("'{name}' nests deeper than {MAX_NESTING} levels")));
    }
    Ok(all)
}

/// Whether a value has more than `levels` levels of lists and objects.
fn nests_deeper(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(_) | Value::Object(_) if levels == 0 => true,
        Value::Array(items) => items.iter().any(|item| nests_deeper(item, levels - 1)),
        Value::Object(map) => map.values().any(|item| nests_deeper(item, levels - 1)),
        _ => false,
    }
}
