//! Dynamo's index of caches, fed with girih's events.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};

use dynamo_kv_router::RadixTree;
use dynamo_kv_router::protocols::{
    BlockHashOptions, KvCacheEventData, RouterEvent, compute_block_hash_for_seq,
};
use dynamo_kv_router::zmq_wire::create_stored_blocks;
use girih::{BLOCK_POSITIONS, CacheEvent, CacheObserver, Model, Request, RunOptions, Tenant};
use girih_dynamo::kv_cache_event;

const WORKER: u64 = 7;

/// The events of a session that runs a request of 150 tokens for each of these tenants, and ends.
fn events(tenants: &[&str]) -> Vec<CacheEvent> {
    let seen: Arc<Mutex<Vec<CacheEvent>>> = Arc::default();
    let events = Arc::clone(&seen);
    let observer =
        CacheObserver::new("stories", move |new| events.lock().expect("no test panics here").extend(new));
    let options = RunOptions { cache_observer: Some(observer), ..RunOptions::default() };
    let model = Model::open(girih::BUILT_IN).expect("it is built in");
    let session = model.plan(options).and_then(|plan| plan.start(|_| {})).expect("it starts");
    for tenant in tenants {
        let request = Request::new(prompt()).max_tokens(1);
        let request = if tenant.is_empty() { request } else { request.tenant(Tenant::new(tenant)) };
        session.generate(request).and_then(|reply| reply.tokens()).expect("it runs");
    }
    drop(session);
    std::mem::take(&mut *seen.lock().expect("no test panics here"))
}

fn prompt() -> Vec<u32> {
    (0..150).map(|index| 259 + index % 200).collect()
}

/// How many blocks of the prompt the index knows for the worker.
fn overlap(index: &RadixTree, salt: Option<&str>) -> u32 {
    let options = BlockHashOptions { cache_namespace: salt, ..BlockHashOptions::default() };
    let blocks = compute_block_hash_for_seq(&prompt(), BLOCK_POSITIONS as u32, options);
    index.find_matches(blocks, false).scores.values().copied().max().unwrap_or_default()
}

#[test]
fn dynamos_index_finds_what_is_cached() {
    let mut index = RadixTree::new();
    let events = events(&["", "alice"]);
    let (ended, stored) = events.split_last().expect("there are events");
    assert!(matches!(ended, CacheEvent::Cleared(_)));
    for (number, event) in (0..).zip(stored) {
        index.apply_event(RouterEvent::new(WORKER, kv_cache_event(event, number))).expect("it is in order");
    }
    assert_eq!(overlap(&index, None), 2);
    assert_eq!(overlap(&index, Some("alice")), 2);
    assert_eq!(overlap(&index, Some("bob")), 0);
    let ended = kv_cache_event(ended, stored.len() as u64);
    index.apply_event(RouterEvent::new(WORKER, ended)).expect("it is in order");
    assert_eq!((overlap(&index, None), overlap(&index, Some("alice"))), (0, 0));
}

#[test]
fn removed_blocks_are_forgotten() {
    let mut index = RadixTree::new();
    let events = events(&[""]);
    let CacheEvent::Stored(stored) = &events[0] else { panic!("{events:?}") };
    let removed = CacheEvent::Removed(vec![stored.hashes[1]]);
    for (number, event) in [&events[0], &removed].into_iter().enumerate() {
        let event = kv_cache_event(event, number as u64);
        index.apply_event(RouterEvent::new(WORKER, event)).expect("it is in order");
    }
    assert_eq!(overlap(&index, None), 1);
}

#[test]
fn stored_blocks_are_those_that_dynamo_makes_of_a_servers_events() {
    for tenant in ["", "alice"] {
        let events = events(&[tenant]);
        let CacheEvent::Stored(stored) = &events[0] else { panic!("{events:?}") };
        let KvCacheEventData::Stored(own) = kv_cache_event(&events[0], 0).data else { panic!("{events:?}") };
        let salt = Some(tenant).filter(|salt| !salt.is_empty());
        let sizes = vec![BLOCK_POSITIONS as u64; stored.hashes.len()];
        let size = BLOCK_POSITIONS as u32;
        let warnings = Arc::new(AtomicU32::new(0));
        let theirs = create_stored_blocks(
            size,
            &stored.tokens,
            &sizes,
            &stored.hashes,
            None,
            salt,
            &warnings,
            None,
            None,
            None,
            None,
        );
        assert_eq!(own.blocks, theirs, "tenant {tenant:?}");
        assert_eq!(own.parent_hash, None);
    }
}
