//! Each keyword in both drafts: schemas with values that are valid and values that are not.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::SchemaValidator;

const SEVEN: &str = "http://json-schema.org/draft-07/schema#";
const LATEST: &str = "https://json-schema.org/draft/2020-12/schema";

/// A schema in a draft.
fn in_draft(draft: &str, schema: &Value) -> Value {
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        map.insert("$schema".to_owned(), Value::from(draft));
    }
    schema
}

/// Compares the verdicts on the values, where `null` beside the lists is a value as any other.
#[track_caller]
fn check(drafts: &[&str], schema: &Value, valid: &Value, invalid: &Value) {
    for draft in drafts {
        let schema = in_draft(draft, schema);
        let validator = SchemaValidator::new(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
        for (values, expected) in [(valid, true), (invalid, false)] {
            for value in values.as_array().expect("a list") {
                let fault = validator.fault(value).expect("a verdict");
                assert_eq!(fault.is_none(), expected, "{schema} and {value}: {fault:?}");
            }
        }
    }
}

const BOTH: [&str; 2] = [SEVEN, LATEST];

/// The table says for each keyword in which drafts a schema accepts which values.
#[test]
fn the_table_of_keywords_is_decided_as_it_says() {
    for line in include_str!("../../tests/keywords.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        for (number, draft) in [(7, SEVEN), (2020, LATEST)] {
            if case["drafts"].as_array().expect("drafts").contains(&json!(number)) {
                check(&[draft], &case["schema"], &case["valid"], &case["invalid"]);
            }
        }
    }
}

#[test]
fn both_truths_are_schemas() {
    for (schema, expected) in [(json!(true), true), (json!(false), false), (json!({}), true)] {
        let validator = SchemaValidator::new(&schema).expect("a schema");
        assert_eq!(validator.fault(&json!([1, {"a": null}])).expect("a verdict").is_none(), expected);
    }
    // Annotations hold.
    let notes = json!({"title": "t", "description": "d", "default": 1, "examples": [1], "example": 2, "$comment": "c", "readOnly": true, "writeOnly": false, "deprecated": true, "contentEncoding": "e", "contentMediaType": "m", "contentSchema": false, "x-note": 3});
    check(&BOTH, &notes, &json!([1, "a"]), &json!([]));
}

/// Schemas that are malformed in draft 7 only.
fn malformed_in_seven() -> Vec<Value> {
    vec![
        json!({"items": []}),
        json!({"dependencies": {"a": ["b", "b"]}}),
        json!({"dependencies": {"a": 1}}),
        json!({"additionalItems": 1}),
    ]
}

/// Schemas that are malformed in draft 2020-12 only.
fn malformed_in_latest() -> Vec<Value> {
    vec![
        json!({"items": [true]}),
        json!({"prefixItems": []}),
        json!({"dependentRequired": {"a": "b"}}),
        json!({"dependentSchemas": {"a": []}}),
        json!({"minContains": -1}),
        json!({"maxContains": "1"}),
        json!({"unevaluatedItems": 1}),
        json!({"unevaluatedProperties": []}),
        json!({"$anchor": "1a"}),
        json!({"$dynamicAnchor": "a b"}),
        json!({"$dynamicRef": 1}),
        json!({"$id": "a#b"}),
        json!({"deprecated": 1}),
        json!({"$defs": {"a": 1}}),
    ]
}

#[test]
fn malformed_schemas_are_refused() {
    let in_both = [
        json!(3),
        json!({"type": "nothing"}),
        json!({"type": []}),
        json!({"type": ["null", "null"]}),
        json!({"type": 1}),
        json!({"enum": 1}),
        json!({"minimum": "1"}),
        json!({"multipleOf": 0}),
        json!({"multipleOf": -2}),
        json!({"minLength": -1}),
        json!({"maxItems": 1.5}),
        json!({"minProperties": "1"}),
        json!({"pattern": 1}),
        json!({"format": null}),
        json!({"required": "a"}),
        json!({"required": ["a", "a"]}),
        json!({"required": [1]}),
        json!({"uniqueItems": 1}),
        json!({"allOf": []}),
        json!({"anyOf": {}}),
        json!({"oneOf": [1]}),
        json!({"not": []}),
        json!({"if": 1}),
        json!({"properties": []}),
        json!({"properties": {"a": 1}}),
        json!({"patternProperties": true}),
        json!({"additionalProperties": "x"}),
        json!({"propertyNames": null}),
        json!({"contains": 1}),
        json!({"items": 1}),
        json!({"title": 1}),
        json!({"description": []}),
        json!({"examples": 1}),
        json!({"readOnly": "yes"}),
        json!({"$comment": 1}),
        json!({"$id": 1}),
        json!({"$ref": 1}),
        json!({"contentMediaType": 1}),
        // Also where nothing refers to.
        json!({"definitions": {"a": {"minItems": -1}}}),
        json!({"definitions": 1}),
    ];
    let cases =
        [(&BOTH[..], &in_both[..]), (&[SEVEN], &malformed_in_seven()), (&[LATEST], &malformed_in_latest())];
    for (drafts, schemas) in cases {
        for (draft, schema) in
            drafts.iter().flat_map(|draft| schemas.iter().map(move |schema| (draft, schema)))
        {
            let error = SchemaValidator::new(&in_draft(draft, schema)).expect_err(&schema.to_string());
            assert!(error.to_string().starts_with("the schema is malformed: "), "{schema}: {error}");
        }
    }
}

