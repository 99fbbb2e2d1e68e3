//! Vocabularies of GGUF files, compared with the ids of llama.cpp's tests.

use std::fs;
use std::path::Path;

use girih_file::Container;
use girih_words::TextLimits;
use girih_words::{BosEos, GgufVocab, Specials, TextOrigin, Tokenizer};

use crate::data;

/// The text between two strings of an `.inp` file.
const SEPARATOR: &str = "\n__ggml_vocab_test__\n";

/// The tokenizer of a GGUF file.
pub fn open(path: &Path) -> Tokenizer {
    let container = Container::open(path, &TextLimits::DEFAULT.file).expect("a GGUF file");
    let vocab = GgufVocab::of(container.metadata()).expect("a vocabulary");
    vocab.tokenizer(&TextLimits::DEFAULT).expect("a real vocabulary")
}

/// Compares the ids of each string with the recorded ones, and calls `decode` with the
/// string and its ids.
fn check_ids(name: &str, decode: impl Fn(&Tokenizer, &str, &[u32])) {
    let Some(data) = data::folder() else { return };
    check_folder(&data.join("vocab"), name, decode);
}

/// As [`check_ids`], with the files in `folder`.
fn check_folder(folder: &Path, name: &str, decode: impl Fn(&Tokenizer, &str, &[u32])) {
    let path = |end: &str| folder.join(format!("ggml-vocab-{name}.gguf{end}"));
    let tokenizer = open(&path(""));
    let inputs = fs::read_to_string(path(".inp")).expect("the strings");
    let outputs = fs::read_to_string(path(".out")).expect("the ids");
    let inputs: Vec<&str> = inputs.split(SEPARATOR).collect();
    // A separator also follows the last string.
    let pairs: Vec<_> = inputs.iter().zip(outputs.lines()).collect();
    assert_eq!(pairs.len(), outputs.lines().count());
    assert!(pairs.len() >= 40, "{} strings", pairs.len());
    for (text, ids) in pairs {
        // llama.cpp leaves out the NFC of Qwen 3.5's tokenizer, which composes these.
        if name == "qwen35" && text.contains(|c| ('\u{300}'..='\u{36f}').contains(&c)) {
            continue;
        }
        let want: Vec<u32> = ids.split_whitespace().map(|id| id.parse().expect("an id")).collect();
        let ids = tokenizer.encode(text, TextOrigin::User, BosEos::Omit).expect("a text");
        assert_eq!(ids, want, "{text:?}");
        decode(&tokenizer, text, &ids);
    }
}

fn check(name: &str) {
    check_ids(name, |tokenizer, text, ids| assert_eq!(tokenizer.decode(ids, Specials::Keep), text));
}

#[test]
fn llama_spm_has_the_recorded_ids() {
    check("llama-spm");
}

#[test]
fn phi_3_has_the_recorded_ids() {
    check("phi-3");
}

#[test]
fn gpt_2_has_the_recorded_ids() {
    check("gpt-2");
}

#[test]
fn llama_bpe_has_the_recorded_ids() {
    check("llama-bpe");
}

/// llama.cpp gives all these strings the ids that `tokenizers` gives them. Decoding does
/// not restore case, accents and spaces, but a text with the same ids.
#[test]
fn bert_bge_has_the_recorded_ids() {
    check_ids("bert-bge", |tokenizer, text, ids| {
        let decoded = tokenizer.decode(ids, Specials::Keep);
        let again = tokenizer.encode(&decoded, TextOrigin::Template, BosEos::Omit).expect("a text");
        assert_eq!(again, ids, "{text:?} became {decoded:?}");
    });
}

#[test]
fn qwen2_has_the_recorded_ids() {
    check("qwen2");
}

/// The vocabularies that only llama.cpp's own `models` folder has.
#[test]
fn other_vocabularies_of_llama_cpp_have_the_recorded_ids() {
    let Some(folder) = std::env::var_os("GIRIH_TEST_LLAMA_CPP") else {
        return eprintln!("skipped: GIRIH_TEST_LLAMA_CPP is not set");
    };
    let folder = Path::new(&folder).join("models");
    for name in [
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gemma-4",
        "mpt",
        "qwen35",
        "refact",
        "starcoder",
    ] {
        println!("{name}");
        check_folder(&folder, name, |_, _, _| {});
    }
}

#[test]
fn both_containers_of_one_model_have_equal_tokenizers() {
    let Some(data) = data::folder() else { return };
    let folder = data.join("models/stories260K");
    let hf = Tokenizer::from_folder(&folder.join("hf-f32"), &TextLimits::DEFAULT).expect("a folder");
    let files =
        fs::read_dir(&folder).expect("the model's folder").map(|entry| entry.expect("an entry").path());
    let gguf = files.into_iter().find(|path| path.extension().is_some_and(|end| end == "gguf"));
    let gguf = open(&gguf.expect("a GGUF file of the model"));
    assert_eq!(
        (hf.vocab_size(), hf.named().bos, hf.named().eos),
        (gguf.vocab_size(), gguf.named().bos, gguf.named().eos)
    );
    for text in ["Once upon a time, there was a girl.", "", "  é\n叫", "a<s>b"] {
        for ends in [BosEos::Add, BosEos::Omit] {
            let encode =
                |tokenizer: &Tokenizer| tokenizer.encode(text, TextOrigin::User, ends).expect("a text");
            assert_eq!(encode(&hf), encode(&gguf), "{text:?}");
        }
    }
}
