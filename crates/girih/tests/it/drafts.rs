//! Drafts of a session: prompt lookup and a draft model change no reply.

use std::path::Path;
use std::sync::{Arc, Mutex};

use girih::{
    Constraint, Drafts, ErrorKind, Event, Model, Progress, Request, Result, RunOptions, Sampling, Session,
    Stats, Stop,
};

use crate::sessions::session;

/// A text that the model continues with words of its own and with some of these.
const PROMPT: &str = "Once upon a time, there was a little girl named Lily. She loved to play. \
                      Once upon a time, there was a little boy named Tim. Once upon a time, there";

fn built_in() -> Model {
    Model::open("stories260k").unwrap()
}

fn fixture(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    Model::open(path.to_str().unwrap()).unwrap()
}

fn drafting(drafts: Drafts, sequences: u32) -> Session {
    session(RunOptions { drafts, sequences, ..RunOptions::default() })
}

/// The requests of this number: greedy and sampled ones by turns.
fn request(number: u64) -> Request {
    let sampling = match number % 2 {
        0 => Sampling::greedy(),
        _ => Sampling { temperature: 1.0, seed: number, top_p: 0.95, ..Sampling::default() },
    };
    Request::new(&PROMPT[..PROMPT.len() - 9 * number as usize]).sampling(sampling).max_tokens(90)
}

/// The ids of a reply, and its statistics.
fn read(reply: girih::Reply) -> Result<(Vec<u32>, Stats)> {
    let mut ids = Vec::new();
    for event in reply {
        match event? {
            Event::Token { id, .. } => ids.push(id),
            Event::Finished { stats, .. } => return Ok((ids, stats)),
            _ => {}
        }
    }
    panic!("a reply has an end")
}

#[test]
fn replies_are_equal_with_and_without_drafts_alone_and_together() -> Result<()> {
    let plain = session(RunOptions::default());
    let expected: Vec<Vec<u32>> =
        (0..4).map(|number| plain.generate(request(number))?.tokens()).collect::<Result<_>>()?;
    for drafts in [Drafts::PromptLookup, Drafts::Model(built_in())] {
        for sequences in [1, 4] {
            let session = drafting(drafts.clone(), sequences);
            let replies: Vec<_> =
                (0..4).map(|number| session.generate(request(number))).collect::<Result<_>>()?;
            let (mut drafted, mut accepted) = (0, 0);
            for (reply, expected) in replies.into_iter().zip(&expected) {
                let (ids, stats) = read(reply)?;
                assert_eq!(&ids, expected, "{drafts:?}, {sequences} sequences");
                drafted += stats.drafted;
                accepted += stats.accepted;
            }
            assert!(drafted > 0 && accepted > 0, "{drafts:?}: {accepted} of {drafted}");
            // The same model with the same random numbers chooses the same tokens.
            assert!(matches!(drafts, Drafts::PromptLookup) || accepted == drafted);
        }
    }
    Ok(())
}

#[test]
fn a_request_decides_about_its_drafts() -> Result<()> {
    let session = drafting(Drafts::Model(built_in()), 1);
    let drafted = |request: Request| -> Result<u32> { Ok(read(session.generate(request)?)?.1.drafted) };
    assert_eq!(drafted(request(0).draft_max(0))?, 0);
    assert!(drafted(request(0).draft_max(1))? > 0);
    Ok(())
}

/// Allows odd ids and even ids by turns.
struct Turns(u32);

impl Constraint for Turns {
    fn mask(&mut self, allowed: &mut [bool]) -> Result<()> {
        allowed.iter_mut().skip((self.0 % 2) as usize).step_by(2).for_each(|allowed| *allowed = false);
        Ok(())
    }

    fn accept(&mut self, _: u32) -> Result<()> {
        self.0 += 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.0 == 80
    }
}

#[test]
fn drafts_obey_a_constraint() -> Result<()> {
    let ask = |number| request(number).max_tokens(200).constraint(Box::new(Turns(0)));
    let plain = session(RunOptions::default());
    for drafts in [Drafts::PromptLookup, Drafts::Model(built_in())] {
        let session = drafting(drafts, 2);
        for number in 0..4 {
            let reply = session.generate(ask(number))?;
            let events: Vec<Event> = reply.collect::<Result<_>>()?;
            assert!(matches!(events.last(), Some(Event::Finished { stop: Stop::Complete, .. })));
            let ids = |events: Vec<Event>| {
                let id = |event| if let Event::Token { id, .. } = event { Some(id) } else { None };
                events.into_iter().filter_map(id).collect::<Vec<u32>>()
            };
            let expected = ids(plain.generate(ask(number))?.collect::<Result<_>>()?);
            assert_eq!(ids(events), expected, "request {number}");
        }
    }
    Ok(())
}

#[test]
fn a_plan_has_the_memory_of_the_draft_model_and_rows_for_drafts() -> Result<()> {
    let options = |drafts| RunOptions { drafts, sequences: 3, draft_max: 4, ..RunOptions::default() };
    let plan = |drafts| built_in().plan(options(drafts));
    let (off, lookup, model) =
        (plan(Drafts::Off)?, plan(Drafts::PromptLookup)?, plan(Drafts::Model(built_in()))?);
    assert_eq!((off.key().output_rows, lookup.key().output_rows), (3, 15));
    let weights = |plan: &girih::Plan| plan.memory().host.weights;
    assert_eq!(weights(&off), weights(&lookup));
    assert_eq!(2 * weights(&off), weights(&model));
    assert!(model.memory().host.state == 2 * off.memory().host.state);
    // Progress counts the weights of both.
    let seen = Arc::new(Mutex::new((0, 0)));
    let progress = Arc::clone(&seen);
    let notes = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&notes);
    drop(model.load(move |event| match event {
        Progress::Weights { done, total } => {
            let mut seen = progress.lock().unwrap();
            *seen = (seen.0.max(done), total);
        }
        Progress::Note(note) => told.lock().unwrap().push(note),
        _ => {}
    })?);
    let (done, total) = *seen.lock().unwrap();
    assert!(done >= total && total > 2 * 500_000, "{done} of {total}");
    let notes = notes.lock().unwrap();
    assert!(notes.iter().any(|note| note.contains("100 % of the weights")), "{notes:?}");
    Ok(())
}

#[test]
fn drafts_that_cannot_work_are_refused_by_name() {
    let refused = |model: Model, options: RunOptions| {
        let error = model.plan(options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        error.to_string()
    };
    let with = |drafts| RunOptions { drafts, ..RunOptions::default() };
    let sentence = refused(built_in(), with(Drafts::Model(fixture("qwen3"))));
    assert!(sentence.contains("its vocabulary is not known"), "{sentence}");
    let sentence = refused(built_in(), with(Drafts::Model(fixture("bert"))));
    assert!(sentence.contains("it is an encoder"), "{sentence}");
    let sentence = refused(fixture("bert"), with(Drafts::PromptLookup));
    assert!(sentence.contains("an encoder generates no text"), "{sentence}");
    let sentence = refused(built_in(), RunOptions { chunk: 1, ..with(Drafts::PromptLookup) });
    assert!(sentence.contains("raise the chunk"), "{sentence}");
    let sentence = refused(built_in(), RunOptions { draft_max: 0, ..with(Drafts::PromptLookup) });
    assert!(sentence.contains("0 drafted tokens"), "{sentence}");
}
