//! The input of `/v1/responses`: from items to the messages that chat templates read.

use std::borrow::Cow;
use std::collections::HashMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::api::openai::messages::{ChatRole, ImageUrl};
use crate::error::ApiError;
use crate::images::{content as template_content, image_of_url, text_part};
use crate::json_body::{from_json_object, read_value};
use crate::thinking::set_thinking;

/// The maximum number of items.
const MAX_ITEMS: usize = 2048;

/// A text, or items. Items are read one by one, so that an error names the item.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of items")]
pub enum ResponsesInput {
    /// The text of a user.
    Text(String),
    /// The items.
    #[schema(value_type = Vec<DescribedItem>)]
    Items(Vec<Value>),
}

/// An item. An item without a type is a message. `id`, `status` and `phase` have no effect.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // OpenAI's words
pub enum InputItem {
    Message {
        role: ChatRole,
        content: ItemContent,
        id: Option<Value>,
        status: Option<Value>,
        phase: Option<Value>,
    },
    /// A call of a tool by the model.
    FunctionCall {
        call_id: String,
        name: String,
        /// A JSON object as text.
        arguments: String,
        id: Option<Value>,
        status: Option<Value>,
    },
    /// What a tool returned.
    FunctionCallOutput { call_id: String, output: ItemContent, id: Option<Value>, status: Option<Value> },
    /// The model's thinking. Its summary and `encrypted_content` have no effect.
    Reasoning {
        content: Option<Vec<ItemPart>>,
        summary: Option<Value>,
        encrypted_content: Option<Value>,
        id: Option<Value>,
        status: Option<Value>,
    },
}

/// The description of [`InputItem`]. What is derived needs a type in each item.
#[allow(dead_code)] // only described
pub struct DescribedItem;

impl PartialSchema for DescribedItem {
    fn schema() -> RefOr<Schema> {
        let mut schema = InputItem::schema();
        if let RefOr::T(Schema::OneOf(items)) = &mut schema
            && let Some(RefOr::T(Schema::Object(message))) = items.items.first_mut()
        {
            message.required.retain(|name| name != "type");
        }
        schema
    }
}

impl ToSchema for DescribedItem {
    fn name() -> Cow<'static, str> {
        InputItem::name()
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        InputItem::schemas(schemas);
    }
}

/// A text, or parts of one.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "must be a string or an array of parts")]
pub enum ItemContent {
    /// The text.
    Text(String),
    /// Parts, which are joined by newlines; those of the assistant without.
    Parts(Vec<ItemPart>),
}

/// A part of a text.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(remote = "Self")]
pub struct ItemPart {
    /// `input_text`, `output_text`, `reasoning_text`, or `input_image` of the user; other types are refused.
    #[serde(rename = "type")]
    pub kind: String,
    /// The text.
    pub text: Option<String>,
    /// The image.
    pub image_url: Option<ImageUrl>,
}

/// The messages as chat templates read them.
///
/// # Errors
/// When there are none or too many, or one has a form that is not known.
pub fn template_messages(instructions: Option<&str>, input: &ResponsesInput) -> Result<Vec<Value>, ApiError> {
    let mut writer = ItemWriter::default();
    if let Some(instructions) = instructions {
        writer.messages.push(json!({"role": "system", "content": instructions}));
    }
    match input {
        ResponsesInput::Text(text) => writer.messages.push(json!({"role": "user", "content": text})),
        ResponsesInput::Items(items) => {
            let count = items.len();
            if count == 0 || count > MAX_ITEMS {
                let message = format!("input has {count} items; it must have 1 to {MAX_ITEMS}");
                return Err(ApiError::invalid("input", message));
            }
            for (index, item) in items.iter().enumerate() {
                writer.add(&format!("input[{index}]"), item)?;
            }
        }
    }
    Ok(writer.messages)
}

/// Writes messages as chat templates read them: thinking, text and calls that follow each other are
/// one message of the assistant.
#[derive(Default)]
struct ItemWriter {
    messages: Vec<Value>,
    /// The names of tools that were called, by the calls' ids.
    called: HashMap<String, String>,
}

