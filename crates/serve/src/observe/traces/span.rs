//! The spans of a request: one of the server, and for each reply those of waiting, prefill and decode.
//!
//! Names and attributes follow OpenTelemetry's semantic conventions for HTTP servers and for generative AI
//! (version 1.41); parents follow the W3C Trace Context.

use std::time::Instant;

use axum::extract::Request;
use axum::http::HeaderMap;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, ArrayValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{Span, SpanFlags, Status};

use crate::calendar::since_1970;
use crate::observe::access_log::EndedRequest;
use crate::observe::record::{RequestFacts, TimedReply};
use crate::request_id::new_id;

/// The flag of a trace that is recorded, in `traceparent` and in spans.
const SAMPLED: u8 = 1;

/// The maximum length of a `tracestate` that is passed on, in bytes; the W3C asks for at least this.
const MAX_STATE_BYTES: usize = 512;

/// The maximum length of a path in an attribute, in characters.
const MAX_PATH_CHARS: usize = 256;

/// A request that is traced.
pub(crate) struct TracedRequest {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    /// The caller's span.
    parent: Option<[u8; 8]>,
    state: String,
    path: String,
}

impl TracedRequest {
    /// The request as part of its caller's trace, else of a new one; `None` if the caller does not record
    /// its trace.
    pub fn begin(request: &Request) -> Option<TracedRequest> {
        let headers = request.headers();
        let parent = single(headers, "traceparent").and_then(TraceParent::parse);
        if parent.as_ref().is_some_and(|parent| parent.flags & SAMPLED == 0) {
            return None;
        }
        let state = single(headers, "tracestate").filter(|state| state.len() <= MAX_STATE_BYTES);
        Some(TracedRequest {
            trace_id: parent.as_ref().map_or_else(|| new_number().to_be_bytes(), |parent| parent.trace_id),
            span_id: new_span_id(),
            state: parent.as_ref().and(state).unwrap_or_default().to_owned(),
            parent: parent.map(|parent| parent.span_id),
            path: request.uri().path().chars().take(MAX_PATH_CHARS).collect(),
        })
    }

    /// The spans of the request, which ends now.
    pub fn spans(&self, ended: &EndedRequest<'_>, scheme: &str) -> Vec<Span> {
        let clock = Clock::now();
        let mut spans = vec![self.request_span(ended, scheme, &clock)];
        for (number, times) in ended.facts.times.iter().enumerate() {
            spans.extend(self.reply_spans(number, times, &clock));
        }
        spans
    }

    fn request_span(&self, ended: &EndedRequest<'_>, scheme: &str, clock: &Clock) -> Span {
        let is_known = ended.method != "other";
        let method = if is_known { ended.method } else { "_OTHER" };
        let mut attributes = vec![
            text("http.request.method", method),
            text("url.path", &self.path),
            text("url.scheme", scheme),
            number("http.response.status_code", ended.status),
            text("girih.request.id", ended.id),
        ];
        let verb = if is_known { method } else { "HTTP" };
        let name = match ended.matched_route() {
            Some(route) => {
                attributes.push(text("http.route", route));
                format!("{verb} {route}")
            }
            None => verb.to_owned(),
        };
        if let Some(tenant) = &ended.facts.tenant {
            attributes.push(text("girih.tenant", tenant));
        }
        let is_fault = ended.status >= 500;
        match ended.code {
            _ if ended.is_disconnected => attributes.push(text("error.type", "client_disconnected")),
            Some(code) => attributes.push(text("error.type", code)),
            None if is_fault => attributes.push(text("error.type", &ended.status.to_string())),
            None => {}
        }
        attributes.extend(generation_attributes(ended.route, ended.facts));
        let mut flags = u32::from(SAMPLED) | SpanFlags::ContextHasIsRemoteMask as u32;
        if self.parent.is_some() {
            flags |= SpanFlags::ContextIsRemoteMask as u32;
        }
        Span {
            span_id: self.span_id.to_vec(),
            parent_span_id: self.parent.map(Vec::from).unwrap_or_default(),
            flags,
            name,
            kind: SpanKind::Server.into(),
            start_time_unix_nano: clock.nanos_before(ended.time.as_nanos()),
            end_time_unix_nano: clock.nanos_before(0),
            attributes,
            // By the conventions, a request that is at fault itself (4xx) is no error of the server.
            status: is_fault.then(|| Status { code: StatusCode::Error.into(), message: String::new() }),
            ..self.span()
        }
    }

