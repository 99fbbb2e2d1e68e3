//! WordPiece tokenizers: BERT's components around a vocabulary of a few tokens.

use std::sync::Arc;

use girih_tensor::Random;
use girih_words::{BosEos, Specials, TextLimits, TextOrigin, Tokenizer};
use serde_json::{Value, json};

/// A `tokenizer.json` of an uncased model with 28 tokens, of which the first five are
/// special.
const FILE: &[u8] = include_bytes!("../../../fuzz/seeds/tokenizer/wordpiece.json");
const TOKENS: u32 = 28;

/// The file with some parts replaced.
fn file(changes: &Value) -> Vec<u8> {
    let mut json: Value = serde_json::from_slice(FILE).expect("JSON");
    for (pointer, value) in changes.as_object().expect("changes by pointer") {
        *json.pointer_mut(pointer).expect("a part of the file") = value.clone();
    }
    serde_json::to_vec(&json).expect("JSON")
}

/// The tokenizer of a file, and the library's.
struct Twins {
    ours: Arc<Tokenizer>,
    library: tokenizers::Tokenizer,
}

impl Twins {
    fn new(changes: &Value) -> Twins {
        let bytes = file(changes);
        let ours = Tokenizer::from_json(&bytes, &TextLimits::DEFAULT).expect("a tokenizer");
        Twins {
            ours: Arc::new(ours),
            library: tokenizers::Tokenizer::from_bytes(&bytes).expect("a tokenizer"),
        }
    }

    /// The ids of a text that the template wrote, which equal the library's.
    fn encode(&self, text: &str, ends: BosEos) -> Vec<u32> {
        let ids = self.ours.encode(text, TextOrigin::Template, ends).expect("a text");
        let library = self.library.encode_fast(text, ends == BosEos::Add).expect("the library encodes");
        assert_eq!(ids, library.get_ids(), "{text:?}");
        ids
    }

    /// Compares the text of ids with the library's and with its own stream.
    fn decode(&self, ids: &[u32], specials: Specials) {
        let text = self.ours.decode(ids, specials);
        let library = self.library.decode(ids, specials == Specials::Skip).expect("the library decodes");
        assert_eq!(text, library, "{ids:?}");
        let mut stream = self.ours.detokenizer(specials);
        let pieces: String = ids.iter().map(|id| stream.push(*id)).collect();
        assert_eq!(pieces + &stream.finish(), text, "{ids:?}");
    }
}

/// The texts and ids of `crates/words/tests/it/wordpiece.rs`, which states what they become.
#[test]
fn stated_texts_have_the_librarys_ids_and_text() {
    let texts = [
        "",
        " \t\n",
        "The unaffable",
        "un aff the",
        "unabless",
        "unable unab",
        "Café, CAFÉS!",
        "叫叫don't.",
        "\0un\u{200B}aff\u{FFFD}ables",
        "the\u{3000}\tun\r\nthe",
        "##s",
        "[CLS] a[MASK]a",
        "a",
        "[CLS] [MASK]",
        "Café café cafe",
        "a叫 \u{7}a",
        "thes cafea",
        "cafe cafes",
        "The un[MASK]able cafés",
        "叫.",
        "The unaffable, CAFÉS!",
        "叫叫don't. [MASK] ##s aff",
        "Café café",
        "café",
    ];
    let long = [100, 101].map(|length| "a".repeat(length));
    let ids: [&[u32]; 4] = [&[2, 6, 7, 8, 11, 16, 14, 15, 12, 3], &[2, 8, 8, 5], &[12, 12], &[5, 22]];
    let mut changes = vec![
        json!({}),
        json!({ "/normalizer/clean_text": false }),
        json!({ "/normalizer/handle_chinese_chars": false }),
        json!({ "/decoder/cleanup": false }),
        json!({ "/model/continuing_subword_prefix": "", "/decoder/prefix": "" }),
        json!({ "/model/max_input_chars_per_word": 4 }),
        template_processing(),
    ];
    for lowercase in [false, true] {
        for strip_accents in [Value::Null, json!(false), json!(true)] {
            changes.push(
                json!({ "/normalizer/lowercase": lowercase, "/normalizer/strip_accents": strip_accents }),
            );
        }
    }
    for changes in changes {
        let twins = Twins::new(&changes);
        for text in texts.iter().copied().chain(long.iter().map(String::as_str)) {
            for ends in [BosEos::Add, BosEos::Omit] {
                twins.encode(text, ends);
            }
        }
        for ids in ids {
            [Specials::Keep, Specials::Skip].into_iter().for_each(|specials| twins.decode(ids, specials));
        }
    }
}

/// A template of texts in place of BERT's own, and a model without its type.
fn template_processing() -> Value {
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
    json!({ "/post_processor": template, "/model": untyped })
}

#[test]
fn random_texts_have_the_librarys_ids_and_text() {
    let letters = [
        "a",
        "s",
        "un",
        "aff",
        "able",
        "the",
        "é",
        "e\u{301}",
        "É",
        "İ",
        "ẞ",
        "叫",
        "\u{F900}",
        "\u{2B81D}",
        " ",
        "\u{A0}",
        "\u{2028}",
        "\t",
        "\u{1}",
        "\u{85}",
        "\u{FFFD}",
        "'",
        ".",
        "!",
        "$",
        "«",
        "\u{E0001}",
        "[CLS]",
        "[UNK]",
        "[MASK]",
        "[mask]",
        "##",
        "\u{1100}\u{1161}",
        "가",
        "\u{FDFA}",
        "😀",
    ];
    let all: Vec<u32> = (0..TOKENS).collect();
    for seed in 0..400 {
        let mut random = Random(seed);
        println!("seed {seed}");
        let mut is = || random.once_in(2);
        let twins = Twins::new(&json!({
            "/normalizer/clean_text": is(),
            "/normalizer/handle_chinese_chars": is(),
            "/normalizer/strip_accents": is().then(&mut is),
            "/normalizer/lowercase": is(),
            "/decoder/cleanup": is(),
            "/added_tokens/4/normalized": is(),
            "/added_tokens/4/single_word": is(),
            "/added_tokens/4/lstrip": is(),
        }));
        for _ in 0..20 {
            let text: String = (0..random.below(20)).map(|_| random.of(&letters)).collect();
            let ids = twins.encode(&text, BosEos::Add);
            for specials in [Specials::Keep, Specials::Skip] {
                twins.decode(&ids, specials);
            }
            let any: Vec<u32> = (0..10).map(|_| random.of(&all)).collect();
            twins.decode(&any, Specials::Keep);
        }
    }
}
