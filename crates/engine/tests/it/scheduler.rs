//! The scheduler, by examples: who is admitted next, and who has to end.

use std::time::Duration;

use girih_engine::scheduler::{Demand, ExpiredRequest, MAX_PASSES, Phase, Scheduler, SchedulerLimits};
use girih_engine::{ErrorKind, Priority, RequestId, Tenant, WorkLeft};
use girih_graph::Span;

/// A scheduler for one active request.
fn one_at_a_time() -> Scheduler {
    Scheduler::new(limits(1, 100))
}

fn limits(sequences: u32, blocks: u32) -> SchedulerLimits {
    let groups = vec![(Span::Full.into(), blocks), (Span::Window(70).into(), 100)];
    let waiting = u32::MAX;
    SchedulerLimits { sequences, rows: 64, output_rows: 8, waiting, tenant_waiting: waiting, groups }
}

fn demand(prompt: u32, new: u32) -> Demand {
    Demand { prompt, max_positions: prompt + new, ..Demand::default() }
}

fn of(name: &str, demand: Demand) -> Demand {
    Demand { tenant: Tenant::new(name), ..demand }
}

fn at(priority: Priority, demand: Demand) -> Demand {
    Demand { priority, ..demand }
}

/// Submits requests with the ids from `first` on.
fn submit(scheduler: &mut Scheduler, first: u64, demands: impl IntoIterator<Item = Demand>) {
    for (id, demand) in (first..).zip(demands) {
        scheduler.submit(RequestId(id), demand).unwrap();
    }
}

/// Admits a request, whose whole prompt is run and charged.
fn admit(scheduler: &mut Scheduler, prompt: u32) -> Option<u64> {
    let id = scheduler.admit()?;
    scheduler.begin(id, 0, prompt);
    Some(id.0)
}

/// Admits requests and ends each before the next; returns their ids.
fn order(scheduler: &mut Scheduler, prompt: u32, count: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.extend(admit(scheduler, prompt));
        scheduler.end(RequestId(*ids.last().expect("one waits"))).unwrap();
    }
    ids
}

#[test]
fn requests_are_admitted_while_blocks_suffice_in_the_worst_case() {
    let mut scheduler = Scheduler::new(limits(8, 10));
    // 1, 4, 6 and 1 blocks.
    submit(&mut scheduler, 0, [demand(1, 63), demand(2, 254), demand(1, 383), demand(1, 1)]);
    assert_eq!([(); 3].map(|()| admit(&mut scheduler, 1)), [Some(0), Some(1), None]);
    assert_eq!(scheduler.reserved().next(), Some(5));
    // The last one would fit, but the one before it would wait for ever then.
    assert_eq!(scheduler.phase(RequestId(3)), Some(Phase::Waiting));
    scheduler.end(RequestId(0)).unwrap();
    assert_eq!([(); 3].map(|()| admit(&mut scheduler, 1)), [Some(2), None, None]);
    scheduler.end(RequestId(1)).unwrap();
    assert_eq!(admit(&mut scheduler, 1), Some(3));
    assert_eq!(scheduler.reserved().next(), Some(7));
}

