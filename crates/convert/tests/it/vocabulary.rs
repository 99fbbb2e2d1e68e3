//! Tokenizers inside written GGUF files.

use std::fs;
use std::path::Path;

use girih_file::Strings;
use girih_words::TextLimits;
use girih_words::{BosEos, GgufVocab, Specials, TextOrigin, Tokenizer};
use serde_json::{Value, json};

use super::{SMALL, committed, open, options, write};
use crate::data;
use crate::folder::empty_folder;

fn of_folder(folder: &Path) -> Tokenizer {
    Tokenizer::from_folder(folder, &TextLimits::DEFAULT).unwrap()
}

fn of_gguf(path: &Path) -> Tokenizer {
    let model = open(path);
    let vocab = GgufVocab::of(model.weights.container().metadata()).unwrap();
    vocab.tokenizer(&TextLimits::DEFAULT).unwrap()
}

fn check_same<S: AsRef<str>>(one: &Tokenizer, other: &Tokenizer, texts: impl IntoIterator<Item = S>) {
    assert_eq!(one.named(), other.named());
    check_same_ids(one, other, texts);
}

fn check_same_ids<S: AsRef<str>>(one: &Tokenizer, other: &Tokenizer, texts: impl IntoIterator<Item = S>) {
    for text in texts {
        let text = text.as_ref();
        for origin in [TextOrigin::Template, TextOrigin::User] {
            let ids = |tokenizer: &Tokenizer| tokenizer.encode(text, origin, BosEos::Add).unwrap();
            assert_eq!(ids(one), ids(other), "{text:?}");
        }
        let ids = one.encode(text, TextOrigin::User, BosEos::Omit).unwrap();
        assert_eq!(one.decode(&ids, Specials::Skip), other.decode(&ids, Specials::Skip), "{text:?}");
    }
}

#[test]
fn a_gguf_has_the_tokenizer_of_its_folder() {
    let out = empty_folder("convert-words").join("model.gguf");
    write(&open(&committed(SMALL)), &out, &options("q8_0")).unwrap();
    let texts = ["", "Once upon a time, there was", "  two  spaces ", "naïve 日本 \u{1F600}\n\t", "</s>a<s>"];
    check_same(&of_folder(&committed(SMALL)), &of_gguf(&out), texts);
}

#[test]
fn vendors_tokenizers_keep_their_ids() {
    let Some(data) = data::folder() else { return };
    // More rows than tokens, as vendors pad their tables; Gemma's image token has no row.
    for (name, rows, lost) in
        [("llama3_2", 128_256, 0), ("qwen3", 151_936, 0), ("gemma3", 262_144, 1), ("gptoss", 201_088, 0)]
    {
        let folder = data.join("tokenizers").join(name);
        let (vocab, warnings) = GgufVocab::from_folder(&folder, rows, &TextLimits::DEFAULT).unwrap();
        assert_eq!(warnings.len(), lost, "{warnings:?}");
        assert_eq!(vocab.tokens.len(), rows);
        let golden = if name == "gemma3" { name } else { "llama3_2" };
        let golden = fs::read_to_string(data.join(format!("tokenizer-golden/{golden}.jsonl"))).unwrap();
        let lines = golden.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let texts = lines.map(|line| line["text"].as_str().unwrap().to_owned());
        check_same(&of_folder(&folder), &vocab.tokenizer(&TextLimits::DEFAULT).unwrap(), texts);
    }
}

/// A folder with a `tokenizer.json` of BERT, with some parts replaced.
fn bert(folder: &str, changes: &Value) -> std::path::PathBuf {
    let folder = empty_folder(folder);
    let file = include_bytes!("../../../../fuzz/seeds/tokenizer/wordpiece.json");
    let mut file: Value = serde_json::from_slice(file).unwrap();
    for (pointer, value) in changes.as_object().unwrap() {
        *file.pointer_mut(pointer).unwrap() = value.clone();
    }
    fs::write(folder.join("tokenizer.json"), file.to_string()).unwrap();
    folder
}

#[test]
fn wordpiece_keeps_its_ids() {
    let texts = ["", "The unaffables, cafe Café café [CLS]s []", "[MASK] the", "théſ 叫", "]]"];
    for changes in [
        json!({}),
        json!({ "/normalizer/lowercase": false }),
        json!({ "/normalizer/strip_accents": false }),
        json!({ "/post_processor": null }),
    ] {
        let folder = bert("convert-bert", &changes);
        // More rows than tokens, as models pad their tables.
        let (vocab, warnings) = GgufVocab::from_folder(&folder, 32, &TextLimits::DEFAULT).unwrap();
        assert_eq!((warnings.len(), vocab.tokens.len(), vocab.model.as_str()), (0, 32, "bert"));
        let (one, other) = (of_folder(&folder), vocab.tokenizer(&TextLimits::DEFAULT).unwrap());
        check_same_ids(&one, &other, texts);
        let all: Vec<u32> = (0..28).collect();
        assert_eq!(one.decode(&all, Specials::Keep), other.decode(&all, Specials::Keep));
    }
}