#[test]
fn what_is_not_supported_is_refused() {
    let cases = [
        (json!({"requried": []}), "'requried'"),
        (json!({"$recursiveRef": "#"}), "'$recursiveRef'"),
        (json!({"$vocabulary": {}}), "'$vocabulary'"),
        (json!({"dependencies": {}}), "'dependencies'"),
        (json!({"additionalItems": true}), "'additionalItems'"),
        (json!({"$schema": SEVEN, "prefixItems": [true]}), "'prefixItems'"),
        (json!({"$schema": SEVEN, "minContains": 1}), "'minContains'"),
        (json!({"$schema": SEVEN, "unevaluatedItems": true}), "'unevaluatedItems'"),
        (json!({"$schema": "http://json-schema.org/draft-04/schema#"}), "draft-04"),
        (json!({"$schema": 7}), "$schema"),
        (json!({"items": {"$id": "a", "$schema": SEVEN}}), "another $schema"),
        (json!({"$defs": {"a": {"$id": "x"}, "b": {"$id": "x"}}}), "the $id 'x'"),
        (json!({"format": "idn-email"}), "'idn-email'"),
        (json!({"pattern": "(?=a)"}), "looks around"),
        (json!({"patternProperties": {"(": true}}), "not closed"),
        (json!({"$ref": "http://x/y"}), "'http://x/y'"),
        (json!({"$ref": "#/$defs/a"}), "'#/$defs/a'"),
        (json!({"$ref": "#/enum/0", "enum": [{}]}), "'#/enum/0'"),
        (json!({"$ref": "#/allOf/+0", "allOf": [true]}), "'#/allOf/+0'"),
        (json!({"$ref": "#/allOf/00", "allOf": [true]}), "'#/allOf/00'"),
        (json!({"$ref": "#a"}), "'#a'"),
        (json!({"$ref": "#%zz"}), "'#%zz'"),
        (
            json!({"$dynamicRef": "#a", "$dynamicAnchor": "a", "$defs": {"b": {"$id": "b", "$dynamicAnchor": "a"}}}),
            "several subschemas",
        ),
    ];
    for (schema, reason) in cases {
        let error = SchemaValidator::new(&schema).expect_err(&schema.to_string()).to_string();
        assert!(error.contains(reason), "{schema}: {error}");
    }
    // Nothing refers to it.
    assert!(SchemaValidator::new(&json!({"$defs": {"a": {"requried": []}}})).is_ok());
}

#[test]
fn faults_name_the_part_and_the_rule() {
    let schema = json!({
        "properties": {
            "items": {"items": {"maximum": 5}},
            "a/b": {"required": ["c~d"]},
            "n": {"propertyNames": {"maxLength": 1}},
        },
    });
    let validator = SchemaValidator::new(&schema).expect("a schema");
    for (value, expected) in [
        (json!({"items": [1, 2, 3, 7]}), "/items/3: 7 violates maximum 5"),
        (json!({"a/b": {}}), "/a~1b: the property 'c~d' is missing"),
        (json!({"n": {"ab": 1}}), "/n: the name 'ab': a size of 2 violates maxLength 1"),
    ] {
        assert_eq!(validator.fault(&value).expect("a verdict").as_deref(), Some(expected));
    }
    let root = SchemaValidator::new(&json!({"type": ["null", "string"]})).expect("a schema");
    let fault = root.fault(&json!(7)).expect("a verdict");
    assert_eq!(fault.as_deref(), Some("7 has not the type null or string"));
}

#[test]
fn hostile_schemas_and_values_end_in_time() {
    let nested = |depth: usize| (0..depth).fold(json!([]), |inner, _| json!([inner]));
    let twice = json!({"$defs": {"a": {"anyOf": [
        {"type": "array", "items": {"$ref": "#/$defs/a"}, "contains": {"type": "null"}},
        {"type": "array", "items": {"$ref": "#/$defs/a"}},
    ]}}, "$ref": "#/$defs/a"});
    let texts: Vec<String> = (0..4000).map(|n| format!("{n:0>1000}")).collect();
    let doubled = |n: usize| json!({"allOf": [{"$ref": format!("#/$defs/{}", n + 1)}, {"$ref": format!("#/$defs/{}", n + 1)}]});
    let mut definitions: serde_json::Map<String, Value> =
        (0..60).map(|n| (n.to_string(), doubled(n))).collect();
    definitions.insert("60".to_owned(), json!(true));
    let cases = [
        (twice, nested(100)),
        (json!({"$ref": "#"}), json!(1)),
        (
            json!({"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}),
            json!(1),
        ),
        (json!({"$defs": definitions, "$ref": "#/$defs/0"}), json!(1)),
        (json!({"uniqueItems": true}), json!(texts)),
        (json!({"contains": {"pattern": "^(a|0*)*(a|0*)*b$"}}), json!(vec!["0".repeat(1000); 20_000])),
    ];
    for (schema, value) in cases {
        let begun = Instant::now();
        let validator = SchemaValidator::new(&schema).expect("a schema");
        let error = validator.fault(&value).map(|fault| format!("{schema}: {fault:?}")).unwrap_err();
        assert!(error.to_string().contains("nested too deeply"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(20), "{schema}: {:?}", begun.elapsed());
    }
    // Without choices, a deep and large value is checked.
    let list = SchemaValidator::new(&json!({"items": {"$ref": "#"}, "type": ["array", "integer"]}))
        .expect("a schema");
    assert_eq!(list.fault(&nested(120)).expect("a verdict"), None);
    assert_eq!(list.fault(&json!(vec![1; 200_000])).expect("a verdict"), None);
}
