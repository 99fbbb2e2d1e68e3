//! A schema's text as typed nodes: keywords are checked and references resolved when a node is
//! first needed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use girih_tensor::Result;
use serde_json::{Map, Value};

use super::format::{StringFormat, string_format};
use super::keywords::{Draft, check_names, unsupported};
use super::number::Decimal;
use super::reference::{Place, References};
use crate::limits::refused;
use crate::pattern::from_ecma;

/// The maximum number of subschemas.
const MAX_NODES: usize = 20_000;

/// The number of a subschema.
pub(crate) type NodeId = usize;

/// A subschema.
#[derive(Debug)]
pub(crate) enum SchemaNode {
    /// `true` or `false`.
    Always(bool),
    /// The keywords of an object.
    Keywords(Box<Keywords>),
}

/// The types of JSON, one bit each; a set of types is the sum of its bits.
pub(crate) mod types {
    pub const NULL: u8 = 1;
    pub const BOOLEAN: u8 = 2;
    pub const NUMBER: u8 = 4;
    pub const INTEGER: u8 = 8;
    pub const STRING: u8 = 16;
    pub const ARRAY: u8 = 32;
    pub const OBJECT: u8 = 64;
}

/// The values of `enum` or `const`.
#[derive(Debug, Default)]
pub(crate) struct Choice {
    /// Null, booleans, numbers and strings.
    pub scalars: Vec<Value>,
    /// Arrays and objects, as subschemas that only they satisfy.
    pub nodes: Vec<NodeId>,
}

/// `contains` with its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainsKeyword {
    pub node: NodeId,
    pub min: usize,
    pub max: Option<usize>,
}

/// The bounds of numbers: a number and whether it is excluded.
pub(crate) type Bound = (Decimal, bool);

/// The keywords of a subschema that restrict instances.
#[derive(Debug, Default)]
pub(crate) struct Keywords {
    pub reference: Option<NodeId>,
    /// A sum of [`types`].
    pub types: Option<u8>,
    pub choices: Vec<Choice>,
    pub all_of: Vec<NodeId>,
    pub any_of: Option<Vec<NodeId>>,
    pub one_of: Option<Vec<NodeId>>,
    pub not: Option<NodeId>,
    /// `if`, `then`, `else`.
    pub condition: Option<(NodeId, NodeId, NodeId)>,
    pub minimums: Vec<Bound>,
    pub maximums: Vec<Bound>,
    pub multiple_of: Option<Decimal>,
    pub min_length: Option<u64>,
    pub max_length: Option<u64>,
    /// Expressions that a string must contain.
    pub pattern: Option<String>,
    pub format: Option<&'static StringFormat>,
    pub prefix_items: Vec<NodeId>,
    pub items: Option<NodeId>,
    pub min_items: Option<usize>,
    pub max_items: Option<usize>,
    pub contains: Option<ContainsKeyword>,
    pub unique_items: bool,
    pub unevaluated_items: Option<NodeId>,
    pub properties: Vec<(String, NodeId)>,
    pub pattern_properties: Vec<(String, NodeId)>,
    pub additional_properties: Option<NodeId>,
    pub required: Vec<String>,
    pub min_properties: Option<usize>,
    pub max_properties: Option<usize>,
    pub property_names: Option<NodeId>,
    pub dependent_required: Vec<(String, Vec<String>)>,
    pub dependent_schemas: Vec<(String, NodeId)>,
    pub unevaluated_properties: Option<NodeId>,
}

impl Keywords {
    /// The subschemas that apply to the same value.
    pub fn in_place(&self) -> Vec<NodeId> {
        let condition = self.condition.map(|(condition, then, other)| [condition, then, other]);
        let lists = [&self.any_of, &self.one_of];
        let direct = self.all_of.iter().chain(&self.reference).chain(&self.not);
        let direct = direct.chain(condition.iter().flatten()).chain(lists.into_iter().flatten().flatten());
        direct.chain(self.dependent_schemas.iter().map(|(_, node)| node)).copied().collect()
    }

    /// The subschemas of parts of the value: items, properties and their names.
    pub fn parts(&self) -> impl Iterator<Item = NodeId> + '_ {
        let items = self.prefix_items.iter().copied().chain(self.items).chain(self.unevaluated_items);
        let items = items.chain(self.contains.map(|contains| contains.node));
        let named = self.properties.iter().chain(&self.pattern_properties).map(|(_, node)| *node);
        let others = self.additional_properties.into_iter().chain(self.unevaluated_properties);
        items.chain(named).chain(others).chain(self.property_names)
    }
}

/// A schema and the nodes that were needed so far.
pub(crate) struct Document<'a> {
    draft: Draft,
    references: References<'a>,
    nodes: RefCell<Nodes<'a>>,
}

