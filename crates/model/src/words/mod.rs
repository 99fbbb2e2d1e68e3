//! Words: text to token ids and back.

mod added;
mod bpe;
mod byte_level;
mod folder;
mod gguf_vocab;
mod library;
mod normalize;
mod parts;
mod pattern;
mod span;
mod split;
mod spm;
mod stream;
mod tokenizer;
mod tokenizer_json;

pub use gguf_vocab::GgufVocab;
pub use parts::Named;
pub use span::{Origin, Span};
pub use stream::{Detokenizer, Specials};
pub use tokenizer::{Ends, TEXT_BYTES_MAX, Tokenizer};
