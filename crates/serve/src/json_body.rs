//! Bodies of requests: JSON of a known form, and the name of the parameter that is wrong.

use std::collections::BTreeSet;
use std::fmt;

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::de::{DeserializeOwned, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::{Map, Value};

use crate::background::in_background;
use crate::body_limits::MAX_TEXT_BYTES;
use crate::error::ApiError;
use crate::field_words::{advice, in_json_words, names};
use crate::images::image_bytes;
use crate::parameters::{ParameterNotes, ParameterWithoutEffect};

/// The maximum length of what a sentence quotes of a request.
const QUOTED_CHARS: usize = 200;

/// Bodies up to this length are read at once; longer ones on another thread, so that connections do not
/// wait for them.
const SHORT_BODY_BYTES: usize = 64 << 10;

/// Reads a body, without keeping other connections waiting. Nesting deeper than 127 levels is refused by
/// `serde_json`. The parameters of `without_effect` are noted and left out.
///
/// # Errors
/// Status 400: the body is not JSON, or a parameter is unknown, missing or of the wrong type; the
/// error names it.
pub async fn read_body<T: DeserializeOwned + Send + 'static>(
    body: Bytes,
    without_effect: &'static [ParameterWithoutEffect],
) -> Result<T, ApiError> {
    let notes = ParameterNotes::current();
    if body.len() <= SHORT_BODY_BYTES {
        return read_json(body, without_effect, &notes);
    }
    in_background(move || read_json(body, without_effect, &notes)).await
}

fn read_json<T: DeserializeOwned>(
    body: Bytes,
    without_effect: &[ParameterWithoutEffect],
    notes: &ParameterNotes,
) -> Result<T, ApiError> {
    let Fields(fields) = serde_json::from_slice(&body).map_err(|error| no_object(&error))?;
    let length = body.len();
    // The next copy takes its place.
    drop(body);
    if length > MAX_TEXT_BYTES {
        check_text(length.saturating_sub(image_bytes(&fields)))?;
    }
    read_fields("", fields, without_effect, notes)
}

/// Refuses a body with more text than one without images may have.
fn check_text(bytes: usize) -> Result<(), ApiError> {
    if bytes <= MAX_TEXT_BYTES {
        return Ok(());
    }
    let message = format!("the body has {bytes} bytes besides its images; the maximum is {MAX_TEXT_BYTES}");
    Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message))
}

/// Reads an object within a body, which `param` names, as [`read_body`] reads the body.
///
/// # Errors
/// As [`read_body`].
pub fn read_object<T: DeserializeOwned>(
    param: &str,
    object: Map<String, Value>,
    without_effect: &[ParameterWithoutEffect],
) -> Result<T, ApiError> {
    let prefix = format!("{param}.");
    read_fields(&prefix, object.into_iter().collect(), without_effect, &ParameterNotes::current())
}

/// Reads a value within a body, which `param` names.
///
/// # Errors
/// Status 400: the value has another form.
pub fn read_value<T: DeserializeOwned>(param: &str, value: &Value) -> Result<T, ApiError> {
    T::deserialize(value).map_err(|error| wrong(param, &error, !value.is_object() && !value.is_array()))
}

/// The fields of an object, in their order.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct FieldsVisitor;

        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Fields;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let (mut fields, mut names) = (Vec::new(), BTreeSet::new());
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if !names.insert(name.clone()) {
                        let name: String = name.chars().take(QUOTED_CHARS).collect();
                        return Err(A::Error::custom(format!("the parameter {name} is given twice")));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(FieldsVisitor)
    }
}

/// Reads the fields that have an effect; `prefix` stands before their names in messages.
fn read_fields<T: DeserializeOwned>(
    prefix: &str,
    fields: Vec<(String, Value)>,
    without_effect: &[ParameterWithoutEffect],
    notes: &ParameterNotes,
) -> Result<T, ApiError> {
    let mut object = Map::new();
    for (name, value) in fields {
        match without_effect.iter().find(|parameter| parameter.name == name) {
            Some(parameter) => parameter.accept(&format!("{prefix}{name}"), &value, notes)?,
            None => drop(object.insert(name, with_integers(value))),
        }
    }
    let mut object = Value::Object(object);
    let error = match T::deserialize(&object) {
        Ok(body) => return Ok(body),
        Err(error) => error,
    };
    let unknown = unknown_fields::<T>(&object);
    if !unknown.is_empty() && notes.allows_unknown() {
        for (name, _) in unknown {
            object.as_object_mut().and_then(|object| object.remove(&name));
            notes.add(&format!("{prefix}{name}"), "girih does not know it");
        }
        return T::deserialize(&object).map_err(|error| fault::<T>(prefix, &object, &error));
    }
    if let Some((name, known)) = unknown.into_iter().next() {
        let mut known: Vec<&str> = known.iter().map(String::as_str).collect();
        known.extend(without_effect.iter().map(|parameter| parameter.name));
        let name: String = name.chars().take(QUOTED_CHARS).collect();
        let shown = format!("{prefix}{name}");
        let message = format!("the parameter {shown:?} is not known; {}", advice(&name, &known));
        return Err(ApiError { code: "unknown_parameter", ..ApiError::invalid(shown, message) });
    }
    Err(fault::<T>(prefix, &object, &error))
}

