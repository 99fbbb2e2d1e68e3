//! Reads calls whose arguments are text between tags, such as
//! `<function=name><parameter=key>value</parameter></function>`.
//!
//! Such text does not say which values are strings. A value is a string if the tool's schema says
//! so, or if it is no JSON; else it is the JSON. The tags are not XML: nothing is escaped.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::Value;

use super::object::is_name;
use super::part::Parts;
use super::syntax::ReplySyntax;
use super::tags::Tags;
use super::value::{Fault, Notation, ReadStep, ValueReader};

/// The maximum bytes of a name or a key with its tag.
const MAX_TAG_BYTES: usize = 512;
/// The maximum bytes of a value.
const MAX_VALUE_BYTES: usize = 4 << 20;

/// The parameters of tools that are strings: pairs of a tool's name and a key.
pub(super) type TextParameters = Arc<HashSet<(String, String)>>;

/// The parameters of these tools whose schema allows only strings.
pub(super) fn text_parameters(tools: &[Value]) -> TextParameters {
    let mut found = HashSet::new();
    for function in tools.iter().filter_map(|tool| tool.get("function")) {
        let (Some(name), Some(properties)) = (
            function.get("name").and_then(Value::as_str),
            function.pointer("/parameters/properties").and_then(Value::as_object),
        ) else {
            continue;
        };
        let texts = properties.iter().filter(|(_, schema)| is_text(schema));
        found.extend(texts.map(|(key, _)| (name.to_owned(), key.clone())));
    }
    Arc::new(found)
}

