//! Many handles and readers share one engine, and none of them waits for another.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use girih::{
    CancelHandle, Engine, ErrorKind, Event, Model, Overflow, Plan, Reply, Request, Result, RunOptions,
    Sampling, Session, Stop, Tenant, TimeLimits,
};

const PROMPT: &str = "Once upon a time";

/// A session of the built-in model with these options.
pub fn session(options: RunOptions) -> Session {
    Model::open("stories260k").unwrap().plan(options).unwrap().start(|_| {}).unwrap()
}

/// How a reply ended.
pub fn stop(reply: Reply) -> Stop {
    match reply.last() {
        Some(Ok(Event::Finished { stop, .. })) => stop,
        other => panic!("{other:?}"),
    }
}

#[test]
fn handles_are_shared_by_threads_and_engines_move_between_them() {
    fn is_shared<T: Clone + Send + Sync + 'static>() {}
    fn is_sent<T: Send + 'static>() {}
    is_shared::<Model>();
    is_shared::<Session>();
    is_shared::<CancelHandle>();
    is_sent::<Reply>();
    is_sent::<Request>();
    is_sent::<Plan>();
    is_sent::<Engine>();
}

#[test]
fn threads_that_share_a_session_get_the_replies_that_they_get_alone() -> Result<()> {
    let prompts = ["Once upon a time", "Lily", "The dog", "One day", "Tom and Sam", "A big red ball"];
    let request = |prompt: &str, seed| {
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        Request::new(prompt).sampling(sampling).max_tokens(60)
    };
    let alone = session(RunOptions::default());
    let expected: Vec<Vec<u32>> = (0..)
        .zip(prompts)
        .map(|(seed, prompt)| alone.generate(request(prompt, seed))?.tokens())
        .collect::<Result<_>>()?;
    let shared = session(RunOptions { sequences: 4, ..RunOptions::default() });
    let replies: Vec<Vec<u32>> = thread::scope(|scope| {
        let ask = |(seed, prompt)| {
            let shared = shared.clone();
            scope.spawn(move || shared.generate(request(prompt, seed))?.tokens())
        };
        let readers: Vec<_> = (0..).zip(prompts).map(ask).collect();
        readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Result<_>>()
    })?;
    assert_eq!(replies, expected);
    Ok(())
}

#[test]
fn a_full_queue_refuses_at_once_and_has_room_when_a_request_ends() -> Result<()> {
    let session = session(RunOptions { waiting: 1, unread_events: 4, ..RunOptions::default() });
    // Both are suspended, as nobody reads them, so neither ends.
    let long = || session.generate(Request::new(PROMPT).max_tokens(400));
    let (first, second) = (long()?, long()?);
    let error = long().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert!(error.to_string().starts_with("2 requests run or wait"), "{error}");
    assert_eq!(first.tokens()?.len(), 400);
    assert_eq!(long()?.tokens()?.len(), 400, "the place of the first is free");
    drop(second);
    Ok(())
}

/// The reader takes 20 ms for each event, and the engine waits for it; the tokens themselves take less.
#[test]
fn a_slow_reader_makes_no_token_slower() -> Result<()> {
    let session = session(RunOptions { unread_events: 2, ..RunOptions::default() });
    let (begun, mut ended) = (Instant::now(), None);
    for event in session.generate(Request::new(PROMPT).max_tokens(30))? {
        thread::sleep(Duration::from_millis(20));
        if let Event::Finished { stats, latencies, .. } = event? {
            ended = Some((stats, latencies.summary().expect("there are tokens after the first one")));
        }
    }
    let (read, (stats, latency)) = (begun.elapsed(), ended.expect("the reply ends"));
    assert!(read >= Duration::from_millis(600) && stats.decode.time < read / 2, "{read:?} {stats:?}");
    assert_eq!(latency.samples, 29);
    assert!(latency.p50 < Duration::from_millis(20) && latency.max <= stats.decode.time, "{latency:?}");
    Ok(())
}

