//! Values from JSON texts; a repeated key is an error, as it would hide the first one's value.

use std::fmt;

use girih_graph::Result;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::fields::refused;

/// The value of a JSON text; `what` names it in errors.
///
/// ```
/// assert_eq!(girih::json::parse("options", r#"{"threads": 2}"#)?["threads"], 2);
/// assert!(girih::json::parse("options", r#"{"threads": 2, "threads": 4}"#).is_err());
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// When it is no JSON, is nested more than 127 deep, or an object has a key twice.
pub fn parse(what: &str, text: &str) -> Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = UniqueValue.deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.map_err(|error| refused(format!("{what}: {}", girih_file::shorten_parse(&error))))
}

/// A value whose objects have each key once.
struct UniqueValue;

impl<'de> DeserializeSeed<'de> for UniqueValue {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueValue {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> std::result::Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> std::result::Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> std::result::Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(item) = items.next_element_seed(UniqueValue)? {
            all.push(item);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> std::result::Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("duplicate key {}", girih_file::quote(&key))));
            }
            all.insert(key, entries.next_value_seed(UniqueValue)?);
        }
        Ok(all.into())
    }
}
