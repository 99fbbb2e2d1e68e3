//! Is it right: a loaded model against goldens made by transformers, layer by
//! layer and token by token. It compares and reports; it computes nothing that
//! a user would call inference, and never prints.
#![forbid(unsafe_code)]

mod bound;
mod gate;
mod golden;
mod hidden;
mod layers;
mod perplexity;

pub use bound::{Bound, Precision};
pub use gate::{Divergence, PromptVerdict, Verdict, verify};
pub use girih_tensor::{Error, Result};
pub use golden::{Golden, Prompt, Reference, Sizes};
pub use hidden::Hidden;
pub use layers::{LayerRow, diagnose};
pub use perplexity::{Perplexity, perplexity};
