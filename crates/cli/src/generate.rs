//! One reply: a request through the engine, text handed on as it comes.

use std::cell::RefCell;
use std::mem::take;
use std::rc::Rc;

use girih_engine::text::Detokenize;
use girih_engine::{Engine, Request, Sampling, Stats, Stop, Stops, What};
use girih_model::{Generation, Model};
use girih_words::{Detokenizer, Specials, Words};
use serde_json::{Value, json};

use crate::args::SamplingArgs;
use crate::error::{Error, Result};
use crate::loading::stop_tokens;
use crate::overflow::Overflow;

/// The most tokens of a reply when no number is asked for.
const MAX_TOKENS: u32 = 256;

/// A reply and what it took.
#[derive(Debug)]
pub struct Reply {
    /// Its tokens, a stop token included.
    pub ids: Vec<u32>,
    /// Its text.
    pub text: String,
    /// Why it ended.
    pub stop: Stop,
    /// Amounts and times.
    pub stats: Stats,
}

/// The settings of the samplers: what the user set, else what the model's
/// makers ship, else greedy.
pub fn sampling(args: &SamplingArgs, generation: Option<&Generation>) -> Sampling {
    let shipped = generation.cloned().unwrap_or_default();
    let samples = shipped.do_sample.unwrap_or(false);
    let made = if samples { shipped.temperature.unwrap_or(1.0) } else { 0.0 };
    let neutral = Sampling::default();
    Sampling {
        temperature: args.temp.unwrap_or(made),
        top_k: args.top_k.or(shipped.top_k).unwrap_or(neutral.top_k),
        top_p: args.top_p.or(shipped.top_p).unwrap_or(neutral.top_p),
        min_p: args.min_p.or(shipped.min_p).unwrap_or(neutral.min_p),
        repetition_penalty: args
            .repetition_penalty
            .or(shipped.repetition_penalty)
            .unwrap_or(neutral.repetition_penalty),
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        bias: args.logit_bias.clone(),
        seed: args.seed,
    }
}

/// A request to continue `tokens` in a context of this size.
pub fn request(tokens: Vec<u32>, args: &SamplingArgs, model: &Model, words: &Words, context: u32) -> Request {
    // Only a number that was asked for can be too large for the context.
    let room = (context as usize).saturating_sub(tokens.len()).max(1);
    let usual = match args.overflow {
        Overflow::Error => room.min(MAX_TOKENS as usize) as u32,
        Overflow::Truncate => MAX_TOKENS,
    };
    Request {
        sampling: sampling(args, model.generation.as_ref()),
        max_new: Some(args.max_tokens.unwrap_or(usual)).filter(|most| *most > 0),
        tokens,
        replied: 0,
        stops: Stops { tokens: stop_tokens(model, words), strings: args.stop.clone() },
        logprobs: None,
    }
}

/// The end of a reply's text that is not certain yet: half a character, or what
/// may begin a stop string. Where a reply takes several requests, the text of
/// the next goes on from it as if there were one.
pub struct Tail<'w>(Rc<RefCell<Uncertain<'w>>>);

struct Uncertain<'w> {
    detokenizer: Detokenizer<'w>,
    /// What the last request held back.
    held: String,
}

impl<'w> Tail<'w> {
    /// Where the text begins that continues a prompt of these tokens: whether
    /// its first word has a space before it depends on them.
    pub fn after(prompt: &[u32], words: &'w Words) -> Tail<'w> {
        let mut detokenizer = words.tokenizer.detokenizer(Specials::Skip);
        prompt.iter().for_each(|id| drop(detokenizer.push(*id)));
        Tail(Rc::new(RefCell::new(Uncertain { detokenizer, held: String::new() })))
    }

    /// Ends a reply: what was uncertain is shown and becomes part of it.
    ///
    /// # Errors
    /// When it cannot be shown.
    pub fn finish(self, reply: &mut Reply, mut show: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let uncertain = Rc::into_inner(self.0).expect("the engine drops its part with the last event");
        // What follows a stop string is never shown.
        if !matches!(reply.stop, Stop::String(_)) {
            let Uncertain { detokenizer, held } = uncertain.into_inner();
            let text = held + &detokenizer.finish();
            show(&text)?;
            reply.text.push_str(&text);
        }
        Ok(())
    }
}

impl Detokenize for Tail<'_> {
    fn push(&mut self, id: u32) -> String {
        let mut uncertain = self.0.borrow_mut();
        let text = uncertain.detokenizer.push(id);
        take(&mut uncertain.held) + &text
    }

    /// Half a character may yet be completed.
    fn finish(self: Box<Self>) -> String {
        take(&mut self.0.borrow_mut().held)
    }
}

/// Runs a request to its end, or until `cancelled` says so. What its text lacks
/// in the end is in `tail`.
///
/// # Errors
/// When the request is refused, or the model fails.
pub fn generate<'w>(
    engine: &mut Engine<'w>,
    request: Request,
    tail: &Tail<'w>,
    cancelled: impl Fn() -> bool,
    mut show: impl FnMut(&str) -> Result<()>,
) -> Result<Reply> {
    let id = engine.submit(request, Some(Box::new(Tail(Rc::clone(&tail.0)))))?;
    let (mut ids, mut whole) = (Vec::new(), String::new());
    let mut asked = false;
    loop {
        if !asked && cancelled() {
            asked = engine.cancel(id);
        }
        for event in engine.step() {
            match &event.what {
                What::Prefilled(_) => {}
                What::Token { id, text, .. } => {
                    ids.push(*id);
                    whole.push_str(text);
                    show(text)?;
                }
                What::Finished { stop, text, stats } => {
                    tail.0.borrow_mut().held.clone_from(text);
                    if let Stop::Token(id) = stop {
                        ids.push(*id);
                    }
                    return Ok(Reply { ids, text: whole, stop: stop.clone(), stats: *stats });
                }
                What::Failed(error) => return Err(Error::work(error)),
            }
        }
    }
}

/// A reply to `prompt` as one JSON object: ids, text, amounts, times.
pub fn described(prompt: &[u32], reply: &Reply) -> Value {
    let Stats { cached, prefill, decode, .. } = reply.stats;
    let rate = |rate: girih_engine::Rate| {
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

/// Amounts and times as a line for people.
pub fn summary(reply: &Reply) -> String {
    let Stats { cached, prefill, decode, .. } = reply.stats;
    format!(
        "prefill {} tokens ({cached} more from the cache) in {:.2} s, {:.1} tokens/s; decode {} tokens in {:.2} s, {:.1} tokens/s",
        prefill.tokens,
        prefill.time.as_secs_f64(),
        prefill.per_second(),
        decode.tokens,
        decode.time.as_secs_f64(),
        decode.per_second(),
    )
}
