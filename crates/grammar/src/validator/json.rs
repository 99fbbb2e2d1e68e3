//! Values of JSON: their types, their equality, and how a message shows them.

use serde_json::Value;

use super::number::ExactNumber;
use super::work::{Stopped, Work};

/// A type that the keyword `type` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonType {
    Null,
    Boolean,
    Number,
    Integer,
    String,
    Array,
    Object,
}

/// The types by name.
pub(super) const TYPES: [(&str, JsonType); 7] = [
    ("null", JsonType::Null),
    ("boolean", JsonType::Boolean),
    ("number", JsonType::Number),
    ("integer", JsonType::Integer),
    ("string", JsonType::String),
    ("array", JsonType::Array),
    ("object", JsonType::Object),
];

impl JsonType {
    /// The type's name.
    pub fn name(self) -> &'static str {
        TYPES.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Whether a value has this type. A number without a fraction is an integer, however it is written.
    pub fn has(self, value: &Value) -> Result<bool, Stopped> {
        Ok(match self {
            JsonType::Null => value.is_null(),
            JsonType::Boolean => value.is_boolean(),
            JsonType::Number => value.is_number(),
            JsonType::Integer => match value {
                Value::Number(number) => exact(number)?.is_integer(),
                _ => false,
            },
            JsonType::String => value.is_string(),
            JsonType::Array => value.is_array(),
            JsonType::Object => value.is_object(),
        })
    }
}

/// The exact value of a number.
pub(super) fn exact(number: &serde_json::Number) -> Result<ExactNumber, Stopped> {
    ExactNumber::of(number).ok_or(Stopped(
        "the finished reply has a number with more digits than can be checked: bound its digits",
    ))
}

/// Whether two values are equal: numbers by their values, objects in any order of their members.
pub(super) fn equal(one: &Value, other: &Value, work: &mut Work) -> Result<bool, Stopped> {
    work.spend(1)?;
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => Ok(one == other || exact(one)? == exact(other)?),
        (Value::String(one), Value::String(other)) => {
            work.spend(one.len().min(other.len()) as u64 / 16)?;
            Ok(one == other)
        }
        (Value::Array(one), Value::Array(other)) => {
            if one.len() != other.len() {
                return Ok(false);
            }
            for (one, other) in one.iter().zip(other) {
                if !equal(one, other, work)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Value::Object(one), Value::Object(other)) => {
            if one.len() != other.len() {
                return Ok(false);
            }
            for (name, one) in one {
                work.spend(1 + name.len() as u64 / 16)?;
                let Some(other) = other.get(name) else { return Ok(false) };
                if !equal(one, other, work)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (one, other) => Ok(one == other),
    }
}

/// A value in a message: a short scalar itself, else its type.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
        scalar => scalar.to_string(),
    }
}

/// At most 60 characters of a text from outside.
pub(super) fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}