/// Whether a schema allows only strings.
fn is_text(schema: &Value) -> bool {
    let of_values = |key: &str| {
        let values = schema.get(key).and_then(Value::as_array);
        values.is_some_and(|values| !values.is_empty() && values.iter().all(Value::is_string))
    };
    schema
        .get("type")
        .map_or_else(|| of_values("enum"), |one| one == "string" || *one == serde_json::json!(["string"]))
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagAt {
    /// A call, or after the first one the end.
    Call,
    Name,
    /// A parameter, or the end of the call.
    Parameter,
    Key,
    ValueOpen,
    Value,
}

/// Reads the calls after one marker.
#[derive(Debug)]
pub(super) struct TaggedReader {
    tags: &'static Tags,
    texts: TextParameters,
    at: TagAt,
    /// The text since the last tag.
    held: String,
    /// The name of the present call, from where it has begun.
    name: String,
    key: String,
    has_begun: bool,
    has_arguments: bool,
    has_calls: bool,
}

impl TaggedReader {
    pub fn new(tags: &'static Tags, texts: TextParameters) -> TaggedReader {
        TaggedReader {
            tags,
            texts,
            at: TagAt::Call,
            held: String::new(),
            name: String::new(),
            key: String::new(),
            has_begun: false,
            has_arguments: false,
            has_calls: false,
        }
    }

    /// Whether the beginning of the present call was passed on.
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether the text may end here.
    pub fn may_end(&self) -> bool {
        self.has_calls && self.at == TagAt::Call && self.held.is_empty()
    }

    /// Takes a character, and passes on what is certain.
    pub fn step(&mut self, c: char, syntax: &ReplySyntax, parts: &mut Parts) -> Result<ReadStep, Fault> {
        // A tag that is a special token of the vocabulary comes as one character.
        match syntax.spelling(c) {
            Some(tag) => {
                for c in tag.chars() {
                    if self.step_text(c, parts)? == ReadStep::Ended {
                        return Ok(ReadStep::Ended);
                    }
                }
                Ok(ReadStep::More)
            }
            None => self.step_text(c, parts),
        }
    }

    fn step_text(&mut self, c: char, parts: &mut Parts) -> Result<ReadStep, Fault> {
        self.held.push(c);
        match self.at {
            TagAt::Call => self.before_call(),
            TagAt::Name => self.in_name(parts),
            TagAt::Parameter => self.before_parameter(parts),
            TagAt::Key => self.in_key(),
            TagAt::ValueOpen => {
                let tags = [self.tags.value_open];
                self.expect(&tags, "a value is missing after its key").map(|found| {
                    if found.is_some() {
                        self.at = TagAt::Value;
                    }
                    ReadStep::More
                })
            }
            TagAt::Value => self.in_value(parts),
        }
    }

    /// Which of the tags the held text is; `None` if it may become one. White space comes before a
    /// tag.
    fn expect(&mut self, tags: &[&'static str], fault: Fault) -> Result<Option<usize>, Fault> {
        let held = self.held.trim_start();
        let found = tags.iter().position(|tag| *tag == held);
        if found.is_none() && !tags.iter().any(|tag| tag.starts_with(held)) {
            return Err(fault);
        }
        if found.is_some() || held.is_empty() {
            self.held.clear();
        }
        Ok(found)
    }

    fn before_call(&mut self) -> Result<ReadStep, Fault> {
        if self.tags.name_open.is_empty() {
            self.at = TagAt::Name;
            return Ok(ReadStep::More);
        }
        let tags = [self.tags.name_open, self.tags.end];
        let known = if self.has_calls { &tags[..] } else { &tags[..1] };
        Ok(match self.expect(known, "there is no call after its marker")? {
            Some(0) => {
                self.at = TagAt::Name;
                ReadStep::More
            }
            Some(_) => ReadStep::Ended,
            None => ReadStep::More,
        })
    }

    fn in_name(&mut self, parts: &mut Parts) -> Result<ReadStep, Fault> {
        if self.held.len() > MAX_TAG_BYTES {
            return Err("the name of a call is longer than 512 bytes");
        }
        let Tags { name_close, key_open, end, .. } = self.tags;
        if !name_close.is_empty() {
            let Some(name) = self.held.strip_suffix(name_close) else { return Ok(ReadStep::More) };
            let name = name.trim().to_owned();
            return self.begin(name, parts).map(|()| ReadStep::More);
        }
        // The tag after a name is its end.
        let text = self.held.trim_start();
        let Some(at) = text.find(['\n', '<']) else { return Ok(ReadStep::More) };
        let (name, tag) = (text[..at].trim().to_owned(), text[at..].trim_start());
        let (is_key, is_end) = (tag == *key_open, tag == *end);
        if is_key || is_end {
            self.begin(name, parts)?;
            if is_end {
                self.end_call(parts);
                return Ok(ReadStep::Ended);
            }
            self.at = TagAt::Key;
        } else if !key_open.starts_with(tag) && !end.starts_with(tag) {
            return Err("there is no call after its marker");
        }
        Ok(ReadStep::More)
    }

    fn begin(&mut self, name: String, parts: &mut Parts) -> Result<(), Fault> {
        if !is_name(&name) {
            return Err("the name of a call is not 1 to 128 letters, digits and _ - . : /");
        }
        parts.begin(name.clone(), None);
        parts.arguments("{");
        self.name = name;
        self.held.clear();
        self.at = TagAt::Parameter;
        (self.has_begun, self.has_arguments, self.has_calls) = (true, false, true);
        Ok(())
    }

    fn end_call(&mut self, parts: &mut Parts) {
        parts.arguments("}");
        parts.end(None);
        self.has_begun = false;
        self.at = TagAt::Call;
    }

    fn before_parameter(&mut self, parts: &mut Parts) -> Result<ReadStep, Fault> {
        let tags = [self.tags.key_open, self.tags.call_close.unwrap_or(self.tags.end)];
        let found = self.expect(&tags, "a parameter or the end of a call is missing")?;
        match found {
            Some(0) => self.at = TagAt::Key,
            Some(_) => {
                self.end_call(parts);
                if self.tags.call_close.is_none() {
                    return Ok(ReadStep::Ended);
                }
            }
            None => {}
        }
        Ok(ReadStep::More)
    }

    fn in_key(&mut self) -> Result<ReadStep, Fault> {
        if let Some(key) = self.held.strip_suffix(self.tags.key_close) {
            self.key = key.trim().to_owned();
            self.held.clear();
            self.at = if self.tags.value_open.is_empty() { TagAt::Value } else { TagAt::ValueOpen };
        } else if self.held.len() > MAX_TAG_BYTES {
            return Err("a key is longer than 512 bytes");
        }
        Ok(ReadStep::More)
    }

    fn in_value(&mut self, parts: &mut Parts) -> Result<ReadStep, Fault> {
        let Some(text) = self.held.strip_suffix(self.tags.value_close) else {
            let is_long = self.held.len() > MAX_VALUE_BYTES;
            return if is_long { Err("a value is longer than 4 MiB") } else { Ok(ReadStep::More) };
        };
        let text = match self.tags.has_lines {
            true => {
                let text = text.strip_prefix('\n').unwrap_or(text);
                text.strip_suffix('\n').unwrap_or(text)
            }
            false => text,
        };
        let is_text = self.texts.contains(&(self.name.clone(), self.key.clone()));
        let json = text.trim();
        let value = if !is_text && is_json(json) { json.to_owned() } else { Value::from(text).to_string() };
        let comma = if self.has_arguments { "," } else { "" };
        parts.arguments(&format!("{comma}{}:{value}", Value::from(self.key.as_str())));
        self.has_arguments = true;
        self.held.clear();
        self.at = TagAt::Parameter;
        Ok(ReadStep::More)
    }
}

/// Whether a text is JSON other than a string.
fn is_json(text: &str) -> bool {
    let mut reader = ValueReader::new(Notation::Json);
    let mut step = Ok(ReadStep::More);
    for c in text.chars() {
        if step != Ok(ReadStep::More) {
            return false;
        }
        step = reader.step(c, &mut String::new());
    }
    // A number or a word ends before the next character.
    let ends = step == Ok(ReadStep::Ended)
        || step == Ok(ReadStep::More) && reader.step(',', &mut String::new()) == Ok(ReadStep::EndedBefore);
    ends && !text.starts_with('"')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_is_told_from_text() {
        for json in ["1", "-0.5", "true", "null", "[1, {\"a\": 2}]", "{}"] {
            assert!(is_json(json), "{json}");
        }
        for text in ["", "\"a\"", "a", "1 2", "[1", "{} x", "True", "01", "1e999"] {
            assert!(!is_json(text), "{text}");
        }
    }

    #[test]
    fn only_schemas_of_strings_make_strings() {
        let properties = json!({"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {"enum": ["x"]},
            "d": {"enum": ["x", 1]}, "e": {"type": "integer"}, "f": {"type": ["string"]}});
        let tool = json!({"function": {"name": "t", "parameters": {"properties": properties}}});
        let found = text_parameters(&[tool, json!(1), json!({"function": {"name": "u"}})]);
        let mut keys: Vec<&str> = found.iter().map(|(_, key)| key.as_str()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["a", "c", "f"]);
    }
}
