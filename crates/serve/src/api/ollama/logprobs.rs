//! Log-probabilities in Ollama's form.

use girih::{Logprob, Logprobs, Model};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::token_text::{finite, token_bytes};

/// A token of the reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OllamaLogprobs {
    /// The token.
    #[serde(flatten)]
    token: OllamaLogprob,
    /// The most likely tokens in its place.
    top_logprobs: Vec<OllamaLogprob>,
}

/// A token with its log-probability.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OllamaLogprob {
    /// Its text; bytes that are no characters are replaced.
    token: String,
    /// The natural logarithm of its probability; -9999 stands for minus infinity.
    logprob: f64,
    /// Its bytes.
    bytes: Vec<u8>,
}

impl OllamaLogprobs {
    /// The form of a token's log-probabilities.
    pub fn of(logprobs: &Logprobs, model: &Model) -> OllamaLogprobs {
        OllamaLogprobs {
            token: OllamaLogprob::of(&logprobs.chosen, model),
            top_logprobs: logprobs.top.iter().map(|top| OllamaLogprob::of(top, model)).collect(),
        }
    }
}

impl OllamaLogprob {
    fn of(logprob: &Logprob, model: &Model) -> OllamaLogprob {
        let bytes = token_bytes(logprob.id, model);
        let token = String::from_utf8_lossy(&bytes).into_owned();
        OllamaLogprob { token, logprob: finite(logprob.value), bytes }
    }
}
