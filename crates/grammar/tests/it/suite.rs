//! The JSON-Schema-Test-Suite: each schema is refused by name, or exactly its valid instances are
//! accepted.

use std::collections::BTreeMap;
use std::path::Path;

use girih_grammar::{Grammar, SchemaValidator};
use girih_tensor::ErrorKind;
use serde_json::Value;

use crate::feed::{accepts_value, compiler, random_reply};

/// The smallest accepted share of the suite's schemas, in percent.
const LEAST_ACCEPTED: usize = 80;

/// `GIRIH_JSON_SCHEMA_SUITE` names the folder `json` of the source archive of the Python package
/// `jsonschema`; `scripts/json_schema_suite.sh` fetches it.
#[test]
fn the_suites_schemas_are_refused_or_exact() {
    let Some(folder) = std::env::var_os("GIRIH_JSON_SCHEMA_SUITE") else {
        eprintln!("skipped: GIRIH_JSON_SCHEMA_SUITE is not set");
        return;
    };
    let mut wrong = Vec::new();
    let (mut accepted, mut all) = (0, 0);
    let mut refusals: BTreeMap<String, usize> = BTreeMap::new();
    for (draft, uri) in [
        ("draft7", "http://json-schema.org/draft-07/schema#"),
        ("draft2020-12", "https://json-schema.org/draft/2020-12/schema"),
    ] {
        let folder = Path::new(&folder).join("tests").join(draft);
        let files =
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut files: Vec<_> =
            files.map(|file| file.unwrap().path()).filter(|path| path.is_file()).collect();
        files.sort();
        assert!(files.len() > 30, "{} has the suite's files", folder.display());
        for file in files {
            let groups: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
            for group in groups {
                all += 1;
                match check(&group, uri) {
                    Ok(faults) => {
                        accepted += 1;
                        let name = file.file_name().unwrap().to_string_lossy();
                        wrong.extend(faults.into_iter().map(|fault| format!("{draft} {name}: {fault}")));
                    }
                    Err(sentence) => *refusals.entry(sentence).or_default() += 1,
                }
            }
        }
    }
    refusals.iter().for_each(|(sentence, count)| eprintln!("{count:4} {sentence}"));
    eprintln!("{accepted} of {all} schemas are accepted");
    assert!(wrong.is_empty(), "{} faults:\n{}", wrong.len(), wrong.join("\n"));
    assert!(accepted * 100 >= all * LEAST_ACCEPTED, "{accepted} of {all}");
}

/// The faults of a group of tests, or why its schema is refused.
fn check(group: &Value, uri: &str) -> Result<Vec<String>, String> {
    let mut schema = group["schema"].clone();
    // Each folder is written for its draft, also where a schema does not name it.
    if let Value::Object(map) = &mut schema {
        map.entry("$schema").or_insert_with(|| uri.into());
    }
    let grammar = Grammar::JsonSchema(schema.to_string());
    match compiler().compile(&grammar) {
        Ok(_) => {}
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}: {schema}");
            return Err(error.to_string());
        }
    }
    // By default, the suite takes formats as annotations; here they are enforced.
    let validator = SchemaValidator::new(&schema).expect("the grammar's compiler accepts it");
    let has_format = schema.to_string().contains("\"format\":");
    let mut faults = Vec::new();
    for seed in 0..4 {
        let reply = std::panic::catch_unwind(|| random_reply(&grammar, seed, 60));
        faults.extend(reply.err().map(|_| format!("a random reply is not valid; {schema}")));
    }
    for test in group["tests"].as_array().unwrap() {
        let data = &test["data"];
        let is_valid = test["valid"] == true && (!has_format || validator.fault(data).unwrap().is_none());
        let found = std::panic::catch_unwind(|| accepts_value(&grammar, data).unwrap());
        if found.as_ref().ok() != Some(&is_valid) {
            let found = found.map_or("fails".to_owned(), |found| found.to_string());
            faults.push(format!(
                "{} / {}: {found} for {data}, expected {is_valid}; {schema}",
                group["description"], test["description"]
            ));
        }
    }
    Ok(faults)
}
