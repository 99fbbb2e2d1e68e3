//! Models of tokens, and the words that BERT's pre-tokenizer makes.

use girih_tensor::Random;
use girih_words::twins::{BpeSample, WordPieceSample, bert_words};
use serde_json::{Map, Value, json};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{Model as _, OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _};

/// A BPE model whose tokens are a few letters and all results of its merges.
struct BpeParts {
    tokens: Vec<String>,
    merges: Vec<(String, String)>,
    unknown: Option<String>,
    flags: [bool; 3],
}

impl BpeParts {
    fn random(random: &mut Random) -> BpeParts {
        let mut tokens: Vec<String> = ["a", "b", "é", "ŋ"].map(str::to_owned)[..2 + random.below(3)].to_vec();
        let mut merges = Vec::new();
        for _ in 0..random.below(24) {
            let [left, right] = [(); 2].map(|()| tokens[random.below(tokens.len())].clone());
            let sides = (left, right);
            let joined = format!("{}{}", sides.0, sides.1);
            if !tokens.contains(&joined) {
                tokens.push(joined);
            }
            // The same merge may occur twice.
            merges.push(sides);
        }
        let bytes = ["<0xC3>", "<0xA9>", "<0xC5>"].map(str::to_owned);
        tokens.extend(bytes.into_iter().take(random.below(4)));
        let unknown = random.once_in(2).then(|| "?".to_owned());
        tokens.extend(unknown.clone());
        BpeParts { tokens, merges, unknown, flags: [(); 3].map(|()| random.once_in(2)) }
    }

    fn theirs(&self) -> BPE {
        let [fuse_unknown, byte_fallback, ignore_merges] = self.flags;
        let vocabulary: Vocab = self.tokens.iter().cloned().zip(0..).collect();
        let mut builder = BPE::builder()
            .vocab_and_merges(vocabulary, self.merges.clone())
            .fuse_unk(fuse_unknown)
            .byte_fallback(byte_fallback)
            .ignore_merges(ignore_merges);
        if let Some(unknown) = &self.unknown {
            builder = builder.unk_token(unknown.clone());
        }
        builder.build().expect("every merged string is a token")
    }
}

/// Compares BPE with the library on random words of one random model.
fn compare_bpe(seed: u64) {
    let mut random = Random(seed);
    let parts = BpeParts::random(&mut random);
    let theirs = parts.theirs();
    let ours = BpeSample::new(&parts.tokens, &parts.merges, parts.unknown.clone(), parts.flags);
    let ours = ours.expect("the library accepts it");
    for _ in 0..20 {
        let word: String = (0..random.below(12)).map(|_| random.of(&["a", "b", "é", "ŋ", "?"])).collect();
        let tokens = theirs.tokenize(&word).expect("the unknown token is a token");
        let is_whole = tokens.last().map_or(0, |token| token.offsets.1) == word.len();
        let ids = ours.encode(&word);
        assert_eq!(ids.is_ok(), is_whole, "seed {seed}: {word:?}");
        if let Ok(ids) = ids {
            let theirs: Vec<u32> = tokens.iter().map(|token| token.id).collect();
            assert_eq!(ids, theirs, "seed {seed}: {word:?} of {:?}, {:?}", parts.tokens, parts.merges);
        }
    }
}

#[test]
fn random_bpe_models_give_the_ids_of_the_library() {
    (0..3000).for_each(compare_bpe);
}

/// Compares WordPiece with the library on random words of one random vocabulary.
fn compare_wordpiece(seed: u64) {
    let mut random = Random(seed);
    let prefix = random.of(&["##", "", "a", "é", "#"]);
    let mut tokens = vec!["?".to_owned()];
    for _ in 0..random.below(30) {
        let start = random.of(&["", prefix, prefix]);
        let letters: String = (0..random.below(5)).map(|_| random.of(&["a", "b", "é", "#"])).collect();
        let token = format!("{start}{letters}");
        if !tokens.contains(&token) {
            tokens.push(token);
        }
    }
    let max_chars = random.below(12);
    let ours = WordPieceSample::new(&tokens, prefix, max_chars).expect("a small vocabulary");
    let vocabulary: Map<String, Value> = tokens.iter().cloned().zip((0_u32..).map(Value::from)).collect();
    let theirs = json!({
        "unk_token": "?",
        "continuing_subword_prefix": prefix,
        "max_input_chars_per_word": max_chars,
        "vocab": vocabulary,
    });
    let theirs = WordPiece::from_bytes(theirs.to_string()).expect("the library reads it");
    for _ in 0..20 {
        let word: String =
            (0..random.below(12)).map(|_| random.of(&["a", "b", "é", "#", "\u{A9}"])).collect();
        let want: Vec<u32> =
            theirs.tokenize(&word).expect("an unknown token").into_iter().map(|token| token.id).collect();
        assert_eq!(ours.encode(&word), want, "seed {seed}: {word:?} of {tokens:?}, {prefix:?}");
    }
}

#[test]
fn random_wordpiece_models_give_the_ids_of_the_library() {
    (0..3000).for_each(compare_wordpiece);
}

#[test]
fn berts_words_with_every_character_equal_the_librarys() {
    let all: Vec<char> = (0..=0x10_FFFF).filter_map(char::from_u32).collect();
    for chars in all.chunks(256) {
        let text: String = chars.iter().flat_map(|c| ['a', *c, *c]).collect();
        let mut theirs = PreTokenizedString::from(text.as_str());
        BertPreTokenizer.pre_tokenize(&mut theirs).expect("the library splits");
        let theirs = theirs.get_splits(OffsetReferential::Normalized, OffsetType::Byte);
        let theirs: Vec<&str> = theirs.into_iter().map(|(word, ..)| word).collect();
        assert_eq!(bert_words(&text), theirs, "{text:?}");
    }
}
