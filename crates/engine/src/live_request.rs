//! A submitted request that has not ended.

use std::time::{Duration, Instant};

use girih_graph::BLOCK_POSITIONS;
use girih_graph::backend::Range32;

use crate::sample::{History, Logprobs};
use crate::text::{Detokenize, ReleasedText, StopStrings};
use crate::{EventKind, Request, RequestEvent, RequestId, Stats, Stop};

/// A submitted request, its reply so far, and its statistics.
pub(crate) struct LiveRequest<'w> {
    id: RequestId,
    /// The request, without its prompt and stop strings.
    pub request: Request,
    /// The prompt, then the reply.
    pub tokens: Vec<u32>,
    /// The number of tokens of the prompt.
    prompt: usize,
    /// The number of tokens at the end of the prompt that count as reply.
    replied: usize,
    /// The maximum number of tokens of the reply.
    room: usize,
    detokenizer: Option<Box<dyn Detokenize + 'w>>,
    stops: StopStrings,
    submitted: Instant,
    /// The largest number of its tokens that the state has held.
    reached: u32,
    pub stats: Stats,
}

impl<'w> LiveRequest<'w> {
    pub fn new(
        id: RequestId,
        mut request: Request,
        detokenizer: Option<Box<dyn Detokenize + 'w>>,
        context: u32,
    ) -> Self {
        let room = request.room(context);
        let stops = StopStrings::new(std::mem::take(&mut request.stops.strings));
        let tokens = std::mem::take(&mut request.tokens);
        let (prompt, replied) = (tokens.len(), request.replied as usize);
        let (submitted, stats) = (Instant::now(), Stats::default());
        LiveRequest {
            id,
            request,
            tokens,
            prompt,
            replied,
            room,
            detokenizer,
            stops,
            submitted,
            reached: 0,
            stats,
        }
    }

    pub fn id(&self) -> RequestId {
        self.id
    }

    pub fn history(&self) -> History<'_> {
        let (prompt, reply) = self.tokens.split_at(self.prompt - self.replied);
        History { prompt, reply }
    }

    /// The tokens that it has generated.
    pub fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt..]
    }

    /// Returns an event of this request.
    pub fn event(&self, kind: EventKind) -> RequestEvent {
        RequestEvent { request: self.id, kind }
    }

    /// The number of tokens for which admission needs blocks: one block more than it has
    /// now, within its limit.
    pub fn soon(&self) -> u32 {
        (self.tokens.len() + BLOCK_POSITIONS).min(self.prompt + self.room) as u32
    }

    /// Records that the state already holds the first `cached` tokens.
    pub fn begin(&mut self, cached: u32) {
        self.stats.cached += cached.saturating_sub(self.reached);
        self.reached = self.reached.max(cached);
    }

    /// Counts a preemption: the request went back to the queue because another one needed
    /// its blocks.
    pub fn send_back(&mut self) {
        self.stats.sent_back += 1;
    }

    /// Counts a step that ran these positions. Positions that the state had held before
    /// count as repeated, with their share of the time.
    pub fn count(&mut self, positions: Range32, time: Duration) {
        let rows = positions.end - positions.start;
        let repeated = self.reached.saturating_sub(positions.start).min(rows);
        let part = time * repeated / rows;
        self.reached = self.reached.max(positions.end);
        let replying = !self.generated().is_empty();
        let Stats { prefill, decode, repeated: again, .. } = &mut self.stats;
        again.add(repeated, part);
        if replying { decode } else { prefill }.add(rows - repeated, time - part);
    }

    /// Records the time at which the first token of the reply was chosen.
    pub fn chose_first(&mut self) {
        self.stats.first_token = self.submitted.elapsed();
    }

    /// Appends a token to the reply; returns its event, and the reason if the reply ends
    /// with it.
    pub fn append(&mut self, id: u32, logprobs: Option<Logprobs>) -> (RequestEvent, Option<Stop>) {
        self.tokens.push(id);
        let text = self.detokenizer.as_mut().map_or_else(String::new, |detokenizer| detokenizer.push(id));
        let ReleasedText { text, stop } = self.stops.push(&text);
        let full = self.generated().len() >= self.room;
        let stop = stop.map(Stop::String).or_else(|| full.then(|| self.limit()));
        (self.event(EventKind::Token { id, text, logprobs }), stop)
    }

    /// The stop reason of a reply that reached its maximum length.
    fn limit(&self) -> Stop {
        if self.request.max_new.is_some() { Stop::Length } else { Stop::Context }
    }

    /// Returns the last event, with the text that was held back. After a stop string there
    /// is no such text, because nothing that follows it is shown.
    pub fn finish(mut self, stop: Stop) -> RequestEvent {
        let mut text = String::new();
        if !matches!(stop, Stop::String(_)) {
            let rest = self.detokenizer.take().map_or_else(String::new, |detokenizer| detokenizer.finish());
            text = self.stops.push(&rest).text;
            text.push_str(&std::mem::take(&mut self.stops).finish());
        }
        self.stats.whole = self.submitted.elapsed();
        self.event(EventKind::Finished { stop, text, stats: self.stats })
    }
}
