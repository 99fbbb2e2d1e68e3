//! Regular expressions, Lark grammars and JSON objects, and the masks of their constraints.

use girih_engine::Constraint;
use girih_grammar::Grammar;

use crate::feed::{STOP, accepts, compiler, random_reply, tokenizer, tokens};

#[test]
fn regular_expressions_match_the_whole_text() {
    let grammar = Grammar::Regex(r"(yes|no)( maybe)?".to_owned());
    for (text, expected) in
        [("yes", true), ("no maybe", true), ("yes!", false), ("maybe", false), ("ye", false)]
    {
        assert_eq!(accepts(&grammar, text), Ok(expected), "{text}");
    }
    let grammar = Grammar::Regex(r"\d{3}-[äöü]+".to_owned());
    assert_eq!(accepts(&grammar, "123-äü"), Ok(true));
    assert_eq!(accepts(&grammar, "12-ä"), Ok(false));
}

/// Of the characters behind a backslash, the crate `regex` takes `<` and `>` for word boundaries.
#[test]
fn escaped_angle_brackets_of_a_pattern_are_characters() {
    let cases = [
        (r#"{"type":"string","pattern":"^a\\<b$"}"#, r#""a<b""#, r#""ab""#),
        (r#"{"type":"string","pattern":"^[\\<x]$"}"#, r#""<""#, r#""\\""#),
        (r#"{"type":"string","pattern":"^\\\\<\\>$"}"#, r#""\\<>""#, r#""<>""#),
        (r#"{"patternProperties":{"^\\<":false,"^<":true},"type":"object"}"#, r#"{"a":1}"#, r#"{"<a":1}"#),
        (
            r#"{"properties":{"pattern":{"pattern":"\\>"}},"type":"object"}"#,
            r#"{"pattern":">"}"#,
            r#"{"pattern":""}"#,
        ),
        (r#"{"const":{"pattern":"\\<"}}"#, r#"{"pattern":"\\<"}"#, r#"{"pattern":"<"}"#),
    ];
    for (schema, valid, invalid) in cases {
        let grammar = Grammar::JsonSchema(schema.to_owned());
        assert_eq!(accepts(&grammar, valid), Ok(true), "{schema}");
        assert_eq!(accepts(&grammar, invalid), Ok(false), "{schema}");
    }
}

/// Beside a set such as `\d`, a hyphen is a character; it made a range up to the bracket of the set.
#[test]
fn a_hyphen_beside_a_set_of_a_class_is_a_character() {
    for (class, valid, invalid) in
        [(r"[+-\\d]", "+-7", ",.;[]"), (r"[\\w-.]", "a_-.", "/+"), ("[a-c-e]", "abc-e", "d")]
    {
        let grammar = Grammar::JsonSchema(format!(r#"{{"type":"string","pattern":"^{class}$"}}"#));
        for (texts, expected) in [(valid, true), (invalid, false)] {
            for text in texts.chars() {
                assert_eq!(accepts(&grammar, &format!("\"{text}\"")), Ok(expected), "{class} {text}");
            }
        }
    }
}

/// The texts that are written for a format are fewer than those of its standard, so what must not have the
/// format cannot be all others.
#[test]
fn what_must_not_have_a_format_has_none_of_its_texts() {
    let texts = [
        ("date", "2024-02-29"),
        ("time", "23:59:60.1234567890Z"),
        ("date-time", "1990-12-31T23:59:60Z"),
        ("duration", "P1234567890D"),
        ("email", "a%b@c.de"),
        ("hostname", "a-b.c.d.e.f"),
        ("ipv4", "255.1.20.3"),
        ("uuid", "2EB8AA08-aa98-11ea-b4aa-73b441d16380"),
        ("uri", "urn:a:b"),
    ];
    for (format, text) in texts {
        let other = format!(r#"{{"type":"string","not":{{"format":"{format}"}}}}"#);
        let one_of = format!(r#"{{"oneOf":[{{"const":"{text}"}},{{"format":"{format}"}}],"type":"string"}}"#);
        for schema in [other, one_of] {
            let grammar = Grammar::JsonSchema(schema.clone());
            match accepts(&grammar, &format!("\"{text}\"")) {
                Ok(is_accepted) => assert!(!is_accepted, "{schema} accepts {text}"),
                Err(error) => panic!("{schema}: {error}"),
            }
        }
        let grammar = Grammar::JsonSchema(format!(r#"{{"type":"string","not":{{"format":"{format}"}}}}"#));
        assert_eq!(accepts(&grammar, "\"a b\""), Ok(true), "{format}");
    }
    // Formats that have no text in common are told apart.
    let grammar = Grammar::JsonSchema(
        r#"{"type":"string","oneOf":[{"format":"date"},{"format":"date-time"},{"format":"email"}]}"#
            .to_owned(),
    );
    for text in ["2024-02-29", "2024-02-29T01:02:03Z", "a@b.c"] {
        assert_eq!(accepts(&grammar, &format!("\"{text}\"")), Ok(true), "{text}");
    }
}

#[test]
fn a_choice_has_any_texts() {
    let texts = ["<yes>", "a > b", "(no|x)*", "é\u{2028}\n", ""].map(str::to_owned);
    let grammar = Grammar::Choice(texts.to_vec());
    for text in &texts {
        assert_eq!(accepts(&grammar, text), Ok(true), "{text:?}");
    }
    for text in ["yes", "<yes", "a  b", "nono", "x"] {
        assert_eq!(accepts(&grammar, text), Ok(false), "{text:?}");
    }
    let many = Grammar::Choice((0..1000).map(|number| format!("{number:062}")).collect());
    assert_eq!(accepts(&many, &format!("{:062}", 999)), Ok(true));
    assert_eq!(accepts(&many, &format!("{:062}", 1000)), Ok(false));
    assert_eq!(accepts(&Grammar::Choice(vec!["a".repeat(4100)]), &"a".repeat(4100)), Ok(true));
    for (texts, reason) in [
        (vec![], "0 texts"),
        (vec!["a".to_owned(); 1025], "1025 texts"),
        (vec!["a".repeat(33_000); 2], "66000 bytes"),
    ] {
        let error = compiler().compile(&Grammar::Choice(texts)).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn lark_grammars_may_be_recursive() {
    let grammar = Grammar::Lark(
        r#"start: expr
expr: NUMBER | "(" expr OP expr ")"
OP: "+" | "*"
NUMBER: /[0-9]+/"#
            .to_owned(),
    );
    for (text, expected) in [("12", true), ("(1+(2*3))", true), ("(1+2", false), ("1+2", false)] {
        assert_eq!(accepts(&grammar, text), Ok(expected), "{text}");
    }
}

#[test]
fn lark_grammars_may_name_special_tokens() {
    let special = 0;
    assert!(tokenizer().token_bytes(special).is_empty(), "token {special} is special");
    let grammar = Grammar::Lark(format!("start: \"é\" <[{special}]> \"a\""));
    let mut constraint = compiler().compile(&grammar).unwrap();
    for id in tokens("é").into_iter().chain([special]).chain(tokens("a")) {
        constraint.accept(id).unwrap();
    }
    assert!(constraint.is_complete());
}

#[test]
fn grammars_of_llama_cpp_describe_characters() {
    let gbnf = |text: &str| Grammar::Gbnf(text.to_owned());
    // Its own examples.
    let list = gbnf("root ::= item+\n\nitem ::= \"- \" [^\\r\\n\\x0b\\x0c\\x85\\u2028\\u2029]+ \"\\n\"");
    for (text, expected) in [("- a\n- é\n", true), ("- a", false), ("- \n", false), ("", false)] {
        assert_eq!(accepts(&list, text), Ok(expected), "{text:?}");
    }
    let json = gbnf(
        r#"root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}"#,
    );
    for (text, expected) in [
        (r#"{"a": [1, -2.5e3, {"b\u00e9": "c\""}], "d": true}"#, true),
        ("{}", true),
        ("{\n \"truefalse\": null}", true),
        (r#"{"a": tru}"#, false),
        ("[1]", false),
        (r#"{"a": 1"#, false),
    ] {
        assert_eq!(accepts(&json, text), Ok(expected), "{text}");
    }
    assert!((0..20).any(|seed| random_reply(&json, seed, 80)));
    // A lexer would take the longest of the lexemes that begin alike.
    let alike = gbnf("root ::= \"(\" root \")\" | \"if\" | [a-z] \"x\" | [a-z]{3} | \"ifx\" \"y\"");
    for text in ["if", "ix", "(ifx)", "((abc))", "ifxy", "fix"] {
        assert_eq!(accepts(&alike, text), Ok(true), "{text}");
    }
    for text in ["i", "ifyy", "(if", "abcd", "xi"] {
        assert_eq!(accepts(&alike, text), Ok(false), "{text}");
    }
    let any = gbnf("root ::= \"a\" .{2,3} \"é\"? e\ne ::= ");
    for (text, expected) in [("a\n\u{1F600}", true), ("abcdé", true), ("ab", false), ("abcdef", false)] {
        assert_eq!(accepts(&any, text), Ok(expected), "{text:?}");
    }
    let error = compiler().compile(&gbnf("root ::= \"a\"\nb ::= c")).err().unwrap().to_string();
    assert_eq!(error, "line 2: there is no rule c");
}

#[test]
fn constraints_of_several_replies_are_independent() {
    let grammar = Grammar::Regex("(ab|ba)+c".to_owned());
    let mut all = compiler().compile_several(&grammar, 3).unwrap();
    for (constraint, text) in all.iter_mut().zip(["abc", "bac", "abbac"]) {
        for id in tokens(text) {
            constraint.accept(id).unwrap();
        }
        assert!(constraint.is_complete(), "{text}");
    }
}

#[test]
fn any_object_is_an_object() {
    let cases = [
        (r#"{}"#, true),
        (r#"{"a": [1, -2.5e3, true, null], "b": {"c": "d"}}"#, true),
        ("[]", false),
        ("{\"a\":}", false),
        ("{\"a\":1", false),
        ("{\"a\":\"\n\"}", false),
        (r#"{"a":"\u001f\n"}"#, true),
        (r#"{"a":01}"#, false),
        ("{  }", false),
    ];
    for (text, expected) in cases {
        assert_eq!(accepts(&Grammar::JsonObject, text), Ok(expected), "{text}");
    }
}

#[test]
fn the_mask_has_the_tokens_that_are_accepted() {
    let grammar = Grammar::Regex("ab?".to_owned());
    let mask = |constraint: &mut dyn Constraint| {
        // The model has more logits than the tokenizer has tokens.
        let mut allowed = vec![true; 600];
        constraint.mask(&mut allowed).unwrap();
        (0..600).filter(|id| allowed[*id as usize]).collect::<Vec<u32>>()
    };
    let mut constraint = compiler().compile(&grammar).unwrap();
    let first = mask(&mut constraint);
    assert!(first.contains(&tokens("a")[0]) && !first.contains(&STOP), "{first:?}");
    constraint.accept(tokens("a")[0]).unwrap();
    assert_eq!(mask(&mut constraint), mask(&mut constraint));
    let is_b = |id: &u32| *id == STOP || tokenizer().token_bytes(*id) == b"b";
    assert_eq!(mask(&mut constraint), (0..600).filter(is_b).collect::<Vec<u32>>());
    constraint.accept(tokens("b")[0]).unwrap();
    // Nothing may follow, so the reply needs no stop token.
    assert!(constraint.is_complete());
    assert!(constraint.accept(STOP).is_err());
    let mut other = compiler().compile(&grammar).unwrap();
    let error = other.accept(tokens("b")[0]).unwrap_err().to_string();
    assert!(error.contains("does not allow token"), "{error}");
    assert!(other.mask(&mut [true; 600]).is_err(), "a constraint that failed stays so");
}
