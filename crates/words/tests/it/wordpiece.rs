//! WordPiece tokenizers: BERT's components around a vocabulary of a few tokens. `tests/twins`
//! compares the same texts with the crate `tokenizers`.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use girih_file::Strings;
use girih_words::TextLimits;
use girih_words::{BosEos, GgufVocab, Specials, TextOrigin, Tokenizer};
use serde_json::{Value, json};

/// A `tokenizer.json` of an uncased model with 28 tokens, of which the first five are
/// special.
const FILE: &[u8] = include_bytes!("../../../../fuzz/seeds/tokenizer/wordpiece.json");
const TOKENS: u32 = 28;

/// The file with some parts replaced.
fn file(changes: &Value) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(FILE).expect("JSON");
    for (pointer, value) in changes.as_object().expect("changes by pointer") {
        *json.pointer_mut(pointer).expect("a part of the file") = value.clone();
    }
    serde_json::to_vec(&json).expect("JSON")
}

/// The tokenizer of a file.
struct Sample(Arc<Tokenizer>);

impl Sample {
    fn new(changes: &Value) -> Sample {
        let tokenizer = Tokenizer::from_json(&file(changes), &TextLimits::DEFAULT);
        Sample(Arc::new(tokenizer.expect("a tokenizer")))
    }

    /// The ids of a text that the template wrote.
    fn encode(&self, text: &str, ends: BosEos) -> Vec<u32> {
        self.0.encode(text, TextOrigin::Template, ends).expect("a text")
    }

    /// The text of ids, which equals that of their stream.
    fn decode(&self, ids: &[u32], specials: Specials) -> String {
        let text = self.0.decode(ids, specials);
        let mut stream = self.0.detokenizer(specials);
        let pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
        assert_eq!(pieces + &stream.finish(), text, "{ids:?}");
        text
    }
}

#[test]
fn words_become_their_longest_pieces() {
    let sample = Sample::new(&json!({}));
    for (text, want) in [
        ("", vec![]),
        (" \t\n", vec![]),
        ("The unaffable", vec![5, 6, 7, 8]),
        // `aff` begins no word, and `##f` continues none.
        ("un aff the", vec![6, 1, 5]),
        ("unabless", vec![6, 8, 21, 21]),
        ("unable unab", vec![6, 8, 6, 9]),
        ("Café, CAFÉS!", vec![17, 11, 17, 21, 13]),
        ("叫叫don't.", vec![20, 20, 16, 14, 15, 12]),
        ("\0un\u{200B}aff\u{FFFD}ables", vec![6, 7, 8, 21]),
        ("the\u{3000}\tun\r\nthe", vec![5, 6, 5]),
        ("##s", vec![1, 1, 22]),
        ("[CLS] a[MASK]a", vec![2, 23, 4, 23]),
    ] {
        assert_eq!(sample.encode(text, BosEos::Omit), want, "{text:?}");
    }
    assert_eq!(sample.encode("a", BosEos::Add), [2, 23, 3]);
    assert_eq!(sample.encode("", BosEos::Add), [2, 3]);
}

#[test]
fn special_tokens_in_user_text_are_words() {
    let tokenizer = Sample::new(&json!({})).0;
    let ids = tokenizer.encode("[CLS] [MASK]", TextOrigin::User, BosEos::Omit).expect("a text");
    assert_eq!(ids, [25, 27, 26, 25, 1, 26]);
    assert_eq!((tokenizer.named().unk, tokenizer.named().bos), (Some(1), None));
}

#[test]
fn cased_models_keep_case_and_accents_unless_told_otherwise() {
    let of = |lowercase: bool, strip_accents: Value| {
        let changes =
            json!({ "/normalizer/lowercase": lowercase, "/normalizer/strip_accents": strip_accents });
        Sample::new(&changes).encode("Café café cafe", BosEos::Omit)
    };
    assert_eq!(of(false, Value::Null), [19, 18, 17]);
    assert_eq!(of(true, Value::Null), [17, 17, 17]);
    assert_eq!(of(true, json!(false)), [18, 18, 17]);
    assert_eq!(of(false, json!(true)), [1, 17, 17]);
}

