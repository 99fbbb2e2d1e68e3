//! One bad `tokenizer.json` or GGUF vocabulary per fault, each with its error.
//!
//! The files are in `tests/bad/tokenizers`, the errors in its `expected.tsv`.
//! `UPDATE=1` rewrites the table; then read the errors.

use std::borrow::Cow;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use girih_file::Strings;
use girih_words::TextLimits;
use girih_words::{GgufVocab, Tokenizer};

/// The maximum time for any small file.
const MAX_TIME: Duration = Duration::from_secs(1);

fn sentence(path: &Path) -> String {
    let bytes = fs::read(path).expect("a bad file");
    let start = Instant::now();
    let error =
        Tokenizer::from_json(&bytes, &TextLimits::DEFAULT).expect_err(&format!("{} is bad", path.display()));
    assert!(start.elapsed() < MAX_TIME, "{} took {:?}", path.display(), start.elapsed());
    error.to_string()
}

#[test]
fn every_bad_tokenizer_gets_its_error() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bad/tokenizers");
    let entries = fs::read_dir(&folder).expect("the folder of bad tokenizers");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let mut table = String::from("file\terror\n");
    for path in &paths {
        let name = path.file_name().expect("a name").to_string_lossy();
        table += &format!("{name}\t{}\n", sentence(path));
    }
    let expected = folder.join("expected.tsv");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&expected, &table).expect("the table can be written");
    }
    let expected = fs::read_to_string(&expected).expect("the table");
    for (found, expected) in table.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(table.lines().count(), expected.lines().count(), "the table has one line per file");
}

#[test]
fn a_tokenizer_over_the_limit_is_refused_before_it_is_read() {
    let limits = TextLimits { tokenizer_bytes: 10, ..TextLimits::DEFAULT };
    let error = Tokenizer::from_json(&[b'['; 11], &limits).expect_err("it exceeds the limit");
    assert_eq!(error.to_string(), "11 bytes; the maximum is 10");
}

fn list(strings: &[&str]) -> Cow<'static, Strings> {
    Cow::Owned(strings.iter().collect())
}

/// A good SPM vocabulary.
fn spm() -> GgufVocab<'static> {
    GgufVocab {
        model: "llama".to_owned(),
        tokens: list(&["<unk>", "<s>", "<0x0A>", "▁", "a", "▁a"]),
        scores: Some(vec![0.0, 0.0, 0.0, -3.0, -2.0, -1.0]),
        types: Some(vec![2, 3, 6, 1, 1, 1]),
        bos: Some(1),
        unk: Some(0),
        ..GgufVocab::default()
    }
}

/// A good BPE vocabulary.
fn bpe() -> GgufVocab<'static> {
    GgufVocab {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: list(&["a", "b", "ab"]),
        merges: Some(list(&["a b"])),
        ..GgufVocab::default()
    }
}

fn refusal(vocab: GgufVocab<'_>) -> String {
    vocab.tokenizer(&TextLimits::DEFAULT).expect_err("the vocabulary is bad").to_string()
}

#[test]
fn the_base_vocabularies_are_good() {
    for vocab in [spm(), bpe()] {
        vocab.tokenizer(&TextLimits::DEFAULT).expect("a good vocabulary");
    }
}

#[test]
fn lists_of_different_lengths_are_refused() {
    let few_scores = GgufVocab { scores: Some(vec![0.0; 5]), ..spm() };
    assert_eq!(refusal(few_scores), "tokenizer.ggml: 5 scores for 6 tokens; each token needs one");
    let no_scores = GgufVocab { scores: None, ..spm() };
    assert_eq!(refusal(no_scores), "tokenizer.ggml: scores are missing; SPM needs them");
    let few_types = GgufVocab { types: Some(vec![1; 5]), ..spm() };
    assert_eq!(refusal(few_types), "tokenizer.ggml: 5 token types for 6 tokens; each token needs one");
    let no_merges = GgufVocab { merges: None, ..bpe() };
    assert_eq!(refusal(no_merges), "tokenizer.ggml: merges are missing; BPE needs them");
    let twice = GgufVocab { tokens: list(&["a", "b", "a"]), ..bpe() };
    assert_eq!(refusal(twice), "tokenizer.ggml: token `a` has the ids 0 and 2; each token needs one");
    let none = GgufVocab { tokens: list(&[]), merges: Some(list(&[])), ..bpe() };
    assert_eq!(refusal(none), "tokenizer.ggml: the vocabulary is empty");
}

#[test]
fn values_out_of_range_are_refused() {
    let mut byte = spm();
    byte.tokens = list(&["<unk>", "<s>", "<0x-1>", "▁", "a", "▁a"]);
    assert_eq!(refusal(byte), "tokenizer.ggml: byte token 2 is `<0x-1>`; it must be `<0xNN>`");
    for bad in [0, 7, -1, i32::MAX] {
        let types = GgufVocab { types: Some(vec![2, 3, 6, 1, 1, bad]), ..spm() };
        assert_eq!(refusal(types), format!("tokenizer.ggml: token 5 has type {bad}; types are 1 to 6"));
    }
    let score = GgufVocab { scores: Some(vec![0.0, 0.0, 0.0, -3.0, f32::NAN, -1.0]), ..spm() };
    assert_eq!(refusal(score), "tokenizer.ggml: token 4 has the score NaN; it must be a finite number");
    let mut long = spm();
    long.tokens = list(&["<unk>", "<s>", "<0x0A>", "▁", "a", &"a".repeat(1025)]);
    assert_eq!(refusal(long), "tokenizer.ggml: token 5 has 1025 bytes; the maximum is 1024");
    let bos = GgufVocab { bos: Some(6), ..spm() };
    assert_eq!(refusal(bos), "tokenizer.ggml: the BOS token has id 6, which is not in the vocabulary of 6");
    let no_bos = GgufVocab { add_bos: Some(true), ..bpe() };
    assert_eq!(refusal(no_bos), "tokenizer.ggml: add_bos_token is on, but bos_token_id is missing");
    let limits = TextLimits { vocabulary: 2, ..TextLimits::DEFAULT };
    let error = bpe().tokenizer(&limits).expect_err("it exceeds the limit");
    assert_eq!(error.to_string(), "tokenizer.ggml: 3 tokens; the maximum is 2");
}

#[test]
fn merges_of_missing_tokens_are_refused() {
    for (merge, sentence) in [
        ("ab", "merge `ab` is not two tokens"),
        ("a  b", "merge `a  b` is not two tokens"),
        ("a c", "model: a merge needs token `c`, which is not in the vocabulary"),
        ("b a", "model: a merge needs token `ba`, which is not in the vocabulary"),
    ] {
        let vocab = GgufVocab { merges: Some(list(&[merge])), ..bpe() };
        assert_eq!(refusal(vocab), format!("tokenizer.ggml: {sentence}"));
    }
}

#[test]
fn unsupported_models_and_pre_tokenizers_are_refused_by_name() {
    let model = GgufVocab { model: "t5".to_owned(), ..spm() };
    assert_eq!(
        refusal(model),
        "tokenizer.ggml: model `t5` is not supported; it must be `llama`, `gpt2`, `gemma4` or `bert`"
    );
    let pre = GgufVocab { pre: Some("kimi-k2".to_owned()), ..bpe() };
    assert_eq!(
        refusal(pre),
        "tokenizer.ggml: pre-tokenizer `kimi-k2` is none of the 78 known ones; \
         use a folder with the model's tokenizer.json"
    );
    let unnamed = GgufVocab { pre: None, ..bpe() };
    assert!(refusal(unnamed).contains("the pre-tokenizer's name (`pre`) is missing"));
}
