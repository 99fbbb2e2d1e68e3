//! Dynamo's own suite, and the life of an engine.

use std::sync::Arc;

use dynamo_backend_common::engine::GenerateContext;
use dynamo_backend_common::testing::{mock_context, run_conformance};
use dynamo_backend_common::{FinishReason, LLMEngine as _};
use futures::StreamExt as _;

use crate::{PROMPT, engine, reply, request, started};

#[tokio::test]
async fn the_engine_conforms() {
    run_conformance(|| engine(&[])).await.expect("it conforms");
}

#[tokio::test]
async fn what_is_registered_is_what_runs() {
    let engine = engine(&["--served-model-name", "stories", "--context", "200", "--sequences", "3"]);
    let config = engine.start(0).await.expect("it starts");
    let llm = config.llm.expect("it is a language model");
    assert_eq!(
        (config.model.as_str(), config.served_model_name.as_deref()),
        (girih::BUILT_IN, Some("stories"))
    );
    assert_eq!((llm.context_length, llm.kv_cache_block_size), (Some(200), Some(64)));
    assert_eq!((llm.max_num_seqs, llm.total_kv_blocks), (Some(3), Some(12)));
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_reply() {
    let engine = started().await;
    let context = mock_context();
    let asked =
        engine.generate(request(&PROMPT, 10_000), GenerateContext::new(Arc::clone(&context), None)).await;
    let mut stream = asked.expect("it is accepted");
    assert!(stream.next().await.is_some_and(|chunk| chunk.is_ok_and(|chunk| chunk.token_ids.len() == 1)));
    context.stop_generating();
    let chunks: Vec<_> = stream.collect().await;
    let [Ok(last)] = &chunks[..] else { panic!("{chunks:?}") };
    assert_eq!(last.finish_reason, Some(FinishReason::Cancelled));
    assert_eq!(last.completion_usage.as_ref().map(|usage| usage.completion_tokens), Some(1));
}

#[tokio::test]
async fn the_end_of_the_engine_ends_its_replies_and_refuses_others() {
    let engine = started().await;
    let asked = engine.generate(request(&PROMPT, 10_000), GenerateContext::new(mock_context(), None)).await;
    let mut stream = asked.expect("it is accepted");
    engine.cleanup().await.expect("it ends");
    let last = stream.next().await.expect("the reply has an end").expect("it does not fail");
    assert_eq!(last.finish_reason, Some(FinishReason::Cancelled));
    assert!(stream.next().await.is_none());
    let error = reply(&engine, request(&PROMPT, 1)).await.err().expect("the engine has ended");
    assert!(error.message().contains("it was ended"), "{error}");
}

#[tokio::test]
async fn a_model_that_is_not_there_is_told() {
    let words = ["girih-dynamo", "/no/such/model"];
    let args = clap::Parser::try_parse_from(words).expect("the arguments are right");
    let (engine, _) =
        girih_dynamo::GirihEngine::new(args, girih::OpenOptions::default()).expect("it runs whole requests");
    let error = engine.start(0).await.expect_err("there is no model");
    assert!(error.message().contains("/no/such/model"), "{error}");
    engine.cleanup().await.expect("nothing is to be ended");
}
