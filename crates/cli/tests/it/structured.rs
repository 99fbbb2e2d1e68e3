//! `girih run` with a form that the reply must have, and with the samplers of experts.

use serde_json::Value;

use crate::program::{Folder, girih};

const PROMPT: &str = "Once upon a time";

fn run(more: &[&str]) -> crate::program::Call {
    girih(&["run", "stories260k", PROMPT, "--quiet"]).with(more)
}

#[test]
fn a_schema_holds_the_reply() {
    let folder = Folder::new();
    let file = folder.path().join("schema.json");
    let schema = r#"{"type": "object", "properties": {"age": {"enum": [3, 4]}, "name": {"const": "Lily"}},
        "required": ["age", "name"], "additionalProperties": false}"#;
    std::fs::write(&file, schema).unwrap();
    let path = file.to_str().unwrap();
    let line = run(&["--schema", path, "--json"]).done().json();
    let reply: Value = serde_json::from_str(line["text"].as_str().unwrap()).unwrap();
    assert!(reply["name"] == "Lily" && [3, 4].contains(&reply["age"].as_i64().unwrap()), "{reply}");
    let text = run(&["--regex", "(Tom|Lily) ran\\."]).done().stdout;
    assert!(text.trim_end().ends_with("ran."), "{text}");
    let text = run(&["--json-object", "--max-tokens", "8"]).done().stdout;
    assert!(text.starts_with('{'), "{text}");
    // It is JSON as a whole, also without --quiet, and a schema may be given as text.
    let printed = girih(&["run", "stories260k", PROMPT, "--schema", schema]).done().stdout;
    let printed: Value = serde_json::from_str(&printed).expect("JSON and nothing else");
    assert_eq!(printed, reply);
    let shown = girih(&["run", "stories260k", PROMPT, "--schema", schema]).stdout_on_terminal().stdout;
    assert!(shown.starts_with('{'), "{shown}");
    run(&["--schema", r#"{"type": "string", "uniqueItem": true}"#]).fails(2, "'uniqueItem'");
    std::fs::write(&file, r#"{"type": "string", "uniqueItem": true}"#).unwrap();
    run(&["--schema", path]).fails(2, "'uniqueItem'");
    run(&["--schema", path, "--regex", "a"]).fails(2, "cannot be used with");
}

#[test]
fn samplers_change_the_reply_and_are_checked() {
    let text = |more: &[&str]| run(&["--temp", "1", "-n", "40"]).with(more).done().stdout;
    let plain = text(&[]);
    let all: [&[&str]; 6] = [
        &["--typical-p", "0.2"],
        &["--top-n-sigma", "0.5"],
        &["--xtc-probability", "1"],
        &["--dynatemp-range", "0.9"],
        &["--mirostat-tau", "1"],
        &["--dry-multiplier", "5", "--dry-allowed-length", "1"],
    ];
    for more in all {
        let changed = text(more);
        assert_eq!(changed, text(more), "{more:?}");
        assert_ne!(changed, plain, "{more:?}");
    }
    run(&["--typical-p", "0"]).fails(2, "typical_p");
    run(&[]).env("GIRIH_MIROSTAT_ETA", "2").fails(2, "GIRIH_MIROSTAT_ETA");
}