    /// Waiting, prefill and decode of a reply. The engine tells how long the steps of the prefill took;
    /// the prefill is taken to have begun that long before its end.
    fn reply_spans(&self, reply: usize, times: &TimedReply, clock: &Clock) -> Vec<Span> {
        let child = |name: &str, from: Instant, to: Instant, attributes: Vec<KeyValue>| Span {
            span_id: new_span_id().to_vec(),
            parent_span_id: self.span_id.to_vec(),
            flags: u32::from(SAMPLED) | SpanFlags::ContextHasIsRemoteMask as u32,
            name: name.to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: clock.nanos_of(from),
            end_time_unix_nano: clock.nanos_of(to),
            attributes: [number("girih.reply", reply as u32)].into_iter().chain(attributes).collect(),
            ..self.span()
        };
        let Some(prefilled) = &times.prefilled else {
            return vec![child("waiting", times.queued, times.ended, Vec::new())];
        };
        let begun = prefilled.at.checked_sub(prefilled.time).unwrap_or(times.queued).max(times.queued);
        let prompt = vec![
            number("gen_ai.usage.input_tokens", prefilled.prompt_tokens),
            number("gen_ai.usage.cache_read.input_tokens", prefilled.cached_tokens),
        ];
        let reply = vec![
            number("gen_ai.usage.output_tokens", times.reply_tokens),
            list("gen_ai.response.finish_reasons", &[times.finish]),
        ];
        vec![
            child("waiting", times.queued, begun, Vec::new()),
            child("prefill", begun, prefilled.at, prompt),
            child("decode", prefilled.at, times.ended, reply),
        ]
    }

    fn span(&self) -> Span {
        Span { trace_id: self.trace_id.to_vec(), trace_state: self.state.clone(), ..Span::default() }
    }
}

/// What the conventions for generative AI say of a request with replies.
fn generation_attributes(route: &str, facts: &RequestFacts) -> Vec<KeyValue> {
    let Some(model) = &facts.model else { return Vec::new() };
    let operation = match route {
        "/v1/completions" | "/api/generate" => "text_completion",
        _ => "chat",
    };
    let mut attributes = vec![
        text("gen_ai.operation.name", operation),
        text("gen_ai.provider.name", "girih"),
        text("gen_ai.request.model", model),
        text("gen_ai.response.model", model),
        number("gen_ai.usage.input_tokens", facts.prompt_tokens),
        number("gen_ai.usage.cache_read.input_tokens", facts.cached_tokens),
        number("gen_ai.usage.output_tokens", facts.reply_tokens),
    ];
    if facts.replies > 1 {
        attributes.push(number("gen_ai.request.choice.count", facts.replies));
    }
    let reasons: Vec<&str> = facts.times.iter().map(|times| times.finish).collect();
    if !reasons.is_empty() {
        attributes.push(list("gen_ai.response.finish_reasons", &reasons));
    }
    attributes
}

/// One moment on both clocks: that of the calendar, and the one that measures times.
struct Clock {
    nanos: u128,
    instant: Instant,
}

impl Clock {
    fn now() -> Clock {
        Clock { nanos: since_1970().as_nanos(), instant: Instant::now() }
    }

    /// Nanoseconds since 1970.
    fn nanos_of(&self, instant: Instant) -> u64 {
        self.nanos_before(self.instant.saturating_duration_since(instant).as_nanos())
    }

    fn nanos_before(&self, nanos: u128) -> u64 {
        u64::try_from(self.nanos.saturating_sub(nanos)).unwrap_or(u64::MAX)
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: impl Into<i64>) -> KeyValue {
    attribute(key, Value::IntValue(value.into()))
}

fn list(key: &str, values: &[&str]) -> KeyValue {
    let values = values.iter().map(|value| AnyValue { value: Some(Value::StringValue((*value).to_owned())) });
    attribute(key, Value::ArrayValue(ArrayValue { values: values.collect() }))
}

/// An attribute of a span or a resource.
pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// A number that no other call returns.
fn new_number() -> u128 {
    u128::from_str_radix(&new_id(), 16).expect("an id is 32 hexadecimal digits").max(1)
}

fn new_span_id() -> [u8; 8] {
    (new_number() as u64).max(1).to_be_bytes()
}

/// The header of this name if there is exactly one.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    if values.next().is_some() {
        return None;
    }
    first.to_str().ok()
}

/// The header `traceparent`: the caller's span (W3C Trace Context, section 3.2).
#[derive(Debug, PartialEq, Eq)]
struct TraceParent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

impl TraceParent {
    /// `VERSION-TRACE_ID-SPAN_ID-FLAGS` in lower-case hexadecimal digits. Later versions may have more
    /// fields; version ff and ids of zeros are not valid.
    fn parse(text: &str) -> Option<TraceParent> {
        let fields: Vec<&str> = text.trim().splitn(5, '-').collect();
        let (&[version, trace, span, flags], rest) = fields.split_first_chunk::<4>()?;
        let number = |field: &str, digits: usize| {
            let is_hex = field.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            (field.len() == digits && is_hex).then(|| u128::from_str_radix(field, 16).ok()).flatten()
        };
        let version = number(version, 2)?;
        let (trace, span, flags) = (number(trace, 32)?, number(span, 16)?, number(flags, 2)?);
        if version == 0xff || (version == 0 && !rest.is_empty()) || trace == 0 || span == 0 {
            return None;
        }
        let span_id = (span as u64).to_be_bytes();
        Some(TraceParent { trace_id: trace.to_be_bytes(), span_id, flags: flags as u8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_has_the_form_of_the_w3c() {
        let parsed = TraceParent::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        let parsed = parsed.expect("the standard's example");
        assert_eq!(parsed.trace_id[..2], [0x0a, 0xf7]);
        assert_eq!((parsed.span_id[7], parsed.flags), (0x31, 1));
        assert!(TraceParent::parse("01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-more").is_some());
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceParent::parse(bad), None, "{bad}");
        }
    }
}
