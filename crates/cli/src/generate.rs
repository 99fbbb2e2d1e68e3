//! One reply: runs a request on the engine and passes its text on as it is generated.

use girih_engine::{Detokenize, Engine, EventKind, Hooks, Request, Stats, Stop, TokenRate};
use girih_words::{Detokenizer, Specials, TextProcessor};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// A reply with its counts and times.
#[derive(Debug)]
pub struct Reply {
    /// Its tokens, including a stop token.
    pub ids: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
    /// Counts and times.
    pub stats: Stats,
}

/// The text of a reply, in the form that the engine uses.
struct ReplyText(Detokenizer);

impl ReplyText {
    /// The start of the text that continues `prompt`. The prompt decides whether the first
    /// word has a space before it.
    fn after(prompt: &[u32], processor: &TextProcessor) -> ReplyText {
        let mut detokenizer = processor.tokenizer.detokenizer(Specials::Skip);
        prompt.iter().for_each(|id| drop(detokenizer.push(*id)));
        ReplyText(detokenizer)
    }
}

impl Detokenize for ReplyText {
    fn push(&mut self, id: u32) -> String {
        self.0.push(id)
    }

    fn finish(self: Box<Self>) -> String {
        self.0.finish()
    }
}

/// Runs a request to its end, or until `cancelled` returns true.
///
/// # Errors
/// When the request is refused, the model fails, or `show` fails.
pub fn generate(
    engine: &mut Engine,
    request: Request,
    processor: &TextProcessor,
    cancelled: impl Fn() -> bool,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Reply> {
    let detokenizer = Some(Box::new(ReplyText::after(&request.tokens, processor)) as Box<dyn Detokenize>);
    let id = engine.submit(request, Hooks { detokenizer, ..Hooks::default() })?;
    let (mut ids, mut whole) = (Vec::new(), String::new());
    let mut cancelling = false;
    loop {
        if !cancelling && cancelled() {
            cancelling = engine.cancel(id);
        }
        for event in engine.step() {
            match &event.kind {
                EventKind::Prefilled(_) | EventKind::Logits(_) => {}
                EventKind::Token { id, text, .. } => {
                    ids.push(*id);
                    whole.push_str(text);
                    show(text)?;
                }
                EventKind::Finished { stop, text, stats } => {
                    if let Stop::Token(id) = stop {
                        ids.push(*id);
                    }
                    whole.push_str(text);
                    show(text)?;
                    return Ok(Reply { ids, text: whole, stop: stop.clone(), stats: *stats });
                }
                EventKind::Failed(error) => return Err(Error::work(error)),
            }
        }
    }
}

/// A reply to `prompt` as one JSON object: ids, text, counts, times.
pub fn reply_json(prompt: &[u32], reply: &Reply) -> Value {
    let Stats { cached, prefill, decode, .. } = reply.stats;
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
        Stop::Complete => json!("complete"),
        Stop::Context => json!("context"),
        Stop::Cancelled => json!("cancelled"),
    };
    let ids: Vec<u32> = prompt.iter().chain(&reply.ids).copied().collect();
    json!({
        "prompt_tokens": prompt.len(),
        "ids": ids,
        "text": reply.text,
        "stop": stop,
        "cached_tokens": cached,
        "prefill": rate(prefill),
        "decode": rate(decode),
    })
}

/// The counts and times of a reply as a line for people.
pub fn summary(reply: &Reply) -> String {
    let Stats { cached, prefill, decode, .. } = reply.stats;
    format!(
        "prompt: {} tokens ({cached} cached); prefill: {} tokens in {:.2} s, {:.1} tokens/s; decode: {} tokens in {:.2} s, {:.1} tokens/s",
        cached + prefill.tokens,
        prefill.tokens,
        prefill.time.as_secs_f64(),
        prefill.per_second(),
        decode.tokens,
        decode.time.as_secs_f64(),
        decode.per_second(),
    )
}
