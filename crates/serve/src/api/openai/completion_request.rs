//! The body of `/v1/completions`, and what it asks for.

use girih::Prompt;
use serde::Deserialize;
use utoipa::ToSchema;

use super::parameters::{request_body, token_limit};
use crate::api::reply_form::check_logprobs;
use crate::error::ApiError;
use crate::generation::GenerationRequest;

/// The maximum number of prompts.
const MAX_PROMPTS: usize = 64;

/// The maximum number of tokens of a reply by default, as in OpenAI's API.
const DEFAULT_MAX_TOKENS: u32 = 16;

request_body! {
    /// The body of `/v1/completions`.
    CompletionRequest {
        /// What is continued: a text, tokens, or a list of at most 64 texts or lists of tokens.
        prompt: PromptBody,
        /// Whether the reply begins with the prompt.
        echo: Option<bool>,
        /// Of how many most likely tokens the log-probabilities are given, at most 20.
        #[schema(maximum = 20)]
        logprobs: Option<u32>,
        /// Must be `n` or absent: no reply is thrown away.
        best_of: Option<u32>,
        /// The text that follows the reply, for models whose vocabulary has tokens for it. Not with `echo`.
        suffix: Option<String>,
    }
}

/// What is continued.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "must be a string, an array of strings, an array of tokens, or an array of arrays of tokens"
)]
pub enum PromptBody {
    /// A text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// The tokens of a prompt.
    Tokens(Vec<u32>),
    /// The tokens of several prompts.
    TokenLists(Vec<Vec<u32>>),
}

impl Default for PromptBody {
    fn default() -> PromptBody {
        PromptBody::Text(String::new())
    }
}

impl PromptBody {
    fn prompts(&self) -> Vec<Prompt> {
        match self {
            PromptBody::Text(text) => vec![Prompt::Text(text.clone())],
            PromptBody::Texts(texts) => texts.iter().cloned().map(Prompt::Text).collect(),
            PromptBody::Tokens(tokens) => vec![Prompt::Tokens(tokens.clone())],
            PromptBody::TokenLists(lists) => lists.iter().cloned().map(Prompt::Tokens).collect(),
        }
    }
}

impl CompletionRequest {
    /// What the body asks for.
    ///
    /// # Errors
    /// When a parameter is outside its range or not supported.
    pub fn checked(&self) -> Result<GenerationRequest, ApiError> {
        let shared = self.generation()?;
        let prompts = self.prompt.prompts();
        let count = prompts.len();
        if count == 0 || count > MAX_PROMPTS {
            let message = format!("there are {count} prompts; there must be 1 to {MAX_PROMPTS}");
            return Err(ApiError::invalid("prompt", message));
        }
        if self.suffix.is_some() && self.echoes() {
            return Err(ApiError::invalid("suffix", "suffix and echo are both set; omit one of them"));
        }
        if self.best_of.is_some_and(|best_of| best_of != 1 && best_of != shared.count) {
            let message = format!("best_of is not n ({}), which is not supported; omit it", shared.count);
            return Err(ApiError::unsupported("best_of", message));
        }
        let logprobs = self.logprobs.map(|count| check_logprobs("logprobs", count)).transpose()?;
        let prompt_logprobs = logprobs.filter(|_| self.echoes());
        let least = if prompt_logprobs.is_none() { 1 } else { 0 };
        let max_tokens = token_limit("max_tokens", self.max_tokens, least)?;
        let max_tokens = Some(max_tokens.unwrap_or(DEFAULT_MAX_TOKENS));
        Ok(GenerationRequest {
            prompts,
            max_tokens,
            logprobs,
            prompt_logprobs,
            suffix: self.suffix.clone(),
            ..shared
        })
    }

    /// Whether the reply begins with the prompt.
    pub fn echoes(&self) -> bool {
        self.echo.unwrap_or(false)
    }
}
