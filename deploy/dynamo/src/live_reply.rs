//! A reply on its way to Dynamo.

use std::future::poll_fn;

use dynamo_backend_common::{
    DynamoError, FinishReason, GenerateContext, LLMEngineOutput, LLMEngineOutputExt as _,
    PromptTokensDetails, TopLogprob, chunk, usage,
};
use futures::stream::{BoxStream, StreamExt as _, unfold};
use girih::{Event, Logprobs, Reply, Stats, Stop};
use tokio::sync::watch;

use crate::error::dynamo_error;

type Chunk = Result<LLMEngineOutput, DynamoError>;

/// A reply that is being read.
pub(crate) struct LiveReply {
    reply: Reply,
    context: GenerateContext,
    /// Whether the worker's engine was ended.
    ended: watch::Receiver<bool>,
    /// The number of tokens that were read.
    tokens: u32,
}

impl LiveReply {
    pub fn new(reply: Reply, context: GenerateContext, ended: watch::Receiver<bool>) -> LiveReply {
        LiveReply { reply, context, ended, tokens: 0 }
    }

    /// Its chunks; the last one has a reason. A stream that is dropped, or whose client has left, cancels the request.
    pub fn into_stream(self) -> BoxStream<'static, Chunk> {
        unfold(Some(self), |live| async move {
            let mut live = live?;
            let chunk = live.next_chunk().await;
            let is_last = !matches!(&chunk, Ok(chunk) if chunk.finish_reason.is_none());
            Some((chunk, (!is_last).then_some(live)))
        })
        .boxed()
    }

    async fn next_chunk(&mut self) -> Chunk {
        loop {
            match self.next_event().await {
                Some(Ok(Event::Token { id, logprobs, .. })) => {
                    self.tokens = self.tokens.saturating_add(1);
                    return Ok(with_logprobs(chunk::token(id), logprobs.as_ref()));
                }
                Some(Ok(Event::Finished { stop, stats, .. })) => return Ok(self.finished(&stop, &stats)),
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(dynamo_error(error)),
                None => {
                    let usage = usage(self.reply.prompt_tokens(), self.tokens);
                    return Ok(LLMEngineOutput::cancelled().with_usage(usage));
                }
            }
        }
    }

    /// The next event; `None` if the client has left or the engine was ended.
    async fn next_event(&mut self) -> Option<girih::Result<Event>> {
        let LiveReply { reply, context, ended, .. } = self;
        tokio::select! {
            biased;
            () = context.stopped() => None,
            // It fails when the engine is gone.
            _ = ended.wait_for(|ended| *ended) => None,
            event = poll_fn(|task| reply.poll(task)) => event,
        }
    }

    /// The last chunk: the frontend gets the token that ended the reply, and hides it where it must.
    fn finished(&self, stop: &Stop, stats: &Stats) -> LLMEngineOutput {
        let (reason, last) = match stop {
            Stop::Token(id) => (FinishReason::Stop, vec![*id]),
            Stop::String(_) | Stop::Complete | Stop::Repetition => (FinishReason::Stop, Vec::new()),
            Stop::Length | Stop::Context => (FinishReason::Length, Vec::new()),
            Stop::Cancelled | Stop::Deadline => (FinishReason::Cancelled, Vec::new()),
        };
        let tokens = self.tokens.saturating_add(u32::from(!last.is_empty()));
        let mut usage = usage(self.reply.prompt_tokens(), tokens);
        let cached_tokens = Some(stats.cached);
        usage.prompt_tokens_details =
            Some(PromptTokensDetails { cached_tokens, ..PromptTokensDetails::default() });
        LLMEngineOutput { finish_reason: Some(reason), ..LLMEngineOutput::default() }
            .with_tokens(last)
            .with_usage(usage)
    }
}

fn with_logprobs(chunk: LLMEngineOutput, found: Option<&Logprobs>) -> LLMEngineOutput {
    let Some(found) = found else { return chunk };
    let top = (1..).zip(&found.top).map(|(rank, one)| TopLogprob {
        rank,
        token_id: one.id,
        token: None,
        logprob: one.value,
        bytes: None,
    });
    LLMEngineOutput {
        log_probs: Some(vec![found.chosen.value]),
        top_logprobs: Some(vec![top.collect()]),
        ..chunk
    }
}
