//! One reply: runs a request on the engine and passes its text on as it is generated.

use std::cell::RefCell;
use std::mem::take;
use std::rc::Rc;

use girih_engine::text::Detokenize;
use girih_engine::{Engine, EventKind, Request, Stats, Stop};
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

/// The end of a reply's text that is not certain yet: part of a character, or a
/// possible beginning of a stop string. If a reply takes several requests, the
/// next one continues from it as if there were one request.
pub struct Tail(Rc<RefCell<Uncertain>>);

struct Uncertain {
    detokenizer: Detokenizer,
    /// The text that the last request held back.
    held: String,
}

impl Tail {
    /// The start of the text that continues `prompt`. The prompt decides whether
    /// the first word has a space before it.
    pub fn after(prompt: &[u32], processor: &TextProcessor) -> Tail {
        let mut detokenizer = processor.tokenizer.detokenizer(Specials::Skip);
        prompt.iter().for_each(|id| drop(detokenizer.push(*id)));
        Tail(Rc::new(RefCell::new(Uncertain { detokenizer, held: String::new() })))
    }

    /// Ends a reply: shows the uncertain text and appends it to the reply.
    ///
    /// # Errors
    /// When `show` fails.
    pub fn finish(self, reply: &mut Reply, mut show: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let uncertain = Rc::into_inner(self.0).expect("the engine drops its clone with the last event");
        // Text after a stop string is never shown.
        if !matches!(reply.stop, Stop::String(_)) {
            let Uncertain { detokenizer, held } = uncertain.into_inner();
            let text = held + &detokenizer.finish();
            show(&text)?;
            reply.text.push_str(&text);
        }
        Ok(())
    }
}

impl Detokenize for Tail {
    fn push(&mut self, id: u32) -> String {
        let mut uncertain = self.0.borrow_mut();
        let text = uncertain.detokenizer.push(id);
        take(&mut uncertain.held) + &text
    }

    /// Keeps an incomplete character, which the next request may complete.
    fn finish(self: Box<Self>) -> String {
        take(&mut self.0.borrow_mut().held)
    }
}

/// Runs a request to its end, or until `cancelled` returns true. Text that is
/// uncertain at the end stays in `tail`.
///
/// # Errors
/// When the request is refused, the model fails, or `show` fails.
pub fn generate(
    engine: &mut Engine<'_>,
    request: Request,
    tail: &Tail,
    cancelled: impl Fn() -> bool,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Reply> {
    let id = engine.submit(request, Some(Box::new(Tail(Rc::clone(&tail.0)))))?;
    let (mut ids, mut whole) = (Vec::new(), String::new());
    let mut cancelling = false;
    loop {
        if !cancelling && cancelled() {
            cancelling = engine.cancel(id);
        }
        for event in engine.step() {
            match &event.kind {
                EventKind::Prefilled(_) => {}
                EventKind::Token { id, text, .. } => {
                    ids.push(*id);
                    whole.push_str(text);
                    show(text)?;
                }
                EventKind::Finished { stop, text, stats } => {
                    tail.0.borrow_mut().held.clone_from(text);
                    if let Stop::Token(id) = stop {
                        ids.push(*id);
                    }
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
    let rate = |rate: girih_engine::TokenRate| {
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
