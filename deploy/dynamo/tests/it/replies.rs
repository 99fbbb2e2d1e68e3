//! Replies through Dynamo's types are girih's own.

use dynamo_backend_common::engine::RoutingHints;
use dynamo_backend_common::{FinishReason, GuidedDecodingOptions, PreprocessedRequest};
use girih::{Model, Request, Sampling};

use crate::{PROMPT, reply, request, started};

fn with_salt(salt: &str, mut request: PreprocessedRequest) -> PreprocessedRequest {
    request.routing =
        Some(RoutingHints { cache_namespace: Some(salt.to_owned()), ..RoutingHints::default() });
    // The frontend sends it twice.
    request.extra_args = Some(serde_json::json!({"nvext": {"cache_salt": salt}}));
    request
}

#[tokio::test]
async fn tokens_are_girihs_own() {
    let engine = started().await;
    let session = Model::open(girih::BUILT_IN).and_then(|model| model.start()).expect("it is built in");
    assert_eq!(session.model().tokenize("Once upon a time").expect("it has a tokenizer"), PROMPT);
    for (temperature, seed) in [(0.0, 0), (0.8, 1), (1.0, -1)] {
        let mut asked = request(&PROMPT, 40);
        asked.sampling_options.temperature = Some(temperature);
        asked.sampling_options.seed = Some(seed);
        let reply = reply(&engine, asked).await.expect("it is accepted");
        let sampling = Sampling { temperature, seed: seed as u64, ..session.model().default_sampling() };
        let own = Request::new(PROMPT.to_vec()).max_tokens(40).sampling(sampling);
        let own = session.generate(own).and_then(|reply| reply.tokens()).expect("it runs");
        assert_eq!(reply.tokens, own, "temperature {temperature}, seed {seed}");
        assert_eq!((reply.reason(), reply.chunks.len()), (&FinishReason::Length, 41));
    }
}

#[tokio::test]
async fn a_stop_token_ends_the_reply_and_is_in_it() {
    let engine = started().await;
    let whole = reply(&engine, request(&PROMPT, 40)).await.expect("it is accepted").tokens;
    let stop = whole[9];
    let first = whole.iter().position(|id| *id == stop).expect("it is there");
    for list in 0..3 {
        let mut asked = request(&PROMPT, 40);
        let stops = &mut asked.stop_conditions;
        *[&mut stops.stop_token_ids, &mut stops.stop_token_ids_visible, &mut stops.stop_token_ids_hidden]
            [list] = Some(vec![stop]);
        let reply = reply(&engine, asked).await.expect("it is accepted");
        assert_eq!(reply.tokens, whole[..=first], "list {list}");
        assert_eq!(reply.reason(), &FinishReason::Stop);
        assert_eq!(reply.last().token_ids, [stop]);
    }
    let mut asked = request(&PROMPT, 40);
    asked.stop_conditions.stop_token_ids = Some(vec![stop]);
    asked.stop_conditions.min_tokens = Some(20);
    let reply = reply(&engine, asked).await.expect("it is accepted");
    assert!(reply.tokens.len() >= 20, "{} tokens", reply.tokens.len());
}

#[tokio::test]
async fn the_models_end_is_ignored_if_asked() {
    let engine = started().await;
    let own = Model::open(girih::BUILT_IN).and_then(|model| model.stop_tokens()).expect("it is built in");
    let mut ends = 0;
    for seed in 0..4 {
        let mut asked = request(&PROMPT, 10_000);
        // Nearly all tokens are as likely as each other, so the model ends most replies.
        asked.sampling_options.temperature = Some(50.0);
        asked.sampling_options.seed = Some(seed);
        asked.eos_token_ids = own.clone();
        let mut whole = asked.clone();
        ends +=
            usize::from(reply(&engine, asked).await.expect("it is accepted").reason() == &FinishReason::Stop);
        whole.stop_conditions.ignore_eos = Some(true);
        whole.eos_token_ids.clear();
        let reply = reply(&engine, whole).await.expect("it is accepted");
        assert_eq!(reply.reason(), &FinishReason::Length, "seed {seed}");
        assert!(!reply.tokens.iter().any(|id| own.contains(id)), "seed {seed}");
    }
    assert!(ends > 0, "no reply has ended by itself");
}

