//! Log-probabilities in OpenAI's forms.

use girih::{Logprob, Logprobs, Model};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::token_text::{finite, token_bytes};

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
