//! Bodies of requests: JSON of a known form, and the name of the parameter that is wrong.

use axum::body::Bytes;
use axum::http::StatusCode;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::background::in_background;
use crate::error::ApiError;

/// The maximum length of what a sentence quotes of a request.
const QUOTED_CHARS: usize = 200;

/// Bodies up to this length are read at once; longer ones on another thread, so that connections do not
/// wait for them.
const SHORT_BODY_BYTES: usize = 64 << 10;

/// Reads a body, without keeping other connections waiting. Nesting deeper than 127 levels is refused by
/// `serde_json`.
///
/// # Errors
/// Status 400: the body is not JSON, or a parameter is unknown, missing or of the wrong type; the
/// error names it.
pub async fn read_body<T: DeserializeOwned + Send + 'static>(body: Bytes) -> Result<T, ApiError> {
    if body.len() <= SHORT_BODY_BYTES {
        return read_json(&body);
    }
    in_background(move || read_json(&body)).await
}

fn read_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| fault::<T>(body, &error))
}

/// Reads a value within a body, which `param` names.
///
/// # Errors
/// Status 400: the value has another form.
pub fn read_value<T: DeserializeOwned>(param: &str, value: &Value) -> Result<T, ApiError> {
    T::deserialize(value).map_err(|error| ApiError::invalid(param, format!("{param}: {}", shortened(&error))))
}

fn fault<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error) -> ApiError {
    let Ok(document) = serde_json::from_slice::<Value>(body) else {
        let message = format!("the body is not JSON: {}", shortened(error));
        return ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
    };
    let Value::Object(map) = document else {
        let message = "the body is not a JSON object; send one";
        return ApiError::new(StatusCode::BAD_REQUEST, "invalid_json", message);
    };
    // The parameter that is wrong even alone is the one that is wrong. This runs once for a bad request.
    for (name, value) in map {
        // As text, because a number may be too large for its type only there.
        let alone = Value::Object(Map::from_iter([(name.clone(), value)])).to_string();
        let Err(error) = serde_json::from_str::<T>(&alone) else { continue };
        // The place in the value alone says nothing about the body.
        let sentence = shortened(&error);
        let sentence = sentence.split(" at line ").next().unwrap_or_default();
        let name: String = name.chars().take(QUOTED_CHARS).collect();
        if sentence.starts_with(&format!("unknown field `{name}`")) {
            let message = format!("the parameter {name:?} is not known; remove it");
            return ApiError { code: "unknown_parameter", ..ApiError::invalid(name, message) };
        }
        if !sentence.starts_with("missing field") {
            return ApiError::invalid(&name, format!("{name}: {sentence}"));
        }
    }
    let sentence = shortened(error);
    let missing = sentence.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    match missing {
        Some(name) => ApiError {
            code: "missing_parameter",
            ..ApiError::invalid(name, format!("the parameter {name} is missing"))
        },
        None => ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", sentence),
    }
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
    use serde::Deserialize;

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
        let error = read_json::<Body>(body.as_bytes()).unwrap_err();
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
        (error.code, error.param, error.message)
    }

    #[test]
    fn a_fault_names_its_parameter() {
        assert!(read_json::<Body>(br#"{"needed": "a"}"#).is_ok());
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
        assert!(error(r#"{"needed": "a", "needed": "b"}"#).2.starts_with("duplicate field"));
    }
}
