//! What a server needs: an engine that moves between threads, a bounded queue, requests
//! that pause, and logits beside replies.

use std::time::Duration;

use girih_engine::{
    Engine, EngineLimits, ErrorKind, EventKind, Hooks, LEAST_PROMPT_ROWS, Overflow, Priority, RequestId,
    Sampling, Tenant, TimeLimits, TokenRequest,
};
use girih_engine::{RequestEvent, Stop};
use girih_graph::Key;
use girih_graph::backend::Unwatched;

use crate::oracle::{
    self, BLOCKS, CONTEXT, Oracle, Pieces, Reply, Trouble, Watched, batched, engine, finish,
};
use crate::oracle::{key, narrow, prompt, reply, request};

#[test]
fn an_engine_and_its_requests_move_between_threads() {
    fn send<T: Send + 'static>(_: &T) {}
    let (mut engine, _) = engine(64);
    send(&engine);
    send(&Hooks::default());
    let tokens = prompt(1, 60);
    let id = engine.submit(request(&tokens, 20), Pieces::hooks()).unwrap();
    engine.step();
    let worker = std::thread::spawn(move || finish(&mut engine, id).stop);
    assert_eq!(worker.join().unwrap(), Some(Stop::Length));
}

#[test]
fn a_full_queue_refuses_a_request_at_once() {
    let runner = Box::new(Oracle::new(key(), &BLOCKS, &Watched::default()));
    let limits = EngineLimits { waiting: 2, ..EngineLimits::new(CONTEXT, 64) };
    let mut engine = Engine::new(runner, limits).unwrap();
    let submit = |engine: &mut Engine| engine.submit(request(&prompt(2, 30), 5), Hooks::default());
    let active = submit(&mut engine).unwrap();
    engine.step();
    assert_eq!((engine.active(), engine.waiting()), (1, 0), "an active request does not count");
    let waiting = submit(&mut engine).unwrap();
    submit(&mut engine).unwrap();
    let error = submit(&mut engine).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert_eq!(error.to_string(), "the queue is full: 2 requests wait; try again later");
    // What the request itself gets wrong is said first.
    assert_eq!(engine.submit(request(&[], 5), Hooks::default()).unwrap_err().kind(), ErrorKind::Refused);
    assert!(engine.suspend(waiting), "a suspended request does not count");
    submit(&mut engine).unwrap();
    assert_eq!(finish(&mut engine, active).stop, Some(Stop::Length));
    let none = Box::new(Oracle::new(key(), &BLOCKS, &Watched::default()));
    let error = Engine::new(none, EngineLimits { waiting: 0, ..limits }).err().unwrap();
    assert!(error.to_string().contains("0 waiting requests"), "{error}");
}

/// With no time for prompts beside replies, a prompt advances by the least number of rows in each step, and each step
/// decodes a token of the reply. Both replies are those of other chunks.
#[test]
fn prompts_beside_replies_keep_to_the_time_of_a_step() {
    let blocks = [2 * BLOCKS[0]; 2];
    for (step_time, steps) in [(None, 3), (Some(Duration::ZERO), 200_u32.div_ceil(LEAST_PROMPT_ROWS))] {
        let runner = Box::new(Oracle::new(Key { sequences: 2, ..key() }, &blocks, &Watched::default()));
        let limits = EngineLimits { sequences: 2, step_time, ..EngineLimits::new(CONTEXT, 100) };
        let mut engine = Engine::new(runner, limits).unwrap();
        // Its two prefill steps are those that are timed; the first one does not count.
        let first = engine.submit(request(&prompt(30, 150), 100), Pieces::hooks()).unwrap();
        let mut replies = [Reply::default(), Reply::default()];
        let mut step = |engine: &mut Engine| {
            for event in engine.step() {
                replies[usize::from(event.request != first)].take(event.clone());
            }
            replies.each_ref().map(|reply| reply.ids.len())
        };
        while step(&mut engine)[0] == 0 {}
        engine.submit(request(&prompt(31, 200), 50), Pieces::hooks()).unwrap();
        let mut counts: Vec<[usize; 2]> = Vec::new();
        while counts.last().is_none_or(|[_, second]| *second == 0) {
            counts.push(step(&mut engine));
        }
        assert_eq!(counts.len(), steps as usize, "{step_time:?}");
        assert!(counts.iter().map(|[first, _]| *first).eq(2..2 + counts.len()), "{counts:?}");
        while !engine.is_idle() {
            step(&mut engine);
        }
        assert_eq!(replies[0].ids, oracle::greedy(&prompt(30, 150), 100));
        assert_eq!(replies[1].ids, oracle::greedy(&prompt(31, 200), 50));
    }
}

