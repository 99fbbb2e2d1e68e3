//! The messages of a chat: a system message, then messages of the user and replies.

use serde::Deserialize;
use serde_json::{Value, json};

use girih_file::{quote, shorten};

/// The maximum number of messages that are loaded.
const MAX_MESSAGES: usize = 100_000;

/// The messages of one conversation.
#[derive(Clone, Debug, Default)]
pub struct Dialogue {
    messages: Vec<Value>,
}

/// A saved conversation.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedDialogue {
    messages: Vec<SavedMessage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedMessage {
    role: String,
    content: String,
}

impl Dialogue {
    /// A new conversation.
    pub fn new(system: Option<&str>) -> Dialogue {
        let messages = system.map(|text| json!({"role": "system", "content": text}));
        Dialogue { messages: messages.into_iter().collect() }
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

    /// Adds a message of the user.
    pub fn ask(&mut self, text: &str) {
        self.messages.push(json!({"role": "user", "content": text}));
    }

    /// Adds a reply.
    pub fn answer(&mut self, text: &str) {
        self.messages.push(json!({"role": "assistant", "content": text}));
    }

    /// Removes the last message of the user and what follows it; returns its text.
    pub fn undo(&mut self) -> Option<String> {
        let question = self.messages.iter().rposition(|message| message["role"] == "user")?;
        let text = self.messages[question]["content"].as_str().unwrap_or_default().to_owned();
        self.messages.truncate(question);
        Some(text)
    }

    /// The conversation up to the last message of the user, for another reply to it.
    pub fn up_to_question(&self) -> Option<Dialogue> {
        let question = self.messages.iter().rposition(|message| message["role"] == "user")?;
        Some(Dialogue { messages: self.messages[..=question].to_vec() })
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
        let message = |message: SavedMessage| json!({"role": message.role, "content": message.content});
        Ok(Dialogue { messages: saved.messages.into_iter().map(message).collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_conversation_is_the_same_when_it_is_loaded() {
        let mut dialogue = Dialogue::new(Some("Be brief."));
        dialogue.ask("Why?\n\u{1b}");
        dialogue.answer(" Because.");
        assert_eq!(Dialogue::load(&dialogue.saved()).unwrap().messages(), dialogue.messages());
        assert_eq!(dialogue.system(), Some("Be brief."));
        assert_eq!(dialogue.up_to_question().map(|dialogue| dialogue.messages().len()), Some(2));
        assert_eq!(dialogue.undo().as_deref(), Some("Why?\n\u{1b}"));
        assert_eq!((dialogue.undo(), dialogue.messages().len()), (None, 1));
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
