//! References within a schema: identifiers, anchors and JSON pointers (RFC 3986, RFC 6901).

use std::collections::HashMap;

use girih_tensor::Result;
use serde_json::Value;

use super::keywords::{Draft, unsupported};
use crate::limits::refused;

/// Where a value lies, as a key of maps; it is never read through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place(*const Value);

impl Place {
    /// The place of a value.
    pub fn of(value: &Value) -> Place {
        Place(std::ptr::from_ref(value))
    }
}

/// What a schema's references may point to.
pub(crate) struct References<'a> {
    draft: Draft,
    /// Schemas by their absolute identifier, without a fragment.
    resources: HashMap<String, &'a Value>,
    /// Schemas by the identifier of their resource and their anchor.
    anchors: HashMap<(String, String), &'a Value>,
    /// Schemas by the name of their dynamic anchor.
    dynamic: HashMap<String, Vec<&'a Value>>,
    /// The base of each subschema.
    bases: HashMap<Place, String>,
}

/// Keywords whose value is a schema, or a list of schemas.
pub(super) const SCHEMAS: [&str; 16] = [
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "contains",
    "else",
    "if",
    "items",
    "not",
    "oneOf",
    "prefixItems",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
];

/// Keywords whose value is an object of schemas.
const SCHEMA_MAPS: [&str; 6] =
    ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

