//! The keywords of JSON Schema that are enforced, those that are annotations, and the refusal of
//! all others.

use girih_tensor::Result;
use serde_json::{Map, Value};

use crate::limits::refused;

/// The version of JSON Schema that a schema is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Draft {
    /// Draft 7.
    Seven,
    /// Draft 2020-12, also for schemas that name none.
    Latest,
}

impl Draft {
    /// The draft that `$schema` names.
    ///
    /// # Errors
    /// When it is another one.
    pub fn of(schema: &Value) -> Result<Draft> {
        match schema.get("$schema").map(|uri| uri.as_str().unwrap_or_default().trim_end_matches('#')) {
            None | Some("https://json-schema.org/draft/2020-12/schema") => Ok(Draft::Latest),
            Some("http://json-schema.org/draft-07/schema") => Ok(Draft::Seven),
            Some(other) => Err(refused(format!(
                "the schema's $schema is '{other}'; supported are draft 7 and 2020-12: convert it, or omit $schema"
            ))),
        }
    }
}

/// Keywords that no instance can violate. Names that begin with `x-` are annotations, too.
const ANNOTATIONS: [&str; 18] = [
    "$anchor",
    "$comment",
    "$defs",
    "$dynamicAnchor",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "example",
    "examples",
    "readOnly",
    "title",
    "writeOnly",
];

/// Keywords that are enforced in both drafts.
const ENFORCED: [&str; 31] = [
    "$ref",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
];

/// Keywords that are enforced where their value allows it; `structured-output.md` says when.
const PARTLY_ENFORCED: [&str; 1] = ["uniqueItems"];

/// Keywords that are enforced in draft 7 only.
const IN_SEVEN: [&str; 2] = ["additionalItems", "dependencies"];

/// Keywords that are enforced in draft 2020-12 only.
const IN_LATEST: [&str; 8] = [
    "$dynamicRef",
    "dependentRequired",
    "dependentSchemas",
    "maxContains",
    "minContains",
    "prefixItems",
    "unevaluatedItems",
    "unevaluatedProperties",
];

/// Refuses the first keyword that is not known.
///
/// # Errors
/// Names the keyword.
pub(crate) fn check_names(schema: &Map<String, Value>, draft: Draft) -> Result<()> {
    let of_draft: &[&str] = if draft == Draft::Seven { &IN_SEVEN } else { &IN_LATEST };
    let lists = [&ANNOTATIONS[..], &ENFORCED, &PARTLY_ENFORCED, of_draft];
    let is_known = |name: &str| name.starts_with("x-") || lists.iter().any(|list| list.contains(&name));
    match schema.keys().find(|name| !is_known(name)) {
        None => Ok(()),
        Some(name) => Err(unsupported(name)),
    }
}

/// The refusal of a keyword.
pub(crate) fn unsupported(name: &str) -> girih_tensor::Error {
    let shown: String = name.chars().take(60).collect();
    refused(format!(
        "the schema's keyword '{shown}' is not supported: remove it; docs/structured-output.md lists the others"
    ))
}
