//! The prefix cache among requests: what is found, what tenants must not find, and what a found
//! prefix saves.

use girih_engine::cache::{CacheTotals, PrefixCache, SharingRules, blocks};
use girih_engine::{Engine, EngineLimits, Hooks, Tenant, TokenRequest};
use girih_graph::{Key, Span};

use crate::oracle::{self, Oracle, SPANS, Watched, batched, narrow, prompt, reply, request};

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