fn read_item(param: &str, item: &Value) -> Result<InputItem, ApiError> {
    const KNOWN: [&str; 4] = ["message", "function_call", "function_call_output", "reasoning"];
    match item.get("type").and_then(Value::as_str) {
        Some(kind) if KNOWN.contains(&kind) => read_value(param, item),
        Some(kind) => {
            let kind: String = kind.chars().take(50).collect();
            let known = KNOWN.join(", ");
            let message = format!("{param} has the type {kind:?}, which is not supported; known are {known}");
            Err(ApiError::unsupported(param, message))
        }
        None => {
            let mut message = item.clone();
            if let Value::Object(fields) = &mut message {
                fields.entry("type").or_insert_with(|| "message".into());
            }
            read_value(param, &message)
        }
    }
}

impl ItemWriter {
    fn add(&mut self, param: &str, item: &Value) -> Result<(), ApiError> {
        match read_item(param, item)? {
            InputItem::Message { role: ChatRole::Assistant, content, .. } => {
                let text = content.text(&format!("{param}.content"), "")?;
                match &mut self.assistant()["content"] {
                    Value::String(content) => content.push_str(&text),
                    content => *content = text.into(),
                }
            }
            InputItem::Message { role, content, .. } => {
                let role = match role {
                    // Templates know no developer, or treat it as the system.
                    ChatRole::System | ChatRole::Developer => "system",
                    ChatRole::User => "user",
                    ChatRole::Assistant | ChatRole::Tool | ChatRole::Function => {
                        let message = format!("{param}.role must be user, assistant, system or developer");
                        return Err(ApiError::invalid(format!("{param}.role"), message));
                    }
                };
                let content = match role {
                    "user" => content.of_user(&format!("{param}.content"))?,
                    _ => content.text(&format!("{param}.content"), "\n")?.into(),
                };
                self.messages.push(json!({"role": role, "content": content}));
            }
            InputItem::FunctionCall { call_id, name, arguments, .. } => {
                self.add_call(param, call_id, name, &arguments)?;
            }
            InputItem::FunctionCallOutput { call_id, output, .. } => {
                let text = output.text(&format!("{param}.output"), "\n")?;
                self.add_output(param, &call_id, &text)?;
            }
            InputItem::Reasoning { content, .. } => {
                let content = ItemContent::Parts(content.unwrap_or_default());
                let text = content.text(&format!("{param}.content"), "")?;
                if !text.is_empty() {
                    set_thinking(self.assistant(), &text);
                }
            }
        }
        Ok(())
    }

    /// The message of the assistant that is last, or a new one.
    fn assistant(&mut self) -> &mut Value {
        if self.messages.last().is_none_or(|last| last["role"] != "assistant") {
            self.messages.push(json!({"role": "assistant", "content": ""}));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }

    fn add_call(&mut self, param: &str, id: String, name: String, text: &str) -> Result<(), ApiError> {
        let text = if text.trim().is_empty() { "{}" } else { text };
        let Ok(arguments) = serde_json::from_str::<Map<String, Value>>(text) else {
            let message = format!("{param}.arguments is not the text of a JSON object");
            return Err(ApiError::invalid(param, message));
        };
        let function = json!({"name": name, "arguments": arguments});
        let call = json!({"type": "function", "id": id, "function": function});
        self.called.insert(id, name);
        let message = self.assistant();
        match message.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => message["tool_calls"] = json!([call]),
        }
        Ok(())
    }

    fn add_output(&mut self, param: &str, id: &str, text: &str) -> Result<(), ApiError> {
        let Some(name) = self.called.get(id) else {
            let message = format!("{param}.call_id names no function_call before it");
            return Err(ApiError::invalid(param, message));
        };
        self.messages.push(json!({"role": "tool", "tool_call_id": id, "name": name, "content": text}));
        Ok(())
    }
}

impl ItemContent {
    /// The content of a message of the user as chat templates read it: a text, or parts if there are images.
    fn of_user(&self, param: &str) -> Result<Value, ApiError> {
        let ItemContent::Parts(parts) = self else { return Ok(self.text(param, "\n")?.into()) };
        let part = |(number, part): (usize, &ItemPart)| {
            let param = format!("{param}[{number}]");
            match (part.kind.as_str(), &part.image_url) {
                ("input_image", Some(image)) => image_of_url(&param, image.url()),
                ("input_image", None) => {
                    let message = format!("{param} has no image_url; send the image as a data URL");
                    Err(ApiError::invalid(&param, message))
                }
                _ => Ok(text_part(part.text(&param)?)),
            }
        };
        let parts: Result<Vec<Value>, ApiError> = parts.iter().enumerate().map(part).collect();
        Ok(template_content(parts?))
    }

