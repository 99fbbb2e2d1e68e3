//! The prefix cache among requests: what is found, what tenants must not find, and what a found
//! prefix saves.

use girih_engine::cache::{CacheTotals, PrefixCache, SharingRules, blocks};
use girih_engine::{Engine, EngineLimits, Hooks, SavedPrefix, Tenant, TokenRequest};
use girih_graph::{Key, Span};

use crate::oracle::{self, Oracle, SPANS, Trouble, Watched, batched, narrow, prompt, reply, request};

fn of(name: &str, request: TokenRequest) -> TokenRequest {
    TokenRequest { tenant: Tenant::new(name), ..request }
}

#[test]
fn tenants_find_only_their_own_prefixes() {
    let (mut engine, _) = narrow(2, 64, &[30, 30]);
    let tokens = prompt(1, 100);
    let mut cached = |name| {
        let reply = reply(&mut engine, of(name, request(&tokens, 5)));
        assert_eq!(reply.ids, oracle::greedy(&tokens, 5));
        reply.stats.unwrap().cached
    };
    assert_eq!(["a", "b", "a", "b", "", "c"].map(&mut cached), [0, 0, 99, 99, 0, 0]);
    let default = reply(&mut engine, request(&tokens, 5)).stats.unwrap().cached;
    assert_eq!(default, 0, "the default tenant has no name, not an empty one");
    let totals = engine.cache().totals();
    assert_eq!(totals, CacheTotals { prompts: 7, tokens: 700, hits: 198, evicted: 0 });
}

#[test]
fn a_tenant_does_not_find_the_prefix_of_an_active_request() {
    let (mut engine, watched) = batched(3, 160);
    for name in ["a", "b", "a"] {
        engine.submit(of(name, request(&prompt(2, 100), 5)), Hooks::default()).unwrap();
    }
    while !engine.is_idle() {
        engine.step();
    }
    assert_eq!(watched.rows.get(), 2 * 100 + 1 + 3 * 4);
}

#[test]
fn another_tenant_may_evict_a_prefix_but_not_find_it() {
    let mut cache = PrefixCache::new(&[Span::Full], &[4]);
    let begin = |cache: &mut PrefixCache<u32>, name, tokens: &[u32]| {
        let rules = SharingRules { tenant: Tenant::new(name), ..SharingRules::default() };
        let (id, shared) = cache.begin_within(tokens, rules);
        cache.reserve(id, tokens.len() as u32).unwrap();
        cache.extend(id, &tokens[shared as usize..]);
        cache.end(id);
        shared
    };
    let (short, long) = (prompt(3, 60), prompt(4, 120));
    assert_eq!(begin(&mut cache, "a", &short), 0);
    assert_eq!(begin(&mut cache, "b", &long), 0);
    assert_eq!(begin(&mut cache, "a", &short), 59);
    // The least recently used one is evicted, of any tenant.
    assert_eq!(begin(&mut cache, "c", &prompt(5, 30)), 0);
    assert_eq!((cache.totals().evicted, cache.used()), (1, vec![3]));
    assert_eq!(begin(&mut cache, "a", &short), 59);
    assert_eq!(begin(&mut cache, "b", &long), 0);
}

#[test]
fn a_second_request_computes_little_after_a_shared_prefix_of_1000_tokens() {
    let key = Key { rows: 128, sequences: 2, context: 1200, ..oracle::key() };
    let watched = Watched::default();
    let runner = Oracle::new(key, &SPANS.map(|span| blocks(span, &key)), &watched);
    let limits = EngineLimits { sequences: 2, ..EngineLimits::new(1200, 128) };
    let mut engine = Engine::new(Box::new(runner), limits).unwrap();
    let prefix = prompt(6, 1000);
    let mut rows = |own: u64, tenant: &str| {
        let tokens = [&prefix[..], &prompt(own, 20)].concat();
        let before = watched.rows.get();
        let reply = reply(&mut engine, of(tenant, request(&tokens, 10)));
        assert_eq!(reply.ids, oracle::greedy(&tokens, 10));
        watched.rows.get() - before
    };
    // One of the two state groups has a window.
    let (first, second, other) = (rows(7, "a"), rows(8, "a"), rows(8, "b"));
    assert_eq!((first, second, other), (1029, 29, 1029));
    assert!(second * 20 <= first, "5 %");
}

