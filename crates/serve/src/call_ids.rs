//! Ids of calls of tools, which differ between conversations and between the replies to one.

use girih::{Prompt, ReplyPart};
use sha2::{Digest, Sha256};

/// The letters of an id. Chat templates of Mistral take ids of nine of these only.
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The number of letters of an id.
const ID_LETTERS: usize = 9;

/// The ids of the calls of one reply. They follow from the request, so that the same request has the same ids.
#[derive(Clone, Debug, Default)]
pub struct CallIds {
    /// `None` if the reply calls no tools.
    digest: Option<[u8; 32]>,
}

impl CallIds {
    /// The ids of the reply of this number to a prompt.
    pub fn of(prompt: &Prompt, number: u32) -> CallIds {
        let Prompt::Conversation(conversation) = prompt else { return CallIds::default() };
        let Some(tools) = &conversation.tools else { return CallIds::default() };
        let mut hasher = Sha256::new();
        for value in conversation.messages.iter().chain(tools) {
            hasher.update(value.to_string());
            hasher.update([0]);
        }
        hasher.update(number.to_le_bytes());
        CallIds { digest: Some(hasher.finalize().into()) }
    }

    /// Replaces the ids that count the calls of a reply. Those that the model wrote stay.
    pub fn replace(&self, parts: &mut [ReplyPart]) {
        let Some(digest) = &self.digest else { return };
        for part in parts {
            if let ReplyPart::CallBegin { id, .. } = part
                && is_count(id)
            {
                *id = letters(digest, id);
            }
        }
    }
}

/// Whether an id counts calls, such as `call00000`.
fn is_count(id: &str) -> bool {
    let digits = id.strip_prefix("call").unwrap_or_default();
    digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn letters(digest: &[u8; 32], id: &str) -> String {
    let hash = Sha256::new().chain_update(digest).chain_update(id).finalize();
    let mut rest = hash.iter().take(8).fold(0_u64, |value, byte| (value << 8) | u64::from(*byte));
    let mut next = || {
        let letter = LETTERS[(rest % LETTERS.len() as u64) as usize];
        rest /= LETTERS.len() as u64;
        char::from(letter)
    };
    (0..ID_LETTERS).map(|_| next()).collect()
}

#[cfg(test)]
mod tests {
    use girih::Conversation;
    use serde_json::json;

    use super::*;

    fn id(text: &str, number: u32, id: &str) -> String {
        let conversation = Conversation { tools: Some(vec![json!({})]), ..Conversation::new().user(text) };
        let mut parts = [ReplyPart::CallBegin { id: id.to_owned(), name: "look".to_owned() }];
        CallIds::of(&Prompt::Conversation(conversation), number).replace(&mut parts);
        let [ReplyPart::CallBegin { id, .. }] = parts else { panic!("it was a call") };
        id
    }

    #[test]
    fn ids_differ_between_conversations_replies_and_calls_and_are_reproducible() {
        let first = id("Is it day?", 0, "call00000");
        assert!(first.len() == 9 && first.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{first}");
        assert_eq!(id("Is it day?", 0, "call00000"), first);
        for other in [
            id("Is it night?", 0, "call00000"),
            id("Is it day?", 1, "call00000"),
            id("Is it day?", 0, "call00001"),
        ] {
            assert_ne!(other, first);
        }
        assert_eq!(id("Is it day?", 0, "functions.look:0"), "functions.look:0");
    }
}
