//! Feeds texts to constraints, token by token.

use std::path::Path;
use std::sync::OnceLock;

use girih_engine::Constraint;
use girih_grammar::{Grammar, GrammarCompiler};
use girih_tensor::{ErrorKind, Random, Result};
use girih_words::{TextLimits, Tokenizer};
use serde_json::{Map, Value};

/// The stop token of the tokenizer.
pub const STOP: u32 = 2;

/// The tokenizer of the fixtures: 512 tokens, those of all bytes among them.
pub fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/llama32_tied/tokenizer.json");
        Tokenizer::from_json(&std::fs::read(path).unwrap(), &TextLimits::default()).unwrap()
    })
}

/// The compiler of all tests.
pub fn compiler() -> &'static GrammarCompiler {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    COMPILER.get_or_init(|| GrammarCompiler::new(tokenizer(), &[STOP]).unwrap())
}

/// The tokens of a text: at each place the longest one.
pub fn tokens(text: &str) -> Vec<u32> {
    static TOKENS: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    let all =
        TOKENS.get_or_init(|| (0..tokenizer().vocab_size()).map(|id| tokenizer().token_bytes(id)).collect());
    let (mut rest, mut ids) = (text.as_bytes(), Vec::new());
    while !rest.is_empty() {
        let fits = |id: &usize| !all[*id].is_empty() && rest.starts_with(&all[*id]);
        let longest =
            (0..all.len()).filter(fits).max_by_key(|id| all[*id].len()).expect("each byte is a token");
        ids.push(longest as u32);
        rest = &rest[all[longest].len()..];
    }
    ids
}

/// Whether a grammar accepts a text as a whole.
///
/// # Panics
/// When the grammar accepts it and the check of finished replies does not.
pub fn accepts(grammar: &Grammar, text: &str) -> Result<bool> {
    let mut constraint = compiler().compile(grammar)?;
    for id in tokens(text).into_iter().chain([STOP]) {
        // A text that nothing may follow is complete without a stop token.
        if id == STOP && constraint.is_complete() {
            return Ok(true);
        }
        match constraint.accept(id) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Refused => return Ok(false),
            Err(error) => panic!("{grammar:?} accepts {text}: {error}"),
        }
    }
    assert!(constraint.is_complete());
    Ok(true)
}

/// Takes random tokens from a constraint's masks, punctuation more often, until the reply is
/// complete: whether it was within this number of tokens.
///
/// # Panics
/// When the finished reply is not valid, or a token of a mask is refused.
pub fn random_reply(grammar: &Grammar, seed: u64, tokens: usize) -> bool {
    let mut constraint = compiler().compile(grammar).unwrap();
    let mut random = Random(seed);
    let (mut text, mut allowed) = (Vec::new(), vec![true; 512]);
    for _ in 0..tokens {
        allowed.fill(true);
        constraint.mask(&mut allowed).unwrap();
        let all: Vec<u32> = (0..512).filter(|id| allowed[*id as usize]).collect();
        let is_mark = |id: &u32| {
            let bytes = tokenizer().token_bytes(*id);
            bytes.len() <= 1 && bytes.iter().all(|byte| b"\"}],:".contains(byte))
        };
        let marks: Vec<u32> = all.iter().copied().filter(is_mark).collect();
        let choices = if marks.is_empty() || random.once_in(3) { &all } else { &marks };
        let id = random.of(choices);
        text.extend(tokenizer().token_bytes(id));
        let shown = String::from_utf8_lossy(&text);
        constraint.accept(id).unwrap_or_else(|error| panic!("seed {seed}: {error}: {shown} of {grammar:?}"));
        if constraint.is_complete() {
            return true;
        }
    }
    false
}

/// Whether a grammar accepts a value in some order of its members.
pub fn accepts_value(grammar: &Grammar, value: &Value) -> Result<bool> {
    for order in orders(value) {
        if accepts(grammar, &canonical(&order))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The text of a value without white space, whose numbers have neither an exponent nor zeros at
/// the end of a fraction.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            let text = match number.as_f64() {
                Some(float) if number.is_f64() => format!("{float}"),
                _ => number.to_string(),
            };
            if text == "-0" { "0".to_owned() } else { text }
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{}:{}", Value::String(name.clone()), canonical(value))
            };
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(","))
        }
        scalar => scalar.to_string(),
    }
}

/// The value with its members in all orders, at most some hundreds.
fn orders(value: &Value) -> Vec<Value> {
    const MOST: usize = 240;
    match value {
        Value::Array(items) => {
            let mut all: Vec<Vec<Value>> = vec![Vec::new()];
            for item in items {
                let each = orders(item);
                all = all
                    .iter()
                    .flat_map(|done| each.iter().map(move |item| [done.clone(), vec![item.clone()]].concat()))
                    .take(MOST)
                    .collect();
            }
            all.into_iter().map(Value::Array).collect()
        }
        Value::Object(members) => {
            let mut all: Vec<Vec<(String, Value)>> = vec![Vec::new()];
            for (name, value) in members {
                let each = orders(value);
                let mut more = Vec::new();
                for done in &all {
                    for value in &each {
                        // The given order comes first.
                        for at in (0..=done.len()).rev() {
                            let mut order = done.clone();
                            order.insert(at, (name.clone(), value.clone()));
                            more.push(order);
                        }
                    }
                }
                more.truncate(MOST);
                all = more;
            }
            all.into_iter().map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())).collect()
        }
        scalar => vec![scalar.clone()],
    }
}