impl<'a> References<'a> {
    /// Finds the identifiers and anchors of a schema.
    ///
    /// # Errors
    /// When a subschema has another draft, or two have the same identifier.
    pub fn of(root: &'a Value, draft: Draft) -> Result<References<'a>> {
        let mut references = References {
            draft,
            resources: HashMap::new(),
            anchors: HashMap::new(),
            dynamic: HashMap::new(),
            bases: HashMap::new(),
        };
        references.resources.insert(String::new(), root);
        references.index(root, "")?;
        Ok(references)
    }

    fn index(&mut self, value: &'a Value, outer: &str) -> Result<()> {
        let Value::Object(map) = value else { return Ok(()) };
        let mut base = outer.to_owned();
        let text = |key: &str| map.get(key).and_then(Value::as_str);
        let hides_siblings = self.draft == Draft::Seven && map.contains_key("$ref");
        if let Some(id) = text("$id").filter(|_| !hides_siblings) {
            if Draft::of(value)? != self.draft && map.contains_key("$schema") {
                return Err(refused("a part of the schema has another $schema: use one draft"));
            }
            let joined = join(outer, id);
            let (resource, fragment) = joined.split_once('#').unwrap_or((&joined, ""));
            if !id.starts_with('#') {
                base = resource.to_owned();
                if self.resources.insert(base.clone(), value).is_some_and(|other| !std::ptr::eq(other, value))
                {
                    return Err(refused(format!(
                        "two parts of the schema have the $id '{base}': rename one"
                    )));
                }
            }
            if !fragment.is_empty() {
                self.anchors.insert((base.clone(), fragment.to_owned()), value);
            }
        }
        if self.draft == Draft::Latest {
            for key in ["$anchor", "$dynamicAnchor"] {
                if let Some(anchor) = text(key) {
                    self.anchors.insert((base.clone(), anchor.to_owned()), value);
                }
            }
            if let Some(anchor) = text("$dynamicAnchor") {
                self.dynamic.entry(anchor.to_owned()).or_default().push(value);
            }
        }
        self.bases.insert(Place::of(value), base.clone());
        for (key, value) in map {
            match value {
                Value::Array(list) if SCHEMAS.contains(&key.as_str()) => {
                    list.iter().try_for_each(|value| self.index(value, &base))?;
                }
                Value::Object(_) if SCHEMAS.contains(&key.as_str()) => self.index(value, &base)?,
                Value::Object(members) if SCHEMA_MAPS.contains(&key.as_str()) => {
                    members.values().try_for_each(|value| self.index(value, &base))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The schema that `$ref` names from a subschema.
    ///
    /// # Errors
    /// When it is not part of the schema.
    pub fn resolve(&self, reference: &str, from: Place) -> Result<&'a Value> {
        let missing = || {
            let shown: String = reference.chars().take(60).collect();
            refused(format!("the schema refers to '{shown}', which is not part of it: copy it into $defs"))
        };
        let base = self.bases.get(&from).map_or("", String::as_str);
        let joined = join(base, reference);
        let (resource, fragment) = joined.split_once('#').unwrap_or((&joined, ""));
        let root = *self.resources.get(resource).ok_or_else(missing)?;
        let fragment = percent_decoded(fragment).ok_or_else(missing)?;
        let Some(pointer) = fragment.strip_prefix('/') else {
            let anchored = || self.anchors.get(&(resource.to_owned(), fragment.clone())).copied();
            return if fragment.is_empty() { Ok(root) } else { anchored().ok_or_else(missing) };
        };
        let mut value = root;
        for step in pointer.split('/') {
            let step = step.replace("~1", "/").replace("~0", "~");
            value = match value {
                Value::Object(map) => map.get(&step),
                Value::Array(list) => step.parse::<usize>().ok().and_then(|index| list.get(index)),
                _ => None,
            }
            .ok_or_else(missing)?;
        }
        // Elsewhere, identifiers and references were not found.
        let is_schema = value.is_boolean() || self.bases.contains_key(&Place::of(value));
        if is_schema { Ok(value) } else { Err(missing()) }
    }

    /// The schema that `$dynamicRef` names, where no other one can take its place.
    ///
    /// # Errors
    /// When several schemas have the anchor, or none.
    pub fn resolve_dynamic(&self, reference: &str, from: Place) -> Result<&'a Value> {
        let found = self.resolve(reference, from)?;
        let anchor = found.get("$dynamicAnchor").and_then(Value::as_str);
        let names_it = anchor.is_some_and(|anchor| reference.rsplit('#').next() == Some(anchor));
        match anchor.filter(|_| names_it).and_then(|anchor| self.dynamic.get(anchor)) {
            Some(all) if all.len() > 1 => Err(unsupported("$dynamicRef")),
            _ => Ok(found),
        }
    }
}

/// Resolves a reference against a base (RFC 3986, section 5.2, without queries).
fn join(base: &str, reference: &str) -> String {
    let scheme_end = |uri: &str| {
        let end = uri.find(|char: char| !char.is_ascii_alphanumeric() && !"+.-".contains(char))?;
        (uri[end..].starts_with(':') && uri.starts_with(|char: char| char.is_ascii_alphabetic()))
            .then_some(end)
    };
    let base = base.split('#').next().unwrap_or_default();
    if scheme_end(reference).is_some() {
        return reference.to_owned();
    }
    if reference.is_empty() || reference.starts_with('#') {
        return format!("{base}{reference}");
    }
    let after_scheme = scheme_end(base).map_or(0, |end| end + 1);
    let path_start = match base[after_scheme..].strip_prefix("//") {
        Some(rest) => base.len() - rest.len() + rest.find('/').unwrap_or(rest.len()),
        None => after_scheme,
    };
    let (path, fragment) = reference.split_at(reference.find('#').unwrap_or(reference.len()));
    let (root, base_path) = base.split_at(path_start);
    let joined = match path.starts_with('/') {
        true => path.to_owned(),
        false => format!("{}{path}", &base_path[..base_path.rfind('/').map_or(0, |at| at + 1)]),
    };
    let mut steps: Vec<&str> = Vec::new();
    for step in joined.split('/') {
        match step {
            "." => {}
            ".." => drop(steps.pop()),
            step => steps.push(step),
        }
    }
    let slash = if !root.is_empty() && !joined.starts_with('/') { "/" } else { "" };
    format!("{root}{slash}{}{fragment}", steps.join("/"))
}

/// Decodes `%XX`; `None` if that is no text.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_joined_to_their_base() {
        let cases = [
            ("", "#/a", "#/a"),
            ("http://a/b/c.json", "d.json#x", "http://a/b/d.json#x"),
            ("http://a/b/c.json", "/d", "http://a/d"),
            ("http://a/b/c/", "../d", "http://a/b/d"),
            ("http://a", "d", "http://a/d"),
            ("http://a/b#f", "#g", "http://a/b#g"),
            ("urn:uuid:1", "#g", "urn:uuid:1#g"),
            ("http://a/b", "urn:x:y", "urn:x:y"),
            ("a/b", "c", "a/c"),
        ];
        for (base, reference, expected) in cases {
            assert_eq!(join(base, reference), expected, "{base} {reference}");
        }
    }
}
