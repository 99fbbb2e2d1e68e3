//! The keywords of both dialects and what their values must be, as the meta-schemas say.

use girih_tensor::Result;
use serde_json::Value;

use super::json::{TYPES, shortened};
use super::number::ExactNumber;
use crate::limits::refused;

/// A version of JSON Schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchemaDialect {
    /// Draft 7.
    Seven,
    /// Draft 2020-12, also of schemas that name none.
    Latest,
}

impl SchemaDialect {
    /// The dialect that `$schema` names.
    ///
    /// # Errors
    /// When it is another one.
    pub fn of(schema: &Value) -> Result<SchemaDialect> {
        let Some(uri) = schema.get("$schema") else { return Ok(SchemaDialect::Latest) };
        match uri.as_str().unwrap_or_default().trim_end_matches('#') {
            "https://json-schema.org/draft/2020-12/schema" => Ok(SchemaDialect::Latest),
            "http://json-schema.org/draft-07/schema" => Ok(SchemaDialect::Seven),
            other => Err(refused(format!(
                "the validator does not know the $schema '{}': use draft 7 or 2020-12",
                shortened(other)
            ))),
        }
    }
}

/// What the value of a keyword must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeywordValue {
    Anything,
    Text,
    Flag,
    List,
    Number,
    PositiveNumber,
    /// A whole number of 0 or more.
    Count,
    /// Distinct names.
    Names,
    NamesByName,
    /// A type, or distinct types.
    Types,
    /// A reference without a fragment in 2020-12.
    Identifier,
    Anchor,
    Schema,
    Schemas,
    SchemaOrSchemas,
    SchemasByName,
    /// Schemas or names, by name.
    Dependencies,
}

/// What the value of a keyword must be; `None` if the dialect has no such keyword.
pub(super) fn argument_of(name: &str, dialect: SchemaDialect) -> Option<KeywordValue> {
    Some(match (name, dialect) {
        ("$comment" | "$ref" | "$schema" | "title" | "description", _) => KeywordValue::Text,
        ("contentEncoding" | "contentMediaType" | "format" | "pattern", _) => KeywordValue::Text,
        ("$id", SchemaDialect::Seven) => KeywordValue::Text,
        ("$id", SchemaDialect::Latest) => KeywordValue::Identifier,
        ("$anchor" | "$dynamicAnchor", SchemaDialect::Latest) => KeywordValue::Anchor,
        ("$dynamicRef", SchemaDialect::Latest) => KeywordValue::Text,
        ("$anchor" | "$dynamicAnchor" | "deprecated", SchemaDialect::Seven) => KeywordValue::Anything,
        ("const" | "default" | "example", _) => KeywordValue::Anything,
        ("deprecated" | "readOnly" | "uniqueItems" | "writeOnly", _) => KeywordValue::Flag,
        ("enum" | "examples", _) => KeywordValue::List,
        ("type", _) => KeywordValue::Types,
        ("exclusiveMaximum" | "exclusiveMinimum" | "maximum" | "minimum", _) => KeywordValue::Number,
        ("multipleOf", _) => KeywordValue::PositiveNumber,
        ("maxItems" | "maxLength" | "maxProperties" | "minItems" | "minLength" | "minProperties", _)
        | ("maxContains" | "minContains", SchemaDialect::Latest) => KeywordValue::Count,
        ("required", _) => KeywordValue::Names,
        ("dependentRequired", SchemaDialect::Latest) => KeywordValue::NamesByName,
        ("dependencies", SchemaDialect::Seven) => KeywordValue::Dependencies,
        ("allOf" | "anyOf" | "oneOf", _) | ("prefixItems", SchemaDialect::Latest) => KeywordValue::Schemas,
        ("items", SchemaDialect::Seven) => KeywordValue::SchemaOrSchemas,
        (
            "additionalProperties"
            | "contains"
            | "contentSchema"
            | "else"
            | "if"
            | "not"
            | "propertyNames"
            | "then",
            _,
        )
        | ("additionalItems", SchemaDialect::Seven)
        | ("items" | "unevaluatedItems" | "unevaluatedProperties", SchemaDialect::Latest) => {
            KeywordValue::Schema
        }
        ("$defs" | "definitions" | "patternProperties" | "properties", _)
        | ("dependentSchemas", SchemaDialect::Latest) => KeywordValue::SchemasByName,
        _ if name.starts_with("x-") => KeywordValue::Anything,
        _ => return None,
    })
}

