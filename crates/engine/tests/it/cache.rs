//! The bookkeeping of blocks, and the schedule.

use girih_engine::cache::Cache;
use girih_engine::schedule::{Batch, schedule};
use girih_graph::backend::{Block, Range32};
use girih_graph::{GroupId, Want};

use crate::oracle::prompt;

#[test]
fn blocks_are_taken_and_given_back_in_order() {
    let mut cache = Cache::new(&[4, 3]);
    let fresh = cache.reserve(65).unwrap();
    let pair = |group, block| (GroupId(group), Block(block));
    assert_eq!(fresh, [pair(0, 0), pair(0, 1), pair(1, 0), pair(1, 1)]);
    assert_eq!(cache.reserve(128).unwrap(), [], "there is room already");
    cache.extend(&prompt(1, 128));
    assert_eq!(cache.reserve(129).unwrap(), [pair(0, 2), pair(1, 2)]);
    assert_eq!(cache.blocks()[1], [Block(0), Block(1), Block(2)]);
    assert_eq!(cache.free(), [1, 0]);
    let error = cache.reserve(200).unwrap_err().to_string();
    assert_eq!(error, "200 positions need 4 blocks of state; group 1 has 3");
    cache.truncate(64);
    assert_eq!((cache.free(), cache.tokens().len()), (vec![3, 2], 64));
    assert_eq!(cache.reserve(65).unwrap(), [pair(0, 1), pair(1, 1)]);
    cache.truncate(0);
    assert_eq!(cache.free(), [4, 3]);
}

#[test]
fn a_prompt_resumes_from_the_longest_shared_prefix() {
    let held = prompt(2, 130);
    let cases: [(&[u32], u32); 4] = [(&held, 129), (&held[..64], 63), (&held[..1], 0), (&[], 0)];
    for (prompt, kept) in cases {
        let mut cache = Cache::new(&[3]);
        cache.reserve(130).unwrap();
        cache.extend(&held);
        assert_eq!(cache.resume(prompt), kept);
        assert_eq!(cache.tokens(), &held[..kept as usize]);
        assert_eq!(cache.free(), [3 - (kept as usize).div_ceil(64)]);
    }
}

#[test]
fn only_the_last_known_token_wants_logits() {
    let batch = |start, end, want| Batch { positions: Range32 { start, end }, want };
    assert_eq!(schedule(0, 10, 4), batch(0, 4, Want::Nothing));
    assert_eq!(schedule(4, 10, 4), batch(4, 8, Want::Nothing));
    assert_eq!(schedule(8, 10, 4), batch(8, 10, Want::Last));
    assert_eq!(schedule(0, 4, 4), batch(0, 4, Want::Last));
    assert_eq!(schedule(10, 11, 4), batch(10, 11, Want::Last));
    assert_eq!(schedule(0, u32::MAX, u32::MAX), batch(0, u32::MAX, Want::Last));
}
