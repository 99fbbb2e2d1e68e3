//! Tests of the worker on the built-in model.

mod conformance;
mod kv_events;
mod refusals;
mod replies;

use clap::Parser as _;
use dynamo_backend_common::engine::GenerateContext;
use dynamo_backend_common::testing::mock_context;
use dynamo_backend_common::{
    DynamoError, FinishReason, LLMEngine as _, LLMEngineOutput, OutputOptions, PreprocessedRequest,
    SamplingOptions, StopConditions,
};
use futures::StreamExt as _;
use girih::OpenOptions;
use girih_dynamo::{GirihEngine, WorkerArgs};

/// The tokens of "Once upon a time", after the one that begins a text.
const PROMPT: [u32; 5] = [1, 403, 407, 261, 378];

/// An engine that has not started, of a worker with these arguments behind the name of the model.
fn engine(arguments: &[&str]) -> GirihEngine {
    let words = ["girih-dynamo", girih::BUILT_IN, "--threads", "1"];
    let args = WorkerArgs::try_parse_from(words.iter().chain(arguments)).expect("the arguments are right");
    GirihEngine::new(args, OpenOptions::default()).expect("the worker runs whole requests").0
}

/// An engine that has started.
async fn started() -> GirihEngine {
    let engine = engine(&[]);
    engine.start(0).await.expect("the built-in model is there");
    engine
}

/// A greedy request for at most `max_tokens` tokens.
fn request(tokens: &[u32], max_tokens: u32) -> PreprocessedRequest {
    let built = PreprocessedRequest::builder()
        .model(girih::BUILT_IN.to_owned())
        .token_ids(tokens.to_vec())
        .stop_conditions(StopConditions { max_tokens: Some(max_tokens), ..StopConditions::default() })
        .sampling_options(SamplingOptions { temperature: Some(0.0), ..SamplingOptions::default() })
        .output_options(OutputOptions::default())
        .build();
    built.expect("all that has no default is set")
}

/// A whole reply.
struct WholeReply {
    tokens: Vec<u32>,
    chunks: Vec<LLMEngineOutput>,
}

impl WholeReply {
    fn last(&self) -> &LLMEngineOutput {
        self.chunks.last().expect("a reply has a last chunk")
    }

    fn reason(&self) -> &FinishReason {
        self.last().finish_reason.as_ref().expect("the last chunk has a reason")
    }

    /// The number of tokens of the prompt that were cached.
    fn cached(&self) -> u32 {
        let usage = self.last().completion_usage.as_ref().expect("the last chunk has the usage");
        let details = usage.prompt_tokens_details.as_ref().expect("the usage has details");
        details.cached_tokens.expect("the number is told")
    }
}

async fn reply(engine: &GirihEngine, request: PreprocessedRequest) -> Result<WholeReply, DynamoError> {
    let stream = engine.generate(request, GenerateContext::new(mock_context(), None)).await?;
    let chunks: Vec<LLMEngineOutput> =
        stream.map(|chunk| chunk.expect("the reply does not fail")).collect().await;
    let tokens = chunks.iter().flat_map(|chunk| chunk.token_ids.iter().copied()).collect();
    Ok(WholeReply { tokens, chunks })
}
