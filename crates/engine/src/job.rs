//! A request on its way through the engine.

use std::time::{Duration, Instant};

use girih_graph::BLOCK_POSITIONS;
use girih_graph::backend::Range32;

use crate::sample::{History, Logprobs};
use crate::text::{Certain, Detokenize, StopStrings};
use crate::{Event, Request, RequestId, Stats, Stop, What};

/// A request, its reply so far, and what has been measured.
pub(crate) struct Job<'w> {
    id: RequestId,
    /// What was asked for, but for its prompt and stop strings.
    pub request: Request,
    /// The prompt, then the reply.
    pub tokens: Vec<u32>,
    /// How many of the tokens are the prompt's.
    prompt: usize,
    /// How many of the prompt's last ones are the reply's already.
    replied: usize,
    /// The most tokens of the reply.
    room: usize,
    words: Option<Box<dyn Detokenize + 'w>>,
    stops: StopStrings,
    submitted: Instant,
    /// How many of the tokens the state has ever held.
    reached: u32,
    pub stats: Stats,
}

impl<'w> Job<'w> {
    pub fn new(
        id: RequestId,
        mut request: Request,
        words: Option<Box<dyn Detokenize + 'w>>,
        context: u32,
    ) -> Self {
        let room = request.room(context);
        let stops = StopStrings::new(std::mem::take(&mut request.stops.strings));
        let tokens = std::mem::take(&mut request.tokens);
        let (prompt, replied) = (tokens.len(), request.replied as usize);
        let (submitted, stats) = (Instant::now(), Stats::default());
        Job { id, request, tokens, prompt, replied, room, words, stops, submitted, reached: 0, stats }
    }

    pub fn id(&self) -> RequestId {
        self.id
    }

    pub fn history(&self) -> History<'_> {
        let (prompt, reply) = self.tokens.split_at(self.prompt - self.replied);
        History { prompt, reply }
    }

    /// The tokens that it has made.
    pub fn made(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// The event that this happened to the request.
    pub fn event(&self, what: What) -> Event {
        Event { request: self.id, what }
    }

    /// The tokens that it will have before long: a block more than now, but no
    /// more than it may get.
    pub fn soon(&self) -> u32 {
        (self.tokens.len() + BLOCK_POSITIONS).min(self.prompt + self.room) as u32
    }

    /// Notes that the state already holds the first `cached` tokens.
    pub fn begin(&mut self, cached: u32) {
        self.stats.cached += cached.saturating_sub(self.reached);
        self.reached = self.reached.max(cached);
    }

    /// Notes that it was sent back to the queue, as another needed its blocks.
    pub fn send_back(&mut self) {
        self.stats.sent_back += 1;
    }

    /// Counts a step that ran these of its positions. What the state had held
    /// before counts as repeated, with its share of the time.
    pub fn count(&mut self, positions: Range32, time: Duration) {
        let rows = positions.end - positions.start;
        let repeated = self.reached.saturating_sub(positions.start).min(rows);
        let part = time * repeated / rows;
        self.reached = self.reached.max(positions.end);
        let replying = !self.made().is_empty();
        let Stats { prefill, decode, repeated: again, .. } = &mut self.stats;
        again.add(repeated, part);
        if replying { decode } else { prefill }.add(rows - repeated, time - part);
    }

    /// Notes when the first token of the reply was chosen.
    pub fn chose_first(&mut self) {
        self.stats.first_token = self.submitted.elapsed();
    }

    /// Appends a token to the reply; returns its event, and why the reply ends
    /// with it, if it does.
    pub fn append(&mut self, id: u32, logprobs: Option<Logprobs>) -> (Event, Option<Stop>) {
        self.tokens.push(id);
        let text = self.words.as_mut().map_or_else(String::new, |words| words.push(id));
        let Certain { text, stop } = self.stops.push(&text);
        let full = self.made().len() >= self.room;
        let stop = stop.map(Stop::String).or_else(|| full.then(|| self.limit()));
        (self.event(What::Token { id, text, logprobs }), stop)
    }

    /// Why a reply that fills its room ends.
    fn limit(&self) -> Stop {
        if self.request.max_new.is_some() { Stop::Length } else { Stop::Context }
    }

    /// The last event, with the text that was held back. Where a stop string
    /// was found there is none: what follows it is never shown.
    pub fn finish(mut self, stop: Stop) -> Event {
        let mut text = String::new();
        if !matches!(stop, Stop::String(_)) {
            let rest = self.words.take().map_or_else(String::new, |words| words.finish());
            text = self.stops.push(&rest).text;
            text.push_str(&std::mem::take(&mut self.stops).finish());
        }
        self.stats.whole = self.submitted.elapsed();
        self.event(What::Finished { stop, text, stats: self.stats })
    }
}
