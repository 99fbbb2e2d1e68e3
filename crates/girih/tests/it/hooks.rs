//! Hooks of requests: a constraint or a drafter affects its own request only.

use girih::{
    Constraint, DraftQuery, Drafter, Error, ErrorKind, Event, Model, Request, Result, RunOptions, Sampling,
    Stats, Stop,
};

use crate::sessions::{session, stop};

const PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

/// Allows these tokens only; complete after some tokens.
struct Only {
    allowed: Vec<u32>,
    left: u32,
}

impl Constraint for Only {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        for (id, allowed) in (0..).zip(allowed) {
            *allowed = self.allowed.contains(&id);
        }
        Ok(())
    }

    fn accept(&mut self, id: u32) -> Result<()> {
        assert!(self.allowed.contains(&id), "{id} was ruled out");
        self.left -= 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.left == 0
    }
}

/// Fails when it is asked.
struct Failing;

impl Constraint for Failing {
    fn mask(&mut self, _: &mut [bool]) -> Result<()> {
        Err(Error::new("the grammar has no next state"))
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        Ok(())
    }

    fn is_complete(&self) -> bool {
        false
    }
}

fn stats(events: impl Iterator<Item = Result<Event>>) -> Result<Stats> {
    match events.last().expect("a reply has events")? {
        Event::Finished { stats, .. } => Ok(stats),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mask_that_rules_out_every_token_ends_its_own_request_only() -> Result<()> {
    let session = session(RunOptions { sequences: 2, ..RunOptions::default() });
    let beside = session.generate(Request::new("Lily").max_tokens(100))?;
    let none = Only { allowed: Vec::new(), left: 5 };
    let failed = session.generate(Request::new(PROMPT).constraint(Box::new(none)))?.text().unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::Refused, "{failed}");
    let failed = session.generate(Request::new(PROMPT).constraint(Box::new(Failing)))?.text().unwrap_err();
    assert_eq!(failed.to_string(), "the grammar has no next state");
    assert_eq!(beside.tokens()?.len(), 100);
    // The prompt of the failed requests is still cached, except for its last token.
    let prompt = session.model().tokenize(PROMPT)?.len() as u32;
    let stats = stats(session.generate(Request::new(PROMPT).max_tokens(3))?)?;
    assert_eq!(stats.cached, prompt - 1);
    Ok(())
}

#[test]
fn a_constraint_decides_the_tokens_and_the_end() -> Result<()> {
    let session = session(RunOptions::default());
    let request = |left| {
        let only = Only { allowed: vec![403, 407], left };
        let sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        Request::new("Once").sampling(sampling).max_tokens(20).logprobs(2).constraint(Box::new(only))
    };
    assert_eq!(stop(session.generate(request(7))?), Stop::Complete);
    assert_eq!(stop(session.generate(request(70))?), Stop::Length);
    let ids = session.generate(request(7))?.tokens()?;
    assert!(ids.len() == 7 && ids.iter().all(|id| [403, 407].contains(id)), "{ids:?}");
    Ok(())
}

/// Drafts the tokens that really follow, or wrong ones in between.
struct Known {
    text: Vec<u32>,
    /// Every such token is wrong.
    wrong_every: usize,
}

impl Drafter for Known {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        let rest = self.text.iter().enumerate().skip(tokens.len()).take(max as usize);
        rest.map(|(at, id)| if at % self.wrong_every == 0 { (id + 1) % 512 } else { *id }).collect()
    }
}

#[test]
fn drafts_do_not_change_a_reply() -> Result<()> {
    let session = session(RunOptions { sequences: 2, output_rows: 8, ..RunOptions::default() });
    let prompt = Model::open("stories260k")?.tokenize(PROMPT)?;
    for temperature in [0.0, 1.0] {
        let sampling = Sampling { temperature, seed: 3, ..Sampling::default() };
        let request = || Request::new(PROMPT).sampling(sampling.clone()).max_tokens(120);
        let plain = session.generate(request())?.tokens()?;
        for wrong_every in [1, 2, 5, 1000] {
            let text: Vec<u32> = prompt.iter().chain(&plain).copied().collect();
            let beside = session.generate(Request::new("Lily").max_tokens(50))?;
            let drafted = || request().drafter(Box::new(Known { text: text.clone(), wrong_every }));
            assert_eq!(session.generate(drafted())?.tokens()?, plain, "every {wrong_every}");
            assert_eq!(beside.tokens()?.len(), 50);
            let stats = stats(session.generate(drafted())?)?;
            assert!(stats.drafted > 0 && stats.accepted <= stats.drafted, "{stats:?}");
            assert_eq!(stats.accepted == 0, wrong_every == 1, "{stats:?}");
        }
    }
    Ok(())
}
