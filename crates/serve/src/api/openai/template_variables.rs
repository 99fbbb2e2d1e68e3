//! `chat_template_kwargs`: variables of the chat template that a client may set.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The maximum number of variables.
const MAX_VARIABLES: usize = 32;

/// The maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 64;

/// The maximum length of a text in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// Names that chat templates have from elsewhere, besides those that end with `_token`.
const RESERVED: [&str; 8] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "raise_exception",
    "strftime_now",
    "namespace",
    "range",
];

/// The variables, if none of them replaces what the template has from elsewhere.
///
/// # Errors
/// When there are too many, or one has a reserved name or is a list or an object.
pub fn checked_variables(variables: Option<&Map<String, Value>>) -> Result<Map<String, Value>, ApiError> {
    let Some(variables) = variables else { return Ok(Map::new()) };
    let wrong = |message: String| ApiError::invalid("chat_template_kwargs", message);
    let count = variables.len();
    if count > MAX_VARIABLES {
        return Err(wrong(format!(
            "chat_template_kwargs has {count} variables; the maximum is {MAX_VARIABLES}"
        )));
    }
    for (name, value) in variables {
        check(name, value).map_err(|clause| {
            let name: String = name.chars().take(MAX_NAME_BYTES).collect();
            wrong(format!("chat_template_kwargs has {name:?}, which {clause}"))
        })?;
    }
    Ok(variables.clone())
}

fn check(name: &str, value: &Value) -> Result<(), &'static str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_name) {
        return Err("is no name of a variable");
    }
    if RESERVED.contains(&name) || name.ends_with("_token") {
        return Err("is reserved; omit it");
    }
    match value {
        Value::Bool(_) | Value::Number(_) | Value::Null => Ok(()),
        Value::String(text) if text.len() <= MAX_TEXT_BYTES => Ok(()),
        Value::String(_) => Err("is a text of more than 1024 bytes"),
        Value::Array(_) | Value::Object(_) => {
            Err("is a list or an object; allowed are booleans, numbers and strings")
        }
    }
}