impl KeywordValue {
    /// The subschemas in the value of a keyword.
    pub fn schemas(self, value: &Value) -> Vec<&Value> {
        match (self, value) {
            (KeywordValue::Schema | KeywordValue::SchemaOrSchemas, value) if !value.is_array() => vec![value],
            (KeywordValue::Schemas | KeywordValue::SchemaOrSchemas, Value::Array(list)) => {
                list.iter().collect()
            }
            (KeywordValue::SchemasByName, Value::Object(map)) => map.values().collect(),
            (KeywordValue::Dependencies, Value::Object(map)) => {
                map.values().filter(|value| !value.is_array()).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Checks the value of a keyword. Subschemas are checked on their own.
    ///
    /// # Errors
    /// When the schema is malformed; names the keyword and what it must be.
    pub fn check(self, name: &str, value: &Value) -> Result<()> {
        let (is_right, needed) = match self {
            KeywordValue::Anything => (true, "anything"),
            KeywordValue::Text => (value.is_string(), "a string"),
            KeywordValue::Flag => (value.is_boolean(), "true or false"),
            KeywordValue::List => (value.is_array(), "a list"),
            KeywordValue::Number => (exact(value).is_some(), "a number of at most 38 digits"),
            KeywordValue::PositiveNumber => {
                (exact(value).is_some_and(|number| number.sign() > 0), "a number above 0")
            }
            KeywordValue::Count => {
                let is_count = |number: ExactNumber| number.is_integer() && number.sign() >= 0;
                (exact(value).is_some_and(is_count), "a whole number of 0 or more")
            }
            KeywordValue::Names => (are_names(value), "a list of distinct names"),
            KeywordValue::NamesByName => {
                (all_members(value, are_names), "an object of lists of distinct names")
            }
            KeywordValue::Types => (are_types(value), "a type of JSON, or a list of distinct types"),
            KeywordValue::Identifier => {
                let is_whole = |text: &str| text.split_once('#').is_none_or(|(_, rest)| rest.is_empty());
                (value.as_str().is_some_and(is_whole), "a reference without a fragment")
            }
            KeywordValue::Anchor => {
                (value.as_str().is_some_and(is_anchor), "a name of letters, digits, '-', '_', '.'")
            }
            KeywordValue::Schema => (is_schema(value), "a schema"),
            KeywordValue::Schemas => (are_schemas(value), "a list of at least one schema"),
            KeywordValue::SchemaOrSchemas => {
                (is_schema(value) || are_schemas(value), "a schema, or a list of at least one")
            }
            KeywordValue::SchemasByName => (all_members(value, is_schema), "an object of schemas"),
            KeywordValue::Dependencies => {
                let is_right = |value: &Value| is_schema(value) || are_names(value);
                (all_members(value, is_right), "an object of schemas and lists of distinct names")
            }
        };
        match is_right {
            true => Ok(()),
            false => Err(malformed(&format!("the keyword '{name}' must be {needed}"))),
        }
    }
}

/// The refusal of a malformed schema.
pub(super) fn malformed(reason: &str) -> girih_tensor::Error {
    refused(format!("the schema is malformed: {reason}"))
}

fn exact(value: &Value) -> Option<ExactNumber> {
    value.as_number().and_then(ExactNumber::of)
}

fn is_schema(value: &Value) -> bool {
    value.is_boolean() || value.is_object()
}

fn are_schemas(value: &Value) -> bool {
    value.as_array().is_some_and(|list| !list.is_empty() && list.iter().all(is_schema))
}

fn all_members(value: &Value, is_right: impl Fn(&Value) -> bool) -> bool {
    value.as_object().is_some_and(|map| map.values().all(is_right))
}

fn are_names(value: &Value) -> bool {
    let mut seen = std::collections::HashSet::new();
    let mut is_new = |name: &Value| name.as_str().is_some_and(|name| seen.insert(name.to_owned()));
    value.as_array().is_some_and(|list| list.iter().all(&mut is_new))
}

fn are_types(value: &Value) -> bool {
    let is_type = |value: &Value| TYPES.iter().any(|(name, _)| value == name);
    match value {
        Value::Array(list) => !list.is_empty() && are_names(value) && list.iter().all(is_type),
        name => is_type(name),
    }
}

fn is_anchor(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