#[test]
fn a_reader_that_never_reads_delays_nobody() -> Result<()> {
    let expected = session(RunOptions::default()).generate(Request::new(PROMPT).max_tokens(400))?.tokens()?;
    // One sequence at a time: a request that is suspended in its place would block all others.
    let session = session(RunOptions { unread_events: 8, ..RunOptions::default() });
    let unread = session.generate(Request::new(PROMPT).max_tokens(400))?;
    let (done, end) = mpsc::channel();
    let others = session.clone();
    let reader = thread::spawn(move || {
        let replies: Vec<_> =
            (0..3).map(|_| others.generate(Request::new("Lily").max_tokens(100))?.tokens()).collect();
        done.send(replies).unwrap();
    });
    let replies = end.recv_timeout(Duration::from_secs(60)).expect("the others are not delayed");
    reader.join().unwrap();
    assert!(replies.iter().all(|reply: &Result<Vec<u32>>| reply.as_ref().is_ok_and(|ids| ids.len() == 100)));
    // The slow reader loses nothing.
    assert_eq!(unread.tokens()?, expected);
    Ok(())
}

#[test]
fn dropping_a_reply_cancels_its_request() -> Result<()> {
    let session = session(RunOptions { waiting: 0, unread_events: 4, ..RunOptions::default() });
    for _ in 0..20 {
        // Without cancelling, the only place would stay taken.
        let reply = loop {
            match session.generate(Request::new(PROMPT).max_tokens(400)) {
                Err(error) if error.kind() == ErrorKind::QueueFull => thread::yield_now(),
                reply => break reply?,
            }
        };
        drop(reply);
    }
    Ok(())
}

#[test]
fn a_reply_outlives_its_session() -> Result<()> {
    let reply = session(RunOptions::default()).generate(Request::new(PROMPT).max_tokens(30))?;
    assert_eq!(reply.tokens()?.len(), 30);
    Ok(())
}

#[test]
fn a_request_is_cancelled_from_another_thread() -> Result<()> {
    let session = session(RunOptions { unread_events: 4, ..RunOptions::default() });
    let mut reply = session.generate(Request::new(PROMPT).max_tokens(400))?;
    let cancel_handle = reply.cancel_handle();
    let first = reply.next().expect("a reply has events")?;
    assert!(matches!(first, Event::Prefilled(_)), "{first:?}");
    thread::spawn(move || cancel_handle.cancel()).join().unwrap();
    assert_eq!(stop(reply), Stop::Cancelled);
    // Cancelling it again does nothing, nor does cancelling after the session's end.
    let other = session.generate(Request::new(PROMPT).max_tokens(2))?;
    let late = other.cancel_handle();
    assert_eq!(stop(other), Stop::Length);
    late.cancel();
    drop(session);
    late.cancel();
    Ok(())
}

#[test]
fn refused_requests_have_a_kind() -> Result<()> {
    let session = session(RunOptions { context: Some(64), ..RunOptions::default() });
    let kind = |request| session.generate(request).map(drop).unwrap_err().kind();
    assert_eq!(kind(Request::new(PROMPT).max_tokens(64)), ErrorKind::TooLong);
    assert_eq!(kind(Request::new(vec![1; 65])), ErrorKind::TooLong);
    assert_eq!(kind(Request::new(vec![512])), ErrorKind::Refused);
    assert_eq!(kind(Request::new(Vec::new())), ErrorKind::Refused);
    assert_eq!(kind(Request::new(PROMPT).stop("")), ErrorKind::Refused);
    assert_eq!(kind(Request::new(PROMPT).logprobs(1000)), ErrorKind::Refused);
    assert_eq!(kind(Request::new(vec![1]).without_text().stop("a")), ErrorKind::Refused);
    let cold = Sampling { temperature: -1.0, ..Sampling::default() };
    assert_eq!(kind(Request::new(PROMPT).sampling(cold)), ErrorKind::Refused);
    let chat = girih::Conversation::new().user("Hello");
    assert_eq!(kind(Request::new(chat)), ErrorKind::Refused);
    let long = Request::new(vec![1; 65]).overflow(Overflow::Truncate).max_tokens(100);
    assert_eq!(session.generate(long)?.tokens()?.len(), 100);
    Ok(())
}

