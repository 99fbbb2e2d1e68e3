//! Prompts and replies that exceed the context: refused, or continued after the
//! oldest tokens were dropped and the rest prefilled again.

use girih_engine::{Engine, Request, Stats, Stop, TokenRate};
use girih_words::TextProcessor;

use crate::error::Result;
use crate::generate::{Reply, Tail, generate};

/// The values of `--overflow`: what to do with a sequence that fills the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Overflow {
    /// Refuse calls that exceed the context.
    #[default]
    Error,
    /// Keep the first token, drop the oldest others, and prefill the rest again.
    Truncate,
}

impl Overflow {
    /// The first request to run in a context of `context` tokens.
    pub fn first(self, request: Request, context: u32) -> Request {
        match self {
            Overflow::Error => request,
            Overflow::Truncate => within(request, context),
        }
    }

    /// Runs a request, in several pieces if it is to be truncated.
    ///
    /// # Errors
    /// As [`generate`].
    pub fn generate(
        self,
        engine: &mut Engine<'_>,
        request: Request,
        processor: &TextProcessor,
        cancelled: impl Fn() -> bool,
        mut show: impl FnMut(&str) -> Result<()>,
    ) -> Result<Reply> {
        let context = engine.limits().context;
        let (mut known, max_new) = (request.tokens.clone(), request.max_new);
        let tail = Tail::after(&request.tokens, processor);
        let mut whole: Option<Reply> = None;
        loop {
            let done = whole.as_ref().map_or(0, |reply| reply.ids.len() as u32);
            let mut piece = Request { tokens: known.clone(), replied: done, ..request.clone() };
            piece.max_new = max_new.map(|max| max - done);
            // With the same seed, each piece would draw the random numbers of the one before.
            piece.sampling.seed = piece.sampling.seed.wrapping_add(u64::from(done));
            let reply = generate(engine, self.first(piece, context), &tail, &cancelled, &mut show)?;
            known.extend(&reply.ids);
            let mut reply = match whole.take() {
                Some(before) => joined(before, reply),
                None => reply,
            };
            let is_short = max_new.is_some_and(|max| (reply.ids.len() as u32) < max);
            if self == Overflow::Error || reply.stop != Stop::Length || !is_short {
                tail.finish(&mut reply, show)?;
                return Ok(reply);
            }
            whole = Some(reply);
        }
    }
}

/// A request that fits into the context. It keeps the whole prompt if one more
/// token fits, else the first token (often the one that opens every text) and
/// the last half context. New tokens are limited to what is left.
fn within(mut request: Request, context: u32) -> Request {
    let have = request.tokens.len() as u32;
    if have >= context && context > 1 {
        let kept = (context / 2).max(1).min(context - 1);
        let last = request.tokens.split_off((have - (kept - 1)) as usize);
        request.tokens.truncate(1);
        request.tokens.extend(last);
        request.replied = request.replied.min(kept - 1);
    }
    let room = context.saturating_sub(request.tokens.len() as u32).max(1);
    request.max_new = request.max_new.map(|max| max.min(room));
    request
}

/// Joins a reply and its continuation.
fn joined(mut before: Reply, after: Reply) -> Reply {
    let sum = |a: TokenRate, b: TokenRate| TokenRate { tokens: a.tokens + b.tokens, time: a.time + b.time };
    let (a, b) = (before.stats, after.stats);
    before.ids.extend(after.ids);
    before.text.push_str(&after.text);
    before.stop = after.stop;
    before.stats = Stats {
        cached: a.cached + b.cached,
        prefill: sum(a.prefill, b.prefill),
        decode: sum(a.decode, b.decode),
        sent_back: a.sent_back + b.sent_back,
        repeated: sum(a.repeated, b.repeated),
        first_token: a.first_token,
        whole: a.whole + b.whole,
    };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(tokens: u32, new: Option<u32>, context: u32) -> (Vec<u32>, Option<u32>) {
        let request = Request { tokens: (0..tokens).collect(), max_new: new, ..Request::default() };
        let request = Overflow::Truncate.first(request, context);
        (request.tokens, request.max_new)
    }

    #[test]
    fn a_request_that_does_not_fit_loses_its_oldest_tokens() {
        assert_eq!(fitted(5, Some(3), 8), ((0..5).collect(), Some(3)));
        assert_eq!(fitted(5, Some(9), 8), ((0..5).collect(), Some(3)));
        assert_eq!(fitted(7, None, 8), ((0..7).collect(), None));
        assert_eq!(fitted(8, Some(9), 8), (vec![0, 5, 6, 7], Some(4)));
        assert_eq!(fitted(20, Some(1), 8), (vec![0, 17, 18, 19], Some(1)));
        assert_eq!(fitted(20, Some(5), 2), (vec![0], Some(1)));
        let same =
            Overflow::Error.first(Request { tokens: vec![1; 9], max_new: Some(4), ..Request::default() }, 8);
        assert_eq!((same.tokens.len(), same.max_new), (9, Some(4)), "the engine refuses it");
    }

    #[test]
    fn penalties_count_only_the_kept_part_of_the_reply() {
        let left = |replied, context| {
            let request = Request { tokens: vec![1; 20], replied, max_new: Some(5), ..Request::default() };
            Overflow::Truncate.first(request, context).replied
        };
        assert_eq!([left(2, 8), left(12, 8), left(12, 2), left(12, 32)], [2, 3, 0, 12]);
    }
}
