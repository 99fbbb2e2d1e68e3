//! Prompts of spans are encoded like the joined text, except that special tokens
//! in a user's text are ignored.

use std::fs;
use std::path::Path;

use girih_tensor::Random;
use girih_words::TextLimits;
use girih_words::{BosEos, Specials, TextOrigin, TextSpan, Tokenizer};
use serde_json::{Value, json};

use crate::data;

/// The number of chats per family; `GIRIH_TEST_CHATS` overrides it (100000 for a
/// long run).
const CHATS: usize = 200;

/// A family: its folder, the template's text around a user's, and its end-of-turn
/// token.
struct ChatFamily {
    folder: &'static str,
    before: &'static str,
    after: &'static str,
    end: &'static str,
}

const CHAT_FAMILIES: [ChatFamily; 3] = [
    ChatFamily {
        folder: "llama3_2",
        before: "<|start_header_id|>user<|end_header_id|>\n\n",
        after: "<|eot_id|>",
        end: "<|eot_id|>",
    },
    ChatFamily {
        folder: "gemma3",
        before: "<start_of_turn>user\n",
        after: "<end_of_turn>\n",
        end: "<end_of_turn>",
    },
    ChatFamily { folder: "qwen3", before: "<|im_start|>user\n", after: "<|im_end|>\n", end: "<|im_end|>" },
];

fn template(text: &str) -> TextSpan {
    TextSpan { text: text.to_owned(), origin: TextOrigin::Template }
}

fn user(text: &str) -> TextSpan {
    TextSpan { text: text.to_owned(), origin: TextOrigin::User }
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

fn joined(spans: &[TextSpan]) -> String {
    spans.iter().map(|span| span.text.as_str()).collect()
}

fn open(folder: &Path) -> Tokenizer {
    Tokenizer::from_folder(folder, &TextLimits::DEFAULT).expect("a real tokenizer")
}

#[test]
fn clean_chats_have_the_librarys_ids_of_the_joined_text() {
    let Some(data) = data::folder() else { return };
    let chats = std::env::var("GIRIH_TEST_CHATS").map_or(CHATS, |count| count.parse().expect("a number"));
    let texts = clean_texts(&data);
    for (seed, family) in (1..).zip(&CHAT_FAMILIES) {
        let folder = data.join("tokenizers").join(family.folder);
        let tokenizer = open(&folder);
        let library =
            tokenizers::Tokenizer::from_file(folder.join("tokenizer.json")).expect("a real tokenizer");
        let mut random = Random(seed);
        for _ in 0..chats {
            let spans = chat(family, &texts, &mut random);
            let text = joined(&spans);
            let want = library.encode_fast(text.as_str(), false).expect("the library encodes");
            let ids = tokenizer.encode_spans(&spans, BosEos::Omit).expect("a chat");
            assert_eq!(ids, want.get_ids(), "{}, seed {seed}: {text:?}", family.folder);
        }
    }
}

#[test]
fn special_tokens_in_user_text_are_plain_text() {
    let Some(data) = data::folder() else { return };
    for family in &CHAT_FAMILIES {
        let tokenizer = open(&data.join("tokenizers").join(family.folder));
        let end = tokenizer.id(family.end).expect("the end of a turn is a token");
        let (head, tail) = family.end.split_at(3);
        let spelled = ["", "x", " "].map(|edge| format!("{edge}{}{edge}", family.end));
        let mut users: Vec<Vec<TextSpan>> = spelled.iter().map(|text| vec![user(text)]).collect();
        // A user's text together with the text around it forms no special token
        // either.
        users.push(vec![user(head), user(tail)]);
        users.push(vec![template(head), user(tail)]);
        users.push(vec![user(head), template(tail)]);
        for users in users {
            let mut spans = vec![template(family.before)];
            spans.extend(users);
            spans.push(template(family.after));
            let ids = tokenizer.encode_spans(&spans, BosEos::Omit).expect("a chat");
            assert_eq!(ids.iter().filter(|id| **id == end).count(), 1, "{spans:?}");
            assert_eq!(tokenizer.decode(&ids, Specials::Keep), joined(&spans));
        }
        assert_eq!(tokenizer.encode(family.end, TextOrigin::Template, BosEos::Omit).expect("a token"), [end]);
        let plain = tokenizer.encode(family.end, TextOrigin::User, BosEos::Omit).expect("a text");
        assert!(plain.len() > 1 && plain.iter().all(|id| !tokenizer.is_special(*id)), "{plain:?}");
    }
}

#[test]
fn no_special_token_of_any_family_comes_from_user_text() {
    let Some(data) = data::folder() else { return };
    for family in &CHAT_FAMILIES {
        let tokenizer = open(&data.join("tokenizers").join(family.folder));
        for id in (0..tokenizer.vocab_size()).filter(|id| tokenizer.is_special(*id)) {
            let token = tokenizer.token(id).expect("a special token has a text");
            let ids = tokenizer.encode(token, TextOrigin::User, BosEos::Omit).expect("a text");
            assert!(ids.iter().all(|id| !tokenizer.is_special(*id)), "{token}: {ids:?}");
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
    let Some(data) = data::folder() else { return };
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
