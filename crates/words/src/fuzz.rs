//! The entries of the fuzz targets: vocabularies in GGUF headers, and
//! settings beside a tokenizer.

use girih_file::{Container, ContainerKind};

use crate::limits::Limits;
use crate::open::Words;
use crate::span::Origin;
use crate::stream::Specials;
use crate::tokenizer::{Ends, Tokenizer};

const LIMITS: Limits = Limits::DEFAULT;

/// A text with a special token, a character of three bytes, and digits.
const TEXT: &str = "Once upon a time <s> there were 1234 ▁words.\n\u{0}";

/// Any bytes as a GGUF: refused, or words that keep their promises.
///
/// # Panics
/// If they do not.
pub fn gguf_words(bytes: &[u8]) {
    let Ok(container) = Container::memory(ContainerKind::Gguf, "fuzz", bytes.to_vec(), &LIMITS.file) else {
        return;
    };
    if let Ok(words) = Words::of_gguf(container.metadata(), &LIMITS) {
        check_words(&words.tokenizer);
    }
}

/// Any bytes as a `tokenizer_config.json` beside this `tokenizer.json`.
///
/// # Panics
/// If the tokenizer does not keep its promises.
pub fn tokenizer_config(tokenizer: &[u8], config: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_bytes(tokenizer, config, &LIMITS) {
        check_words(&tokenizer);
    }
}

/// Ids are in the vocabulary, and a stream of them is their text.
fn check_words(tokenizer: &Tokenizer) {
    let Ok(ids) = tokenizer.encode(TEXT, Origin::Template, Ends::Add) else { return };
    assert!(ids.iter().all(|id| tokenizer.token(*id).is_some()));
    let mut stream = tokenizer.detokenizer(Specials::Keep);
    let pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(pieces + &stream.finish(), tokenizer.decode(&ids, Specials::Keep));
}
