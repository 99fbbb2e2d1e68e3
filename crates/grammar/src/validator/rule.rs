//! A schema as rules, about one for each keyword.

use std::cmp::Ordering;
use std::collections::HashMap;

use serde_json::{Number, Value};

use super::json::JsonType;
use super::number::ExactNumber;
use super::pattern::EcmaPattern;

/// The number of a subschema.
pub(super) type SchemaId = usize;

/// A subschema.
#[derive(Debug)]
pub(super) enum Schema {
    /// `true` or `false`.
    Always(bool),
    /// All of these hold.
    Rules(Vec<SchemaRule>),
}

/// A number of a schema.
#[derive(Debug)]
pub(super) struct Limit {
    pub value: ExactNumber,
    /// The number as messages show it.
    pub text: Number,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Characters of Unicode.
    Characters,
    Items,
    Members,
}

/// A rule for a value; rules of another type of value hold.
#[derive(Debug)]
pub(super) enum SchemaRule {
    Types(Vec<JsonType>),
    Enum(Vec<Value>),
    Const(Value),
    /// A number compared with the limit is not one of these two.
    Bound {
        keyword: &'static str,
        limit: Limit,
        refused: [Ordering; 2],
    },
    MultipleOf(Limit),
    /// A count compared with the limit is not this.
    Count {
        keyword: &'static str,
        counted: Counted,
        limit: Limit,
        refused: Ordering,
    },
    Pattern(EcmaPattern),
    Format {
        name: &'static str,
        is_right: fn(&str) -> bool,
    },
    UniqueItems,
    Required(Vec<String>),
    /// An object with the first name has the others.
    DependentRequired(String, Vec<String>),
    /// An object with this name satisfies the subschema.
    DependentSchema(String, SchemaId),
    /// `$ref`, `$dynamicRef` and `allOf`.
    All(Vec<SchemaId>),
    AnyOf(Vec<SchemaId>),
    OneOf(Vec<SchemaId>),
    Not(SchemaId),
    If {
        condition: SchemaId,
        then: Option<SchemaId>,
        otherwise: Option<SchemaId>,
    },
    /// The first items one by one, and all others.
    Items {
        first: Vec<SchemaId>,
        others: Option<SchemaId>,
    },
    /// The number of items that satisfy the subschema.
    Contains {
        schema: SchemaId,
        min: Limit,
        max: Option<Limit>,
    },
    Properties(PropertyRules),
    PropertyNames(SchemaId),
    UnevaluatedItems(SchemaId),
    UnevaluatedProperties(SchemaId),
}

/// `properties`, `patternProperties` and `additionalProperties`.
#[derive(Debug)]
pub(super) struct PropertyRules {
    pub named: HashMap<String, SchemaId>,
    pub patterns: Vec<(EcmaPattern, SchemaId)>,
    pub others: Option<SchemaId>,
}

impl SchemaRule {
    /// Whether it applies to what the other rules left over.
    pub fn needs_marks(&self) -> bool {
        matches!(self, SchemaRule::UnevaluatedItems(_) | SchemaRule::UnevaluatedProperties(_))
    }
}
