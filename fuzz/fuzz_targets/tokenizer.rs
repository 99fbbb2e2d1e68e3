//! Parses any bytes as a `tokenizer.json` and a text: an error, or a tokenizer that encodes
//! the text to known ids, which decode to the same text token by token and all at once.
#![no_main]

use std::sync::Arc;

use girih_words::TextLimits;
use girih_words::{BosEos, TextOrigin, Specials, Tokenizer};
use libfuzzer_sys::fuzz_target;

/// The separator between the file and the text.
const SEPARATOR: &[u8] = b"\n\n";

fuzz_target!(|bytes: &[u8]| {
    let cut = bytes.windows(SEPARATOR.len()).position(|pair| pair == SEPARATOR).unwrap_or(bytes.len());
    let (file, text) = bytes.split_at(cut);
    let text = String::from_utf8_lossy(text);
    let Ok(tokenizer) = Tokenizer::from_json(file, &TextLimits::DEFAULT) else { return };
    let Ok(ids) = tokenizer.encode(&text, TextOrigin::User, BosEos::Omit) else { return };
    assert!(ids.iter().all(|id| tokenizer.token(*id).is_some()));
    let tokenizer = Arc::new(tokenizer);
    let mut stream = tokenizer.detokenizer(Specials::Keep);
    let pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
    assert_eq!(pieces + &stream.finish(), tokenizer.decode(&ids, Specials::Keep));
});