#[test]
fn logits_are_those_of_an_engine_alone() -> Result<()> {
    let model = Model::open("stories260k")?;
    let tokens = model.tokenize(PROMPT)?;
    let alone =
        model.plan(RunOptions::default())?.load(|_| {})?.last_logits(&tokens, &mut girih::Unwatched)?;
    let session = session(RunOptions { sequences: 2, ..RunOptions::default() });
    let beside = session.generate(Request::new("Lily").max_tokens(100))?;
    let logits = session.logits(&tokens)?;
    assert!(logits.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits()) && logits.len() == 512);
    assert_eq!(beside.tokens()?.len(), 100);
    Ok(())
}

#[test]
fn a_reply_without_text_has_the_same_ids() -> Result<()> {
    let session = session(RunOptions::default());
    let tokens = session.model().tokenize(PROMPT)?;
    let plain = session.generate(Request::new(tokens.clone()).without_text().max_tokens(20))?;
    let events: Vec<Event> = plain.collect::<Result<_>>()?;
    assert!(events.iter().all(|event| event.text().is_empty()));
    let ids: Vec<u32> = events
        .iter()
        .filter_map(|event| if let Event::Token { id, .. } = event { Some(*id) } else { None })
        .collect();
    assert_eq!(ids, session.generate(Request::new(tokens).max_tokens(20))?.tokens()?);
    Ok(())
}

#[test]
fn an_async_reader_is_woken() -> Result<()> {
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    struct Signal(mpsc::Sender<()>);

    impl Wake for Signal {
        fn wake(self: Arc<Self>) {
            // The test may have ended.
            let _ = self.0.send(());
        }
    }

    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Signal(sender)));
    let session = session(RunOptions { unread_events: 2, ..RunOptions::default() });
    let mut reply = session.generate(Request::new(PROMPT).max_tokens(50))?;
    let mut tokens = 0;
    loop {
        match reply.poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Some(event)) => tokens += usize::from(matches!(event?, Event::Token { .. })),
            Poll::Ready(None) => break,
            Poll::Pending => woken.recv_timeout(Duration::from_secs(60)).expect("a waiting reader is woken"),
        }
    }
    assert_eq!(tokens, 50);
    Ok(())
}

#[test]
fn a_request_ends_at_its_time_limit_even_if_nobody_reads_it() -> Result<()> {
    let session = session(RunOptions { unread_events: 4, waiting: 0, ..RunOptions::default() });
    let limited = |time| {
        let limits = TimeLimits { whole: Some(time), ..TimeLimits::default() };
        Request::new(PROMPT).max_tokens(400).time_limits(limits)
    };
    // It is suspended, so only its deadline frees its place.
    let unread = session.generate(limited(Duration::from_millis(50)))?;
    let begun = Instant::now();
    let second = loop {
        match session.generate(limited(Duration::from_secs(600))) {
            Err(error) if error.kind() == ErrorKind::QueueFull => thread::yield_now(),
            reply => break reply?,
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "the place is not freed");
    };
    assert_eq!(stop(unread), Stop::Deadline);
    assert_eq!(second.tokens()?.len(), 400);
    let error = session.generate(limited(Duration::ZERO))?.text().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert!(error.to_string().contains("time limit passed"), "{error}");
    Ok(())
}

#[test]
fn the_queue_of_one_tenant_is_bounded() -> Result<()> {
    let session = session(RunOptions { tenant_waiting: 1, ..RunOptions::default() });
    let ask = |name| session.generate(Request::new(PROMPT).max_tokens(400).tenant(Tenant::new(name)));
    // Some of the first tenant's requests find its queue full; the second's does not.
    let flood = (0..30).map(|_| ask("flood")).collect::<Result<Vec<_>>>()?;
    assert_eq!(stop(ask("other")?), Stop::Length);
    let refused = flood.into_iter().filter_map(|reply| reply.text().err());
    let kinds: Vec<ErrorKind> = refused.map(|error| error.kind()).collect();
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == ErrorKind::QueueFull), "{kinds:?}");
    Ok(())
}

