//! Replies, their events and memory plans as JSON: the form of `girih run --json` and `--jsonl`, and of the C library.

use girih_engine::sample::Logprobs;
use girih_engine::{LatencySummary, Stats, Stop, TokenLatencies, TokenRate};
use girih_graph::{DevicePool, MemoryPlan, PoolBytes};
use girih_words::reply::{ReplyMessage, ReplyPart, ToolCall};
use serde_json::{Value, json};

use crate::free_memory::FreeMemory;

/// A reply to `prompt` as one JSON object: ids of prompt and reply, text, why it ended, counts, times.
///
/// ```
/// use girih::{Event, Model, Request, tools};
///
/// let session = Model::open("stories260k")?.start()?;
/// let reply = session.generate(Request::new(vec![1, 403]).max_tokens(2))?;
/// let (mut ids, mut text) = (Vec::new(), String::new());
/// for event in reply {
///     let event = event?;
///     text += event.text();
///     match event {
///         Event::Token { id, .. } => ids.push(id),
///         Event::Finished { stop, stats, latencies, .. } => {
///             let reply = tools::reply_json(&[1, 403], &ids, &text, &stop, &stats, &latencies);
///             assert_eq!(reply["stop"], "length");
///         }
///         _ => {}
///     }
/// }
/// # Ok::<(), girih::Error>(())
/// ```
pub fn reply_json(
    prompt: &[u32],
    reply: &[u32],
    text: &str,
    stop: &Stop,
    stats: &Stats,
    latencies: &TokenLatencies,
) -> Value {
    let Stats { cached, images, prefill, decode, drafted, accepted, .. } = *stats;
    let stop = match stop {
        Stop::Token(id) => json!({"token": id}),
        Stop::String(text) => json!({"string": text}),
        Stop::Length => json!("length"),
        Stop::Context => json!("context"),
        Stop::Complete => json!("complete"),
        Stop::Cancelled => json!("cancelled"),
        Stop::Repetition => json!("repetition"),
        Stop::Deadline => json!("deadline"),
    };
    let ids: Vec<u32> = prompt.iter().chain(reply).copied().collect();
    json!({
        "prompt_tokens": prompt.len(),
        "ids": ids,
        "text": text,
        "stop": stop,
        "cached_tokens": cached,
        "images": rate_json(images),
        "prefill": rate_json(prefill),
        "decode": rate_json(decode),
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "latency_ms": latency_json(latencies),
        // Of its tokens, a prompt finds some in the cache and misses those that it computes.
        "kv_cache": {"hits": cached, "misses": prefill.tokens},
        "wall_seconds": stats.whole.as_secs_f64(),
    })
}

/// The percentiles of latencies in milliseconds; null without tokens after a first one.
///
/// ```
/// assert!(girih::tools::latency_json(&girih::TokenLatencies::default()).is_null());
/// ```
pub fn latency_json(latencies: &TokenLatencies) -> Value {
    let Some(LatencySummary { p50, p95, p99, max, samples }) = latencies.summary() else {
        return Value::Null;
    };
    let [p50, p95, p99, max] = [p50, p95, p99, max].map(|time| time.as_secs_f64() * 1e3);
    json!({"p50": p50, "p95": p95, "p99": p99, "max": max, "samples": samples})
}

/// Tokens, seconds, and tokens per second.
///
/// ```
/// assert_eq!(girih::tools::rate_json(girih::TokenRate::default())["tokens"], 0);
/// ```
pub fn rate_json(rate: TokenRate) -> Value {
    json!({
        "tokens": rate.tokens,
        "seconds": rate.time.as_secs_f64(),
        "tokens_per_second": rate.per_second(),
    })
}

/// The parts of a reply to a conversation as fields: content, thinking, calls in OpenAI's form.
///
/// ```
/// use girih::{ReplyMessage, tools};
///
/// assert_eq!(tools::message_json(&ReplyMessage::default())["content"], "");
/// ```
pub fn message_json(message: &ReplyMessage) -> Value {
    let calls: Vec<Value> = message.calls.iter().map(ToolCall::json).collect();
    json!({"content": message.content, "thinking": message.thinking, "tool_calls": calls})
}

