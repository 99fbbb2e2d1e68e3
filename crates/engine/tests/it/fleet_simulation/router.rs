//! The router: which replica gets a request.

use std::collections::HashMap;

use girih_graph::BLOCK_POSITIONS;
use girih_tensor::Random;

use crate::fleet_simulation::replica::Happened;
use crate::fleet_simulation::workload::{BlockKey, Turn};

/// The rows that a reply of unknown length is counted as.
const REPLY_ROWS: u32 = 32;

/// How a replica is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Any replica.
    Random,
    /// The replica with the fewest rows left to run.
    Load,
    /// The replica with the fewest rows left to run, those of the request included that its cache lacks.
    Prefix,
}

/// What a router that sees all requests, replies and events knows.
pub struct Router {
    policy: Policy,
    random: Random,
    /// The replicas that have each block.
    holders: HashMap<BlockKey, Vec<u16>>,
    /// The rows that each replica has left to run.
    left: Vec<u32>,
    /// Of each request: its replica, and the rows of its prompt that are left.
    sent: HashMap<u32, (u16, u32)>,
}

impl Router {
    pub fn new(policy: Policy, replicas: u16, seed: u64) -> Router {
        let left = vec![0; usize::from(replicas)];
        Router { policy, random: Random(seed), holders: HashMap::new(), left, sent: HashMap::new() }
    }

    /// The replica of a request, which is then sent to it.
    pub fn choose(&mut self, turn: &Turn) -> u16 {
        let (chosen, cached) = match self.policy {
            Policy::Random => (self.random.below(self.left.len()) as u16, 0),
            Policy::Load => (self.idlest(), 0),
            Policy::Prefix => self.by_prefix(turn),
        };
        let rows = turn.prompt - cached;
        self.left[usize::from(chosen)] += rows + REPLY_ROWS;
        self.sent.insert(turn.conversation, (chosen, rows));
        chosen
    }

    /// The replica with the fewest rows left; of several, the next one after a random one.
    fn idlest(&mut self) -> u16 {
        let start = self.random.below(self.left.len());
        let fewest = *self.left.iter().min().expect("there is a replica");
        let mut from_start = self.left[start..].iter().chain(&self.left[..start]);
        let after = from_start.position(|left| *left == fewest).expect("one has the fewest");
        ((start + after) % self.left.len()) as u16
    }

    /// The replica that has the fewest rows left with this request, and the tokens that it has cached of it.
    fn by_prefix(&mut self, turn: &Turn) -> (u16, u32) {
        let mut best = (self.idlest(), 0);
        let fewest = self.left[usize::from(best.0)];
        let mut rows = fewest + turn.prompt;
        // A replica that has a block has all blocks before it.
        for index in (0..(turn.prompt - 1) / BLOCK_POSITIONS as u32).rev() {
            let cached = (index + 1) * BLOCK_POSITIONS as u32;
            let missing = turn.prompt - cached;
            if fewest + missing >= rows {
                break;
            }
            for holder in self.holders.get(&turn.block(index)).into_iter().flatten() {
                let with = self.left[usize::from(*holder)] + missing;
                if with < rows {
                    (best, rows) = ((*holder, cached), with);
                }
            }
        }
        best
    }

    /// Learns what happened at a replica.
    pub fn learn(&mut self, replica: u16, happened: &Happened) {
        match happened {
            Happened::Stored(block) => self.holders.entry(*block).or_default().push(replica),
            Happened::Removed(block) => {
                let holders = self.holders.get_mut(block).expect("what is removed was stored");
                let at = holders.iter().position(|one| *one == replica).expect("the replica had it");
                holders.swap_remove(at);
                if holders.is_empty() {
                    self.holders.remove(block);
                }
            }
            Happened::Begun { conversation, .. } => {
                let (replica, rows) = self.sent.get_mut(conversation).expect("it was sent");
                self.left[usize::from(*replica)] -= std::mem::take(rows);
            }
            Happened::Ended { conversation, .. } => {
                let (replica, _) = self.sent.remove(conversation).expect("it was sent");
                self.left[usize::from(replica)] -= REPLY_ROWS;
            }
        }
    }

    /// The blocks that a replica has, in order.
    pub fn blocks_of(&self, replica: u16) -> Vec<BlockKey> {
        let held = self.holders.iter().filter(|(_, holders)| holders.contains(&replica));
        let mut blocks: Vec<BlockKey> = held.map(|(block, _)| *block).collect();
        blocks.sort();
        blocks
    }
}
