//! Events, replies and plans as JSON.

use girih_engine::sample::{Logprob, Logprobs};
use girih_engine::{Stats, Stop, TokenRate};
use girih_graph::{MemoryPlan, PoolBytes};
use girih_words::reply::{ReplyMessage, ReplyPart, ToolCall};
use girih_words::{TextOrigin, TextSpan};
use serde_json::{Value, json};

use crate::mailbox::Event;

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
            json!({"event": "prompt_token", "id": id, "logprobs": logprobs.as_ref().map(of_token)})
        }
        Event::Prefilled(stats) => joined(json!({"event": "prefilled"}), counts(stats)),
        Event::Token { id, text, logprobs, parts } => {
            let logprobs = logprobs.as_ref().map(of_token);
            let parts: Vec<Value> = parts.iter().map(part).collect();
            json!({"event": "token", "id": id, "text": text, "logprobs": logprobs, "parts": parts})
        }
        Event::Logits(_) => json!({"event": "logits"}),
        Event::Finished { stop: why, text, stats, parts } => {
            let parts: Vec<Value> = parts.iter().map(part).collect();
            let end = json!({"event": "end", "text": text, "stop": stop(why), "parts": parts});
            joined(end, counts(stats))
        }
    }
}

/// Why a reply ended, as the program prints it.
///
/// ```
/// assert_eq!(girih::json::stop(&girih::Stop::Length), "length");
/// ```
pub fn stop(stop: &Stop) -> Value {
    match stop {
        Stop::Token(id) => json!({"token": id}),
        Stop::String(text) => json!({"string": text}),
        Stop::Length => json!("length"),
        Stop::Context => json!("context"),
        Stop::Complete => json!("complete"),
        Stop::Cancelled => json!("cancelled"),
        Stop::Repetition => json!("repetition"),
        Stop::Deadline => json!("deadline"),
    }
}

/// A message: `content`, `thinking` and `tool_calls` in OpenAI's form.
///
/// ```
/// assert_eq!(girih::json::message(&girih::ReplyMessage::default())["content"], "");
/// ```
pub fn message(message: &ReplyMessage) -> Value {
    let calls: Vec<Value> = message.calls.iter().map(ToolCall::json).collect();
    json!({"content": message.content, "thinking": message.thinking, "tool_calls": calls})
}

/// A number of tokens with its time.
///
/// ```
/// assert_eq!(girih::json::rate(&girih::TokenRate::default())["tokens"], 0);
/// ```
pub fn rate(rate: &TokenRate) -> Value {
    json!({
        "tokens": rate.tokens,
        "seconds": rate.time.as_secs_f64(),
        "tokens_per_second": rate.per_second(),
    })
}

/// A memory plan in bytes: that of the host, and below `device` that of the device.
///
/// ```
/// let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
/// assert!(girih::json::memory_plan(&plan.memory())["total"].as_u64() > Some(0));
/// # Ok::<(), girih::Error>(())
/// ```
pub fn memory_plan(plan: &MemoryPlan) -> Value {
    let pool = |bytes: &PoolBytes| {
        json!({
            "weights": bytes.weights,
            "in_file": bytes.in_file,
            "state": bytes.state,
            "scratch": bytes.scratch,
            "output": bytes.output,
            "staging": bytes.staging,
            "total": bytes.total(),
        })
    };
    let mut memory = pool(&plan.host);
    memory["device"] = plan.device.map_or(Value::Null, |device| pool(&device.bytes));
    memory
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

/// The counts and times of a request.
fn counts(stats: &Stats) -> Value {
    json!({
        "cached_tokens": stats.cached,
        "images": rate(&stats.images),
        "prefill": rate(&stats.prefill),
        "decode": rate(&stats.decode),
        "drafted_tokens": stats.drafted,
        "accepted_tokens": stats.accepted,
        "first_token_seconds": stats.first_token.as_secs_f64(),
        "seconds": stats.whole.as_secs_f64(),
    })
}

fn joined(mut object: Value, fields: Value) -> Value {
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}

fn of_token(logprobs: &Logprobs) -> Value {
    let one = |one: &Logprob| json!({"id": one.id, "logprob": one.value});
    let top: Vec<Value> = logprobs.top.iter().map(one).collect();
    json!({"id": logprobs.chosen.id, "logprob": logprobs.chosen.value, "top": top})
}

fn part(part: &ReplyPart) -> Value {
    match part {
        ReplyPart::Content(text) => json!({"content": text}),
        ReplyPart::Thinking(text) => json!({"thinking": text}),
        ReplyPart::CallBegin { id, name } => json!({"call": id, "name": name}),
        ReplyPart::Arguments(text) => json!({"arguments": text}),
        ReplyPart::CallEnd { fault } => json!({"call_end": true, "fault": fault}),
        _ => json!({}),
    }
}