/// The ids and texts of the events of some requests, in order.
fn tokens_of(events: &[RequestEvent], requests: &[RequestId]) -> Vec<(RequestId, Option<u32>, String)> {
    let of = |event: &RequestEvent| match &event.kind {
        EventKind::Token { id, text, .. } => (event.request, Some(*id), text.clone()),
        EventKind::Finished { text, .. } => (event.request, None, text.clone()),
        _ => (event.request, None, String::new()),
    };
    events.iter().filter(|event| requests.contains(&event.request)).map(of).collect()
}

#[test]
fn a_suspended_request_delays_nobody_and_continues_where_it_was() {
    for (blocks, pauses) in [([30, 30], 40), ([9, 12], 7), ([30, 30], 0)] {
        let prompts = [prompt(3, 40), prompt(4, 80), prompt(5, 60)];
        let sampling = |seed| Sampling { seed, top_k: 20, ..Sampling::default() };
        let ask =
            |index: usize| TokenRequest { sampling: sampling(index as u64), ..request(&prompts[index], 50) };
        let alone: Vec<Reply> = (0..3).map(|index| reply(&mut engine(64).0, ask(index))).collect();
        // The neighbours' events, with the reader beside them from the start, and without.
        let neighbours = |with_reader: bool| {
            let (mut engine, _) = narrow(3, 200, &blocks);
            let ids = [1, 2].map(|index| engine.submit(ask(index), Pieces::hooks()).unwrap());
            let reader = with_reader.then(|| engine.submit(ask(0), Pieces::hooks()).unwrap());
            let (mut steps, mut mine) = (Vec::new(), Reply::default());
            for step in 0.. {
                if let Some(id) = reader {
                    assert!(step != 5 || engine.suspend(id) && !engine.suspend(id));
                    assert!(step != 5 + pauses || engine.resume(id) && !engine.resume(id));
                }
                if engine.is_idle() && step > 5 + pauses {
                    break;
                }
                let events = engine.step();
                let own = events.iter().filter(|event| Some(event.request) == reader);
                own.for_each(|event| mine.take(event.clone()));
                steps.push(tokens_of(events, &ids));
            }
            steps.truncate(5 + pauses);
            (steps, mine)
        };
        let ((with, mine), (without, _)) = (neighbours(true), neighbours(false));
        if blocks[0] == 30 {
            assert_eq!(with, without, "the same events in the same steps");
        }
        assert_eq!((&mine.ids, &mine.text, &mine.stop), (&alone[0].ids, &alone[0].text, &alone[0].stop));
        assert_eq!(mine.stats.unwrap().decode.tokens, 49, "each token counts once");
    }
}

#[test]
fn an_engine_with_only_suspended_requests_is_idle() {
    let (mut engine, _) = batched(2, 64);
    let ids = [6, 7].map(|number| engine.submit(request(&prompt(number, 30), 20), Pieces::hooks()).unwrap());
    engine.step();
    assert!(ids.iter().all(|id| engine.suspend(*id)));
    assert!(engine.is_idle() && engine.step().is_empty());
    assert_eq!(engine.active(), 0);
    // Its place is free for others.
    assert_eq!(reply(&mut engine, request(&prompt(8, 30), 5)).stop, Some(Stop::Length));
    assert!(engine.cancel(ids[0]) && !engine.resume(ids[0]) && !engine.is_idle());
    assert_eq!(finish(&mut engine, ids[0]).stop, Some(Stop::Cancelled));
    assert!(engine.resume(ids[1]));
    let mut rest = Reply::default();
    while !engine.is_idle() {
        engine.step().iter().for_each(|event| rest.take(event.clone()));
    }
    assert_eq!(rest.ids, oracle::greedy(&prompt(7, 30), 20)[1..], "the first token came before");
    assert!(!engine.suspend(ids[1]) && !engine.resume(ids[1]), "it has ended");
}

