//! The JSON-Schema-Test-Suite: the verdicts of the validator, of the crate `jsonschema` and of the suite.

use std::path::Path;

use girih_grammar::SchemaValidator;
use serde_json::Value;

use crate::schemas::{LATEST, SEVEN, library};

/// `GIRIH_JSON_SCHEMA_SUITE` names the folder `json` of the source archive of the Python package
/// `jsonschema`; `scripts/json_schema_suite.sh` fetches it.
#[test]
fn the_suites_schemas_have_three_equal_verdicts() {
    let Some(folder) = std::env::var_os("GIRIH_JSON_SCHEMA_SUITE") else {
        return eprintln!("skipped: GIRIH_JSON_SCHEMA_SUITE is not set");
    };
    let (mut compared, mut refused, mut faults) = (0, 0, Vec::new());
    for (draft, uri) in [("draft7", SEVEN), ("draft2020-12", LATEST)] {
        for file in Path::new(&folder).join("tests").join(draft).read_dir().expect("the suite's folder") {
            let path = file.expect("an entry").path();
            if !path.is_file() {
                continue;
            }
            let groups: Vec<Value> =
                serde_json::from_str(&std::fs::read_to_string(&path).expect("a file")).expect("JSON");
            for group in groups {
                let mut schema = group["schema"].clone();
                if let Value::Object(map) = &mut schema {
                    map.entry("$schema").or_insert_with(|| uri.into());
                }
                let Ok(ours) = SchemaValidator::new(&schema) else {
                    refused += 1;
                    continue;
                };
                let theirs = library(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
                // The suite takes formats as annotations.
                let has_format = schema.to_string().contains("\"format\":");
                for test in group["tests"].as_array().expect("tests") {
                    let value = &test["data"];
                    let verdict = ours.fault(value).expect("a verdict").is_none();
                    if verdict != theirs.is_valid(value) || (!has_format && test["valid"] != verdict) {
                        faults.push(format!("{}: {schema} and {value}: {verdict}", path.display()));
                    }
                    compared += 1;
                }
            }
        }
    }
    eprintln!("{compared} verdicts, {refused} schemas are refused");
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(compared > 2000, "{compared}");
}
