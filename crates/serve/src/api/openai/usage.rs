//! The counts of tokens in OpenAI's form.

use serde::Serialize;
use utoipa::ToSchema;

use crate::generation::TokenUsage;

/// The tokens of a request.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct UsageBody {
    /// Tokens of the prompts.
    pub prompt_tokens: u32,
    /// Tokens of the replies.
    pub completion_tokens: u32,
    /// Their sum.
    pub total_tokens: u32,
    /// More about the prompts.
    pub prompt_tokens_details: PromptDetails,
    /// More about the replies.
    pub completion_tokens_details: CompletionDetails,
}

/// More about the tokens of prompts.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct PromptDetails {
    /// Tokens that were in the prefix cache.
    pub cached_tokens: u32,
}

/// More about the tokens of replies.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
pub struct CompletionDetails {
    /// Tokens of thinking.
    pub reasoning_tokens: u32,
}

impl From<TokenUsage> for UsageBody {
    fn from(usage: TokenUsage) -> UsageBody {
        UsageBody {
            prompt_tokens: usage.prompt,
            completion_tokens: usage.reply,
            total_tokens: usage.prompt.saturating_add(usage.reply),
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached },
            completion_tokens_details: CompletionDetails { reasoning_tokens: usage.thinking },
        }
    }
}