/// The events of one event of a reply, each with its name: `text` for the text that a token releases, unless it is the
/// end of a reply without text, and those of calls. With `splits`, the text has fields for its content and thinking.
/// `call` is the id of the call that the reply is in.
///
/// ```
/// use girih::{ReplyPart, tools};
///
/// let parts = [ReplyPart::Content("a cat".into())];
/// let events = tools::event_json(false, &mut String::new(), (Some(7), "a cat"), &parts);
/// assert_eq!(events, [("text", serde_json::json!({"text": "a cat", "id": 7}))]);
/// ```
pub fn event_json(
    splits: bool,
    call: &mut String,
    (id, shown): (Option<u32>, &str),
    parts: &[ReplyPart],
) -> Vec<(&'static str, Value)> {
    let mut token = json!({"text": shown, "id": id});
    for part in parts.iter().filter(|_| splits) {
        let (key, text) = match part {
            ReplyPart::Content(text) => ("content", text),
            ReplyPart::Thinking(text) => ("thinking", text),
            _ => continue,
        };
        let before = token[key].as_str().unwrap_or_default();
        token[key] = json!(format!("{before}{text}"));
    }
    let is_empty = shown.is_empty() && token.as_object().is_some_and(|token| token.len() == 2);
    let mut events = Vec::new();
    if id.is_some() || !is_empty {
        events.push(("text", token));
    }
    for part in parts {
        match part {
            ReplyPart::CallBegin { id, name } => {
                call.clone_from(id);
                events.push(("tool_call", json!({"call": id, "name": name})));
            }
            ReplyPart::Arguments(text) => events.push(("arguments", json!({"call": call, "text": text}))),
            ReplyPart::CallEnd { fault } => {
                events.push(("tool_call_end", json!({"call": call, "fault": fault})));
            }
            _ => {}
        }
    }
    events
}

/// The log-probabilities of a token and of the most likely ones, as fields.
///
/// ```
/// use girih::{Logprob, Logprobs, tools};
///
/// let logprobs = Logprobs { chosen: Logprob { id: 7, value: -0.5 }, top: vec![] };
/// assert_eq!(tools::logprobs_json(&logprobs)["logprob"], -0.5);
/// ```
pub fn logprobs_json(logprobs: &Logprobs) -> Value {
    let top = logprobs.top.iter().map(|one| json!({"id": one.id, "logprob": one.value}));
    json!({"logprob": logprobs.chosen.value, "top_logprobs": top.collect::<Vec<Value>>()})
}

/// A memory plan: the parts of the host's pool, and below `device` those of the device's.
///
/// ```
/// let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
/// assert!(girih::tools::memory_json(&plan.memory(), None)["weights"].as_u64() > Some(0));
/// # Ok::<(), girih::Error>(())
/// ```
pub fn memory_json(plan: &MemoryPlan, free: Option<FreeMemory>) -> Value {
    let pool = |bytes: &PoolBytes, available: Option<u64>| {
        json!({
            "weights": bytes.weights,
            "in_file": bytes.in_file,
            "state": bytes.state,
            "scratch": bytes.scratch,
            "output": bytes.output,
            "staging": bytes.staging,
            "total": bytes.total(),
            "available": available,
        })
    };
    let mut memory = pool(&plan.host, free.map(|free| free.room()));
    if let Some(device) = plan.device {
        memory["device"] = pool(&device.bytes, device_room(&device));
    }
    memory
}

/// The free memory of a device in bytes, if its backend knows it.
///
/// ```
/// let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
/// assert_eq!(plan.memory().device.and_then(|device| girih::tools::device_room(&device)), None);
/// # Ok::<(), girih::Error>(())
/// ```
pub fn device_room(device: &DevicePool) -> Option<u64> {
    Some(device.free).filter(|free| *free < u64::MAX)
}