/// The bug: one tenant could hold every place with replies that it did not read.
#[test]
fn a_tenant_that_does_not_read_leaves_places_to_others() -> Result<()> {
    let options = RunOptions { waiting: 5, tenant_requests: 2, unread_events: 2, ..RunOptions::default() };
    let session = session(options);
    let ask = |name| Request::new(PROMPT).max_tokens(40).tenant(Tenant::new(name));
    let unread = [session.generate(ask("flood"))?, session.generate(ask("flood"))?];
    let error = session.generate(ask("flood")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert!(error.to_string().starts_with("2 requests of this tenant run, wait or are unread"), "{error}");
    assert!(session.generate_several(ask("other"), 3).is_err(), "none of them is queued");
    for reply in session.generate_several(ask("other"), 2)? {
        assert_eq!(reply.tokens()?.len(), 40);
    }
    let [first, second] = unread;
    assert_eq!(first.tokens()?.len(), 40);
    drop(second);
    assert_eq!(session.generate(ask("flood"))?.tokens()?.len(), 40);
    Ok(())
}

/// The bug: nothing said how many replies were complete but unread, and nobody could drop them.
#[test]
fn complete_replies_are_counted_until_they_are_read_or_dropped() -> Result<()> {
    let session = session(RunOptions { sequences: 4, ..RunOptions::default() });
    let replies: Vec<Reply> =
        (0..3).map(|_| session.generate(Request::new(PROMPT).max_tokens(5))).collect::<Result<_>>()?;
    let handles: Vec<_> = replies.iter().map(Reply::cancel_handle).collect();
    let begun = Instant::now();
    while session.activity().unread < 3 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", session.activity());
        thread::yield_now();
    }
    assert!(handles.iter().all(|handle| handle.ended_for().is_some()));
    let [read, dropped, discarded] = <[Reply; 3]>::try_from(replies).expect("three were asked for");
    assert_eq!(read.tokens()?.len(), 5);
    assert_eq!(session.activity().unread, 2);
    drop(dropped);
    assert_eq!(session.activity().unread, 1);
    handles[2].discard();
    assert_eq!(session.activity().unread, 0);
    let error = discarded.tokens().unwrap_err();
    assert!(error.kind() == ErrorKind::Cancelled && error.to_string().contains("was not read"), "{error}");
    // One that runs is not discarded, and one that is dropped before its end is never counted. None of them ends unread.
    let session = self::session(RunOptions { unread_events: 4, ..RunOptions::default() });
    let long = session.generate(Request::new(PROMPT).max_tokens(200))?;
    let handle = long.cancel_handle();
    handle.discard();
    assert_eq!(long.tokens()?.len(), 200);
    drop(session.generate(Request::new(PROMPT).max_tokens(400))?);
    assert_eq!(session.generate(Request::new(PROMPT).max_tokens(5))?.tokens()?.len(), 5);
    assert_eq!(session.activity().unread, 0);
    Ok(())
}

#[test]
fn several_replies_are_those_of_the_next_seeds() -> Result<()> {
    let session = session(RunOptions { sequences: 2, ..RunOptions::default() });
    let request = |seed| {
        let sampling = Sampling { temperature: 1.0, seed, ..Sampling::default() };
        Request::new(PROMPT).sampling(sampling).max_tokens(24)
    };
    let replies = session.generate_several(request(7), 5)?;
    let texts: Vec<String> = replies.into_iter().map(Reply::text).collect::<Result<_>>()?;
    assert_eq!(texts.len(), 5);
    for (seed, text) in (7..).zip(&texts) {
        assert_eq!(session.generate(request(seed))?.text()?, *text, "seed {seed}");
    }
    assert!(texts.iter().any(|text| *text != texts[0]), "seeds differ");
    for count in [0, 129] {
        let error = session.generate_several(request(1), count).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("1 to 128"), "{error}");
    }
    Ok(())
}
