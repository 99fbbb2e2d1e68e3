//! Counting semaphores: who may go on, and who waits.

use std::collections::VecDeque;

use super::agent::{Agent, Blocked};
use super::hazard::VectorClock;

/// A semaphore of a tile.
#[derive(Debug)]
pub(super) struct Semaphore {
    value: u32,
    most: u32,
    /// Agents that asked and were not let through.
    waiting: Vec<Agent>,
    /// What had happened when each unit was released, oldest first; an acquire
    /// takes the oldest. Only kept while hazards are looked for.
    released: VecDeque<(u32, VectorClock)>,
}

impl Semaphore {
    pub fn new(initial: u32, most: u32) -> Semaphore {
        Semaphore { value: initial, most, waiting: Vec::new(), released: VecDeque::new() }
    }

    pub fn value(&self) -> u32 {
        self.value
    }

    /// Whether an acquire of `value` would be let through.
    pub fn ready(&self, lock: u32, value: u32) -> Result<(), Blocked> {
        if self.value >= value { Ok(()) } else { Err(Blocked::Lock { lock, needs: value, has: self.value }) }
    }

    /// Takes `value`, which must be there; `clock` learns what happened before
    /// the units were released.
    pub fn take(&mut self, value: u32, clock: Option<&mut VectorClock>) {
        assert!(self.value >= value, "whoever takes has asked");
        self.value -= value;
        let Some(clock) = clock else { return };
        let mut left = value;
        while left > 0 {
            // Units that are there from the start carry nothing.
            let Some((units, before)) = self.released.front_mut() else { return };
            clock.join(before);
            let taken = left.min(*units);
            (*units, left) = (*units - taken, left - taken);
            if *units == 0 {
                self.released.pop_front();
            }
        }
    }

    /// Units that are there when the launch begins.
    pub fn begin(&mut self, clock: VectorClock) {
        if self.value > 0 {
            self.released.push_back((self.value, clock));
        }
    }

    /// Adds `value` and hands over those who wait. The answer is no if the lock
    /// cannot count that far.
    pub fn give(&mut self, value: u32, clock: Option<&VectorClock>, woken: &mut Vec<Agent>) -> bool {
        if self.most - self.value < value {
            return false;
        }
        self.value += value;
        if let Some(clock) = clock {
            self.released.push_back((value, clock.clone()));
        }
        woken.append(&mut self.waiting);
        true
    }

    /// Notes that an agent waits.
    pub fn wait(&mut self, agent: Agent) {
        if !self.waiting.contains(&agent) {
            self.waiting.push(agent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquire_goes_through_when_the_value_is_there_and_not_before() {
        let mut lock = Semaphore::new(1, 63);
        assert_eq!(lock.ready(7, 2), Err(Blocked::Lock { lock: 7, needs: 2, has: 1 }));
        let mut woken = Vec::new();
        lock.wait(Agent::Core(3));
        lock.wait(Agent::Core(3));
        assert!(lock.give(1, None, &mut woken));
        assert_eq!(woken, [Agent::Core(3)]);
        assert_eq!(lock.ready(7, 2), Ok(()));
        lock.take(2, None);
        assert_eq!(lock.value(), 0);
    }

    #[test]
    fn a_lock_counts_to_its_most_and_no_further() {
        let mut lock = Semaphore::new(62, 63);
        assert!(lock.give(1, None, &mut Vec::new()));
        assert!(!lock.give(1, None, &mut Vec::new()));
        assert_eq!(lock.value(), 63);
    }
}
