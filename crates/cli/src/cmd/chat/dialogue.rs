//! The messages of a chat: a system message, then messages of the user and replies.

use girih::{ImagePatches, ReplyMessage, ToolCall};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use girih_file::{quote, shorten};

use crate::request::user_message;

/// The maximum number of messages that are loaded.
const MAX_MESSAGES: usize = 100_000;

/// The messages of one conversation.
#[derive(Clone, Debug, Default)]
pub struct Dialogue {
    messages: Vec<Value>,
    /// The images of all messages, in order.
    images: Vec<ImagePatches>,
}

/// A saved conversation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedDialogue {
    messages: Vec<SavedMessage>,
}

/// A message as a chat template takes it, with the calls of a reply.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SavedMessage {
    role: String,
    content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
}

impl Dialogue {
    /// A new conversation.
    pub fn new(system: Option<&str>) -> Dialogue {
        let messages = system.map(|text| json!({"role": "system", "content": text}));
        Dialogue { messages: messages.into_iter().collect(), images: Vec::new() }
    }

    /// All messages, as a chat template takes them.
    pub fn messages(&self) -> &[Value] {
        &self.messages
    }

    /// The system message.
    pub fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|message| message["role"] == "system")?;
        first["content"].as_str()
    }

    /// The images of all messages, in order.
    pub fn images(&self) -> &[ImagePatches] {
        &self.images
    }

    /// Adds a message of the user, with images before its text.
    pub fn ask(&mut self, text: &str, images: Vec<ImagePatches>) {
        self.messages.push(user_message(text, &images));
        self.images.extend(images);
    }

    /// Adds a reply: its content, and its calls of tools but those whose arguments are no JSON object,
    /// which no template can write.
    pub fn answer(&mut self, reply: &ReplyMessage) {
        let tool_calls = reply.calls.iter().filter_map(template_call).collect();
        let (role, content) = ("assistant".to_owned(), reply.content.clone());
        self.messages.push(json!(SavedMessage { role, content, tool_calls }));
    }

    /// Removes the last message of the user and what follows it; returns its text.
    pub fn undo(&mut self) -> Option<String> {
        let question = self.messages.iter().rposition(|message| message["role"] == "user")?;
        let (text, images) = match &self.messages[question]["content"] {
            Value::Array(parts) => (parts.last().map_or(&Value::Null, |part| &part["text"]), parts.len() - 1),
            content => (content, 0),
        };
        let text = text.as_str().unwrap_or_default().to_owned();
        self.messages.truncate(question);
        self.images.truncate(self.images.len() - images);
        Some(text)
    }

    /// The conversation up to the last message of the user, for another reply to it.
    pub fn up_to_question(&self) -> Option<Dialogue> {
        let question = self.messages.iter().rposition(|message| message["role"] == "user")?;
        Some(Dialogue { messages: self.messages[..=question].to_vec(), images: self.images.clone() })
    }

    /// The conversation as the text of a file.
    pub fn saved(&self) -> String {
        let text = serde_json::to_string_pretty(&json!({"messages": self.messages}));
        text.expect("JSON values always serialize") + "\n"
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// A clause that says what is wrong.
    pub fn load(text: &str) -> Result<Dialogue, String> {
        let saved: SavedDialogue = serde_json::from_str(text)
            .map_err(|error| format!("is not a saved conversation: {}", shorten(error)))?;
        if saved.messages.len() > MAX_MESSAGES {
            return Err(format!("has {} messages; the maximum is {MAX_MESSAGES}", saved.messages.len()));
        }
        let roles = ["system", "user", "assistant"];
        for (index, message) in saved.messages.iter().enumerate() {
            if !roles.contains(&message.role.as_str()) {
                let role = quote(&message.role);
                return Err(format!(
                    "message {} has the role {role}; known are system, user, assistant",
                    index + 1
                ));
            }
        }
        let messages = saved.messages.into_iter().map(|message| json!(message)).collect();
        Ok(Dialogue { messages, images: Vec::new() })
    }
}

/// A call as chat templates take it: its arguments are an object, not the text of one.
fn template_call(call: &ToolCall) -> Option<Value> {
    let arguments: Map<String, Value> = serde_json::from_str(&call.arguments).ok()?;
    let mut json = call.json();
    json["function"]["arguments"] = Value::Object(arguments);
    Some(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_conversation_is_the_same_when_it_is_loaded() {
        let mut dialogue = Dialogue::new(Some("Be brief."));
        dialogue.ask("Why?\n\u{1b}", Vec::new());
        let call = |arguments: &str| ToolCall {
            id: "1".into(),
            name: "f".into(),
            arguments: arguments.into(),
            fault: None,
        };
        let calls = vec![call("{\"a\": 1}"), call("{")];
        dialogue.answer(&ReplyMessage { content: " Because.".into(), calls, ..ReplyMessage::default() });
        let function = json!({"name": "f", "arguments": {"a": 1}});
        let kept = json!([{"id": "1", "type": "function", "function": function}]);
        assert_eq!(dialogue.messages()[2]["tool_calls"], kept);
        assert_eq!(dialogue.messages()[1].as_object().map(|message| message.len()), Some(2));
        assert_eq!(Dialogue::load(&dialogue.saved()).unwrap().messages(), dialogue.messages());
        assert_eq!(dialogue.system(), Some("Be brief."));
        assert_eq!(dialogue.up_to_question().map(|dialogue| dialogue.messages().len()), Some(2));
        assert_eq!(dialogue.undo().as_deref(), Some("Why?\n\u{1b}"));
        assert_eq!((dialogue.undo(), dialogue.messages().len()), (None, 1));
    }

    #[test]
    fn a_removed_message_takes_its_images_with_it() {
        let image = |value| ImagePatches::new(vec![value]);
        let mut dialogue = Dialogue::new(None);
        dialogue.ask("one", vec![image(1.0)]);
        dialogue.ask("two", vec![image(2.0), image(3.0)]);
        let parts = json!([{"type": "image"}, {"type": "image"}, {"type": "text", "text": "two"}]);
        assert_eq!(dialogue.messages()[1]["content"], parts);
        assert_eq!(dialogue.undo().as_deref(), Some("two"));
        assert_eq!((dialogue.messages().len(), dialogue.images()[0].values()), (1, &[1.0][..]));
        assert_eq!(dialogue.images().len(), 1);
    }

    #[test]
    fn what_is_no_conversation_is_refused() {
        let refusal = |text: &str| Dialogue::load(text).unwrap_err();
        assert!(refusal("[]").starts_with("is not a saved conversation: "));
        assert!(refusal(r#"{"messages":[{"role":"user"}]}"#).contains("missing field `content`"));
        assert!(refusal(r#"{"messages":[{"role":"user","content":["a"]}]}"#).contains("expected a string"));
        let role = refusal(r#"{"messages":[{"role":"tool","content":""}]}"#);
        assert_eq!(role, "message 1 has the role 'tool'; known are system, user, assistant");
    }
}
