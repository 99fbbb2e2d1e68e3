//! Schemas as clients of APIs write them: with the annotations of OpenAPI, and with objects that are meant to be
//! closed.

use serde_json::{Map, Value};

use super::format::string_format;
use super::reference::SCHEMAS;

/// Keywords of OpenAPI that describe a schema, and restrict no value.
const ANNOTATIONS: [&str; 4] = ["discriminator", "externalDocs", "nullable", "xml"];

/// Keywords whose value is an object of schemas.
const OF_NAMED_SCHEMAS: [&str; 5] =
    ["$defs", "definitions", "dependentSchemas", "patternProperties", "properties"];

/// Keywords that look at an object that other keywords describe, too: closing one of these would rule out the
/// properties of the others.
const COMPOSING: [&str; 5] = ["if", "not", "dependentSchemas", "dependencies", "unevaluatedProperties"];

/// Keywords by which a schema says what else an object may have.
const OPENING: [&str; 6] = [
    "additionalProperties",
    "maxProperties",
    "minProperties",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
];

/// What an object may have beside the properties that its schema names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaObjects {
    /// What the schema says: anything, unless it says otherwise.
    AsWritten,
    /// Nothing, unless the schema says otherwise, as OpenAI's and llama.cpp's servers take it. A schema that composes
    /// objects (`allOf`, `if`, `not`, `$ref` beside `properties`) stays as written.
    Closed,
}

/// A schema without the annotations of OpenAPI, without formats that JSON Schema leaves to programs and that are not
/// enforced here, and with `objects`.
pub fn schema_from_api(schema: &Value, objects: SchemaObjects) -> Value {
    let closes = objects == SchemaObjects::Closed && !composes(schema);
    rewritten(schema, closes)
}

fn rewritten(schema: &Value, closes: bool) -> Value {
    let Value::Object(map) = schema else { return schema.clone() };
    let mut written = Map::new();
    for (name, value) in map.iter().filter(|(name, value)| !is_annotation(name, value)) {
        let name_of = name.as_str();
        let value = match value {
            Value::Array(schemas) if SCHEMAS.contains(&name_of) => {
                schemas.iter().map(|schema| rewritten(schema, closes)).collect()
            }
            Value::Object(_) if SCHEMAS.contains(&name_of) => rewritten(value, closes),
            Value::Object(schemas) if OF_NAMED_SCHEMAS.contains(&name_of) => {
                let named = schemas.iter().map(|(name, schema)| (name.clone(), rewritten(schema, closes)));
                Value::Object(named.collect())
            }
            value => value.clone(),
        };
        written.insert(name.clone(), value);
    }
    if closes && names_all(map) {
        written.insert("additionalProperties".to_owned(), false.into());
    }
    Value::Object(written)
}

fn is_annotation(name: &str, value: &Value) -> bool {
    let is_free_format = || value.as_str().is_some_and(|format| string_format(format).is_err());
    ANNOTATIONS.contains(&name) || name == "format" && is_free_format()
}

/// Whether a schema names the properties of an object, all that it needs among them, and does not say what else the
/// object may have.
fn names_all(map: &Map<String, Value>) -> bool {
    let Some(properties) = map.get("properties").and_then(Value::as_object) else { return false };
    let required = map.get("required").and_then(Value::as_array).into_iter().flatten();
    let mut required = required.filter_map(Value::as_str);
    !OPENING.iter().any(|name| map.contains_key(*name)) && required.all(|name| properties.contains_key(name))
}

/// Whether several schemas may describe the same object.
fn composes(schema: &Value) -> bool {
    let Value::Object(map) = schema else { return false };
    let has = |name: &str| map.contains_key(name);
    let several = map.get("allOf").and_then(Value::as_array).is_some_and(|schemas| schemas.len() > 1);
    let beside = has("properties") && ["$ref", "allOf", "anyOf", "oneOf"].into_iter().any(has);
    if several || beside || COMPOSING.into_iter().any(has) {
        return true;
    }
    map.iter().any(|(name, value)| match value {
        Value::Array(schemas) if SCHEMAS.contains(&name.as_str()) => schemas.iter().any(composes),
        Value::Object(_) if SCHEMAS.contains(&name.as_str()) => composes(value),
        Value::Object(schemas) if OF_NAMED_SCHEMAS.contains(&name.as_str()) => schemas.values().any(composes),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_that_name_their_properties_are_closed() {
        let closed = |schema: Value| schema_from_api(&schema, SchemaObjects::Closed);
        let inner = json!({"type": "object", "properties": {"b": {"type": "string", "format": "binary"}}});
        let schema = json!({"properties": {"a": {"$ref": "#/$defs/i"}, "not": {"items": inner}}, "nullable": true,
            "$defs": {"i": inner}});
        let inner =
            json!({"type": "object", "properties": {"b": {"type": "string"}}, "additionalProperties": false});
        let expected = json!({"properties": {"a": {"$ref": "#/$defs/i"}, "not": {"items": inner}},
            "$defs": {"i": inner}, "additionalProperties": false});
        assert_eq!(closed(schema.clone()), expected);
        let written = schema_from_api(&schema, SchemaObjects::AsWritten);
        assert!(written.get("nullable").is_none() && written.get("additionalProperties").is_none());
    }

    #[test]
    fn a_schema_that_opens_or_composes_its_objects_stays_open() {
        let open = json!({"properties": {"a": {}}, "additionalProperties": {"type": "string"}});
        let free = json!({"type": "object"});
        let missing = json!({"properties": {"a": {}}, "required": ["b"]});
        let both = json!({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]});
        let beside =
            json!({"properties": {"a": {}}, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}});
        let within = json!({"items": {"not": {"properties": {"a": {}}}}});
        for schema in [open, free, missing, both, beside, within, json!(true)] {
            assert_eq!(schema_from_api(&schema, SchemaObjects::Closed), schema);
        }
        // One schema in a list is no composition: pydantic writes defaults so.
        let one = json!({"allOf": [{"properties": {"a": {"format": "date"}}}]});
        let closed =
            json!({"allOf": [{"properties": {"a": {"format": "date"}}, "additionalProperties": false}]});
        assert_eq!(schema_from_api(&one, SchemaObjects::Closed), closed);
    }
}
