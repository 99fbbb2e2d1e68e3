//! A fleet of replicas behind a router, under a virtual clock: each replica has the engine's scheduler and prefix
//! cache, and its steps take the time that a model's steps were measured to take. Conversations come back with all
//! their turns; the router sends them anywhere, by load, or by load and what is cached.
//!
//! A thousand replicas and 100,000 conversations take a minute, a million (`million_conversations`) nine:
//! `cargo test -p girih-engine --release --test it -- --ignored --nocapture hundred_thousand_conversations`

mod replica;
mod router;
mod workload;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::time::Duration;

use girih_graph::BLOCK_POSITIONS;

use replica::{Happened, Replica};
use router::{Policy, Router};
use workload::{Beginnings, BlockKey, Conversation, Workload};

/// The router learns what happened this often. No user answers as fast.
const SLICE: Duration = Duration::from_millis(250);

/// What a simulation found.
#[derive(Clone, Debug, PartialEq)]
struct Found {
    requests: usize,
    prompt_tokens: u64,
    cached_tokens: u64,
    /// The times to the first token of a reply, and to its last one, in order.
    first: Vec<Duration>,
    last: Vec<Duration>,
    /// The time of all steps, as a share of the replicas' time.
    busy: f64,
}

impl Found {
    fn cached_share(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens as f64
    }

    fn print(&self, policy: Policy) {
        let percent = |times: &[Duration], share: usize| times[times.len() * share / 100].as_secs_f64();
        println!(
            "{policy:?}: {} requests, {:.1} % of {:.2e} tokens of prompts cached; first token p50 {:.2} s, p99 {:.2} s; \
             last token p50 {:.2} s, p99 {:.2} s; replicas busy {:.0} % of the time",
            self.requests,
            100.0 * self.cached_share(),
            self.prompt_tokens as f64,
            percent(&self.first, 50),
            percent(&self.first, 99),
            percent(&self.last, 50),
            percent(&self.last, 99),
            100.0 * self.busy
        );
    }
}

struct Fleet {
    router: Router,
    replicas: Vec<Replica>,
    beginnings: Beginnings,
    live: HashMap<u32, Conversation>,
    /// The next turns, the first one on top.
    turns: BinaryHeap<Reverse<(Duration, u32)>>,
    now: Duration,
    first: Vec<Duration>,
    last: Vec<Duration>,
}

impl Fleet {
    fn new(policy: Policy, replicas: u16, workload: Workload) -> Fleet {
        Fleet {
            router: Router::new(policy, replicas, workload.seed),
            replicas: (0..replicas).map(|_| Replica::new()).collect(),
            beginnings: Beginnings::new(workload),
            live: HashMap::new(),
            turns: BinaryHeap::new(),
            now: Duration::ZERO,
            first: Vec::new(),
            last: Vec::new(),
        }
    }

    /// Sends the requests of a slice, and runs the replicas to its end.
    fn run_slice(&mut self) {
        self.now += SLICE;
        while let Some((at, conversation)) = self.beginnings.before(self.now) {
            let id = conversation.turn().conversation;
            self.turns.push(Reverse((at, id)));
            self.live.insert(id, conversation);
        }
        while let Some(Reverse((at, id))) = self.turns.peek().copied().filter(|turn| turn.0.0 < self.now) {
            self.turns.pop();
            let turn = self.live[&id].turn();
            let chosen = self.router.choose(&turn);
            self.replicas[usize::from(chosen)].arrive(at, turn);
        }
        let mut happened = Vec::new();
        for replica in 0..self.replicas.len() as u16 {
            self.replicas[usize::from(replica)].run_until(self.now, &mut happened);
            for one in happened.drain(..) {
                self.router.learn(replica, &one);
                self.record(one);
            }
        }
    }

