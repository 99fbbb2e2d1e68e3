//! One reply: its text is passed on as it is generated, then it is summed up.

use girih::tools::FreeMemory;
use girih::{
    DevicePool, Event, MemoryPlan, PoolBytes, Reply, ReplyMessage, ReplyPart, Stats, Stop, TokenRate,
    ToolCall,
};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::output::counted;
use crate::reply_stream::ReplyStream;

/// A reply with its counts and times.
#[derive(Debug)]
pub struct FinishedReply {
    /// Its tokens, including a stop token.
    pub ids: Vec<u32>,
    /// Its text, as the model wrote it; without thinking that is not shown, its content.
    pub text: String,
    /// Its text split into content, thinking and calls; all is content without a chat template.
    pub message: ReplyMessage,
    /// Why it ended.
    pub stop: Stop,
    /// Counts and times.
    pub stats: Stats,
}

/// Reads a reply to its end and passes it to `output`, perhaps without thinking. From the moment at
/// which `is_stopped` says so, what arrives is dropped.
///
/// # Errors
/// When the request or `output` fails.
pub fn read(
    reply: Reply,
    output: &mut ReplyStream,
    shows_thinking: bool,
    is_stopped: impl Fn() -> bool,
) -> Result<FinishedReply> {
    let (mut ids, mut text, mut message) = (Vec::new(), String::new(), ReplyMessage::default());
    for event in reply {
        let event = event.map_err(|error| {
            // The error is the one that counts.
            let _ = output.flush();
            // The call was right, as the request was accepted.
            Error::work(error)
        })?;
        let stopped = is_stopped();
        if !stopped {
            let is_shown = |part: &&ReplyPart| shows_thinking || !matches!(part, ReplyPart::Thinking(_));
            let parts: Vec<ReplyPart> = event.parts().iter().filter(is_shown).cloned().collect();
            let shown = if shows_thinking { event.text().to_owned() } else { content(&parts) };
            output.push(&event, &shown, &parts)?;
            parts.iter().for_each(|part| message.push(part));
            text.push_str(&shown);
            ids.extend(if let Event::Token { id, .. } = event { Some(id) } else { None });
        }
        if let Event::Finished { stop, stats, .. } = event {
            output.finish()?;
            if stopped {
                return Ok(FinishedReply { ids, text, message, stop: Stop::Cancelled, stats });
            }
            if let Stop::Token(id) = stop {
                ids.push(id);
            }
            return Ok(FinishedReply { ids, text, message, stop, stats });
        }
    }
    unreachable!("a reply ends with Finished or with an error")
}

/// The content among these parts.
fn content(parts: &[ReplyPart]) -> String {
    let text = |part: &ReplyPart| if let ReplyPart::Content(text) = part { Some(text.clone()) } else { None };
    parts.iter().filter_map(text).collect()
}

/// The parts of a reply to a conversation as fields: content, thinking, calls in OpenAI's form.
pub fn message_json(message: &ReplyMessage) -> Value {
    let calls: Vec<Value> = message.calls.iter().map(ToolCall::json).collect();
    json!({"content": message.content, "thinking": message.thinking, "tool_calls": calls})
}

/// A reply to `prompt` as one JSON object: ids, text, counts, times.
pub fn reply_json(prompt: &[u32], reply: &FinishedReply) -> Value {
    let Stats { cached, images, prefill, decode, drafted, accepted, .. } = reply.stats;
    let rate = |rate: TokenRate| {
        json!({
            "tokens": rate.tokens,
            "seconds": rate.time.as_secs_f64(),
            "tokens_per_second": rate.per_second(),
        })
    };
    let stop = match &reply.stop {
        Stop::Token(id) => json!({"token": id}),
        Stop::String(text) => json!({"string": text}),
        Stop::Length => json!("length"),
        Stop::Context => json!("context"),
        Stop::Complete => json!("complete"),
        Stop::Cancelled => json!("cancelled"),
        Stop::Repetition => json!("repetition"),
        Stop::Deadline => json!("deadline"),
    };
    let ids: Vec<u32> = prompt.iter().chain(&reply.ids).copied().collect();
    json!({
        "prompt_tokens": prompt.len(),
        "ids": ids,
        "text": reply.text,
        "stop": stop,
        "cached_tokens": cached,
        "images": rate(images),
        "prefill": rate(prefill),
        "decode": rate(decode),
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
    })
}

/// The counts and times of a reply as a line for people.
pub fn summary(reply: &FinishedReply) -> String {
    let Stats { cached, images, prefill, decode, drafted, accepted, .. } = reply.stats;
    let seen = match images.tokens {
        0 => String::new(),
        rows => format!("images: {} in {:.2} s; ", counted(rows, "row"), images.time.as_secs_f64()),
    };
    let drafts = match drafted {
        0 => String::new(),
        _ => format!("; drafts: {accepted} of {} accepted", counted(drafted, "token")),
    };
    format!(
        "prompt: {} ({cached} cached); {seen}prefill: {} in {:.2} s, {:.1} tokens/s; decode: {} in {:.2} s, {:.1} tokens/s{drafts}",
        counted(cached + prefill.tokens, "token"),
        counted(prefill.tokens, "token"),
        prefill.time.as_secs_f64(),
        prefill.per_second(),
        counted(decode.tokens, "token"),
        decode.time.as_secs_f64(),
        decode.per_second(),
    )
}

/// A memory plan: the parts of the host's pool, and below `device` those of the device's.
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

/// The free memory of a device, if its backend knows it.
pub fn device_room(device: &DevicePool) -> Option<u64> {
    Some(device.free).filter(|free| *free < u64::MAX)
}
