//! Conversations whose prompts begin with the system prompts of applications.

use std::ops::Range;
use std::time::Duration;

use girih_graph::BLOCK_POSITIONS;
use girih_tensor::Random;
use girih_tensor::random::mix;

/// The number of tokens of a system prompt, of a user's message and of a reply, uniform in these ranges.
const SYSTEM: Range<usize> = 128..513;
const MESSAGE: Range<usize> = 16..225;
const REPLY: Range<usize> = 16..49;

/// One in this many turns is a conversation's last one, so this is the mean number of turns.
const TURNS: usize = 3;

/// The maximum number of turns of a conversation.
const MAX_TURNS: u32 = 12;

/// The shortest time from a reply to the user's next message, and the mean time beyond that.
const PAUSE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];

/// Who talks, and how much.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    pub seed: u64,
    pub conversations: u32,
    /// The number of system prompts. The `n`-th is used `1 / n` times as often as the first (Zipf's law).
    pub applications: u32,
    /// The mean number of conversations that begin in a second; they begin independently.
    pub begun_per_second: f64,
}

/// A request: the prompt has all turns before it. Tokens at the same position of two prompts are
/// equal if and only if their keys are: the text that they are of, a system prompt or a conversation.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub conversation: u32,
    system_key: u32,
    own_key: u32,
    system: u32,
    /// The number of tokens of the prompt.
    pub prompt: u32,
    /// The number of tokens of the reply.
    pub reply: u32,
}

/// A block of a prompt: the key of its last position and its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(u32, u32);

impl BlockKey {
    /// The key of the block with this index in a sequence that has whole blocks up to there.
    pub fn of(keys: &[u32], index: usize) -> BlockKey {
        BlockKey(keys[(index + 1) * BLOCK_POSITIONS - 1], index as u32)
    }
}

impl Turn {
    /// The keys of the prompt.
    pub fn prompt_keys(&self) -> Vec<u32> {
        let mut keys = vec![self.system_key; self.system as usize];
        keys.resize(self.prompt as usize, self.own_key);
        keys
    }

    /// The keys of these positions of the prompt and its reply.
    pub fn keys(&self, positions: Range<u32>) -> Vec<u32> {
        positions.map(|position| self.key(position)).collect()
    }

    fn key(&self, position: u32) -> u32 {
        if position < self.system { self.system_key } else { self.own_key }
    }

    pub fn block(&self, index: u32) -> BlockKey {
        BlockKey(self.key((index + 1) * BLOCK_POSITIONS as u32 - 1), index)
    }
}

/// A conversation that has not ended.
pub struct Conversation {
    random: Random,
    turn: Turn,
    turns: u32,
}

impl Conversation {
    pub fn turn(&self) -> Turn {
        self.turn
    }

    /// Goes on to the next turn; returns the time from the reply to it, or `None` after the last one.
    pub fn advance(&mut self) -> Option<Duration> {
        self.turns += 1;
        if self.turns >= MAX_TURNS || self.random.once_in(TURNS) {
            return None;
        }
        self.turn.prompt += self.turn.reply + within(&mut self.random, MESSAGE);
        self.turn.reply = within(&mut self.random, REPLY);
        Some(PAUSE[0] + exponential(&mut self.random, PAUSE[1]))
    }
}

fn within(random: &mut Random, range: Range<usize>) -> u32 {
    (range.start + random.below(range.len())) as u32
}

/// A time of an exponential distribution.
fn exponential(random: &mut Random, mean: Duration) -> Duration {
    let uniform = (random.bits() >> 11) as f64 / (1u64 << 53) as f64;
    mean.mul_f64(-(1.0 - uniform).ln())
}

/// The conversations of a workload in the order in which they begin.
pub struct Beginnings {
    workload: Workload,
    random: Random,
    /// The weights of the system prompts, each with those before it.
    weights: Vec<f64>,
    next: u32,
    at: Duration,
}

impl Beginnings {
    pub fn new(workload: Workload) -> Beginnings {
        let weights = (1..=workload.applications).scan(0.0, |sum, rank| {
            *sum += 1.0 / f64::from(rank);
            Some(*sum)
        });
        let (weights, random) = (weights.collect(), Random(workload.seed));
        Beginnings { workload, random, weights, next: 0, at: Duration::ZERO }
    }

    /// The next conversation, if it begins before `end`, and its time.
    pub fn before(&mut self, end: Duration) -> Option<(Duration, Conversation)> {
        if self.is_over() || self.at >= end {
            return None;
        }
        let (at, conversation) = (self.at, self.conversation());
        self.next += 1;
        self.at +=
            exponential(&mut self.random, Duration::from_secs_f64(1.0 / self.workload.begun_per_second));
        Some((at, conversation))
    }

    pub fn is_over(&self) -> bool {
        self.next >= self.workload.conversations
    }

    fn conversation(&self) -> Conversation {
        let Workload { seed, applications, .. } = self.workload;
        let mut random = Random(mix(seed ^ mix(u64::from(self.next))));
        let all = *self.weights.last().expect("there is a system prompt");
        let drawn = (random.bits() >> 11) as f64 / (1u64 << 53) as f64 * all;
        let system_key = self.weights.partition_point(|sum| *sum <= drawn) as u32;
        let system = within(&mut Random(mix(seed) ^ u64::from(system_key)), SYSTEM);
        let prompt = system + within(&mut random, MESSAGE);
        let reply = within(&mut random, REPLY);
        let (conversation, own_key) = (self.next, applications + self.next);
        Conversation {
            random,
            turn: Turn { conversation, system_key, own_key, system, prompt, reply },
            turns: 0,
        }
    }
}