#[test]
fn minilm_keeps_its_ids() {
    let (Some(data), Some(folder)) = (data::folder(), std::env::var_os("GIRIH_TEST_MINILM")) else {
        return eprintln!("skipped: GIRIH_TEST_DATA or GIRIH_TEST_MINILM is not set");
    };
    let (vocab, warnings) = GgufVocab::from_folder(Path::new(&folder), 30_522, &TextLimits::DEFAULT).unwrap();
    assert!(warnings.is_empty(), "{warnings:?}");
    let other = vocab.tokenizer(&TextLimits::DEFAULT).unwrap();
    let golden = fs::read_to_string(data.join("tokenizer-golden/minilm.jsonl")).unwrap();
    let lines = golden.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let texts = lines.map(|line| line["text"].as_str().unwrap().to_owned());
    check_same_ids(&of_folder(Path::new(&folder)), &other, texts);
}

#[test]
fn a_gguf_with_wordpiece_has_the_tokenizer_of_its_folder() {
    let folder = bert("convert-bert-model", &json!({ "/normalizer/lowercase": false }));
    for name in ["config.json", "model.safetensors"] {
        fs::copy(committed(SMALL).join(name), folder.join(name)).unwrap();
    }
    let out = folder.join("model.gguf");
    write(&open(&folder), &out, &options("f32")).unwrap();
    check_same_ids(&of_folder(&folder), &of_gguf(&out), ["", "The Café unables [CLS]", "叫"]);
}

#[test]
fn wordpiece_rules_that_gguf_lacks_are_refused() {
    for (changes, word) in [
        (json!({ "/model/max_input_chars_per_word": 50 }), "max_input_chars_per_word"),
        (json!({ "/model/continuing_subword_prefix": "@@" }), "continuing_subword_prefix"),
        (json!({ "/normalizer/clean_text": false }), "normalizer"),
        (json!({ "/normalizer": null }), "normalizer"),
        (json!({ "/pre_tokenizer": { "type": "Digits", "individual_digits": true } }), "pre_tokenizer"),
    ] {
        let folder = bert("convert-bert-refused", &changes);
        let error = GgufVocab::from_folder(&folder, 32, &TextLimits::DEFAULT).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("GGUF"), "{error}");
    }
}

/// The folder of the small model with its `tokenizer.json` changed.
fn changed(folder: &str, change: impl FnOnce(&mut Value)) -> std::path::PathBuf {
    let folder = empty_folder(folder);
    for name in ["config.json", "model.safetensors", "tokenizer_config.json"] {
        fs::copy(committed(SMALL).join(name), folder.join(name)).unwrap();
    }
    let text = fs::read(committed(SMALL).join("tokenizer.json")).unwrap();
    let mut tokenizer = serde_json::from_slice(&text).unwrap();
    change(&mut tokenizer);
    fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    folder
}

#[test]
fn tokenizer_rules_without_a_name_in_gguf_are_refused() {
    let split =
        json!({ "type": "Split", "pattern": { "Regex": "x+" }, "behavior": "Isolated", "invert": false });
    let bytes =
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false });
    let words = json!({ "type": "Sequence", "pretokenizers": [split, bytes] });
    let refuses = |folder: &str, word: &str, change: &dyn Fn(&mut Value)| {
        let folder = changed(folder, change);
        let error = write(&open(&folder), &folder.join("out.gguf"), &options("f32")).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("GGUF"), "{error}");
    };
    refuses("convert-unnamed-words", "that llama.cpp names", &|file| {
        file["model"]["byte_fallback"] = json!(false);
        file["pre_tokenizer"] = words.clone();
    });
    refuses("convert-unnamed-steps", "pre_tokenizer", &|file| {
        file["pre_tokenizer"] = json!({ "type": "Digits", "individual_digits": true });
    });
    refuses("convert-unnamed-normalizer", "normalizer", &|file| {
        file["normalizer"] = json!({ "type": "NFKC" });
    });
    refuses("convert-unnamed-whole", "ignore_merges", &|file| {
        file["model"]["ignore_merges"] = json!(true);
    });
}

#[test]
fn tokenizer_rules_lost_in_gguf_are_warned_of() {
    let folder = changed("convert-loose", |file| {
        file["added_tokens"][2]["lstrip"] = json!(true);
        file["model"]["merges"].as_array_mut().unwrap().remove(0);
    });
    let report = write(&open(&folder), &folder.join("out.gguf"), &options("f32")).unwrap();
    let warned = |word: &str| report.warnings.iter().any(|warning| warning.contains(word));
    assert!(warned("characters beside it") && warned("no merge"), "{:?}", report.warnings);
}

#[test]
fn a_folder_without_a_tokenizer_gives_no_vocabulary() {
    let folder = changed("convert-wordless", |_| {});
    fs::remove_file(folder.join("tokenizer.json")).unwrap();
    let out = folder.join("out.gguf");
    let report = write(&open(&folder), &out, &options("f32")).unwrap();
    assert!(report.warnings[0].contains("no vocabulary"), "{:?}", report.warnings);
    let model = open(&out);
    let metadata = model.weights.container().metadata();
    assert_eq!(metadata.require::<&str>("tokenizer.ggml.model").unwrap(), "none");
    assert_eq!(metadata.require::<u32>("llama.vocab_size").unwrap(), 512);
    assert!(metadata.get::<&Strings>("tokenizer.ggml.tokens").unwrap().is_none());
}

#[test]
fn the_chat_template_is_copied() {
    let folder = changed("convert-template", |_| {});
    fs::write(folder.join("chat_template.jinja"), "{{ messages }}").unwrap();
    let out = folder.join("out.gguf");
    write(&open(&folder), &out, &options("f32")).unwrap();
    let model = open(&out);
    let template = model.weights.container().metadata().require::<&str>("tokenizer.chat_template");
    assert_eq!(template.unwrap(), "{{ messages }}");
}