#[derive(Default)]
struct Nodes<'a> {
    list: Vec<NodeSlot<'a>>,
    of_value: HashMap<*const Value, NodeId>,
    /// The place of each property's name among those of the schema, in order of reading.
    ranks: HashMap<String, usize>,
}

enum NodeSlot<'a> {
    Unread(&'a Value),
    Read(Rc<SchemaNode>),
}

impl<'a> Document<'a> {
    /// Reads a schema, and returns its root.
    ///
    /// # Errors
    /// When its draft is not supported, or its identifiers are malformed.
    pub fn new(schema: &'a Value) -> Result<(Document<'a>, NodeId)> {
        let draft = Draft::of(schema)?;
        let references = References::of(schema, draft)?;
        let document = Document { draft, references, nodes: RefCell::default() };
        let mut names = Vec::new();
        property_names(schema, &mut names);
        for name in names {
            document.rank(&name);
        }
        let root = document.id(schema)?;
        Ok((document, root))
    }

    /// The node of a subschema.
    fn id(&self, value: &'a Value) -> Result<NodeId> {
        let mut nodes = self.nodes.borrow_mut();
        if let Some(id) = nodes.of_value.get(&std::ptr::from_ref(value)) {
            return Ok(*id);
        }
        let id = nodes.list.len();
        if id >= MAX_NODES {
            return Err(refused(format!("the schema has more than {MAX_NODES} subschemas: simplify it")));
        }
        nodes.list.push(NodeSlot::Unread(value));
        nodes.of_value.insert(std::ptr::from_ref(value), id);
        Ok(id)
    }

    fn add(&self, node: SchemaNode) -> NodeId {
        let mut nodes = self.nodes.borrow_mut();
        nodes.list.push(NodeSlot::Read(Rc::new(node)));
        nodes.list.len() - 1
    }

    /// A node, read when it is first asked for.
    ///
    /// # Errors
    /// When a keyword is malformed or not supported.
    pub fn node(&self, id: NodeId) -> Result<Rc<SchemaNode>> {
        let value = match &self.nodes.borrow().list[id] {
            NodeSlot::Read(node) => return Ok(Rc::clone(node)),
            NodeSlot::Unread(value) => *value,
        };
        let node = Rc::new(self.read(value)?);
        self.nodes.borrow_mut().list[id] = NodeSlot::Read(Rc::clone(&node));
        Ok(node)
    }

    /// The place of a property's name in the order in which objects are written.
    pub fn rank(&self, name: &str) -> usize {
        let ranks = &mut self.nodes.borrow_mut().ranks;
        let next = ranks.len();
        *ranks.entry(name.to_owned()).or_insert(next)
    }

    fn read(&self, value: &'a Value) -> Result<SchemaNode> {
        let map = match value {
            Value::Bool(always) => return Ok(SchemaNode::Always(*always)),
            Value::Object(map) => map,
            other => {
                return Err(refused(format!(
                    "a schema is {}; it must be an object, true or false",
                    kind_name(other)
                )));
            }
        };
        let mut keywords = Keywords { reference: self.reference(value, map)?, ..Keywords::default() };
        // In draft 7, `$ref` hides its siblings.
        if self.draft == Draft::Latest || keywords.reference.is_none() {
            check_names(map, self.draft)?;
            self.read_combinations(map, &mut keywords)?;
            read_scalars(map, &mut keywords)?;
            self.read_arrays(map, &mut keywords)?;
            self.read_objects(map, &mut keywords)?;
        }
        Ok(SchemaNode::Keywords(Box::new(keywords)))
    }

    fn reference(&self, value: &'a Value, map: &'a Map<String, Value>) -> Result<Option<NodeId>> {
        let place = Place::of(value);
        let mut found = Vec::new();
        if let Some(text) = string(map, "$ref")? {
            found.push(self.id(self.references.resolve(text, place)?)?);
        }
        if self.draft == Draft::Latest
            && let Some(text) = string(map, "$dynamicRef")?
        {
            found.push(self.id(self.references.resolve_dynamic(text, place)?)?);
        }
        match found[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            _ => Err(unsupported("$dynamicRef")),
        }
    }

    fn schema(&self, map: &'a Map<String, Value>, key: &str) -> Result<Option<NodeId>> {
        map.get(key).map(|value| self.id(value)).transpose()
    }