#[test]
fn text_is_cleaned_and_han_characters_split_only_if_asked() {
    let text = "a叫 \u{7}a";
    let of = |field: &str| {
        let changes = json!({ format!("/normalizer/{field}"): false });
        Sample::new(&changes).encode(text, BosEos::Omit)
    };
    assert_eq!(Sample::new(&json!({})).encode(text, BosEos::Omit), [23, 20, 23]);
    assert_eq!(of("clean_text"), [23, 20, 1]);
    assert_eq!(of("handle_chinese_chars"), [1, 23]);
}

#[test]
fn decoding_joins_pieces_and_cleans_each_token() {
    let (clean, raw) = (Sample::new(&json!({})), Sample::new(&json!({ "/decoder/cleanup": false })));
    let ids = [2, 6, 7, 8, 11, 16, 14, 15, 12, 3];
    assert_eq!(clean.decode(&ids, Specials::Skip), "unaffable, don ' t.");
    assert_eq!(raw.decode(&ids, Specials::Skip), "unaffable , don ' t .");
    assert_eq!(clean.decode(&ids, Specials::Keep), "[CLS] unaffable, don ' t. [SEP]");
    // The first token keeps its prefix, and has no space before it.
    assert_eq!(clean.decode(&[2, 8, 8, 5], Specials::Skip), "##ableable the");
    assert_eq!(clean.decode(&[12, 12], Specials::Skip), "..");
}

#[test]
fn the_prefix_and_the_maximum_are_those_of_the_file() {
    let other = Sample::new(&json!({ "/model/continuing_subword_prefix": "", "/decoder/prefix": "" }));
    assert_eq!(other.encode("thes cafea", BosEos::Omit), [5, 22, 17, 23]);
    assert_eq!(other.decode(&[5, 22], Specials::Keep), "thes");
    let short = Sample::new(&json!({ "/model/max_input_chars_per_word": 4 }));
    assert_eq!(short.encode("cafe cafes", BosEos::Omit), [17, 1]);
    let long = Sample::new(&json!({}));
    assert_eq!(long.encode(&"a".repeat(100), BosEos::Omit).len(), 100);
    assert_eq!(long.encode(&"a".repeat(101), BosEos::Omit), [1]);
}

#[test]
fn files_without_a_type_or_with_a_template_give_the_same_ids() {
    let plain = Sample::new(&json!({}));
    let ends = |token: &str, type_id: u32| json!({ "SpecialToken": { "id": token, "type_id": type_id } });
    let text = |name: &str, type_id: u32| json!({ "Sequence": { "id": name, "type_id": type_id } });
    let template = json!({
        "type": "TemplateProcessing",
        "single": [ends("[CLS]", 0), text("A", 0), ends("[SEP]", 0)],
        "pair": [ends("[CLS]", 0), text("A", 0), ends("[SEP]", 0), text("B", 1), ends("[SEP]", 1)],
        "special_tokens": {
            "[CLS]": { "id": "[CLS]", "ids": [2], "tokens": ["[CLS]"] },
            "[SEP]": { "id": "[SEP]", "ids": [3], "tokens": ["[SEP]"] },
        },
    });
    let mut untyped = serde_json::from_slice::<Value>(FILE).expect("JSON")["model"].take();
    untyped.as_object_mut().expect("an object").remove("type");
    let other = Sample::new(&json!({ "/post_processor": template, "/model": untyped }));
    for text in ["", "The un[MASK]able cafés", "叫."] {
        assert_eq!(other.encode(text, BosEos::Add), plain.encode(text, BosEos::Add), "{text:?}");
    }
}

#[test]
fn a_word_of_four_megabytes_is_encoded_in_time() {
    let text = "a".repeat(4 << 20);
    for (maximum, count) in [(100, 1), (usize::MAX, text.len())] {
        let bytes = file(&json!({ "/model/max_input_chars_per_word": maximum }));
        let tokenizer = Tokenizer::from_json(&bytes, &TextLimits::DEFAULT).expect("a tokenizer");
        let start = Instant::now();
        let ids = tokenizer.encode(&text, TextOrigin::User, BosEos::Omit).expect("a long text");
        let took = start.elapsed();
        // Quadratic work would take hours; a busy machine may take many seconds.
        assert!(ids.len() == count && took < Duration::from_secs(60), "{} ids in {took:?}", ids.len());
    }
}

