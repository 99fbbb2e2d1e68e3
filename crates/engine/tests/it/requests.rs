//! The limits of a request, and the message of each refusal.

use girih_engine::{EngineLimits, ErrorKind, Hooks, Sampling, Stops, TokenRequest};

use crate::oracle::{Pieces, VOCABULARY, engine, prompt, reply, request};

fn refusal(request: &TokenRequest) -> String {
    let limits = EngineLimits::new(512, 64);
    let error = request.check(&limits, VOCABULARY).expect_err("a refusal");
    let is_long = error.to_string().contains("the context is");
    assert_eq!(error.kind(), if is_long { ErrorKind::TooLong } else { ErrorKind::Refused });
    error.to_string()
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_with_the_numbers() {
    assert_eq!(
        refusal(&request(&prompt(1, 600), 100)),
        "the prompt has 600 tokens and 100 more were requested; the context is 512: \
         shorten the prompt or request fewer tokens, by 188 in all"
    );
    let open = TokenRequest { max_new: None, ..request(&prompt(1, 512), 1) };
    assert!(refusal(&open).contains("512 tokens and at least 1 more is requested"), "{}", refusal(&open));
    let exact = request(&prompt(1, 500), 12);
    assert_eq!(exact.check(&EngineLimits::new(512, 64), VOCABULARY), Ok(()));
    assert!(refusal(&request(&prompt(1, 500), 13)).ends_with("by 1 in all"));
    assert!(refusal(&request(&prompt(1, 500), u32::MAX)).contains("4294967295 more"));
}

#[test]
fn a_request_that_fills_the_context_runs() {
    let (mut engine, _) = engine(64);
    assert_eq!(reply(&mut engine, request(&prompt(1, 300), 20)).ids.len(), 20);
}

#[test]
fn requests_out_of_range_are_refused_by_name() {
    let good = request(&[1, 2], 4);
    let sampled = |sampling| TokenRequest { sampling, ..good.clone() };
    let stopped = |stops| TokenRequest { stops, ..good.clone() };
    let none = Sampling::default;
    let cases = [
        (request(&[], 4), "the prompt has no tokens"),
        (
            TokenRequest { replied: 3, ..good.clone() },
            "3 tokens of the prompt are marked as reply, but it has 2",
        ),
        (request(&[1], 0), "0 new tokens were requested"),
        (request(&[1, 40], 4), "token 40 in the prompt is outside the vocabulary of 40"),
        (stopped(Stops { tokens: vec![u32::MAX], strings: vec![] }), "in the list of stop tokens"),
        (stopped(Stops { tokens: vec![1; 65], strings: vec![] }), "65 stop tokens; at most 64"),
        (stopped(Stops { tokens: vec![], strings: vec!["x".into(); 17] }), "17 stop strings; at most 16"),
        (stopped(Stops { tokens: vec![], strings: vec!["x".repeat(257)] }), "257 bytes in a stop string"),
        (stopped(Stops { tokens: vec![], strings: vec![String::new()] }), "a stop string is empty"),
        (TokenRequest { logprobs: Some(1_000_000_000), ..good.clone() }, "at most 20 are allowed"),
        (sampled(Sampling { bias: vec![(1, 0.5); 1089], ..none() }), "1089 biased tokens"),
        (sampled(Sampling { bias: vec![(40, 0.5)], ..none() }), "token 40 in the logit bias"),
        (sampled(Sampling { bias: vec![(4, f32::NAN)], ..none() }), "the bias of token 4 is NaN"),
        (sampled(Sampling { temperature: f32::NAN, ..none() }), "temperature is NaN; it must be 0 or above"),
        (sampled(Sampling { temperature: -0.1, ..none() }), "temperature is -0.1"),
        (sampled(Sampling { temperature: f32::INFINITY, ..none() }), "temperature is inf"),
        (sampled(Sampling { top_p: 0.0, ..none() }), "top_p is 0; it must be above 0 and at most 1"),
        (sampled(Sampling { top_p: 1.1, ..none() }), "top_p is 1.1"),
        (sampled(Sampling { top_p: f32::NAN, ..none() }), "top_p is NaN"),
        (sampled(Sampling { min_p: -0.1, ..none() }), "min_p is -0.1"),
        (sampled(Sampling { min_p: 1.5, ..none() }), "min_p is 1.5"),
        (sampled(Sampling { repetition_penalty: 0.0, ..none() }), "repetition_penalty is 0"),
        (sampled(Sampling { presence_penalty: f32::NAN, ..none() }), "presence_penalty is NaN"),
        (sampled(Sampling { frequency_penalty: f32::INFINITY, ..none() }), "frequency_penalty is inf"),
    ];
    for (request, part) in cases {
        let error = refusal(&request);
        assert!(error.contains(part), "{error:?} lacks {part:?}");
    }
}

#[test]
fn stop_strings_need_a_detokenizer() {
    let (mut engine, _) = engine(64);
    let stops = Stops { tokens: vec![], strings: vec!["x".into()] };
    let request = TokenRequest { stops, ..request(&[1], 4) };
    assert!(engine.submit(request.clone(), Hooks::default()).is_err());
    assert!(engine.submit(request, Pieces::hooks()).is_ok());
}
