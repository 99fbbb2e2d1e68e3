//! The text of a schema, and the check of finished replies by a validator that shares no code with the
//! grammar.

use girih_tensor::Result;
use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

use crate::deep_stack::on_deep_stack;
use crate::limits::{MAX_TEXT_BYTES, check_bytes, check_json_depth, refused};
use crate::mask_thread::first_line;

/// Reads the text of a schema.
pub(super) fn read(text: &str) -> Result<Value> {
    check_bytes("schema", text, MAX_TEXT_BYTES)?;
    check_json_depth(text)?;
    serde_json::from_str(text)
        .map_err(|error| refused(format!("the schema is not JSON: {}", first_line(&error))))
}

/// The maximum number of visits of subschemas for one reply: some 50 ms of work, and at most as many nested
/// calls, which fit into the stack of [`on_deep_stack`].
const MAX_VISITS: u64 = 200_000;

/// The validator of a schema's finished replies.
pub(crate) struct SchemaCheck {
    validator: Validator,
    /// The visits of subschemas for one value, by its depth.
    visits: Vec<u64>,
}

impl SchemaCheck {
    /// The check of a schema, given its visits.
    ///
    /// # Errors
    /// When the schema is malformed.
    pub fn new(schema: &Value, visits: Vec<u64>) -> Result<SchemaCheck> {
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .with_pattern_options(PatternOptions::regex())
            .build(&without_angle_escapes(schema))
            .map_err(|error| refused(format!("the schema is malformed: {}", first_line(&error))))?;
        Ok(SchemaCheck { validator, visits })
    }

    /// Why a value is not valid; `None` if it is.
    ///
    /// # Errors
    /// When the check would take too long.
    pub fn fault(&self, value: &Value) -> Result<Option<String>> {
        let (mut level, mut work) = (vec![value], 0u64);
        for visits in &self.visits {
            work = work.saturating_add(visits.saturating_mul(level.len() as u64));
            level = level.into_iter().flat_map(parts).collect();
            if level.is_empty() {
                break;
            }
        }
        if work > MAX_VISITS || !level.is_empty() {
            return Err(refused(
                "the finished reply is nested too deeply for the schema's choices to be checked: bound its depth",
            ));
        }
        // The validator recurses for each reference that it follows.
        on_deep_stack(|| Ok(self.validator.validate(value).err().map(|error| first_line(&error))))
    }
}

/// The schema with `\x3C` and `\x3E` for `\<` and `\>` in its patterns: the validator's expressions take
/// these for word boundaries, ECMA-262 for plain characters.
fn without_angle_escapes(schema: &Value) -> Value {
    match schema {
        Value::Array(schemas) => Value::Array(schemas.iter().map(without_angle_escapes).collect()),
        Value::Object(keywords) => {
            let keyword =
                |(name, value): (&String, &Value)| (name.clone(), keyword_without_escapes(name, value));
            Value::Object(keywords.iter().map(keyword).collect())
        }
        other => other.clone(),
    }
}

/// As [`without_angle_escapes`], for the value of a keyword.
fn keyword_without_escapes(name: &str, value: &Value) -> Value {
    match (name, value) {
        ("pattern", Value::String(pattern)) => Value::String(angles_by_code(pattern)),
        ("const" | "enum" | "default" | "example" | "examples", data) => data.clone(),
        ("patternProperties", Value::Object(schemas)) => {
            let mut renamed = Map::new();
            for (pattern, schema) in schemas {
                let mut pattern = angles_by_code(pattern);
                while renamed.contains_key(&pattern) {
                    pattern.push_str("(?:)");
                }
                renamed.insert(pattern, without_angle_escapes(schema));
            }
            Value::Object(renamed)
        }
        (
            "properties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies",
            Value::Object(schemas),
        ) => {
            let schema = |(name, schema): (&String, &Value)| (name.clone(), without_angle_escapes(schema));
            Value::Object(schemas.iter().map(schema).collect())
        }
        (_, value) => without_angle_escapes(value),
    }
}

/// A pattern with the codes of escaped angle brackets.
fn angles_by_code(pattern: &str) -> String {
    let (mut out, mut chars) = (String::with_capacity(pattern.len()), pattern.chars());
    while let Some(char) = chars.next() {
        match (char, chars.clone().next()) {
            ('\\', Some(escaped)) => {
                chars.next();
                match escaped {
                    '<' => out.push_str(r"\x3C"),
                    '>' => out.push_str(r"\x3E"),
                    other => out.extend(['\\', other]),
                }
            }
            (char, _) => out.push(char),
        }
    }
    out
}

/// The items of an array, or the values of an object.
fn parts(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(members) => members.values().collect(),
        _ => Vec::new(),
    }
}
