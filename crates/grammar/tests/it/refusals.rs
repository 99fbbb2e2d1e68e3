//! Grammars that are refused by name, and hostile ones that must not take the process down.

use std::time::{Duration, Instant};

use girih_engine::Constraint;
use girih_grammar::Grammar;
use girih_tensor::ErrorKind;

use crate::feed::{STOP, accepts, compiler, tokens};

fn refusal(grammar: &Grammar) -> String {
    let error = compiler().compile(grammar).err().unwrap_or_else(|| panic!("accepted: {grammar:?}"));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    error.to_string()
}

#[test]
fn unsupported_keywords_are_refused_by_name() {
    let cases = [
        (r#"{"requried": ["a"]}"#, "'requried'"),
        (r#"{"type": "string", "nullable": true}"#, "'nullable'"),
        (r#"{"type": "array", "uniqueItems": true}"#, "'uniqueItems'"),
        (r##"{"properties": {"a": {"$recursiveRef": "#"}}}"##, "'$recursiveRef'"),
        (r#"{"type": "string", "format": "idn-email"}"#, "'idn-email'"),
        (r#"{"type": "string", "pattern": "(?=a)b"}"#, "looks around"),
        (r#"{"type": "string", "pattern": "(a)\\1"}"#, "refers back"),
        (r#"{"$ref": "https://example.org/s.json"}"#, "'https://example.org/s.json'"),
        (r##"{"$ref": "#/$defs/missing"}"##, "'#/$defs/missing'"),
        (r##"{"$ref": "#"}"##, "back to itself"),
        (r##"{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}"##, "back to itself"),
        (r#"{"$schema": "http://json-schema.org/draft-04/schema#"}"#, "draft-04"),
        (r#"{"not": {"patternProperties": {"a": true}}}"#, "'patternProperties within not, oneOf or if'"),
        (r#"{"type": "object", "minProperties": 3}"#, "minProperties 3"),
        (r#"{"type": "integer", "multipleOf": 1e-12}"#, "multipleOf"),
        (r#"{"type": "array", "maxItems": 100000}"#, "maxItems"),
        (r#"{"type": "nothing"}"#, "'type'"),
        (r#"{"minLength": -1}"#, "'minLength'"),
        (r#"{"type": "string", "enum": []}"#, "contradict"),
        ("false", "contradict"),
        (r#"{"type": "object", "required": ["a"], "properties": {"a": false}}"#, "contradict"),
        (
            r##"{"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1}}, "$ref": "#/$defs/a"}"##,
            "contradict",
        ),
        ("{", "not JSON"),
        ("3", "must be an object"),
    ];
    for (schema, reason) in cases {
        let sentence = refusal(&Grammar::JsonSchema(schema.to_owned()));
        assert!(sentence.contains(reason), "{schema}: {sentence}");
    }
    let others = [
        (Grammar::Regex("(".to_owned()), "unclosed group"),
        (Grammar::Regex("a".repeat(5000)), "5000 bytes"),
        (Grammar::Regex(r"\ba".to_owned()), "not supported"),
        (Grammar::Lark("start: missing".to_owned()), "missing"),
        (Grammar::Lark("start: %json {}".to_owned()), "%json"),
        (Grammar::Lark("x".repeat(70_000)), "70000 bytes"),
        (Grammar::Lark(String::new()), "not supported"),
    ];
    for (grammar, reason) in others {
        let sentence = refusal(&grammar);
        assert!(sentence.contains(reason), "{sentence}");
    }
}

/// Nested groups, recursive references, large counts and explosions of alternatives.
#[test]
fn hostile_grammars_are_refused_or_compiled_in_bounded_time() {
    let nested = |open: &str, close: &str, depth: usize| open.repeat(depth) + &close.repeat(depth);
    let list =
        |count: usize, each: &dyn Fn(usize) -> String| (0..count).map(each).collect::<Vec<_>>().join(",");
    let schema = |text: String| Grammar::JsonSchema(text);
    let one_of = list(12, &|n| {
        let properties = list(6, &|p| format!(r#""p{p}": {{"type": "string", "minLength": {n}}}"#));
        format!(r#"{{"properties": {{{properties}}}, "required": ["p{}"]}}"#, n % 6)
    });
    let late = list(60, &|n| format!(r#"{{"anyOf": [{{"required": ["a{n}"]}}, {{"required": ["b{n}"]}}]}}"#));
    let texts =
        list(200, &|n| format!(r#"{{"anyOf": [{{"pattern": "a{n}"}}, {{"pattern": "[a-z]{{{n}}}"}}]}}"#));
    let grammars = [
        schema(nested("[", "]", 60_000 / 2)),
        schema(nested(r#"{"not":"#, "}", 5000)),
        schema(format!("{}true{}", r#"{"not":"#.repeat(60), "}".repeat(60))),
        schema(format!("{}{{}}{}", r#"{"items":"#.repeat(60), "}".repeat(60))),
        schema(format!(r#"{{"oneOf": [{one_of}]}}"#)),
        schema(format!(r#"{{"type": "string", "pattern": "{}"}}"#, nested("(", ")", 1000))),
        schema(r#"{"type": "string", "pattern": "((((a{900}){900}){900}){900})*"}"#.to_owned()),
        schema(r#"{"type": "string", "pattern": "^(a|aa)+$", "maxLength": 4000000000}"#.to_owned()),
        schema(r#"{"type": "string", "minLength": 4000000000}"#.to_owned()),
        schema(format!(
            r#"{{"allOf": [{}]}}"#,
            list(200, &|n| format!(r#"{{"anyOf": [{{"minimum": {n}}}, {{"maximum": {n}}}]}}"#))
        )),
        schema(format!(
            r#"{{"properties": {{{}}}}}"#,
            list(1500, &|n| format!(r#""p{n}": {{"type": "integer"}}"#))
        )),
        schema(format!(
            r##"{{"$defs": {{{}}}, "$ref": "#/$defs/d0"}}"##,
            list(900, &|n| format!(r##""d{n}": {{"items": {{"$ref": "#/$defs/d{}"}}}}"##, (n + 1) % 900))
        )),
        // Alternatives that end late.
        schema(format!(r#"{{"type": "object", "allOf": [{{"anyOf": [{{"type": "string"}}]}}, {late}]}}"#)),
        schema(format!(r#"{{"type": "object", "allOf": [{late}, {{"anyOf": [{{"type": "string"}}]}}]}}"#)),
        schema(format!(r#"{{"type": "string", "allOf": [{texts}, {{"anyOf": [{{"type": "object"}}]}}]}}"#)),
        schema(format!(r#"{{"type": "string", "allOf": [{{"anyOf": [{{"type": "object"}}]}}, {texts}]}}"#)),
        Grammar::Lark("start: start start | \"a\" | start start start".to_owned()),
        Grammar::Regex("(a{1000}){1000}".to_owned()),
        Grammar::Regex(nested("(", ")", 2000)),
        Grammar::Lark(format!("start: {}", nested("(", ")", 2000))),
        Grammar::Lark(format!("start: {}\"a\"{}", "(".repeat(4000), ")".repeat(4000))),
        Grammar::Lark(
            (0..4000).map(|n| format!("r{n}: r{}\n", n + 1)).collect::<String>() + "r4000: \"a\"\nstart: r0",
        ),
        Grammar::Lark(
            (0..4000).map(|n| format!("T{n}: T{}\n", n + 1)).collect::<String>() + "T4000: \"a\"\nstart: T0",
        ),
        Grammar::Lark("start: start \"a\" | start".to_owned()),
        Grammar::Lark("start: a\na: b\nb: a".to_owned()),
    ];
    for grammar in &grammars {
        let begun = Instant::now();
        let result = compiler().compile(grammar);
        let shown: String = format!("{grammar:?}").chars().take(80).collect();
        eprintln!("{:?} {shown}: {:?}", begun.elapsed(), result.as_ref().err().map(ToString::to_string));
        assert!(begun.elapsed() < Duration::from_secs(60), "{shown}");
    }
}

/// The fuzz target on texts that are near to grammars.
#[test]
fn edited_grammars_are_refused_or_work() {
    let seeds = [
        r#"0{"type":"object","properties":{"a":{"type":["integer","null"],"minimum":-3},"b":{"enum":["x",1]}},"required":["a"]}"#,
        r##"0{"$defs":{"n":{"type":"array","items":{"$ref":"#/$defs/n"},"maxItems":2}},"$ref":"#/$defs/n"}"##,
        r#"0{"oneOf":[{"type":"string","pattern":"^a+$"},{"type":"number","multipleOf":0.5},{"not":{"type":"object"}}]}"#,
        "1(ab?|[c-f]{2,3})*",
        "2start: a\na: \"x\" a | B\nB: /[0-9]+/\n",
        "3root ::= a+ # b\na ::= \"x\" [^0-9] | \"(\" root \")\" . {1,2}\n",
    ];
    for (seed, text) in seeds.iter().enumerate() {
        for round in 0..60 {
            let mut random = girih_tensor::Random((seed * 1000 + round) as u64);
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..random.below(4) {
                let at = 1 + random.below(bytes.len() - 1);
                match random.below(3) {
                    0 => drop(bytes.remove(at)),
                    1 => bytes.insert(at, b"{}[]\"',:0-$aeft\\"[random.below(16)]),
                    _ => bytes[at] = bytes[1 + random.below(bytes.len() - 1)],
                }
            }
            girih_grammar::fuzz::grammar(compiler(), &bytes);
        }
    }
}

/// The work of a token grows with the square of the items; other replies wait for it.
#[test]
fn an_ambiguous_grammar_ends_its_reply() {
    let mut constraint = compiler().compile(&Grammar::Lark("start: start start | \"a\"".to_owned())).unwrap();
    let a = tokens("a")[0];
    let begun = Instant::now();
    let refusal = (0..400).find_map(|_| constraint.accept(a).err()).expect("it ends");
    assert!(refusal.to_string().contains("too complex"), "{refusal}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    // A wide grammar has as many items in one place only.
    let words: Vec<String> = (0..300).map(|n| format!("\"w{n:03}\"")).collect();
    let wide = Grammar::Lark(format!("start: word+\nword: {}", words.join(" | ")));
    assert_eq!(accepts(&wide, "w000w299w123"), Ok(true));
}

/// A validator that follows both options at each level would need 2^40 steps.
#[test]
fn the_check_of_a_nested_reply_is_bounded() {
    let schema = r##"{"$defs": {"a": {"anyOf": [
        {"type": "array", "items": {"$ref": "#/$defs/a"}, "contains": {"type": "null"}},
        {"type": "array", "items": {"$ref": "#/$defs/a"}}
    ]}}, "$ref": "#/$defs/a"}"##;
    let grammar = Grammar::JsonSchema(schema.to_owned());
    let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(accepts(&grammar, &nested(8)), Ok(true));
    let begun = Instant::now();
    // The grammar allows it, but the reply fails when it ends.
    assert_eq!(accepts(&grammar, &nested(40)), Ok(false));
    let mut constraint = compiler().compile(&grammar).unwrap();
    let last = tokens(&nested(40)).into_iter().map(|id| constraint.accept(id)).find_map(Result::err);
    let last = last.or_else(|| constraint.accept(STOP).err()).unwrap().to_string();
    assert!(last.contains("nested too deeply"), "{last}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}
