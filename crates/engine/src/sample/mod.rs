//! Sampling: small functions over one slice of logits, applied in the order of
//! [`SAMPLERS`], then a draw from the tokens that they leave.
//!
//! A token is ruled out by setting its logit to −∞, and is never restored. The order
//! is that of Hugging Face transformers (`GenerationMixin`: bias and penalties, then
//! temperature, top-k, top-p, min-p, typical-p), because a model's `generation_config.json` is
//! written for it and `verify` compares with it. Samplers that transformers lacks: the penalties
//! of the OpenAI API and DRY come after the repetition penalty; top-nσ comes before the
//! temperature, which does not change it; XTC is the last filter, as in llama.cpp, so that it
//! excludes only tokens that the others leave; Mirostat follows, as it must see the distribution
//! that the token is drawn from. llama.cpp applies the temperature last, so its top-p and min-p
//! see the distribution before it; at a temperature of 1 both orders agree.
//!
//! Equal logits rank by id, the lowest first. Sums are computed in `f64` in order of
//! id, so that results do not depend on how a slice was computed.

mod bias;
mod draw;
mod dry;
mod history;
mod logits;
mod logprobs;
mod mirostat;
mod penalty;
mod pick;
mod picks;
mod sigma;
mod temperature;
mod top;
mod typical;
mod xtc;

pub use bias::bias;
pub use draw::{draw, uniform};
pub use dry::dry;
pub use history::History;
pub use logprobs::{Logprob, Logprobs, logprobs};
pub use mirostat::SamplerState;
pub use penalty::{frequency, presence, repetition};
pub use pick::{SAMPLERS, Sampler, pick, pick_allowed, pick_next};
pub(crate) use pick::{has_nan, refuse_nan};
pub use picks::{PickQuery, pick_from};
pub use sigma::top_n_sigma;
pub use temperature::{argmax, argmax_allowed, dynamic_temperature, greedy, temperature};
pub use top::{min_p, top_k, top_p};
pub use typical::typical_p;
pub use xtc::xtc;