    fn text(&self, param: &str, separator: &str) -> Result<String, ApiError> {
        let parts = match self {
            ItemContent::Text(text) => return Ok(text.clone()),
            ItemContent::Parts(parts) => parts,
        };
        let parts = parts.iter().enumerate();
        let texts: Result<Vec<&str>, ApiError> =
            parts.map(|(number, part)| part.text(&format!("{param}[{number}]"))).collect();
        Ok(texts?.join(separator))
    }
}

impl ItemPart {
    fn text(&self, param: &str) -> Result<&str, ApiError> {
        match (self.kind.as_str(), &self.text) {
            ("input_text" | "output_text" | "reasoning_text", Some(text)) => Ok(text),
            ("input_text" | "output_text" | "reasoning_text", None) => {
                Err(ApiError::invalid(param, format!("{param} has no text")))
            }
            (kind, _) => {
                let kind: String = kind.chars().take(50).collect();
                let message = format!(
                    "{param} has the type {kind:?}; only text, and images of the user, are supported"
                );
                Err(ApiError::unsupported(param, message))
            }
        }
    }
}

from_json_object!(InputItem, ItemPart);

#[cfg(test)]
mod tests {
    use super::*;

    fn written(items: Value) -> Result<Value, String> {
        let input: ResponsesInput = serde_json::from_value(items).unwrap();
        template_messages(Some("Be brief."), &input).map(Value::Array).map_err(|error| error.message)
    }

    #[test]
    fn items_of_one_reply_become_one_message() {
        let items = json!([
            {"role": "user", "content": [{"type": "input_text", "text": "Is it"}, {"type": "input_text", "text": "day?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [],
                "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{\"up\":true}"},
            {"type": "function_call", "call_id": "c2", "name": "see", "arguments": ""},
            {"type": "function_call_output", "call_id": "c1", "output": "day"},
        ]);
        let expected = json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Is it\nday?"},
            {"role": "assistant", "content": "I look.", "reasoning_content": "hm", "thinking": "hm", "tool_calls": [
                {"type": "function", "id": "c1", "function": {"name": "look", "arguments": {"up": true}}},
                {"type": "function", "id": "c2", "function": {"name": "see", "arguments": {}}},
            ]},
            {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "day"},
        ]);
        assert_eq!(written(items), Ok(expected));
    }

    #[test]
    fn only_a_message_needs_no_type() {
        let schema = serde_json::to_value(DescribedItem::schema()).unwrap();
        let items = schema["oneOf"].as_array().unwrap().iter();
        let described =
            items.map(|item| (&item["properties"]["type"]["enum"][0], item["required"].to_string()));
        let needs: Vec<(&Value, bool)> =
            described.map(|(kind, required)| (kind, required.contains("\"type\""))).collect();
        let expected = [
            (&json!("message"), false),
            (&json!("function_call"), true),
            (&json!("function_call_output"), true),
            (&json!("reasoning"), true),
        ];
        assert_eq!(needs, expected);
    }

    #[test]
    fn other_items_are_refused_by_name() {
        let of = |item: Value| written(json!([item])).unwrap_err();
        assert!(of(json!({"type": "item_reference", "id": "a"})).contains("\"item_reference\""));
        let sound = json!({"role": "user", "content": [{"type": "input_audio", "data": "a"}]});
        assert!(of(sound).starts_with("input[0].content[0] has the type \"input_audio\""));
        let output = json!({"type": "function_call_output", "call_id": "c9", "output": "a"});
        assert!(of(output).contains("names no function_call"));
        let call = json!({"type": "function_call", "call_id": "c", "name": "n", "arguments": "[]"});
        assert!(of(call).contains("not the text of a JSON object"));
        assert!(of(json!({"role": "user"})).contains("the field content is missing"));
        assert!(of(json!(7)).starts_with("input[0]"));
        assert!(of(json!({"type": {}, "role": "user", "content": "Hi"})).starts_with("input[0]"));
        assert!(written(json!([])).unwrap_err().contains("0 items"));
    }
}
