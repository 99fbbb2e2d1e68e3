//! Long texts of one repeated character are encoded in nearly linear time.

use std::path::Path;
use std::time::{Duration, Instant};

use girih_words::TextLimits;
use girih_words::{BosEos, MAX_TEXT_BYTES, Specials, TextOrigin, Tokenizer};

use crate::data;

/// The maximum time for a million bytes. A development build takes less than 2 s
/// on an idle machine; the margin is for a busy one.
const MAX_TIME: Duration = Duration::from_secs(6);
const TEXT_BYTES: usize = 1_000_000;

fn check(name: &str, tokenizer: &Tokenizer) {
    for pattern in ["a", " ", "\n", "叫", "<|eot_id|>"] {
        let text = pattern.repeat(TEXT_BYTES / pattern.len());
        let start = Instant::now();
        let ids = tokenizer.encode(&text, TextOrigin::User, BosEos::Omit).expect("a long text");
        let took = start.elapsed();
        assert!(took < MAX_TIME, "{name}: {pattern:?} took {took:?}");
        assert!(tokenizer.decode(&ids, Specials::Keep) == text, "{name}: {pattern:?}");
    }
}

fn open(folder: &Path) -> Tokenizer {
    Tokenizer::from_folder(folder, &TextLimits::DEFAULT).expect("a real tokenizer")
}

#[test]
fn a_million_equal_characters_are_encoded_in_time() {
    let Some(data) = data::folder() else { return };
    for name in ["llama3_2", "gemma3"] {
        check(name, &open(&data.join("tokenizers").join(name)));
    }
    check("stories260K", &open(&data.join("models/stories260K/hf-f32")));
}

#[test]
fn a_text_over_the_limit_is_refused() {
    let Some(data) = data::folder() else { return };
    let tokenizer = open(&data.join("models/stories260K/hf-f32"));
    let text = "a".repeat(MAX_TEXT_BYTES + 1);
    let error = tokenizer.encode(&text, TextOrigin::User, BosEos::Omit).expect_err("it exceeds the limit");
    assert_eq!(error.to_string(), "the text has 8388609 bytes; the maximum per call is 8388608: split it");
}
