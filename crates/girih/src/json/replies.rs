//! Events of replies and rendered prompts as JSON.

use girih_engine::sample::Logprobs;
use girih_engine::{Stats, Stop, TokenLatencies};
use girih_words::reply::ReplyPart;
use girih_words::{TextOrigin, TextSpan};
use serde_json::{Map, Value, json};

use crate::mailbox::Event;
use crate::reply_json::{logprobs_json, reply_json};

/// An event: `event` is `prompt_token`, `prefilled`, `token` or `end`. Logits are no JSON: of them, only the event is told.
///
/// ```
/// # let session = girih::Model::open("stories260k")?.start()?;
/// for event in session.generate(girih::Request::new("Once").max_tokens(4))? {
///     println!("{}", girih::json::event(&event?));
/// }
/// # Ok::<(), girih::Error>(())
/// ```
pub fn event(event: &Event) -> Value {
    match event {
        Event::PromptToken { id, logprobs } => {
            json!({"event": "prompt_token", "id": id, "logprobs": of_token(*id, logprobs.as_ref())})
        }
        Event::Prefilled(stats) => {
            let mut event = counts(&Stop::Length, stats, &TokenLatencies::default());
            for of_the_end in ["stop", "latency_ms", "wall_seconds"] {
                event.shift_remove(of_the_end);
            }
            event.insert("event".to_owned(), "prefilled".into());
            Value::Object(event)
        }
        Event::Token { id, text, logprobs, parts } => {
            let logprobs = of_token(*id, logprobs.as_ref());
            json!({"event": "token", "id": id, "text": text, "logprobs": logprobs, "parts": parts_json(parts)})
        }
        Event::Logits(_) => json!({"event": "logits"}),
        Event::Finished { stop, text, stats, parts, latencies } => {
            let mut event = counts(stop, stats, latencies);
            event.insert("event".to_owned(), "end".into());
            event.insert("text".to_owned(), text.as_str().into());
            event.insert("parts".to_owned(), parts_json(parts));
            Value::Object(event)
        }
    }
}

/// The text of a prompt, split by who wrote it: `template` or `user`.
///
/// ```
/// assert_eq!(girih::json::text_spans(&[]), serde_json::json!([]));
/// ```
pub fn text_spans(spans: &[TextSpan]) -> Value {
    let span = |span: &TextSpan| {
        let origin = if span.origin == TextOrigin::Template { "template" } else { "user" };
        json!({"text": span.text, "origin": origin})
    };
    spans.iter().map(span).collect()
}

/// Why a reply ended, and its counts and times.
fn counts(stop: &Stop, stats: &Stats, latencies: &TokenLatencies) -> Map<String, Value> {
    let Value::Object(mut counts) = reply_json(&[], &[], "", stop, stats, latencies) else {
        return Map::new();
    };
    for of_the_whole in ["prompt_tokens", "ids", "text"] {
        counts.shift_remove(of_the_whole);
    }
    counts.insert("first_token_seconds".to_owned(), stats.first_token.as_secs_f64().into());
    counts.insert("seconds".to_owned(), stats.whole.as_secs_f64().into());
    counts
}

/// The log-probabilities of a token with its id; `null` without any.
fn of_token(id: u32, logprobs: Option<&Logprobs>) -> Value {
    let Some(logprobs) = logprobs else { return Value::Null };
    let mut fields = logprobs_json(logprobs);
    fields["id"] = id.into();
    fields
}

fn parts_json(parts: &[ReplyPart]) -> Value {
    let part = |part: &ReplyPart| match part {
        ReplyPart::Content(text) => json!({"content": text}),
        ReplyPart::Thinking(text) => json!({"thinking": text}),
        ReplyPart::CallBegin { id, name } => json!({"call": id, "name": name}),
        ReplyPart::Arguments(text) => json!({"arguments": text}),
        ReplyPart::CallEnd { fault } => json!({"call_end": true, "fault": fault}),
        _ => json!({}),
    };
    parts.iter().map(part).collect()
}
