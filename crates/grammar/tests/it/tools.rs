//! A hundred schemas as people write them for tools; each accepts one instance and not another.

use girih_grammar::Grammar;
use serde_json::Value;

use crate::feed::accepts_value;

const TOOLS: &str = include_str!("../tools.jsonl");

#[test]
fn schemas_of_tools_are_accepted_and_enforced() {
    let mut count = 0;
    for line in TOOLS.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let grammar = Grammar::JsonSchema(case["schema"].to_string());
        for (instance, is_valid) in [(&case["valid"], true), (&case["invalid"], false)] {
            let found = accepts_value(&grammar, instance).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert_eq!(found, is_valid, "{instance}: {line}");
        }
        count += 1;
    }
    assert_eq!(count, 100);
}
