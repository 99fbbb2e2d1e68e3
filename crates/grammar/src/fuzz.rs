//! Entry point of the fuzz target: any text as a grammar, and a reply by its masks.

use girih_engine::Constraint;
use girih_words::{TextLimits, Tokenizer};

use crate::{Grammar, GrammarCompiler};

/// The largest number of tokens of a reply; a grammar may allow an endless one.
const TOKENS: usize = 48;

/// A compiler for the tokenizer in these bytes of a `tokenizer.json`.
///
/// # Panics
/// If they hold none.
pub fn compiler(tokenizer: &[u8]) -> GrammarCompiler {
    let tokenizer = Tokenizer::from_json(tokenizer, &TextLimits::DEFAULT).expect("the tokenizer is right");
    GrammarCompiler::new(&tokenizer, &[2]).expect("a thread starts")
}

/// Compiles any bytes: the first one chooses the kind of grammar. If it is accepted, takes tokens
/// from its masks; the last byte chooses them.
///
/// # Panics
/// If a complete reply is not what the grammar describes, or a mask has a token that is refused.
pub fn grammar(compiler: &GrammarCompiler, bytes: &[u8]) {
    let Some((kind, text)) = bytes.split_first() else { return };
    let Ok(text) = String::from_utf8(text.to_vec()) else { return };
    let mut choice = usize::from(*bytes.last().unwrap_or(&0));
    let grammar = match kind % 4 {
        0 => Grammar::JsonSchema(text),
        1 => Grammar::Regex(text),
        2 => Grammar::Lark(text),
        _ => Grammar::Gbnf(text),
    };
    let Ok(mut constraint) = compiler.compile(&grammar) else { return };
    let mut allowed = vec![true; 512];
    for _ in 0..TOKENS {
        allowed.fill(true);
        // A grammar that is too complex for a mask, or allows no text, ends its request.
        if constraint.is_complete() || constraint.mask(&mut allowed).is_err() {
            return;
        }
        let tokens: Vec<u32> = (0..512).filter(|id| allowed[*id as usize]).collect();
        let Some(id) = tokens.get(choice % tokens.len().max(1)) else { return };
        choice = choice.wrapping_mul(31).wrapping_add(7);
        if let Err(error) = constraint.accept(*id) {
            let is_fault = error.to_string().contains("a fault of girih");
            assert!(!is_fault && !error.to_string().contains("does not allow"), "{grammar:?}: {error}");
            return;
        }
    }
}
