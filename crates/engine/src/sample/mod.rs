//! Sampling: small functions over one slice of logits, applied in the order of
//! [`SAMPLERS`], then a draw from the tokens that they leave.
//!
//! A token is ruled out by setting its logit to −∞, and is never restored. The order
//! is that of Hugging Face transformers (`GenerationMixin`: bias and penalties, then
//! temperature, top-k, top-p, min-p), because a model's `generation_config.json` is
//! written for it and `verify` compares with it. The penalties of the OpenAI API,
//! which transformers lacks, come after the repetition penalty. llama.cpp applies the
//! temperature last, so its top-p and min-p see the distribution before it; at a
//! temperature of 1 both orders agree.
//!
//! Equal logits rank by id, the lowest first. Sums are computed in `f64` in order of
//! id, so that results do not depend on how a slice was computed.

mod bias;
mod draw;
mod history;
mod logits;
mod logprobs;
mod penalty;
mod pick;
mod picks;
mod temperature;
mod top;

pub use bias::bias;
pub use draw::{draw, uniform};
pub use history::History;
pub use logprobs::{Logprob, Logprobs, logprobs};
pub use penalty::{frequency, presence, repetition};
pub use pick::{SAMPLERS, Sampler, pick, pick_allowed};
pub(crate) use pick::{has_nan, refuse_nan};
pub use picks::{PickQuery, pick_from};
pub use temperature::{argmax, greedy, temperature};
pub use top::{min_p, top_k, top_p};
