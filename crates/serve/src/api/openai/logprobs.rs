//! Log-probabilities in OpenAI's forms.

use girih::{Logprob, Logprobs, Model};
use serde::Serialize;
use utoipa::ToSchema;

/// What OpenAI's API writes for a probability of 0, as JSON has no infinity.
const IMPOSSIBLE: f64 = -9999.0;

/// The log-probabilities of a piece of a chat's reply.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct ChoiceLogprobs {
    /// One for each token.
    pub content: Vec<TokenLogprob>,
}

/// A token of the reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenLogprob {
    /// The token.
    #[serde(flatten)]
    pub token: TopLogprob,
    /// The most likely tokens in its place.
    pub top_logprobs: Vec<TopLogprob>,
}

/// A token with its log-probability.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TopLogprob {
    /// Its text; bytes that are no characters are replaced.
    pub token: String,
    /// The natural logarithm of its probability; -9999 stands for minus infinity.
    pub logprob: f64,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

impl TokenLogprob {
    /// The form of a token's log-probabilities.
    pub fn of(logprobs: &Logprobs, model: &Model) -> TokenLogprob {
        TokenLogprob {
            token: TopLogprob::of(&logprobs.chosen, model),
            top_logprobs: logprobs.top.iter().map(|top| TopLogprob::of(top, model)).collect(),
        }
    }
}

impl TopLogprob {
    fn of(logprob: &Logprob, model: &Model) -> TopLogprob {
        let bytes = token_bytes(logprob.id, model);
        let token = String::from_utf8_lossy(&bytes).into_owned();
        TopLogprob { token, logprob: finite(logprob.value), bytes }
    }
}

/// The bytes of a token; none without a tokenizer.
pub fn token_bytes(id: u32, model: &Model) -> Vec<u8> {
    model.text_processor().map(|text| text.tokenizer.token_bytes(id)).unwrap_or_default()
}

/// A log-probability that JSON can write.
pub fn finite(logprob: f64) -> f64 {
    logprob.max(IMPOSSIBLE)
}
