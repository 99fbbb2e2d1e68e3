//! Requests to a model that carries a value besides its rows by position: bytes as alone, and what
//! is run again.

use girih_engine::{DraftQuery, Drafter, Hooks, Sampling, TokenRequest};

use crate::oracle::{KINDS, Watched, finish, greedy_of, narrow, prompt, reply, request};

const ENOUGH: [u32; 3] = [40; 3];

fn greedy(prompt: &[u32], count: usize) -> Vec<u32> {
    greedy_of(prompt, count, true)
}

#[test]
fn a_prefix_is_shared_up_to_the_end_of_a_block_or_of_its_sequence() {
    let (mut engine, watched) = narrow(2, 64, &ENOUGH);
    let (first, rows) = (prompt(1, 150), |watched: &Watched| watched.rows.get());
    assert_eq!(reply(&mut engine, request(&first, 20)).ids, greedy(&first, 20));
    assert_eq!(rows(&watched), 150 + 19);
    // The next turn continues where the reply ended, whose last token was not run.
    let turn = [&first[..], &greedy(&first, 20), &prompt(2, 30)].concat();
    let next = reply(&mut engine, request(&turn, 5));
    assert_eq!((next.ids, next.stats.unwrap().cached), (greedy(&turn, 5), 169));
    // Another continuation shares whole blocks.
    let other = [&first[..], &prompt(3, 40)].concat();
    let next = reply(&mut engine, request(&other, 5));
    assert_eq!((next.ids, next.stats.unwrap().cached), (greedy(&other, 5), 128));
}

#[test]
fn a_suspended_request_goes_on_where_it_was() {
    let (mut engine, watched) = narrow(2, 64, &ENOUGH);
    let tokens = prompt(4, 100);
    let id = engine.submit(request(&tokens, 30), Hooks::default()).unwrap();
    let mut early = Vec::new();
    while early.len() < 10 {
        early.extend(engine.step().to_vec());
    }
    assert!(engine.suspend(id) && engine.is_idle() && engine.resume(id));
    let mut replied = crate::oracle::Reply::default();
    early.into_iter().for_each(|event| replied.take(event));
    let rest = finish(&mut engine, id);
    replied.ids.extend(rest.ids);
    assert_eq!(replied.ids, greedy(&tokens, 30));
    assert_eq!((rest.stats.unwrap().repeated.tokens, watched.rows.get()), (0, 100 + 29));
}

/// Drafts one token, which is wrong.
struct Wrong(Vec<u32>, usize);

impl Drafter for Wrong {
    fn draft(&mut self, DraftQuery { tokens, max, .. }: DraftQuery<'_>) -> Vec<u32> {
        let right = self.0.get(tokens.len() - self.1);
        right.map(|id| (id + 1) % 30).into_iter().take(max as usize).collect()
    }
}

#[test]
fn a_rejected_draft_runs_the_rows_after_the_copy_before_it_again() {
    let tokens = prompt(5, 100);
    let whole = greedy(&tokens, 40);
    for blocks in [ENOUGH, [40, 40, 3]] {
        let (mut engine, _) = narrow(1, 64, &blocks);
        let ask = TokenRequest { sampling: Sampling::greedy(), ..request(&tokens, 40) };
        let drafter: Box<dyn Drafter> = Box::new(Wrong(whole.clone(), 100));
        let id = engine.submit(ask, Hooks { drafter: Some(drafter), ..Hooks::default() }).unwrap();
        let reply = finish(&mut engine, id);
        let stats = reply.stats.unwrap();
        assert_eq!((reply.ids, stats.accepted), (whole.clone(), 0));
        // A step without a draft runs the row before it again; without a block for a copy, up to 64 rows.
        assert!(stats.drafted > 10, "{} drafted", stats.drafted);
        let most = if blocks == ENOUGH { stats.drafted } else { 64 * stats.drafted };
        assert!(stats.repeated.tokens > 10 && stats.repeated.tokens <= most, "{}", stats.repeated.tokens);
    }
}

#[test]
fn a_saved_prefix_has_the_carried_values() {
    let (mut first, _) = narrow(1, 64, &ENOUGH);
    let tokens = prompt(6, 200);
    reply(&mut first, request(&tokens, 30));
    let mut saved = None;
    first.save_prefixes(|prefix| saved.replace(prefix).is_some()).unwrap();
    let saved = saved.unwrap();
    assert_eq!(saved.groups.iter().map(|group| group.blocks.len()).collect::<Vec<_>>(), [4, 4, 4]);
    let continued = [&tokens[..], &greedy(&tokens, 30), &prompt(7, 10)].concat();
    let other = [&tokens[..], &prompt(8, 10)].concat();
    for (talk, cached) in [(&continued, 229), (&other, 192)] {
        let (mut second, _) = narrow(1, 64, &ENOUGH);
        assert_eq!(second.restore_prefix(saved.clone()), Ok(true));
        let next = reply(&mut second, request(talk, 20));
        assert_eq!((next.ids, next.stats.unwrap().cached), (greedy(talk, 20), cached));
    }
    // Without its last value, a sequence cannot go on.
    let (mut second, _) = narrow(1, 64, &ENOUGH);
    let mut cut = saved.clone();
    (cut.groups[2].first, _) = (4, cut.groups[2].blocks.drain(..));
    assert_eq!(second.restore_prefix(cut), Ok(false));
    // Without the older ones, it goes on at its end only.
    let mut cut = saved;
    (cut.groups[2].first, _) = (3, cut.groups[2].blocks.drain(..3));
    assert_eq!(second.restore_prefix(cut), Ok(true));
    assert_eq!(reply(&mut second, request(&other, 5)).stats.unwrap().cached, 0);
    assert_eq!(reply(&mut second, request(&continued, 5)).stats.unwrap().cached, 229);
}

#[test]
fn few_blocks_change_no_reply() {
    // From as many as one request needs to as many as are kept.
    for carried in [KINDS[2].worst_case(std::iter::once(320), 64) as u32, 8, 30] {
        let (mut engine, _) = narrow(2, 64, &[20, 20, carried]);
        for round in 0..3 {
            for number in 0..4 {
                let tokens = [prompt(9, 130), prompt(10 + number, 20 + round)].concat();
                assert_eq!(reply(&mut engine, request(&tokens, 10)).ids, greedy(&tokens, 10));
            }
        }
    }
}
