//! Entry points of the fuzz targets: vocabularies in GGUF headers, and
//! `tokenizer_config.json` files.

use std::sync::Arc;

use girih_file::{Container, ContainerKind};

use crate::limits::TextLimits;
use crate::processor::TextProcessor;
use crate::span::TextOrigin;
use crate::stream::Specials;
use crate::tokenizer::{BosEos, Tokenizer};

/// A text with a special token, a character of three bytes, and digits.
const TEXT: &str = "Once upon a time <s> there were 1234 ▁words.\n\u{0}";

/// Reads any bytes as a GGUF file: refused, or a consistent tokenizer.
///
/// # Panics
/// If the tokenizer is inconsistent.
pub fn gguf_tokenizer(bytes: &[u8]) {
    let Ok(container) =
        Container::memory(ContainerKind::Gguf, "fuzz", bytes.to_vec(), &TextLimits::DEFAULT.file)
    else {
        return;
    };
    if let Ok(processor) = TextProcessor::of_gguf(container.metadata(), &TextLimits::DEFAULT) {
        check_tokenizer(&processor.tokenizer);
    }
}

/// Reads any bytes as the `tokenizer_config.json` of this `tokenizer.json`.
///
/// # Panics
/// If the tokenizer is inconsistent.
pub fn tokenizer_config(tokenizer: &[u8], config: &[u8]) {
    if let Ok(tokenizer) = Tokenizer::from_bytes(tokenizer, config, &TextLimits::DEFAULT) {
        check_tokenizer(&Arc::new(tokenizer));
    }
}

/// Checks that all ids are in the vocabulary, and that streaming and whole
/// decoding give the same text.
fn check_tokenizer(tokenizer: &Arc<Tokenizer>) {
    let Ok(ids) = tokenizer.encode(TEXT, TextOrigin::Template, BosEos::Add) else { return };
    assert!(ids.iter().all(|id| tokenizer.token(*id).is_some()));
    let mut stream = tokenizer.detokenizer(Specials::Keep);
    let pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(pieces + &stream.finish(), tokenizer.decode(&ids, Specials::Keep));
}
