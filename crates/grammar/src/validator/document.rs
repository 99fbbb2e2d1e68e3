//! The subschemas of a schema, found by identifiers, anchors and pointers.

use std::collections::HashMap;
use std::rc::Rc;

use girih_tensor::Result;
use serde_json::{Map, Value};

use super::json::shortened;
use super::keyword::{SchemaDialect, argument_of, malformed};
use super::uri::{percent_decoded, resolve};
use crate::limits::refused;

/// A schema whose keywords have values of the right kinds.
pub(super) struct SchemaText<'a> {
    pub dialect: SchemaDialect,
    /// The base URI of each subschema, by its address.
    bases: HashMap<*const Value, Rc<str>>,
    /// Subschemas by their URI without a fragment.
    resources: HashMap<String, &'a Value>,
    /// Subschemas by the URI of their resource and their anchor.
    anchors: HashMap<(String, String), &'a Value>,
    /// The number of subschemas that have a dynamic anchor.
    dynamic: HashMap<String, usize>,
}

impl<'a> SchemaText<'a> {
    /// Checks the values of all keywords, and finds what references may point to.
    ///
    /// # Errors
    /// When the schema is malformed, has parts of another dialect, or two parts have the same URI.
    pub fn new(root: &'a Value) -> Result<SchemaText<'a>> {
        let mut text = SchemaText {
            dialect: SchemaDialect::of(root)?,
            bases: HashMap::new(),
            resources: HashMap::from([(String::new(), root)]),
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
        };
        text.add(root, &Rc::from(""))?;
        Ok(text)
    }

    /// Adds a subschema and those inside; the nesting of a schema is bounded where it is read.
    fn add(&mut self, value: &'a Value, outer: &Rc<str>) -> Result<()> {
        let map = match value {
            Value::Bool(_) => {
                self.bases.insert(std::ptr::from_ref(value), Rc::clone(outer));
                return Ok(());
            }
            Value::Object(map) => map,
            _ => return Err(malformed("a schema is neither an object nor true nor false")),
        };
        let known = |(name, value): (&'a String, &'a Value)| {
            argument_of(name, self.dialect).map(|argument| (name, argument, value))
        };
        let keywords: Vec<_> = map.iter().filter_map(known).collect();
        keywords.iter().try_for_each(|(name, argument, value)| argument.check(name, value))?;
        if map.contains_key("$schema") && SchemaDialect::of(value)? != self.dialect {
            return Err(refused("a part of the schema has another $schema: use one draft"));
        }
        let base = self.identify(value, map, outer)?;
        self.bases.insert(std::ptr::from_ref(value), Rc::clone(&base));
        for (_, argument, value) in keywords {
            argument.schemas(value).into_iter().try_for_each(|value| self.add(value, &base))?;
        }
        Ok(())
    }

    /// Notes the identifier and the anchors of a subschema; returns its base URI.
    fn identify(
        &mut self,
        value: &'a Value,
        map: &'a Map<String, Value>,
        outer: &Rc<str>,
    ) -> Result<Rc<str>> {
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let mut base = Rc::clone(outer);
        // In draft 7, `$ref` hides its siblings.
        let is_hidden = self.dialect == SchemaDialect::Seven && map.contains_key("$ref");
        if let Some(id) = text("$id").filter(|_| !is_hidden) {
            let (uri, fragment) = resolve(outer, id);
            // A fragment alone is an anchor of draft 7.
            if !id.starts_with('#') {
                base = Rc::from(uri.as_str());
                self.add_resource(uri, value)?;
            }
            if !fragment.is_empty() {
                self.anchors.insert((base.to_string(), fragment), value);
            }
        }
        if self.dialect == SchemaDialect::Latest {
            for anchor in [text("$anchor"), text("$dynamicAnchor")].into_iter().flatten() {
                self.anchors.insert((base.to_string(), anchor.to_owned()), value);
            }
            if let Some(anchor) = text("$dynamicAnchor") {
                *self.dynamic.entry(anchor.to_owned()).or_default() += 1;
            }
        }
        Ok(base)
    }

    fn add_resource(&mut self, uri: String, value: &'a Value) -> Result<()> {
        let shown = shortened(&uri);
        match self.resources.insert(uri, value) {
            Some(other) if !std::ptr::eq(other, value) => {
                Err(refused(format!("two parts of the schema have the $id '{shown}': rename one")))
            }
            _ => Ok(()),
        }
    }

    /// The subschema that a `$ref` of another one names.
    ///
    /// # Errors
    /// When it is not part of the schema.
    pub fn referenced(&self, from: &Value, reference: &str) -> Result<&'a Value> {
        let base = self.bases.get(&std::ptr::from_ref(from)).map_or("", |base| &**base);
        let (uri, fragment) = resolve(base, reference);
        let found = percent_decoded(&fragment).and_then(|fragment| {
            let root = *self.resources.get(&uri)?;
            match fragment.strip_prefix('/') {
                Some(pointer) => self.at_pointer(root, pointer),
                None if fragment.is_empty() => Some(root),
                None => self.anchors.get(&(uri, fragment)).copied(),
            }
        });
        found.ok_or_else(|| {
            refused(format!(
                "the validator finds no subschema '{}': copy it into $defs",
                shortened(reference)
            ))
        })
    }

    /// The subschema at a JSON pointer (RFC 6901) without its first slash.
    fn at_pointer(&self, root: &'a Value, pointer: &str) -> Option<&'a Value> {
        let mut value = root;
        for step in pointer.split('/') {
            let step = step.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(map) => map.get(&step)?,
                Value::Array(list) => {
                    let index: usize = step.parse().ok()?;
                    // Neither a sign nor leading zeros.
                    list.get(index).filter(|_| index.to_string() == step)?
                }
                _ => return None,
            };
        }
        self.bases.contains_key(&std::ptr::from_ref(value)).then_some(value)
    }

    /// The subschema that a `$dynamicRef` names where only one has the dynamic anchor.
    ///
    /// # Errors
    /// When several have it, or none is found.
    pub fn dynamically_referenced(&self, from: &Value, reference: &str) -> Result<&'a Value> {
        let found = self.referenced(from, reference)?;
        let fragment = reference.split_once('#').map(|(_, fragment)| fragment);
        let anchor =
            found.get("$dynamicAnchor").and_then(Value::as_str).filter(|name| fragment == Some(name));
        match anchor.and_then(|anchor| self.dynamic.get(anchor)) {
            Some(2..) => Err(refused(format!(
                "the validator does not support the $dynamicRef '{}', whose anchor several subschemas have",
                shortened(reference)
            ))),
            _ => Ok(found),
        }
    }
}