#[test]
fn a_resumed_request_is_admitted_before_younger_ones() {
    // The blocks suffice for one of these requests.
    let (mut engine, _) = narrow(2, 64, &[8, 12]);
    let ask = |number: u64| request(&prompt(number, 100), 200);
    let old = engine.submit(ask(20), Pieces::hooks()).unwrap();
    engine.step();
    assert!(engine.suspend(old));
    let young = [21, 22].map(|number| engine.submit(ask(number), Pieces::hooks()).unwrap());
    engine.step();
    assert!(engine.resume(old));
    let mut replies = [Reply::default(), Reply::default(), Reply::default()];
    let mut ends = Vec::new();
    while !engine.is_idle() {
        for event in engine.step() {
            let index = [old, young[0], young[1]].iter().position(|id| *id == event.request).unwrap();
            replies[index].take(event.clone());
            if matches!(event.kind, EventKind::Finished { .. }) {
                ends.push(index);
            }
        }
    }
    assert_eq!(replies[1].ids, oracle::greedy(&prompt(21, 100), 200));
    assert_eq!(replies[2].ids, oracle::greedy(&prompt(22, 100), 200));
    assert_eq!(replies[0].ids, oracle::greedy(&prompt(20, 100), 200));
    assert_eq!(ends, [1, 0, 2], "the one that runs is not preempted");
}

#[test]
fn a_request_for_logits_runs_beside_others() {
    let texts = [prompt(30, 150), prompt(31, 1), prompt(32, CONTEXT as usize)];
    let (mut engine, _) = narrow(4, 64, &[40, 40]);
    let replying = engine.submit(request(&prompt(33, 50), 60), Pieces::hooks()).unwrap();
    let ask = |tokens: &[u32]| TokenRequest { logits: true, max_new: None, ..request(tokens, 1) };
    let ids = texts.each_ref().map(|tokens| engine.submit(ask(tokens), Hooks::default()).unwrap());
    let mut replies: [Reply; 4] = Default::default();
    while !engine.is_idle() {
        engine.step().iter().for_each(|event| replies[event.request.0 as usize].take(event.clone()));
    }
    assert_eq!(replies[replying.0 as usize].ids, oracle::greedy(&prompt(33, 50), 60));
    for (id, tokens) in ids.iter().zip(&texts) {
        let Reply { ids, logits, stop, stats, .. } = &replies[id.0 as usize];
        assert_eq!((ids.len(), stop), (0, &Some(Stop::Length)));
        assert_eq!(stats.unwrap().prefill.tokens as usize, tokens.len());
        let alone = oracle::engine(64).0.last_logits(tokens, &mut Unwatched).unwrap();
        assert_eq!(logits.as_ref(), Some(&alone));
    }
}

#[test]
fn a_request_for_logits_is_refused_truncated_or_fails() {
    let (mut engine, watched) = engine(64);
    let long = TokenRequest { logits: true, ..request(&prompt(40, CONTEXT as usize + 9), 1) };
    let error = engine.submit(long.clone(), Hooks::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLong);
    assert!(error.to_string().ends_with("request fewer tokens, by 9 in all"), "{error}");
    let cut = reply(&mut engine, TokenRequest { overflow: Overflow::Truncate, ..long.clone() });
    let kept = [&long.tokens[..1], &long.tokens[long.tokens.len() - (CONTEXT as usize / 2 - 1)..]].concat();
    assert_eq!(cut.logits, Some(oracle::logits(&kept)));
    watched.trouble.set(Some(Trouble::NaN(29)));
    let failed = reply(&mut engine, TokenRequest { logits: true, ..request(&prompt(41, 30), 1) });
    assert_eq!((failed.failure.unwrap().kind(), failed.logits), (ErrorKind::NotANumber, None));
}