#[test]
fn a_request_that_can_never_fit_is_refused() {
    let mut scheduler = Scheduler::new(limits(8, 10));
    let error = scheduler.submit(RequestId(0), demand(1, 640)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    let sentence = "the request may take 11 blocks of state; the model has 10: ";
    assert!(error.to_string().starts_with(sentence), "{error}");
    assert_eq!((scheduler.waiting(), scheduler.phase(RequestId(0))), (0, None));
    submit(&mut scheduler, 0, [demand(1, 639)]);
}

#[test]
fn full_queues_refuse_more() {
    let mut scheduler = Scheduler::new(SchedulerLimits { waiting: 4, tenant_waiting: 3, ..limits(1, 10) });
    let high = |name| at(Priority::High, of(name, demand(1, 1)));
    submit(&mut scheduler, 0, [of("a", demand(1, 1)), high("a"), of("a", demand(1, 1))]);
    let refusal = |scheduler: &mut Scheduler, demand| scheduler.submit(RequestId(9), demand).unwrap_err();
    let error = refusal(&mut scheduler, high("a"));
    assert_eq!(error.kind(), ErrorKind::QueueFull);
    assert!(error.to_string().starts_with("3 requests of this tenant wait"), "{error}");
    submit(&mut scheduler, 3, [high("b")]);
    let error = refusal(&mut scheduler, high("c"));
    assert_eq!(error.to_string(), "the queue is full: 4 requests wait; try again later");
    assert_eq!(scheduler.admit(), Some(RequestId(1)), "active requests do not count");
    submit(&mut scheduler, 9, [high("a")]);
}

#[test]
fn higher_priorities_go_first_but_lower_ones_do_not_starve() {
    let mut scheduler = one_at_a_time();
    use Priority::{High, Low, Normal};
    submit(&mut scheduler, 0, [Low, Normal, High, Normal, High].map(|level| at(level, demand(5, 5))));
    assert_eq!(order(&mut scheduler, 5, 5), [2, 4, 1, 3, 0]);
    // Of many, each ninth admission goes to a lower priority.
    submit(&mut scheduler, 0, vec![at(Low, demand(5, 5)); 2]);
    submit(&mut scheduler, 10, vec![at(Normal, demand(5, 5)); 2]);
    submit(&mut scheduler, 100, vec![at(High, demand(5, 5)); 40]);
    let ids = order(&mut scheduler, 5, 40);
    let at = |id| ids.iter().position(|other| *other == id).unwrap() as u32;
    assert_eq!([at(10), at(0)], [MAX_PASSES, MAX_PASSES + 1]);
    assert!(at(1) <= 2 * MAX_PASSES + 2 && at(11) <= 2 * MAX_PASSES + 3, "{ids:?}");
}

#[test]
fn tenants_are_served_equal_numbers_of_tokens() {
    let mut scheduler = one_at_a_time();
    // The first floods the queue with long prompts before the second asks for short replies.
    submit(&mut scheduler, 0, vec![of("flood", demand(60, 40)); 50]);
    assert_eq!(admit(&mut scheduler, 60), Some(0));
    submit(&mut scheduler, 100, vec![of("small", demand(5, 5)); 50]);
    let served = |scheduler: &Scheduler, name| scheduler.served(Priority::Normal, &Tenant::new(name));
    let mut current = RequestId(0);
    for _ in 0..50 {
        // The reply has all its tokens.
        let (prompt, all) = if current.0 < 100 { (60, 100) } else { (5, 10) };
        scheduler.advance(current, all - 1, all);
        assert_eq!(scheduler.end(current), Some(Phase::Active));
        current = scheduler.admit().unwrap();
        scheduler.begin(current, 0, if current.0 < 100 { 60 } else { 5 });
        let difference = served(&scheduler, "flood").abs_diff(served(&scheduler, "small"));
        assert!(difference <= 100, "{difference} tokens after a prompt of {prompt}");
    }
    assert!(served(&scheduler, "small") > 400, "it is served ten requests for each of the flood");
}

#[test]
fn what_a_tenant_did_not_ask_for_is_not_saved_up() {
    let mut scheduler = one_at_a_time();
    submit(&mut scheduler, 0, vec![of("busy", demand(10, 5)); 40]);
    submit(&mut scheduler, 50, [of("early", demand(10, 5))]);
    order(&mut scheduler, 10, 20);
    // Both begin at the virtual time, although one was served and the other was not.
    submit(&mut scheduler, 60, vec![of("late", demand(10, 5)); 10]);
    submit(&mut scheduler, 80, vec![of("early", demand(10, 5)); 10]);
    let ids = order(&mut scheduler, 10, 15);
    for range in [0..50, 60..80, 80..100] {
        let count = ids.iter().filter(|id| range.contains(*id)).count();
        assert_eq!(count, 5, "{range:?} of {ids:?}");
    }
}

#[test]
fn a_tenants_own_requests_are_admitted_by_age() {
    let mut scheduler = Scheduler::new(limits(2, 100));
    submit(&mut scheduler, 0, vec![demand(10, 5); 4]);
    assert_eq!([admit(&mut scheduler, 10), admit(&mut scheduler, 10)], [Some(0), Some(1)]);
    assert_eq!(scheduler.suspend(RequestId(0)), Some(Phase::Active));
    assert_eq!(scheduler.suspend(RequestId(0)), None);
    assert_eq!(scheduler.suspend(RequestId(2)), Some(Phase::Waiting));
    scheduler.requeue(RequestId(1));
    assert!(scheduler.resume(RequestId(0)) && !scheduler.resume(RequestId(0)));
    assert_eq!(order(&mut scheduler, 10, 3), [0, 1, 3]);
    assert_eq!((scheduler.waiting(), scheduler.phase(RequestId(2))), (0, Some(Phase::Suspended)));
    assert_eq!(scheduler.end(RequestId(2)), Some(Phase::Suspended));
    assert_eq!(scheduler.end(RequestId(2)), None);
}

#[test]
fn requests_expire_in_every_phase() {
    let seconds = Duration::from_secs;
    let mut scheduler = one_at_a_time();
    let limited = |first: Option<u64>, whole: Option<u64>| Demand {
        first_token_by: first.map(seconds),
        end_by: whole.map(seconds),
        ..demand(5, 50)
    };
    let end = |(id, phase)| ExpiredRequest { id: RequestId(id), phase, is_in_queue: false };
    let all = [limited(Some(3), Some(9)), limited(Some(4), None), limited(None, Some(5)), demand(5, 5)];
    submit(&mut scheduler, 0, all);
    assert_eq!(admit(&mut scheduler, 5), Some(0));
    assert!(scheduler.suspend(RequestId(2)).is_some());
    assert_eq!(scheduler.next_deadline(), Some(seconds(3)));
    assert_eq!(scheduler.expire(seconds(2)), []);
    // The first token was chosen in time, so only the end counts.
    scheduler.advance(RequestId(0), 5, 6);
    scheduler.begin_reply(RequestId(0));
    let expired = scheduler.expire(seconds(7));
    assert_eq!(expired, [(1, Phase::Waiting), (2, Phase::Suspended)].map(end));
    assert_eq!(scheduler.next_deadline(), Some(seconds(9)));
    assert_eq!(scheduler.expire(seconds(9)), [end((0, Phase::Active))], "at the deadline");
    assert_eq!(scheduler.expire(seconds(u64::MAX)), []);
    assert_eq!(admit(&mut scheduler, 5), Some(3));
    assert_eq!(scheduler.next_deadline(), None);
}

#[test]
fn the_limit_of_the_queue_ends_with_the_first_admission() {
    let seconds = Duration::from_secs;
    let mut scheduler = one_at_a_time();
    let limited = |queue, whole: Option<u64>| Demand {
        admit_by: Some(seconds(queue)),
        end_by: whole.map(seconds),
        ..demand(5, 50)
    };
    submit(&mut scheduler, 0, [limited(3, None), limited(3, Some(3)), limited(4, None), limited(5, Some(9))]);
    assert_eq!(admit(&mut scheduler, 5), Some(0));
    let work: Vec<WorkLeft> = scheduler.work_left().collect();
    assert_eq!(work, [WorkLeft { request: RequestId(0), prompt_rows: 5, tokens: 50 }]);
    // It was admitted in time, so it may wait again.
    scheduler.requeue(RequestId(0));
    let expired = |id, is_in_queue| ExpiredRequest { id: RequestId(id), phase: Phase::Waiting, is_in_queue };
    assert_eq!(scheduler.expire(seconds(4)), [expired(1, false), expired(2, true)]);
    assert_eq!(admit(&mut scheduler, 5), Some(0));
    assert_eq!(scheduler.expire(seconds(8)), [expired(3, true)]);
    assert_eq!(scheduler.next_deadline(), None);
}
