//! Makes the rules of a schema's reachable parts.

use std::cmp::Ordering;
use std::collections::HashMap;

use girih_tensor::Result;
use serde_json::{Map, Number, Value};

use super::document::SchemaText;
use super::format::FORMATS;
use super::json::{JsonType, TYPES, shortened};
use super::keyword::{SchemaDialect, argument_of};
use super::number::ExactNumber;
use super::pattern::EcmaPattern;
use super::rule::{Counted, Limit, PropertyRules, Schema, SchemaId, SchemaRule};
use crate::limits::refused;

/// The maximum number of bytes of all compiled expressions of a schema.
const MAX_PATTERN_MEMORY: usize = 64 << 20;

/// The subschemas of a schema by number; the root is 0.
///
/// # Errors
/// When the schema is malformed, or has something that the validator does not support.
pub(super) fn build(schema: &Value) -> Result<Vec<Schema>> {
    let text = SchemaText::new(schema)?;
    let mut builder = SchemaBuilder { text, found: Vec::new(), ids: HashMap::new(), pattern_bytes: 0 };
    builder.id(schema);
    let mut schemas = Vec::new();
    // More are found on the way.
    while let Some(value) = builder.found.get(schemas.len()).copied() {
        schemas.push(builder.schema(value)?);
    }
    Ok(schemas)
}

struct SchemaBuilder<'a> {
    text: SchemaText<'a>,
    /// The subschemas that are reached, by number.
    found: Vec<&'a Value>,
    ids: HashMap<*const Value, SchemaId>,
    pattern_bytes: usize,
}

impl<'a> SchemaBuilder<'a> {
    fn id(&mut self, value: &'a Value) -> SchemaId {
        let found = &mut self.found;
        *self.ids.entry(std::ptr::from_ref(value)).or_insert_with(|| {
            found.push(value);
            found.len() - 1
        })
    }

    fn schema(&mut self, value: &'a Value) -> Result<Schema> {
        let map = match value {
            Value::Object(map) => map,
            other => return Ok(Schema::Always(*other == Value::Bool(true))),
        };
        let mut rules = Vec::new();
        self.references(value, map, &mut rules)?;
        if self.text.dialect == SchemaDialect::Seven && !rules.is_empty() {
            return Ok(Schema::Rules(rules));
        }
        if let Some(name) = map.keys().find(|name| argument_of(name, self.text.dialect).is_none()) {
            return Err(refused(format!(
                "the validator does not support the keyword '{}': remove it",
                shortened(name)
            )));
        }
        scalar_rules(map, &mut rules)?;
        self.text_rules(map, &mut rules)?;
        self.combinations(map, &mut rules);
        self.array_rules(map, &mut rules)?;
        self.object_rules(map, &mut rules)?;
        self.unevaluated(map, &mut rules);
        Ok(Schema::Rules(rules))
    }

