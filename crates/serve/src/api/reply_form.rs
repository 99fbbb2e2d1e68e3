//! What a reply may be, checked alike in all APIs: its grammar, its tools and its log-probabilities.

use girih::{Grammar, SchemaObjects, Tool, schema_from_api};
use serde_json::Value;

use crate::error::ApiError;

/// The maximum number of log-probabilities of a token.
const MAX_LOGPROBS: u32 = 20;

/// The maximum length of a schema, an expression or a grammar in bytes.
const MAX_GRAMMAR_BYTES: usize = 64 << 10;

/// Checks a number of log-probabilities.
///
/// # Errors
/// When it is outside its range.
pub fn check_logprobs(param: &str, count: u32) -> Result<u32, ApiError> {
    if count <= MAX_LOGPROBS {
        return Ok(count);
    }
    Err(ApiError::invalid(param, format!("{param} is {count}; the maximum is {MAX_LOGPROBS}")))
}

/// The number of most likely tokens that come with their log-probabilities; `None` if `logprobs` does not
/// ask for any.
///
/// # Errors
/// When `top` is outside its range, or was given without `logprobs`.
pub fn top_logprobs(logprobs: Option<bool>, top: Option<u32>) -> Result<Option<u32>, ApiError> {
    match (logprobs.unwrap_or(false), top) {
        (true, top) => check_logprobs("top_logprobs", top.unwrap_or(0)).map(Some),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            let message = "top_logprobs needs logprobs: true; set it, or omit top_logprobs";
            Err(ApiError::invalid("top_logprobs", message))
        }
    }
}

/// Checks the tools of a conversation, as chat templates read them.
///
/// # Errors
/// When there are too many, or one has another form.
pub fn check_tools(tools: &[Value]) -> Result<(), ApiError> {
    Tool::list(tools).map(drop).map_err(|error| ApiError::invalid("tools", error.to_string()))
}

/// A call was asked for, but there are no tools.
pub fn no_tools() -> ApiError {
    let message = "tool_choice asks for a call, but there are no tools; give some, or omit it";
    ApiError::invalid("tool_choice", message)
}

/// A call was asked for, but the reply continues a message.
pub fn continued_call() -> ApiError {
    let message = "tool_choice asks for a call, but the reply continues the last message; omit one of them";
    ApiError::invalid("tool_choice", message)
}

/// The text of a schema, which may also be given as a text, without the annotations of OpenAPI.
pub fn schema_text(schema: &Value, objects: SchemaObjects) -> String {
    let Value::String(text) = schema else { return schema_from_api(schema, objects).to_string() };
    match serde_json::from_str::<Value>(text) {
        Ok(schema) => schema_from_api(&schema, objects).to_string(),
        // The grammar says what is wrong with it.
        Err(_) => text.clone(),
    }
}

/// The grammar of a schema, for a conversation with or without tools.
///
/// # Errors
/// When the schema is too long, or there are tools.
pub fn schema_grammar(
    param: &str,
    schema: &Value,
    objects: SchemaObjects,
    has_tools: bool,
) -> Result<Grammar, ApiError> {
    let grammar = check_grammar(param, Grammar::JsonSchema(schema_text(schema, objects)))?;
    if has_tools { Err(no_room_for_calls(param)) } else { Ok(grammar) }
}

/// A grammar of the whole reply was given together with tools.
pub fn no_room_for_calls(param: &str) -> ApiError {
    let message = format!("{param} leaves no room for calls of tools; set tool_choice to none, or omit it");
    ApiError::unsupported(param, message)
}

/// What the objects of a schema may have beside the properties that it names: nothing if it is strict.
pub fn objects_of(strict: Option<bool>) -> SchemaObjects {
    if strict == Some(true) { SchemaObjects::Closed } else { SchemaObjects::AsWritten }
}

/// Returns the grammar if it is not too long.
///
/// # Errors
/// When its schema, expression, texts or grammar have more than 64 KiB.
pub fn check_grammar(param: &str, grammar: Grammar) -> Result<Grammar, ApiError> {
    let bytes = match &grammar {
        Grammar::JsonSchema(text) | Grammar::Regex(text) | Grammar::Lark(text) | Grammar::Gbnf(text) => {
            text.len()
        }
        Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
        _ => 0,
    };
    if bytes <= MAX_GRAMMAR_BYTES {
        return Ok(grammar);
    }
    Err(ApiError::invalid(param, format!("{param} has {bytes} bytes; the maximum is {MAX_GRAMMAR_BYTES}")))
}