#[tokio::test]
async fn grammars_hold_although_the_frontend_names_the_models_end() {
    let engine = started().await;
    let model = Model::open(girih::BUILT_IN).expect("it is built in");
    let cases = [
        (
            GuidedDecodingOptions { choice: Some(vec!["yes".into(), "no".into()]), ..Default::default() },
            "yes|no",
        ),
        (GuidedDecodingOptions { regex: Some("[0-9]{3}".into()), ..Default::default() }, "number"),
        (
            GuidedDecodingOptions { json: Some(serde_json::json!({"enum": [17, 18]})), ..Default::default() },
            "17|18",
        ),
        (GuidedDecodingOptions { json: Some(r#"{"enum": [17]}"#.into()), ..Default::default() }, "17"),
        (
            GuidedDecodingOptions { grammar: Some("start: \"cat\" | \"dog\"".into()), ..Default::default() },
            "cat|dog",
        ),
    ];
    for (asked_for, expected) in cases {
        let mut asked = request(&PROMPT, 40);
        asked.eos_token_ids = model.stop_tokens().expect("it has a tokenizer");
        // An end that only config.json has.
        asked.eos_token_ids.push(PROMPT[1]);
        asked.stop_conditions.stop_token_ids_hidden = Some(asked.eos_token_ids.clone());
        asked.sampling_options.guided_decoding = Some(asked_for);
        let reply = reply(&engine, asked).await.expect("it is accepted");
        assert_eq!(reply.reason(), &FinishReason::Stop, "{expected}");
        let own = model.stop_tokens().expect("it has a tokenizer");
        let tokens: Vec<u32> = reply.tokens.iter().copied().filter(|id| !own.contains(id)).collect();
        let text = model.detokenize(&tokens).expect("they are tokens");
        let text = text.trim();
        let is_right = match expected {
            "number" => text.len() == 3 && text.parse::<u32>().is_ok(),
            texts => texts.split('|').any(|one| one == text),
        };
        assert!(is_right, "{text:?} is not {expected}");
    }
}

#[tokio::test]
async fn log_probabilities_have_their_tokens() {
    let engine = started().await;
    let mut asked = request(&PROMPT, 8);
    asked.output_options.logprobs = Some(3);
    let reply = reply(&engine, asked).await.expect("it is accepted");
    let (last, chunks) = reply.chunks.split_last().expect("there are chunks");
    assert!(last.log_probs.is_none() && chunks.len() == 8);
    for chunk in chunks {
        let top = &chunk.top_logprobs.as_ref().expect("they were asked for")[0];
        assert_eq!(top.iter().map(|one| one.rank).collect::<Vec<u32>>(), [1, 2, 3]);
        // The choice is greedy.
        assert_eq!(
            (top[0].token_id, Some(&vec![top[0].logprob])),
            (chunk.token_ids[0], chunk.log_probs.as_ref())
        );
    }
}

#[tokio::test]
async fn a_salt_is_a_tenant_of_its_own() {
    let engine = started().await;
    let prompt: Vec<u32> = [&PROMPT[..1], &[403; 150]].concat();
    let mut cached = Vec::new();
    for salt in ["alice", "alice", "bob", ""] {
        let reply = reply(&engine, with_salt(salt, request(&prompt, 2))).await.expect("it is accepted");
        cached.push(reply.cached() > 0);
    }
    assert_eq!(cached, [false, true, false, false]);
    let error =
        reply(&engine, with_salt(&"a".repeat(257), request(&PROMPT, 2))).await.err().expect("it is too long");
    assert!(error.message().contains("cache_salt has 257 bytes"), "{error}");
}