#[test]
fn mutated_files_are_refused_or_consistent() {
    Tokenizer::from_json(FILE, &TextLimits::DEFAULT).expect("the unmutated file is valid");
    for seed in 1..=4000 {
        girih_words::fuzz::tokenizer_config(&girih_file::fuzz::mutated(FILE, seed), b"{}");
    }
}

/// The same vocabulary in GGUF.
fn vocab() -> GgufVocab<'static> {
    let json = Tokenizer::from_json(FILE, &TextLimits::DEFAULT).expect("a tokenizer");
    let spell = |id| {
        let token = json.token(id).expect("ids are consecutive");
        match token.strip_prefix("##") {
            _ if json.is_special(id) => token.to_owned(),
            Some(rest) => rest.to_owned(),
            None => format!("▁{token}"),
        }
    };
    let tokens: Strings = (0..TOKENS).map(spell).collect();
    GgufVocab {
        model: "bert".to_owned(),
        types: Some((0..tokens.len()).map(|index| if index < 5 { 3 } else { 1 }).collect()),
        tokens: Cow::Owned(tokens),
        unk: Some(1),
        cls: Some(2),
        sep: Some(3),
        ..GgufVocab::default()
    }
}

#[test]
fn a_gguf_vocabulary_gives_the_ids_of_the_file() {
    let json = Sample::new(&json!({}));
    let gguf = vocab().tokenizer(&TextLimits::DEFAULT).expect("a good vocabulary");
    for text in ["", "The unaffable, CAFÉS!", "叫叫don't. [MASK] ##s aff"] {
        let ids = gguf.encode(text, TextOrigin::Template, BosEos::Add).expect("a text");
        assert_eq!(ids, json.encode(text, BosEos::Add), "{text:?}");
        assert_eq!(gguf.decode(&ids, Specials::Keep), json.decode(&ids, Specials::Keep), "{text:?}");
    }
    assert_eq!((gguf.id("##able"), gguf.token(5)), (Some(8), Some("the")));
    let cased = GgufVocab { lowercase: Some(false), add_bos: Some(false), add_sep: Some(false), ..vocab() };
    let cased = cased.tokenizer(&TextLimits::DEFAULT).expect("a good vocabulary");
    assert_eq!(cased.encode("Café café", TextOrigin::User, BosEos::Add).expect("a text"), [19, 18]);
    let bare = GgufVocab { lowercase: Some(false), strip_accents: Some(true), ..vocab() };
    let bare = bare.tokenizer(&TextLimits::DEFAULT).expect("a good vocabulary");
    assert_eq!(bare.encode("café", TextOrigin::User, BosEos::Add).expect("a text"), [2, 17, 3]);
}

#[test]
fn bad_gguf_vocabularies_are_refused() {
    let refusal = |vocab: GgufVocab<'_>| {
        vocab.tokenizer(&TextLimits::DEFAULT).expect_err("the vocabulary is bad").to_string()
    };
    for unk in [None, Some(28)] {
        let sentence =
            "tokenizer.ggml: unknown_token_id is missing or not the id of a token; WordPiece needs it";
        assert_eq!(refusal(GgufVocab { unk, ..vocab() }), sentence);
    }
    let cls = refusal(GgufVocab { cls: None, ..vocab() });
    assert_eq!(cls, "tokenizer.ggml: add_bos_token is on, but cls_token_id is missing");
    let sep = refusal(GgufVocab { sep: None, ..vocab() });
    assert_eq!(sep, "tokenizer.ggml: add_sep_token is on, but seperator_token_id is missing");
    let eos = refusal(GgufVocab { eos: Some(4), add_eos: Some(true), ..vocab() });
    assert_eq!(eos, "tokenizer.ggml: add_eos_token is on; a text of `bert` ends in the separator only");
    let mut twice = vocab();
    twice.tokens = Cow::Owned(twice.tokens.iter().chain(["▁the"]).collect());
    twice.types = None;
    assert_eq!(refusal(twice), "tokenizer.ggml: token `the` has the ids 5 and 28; each token needs one");
}
