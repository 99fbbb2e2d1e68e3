//! What tests of images share: committed models that read images, and replies that must not depend on how they are computed.

use std::path::Path;

use girih::engine::sample::Logprobs;
use girih::{Event, Model, Reply, Request, Result, RunOptions, Session};

/// The tokens of a reply, with their log-probabilities.
pub type Tokens = Vec<(u32, Option<Logprobs>)>;

/// A committed model.
pub fn fixture(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    Model::open(path.to_str().expect("paths of tests are valid")).unwrap()
}

/// A session of a model with images.
pub fn seeing_session(model: &Model, options: RunOptions) -> Session {
    model.plan(RunOptions { images: true, ..options }).unwrap().start(|_| {}).unwrap()
}

/// Reads a reply to its end.
pub fn read(reply: Reply) -> Tokens {
    let tokens = reply.map(|event| match event.unwrap() {
        Event::Token { id, logprobs, .. } => Some((id, logprobs)),
        _ => None,
    });
    tokens.flatten().collect()
}

/// Checks that a reply to a request with two images, by their seeds, is the same in any chunks, beside other requests, with
/// any number of threads and from the cache.
pub fn check_same_bytes(name: &str, tokens: usize, request: impl Fn([u64; 2]) -> Request) -> Result<()> {
    let model = fixture(name);
    let alone = |seeds| {
        let session = seeing_session(&model, RunOptions::default());
        Ok::<_, girih::Error>(read(session.generate(request(seeds))?))
    };
    let (expected, other) = (alone([1, 2])?, alone([2, 1])?);
    assert_eq!(expected.len(), tokens);
    assert_ne!(expected, other, "{name}: the reply depends on the images and their order");
    let format = model.image_format()?;
    for (sequences, chunk, threads) in [(1, 5, 1), (1, 16, 2), (3, 7, 1), (3, 512, 2)] {
        // Rows that attend to each other both ways run in one step.
        let least = if format.mutual { format.rows() as u32 + sequences - 1 } else { 1 };
        let chunk = least.max(chunk);
        let backend = girih::backend("cpu")?.with_threads(Some(threads));
        let session =
            seeing_session(&model, RunOptions { sequences, chunk, backend, ..RunOptions::default() });
        let case = format!("{name}: {sequences} sequences, chunks of {chunk}, {threads} threads");
        for turn in ["first", "from the cache"] {
            let beside = [[2, 1], [1, 3]].map(|seeds| session.generate(request(seeds)));
            let found = read(session.generate(request([1, 2]))?);
            assert_eq!(found, expected, "{case}, {turn}");
            let [beside, _] = beside;
            assert_eq!(read(beside?), other, "{case}, {turn}");
        }
    }
    Ok(())
}
