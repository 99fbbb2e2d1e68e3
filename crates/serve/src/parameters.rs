//! Parameters that change nothing: which they are, and how a client learns that they had no effect.
//!
//! A parameter that changes the text of a reply is honoured or refused. One that asks for speed, placement, caching
//! or bookkeeping stands in a table of its API, is accepted, logged once, and named in the header of the
//! response, [`HEADER`].

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

use crate::error::ApiError;

/// The header that names the parameters of a request that had no effect.
pub const HEADER: HeaderName = HeaderName::from_static("x-girih-without-effect");

/// The maximum number of names in the header, and in the log.
const MAX_NAMES: usize = 64;

/// The maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 64;

/// A parameter that changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct ParameterWithoutEffect {
    /// Its name.
    pub name: &'static str,
    /// Why it changes nothing.
    pub why: &'static str,
    /// Which values it may have.
    pub values: AcceptedValues,
}

/// The values of a parameter that change nothing.
#[derive(Clone, Copy, Debug)]
pub enum AcceptedValues {
    /// All.
    Any,
    /// These, as JSON: each is what girih does anyway. Others would change the reply, and are refused.
    Only(&'static [&'static str]),
    /// Those for which the function returns true.
    Where(fn(&Value) -> bool),
}

/// What happens to a parameter that is in no list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownParameters {
    /// The request is refused.
    #[default]
    Refuse,
    /// It has no effect and is named, as those that are listed.
    Warn,
}

/// What a server does with parameters that change nothing.
#[derive(Debug)]
pub struct ParameterPolicy {
    unknown: UnknownParameters,
    /// What is told the first time that a parameter comes.
    notice: fn(&str),
    logged: Mutex<BTreeSet<String>>,
}

tokio::task_local! {
    /// The notes of the request that a task answers.
    static CURRENT: Arc<ParameterNotes>;
}

/// The parameters of one request that had no effect.
#[derive(Debug, Default)]
pub struct ParameterNotes {
    /// `None` without a server.
    policy: Option<Arc<ParameterPolicy>>,
    names: Mutex<Vec<String>>,
}

impl ParameterWithoutEffect {
    /// One of which every value has no effect.
    pub const fn any(name: &'static str, why: &'static str) -> ParameterWithoutEffect {
        ParameterWithoutEffect { name, why, values: AcceptedValues::Any }
    }

    /// One of which these values, as JSON, are what girih does anyway.
    pub const fn only(
        name: &'static str,
        values: &'static [&'static str],
        why: &'static str,
    ) -> ParameterWithoutEffect {
        ParameterWithoutEffect { name, why, values: AcceptedValues::Only(values) }
    }

    /// Accepts a value, and notes the parameter under `path` unless the value is the default.
    ///
    /// # Errors
    /// When the value would change the reply.
    pub fn accept(&self, path: &str, value: &Value, notes: &ParameterNotes) -> Result<(), ApiError> {
        match self.values {
            _ if value.is_null() => {}
            AcceptedValues::Any => notes.add(path, self.why),
            AcceptedValues::Only(values) if values.iter().any(|one| is_json(value, one)) => {}
            AcceptedValues::Where(accepts) if accepts(value) => {}
            AcceptedValues::Only(values) => {
                let message = format!("{path} must be {}: {}", values.join(" or "), self.why);
                return Err(ApiError::unsupported(path, message));
            }
            AcceptedValues::Where(_) => {
                let message = format!("{path} has a value that is not supported: {}", self.why);
                return Err(ApiError::unsupported(path, message));
            }
        }
        Ok(())
    }
}

/// Whether a value is the one that a text of JSON has; 1 and 1.0 are the same.
fn is_json(value: &Value, text: &str) -> bool {
    let Ok(other) = serde_json::from_str::<Value>(text) else { return false };
    *value == other || value.as_f64().is_some_and(|number| other.as_f64() == Some(number))
}

impl ParameterPolicy {
    /// A policy that tells `notice` of each parameter when it first comes.
    pub fn new(unknown: UnknownParameters, notice: fn(&str)) -> ParameterPolicy {
        ParameterPolicy { unknown, notice, logged: Mutex::default() }
    }

    fn log(&self, name: &str, why: &str) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < MAX_NAMES && logged.insert(name.to_owned()) {
            (self.notice)(&format!("the parameter {name} has no effect: {why}; this is said once"));
        }
    }
}

impl ParameterNotes {
    /// Those of the request that this task answers; new ones in tests without a server.
    pub fn current() -> Arc<ParameterNotes> {
        CURRENT.try_with(Arc::clone).unwrap_or_default()
    }

    /// Whether a parameter that is in no list is accepted.
    pub fn allows_unknown(&self) -> bool {
        self.policy.as_ref().is_some_and(|policy| policy.unknown == UnknownParameters::Warn)
    }

    /// Notes that a parameter had no effect.
    pub fn add(&self, name: &str, why: &str) {
        let name = shown(name);
        if let Some(policy) = &self.policy {
            policy.log(&name, why);
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < MAX_NAMES && !names.contains(&name) {
            names.push(name);
        }
    }

    /// The value of the header; `None` if each parameter had an effect.
    fn header(&self) -> Option<HeaderValue> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let names = (!names.is_empty()).then(|| names.join(", "))?;
        HeaderValue::from_str(&names).ok()
    }
}

/// A name of at most 64 ASCII characters, for a header and for the log: a client may send any.
fn shown(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.[]".contains(c) { c } else { '?' };
    name.chars().take(MAX_NAME_BYTES).map(plain).collect()
}

/// Names the parameters that had no effect in the header of the response.
pub(crate) async fn name_without_effect(
    State(policy): State<Arc<ParameterPolicy>>,
    request: Request,
    next: Next,
) -> Response {
    let notes = Arc::new(ParameterNotes { policy: Some(policy), names: Mutex::default() });
    let mut response = CURRENT.scope(Arc::clone(&notes), next.run(request)).await;
    if let Some(names) = notes.header() {
        response.headers_mut().insert(HEADER, names);
    }
    response
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_default_is_accepted_and_other_values_are_refused() {
        let notes = ParameterNotes::default();
        let beams = ParameterWithoutEffect::only("best_of", &["1"], "there is no search");
        for value in [json!(1), json!(1.0), Value::Null] {
            beams.accept("best_of", &value, &notes).unwrap();
        }
        assert_eq!(notes.header(), None);
        let error = beams.accept("best_of", &json!(2), &notes).unwrap_err();
        assert_eq!(error.message, "best_of must be 1: there is no search");
        ParameterWithoutEffect::any("num_gpu", "why").accept("options.num_gpu", &json!(3), &notes).unwrap();
        assert_eq!(notes.header().unwrap(), "options.num_gpu");
    }

    #[test]
    fn a_clients_names_are_harmless_in_a_header() {
        let notes = ParameterNotes::default();
        notes.add("a\r\nset-cookie: b=ü", "why");
        notes.add(&"x".repeat(1000), "why");
        (0..1000).for_each(|number| notes.add(&format!("n{number}"), "why"));
        let header = notes.header().unwrap();
        let text = header.to_str().unwrap();
        assert!(text.starts_with("a??set-cookie??b??, xxx"), "{text}");
        assert!(text.len() < MAX_NAMES * (MAX_NAME_BYTES + 2));
    }
}
