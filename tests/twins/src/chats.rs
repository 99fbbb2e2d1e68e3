//! Prompts of spans, and tokenizers of stories260K with other components.

use std::fs;
use std::path::{Path, PathBuf};

use girih_tensor::Random;
use girih_words::{BosEos, Specials, TextLimits, TextOrigin, TextSpan, Tokenizer};
use serde_json::{Value, json};

/// The folder in `GIRIH_TEST_DATA`. Without the variable, prints that the test is skipped.
fn data_folder() -> Option<PathBuf> {
    let folder = std::env::var_os("GIRIH_TEST_DATA").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
    }
    folder
}

/// The number of chats per family; `GIRIH_TEST_CHATS` overrides it (100000 for a long run).
const CHATS: usize = 200;

/// A family: its folder, and the template's text around a user's.
struct ChatFamily {
    folder: &'static str,
    before: &'static str,
    after: &'static str,
}

const CHAT_FAMILIES: [ChatFamily; 3] = [
    ChatFamily {
        folder: "llama3_2",
        before: "<|start_header_id|>user<|end_header_id|>\n\n",
        after: "<|eot_id|>",
    },
    ChatFamily { folder: "gemma3", before: "<start_of_turn>user\n", after: "<end_of_turn>\n" },
    ChatFamily { folder: "qwen3", before: "<|im_start|>user\n", after: "<|im_end|>\n" },
];

fn template(text: &str) -> TextSpan {
    TextSpan { text: text.to_owned(), origin: TextOrigin::Template }
}

/// Texts without special tokens of any family.
fn clean_texts(data: &Path) -> Vec<String> {
    let lines = fs::read_to_string(data.join("tokenizer-golden/llama3_2.jsonl")).expect("the golden");
    let text = |line: &str| -> String {
        let line: Value = serde_json::from_str(line).expect("a golden line");
        line["text"].as_str().expect("a text").chars().take(200).collect()
    };
    lines.lines().map(text).filter(|text| !text.contains('<')).collect()
}

/// A random chat, whose user texts are split at random positions.
fn chat(family: &ChatFamily, texts: &[String], random: &mut Random) -> Vec<TextSpan> {
    let mut spans = Vec::new();
    for _ in 0..=random.below(3) {
        let text = &texts[random.below(texts.len())];
        let cut = random.below(text.chars().count() + 1);
        let (one, two): (String, String) =
            (text.chars().take(cut).collect(), text.chars().skip(cut).collect());
        let origins = [TextOrigin::User, TextOrigin::Template];
        spans.push(template(family.before));
        spans.push(TextSpan { text: one, origin: random.of(&origins) });
        spans.push(TextSpan { text: two, origin: random.of(&origins) });
        spans.push(template(family.after));
    }
    spans
}

#[test]
fn clean_chats_have_the_librarys_ids_of_the_joined_text() {
    let Some(data) = data_folder() else { return };
    let chats = std::env::var("GIRIH_TEST_CHATS").map_or(CHATS, |count| count.parse().expect("a number"));
    let texts = clean_texts(&data);
    for (seed, family) in (1..).zip(&CHAT_FAMILIES) {
        let folder = data.join("tokenizers").join(family.folder);
        let tokenizer = Tokenizer::from_folder(&folder, &TextLimits::DEFAULT).expect("a real tokenizer");
        let library =
            tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).expect("a real tokenizer");
        let mut random = Random(seed);
        for _ in 0..chats {
            let spans = chat(family, &texts, &mut random);
            let text: String = spans.iter().map(|span| span.text.as_str()).collect();
            let want = library.encode_fast(text.as_str(), false).expect("the library encodes");
            let ids = tokenizer.encode_spans(&spans, BosEos::Omit).expect("a chat");
            assert_eq!(ids, want.get_ids(), "{}, seed {seed}: {text:?}", family.folder);
        }
    }
}

/// The tokenizer of stories260K with some parts replaced.
fn changed(data: &Path, changes: &Value) -> Vec<u8> {
    let file = data.join("models/stories260K/hf-f32/tokenizer.json");
    let mut json: Value = serde_json::from_slice(&fs::read(file).expect("the tokenizer")).expect("JSON");
    for (key, value) in changes.as_object().expect("changes by key") {
        json[key] = value.clone();
    }
    serde_json::to_vec(&json).expect("JSON")
}

fn added(id: u32, content: &str, flags: &[&str]) -> Value {
    let has = |flag| flags.contains(&flag);
    json!({
        "id": id, "content": content, "special": true, "normalized": has("normalized"),
        "single_word": has("single_word"), "lstrip": has("lstrip"), "rstrip": has("rstrip"),
    })
}

#[test]
fn other_components_give_the_librarys_ids_and_text() {
    let Some(data) = data_folder() else { return };
    let flags: &[&[&str]] = &[
        &[],
        &["normalized"],
        &["lstrip"],
        &["rstrip"],
        &["lstrip", "rstrip", "normalized"],
        &["single_word"],
    ];
    let metaspace = |scheme: &str, split: bool| {
        json!({ "normalizer": null,
            "pre_tokenizer": { "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split } })
    };
    let mut cases: Vec<Value> = flags
        .iter()
        .map(|flags| json!({ "added_tokens": [added(0, "<unk>", &[]), added(1, "<s>", flags), added(2, "</s>", &[])] }))
        .collect();
    for scheme in ["always", "first", "never"] {
        cases.extend([metaspace(scheme, true), metaspace(scheme, false)]);
    }
    for normalizer in ["NFC", "NFD", "NFKC", "NFKD"] {
        cases.push(json!({ "normalizer": { "type": normalizer } }));
    }
    for individual in [true, false] {
        cases.push(json!({ "pre_tokenizer": { "type": "Digits", "individual_digits": individual } }));
    }
    let texts = [
        "",
        " ",
        "Once upon a time",
        " Once  upon",
        "<s>Once<s> upon </s> a",
        "x<s>x <s> x",
        "a<s></s>",
        "<s>",
        "Ünïcödé ﬃ ½ e\u{301} 叫",
        "it is 2024 or 7.",
        "\n\n<s>\n ",
        "▁<s>▁",
        "é<s>é",
    ];
    for case in cases {
        let bytes = changed(&data, &case);
        let ours = Tokenizer::from_json(&bytes, &TextLimits::DEFAULT).expect("a tokenizer");
        let library = tokenizers::Tokenizer::from_bytes(&bytes).expect("a tokenizer");
        for text in texts {
            for ends in [BosEos::Add, BosEos::Omit] {
                let want = library.encode_fast(text, ends == BosEos::Add).expect("the library encodes");
                let ids = ours.encode(text, TextOrigin::Template, ends).expect("a text");
                assert_eq!(ids, want.get_ids(), "{case}: {text:?}");
                for (specials, skip) in [(Specials::Skip, true), (Specials::Keep, false)] {
                    let want = library.decode(&ids, skip).expect("the library decodes");
                    assert_eq!(ours.decode(&ids, specials), want, "{case}: {text:?}");
                }
            }
            let ids = ours.encode(text, TextOrigin::User, BosEos::Omit).expect("a text");
            let made: Vec<_> = ids.iter().filter(|id| ours.is_special(**id) && **id != 0).collect();
            assert!(made.is_empty(), "{case}: {text:?} made {made:?}");
        }
    }
}
