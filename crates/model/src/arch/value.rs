//! Values of `config.json`: compared with those of a description, and shown in errors.

use girih_file::quote;
use serde_json::Value as Json;

use super::schema::{DefaultValue, HarmlessValues, ListOf, StatedValue, ValueKind};
use crate::special_floats;

impl StatedValue {
    /// A value of `config.json`; `None` for null, a list or an object.
    pub(super) fn of_json(value: &Json) -> Option<StatedValue> {
        match value {
            Json::Number(number) => number.as_f64().map(StatedValue::Number),
            Json::String(word) => Some(StatedValue::Word(word.clone())),
            Json::Bool(flag) => Some(StatedValue::Flag(*flag)),
            Json::Object(_) => special_floats::of_object(value).map(StatedValue::Number),
            Json::Null | Json::Array(_) => None,
        }
    }
}

impl DefaultValue {
    /// Whether it is another size of the model.
    pub(super) fn is_a_size(&self) -> bool {
        matches!(self, DefaultValue::Word(word) if ["heads", "width / heads", "head_size", "4 * width", "full"].contains(&word.as_str()))
    }
}

impl HarmlessValues {
    /// Whether a value of `config.json` is one of them.
    pub(super) fn contain(&self, value: &Json) -> bool {
        let is_id = |value: &Json| value.is_i64() || value.is_u64();
        match self {
            HarmlessValues::Kind(ValueKind::Any) => true,
            HarmlessValues::Kind(ValueKind::Flag) => value.is_boolean(),
            HarmlessValues::Kind(ValueKind::Number) => value.is_number(),
            HarmlessValues::Kind(ValueKind::Text) => value.is_string(),
            HarmlessValues::Kind(ValueKind::Ids) => {
                is_id(value) || value.as_array().is_some_and(|list| list.iter().all(is_id))
            }
            HarmlessValues::Each(ListOf { each }) => value.as_array().is_some_and(|list| {
                list.iter().all(|value| StatedValue::of_json(value).as_ref() == Some(each))
            }),
            HarmlessValues::Listed(_) => {
                StatedValue::of_json(value).is_some_and(|stated| self.contain_stated(&stated))
            }
        }
    }

    /// Whether a value of GGUF, which is no array, is one of them.
    pub(super) fn contain_stated(&self, value: &StatedValue) -> bool {
        match self {
            HarmlessValues::Kind(ValueKind::Any) => true,
            HarmlessValues::Kind(ValueKind::Flag) => matches!(value, StatedValue::Flag(_)),
            HarmlessValues::Kind(ValueKind::Number) => matches!(value, StatedValue::Number(_)),
            HarmlessValues::Kind(ValueKind::Text) => matches!(value, StatedValue::Word(_)),
            HarmlessValues::Kind(ValueKind::Ids) => {
                matches!(value, StatedValue::Number(number) if number.fract() == 0.0)
            }
            HarmlessValues::Each(_) => false,
            HarmlessValues::Listed(list) => list.contains(value),
        }
    }
}

/// A value in a few characters.
pub(super) fn brief(value: &Json) -> String {
    match value {
        Json::String(text) => quote(text),
        Json::Array(list) => format!("a list of length {}", list.len()),
        Json::Object(_) => "an object".to_owned(),
        Json::Null | Json::Bool(_) | Json::Number(_) => value.to_string(),
    }
}
