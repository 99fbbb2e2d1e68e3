//! Whole tokenizers: files with stages drawn at random, read by both.

use girih_tensor::Random;
use girih_words::{BosEos, TextLimits, TextOrigin, Tokenizer};
use serde_json::{Value, json};

/// What texts and tokens are made of.
const PIECES: &[&str] = &[
    "a", "b", "c", "ab", "A", "É", "é", "e\u{301}", "ß", "İ", " ", "  ", "\n", "\t", "\u{a0}", "\u{200b}", "▁", "1",
    "23", "456", "½", "٣", ".", "!?", "-", "'s", "日", "本語", "<x>", "ab <x> ", "\u{7}", "ﬁ", "①", "🙂", "👩\u{200d}👩",
];

const BEHAVIORS: [&str; 5] =
    ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"];

/// Patterns that both engines read.
const PATTERNS: &[&str] = &[
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    r"\d{1,3}(?=(?:\d{3})*(?!\d))",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"(?:\r?\n)+(?!\r?\n)",
    "[一-龥]+",
    r"\s?\p{P}+",
    r"\p{N}{1,3}",
];

fn normalizer(random: &mut Random) -> Value {
    match random.below(12) {
        0 => json!({"type": "NFC"}),
        1 => json!({"type": "NFKD"}),
        2 => json!({"type": "NFKC"}),
        3 => json!({"type": "Lowercase"}),
        4 => json!({"type": "StripAccents"}),
        5 => json!({"type": "Nmt"}),
        6 => json!({"type": "Strip", "strip_left": random.once_in(2), "strip_right": random.once_in(2)}),
        7 => json!({"type": "Prepend", "prepend": "▁"}),
        8 => json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        9 => json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}),
        10 => json!({"type": "Replace", "pattern": {"Regex": r"\p{N}+"}, "content": "0"}),
        _ => json!({"type": "BertNormalizer", "clean_text": random.once_in(2), "handle_chinese_chars": random.once_in(2),
            "strip_accents": null, "lowercase": random.once_in(2)}),
    }
}

fn pre_tokenizer(random: &mut Random) -> Value {
    let behavior = random.of(&BEHAVIORS);
    match random.below(10) {
        0 => json!({"type": "Whitespace"}),
        1 => json!({"type": "WhitespaceSplit"}),
        2 => json!({"type": "Punctuation", "behavior": behavior}),
        3 => json!({"type": "Digits", "individual_digits": random.once_in(2)}),
        4 => json!({"type": "BertPreTokenizer"}),
        5 => json!({"type": "CharDelimiterSplit", "delimiter": "-"}),
        6 | 7 => json!({"type": "Metaspace", "replacement": "▁", "split": random.once_in(2),
            "prepend_scheme": random.of(&["first", "never", "always"])}),
        8 => json!({"type": "Split", "pattern": {"String": random.of(PIECES)}, "behavior": behavior,
            "invert": random.once_in(2)}),
        _ => json!({"type": "Split", "pattern": {"Regex": random.of(PATTERNS)}, "behavior": behavior,
            "invert": random.once_in(2)}),
    }
}

/// Distinct tokens: all pieces, and joined ones.
fn tokens(random: &mut Random) -> Vec<String> {
    let mut tokens = vec!["<unk>".to_owned()];
    for _ in 0..random.below(60) {
        let count = 1 + random.below(3);
        let token: String = (0..count).map(|_| random.of(PIECES)).collect();
        if !tokens.contains(&token) && token != "<x>" {
            tokens.push(token);
        }
    }
    tokens
}

/// A model, and the number of its tokens.
fn model(random: &mut Random) -> (Value, usize) {
    let mut tokens = tokens(random);
    if random.once_in(2) {
        let byte_fallback = random.once_in(2);
        if byte_fallback {
            tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        }
        // Few scores, so that sums are often equal.
        let entry = |token: &String, random: &mut Random| json!([token, -(random.below(8) as f64) / 4.0]);
        let entries: Vec<Value> = tokens.iter().map(|token| entry(token, random)).collect();
        let model = json!({"type": "Unigram", "unk_id": 0, "vocab": entries, "byte_fallback": byte_fallback});
        return (model, tokens.len());
    }
    let mut merges = Vec::new();
    for _ in 0..random.below(30) {
        let [left, right] = [(); 2].map(|()| tokens[random.below(tokens.len())].clone());
        let joined = format!("{left}{right}");
        if joined.contains("<x>") || left == "<unk>" || right == "<unk>" {
            continue;
        }
        if !tokens.contains(&joined) {
            tokens.push(joined);
        }
        merges.push(json!([left, right]));
    }
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().zip(0..).map(|(token, id): (_, u32)| (token.clone(), json!(id))).collect();
    let model = json!({"type": "BPE", "unk_token": "<unk>", "fuse_unk": random.once_in(2), "byte_fallback": false,
        "ignore_merges": random.once_in(2), "vocab": vocab, "merges": merges, "dropout": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null});
    (model, tokens.len())
}

/// A tokenizer file with stages drawn at random.
fn file(random: &mut Random) -> Value {
    let normalizers: Vec<Value> = (0..random.below(4)).map(|_| normalizer(random)).collect();
    let steps: Vec<Value> = (0..random.below(4)).map(|_| pre_tokenizer(random)).collect();
    let (model, count) = model(random);
    let added = json!({"id": count, "content": "<x>", "single_word": random.once_in(4), "lstrip": random.once_in(3),
        "rstrip": random.once_in(3), "normalized": random.once_in(3), "special": random.once_in(2)});
    json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": [added],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": null,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": model})
}

/// The number of texts compared, or why ours refuses the file.
fn compare(seed: u64) -> Result<usize, String> {
    let mut random = Random(seed);
    let file = file(&mut random).to_string();
    let ours = Tokenizer::from_json(file.as_bytes(), &TextLimits::DEFAULT).map_err(|error| error.to_string())?;
    let theirs = tokenizers::Tokenizer::from_bytes(file.as_bytes()).expect("the library reads the file");
    let mut compared = 0;
    for _ in 0..20 {
        let text: String = (0..random.below(14)).map(|_| random.of(PIECES)).collect();
        let their_ids = theirs.encode(text.as_str(), false).expect("there is an unknown token");
        let our_ids = ours.encode(&text, TextOrigin::Template, BosEos::Omit).expect("there is an unknown token");
        assert_eq!(our_ids, their_ids.get_ids(), "seed {seed}: {text:?} with {file}");
        compared += 1;
    }
    Ok(compared)
}

#[test]
fn drawn_tokenizers_give_the_same_ids() {
    let (mut texts, mut refused) = (0, Vec::new());
    for seed in 0..2_000 {
        match compare(seed) {
            Ok(count) => texts += count,
            Err(error) => refused.push(format!("seed {seed}: {error}")),
        }
    }
    println!("{texts} texts, {} files refused", refused.len());
    assert!(refused.len() < 200, "{refused:#?}");
}
