//! Grammars of llama.cpp (GBNF): read, and written as a regular expression or in Lark.
//!
//! GBNF describes characters, and Lark lexemes: of several lexemes that begin alike, a lexer takes the longest. So a
//! grammar that is not recursive becomes one regular expression, and in any other each lexeme is one character.

mod grammar;
mod parse;
mod write;

use girih_tensor::Result;

pub(crate) use grammar::WrittenGbnf;
use write::written;

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
