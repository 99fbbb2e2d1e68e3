//! Calls of tools whose arguments are of a schema.

use girih_engine::Constraint;
use girih_grammar::Grammar;
use girih_words::reply::{CallForm, CallGrammar, CallPiece};
use serde_json::{Value, json};

use crate::feed::{accepts, compiler, tokens};

/// A call of each tool, in a form that has text on both sides of the arguments.
fn calls(tools: &[(&str, Value)]) -> Grammar {
    let form = |(name, schema): &(&str, Value)| CallForm {
        name: (*name).to_owned(),
        before: vec![CallPiece::Text("<call>".to_owned()), CallPiece::Text(format!("{name}: "))],
        arguments: schema.as_object().expect("a schema").clone(),
        after: vec![CallPiece::Text("\n</call>".to_owned())],
    };
    Grammar::Call(CallGrammar { calls: tools.iter().map(form).collect() })
}

fn person() -> Value {
    json!({
        "$defs": {"name": {"type": "string", "maxLength": 5}},
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/name"}},
        "required": ["name"],
        "additionalProperties": false
    })
}

fn tree() -> Value {
    json!({"properties": {"parts": {"type": "array", "items": {"$ref": "#"}}}, "required": ["parts"]})
}

#[test]
fn a_call_is_of_one_tool_and_its_arguments_of_its_schema() {
    let grammar = calls(&[("person", person()), ("any", json!({})), ("persons", tree())]);
    for (text, expected) in [
        ("<call>person: {\"name\": \"Ada\"}\n</call>", true),
        ("<call>person: { \"name\" : \"Ada\" }\n</call>", true),
        ("<call>any: {}\n</call>", true),
        ("<call>any: {\"a\": [1, {}]}\n</call>", true),
        ("<call>persons: {\"parts\": [{\"parts\": []}, 1, \"a\"]}\n</call>", true),
        // The arguments are an object, also where the schema allows other values.
        ("<call>any: 1\n</call>", false),
        ("<call>persons: []\n</call>", false),
        ("<call>persons: {\"parts\": [{}]}\n</call>", false),
        ("<call>person: {\"name\": \"Ada Lovelace\"}\n</call>", false),
        ("<call>persons: {\"name\": \"Ada\"}\n</call>", false),
        ("<call>other: {}\n</call>", false),
        // White space belongs to the arguments only.
        ("<call> any: {}\n</call>", false),
        ("<call>any:  {}\n</call>", false),
        ("<call>any: {} \n</call>", false),
        ("<call>any: {}\n</call>\n", false),
        ("<call>any: {}\n</call", false),
    ] {
        assert_eq!(accepts(&grammar, text), Ok(expected), "{text}");
    }
}

#[test]
fn schemas_that_are_not_enforced_are_refused_with_their_tool() {
    let refusal =
        |schema: Value| accepts(&calls(&[("good", json!({})), ("bad", schema)]), "").unwrap_err().to_string();
    for (schema, reason) in [
        (json!({"nullabel": true}), "nullabel"),
        (json!({"type": "string"}), "no object satisfies"),
        (json!({"properties": {"a": false}, "required": ["a"]}), "no object satisfies"),
        (json!({"$ref": "https://example.com"}), "https://example.com"),
    ] {
        let error = refusal(schema);
        assert!(error.contains("the parameters of the tool 'bad'") && error.contains(reason), "{error}");
    }
    assert!(refusal(json!({"description": "a".repeat(70_000)})).contains("the maximum is 65536"));
    assert!(accepts(&calls(&[]), "").unwrap_err().to_string().contains("no tool"));
}

#[test]
fn special_tokens_of_a_call_are_tokens() {
    let text = |text: &str| CallPiece::Text(text.to_owned());
    let form = CallForm {
        name: "f".to_owned(),
        before: vec![CallPiece::Token(1), text("f"), CallPiece::Token(0)],
        arguments: serde_json::Map::new(),
        after: vec![CallPiece::Token(1)],
    };
    let grammar = Grammar::Call(CallGrammar { calls: vec![form] });
    let accepts = |ids: &[u32]| {
        let mut constraint = compiler().compile(&grammar).unwrap();
        ids.iter().all(|id| constraint.accept(*id).is_ok()) && constraint.is_complete()
    };
    let [name, arguments] = ["f", "{\"a\": \"<s>\"}"].map(tokens);
    assert!(accepts(&[&[1][..], &name, &[0], &arguments, &[1]].concat()));
    assert!(!accepts(&[&[1][..], &name, &[1], &arguments, &[1]].concat()));
    assert!(!accepts(&[&tokens("<s>")[..], &name, &[0], &arguments, &[1]].concat()));
    assert!(!accepts(&[&[1][..], &name, &[0], &arguments].concat()));
}
