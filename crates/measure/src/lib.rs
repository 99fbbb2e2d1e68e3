//! Is it right, and is it fast: a loaded model against goldens made by
//! transformers, layer by layer and token by token; its times, and the work that
//! it cannot do without. It compares and reports; it computes nothing that a
//! user would call inference, and never prints.
#![forbid(unsafe_code)]

mod bound;
mod gate;
mod golden;
mod hidden;
mod layers;
mod perplexity;
mod profile;
pub mod record;
mod speed;
mod work;

pub use bound::{Bound, Depth, Precision};
pub use gate::{Divergence, PromptVerdict, Verdict, verify};
pub use girih_tensor::{Error, Result};
pub use golden::{Golden, Prompt, Reference, Sizes};
pub use hidden::Hidden;
pub use layers::{LayerRow, diagnose, diagnose_against};
pub use perplexity::{Perplexity, perplexity};
pub use profile::{Amounts, Profile, ProfileRow, profile};
pub use speed::{Case, Spread, Times, first_token, random_tokens, speed};
pub use work::{Rows, Work};