    fn schemas(&self, map: &'a Map<String, Value>, key: &str) -> Result<Option<Vec<NodeId>>> {
        let Some(value) = map.get(key) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| malformed(key, "a list of schemas"))?;
        list.iter().map(|value| self.id(value)).collect::<Result<_>>().map(Some)
    }

    fn schema_map(&self, map: &'a Map<String, Value>, key: &str) -> Result<Vec<(String, NodeId)>> {
        let Some(value) = map.get(key) else { return Ok(Vec::new()) };
        let members = value.as_object().ok_or_else(|| malformed(key, "an object of schemas"))?;
        members.iter().map(|(name, value)| Ok((name.clone(), self.id(value)?))).collect()
    }

    fn read_combinations(&self, map: &'a Map<String, Value>, keywords: &mut Keywords) -> Result<()> {
        keywords.all_of = self.schemas(map, "allOf")?.unwrap_or_default();
        keywords.any_of = self.schemas(map, "anyOf")?;
        keywords.one_of = self.schemas(map, "oneOf")?;
        keywords.not = self.schema(map, "not")?;
        if let Some(condition) = self.schema(map, "if")? {
            let branch =
                |key| Ok(self.schema(map, key)?.unwrap_or_else(|| self.add(SchemaNode::Always(true))));
            keywords.condition = Some((condition, branch("then")?, branch("else")?));
        }
        if let Some(value) = map.get("const") {
            keywords.choices.push(self.choice(std::slice::from_ref(value)));
        }
        if let Some(value) = map.get("enum") {
            let list = value.as_array().ok_or_else(|| malformed("enum", "a list"))?;
            keywords.choices.push(self.choice(list));
        }
        Ok(())
    }

    fn choice(&self, values: &[Value]) -> Choice {
        let mut choice = Choice::default();
        for value in values {
            match value {
                Value::Array(_) | Value::Object(_) => choice.nodes.push(self.exactly(value)),
                scalar => choice.scalars.push(scalar.clone()),
            }
        }
        choice
    }

    /// A subschema that only `value` satisfies.
    fn exactly(&self, value: &Value) -> NodeId {
        let nothing = || self.add(SchemaNode::Always(false));
        let keywords = match value {
            Value::Array(items) => Keywords {
                types: Some(types::ARRAY),
                prefix_items: items.iter().map(|item| self.exactly(item)).collect(),
                items: Some(nothing()),
                min_items: Some(items.len()),
                ..Keywords::default()
            },
            Value::Object(members) => Keywords {
                types: Some(types::OBJECT),
                properties: members.iter().map(|(name, value)| (name.clone(), self.exactly(value))).collect(),
                additional_properties: Some(nothing()),
                required: members.keys().cloned().collect(),
                ..Keywords::default()
            },
            scalar => {
                let choice = Choice { scalars: vec![scalar.clone()], nodes: Vec::new() };
                Keywords { choices: vec![choice], ..Keywords::default() }
            }
        };
        self.add(SchemaNode::Keywords(Box::new(keywords)))
    }

    fn read_arrays(&self, map: &'a Map<String, Value>, keywords: &mut Keywords) -> Result<()> {
        match (self.draft, map.get("items")) {
            (Draft::Seven, Some(Value::Array(_))) => {
                keywords.prefix_items = self.schemas(map, "items")?.unwrap_or_default();
                keywords.items = self.schema(map, "additionalItems")?;
            }
            (Draft::Latest, Some(Value::Array(_))) => {
                return Err(refused(
                    "items is a list, which is draft 7: set $schema to draft 7, or use prefixItems",
                ));
            }
            _ => {
                keywords.prefix_items = match self.draft {
                    Draft::Seven => Vec::new(),
                    Draft::Latest => self.schemas(map, "prefixItems")?.unwrap_or_default(),
                };
                keywords.items = self.schema(map, "items")?;
            }
        }
        keywords.min_items = count(map, "minItems")?;
        keywords.max_items = count(map, "maxItems")?;
        if let Some(node) = self.schema(map, "contains")? {
            let is_latest = self.draft == Draft::Latest;
            let bound = |key| if is_latest { count(map, key) } else { Ok(None) };
            let min = bound("minContains")?.unwrap_or(1);
            keywords.contains = Some(ContainsKeyword { node, min, max: bound("maxContains")? });
        }
        keywords.unique_items = match map.get("uniqueItems") {
            None => false,
            Some(value) => value.as_bool().ok_or_else(|| malformed("uniqueItems", "true or false"))?,
        };
        if self.draft == Draft::Latest {
            keywords.unevaluated_items = self.schema(map, "unevaluatedItems")?;
        }
        Ok(())
    }

    fn read_objects(&self, map: &'a Map<String, Value>, keywords: &mut Keywords) -> Result<()> {
        keywords.properties = self.schema_map(map, "properties")?;
        for (pattern, node) in self.schema_map(map, "patternProperties")? {
            keywords.pattern_properties.push((from_ecma(&pattern)?, node));
        }
        keywords.additional_properties = self.schema(map, "additionalProperties")?;
        if let Some(value) = map.get("required") {
            keywords.required = names(value).ok_or_else(|| malformed("required", "a list of names"))?;
        }
        keywords.min_properties = count(map, "minProperties")?;
        keywords.max_properties = count(map, "maxProperties")?;
        keywords.property_names = self.schema(map, "propertyNames")?;
        match self.draft {
            Draft::Latest => {
                keywords.dependent_schemas = self.schema_map(map, "dependentSchemas")?;
                keywords.unevaluated_properties = self.schema(map, "unevaluatedProperties")?;
                for (name, value) in members(map, "dependentRequired")? {
                    let needs =
                        names(value).ok_or_else(|| malformed("dependentRequired", "lists of names"))?;
                    keywords.dependent_required.push((name.clone(), needs));
                }
            }
            Draft::Seven => {
                for (name, value) in members(map, "dependencies")? {
                    match value {
                        Value::Array(_) => {
                            let needs =
                                names(value).ok_or_else(|| malformed("dependencies", "lists of names"))?;
                            keywords.dependent_required.push((name.clone(), needs));
                        }
                        schema => keywords.dependent_schemas.push((name.clone(), self.id(schema)?)),
                    }
                }
            }
        }
        Ok(())
    }
}