#[test]
fn a_saved_prefix_is_found_by_its_tenant_in_another_engine() {
    let (mut first, _) = narrow(1, 64, &[20, 20]);
    let (old, tokens) = (prompt(9, 80), prompt(10, 200));
    for (name, tokens) in [("a", &old), ("b", &tokens)] {
        reply(&mut first, of(name, request(tokens, 30)));
    }
    let mut saved = Vec::new();
    let keep = |prefix| {
        saved.push(prefix);
        true
    };
    first.save_prefixes(keep).unwrap();
    let lengths: Vec<_> = saved.iter().map(|prefix| (prefix.tenant.name(), prefix.tokens.len())).collect();
    assert_eq!(lengths, [("b", 229), ("a", 109)], "the most recently used first");

    let (mut second, watched) = narrow(1, 64, &[6, 6]);
    let restored: Vec<bool> =
        saved.iter().map(|prefix| second.restore_prefix(prefix.clone()).unwrap()).collect();
    assert_eq!(restored, [true, true]);
    assert_eq!((second.cache().free(), second.restore_prefix(saved[1].clone())), (vec![0, 0], Ok(false)));
    let talk = [&tokens[..], &oracle::greedy(&tokens, 30), &prompt(11, 20)].concat();
    let reply = reply(&mut second, of("b", request(&talk, 20)));
    assert_eq!((reply.ids, reply.stats.unwrap().cached), (oracle::greedy(&talk, 20), 229));
    assert_eq!(watched.rows.get(), 21 + 19);
}

#[test]
fn a_saved_prefix_that_does_not_fit_is_not_restored() {
    let (mut first, watched) = narrow(1, 64, &[20, 20]);
    reply(&mut first, request(&prompt(12, 200), 30));
    let mut saved = None;
    first.save_prefixes(|prefix| saved.replace(prefix).is_some()).unwrap();
    let saved = saved.unwrap();
    let restore = |change: &dyn Fn(&mut SavedPrefix)| {
        let (mut engine, _) = narrow(1, 64, &[20, 20]);
        let mut changed = saved.clone();
        change(&mut changed);
        let restored = engine.restore_prefix(changed);
        let is_empty = engine.cache().free() == [20, 20];
        assert_eq!(is_empty, restored != Ok(true), "nothing is lost");
        restored.map_err(|error| error.to_string())
    };
    assert_eq!(restore(&|_| {}), Ok(true));
    assert_eq!(restore(&|prefix| prefix.tokens[3] = oracle::VOCABULARY as u32), Ok(false));
    assert_eq!(restore(&|prefix| prefix.tokens.resize(5000, 1)), Ok(false));
    assert_eq!(restore(&|prefix| prefix.tokens.truncate(100)), Ok(false));
    assert_eq!(restore(&|prefix| prefix.groups.truncate(1)), Ok(false));
    assert_eq!(restore(&|prefix| prefix.groups[0].first = 1), Ok(false), "all positions are seen");
    assert_eq!(restore(&|prefix| prefix.groups[1].first = 4), Ok(false), "behind the window");
    assert_eq!(restore(&|prefix| prefix.groups[1].first = u32::MAX), Ok(false));
    assert_eq!(restore(&|prefix| drop(prefix.groups[1].blocks.pop())), Ok(false));
    let error = restore(&|prefix| prefix.groups[1].blocks[0].truncate(7)).unwrap_err();
    assert_eq!(error, "a block has 512 bytes");
    watched.trouble.set(Some(Trouble::State(2)));
    let error = first.save_prefixes(|_| true).unwrap_err();
    assert!(error.to_string().starts_with("the backend oracle cannot export state"), "{error}");
}
