//! The fields of a JSON object; a field that nothing uses is an error.

use girih_graph::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

/// An object whose fields are taken one by one; those that are left are unknown.
pub(super) struct JsonFields {
    /// What the object is.
    what: &'static str,
    map: Map<String, Value>,
    known: Vec<&'static str>,
}

impl JsonFields {
    /// The fields of an object.
    ///
    /// # Errors
    /// When the value is no object.
    pub fn new(what: &'static str, value: &Value) -> Result<JsonFields> {
        match value {
            Value::Object(map) => Ok(JsonFields { what, map: map.clone(), known: Vec::new() }),
            _ => Err(refused(format!("{what}: is not a JSON object"))),
        }
    }

    /// Takes a field, unless it is absent or `null`.
    pub fn take(&mut self, name: &'static str) -> Option<Value> {
        self.known.push(name);
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    /// Takes a field that `read` understands; `needed` says what that is.
    ///
    /// # Errors
    /// When `read` returns `None`.
    pub fn read<T>(
        &mut self,
        name: &'static str,
        needed: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.wrong(name, &value, needed)),
        }
    }

    /// The error of a field whose value is not `needed`.
    pub fn wrong(&self, name: &str, value: &Value, needed: &str) -> Error {
        let found = match value {
            Value::String(text) => girih_file::quote(text),
            value => girih_file::quote(&value.to_string()),
        };
        refused(format!("{}: {name} is {found}; it must be {needed}", self.what))
    }

    /// Takes a text.
    pub fn text(&mut self, name: &'static str) -> Result<Option<String>> {
        self.read(name, "a text", |value| value.as_str().map(str::to_owned))
    }

    /// Takes a number of 32 bits without sign.
    pub fn u32(&mut self, name: &'static str) -> Result<Option<u32>> {
        self.read(name, "an integer from 0 to 4294967295", as_u32)
    }

    /// Takes a number of things, at least one.
    pub fn count(&mut self, name: &'static str) -> Result<Option<u32>> {
        self.read(name, "an integer from 1 to 4294967295", |value| as_u32(value).filter(|count| *count > 0))
    }

    /// Takes a number of 64 bits without sign.
    pub fn u64(&mut self, name: &'static str) -> Result<Option<u64>> {
        self.read(name, "an integer from 0 to 18446744073709551615", Value::as_u64)
    }

    /// Takes a number.
    pub fn f32(&mut self, name: &'static str) -> Result<Option<f32>> {
        self.read(name, "a number", |value| value.as_f64().map(|number| number as f32))
    }

    /// Takes a number of seconds.
    pub fn seconds(&mut self, name: &'static str) -> Result<Option<std::time::Duration>> {
        self.read(name, "a number of seconds, at least 0", |value| {
            std::time::Duration::try_from_secs_f64(value.as_f64()?).ok()
        })
    }

    /// Takes true or false; false if it is absent.
    pub fn flag(&mut self, name: &'static str) -> Result<bool> {
        Ok(self.read(name, "true or false", Value::as_bool)?.unwrap_or(false))
    }

    /// Takes a list of values that `read` understands.
    pub fn list<T>(
        &mut self,
        name: &'static str,
        needed: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        self.read(name, needed, |value| value.as_array()?.iter().map(&read).collect())
    }

    /// Takes a text or a list of texts.
    pub fn texts(&mut self, name: &'static str) -> Result<Vec<String>> {
        let texts = self.read(name, "a text or a list of texts", |value| match value {
            Value::String(text) => Some(vec![text.clone()]),
            value => value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        })?;
        Ok(texts.unwrap_or_default())
    }

    /// Takes an object of values that `read` understands, in its order.
    pub fn entries<T>(
        &mut self,
        name: &'static str,
        needed: &str,
        read: impl Fn(&str, &Value) -> Option<T>,
    ) -> Result<Vec<T>> {
        let entries = self.read(name, needed, |value| {
            value.as_object()?.iter().map(|(key, value)| read(key, value)).collect()
        })?;
        Ok(entries.unwrap_or_default())
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// When a field was not taken.
    pub fn finish(mut self) -> Result<()> {
        let Some(name) = self.map.keys().next() else { return Ok(()) };
        let name = girih_file::quote(name);
        self.known.sort_unstable();
        Err(refused(format!("{}: {name} is unknown; known are {}", self.what, self.known.join(", "))))
    }
}

/// An integer of 32 bits without sign.
pub(super) fn as_u32(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// An error of the kind [`ErrorKind::Refused`].
pub(super) fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}