    fn record(&mut self, happened: Happened) {
        match happened {
            Happened::Stored(_) | Happened::Removed(_) => {}
            Happened::Begun { wait, .. } => self.first.push(wait),
            Happened::Ended { conversation, at, time } => {
                self.last.push(time);
                let pause = self.live.get_mut(&conversation).expect("it has not ended").advance();
                match pause {
                    Some(pause) => self.turns.push(Reverse((at + pause, conversation))),
                    None => drop(self.live.remove(&conversation)),
                }
            }
        }
    }

    fn simulate(mut self) -> Found {
        while !self.beginnings.is_over() || !self.live.is_empty() {
            self.run_slice();
        }
        assert!(self.replicas.iter().all(Replica::is_idle), "each request has ended");
        self.check_index();
        let totals: Vec<_> = self.replicas.iter().map(|replica| replica.cache().totals()).collect();
        let busy: Duration = self.replicas.iter().map(|replica| replica.busy).sum();
        self.first.sort();
        self.last.sort();
        Found {
            requests: self.last.len(),
            prompt_tokens: totals.iter().map(|totals| totals.tokens).sum(),
            cached_tokens: totals.iter().map(|totals| totals.hits).sum(),
            first: self.first,
            last: self.last,
            busy: busy.as_secs_f64() / (self.now.as_secs_f64() * self.replicas.len() as f64),
        }
    }

    /// The router knows exactly the blocks that the caches have.
    fn check_index(&self) {
        for (number, replica) in self.replicas.iter().enumerate().take(20) {
            let sequences = replica.cache().sequences();
            let blocks = sequences.flat_map(|(_, keys)| {
                (0..keys.len() / BLOCK_POSITIONS).map(|index| BlockKey::of(keys, index))
            });
            let held: BTreeSet<BlockKey> = blocks.collect();
            assert!(held.len() <= replica::BLOCKS as usize, "the cache is finite");
            assert!(held.into_iter().eq(self.router.blocks_of(number as u16)), "replica {number}");
        }
    }
}

const POLICIES: [Policy; 3] = [Policy::Random, Policy::Load, Policy::Prefix];

#[test]
fn routing_by_prefix_caches_more_and_answers_sooner() {
    let workload = Workload { seed: 42, conversations: 600, applications: 12, begun_per_second: 1.0 };
    let [random, load, prefix] = POLICIES.map(|policy| Fleet::new(policy, 8, workload).simulate());
    for (policy, found) in POLICIES.into_iter().zip([&random, &load, &prefix]) {
        found.print(policy);
    }
    assert_eq!(random.requests, prefix.requests, "conversations do not depend on the router");
    assert_eq!(random.prompt_tokens, prefix.prompt_tokens);
    assert!(prefix.cached_share() > random.cached_share() + 0.2);
    assert!(prefix.cached_share() > load.cached_share() + 0.2);
    let p99 = |found: &Found| found.first[found.first.len() * 99 / 100];
    assert!(p99(&prefix) < p99(&load) && p99(&load) < p99(&random));
    assert!(prefix.busy < random.busy, "what is cached is not run");
}

#[test]
fn a_fleet_is_the_same_for_the_same_seed() {
    let found = |seed| {
        let workload = Workload { seed, conversations: 200, applications: 12, begun_per_second: 1.0 };
        Fleet::new(Policy::Prefix, 4, workload).simulate()
    };
    assert_eq!(found(7), found(7));
    assert_ne!(found(7), found(8));
}

#[test]
#[ignore = "a minute in a release build"]
fn a_hundred_thousand_conversations_on_a_thousand_replicas() {
    print_policies(100_000);
}

#[test]
#[ignore = "nine minutes in a release build"]
fn a_million_conversations_on_a_thousand_replicas() {
    print_policies(1_000_000);
}

fn print_policies(conversations: u32) {
    let workload = Workload { seed: 42, conversations, applications: 200, begun_per_second: 200.0 };
    for policy in POLICIES {
        Fleet::new(policy, 1000, workload).simulate().print(policy);
    }
}
