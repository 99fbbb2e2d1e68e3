//! Tokenizers and chat templates: text to token ids and back, and conversations
//! to prompts.
#![forbid(unsafe_code)]

mod added;
mod bert;
mod bpe;
mod byte_level;
mod charsmap;
pub mod confinement;
mod decoding;
mod folder;
#[doc(hidden)]
pub mod fuzz;
mod gguf_export;
mod gguf_vocab;
mod infill;
mod limits;
mod model_json;
mod named_rules;
mod normalize;
mod parts;
mod pattern;
mod processor;
pub mod reply;
mod short;
mod span;
mod split;
mod spm;
mod stream;
mod table;
pub mod template;
mod tokenizer;
mod tokenizer_json;
#[doc(hidden)]
pub mod twins;
mod unigram;
mod wordpiece;

pub use gguf_vocab::GgufVocab;
pub use infill::{InfillFile, InfillPrompt};
pub use limits::TextLimits;
pub use parts::NamedTokens;
pub use processor::TextProcessor;
pub use span::{TextOrigin, TextSpan};
pub use stream::{Detokenizer, Specials};
pub use tokenizer::{BosEos, MAX_TEXT_BYTES, Tokenizer};
