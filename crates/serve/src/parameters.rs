//! Parameters that change nothing: which they are, and how a client learns that they had no effect.
//!
//! A parameter that changes the text of a reply is honoured or refused. One that asks for speed, placement, caching
//! or bookkeeping stands in a table of its API, is accepted, logged once, and named in the header of the
//! response, [`HEADER`].

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

use crate::cache_reports;
use crate::error::ApiError;

/// The header of a response to a request of whose prompt a line was left out.
pub const LEFT_OUT: HeaderName = HeaderName::from_static("x-girih-left-out");

/// The header of a response that says how images were read otherwise than their files or the model's say.
pub const IMAGES: HeaderName = HeaderName::from_static("x-girih-images");

/// How a line begins that Claude Code puts before each system prompt, and that differs from request to request:
/// with it, no two requests would share a cached prefix.
const HEADER_LINE: &str = "x-anthropic-billing-header:";

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
    /// Whether [`ParameterNotes::without_header_lines`] leaves out nothing.
    keeps_header_lines: bool,
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
    /// Whether a line was left out of the prompt.
    left_out: AtomicBool,
    /// How images were read otherwise than their files or the model's say.
    images: Mutex<Vec<String>>,
    /// How much of the prompt was cached, and why not more.
    cache: Mutex<Option<HeaderValue>>,
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
        ParameterPolicy { unknown, notice, logged: Mutex::default(), keeps_header_lines: false }
    }

    /// The same, which keeps the lines of agents' headers in prompts, or leaves them out.
    #[must_use]
    pub fn keeping_header_lines(self, keeps_header_lines: bool) -> ParameterPolicy {
        ParameterPolicy { keeps_header_lines, ..self }
    }

    /// Tells a sentence about `name`, unless one was told.
    fn tell_once(&self, name: &str, sentence: impl FnOnce() -> String) {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.len() < MAX_NAMES && logged.insert(name.to_owned()) {
            (self.notice)(&sentence());
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
            let sentence = || format!("the parameter {name} has no effect: {why}; this is said once");
            policy.tell_once(&name, sentence);
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < MAX_NAMES && !names.contains(&name) {
            names.push(name);
        }
    }

    /// A system prompt without the lines that begin with `x-anthropic-billing-header:`; notes that one was left
    /// out. `None` if nothing else is left of it.
    pub fn without_header_lines(&self, text: &str) -> Option<String> {
        let keeps = self.policy.as_ref().is_some_and(|policy| policy.keeps_header_lines);
        if keeps || !text.lines().any(|line| line.starts_with(HEADER_LINE)) {
            return Some(text.to_owned());
        }
        if let Some(policy) = &self.policy {
            policy.tell_once(HEADER_LINE, || {
                format!("lines {HEADER_LINE} are left out of system prompts; --keep-header-lines keeps them")
            });
        }
        self.left_out.store(true, Ordering::Relaxed);
        let kept =
            text.split_inclusive('\n').filter(|line| !line.starts_with(HEADER_LINE)).collect::<String>();
        (!kept.is_empty()).then_some(kept)
    }

    /// Notes how the image of a parameter was read otherwise than its file or the model's say: ASCII.
    pub fn add_image(&self, param: &str, note: &str) {
        let mut images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        if images.len() < MAX_NAMES {
            images.push(format!("{}: {note}", shown(param)));
        }
    }

    /// The value of the header on images; `None` if there are no notes.
    fn images_header(&self) -> Option<HeaderValue> {
        let images = self.images.lock().unwrap_or_else(PoisonError::into_inner);
        let notes = (!images.is_empty()).then(|| images.join("; "))?;
        HeaderValue::from_str(&notes).ok()
    }

    /// Sets how much of the prompt was cached, as the response's header says it.
    pub fn set_cache(&self, value: Option<HeaderValue>) {
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) = value;
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
    let notes = Arc::new(ParameterNotes { policy: Some(policy), ..ParameterNotes::default() });
    let mut response = CURRENT.scope(Arc::clone(&notes), next.run(request)).await;
    if let Some(names) = notes.header() {
        response.headers_mut().insert(HEADER, names);
    }
    if notes.left_out.load(Ordering::Relaxed) {
        let line = HeaderValue::from_static("x-anthropic-billing-header");
        response.headers_mut().insert(LEFT_OUT, line);
    }
    if let Some(images) = notes.images_header() {
        response.headers_mut().insert(IMAGES, images);
    }
    let cache = notes.cache.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(cache) = cache {
        response.headers_mut().insert(cache_reports::HEADER, cache);
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
    fn a_line_that_differs_each_time_is_left_out() {
        let of = |text: &str| {
            let notes = ParameterNotes::default();
            (notes.without_header_lines(text), notes.left_out.load(Ordering::Relaxed))
        };
        let line = "x-anthropic-billing-header: cc_version=2.1; cch=1f;";
        assert_eq!(of(line), (None, true));
        assert_eq!(of(&format!("{line}\nYou are an agent.")), (Some("You are an agent.".to_owned()), true));
        for kept in
            ["You are an agent.", " x-anthropic-billing-header: a", "X-Anthropic-Billing-Header: a", ""]
        {
            assert_eq!(of(kept), (Some(kept.to_owned()), false));
        }
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