#[test]
fn requests_end_at_their_time_limits() {
    let (mut engine, watched) = narrow(2, 16, &[12, 12]);
    let seconds = Duration::from_secs;
    let limited = |number: u64, length: usize, first: Option<u64>, whole: Option<u64>| TokenRequest {
        time_limits: TimeLimits { queue: None, first_token: first.map(seconds), whole: whole.map(seconds) },
        ..request(&prompt(number, length), 50)
    };
    let submit = |engine: &mut Engine, ask| engine.submit_at(ask, Pieces::hooks(), seconds(10)).unwrap();
    // One that replies in time, one whose prompt takes too long, and one that waits.
    let replies = submit(&mut engine, limited(50, 10, Some(3), Some(9)));
    let reads = submit(&mut engine, limited(51, 200, Some(5), None));
    let waits = submit(&mut engine, limited(52, 10, None, Some(4)));
    let sleeps = submit(&mut engine, limited(53, 10, Some(6), None));
    assert!(engine.suspend(sleeps));
    let mut ends = Vec::new();
    let mut whole = Reply::default();
    for now in 10..30 {
        for event in engine.step_at(seconds(now)) {
            if event.request == replies {
                whole.take(event.clone());
            }
            match &event.kind {
                EventKind::Finished { stop, .. } => ends.push((event.request, now, stop.clone())),
                _ => assert_eq!(event.request, replies, "the others say nothing"),
            }
        }
    }
    let at = [(waits, 14), (reads, 15), (sleeps, 16), (replies, 19)];
    assert_eq!(ends, at.map(|(id, now)| (id, now, Stop::Deadline)));
    assert_eq!(whole.ids, oracle::greedy(&prompt(50, 10), 9), "the tokens that were chosen in time");
    assert!(watched.rows.get() < 200, "the long prompt was not run to its end");
    assert!(engine.is_idle() && engine.until_deadline().is_none());
    engine.forget().unwrap();
    assert_eq!(engine.cache().free(), [12, 12]);
    let late = limited(54, 10, None, Some(0));
    let id = engine.submit_at(late, Pieces::hooks(), seconds(40)).unwrap();
    assert!(matches!(engine.step_at(seconds(40)), [event] if event.request == id));
}

#[test]
fn a_request_that_is_not_admitted_in_time_fails() {
    let (mut engine, _) = narrow(1, 64, &[12, 12]);
    let seconds = Duration::from_secs;
    let mut submit = |number: u64, queue: u64| {
        let time_limits = TimeLimits { queue: Some(seconds(queue)), ..TimeLimits::default() };
        let ask = TokenRequest { time_limits, ..request(&prompt(number, 10), 6) };
        engine.submit_at(ask, Pieces::hooks(), seconds(10)).unwrap()
    };
    let (runs, waits, next) = (submit(55, 1), submit(56, 3), submit(57, 60));
    let mut replies: [Reply; 3] = Default::default();
    for now in 10..30 {
        for event in engine.step_at(seconds(now)) {
            if event.request == waits {
                assert_eq!(now, 13);
            }
            replies[event.request.0 as usize].take(event.clone());
        }
    }
    let [first, late, last] = replies;
    assert_eq!((runs.0, next.0, first.stop, last.stop), (0, 2, Some(Stop::Length), Some(Stop::Length)));
    let error = late.failure.unwrap();
    assert_eq!(error.kind(), ErrorKind::WaitTooLong);
    assert!(error.to_string().starts_with("the request has waited 3 s for its turn"), "{error}");
    assert!(engine.is_idle() && engine.until_deadline().is_none());
}

#[test]
fn a_cancelled_prompt_ends_between_its_chunks() {
    let (mut engine, watched) = narrow(2, 16, &[12, 12]);
    let id = engine.submit(request(&prompt(60, 200), 5), Pieces::hooks()).unwrap();
    for _ in 0..3 {
        assert!(engine.step().is_empty());
    }
    assert_eq!((watched.rows.get(), engine.cancel(id)), (48, true));
    assert_eq!(finish(&mut engine, id).stop, Some(Stop::Cancelled));
    assert_eq!(watched.rows.get(), 48);
    // What was run stays in the prefix cache.
    assert_eq!(reply(&mut engine, request(&prompt(60, 200), 5)).stats.unwrap().cached, 48);
}

#[test]
fn tenants_and_priorities_decide_who_is_next() {
    let (mut engine, _) = narrow(1, 64, &[12, 12]);
    let mut submit = |number: u64, tenant: &str, priority| {
        let ask = request(&prompt(number, 40), 10);
        let tenant = Tenant::new(tenant);
        engine.submit(TokenRequest { tenant, priority, ..ask }, Hooks::default()).unwrap();
    };
    (0..4).for_each(|number| submit(number, "flood", Priority::Normal));
    (4..6).for_each(|number| submit(number, "other", Priority::Normal));
    submit(6, "flood", Priority::Low);
    submit(7, "flood", Priority::High);
    let mut ends = Vec::new();
    while !engine.is_idle() {
        let last = |event: &&RequestEvent| matches!(event.kind, EventKind::Finished { .. });
        ends.extend(engine.step().iter().filter(last).map(|event| event.request.0));
    }
    assert_eq!(ends, [7, 0, 4, 1, 5, 2, 3, 6]);
}
