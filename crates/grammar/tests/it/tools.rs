//! A hundred schemas as people write them for tools; each accepts one instance and not another.

use girih_grammar::Grammar;
use serde_json::Value;

use crate::feed::{accepts_value, random_reply};

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

#[test]
fn random_replies_of_the_masks_are_valid() {
    let mut complete = 0;
    for (number, line) in (0..).zip(TOOLS.lines()) {
        let case: Value = serde_json::from_str(line).unwrap();
        let grammar = Grammar::JsonSchema(case["schema"].to_string());
        complete += (0..8).filter(|round| random_reply(&grammar, number * 8 + round, 120)).count();
    }
    assert!(complete > 400, "{complete} of 800 replies are complete");
}
