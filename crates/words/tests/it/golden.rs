//! Compares ids and decoded text with the output of the `tokenizers`
//! library.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use girih_words::TextLimits;
use girih_words::{BosEos, Specials, TextOrigin, Tokenizer};
use serde::Deserialize;

use crate::{data, vocab};

#[derive(Deserialize)]
struct Recorded {
    text: String,
    ids: Vec<u32>,
    ids_special: Vec<u32>,
    /// The decoded text; `None` if it equals `text`.
    decode: Option<String>,
}

fn recorded(path: &Path) -> Vec<Recorded> {
    let lines = fs::read_to_string(path).expect("a golden file");
    lines.lines().map(|line| serde_json::from_str(line).expect("a golden line")).collect()
}

fn check(tokenizer: Tokenizer, golden: &Path) {
    let tokenizer = Arc::new(tokenizer);
    let recorded = recorded(golden);
    assert_eq!(recorded.len(), 1138, "{}", golden.display());
    for Recorded { text, ids, ids_special, decode } in &recorded {
        let encode = |ends| tokenizer.encode(text, TextOrigin::Template, ends).expect("a text that encodes");
        assert_eq!(&encode(BosEos::Omit), ids, "{text:?}");
        assert_eq!(&encode(BosEos::Add), ids_special, "{text:?}");
        let want = decode.as_ref().unwrap_or(text);
        assert_eq!(&tokenizer.decode(ids, Specials::Keep), want, "{text:?}");
        // Skipped tokens may be within a text: it can contain them, or words that become `[UNK]`.
        let plain: Vec<u32> = ids.iter().copied().filter(|id| !tokenizer.is_special(*id)).collect();
        let shown = tokenizer.decode(&plain, Specials::Keep);
        assert_eq!(tokenizer.decode(ids_special, Specials::Skip), shown, "{text:?}");
        if plain.len() == ids.len() {
            assert_eq!(&shown, want, "{text:?}");
        }
        let mut stream = tokenizer.detokenizer(Specials::Keep);
        let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id)).collect();
        assert!(
            pieces.iter().all(|piece| !piece.contains('\u{FFFD}')) || want.contains('\u{FFFD}'),
            "{text:?}"
        );
        assert_eq!(pieces.concat() + &stream.finish(), *want, "{text:?}");
    }
}

/// The golden file was made with MiniLM's tokenizer. bert-bge has the same vocabulary.
#[test]
fn minilm_equals_its_golden_file() {
    let Some(data) = data::folder() else { return };
    let golden = data.join("tokenizer-golden/minilm.jsonl");
    check(vocab::open(&data.join("vocab/ggml-vocab-bert-bge.gguf")), &golden);
    let Some(folder) = std::env::var_os("GIRIH_TEST_MINILM") else {
        return eprintln!("skipped: GIRIH_TEST_MINILM is not set");
    };
    check(Tokenizer::from_folder(Path::new(&folder), &TextLimits::DEFAULT).expect("a folder"), &golden);
}

#[test]
fn llama3_2_equals_its_golden_file() {
    let Some(data) = data::folder() else { return };
    let golden = data.join("tokenizer-golden/llama3_2.jsonl");
    for file in ["tokenizer.json", "tokenizer.orig.json"] {
        let bytes = fs::read(data.join("tokenizers/llama3_2").join(file)).expect("the tokenizer");
        check(Tokenizer::from_json(&bytes, &TextLimits::DEFAULT).expect("a real tokenizer"), &golden);
    }
}

#[test]
fn gemma3_equals_its_golden_file() {
    let Some(data) = data::folder() else { return };
    let tokenizer =
        Tokenizer::from_folder(&data.join("tokenizers/gemma3"), &TextLimits::DEFAULT).expect("a folder");
    check(tokenizer, &data.join("tokenizer-golden/gemma3.jsonl"));
}
