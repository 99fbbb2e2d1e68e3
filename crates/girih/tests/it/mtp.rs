//! Drafts of a model's own layer for multi-token prediction, and of an assistant, change no reply.

use std::path::Path;
use std::sync::{Arc, Mutex};

use girih::engine::{EventKind, Hooks, TokenRequest};
use girih::{Drafts, Engine, ErrorKind, Model, Progress, RunOptions, Sampling, backend, backends};
use girih_tensor::Random;

fn fixture(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    Model::open(path.to_str().unwrap()).unwrap()
}

fn engine(model: &str, drafts: Drafts, threads: usize, sequences: u32, chunk: u32) -> Engine {
    let backend = backend(backends()[0].name).unwrap().with_threads(Some(threads));
    let options = RunOptions {
        backend,
        drafts,
        sequences,
        chunk,
        context: Some(256),
        draft_max: 6,
        ..RunOptions::default()
    };
    fixture(model).plan(options).unwrap().load(|_| {}).unwrap()
}

/// A request whose next token is nearly always one of `choices`, so that random weights often agree with random
/// weights.
fn request(number: u64, choices: u32) -> TokenRequest {
    let mut random = Random(number);
    let tokens = (0..20 + 17 * number).map(|_| random.below(96) as u32).collect();
    let bias = (0..choices).map(|choice| (7 + 31 * choice, 60.0)).collect();
    let temperature = if number.is_multiple_of(2) { 0.0 } else { 1.0 };
    let sampling = Sampling { bias, temperature, seed: number, ..Sampling::greedy() };
    TokenRequest { tokens, sampling, max_new: Some(80), logprobs: Some(0), ..TokenRequest::default() }
}

/// The ids of a reply, each with the bits of its log-probability.
type Bits = Vec<(u32, u64)>;

/// The replies to requests that run together, and the numbers of drafted and of accepted tokens.
fn replies(engine: &mut Engine, requests: &[TokenRequest]) -> (Vec<Bits>, [u32; 2]) {
    let submit = |ask: &TokenRequest| engine.submit(ask.clone(), Hooks::default()).unwrap();
    let ids: Vec<_> = requests.iter().map(submit).collect();
    let (mut replies, mut counts) = (vec![Bits::new(); requests.len()], [0, 0]);
    while !engine.is_idle() {
        for event in engine.step() {
            let reply = &mut replies[ids.iter().position(|id| *id == event.request).unwrap()];
            match &event.kind {
                EventKind::Token { id, logprobs, .. } => {
                    reply.push((*id, logprobs.as_ref().unwrap().chosen.value.to_bits()));
                }
                EventKind::Finished { stats, .. } => {
                    counts[0] += stats.drafted;
                    counts[1] += stats.accepted;
                }
                EventKind::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
    (replies, counts)
}

#[test]
fn replies_have_the_same_bits_whatever_drafts_and_beside_whom() {
    check_replies("qwen3_5_mtp", &Drafts::Mtp);
}

#[test]
fn replies_have_the_same_bits_with_an_assistant() {
    check_replies("gemma4", &Drafts::Model(fixture("gemma4_assistant")));
}

#[test]
fn an_assistant_drafts_only_for_its_model() {
    let refused = |model: &Model, drafts| {
        let error = model.plan(RunOptions { drafts, ..RunOptions::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        error.to_string()
    };
    let assistant = || Drafts::Model(fixture("gemma4_assistant"));
    let sentence = refused(&fixture("gemma4_assistant"), Drafts::Off);
    assert!(sentence.contains("only drafts for another one; give it with --draft"), "{sentence}");
    let sentence = refused(&fixture("qwen3"), assistant());
    assert!(sentence.contains("the assistant is of a model with a"), "{sentence}");
}

/// Compares replies with and without drafts.
fn check_replies(model: &str, drafts: &Drafts) {
    let requests: Vec<TokenRequest> = (0..6).map(|number| request(number, 1 + number as u32 % 3)).collect();
    let mut plain = engine(model, Drafts::Off, 1, 1, 256);
    let expected: Vec<Bits> =
        requests.iter().flat_map(|ask| replies(&mut plain, std::slice::from_ref(ask)).0).collect();
    // How many tokens are drafted depends on measured times.
    let (mut drafted, mut accepted) = (0, 0);
    for (threads, sequences, chunk) in [(1, 1, 256), (2, 1, 9), (2, 3, 256), (1, 6, 31)] {
        let mut drafting = engine(model, drafts.clone(), threads, sequences, chunk);
        // The second time, the prefix cache has most of the prompts.
        for round in 0..2 {
            let (got, counts) = replies(&mut drafting, &requests);
            let what = format!("{threads} threads, {sequences} sequences, chunks of {chunk}, round {round}");
            assert!(got == expected, "{what}");
            drafted += counts[0];
            accepted += counts[1];
        }
    }
    assert!(0 < accepted && accepted < drafted, "{accepted} of {drafted}");
}

#[test]
fn a_plan_counts_the_layer_and_loading_tells_the_times_of_steps() {
    let plan = |drafts| fixture("qwen3_5_mtp").plan(RunOptions { drafts, ..RunOptions::default() }).unwrap();
    let (off, mtp) = (plan(Drafts::Off), plan(Drafts::Mtp));
    assert!(mtp.memory().host.weights > off.memory().host.weights);
    assert!(mtp.memory().host.state > off.memory().host.state);
    assert!(mtp.refusals().is_empty());
    let details = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&details);
    drop(mtp.load(move |progress| {
        if let Progress::Detail(sentence) = progress {
            told.lock().unwrap().push(sentence);
        }
    }));
    let details = details.lock().unwrap();
    assert_eq!(details.len(), 1);
    assert!(details[0].starts_with("a step of one row takes "), "{details:?}");
}

#[test]
fn models_without_such_a_layer_are_refused_by_name() {
    let refused = |name: &str| {
        let error =
            fixture(name).plan(RunOptions { drafts: Drafts::Mtp, ..RunOptions::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        error.to_string()
    };
    let sentence = refused("qwen3");
    assert!(sentence.contains("architecture qwen3 has no layer that predicts further tokens"), "{sentence}");
    let sentence = refused("qwen3_5");
    assert!(sentence.contains("no tensor's name begins with 'mtp.layers.0.'"), "{sentence}");
    let sentence = refused("gguf/qwen2.gguf");
    assert!(sentence.contains("architecture qwen2 has no layer"), "{sentence}");
}
