//! One reply: its text is passed on as it is generated, then it is summed up, alone or with others.

use std::time::Duration;

use girih::{Event, Reply, ReplyMessage, ReplyPart, Stats, Stop, TokenLatencies, TokenRate, tools};
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
    /// How long each token after the first one took.
    pub latencies: TokenLatencies,
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
        if let Event::Finished { stop, stats, latencies, .. } = event {
            output.finish()?;
            let stop = if stopped { Stop::Cancelled } else { stop };
            ids.extend(if let Stop::Token(id) = stop { Some(id) } else { None });
            return Ok(FinishedReply { ids, text, message, stop, stats, latencies });
        }
    }
    unreachable!("a reply ends with Finished or with an error")
}

/// The content among these parts.
fn content(parts: &[ReplyPart]) -> String {
    let text = |part: &ReplyPart| if let ReplyPart::Content(text) = part { Some(text.clone()) } else { None };
    parts.iter().filter_map(text).collect()
}

/// A reply to `prompt` as one JSON object: ids, text, counts, times.
pub fn reply_json(prompt: &[u32], reply: &FinishedReply) -> Value {
    tools::reply_json(prompt, &reply.ids, &reply.text, &reply.stop, &reply.stats, &reply.latencies)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The counts and times of several replies together.
#[derive(Clone, Debug, Default)]
pub struct ReplyTotals {
    prompt_tokens: usize,
    /// The tokens of all replies, one after another.
    ids: Vec<u32>,
    stats: Stats,
    latencies: TokenLatencies,
}

impl ReplyTotals {
    /// The totals of one reply to `prompt`.
    pub fn of(prompt: &[u32], reply: &FinishedReply) -> ReplyTotals {
        let mut totals = ReplyTotals::default();
        totals.add(prompt, reply);
        totals
    }

    /// Adds a reply to `prompt`.
    pub fn add(&mut self, prompt: &[u32], reply: &FinishedReply) {
        let (sum, one) = (&mut self.stats, &reply.stats);
        sum.cached += one.cached;
        for (sum, one) in [(&mut sum.prefill, one.prefill), (&mut sum.decode, one.decode)] {
            *sum = TokenRate { tokens: sum.tokens + one.tokens, time: sum.time + one.time };
        }
        sum.whole += one.whole;
        self.prompt_tokens += prompt.len();
        self.ids.extend(&reply.ids);
        self.latencies.extend(&reply.latencies);
    }

    /// Tokens per second from the submission of each request to its end; 0 without tokens.
    fn per_second(&self) -> f64 {
        let generated = u32::try_from(self.ids.len()).unwrap_or(u32::MAX);
        TokenRate { tokens: generated, time: self.stats.whole }.per_second()
    }

    /// The totals as fields.
    pub fn json(&self) -> Value {
        let Stats { cached, prefill, decode, whole, .. } = self.stats;
        json!({
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.ids.len(),
            "wall_seconds": whole.as_secs_f64(),
            "tokens_per_second": self.per_second(),
            "prefill": tools::rate_json(prefill),
            "decode": tools::rate_json(decode),
            "latency_ms": tools::latency_json(&self.latencies),
            "kv_cache": {"hits": cached, "misses": prefill.tokens},
        })
    }

    /// The totals under the keys of IE-Core's inference-engine; `peak` is the peak of resident memory in bytes. What
    /// is not known is null: latencies without a token after a first one, the peak where the system does not tell it.
    pub fn compat_json(&self, peak: Option<u64>) -> Value {
        let summary = self.latencies.summary();
        let Stats { cached, prefill, whole, .. } = self.stats;
        json!({
            "tokens_generated": self.ids.len(),
            "tokens": self.ids,
            "wall_time_s": whole.as_secs_f64(),
            "tps_true": self.per_second(),
            "latency_p50_ms": summary.map(|summary| milliseconds(summary.p50)),
            "latency_p95_ms": summary.map(|summary| milliseconds(summary.p95)),
            // The program that wrote this key first counts MiB.
            "rss_peak_mb": peak.map(|bytes| bytes >> 20),
            "kv_hits": cached,
            "kv_misses": prefill.tokens,
        })
    }
}

/// The counts and times of a reply as a line for people. On a simulated device only the counts: its steps took as long
/// as the simulation needed.
pub fn summary(reply: &FinishedReply, is_simulated: bool) -> String {
    let Stats { cached, images, prefill, decode, drafted, accepted, .. } = reply.stats;
    let seen = match images.tokens {
        0 => String::new(),
        rows => format!("images: {} in {:.2} s; ", counted(rows, "row"), images.time.as_secs_f64()),
    };
    let drafts = match drafted {
        0 => String::new(),
        _ => format!("; drafts: {accepted} of {} accepted", counted(drafted, "token")),
    };
    if is_simulated {
        let [all, prefilled, decoded] =
            [cached + prefill.tokens, prefill.tokens, decode.tokens].map(|tokens| counted(tokens, "token"));
        return format!(
            "prompt: {all} ({cached} cached); {seen}prefill: {prefilled}; decode: {decoded}{drafts}; the device is \
             simulated: 'girih profile' prints its times"
        );
    }
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
