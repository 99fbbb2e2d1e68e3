//! What girih cannot do is refused by name, in a sentence for the client.

use clap::Parser as _;
use dynamo_backend_common::engine::RoutingHints;
use dynamo_backend_common::{
    BackendError, BootstrapInfo, ErrorType, GuidedDecodingOptions, MultimodalData, PreprocessedRequest,
};
use girih::OpenOptions;
use girih_dynamo::{GirihEngine, WorkerArgs};
use serde_json::json;

use crate::{PROMPT, engine, reply, request, started};

/// A change of a request that girih refuses, with the name that the error must have.
type Refused = (&'static str, fn(&mut PreprocessedRequest));

const REFUSED: [Refused; 28] = [
    ("prompt_embeds", |asked| asked.prompt_embeds = Some("AA==".into())),
    ("multi_modal_data", |asked| {
        let image = vec![MultimodalData::UuidOnly("a".into())];
        asked.multi_modal_data = Some([("image".to_owned(), image)].into());
    }),
    ("prefill_result", |asked| {
        let result = json!({"disaggregated_params": {}});
        asked.prefill_result = Some(serde_json::from_value(result).expect("it is one"));
    }),
    ("encoder_result", |asked| asked.encoder_result = Some(json!({}))),
    ("bootstrap_info", |asked| asked.bootstrap_info = Some(BootstrapInfo::default())),
    ("require_reasoning", |asked| asked.require_reasoning = true),
    ("max_thinking_tokens", |asked| asked.stop_conditions.max_thinking_tokens = Some(8)),
    ("prompt_logprobs", |asked| asked.output_options.prompt_logprobs = Some(1)),
    ("nvext.metadata_upload of extra_args", |asked| {
        asked.extra_args = Some(json!({"nvext": {"cache_salt": "a", "metadata_upload": {}}}));
    }),
    ("sampling_options.allowed_token_ids of extra_args", |asked| {
        asked.extra_args = Some(json!({"sampling_options": {"allowed_token_ids": [1]}}));
    }),
    ("logits_processors of extra_args", |asked| asked.extra_args = Some(json!({"logits_processors": []}))),
    ("n other than 1", |asked| asked.sampling_options.n = Some(2)),
    ("best_of other than 1", |asked| asked.sampling_options.best_of = Some(2)),
    ("use_beam_search", |asked| asked.sampling_options.use_beam_search = Some(true)),
    ("length_penalty", |asked| asked.sampling_options.length_penalty = Some(0.5)),
    ("top_k is -2", |asked| asked.sampling_options.top_k = Some(-2)),
    ("temperature", |asked| asked.sampling_options.temperature = Some(f32::NAN)),
    ("top_p is 1.5", |asked| asked.sampling_options.top_p = Some(1.5)),
    ("backend of guided decoding", |asked| guided(asked).backend = Some("xgrammar".into())),
    ("whitespace_pattern of guided decoding", |asked| guided(asked).whitespace_pattern = Some(" ".into())),
    ("structural_tag of guided decoding", |asked| guided(asked).structural_tag = Some(json!({}))),
    ("several constraints of guided decoding", |asked| {
        guided(asked).regex = Some("a".into());
        guided(asked).choice = Some(vec!["a".into()]);
    }),
    ("regular expression", |asked| guided(asked).regex = Some("(".into())),
    ("there is no adapter 'poet'", |asked| {
        asked.routing = Some(RoutingHints { lora_name: Some("poet".into()), ..RoutingHints::default() });
    }),
    ("log-probabilities", |asked| asked.output_options.logprobs = Some(21)),
    ("0 new tokens", |asked| asked.stop_conditions.max_tokens = Some(0)),
    ("vocabulary", |asked| asked.token_ids = vec![1, 100_000].into()),
    ("context", |asked| asked.token_ids = vec![403; 600].into()),
];

fn guided(asked: &mut PreprocessedRequest) -> &mut GuidedDecodingOptions {
    asked.sampling_options.guided_decoding.get_or_insert_default()
}

#[tokio::test]
async fn requests_are_refused_by_name() {
    let engine = started().await;
    for (name, change) in REFUSED {
        let mut asked = request(&PROMPT, 4);
        change(&mut asked);
        let error = reply(&engine, asked).await.err().unwrap_or_else(|| panic!("{name} was accepted"));
        assert!(error.message().contains(name), "{name}: {error}");
        assert_eq!(error.error_type(), ErrorType::Backend(BackendError::InvalidArgument), "{name}");
        assert_eq!(error.public_message(), Some(error.message()), "{name}");
    }
    assert_eq!(reply(&engine, request(&PROMPT, 4)).await.expect("it is accepted").tokens.len(), 4);
}

#[tokio::test]
async fn what_has_no_effect_is_accepted() {
    let engine = started().await;
    let mut asked = request(&PROMPT, 4);
    asked.sampling_options.n = Some(1);
    asked.sampling_options.top_k = Some(-1);
    asked.sampling_options.length_penalty = Some(1.0);
    asked.sampling_options.use_beam_search = Some(false);
    asked.extra_args =
        Some(json!({"reasoning_ended": true, "nvext": {"token_in": true, "extra_fields": []}}));
    assert_eq!(reply(&engine, asked).await.expect("it is accepted").tokens.len(), 4);
}

#[test]
fn arguments_are_refused_by_name() {
    let cases = [
        (vec!["--context", "0"], "0 is not in 1.."),
        (vec!["--sequences", "no"], "invalid digit"),
        (vec!["--adapter", "poet=adapters/poet"], "unexpected argument '--adapter'"),
        (vec!["--discovery-backend", "consul"], "consul"),
        (vec!["--disaggregation-mode", "prefill"], "a disaggregation mode but agg"),
        (vec!["--route-to-encoder"], "an encoder before it"),
    ];
    for (arguments, name) in cases {
        let words = ["girih-dynamo", "model"].into_iter().chain(arguments);
        let error = match WorkerArgs::try_parse_from(words) {
            Err(error) => error.to_string(),
            Ok(args) => match GirihEngine::new(args, OpenOptions::default()) {
                Err(error) => error.to_string(),
                Ok(_) => panic!("{name} was accepted"),
            },
        };
        assert!(error.contains(name), "{name}: {error}");
    }
    drop(engine(&["--discovery-backend", "file", "--event-plane", "zmq"]));
}
