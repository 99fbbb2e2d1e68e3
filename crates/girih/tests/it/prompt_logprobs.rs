//! Log-probabilities of a prompt's tokens, compared with those of the logits after each prefix.

use girih::engine::sample::{Logprobs, logprobs};
use girih::{Event, Request, Result, RunOptions, Session, Stop};

use crate::sessions::session;

const PROMPT: &str = "Once upon a time, there was a little girl named Lily. She loved to play outside.";

/// The tokens of a prompt and their log-probabilities.
type Scored = Vec<(u32, Option<Logprobs>)>;

/// By the definition: the log-softmax of the logits that follow each prefix alone.
fn expected(session: &Session, tokens: &[u32], top: u32) -> Result<Scored> {
    let first = (tokens[0], None);
    let others = (1..tokens.len())
        .map(|at| Ok((tokens[at], Some(logprobs(&session.logits(&tokens[..at])?, tokens[at], top)))));
    std::iter::once(Ok(first)).chain(others).collect()
}

/// The prompt's log-probabilities and the reply.
fn read(session: &Session, request: Request) -> Result<(Scored, Vec<u32>)> {
    let (mut prompt, mut reply) = (Vec::new(), Vec::new());
    for event in session.generate(request)? {
        match event? {
            Event::PromptToken { id, logprobs } => prompt.push((id, logprobs)),
            Event::Token { id, .. } => reply.push(id),
            Event::Finished { stop, .. } => assert_eq!(stop, Stop::Length),
            _ => {}
        }
    }
    Ok((prompt, reply))
}

#[test]
fn a_prompt_has_the_log_probabilities_of_the_model() -> Result<()> {
    let plain = session(RunOptions::default());
    let tokens = plain.model().tokenize(PROMPT)?;
    let expected = expected(&plain, &tokens, 4)?;
    let reply = plain.generate(Request::new(PROMPT).max_tokens(20))?.tokens()?;
    for (sequences, chunk, output_rows) in [(1, 512, 1), (1, 512, 512), (1, 7, 3), (3, 64, 20)] {
        let session = session(RunOptions { sequences, chunk, output_rows, ..RunOptions::default() });
        let neighbours = (1..sequences).map(|_| session.generate(Request::new("One day").max_tokens(60)));
        let neighbours = neighbours.collect::<Result<Vec<_>>>()?;
        for (warm, new) in [(false, 20), (true, 20), (true, 0)] {
            let request = Request::new(PROMPT).prompt_logprobs(4).max_tokens(new);
            let (prompt, ids) = read(&session, request)?;
            let case = format!("{sequences} sequences, {chunk} rows, {output_rows} outputs, warm {warm}");
            assert_eq!(prompt, expected, "{case}");
            assert_eq!(ids, reply[..new as usize], "{case}");
        }
        drop(neighbours);
    }
    Ok(())
}

#[test]
fn a_slow_reader_of_a_prompt_loses_nothing() -> Result<()> {
    let session = session(RunOptions { unread_events: 4, output_rows: 8, ..RunOptions::default() });
    let tokens = session.model().tokenize(PROMPT)?;
    let reply = session.generate(Request::new(PROMPT).prompt_logprobs(0).max_tokens(2))?;
    // The request is suspended after its first step, and another one runs.
    session.generate(Request::new(PROMPT).max_tokens(30))?.tokens()?;
    let expected = expected(&session, &tokens, 0)?;
    let mut prompt = Vec::new();
    for event in reply {
        if let Event::PromptToken { id, logprobs } = event? {
            prompt.push((id, logprobs));
        }
    }
    assert_eq!(prompt, expected);
    Ok(())
}
