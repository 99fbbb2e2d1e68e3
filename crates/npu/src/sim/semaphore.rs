//! Counting semaphores and the agents that wait for them.

use std::collections::VecDeque;

use super::agent::{Agent, Blocked};
use super::hazard::VectorClock;

/// A semaphore of a tile.
#[derive(Debug)]
pub(super) struct Semaphore {
    value: u32,
    max: u32,
    /// Agents whose acquire failed.
    waiting: Vec<Agent>,
    /// The clock of each released unit, oldest first; an acquire takes the
    /// oldest. Kept only while hazards are checked.
    released: VecDeque<(u32, VectorClock)>,
}

impl Semaphore {
    pub fn new(initial: u32, max: u32) -> Semaphore {
        Semaphore { value: initial, max, waiting: Vec::new(), released: VecDeque::new() }
    }

    pub fn value(&self) -> u32 {
        self.value
    }

    /// Checks that an acquire of `value` would succeed.
    pub fn ready(&self, lock: u32, value: u32) -> Result<(), Blocked> {
        if self.value >= value { Ok(()) } else { Err(Blocked::Lock { lock, needs: value, has: self.value }) }
    }

    /// Acquires `value`, which must be available; `clock` joins the clocks of
    /// the released units.
    pub fn acquire(&mut self, value: u32, clock: Option<&mut VectorClock>) {
        assert!(self.value >= value, "the caller has checked that the value is available");
        self.value -= value;
        let Some(clock) = clock else { return };
        let mut left = value;
        while left > 0 {
            // Initial units carry no clock.
            let Some((units, before)) = self.released.front_mut() else { return };
            clock.join(before);
            let taken = left.min(*units);
            (*units, left) = (*units - taken, left - taken);
            if *units == 0 {
                self.released.pop_front();
            }
        }
    }

    /// Attaches a clock to the initial units.
    pub fn begin(&mut self, clock: VectorClock) {
        if self.value > 0 {
            self.released.push_back((self.value, clock));
        }
    }

    /// Releases `value` and moves the waiting agents to `woken`. Returns false
    /// if the value would exceed the maximum.
    pub fn release(&mut self, value: u32, clock: Option<&VectorClock>, woken: &mut Vec<Agent>) -> bool {
        if self.max - self.value < value {
            return false;
        }
        self.value += value;
        if let Some(clock) = clock {
            self.released.push_back((value, clock.clone()));
        }
        woken.append(&mut self.waiting);
        true
    }

    /// Adds an agent to the waiting ones.
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
    fn an_acquire_succeeds_only_when_the_value_is_available() {
        let mut lock = Semaphore::new(1, 63);
        assert_eq!(lock.ready(7, 2), Err(Blocked::Lock { lock: 7, needs: 2, has: 1 }));
        let mut woken = Vec::new();
        lock.wait(Agent::Core(3));
        lock.wait(Agent::Core(3));
        assert!(lock.release(1, None, &mut woken));
        assert_eq!(woken, [Agent::Core(3)]);
        assert_eq!(lock.ready(7, 2), Ok(()));
        lock.acquire(2, None);
        assert_eq!(lock.value(), 0);
    }

    #[test]
    fn a_semaphore_counts_to_its_maximum_and_no_further() {
        let mut lock = Semaphore::new(62, 63);
        assert!(lock.release(1, None, &mut Vec::new()));
        assert!(!lock.release(1, None, &mut Vec::new()));
        assert_eq!(lock.value(), 63);
    }
}