/// A number without a fraction is an integer in JSON Schema, however it is written.
fn with_integers(value: Value) -> Value {
    /// The integers up to this one are all numbers of 64 bits.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match value.as_f64().filter(|number| value.is_f64() && number.fract() == 0.0 && number.abs() <= EXACT) {
        Some(number) => (number as i64).into(),
        None => value,
    }
}

/// The object with one field alone: a fault of this field is found without those of others.
fn alone(name: &str, value: &Value) -> Value {
    Value::Object(Map::from_iter([(name.to_owned(), value.clone())]))
}

/// The fields that no body of this form has, and the names of those that it has.
fn unknown_fields<T: DeserializeOwned>(object: &Value) -> Vec<(String, Vec<String>)> {
    let fields = object.as_object().into_iter().flatten();
    let unknown = |(name, value): (&String, &Value)| {
        let error = T::deserialize(&alone(name, value)).err()?.to_string();
        let rest = error.strip_prefix(&format!("unknown field `{name}`"))?;
        Some((name.clone(), names(rest).into_iter().map(str::to_owned).collect()))
    };
    fields.filter_map(unknown).collect()
}

fn no_object(error: &serde_json::Error) -> ApiError {
    let message = match error.classify() {
        Category::Data if error.to_string().starts_with("invalid type") => {
            "the body is not a JSON object; send one".to_owned()
        }
        Category::Data => {
            let sentence = shortened(error);
            sentence.split(" at line ").next().unwrap_or_default().to_owned()
        }
        _ => format!("the body is not JSON: {}", shortened(error)),
    };
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message)
}

fn fault<T: DeserializeOwned>(prefix: &str, object: &Value, error: &serde_json::Error) -> ApiError {
    // The parameter that is wrong even alone is the one that is wrong. This runs once for a bad request.
    for (name, value) in object.as_object().into_iter().flatten() {
        let Err(error) = T::deserialize(&alone(name, value)) else { continue };
        if !error.to_string().starts_with("missing field") {
            return wrong(&format!("{prefix}{name}"), &error, !value.is_object() && !value.is_array());
        }
    }
    let sentence = shortened(error);
    let missing = sentence.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    match missing {
        Some(name) => ApiError {
            code: "missing_parameter",
            ..ApiError::invalid(format!("{prefix}{name}"), format!("the parameter {prefix}{name} is missing"))
        },
        None => {
            let message = format!("the parameters are wrong{}", in_json_words(&sentence, false));
            ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message)
        }
    }
}

/// The value of `param` has another form.
fn wrong(param: &str, error: &serde_json::Error, is_whole: bool) -> ApiError {
    ApiError::invalid(param, format!("{param}{}", in_json_words(&shortened(error), is_whole)))
}

/// Implements `Deserialize` for types that derive it with `#[serde(remote = "Self")]`: from JSON objects
/// only. What serde derives for structs and tagged enums also reads a list of the fields' values, in
/// order, which no API has.
macro_rules! from_json_object {
    ($($name:ident),+) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                struct ObjectVisitor;

                impl<'de> serde::de::Visitor<'de> for ObjectVisitor {
                    type Value = $name;

                    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        formatter.write_str("an object")
                    }

                    fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                        // The function that is derived, not the one of the trait.
                        $name::deserialize(serde::de::value::MapAccessDeserializer::new(map))
                    }
                }

                deserializer.deserialize_map(ObjectVisitor)
            }
        }
    )+};
}
pub(crate) use from_json_object;

/// As [`from_json_object`], for types that derive `Serialize`, too.
macro_rules! json_object {
    ($($name:ident),+) => {
        $crate::json_body::from_json_object!($($name),+);
        $(
            impl serde::Serialize for $name {
                fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    $name::serialize(self, serializer)
                }
            }
        )+
    };
}
pub(crate) use json_object;

fn shortened(error: &serde_json::Error) -> String {
    let sentence = error.to_string();
    match sentence.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None => sentence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(remote = "Self", deny_unknown_fields)]
    #[allow(dead_code)]
    struct Body {
        needed: String,
        number: Option<u32>,
    }

    from_json_object!(Body);

    fn error(body: &str) -> (&'static str, Option<String>, String) {
        let error =
            read_json::<Body>(Bytes::copy_from_slice(body.as_bytes()), &[], &ParameterNotes::default())
                .unwrap_err();
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        (error.code, error.param, error.message)
    }

    #[test]
    fn a_fault_names_its_parameter() {
        let read = |body: &str| {
            read_json::<Body>(Bytes::copy_from_slice(body.as_bytes()), &[], &ParameterNotes::default())
        };
        assert!(read(r#"{"needed": "a", "number": 1.0}"#).is_ok());
        let of = |body| {
            let (code, param, _) = error(body);
            (code, param.unwrap_or_default())
        };
        assert_eq!(of(r#"{"needed": "a", "other": 1}"#), ("unknown_parameter", "other".to_owned()));
        assert_eq!(of(r#"{"needed": "a", "number": -1}"#), ("invalid_value", "number".to_owned()));
        assert_eq!(of(r#"{"number": 1}"#), ("missing_parameter", "needed".to_owned()));
        assert_eq!(of("[]").0, "invalid_json");
        assert_eq!(of(r#"["a", 1]"#).0, "invalid_json");
        assert_eq!(of("{").0, "invalid_json");
        assert_eq!(of(&format!("{}{}", "[".repeat(200), "]".repeat(200))).0, "invalid_json");
        assert!(error(r#"{"needed": "a", "needed": "b"}"#).2.contains("needed is given twice"));
    }
}