/// Reads the keywords of numbers and strings, and `type`.
fn read_scalars(map: &Map<String, Value>, keywords: &mut Keywords) -> Result<()> {
    keywords.types = map.get("type").map(type_set).transpose()?;
    for (key, is_strict) in [("minimum", false), ("exclusiveMinimum", true)] {
        keywords.minimums.extend(decimal(map, key)?.map(|bound| (bound, is_strict)));
    }
    for (key, is_strict) in [("maximum", false), ("exclusiveMaximum", true)] {
        keywords.maximums.extend(decimal(map, key)?.map(|bound| (bound, is_strict)));
    }
    keywords.multiple_of = decimal(map, "multipleOf")?;
    keywords.min_length = count(map, "minLength")?.map(|length| length as u64);
    keywords.max_length = count(map, "maxLength")?.map(|length| length as u64);
    keywords.pattern = string(map, "pattern")?.map(from_ecma).transpose()?;
    keywords.format = string(map, "format")?.map(string_format).transpose()?;
    Ok(())
}

/// The names of properties, in the order of the text: those of `properties`, then of `required`.
fn property_names(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get("properties") {
                found.extend(properties.keys().cloned());
            }
            found.extend(map.get("required").and_then(names).unwrap_or_default());
            map.values().for_each(|value| property_names(value, found));
        }
        Value::Array(list) => list.iter().for_each(|value| property_names(value, found)),
        _ => {}
    }
}

fn type_set(value: &Value) -> Result<u8> {
    let one = |name: &Value| match name.as_str().unwrap_or_default() {
        "null" => Ok(types::NULL),
        "boolean" => Ok(types::BOOLEAN),
        "number" => Ok(types::NUMBER | types::INTEGER),
        "integer" => Ok(types::INTEGER),
        "string" => Ok(types::STRING),
        "array" => Ok(types::ARRAY),
        "object" => Ok(types::OBJECT),
        _ => Err(malformed("type", "a type of JSON")),
    };
    match value {
        Value::Array(list) => list.iter().try_fold(0, |set, name| Ok(set | one(name)?)),
        name => one(name),
    }
}

fn string<'a>(map: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>> {
    map.get(key).map(|value| value.as_str().ok_or_else(|| malformed(key, "a string"))).transpose()
}

fn members<'a>(
    map: &'a Map<String, Value>,
    key: &str,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>> {
    let members = map.get(key).map(|value| value.as_object().ok_or_else(|| malformed(key, "an object")));
    Ok(members.transpose()?.into_iter().flatten())
}

fn names(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect()
}

fn decimal(map: &Map<String, Value>, key: &str) -> Result<Option<Decimal>> {
    let Some(value) = map.get(key) else { return Ok(None) };
    let number = value.as_number().ok_or_else(|| malformed(key, "a number"))?;
    Decimal::of(key, number).map(Some)
}

/// A whole number of 0 or more, which may be written with a fraction of zero.
fn count(map: &Map<String, Value>, key: &str) -> Result<Option<usize>> {
    let Some(value) = map.get(key) else { return Ok(None) };
    let whole = value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        (float >= 0.0 && float.fract() == 0.0 && float < 1e9).then_some(float as u64)
    });
    let count = whole.and_then(|count| usize::try_from(count).ok());
    count.map(Some).ok_or_else(|| malformed(key, "a whole number of 0 or more"))
}

fn malformed(key: &str, needed: &str) -> girih_tensor::Error {
    refused(format!("the schema's keyword '{key}' must be {needed}"))
}

fn kind_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