    fn references(
        &mut self,
        value: &'a Value,
        map: &Map<String, Value>,
        rules: &mut Vec<SchemaRule>,
    ) -> Result<()> {
        if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
            let found = self.text.referenced(value, reference)?;
            rules.push(SchemaRule::All(vec![self.id(found)]));
        }
        let is_latest = self.text.dialect == SchemaDialect::Latest;
        if let Some(reference) = map.get("$dynamicRef").and_then(Value::as_str).filter(|_| is_latest) {
            let found = self.text.dynamically_referenced(value, reference)?;
            rules.push(SchemaRule::All(vec![self.id(found)]));
        }
        Ok(())
    }

    fn one(&mut self, map: &'a Map<String, Value>, key: &str) -> Option<SchemaId> {
        map.get(key).map(|value| self.id(value))
    }

    fn list(&mut self, value: Option<&'a Value>) -> Vec<SchemaId> {
        value.and_then(Value::as_array).into_iter().flatten().map(|value| self.id(value)).collect()
    }

    fn pattern(&mut self, text: &str) -> Result<EcmaPattern> {
        let pattern = EcmaPattern::new(text).map_err(|reason| {
            refused(format!("the validator does not support the pattern '{}': {reason}", shortened(text)))
        })?;
        self.pattern_bytes += pattern.bytes();
        match self.pattern_bytes <= MAX_PATTERN_MEMORY {
            true => Ok(pattern),
            false => Err(refused(format!(
                "the patterns of the schema take more than {} MB when compiled: shorten their repetitions",
                MAX_PATTERN_MEMORY >> 20
            ))),
        }
    }

    fn text_rules(&mut self, map: &Map<String, Value>, rules: &mut Vec<SchemaRule>) -> Result<()> {
        if let Some(text) = map.get("pattern").and_then(Value::as_str) {
            rules.push(SchemaRule::Pattern(self.pattern(text)?));
        }
        if let Some(format) = map.get("format").and_then(Value::as_str) {
            let found = FORMATS.iter().find(|(name, _)| *name == format);
            let (name, is_right) = found.ok_or_else(|| {
                refused(format!(
                    "the validator does not support the format '{}': remove it",
                    shortened(format)
                ))
            })?;
            rules.push(SchemaRule::Format { name, is_right: *is_right });
        }
        Ok(())
    }

    fn combinations(&mut self, map: &'a Map<String, Value>, rules: &mut Vec<SchemaRule>) {
        if map.contains_key("allOf") {
            rules.push(SchemaRule::All(self.list(map.get("allOf"))));
        }
        if map.contains_key("anyOf") {
            rules.push(SchemaRule::AnyOf(self.list(map.get("anyOf"))));
        }
        if map.contains_key("oneOf") {
            rules.push(SchemaRule::OneOf(self.list(map.get("oneOf"))));
        }
        rules.extend(self.one(map, "not").map(SchemaRule::Not));
        if let Some(condition) = self.one(map, "if") {
            rules.push(SchemaRule::If {
                condition,
                then: self.one(map, "then"),
                otherwise: self.one(map, "else"),
            });
        }
    }

    fn array_rules(&mut self, map: &'a Map<String, Value>, rules: &mut Vec<SchemaRule>) -> Result<()> {
        let is_latest = self.text.dialect == SchemaDialect::Latest;
        let (first, others) = match map.get("items") {
            items @ Some(Value::Array(_)) => (items, "additionalItems"),
            _ => (map.get("prefixItems").filter(|_| is_latest), "items"),
        };
        let (first, others) = (self.list(first), self.one(map, others));
        if !first.is_empty() || others.is_some() {
            rules.push(SchemaRule::Items { first, others });
        }
        if let Some(schema) = self.one(map, "contains") {
            let min = match limit(map, "minContains").filter(|_| is_latest) {
                Some(min) => min?,
                None => Limit { value: ExactNumber::of_count(1), text: Number::from(1) },
            };
            let max = limit(map, "maxContains").filter(|_| is_latest).transpose()?;
            rules.push(SchemaRule::Contains { schema, min, max });
        }
        Ok(())
    }

    fn object_rules(&mut self, map: &'a Map<String, Value>, rules: &mut Vec<SchemaRule>) -> Result<()> {
        rules.extend(map.get("required").map(|list| SchemaRule::Required(names(list))));
        let keys = ["properties", "patternProperties", "additionalProperties"];
        if keys.iter().any(|key| map.contains_key(*key)) {
            let named =
                members(map, "properties").map(|(name, value)| (name.clone(), self.id(value))).collect();
            let mut patterns = Vec::new();
            for (text, value) in members(map, "patternProperties") {
                patterns.push((self.pattern(text)?, self.id(value)));
            }
            let others = self.one(map, "additionalProperties");
            rules.push(SchemaRule::Properties(PropertyRules { named, patterns, others }));
        }
        rules.extend(self.one(map, "propertyNames").map(SchemaRule::PropertyNames));
        let keys: &[&str] = match self.text.dialect {
            SchemaDialect::Seven => &["dependencies"],
            SchemaDialect::Latest => &["dependentRequired", "dependentSchemas"],
        };
        for (name, value) in keys.iter().flat_map(|key| members(map, key)) {
            rules.push(match value {
                Value::Array(_) => SchemaRule::DependentRequired(name.clone(), names(value)),
                schema => SchemaRule::DependentSchema(name.clone(), self.id(schema)),
            });
        }
        Ok(())
    }

    /// These come last: they apply to what all other rules of the subschema left over.
    fn unevaluated(&mut self, map: &'a Map<String, Value>, rules: &mut Vec<SchemaRule>) {
        if self.text.dialect == SchemaDialect::Latest {
            rules.extend(self.one(map, "unevaluatedItems").map(SchemaRule::UnevaluatedItems));
            rules.extend(self.one(map, "unevaluatedProperties").map(SchemaRule::UnevaluatedProperties));
        }
    }
}

/// The rules of types, values, numbers and counts.
fn scalar_rules(map: &Map<String, Value>, rules: &mut Vec<SchemaRule>) -> Result<()> {
    if let Some(types) = map.get("type") {
        let one = |name: &Value| TYPES.iter().find(|(known, _)| name == known).map(|(_, kind)| *kind);
        let all = types.as_array().map_or(std::slice::from_ref(types), Vec::as_slice);
        rules.push(SchemaRule::Types(all.iter().filter_map(one).collect::<Vec<JsonType>>()));
    }
    rules.extend(map.get("const").map(|value| SchemaRule::Const(value.clone())));
    rules.extend(map.get("enum").and_then(Value::as_array).map(|list| SchemaRule::Enum(list.clone())));
    for (keyword, refused) in [
        ("minimum", [Ordering::Less; 2]),
        ("exclusiveMinimum", [Ordering::Less, Ordering::Equal]),
        ("maximum", [Ordering::Greater; 2]),
        ("exclusiveMaximum", [Ordering::Greater, Ordering::Equal]),
    ] {
        if let Some(limit) = limit(map, keyword) {
            rules.push(SchemaRule::Bound { keyword, limit: limit?, refused });
        }
    }
    if let Some(limit) = limit(map, "multipleOf") {
        rules.push(SchemaRule::MultipleOf(limit?));
    }
    for (keyword, counted, refused) in [
        ("minLength", Counted::Characters, Ordering::Less),
        ("maxLength", Counted::Characters, Ordering::Greater),
        ("minItems", Counted::Items, Ordering::Less),
        ("maxItems", Counted::Items, Ordering::Greater),
        ("minProperties", Counted::Members, Ordering::Less),
        ("maxProperties", Counted::Members, Ordering::Greater),
    ] {
        if let Some(limit) = limit(map, keyword) {
            rules.push(SchemaRule::Count { keyword, counted, limit: limit?, refused });
        }
    }
    if map.get("uniqueItems") == Some(&Value::Bool(true)) {
        rules.push(SchemaRule::UniqueItems);
    }
    Ok(())
}

/// The number of a keyword.
fn limit(map: &Map<String, Value>, key: &str) -> Option<Result<Limit>> {
    let text = map.get(key)?.as_number()?.clone();
    let value = ExactNumber::of(&text);
    Some(value.map(|value| Limit { value, text }).ok_or_else(|| {
        refused(format!("the keyword '{key}' has a number of more than 38 digits: shorten it"))
    }))
}

fn names(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn members<'a>(
    map: &'a Map<String, Value>,
    key: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    map.get(key).and_then(Value::as_object).into_iter().flatten()
}
