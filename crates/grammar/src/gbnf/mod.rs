//! Grammars of llama.cpp (GBNF): read, and written as a regular expression or in Lark.
//!
//! GBNF describes characters, and Lark lexemes: of several lexemes that begin alike, a lexer takes the longest. So a
//! grammar that is not recursive becomes one regular expression, and in any other each lexeme is one character.

mod parse;
mod write;

use girih_tensor::Result;

use write::written;

/// The maximum number of rules.
const MAX_RULES: usize = 1024;

/// The maximum nesting of brackets.
const MAX_DEPTH: usize = 64;

/// The maximum number of characters, classes, names and brackets.
const MAX_PIECES: usize = 16_384;

/// The maximum count of a repetition, that of llama.cpp.
const MAX_REPETITIONS: u32 = 2000;

/// A grammar.
#[derive(Debug)]
struct GbnfGrammar {
    rules: Vec<Alternatives>,
    /// The number of the rule `root`.
    root: usize,
}

/// Sequences of which a text is one.
type Alternatives = Vec<Vec<Item>>;

/// A piece that is repeated.
#[derive(Debug)]
struct Item {
    piece: Piece,
    min: u32,
    /// `None` without a maximum.
    max: Option<u32>,
}

/// A piece of a sequence.
#[derive(Debug)]
enum Piece {
    /// These characters in order.
    Text(String),
    /// One character of these ranges, or of no one of them.
    Class { is_negated: bool, ranges: Vec<(char, char)> },
    /// What this rule describes.
    Rule(usize),
    /// What these alternatives describe.
    Group(Alternatives),
}

/// What a grammar is written as.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WrittenGbnf {
    /// A regular expression, in the syntax of the crate `regex`.
    Pattern(String),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
}

/// Reads a grammar, and writes it in the form that describes the same texts.
///
/// # Errors
/// When it is malformed, exceeds a limit, or has what is not supported; names the line.
pub(crate) fn translated(text: &str) -> Result<WrittenGbnf> {
    Ok(written(&parse::grammar(text)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_without_recursion_is_an_expression() {
        let WrittenGbnf::Pattern(pattern) =
            translated("root ::= \"a\" digit+ # end\ndigit ::= [0-9]").unwrap()
        else {
            panic!("it is not recursive")
        };
        assert_eq!(pattern, r"\x{61}(?:[\x{30}-\x{39}])+");
        let recursive = translated("root ::= \"(\" root \")\" | [^()] |").unwrap();
        let lark = "start: r0\nr0: (/\\x{28}/ r0 /\\x{29}/|/[^\\x{28}\\x{29}]/)?\n";
        assert_eq!(recursive, WrittenGbnf::Lark(lark.to_owned()));
    }

    #[test]
    fn faults_are_refused_with_their_line() {
        let fault = |text: &str| translated(text).unwrap_err().to_string();
        for (text, part) in [
            ("a ::= \"b\"", "no rule root"),
            ("root ::= b", "line 1: there is no rule b"),
            ("root ::= \"a\"\nroot ::= \"b\"", "line 2: there are two rules root"),
            ("root ::= \"a", "line 1: a text in quotes does not end"),
            ("root ::= [a", "line 1: a class in brackets does not end"),
            ("root ::= [z-a]", "line 1: the range z-a"),
            ("root ::= [ab]\n\nb ::= \"\\q\"", "line 3: \\q"),
            ("root ::= \"\\uD800\"", "line 1: D800 is no character"),
            ("root ::= (\"a\"", "line 1: a bracket ( does not end"),
            ("root ::= \"a\" {3,2}", "line 1: {3,2}"),
            ("root ::= \"a\" {2001}", "line 1: the maximum of repetitions is 2000"),
            ("root ::= \"a\" {x}", "line 1: a number was expected"),
            ("root ::= * \"a\"", "line 1: nothing stands before *"),
            ("root ::= <think>", "line 1: tokens by name or number are not supported"),
            ("root := \"a\"", "line 1: ::= was expected"),
            ("root ::= \"a\" ) \"b\"", "line 1: ')' was not expected"),
            ("", "no rule root"),
        ] {
            assert!(fault(text).contains(part), "{text}: {}", fault(text));
        }
        let nested = format!("root ::= {}\"a\"{}", "(".repeat(65), ")".repeat(65));
        assert!(fault(&nested).contains("64 levels"));
        assert!(fault(&format!("root ::= \"{}\"", "a".repeat(16_385))).contains("16384"));
    }
}
