//! What a reply continues.

use girih_words::template::Conversation;

/// What a reply continues.
///
/// ```
/// use girih::{Conversation, Prompt};
///
/// let text: Prompt = "Once upon a time".into();
/// let chat: Prompt = Conversation::new().user("Tell me a story.").into();
/// let tokens: Prompt = vec![1, 403, 407].into();
/// ```
#[derive(Clone, Debug)]
pub enum Prompt {
    /// A text; special tokens that it spells stay text.
    Text(String),
    /// A conversation, which the model's chat template writes.
    Conversation(Conversation),
    /// Token ids, with all special tokens.
    Tokens(Vec<u32>),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Prompt {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Prompt {
        Prompt::Text(text)
    }
}

impl From<Conversation> for Prompt {
    fn from(conversation: Conversation) -> Prompt {
        Prompt::Conversation(conversation)
    }
}

impl From<&Conversation> for Prompt {
    fn from(conversation: &Conversation) -> Prompt {
        Prompt::Conversation(conversation.clone())
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(tokens: Vec<u32>) -> Prompt {
        Prompt::Tokens(tokens)
    }
}
