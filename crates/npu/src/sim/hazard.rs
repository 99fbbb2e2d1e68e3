//! Accesses that nothing orders: vector clocks and, for each word of memory, who
//! wrote and who read it last.
//!
//! What happens before what follows from the locks, from the words that a stream
//! delivers, from tasks and tokens, and from the order within one agent; not
//! from time (Lamport 1978; the shadow words are those of FastTrack, Flanagan &
//! Freund 2009).

use std::collections::HashMap;

/// What an agent knows to have happened: a count for each agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock(Vec<u32>);

impl Clock {
    pub fn new(agents: usize) -> Clock {
        Clock(vec![0; agents])
    }

    /// Learns what another one knows.
    pub fn join(&mut self, other: &Clock) {
        self.0.iter_mut().zip(&other.0).for_each(|(ours, theirs)| *ours = (*ours).max(*theirs));
    }

    /// A new step of agent `at`: what was published before does not cover it.
    pub fn step(&mut self, at: usize) {
        self.0[at] += 1;
    }

    fn knows(&self, epoch: Epoch) -> bool {
        self.0[usize::from(epoch.agent)] >= epoch.count
    }

    fn epoch(&self, agent: usize) -> Epoch {
        Epoch { agent: agent as u16, count: self.0[agent] }
    }
}

/// A step of an agent. Counts begin at 1; 0 is nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Epoch {
    agent: u16,
    count: u32,
}

/// The last accesses of a stretch of memory, word by word.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    writes: Vec<Epoch>,
    reads: Vec<[Epoch; 2]>,
    /// Readers beyond the second of a word.
    others: HashMap<u32, Vec<Epoch>>,
}

/// What an access collides with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collision {
    /// Nobody has written the word.
    Unwritten { word: usize },
    /// This agent wrote it, and nothing orders that before.
    Written { word: usize, agent: usize },
    /// This agent read it, and nothing orders that before.
    Read { word: usize, agent: usize },
}

impl Shadow {
    pub fn new(words: usize) -> Shadow {
        Shadow {
            writes: vec![Epoch::default(); words],
            reads: vec![[Epoch::default(); 2]; words],
            others: HashMap::new(),
        }
    }

    /// Words that are noted.
    pub fn words(&self) -> usize {
        self.writes.len()
    }

    /// Marks words as written by somebody before the launch.
    pub fn written(&mut self, words: std::ops::Range<usize>, clock: &Clock, agent: usize) {
        self.writes[words].fill(clock.epoch(agent));
    }

    /// Agent `agent`, who knows `clock`, reads words.
    pub fn read(
        &mut self,
        words: std::ops::Range<usize>,
        clock: &Clock,
        agent: usize,
    ) -> Result<(), Collision> {
        let epoch = clock.epoch(agent);
        for word in words {
            let last = self.writes[word];
            if last.count == 0 {
                return Err(Collision::Unwritten { word });
            }
            if !clock.knows(last) {
                return Err(Collision::Written { word, agent: usize::from(last.agent) });
            }
            let slots = &mut self.reads[word];
            let known = |slot: &Epoch| slot.count == 0 || slot.agent == epoch.agent || clock.knows(*slot);
            match slots.iter_mut().find(|slot| known(slot)) {
                Some(slot) => *slot = epoch,
                None => self.others.entry(word as u32).or_default().push(epoch),
            }
        }
        Ok(())
    }

    /// Agent `agent`, who knows `clock`, writes words.
    pub fn write(
        &mut self,
        words: std::ops::Range<usize>,
        clock: &Clock,
        agent: usize,
    ) -> Result<(), Collision> {
        let epoch = clock.epoch(agent);
        for word in words {
            let last = self.writes[word];
            if last.count > 0 && !clock.knows(last) {
                return Err(Collision::Written { word, agent: usize::from(last.agent) });
            }
            let more = if self.others.is_empty() { None } else { self.others.remove(&(word as u32)) };
            let readers = self.reads[word].into_iter().chain(more.into_iter().flatten());
            for reader in readers {
                if reader.count > 0 && !clock.knows(reader) {
                    return Err(Collision::Read { word, agent: usize::from(reader.agent) });
                }
            }
            self.writes[word] = epoch;
            self.reads[word] = [Epoch::default(); 2];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clocks of three agents, each at its first step.
    fn clocks() -> [Clock; 3] {
        std::array::from_fn(|agent| {
            let mut clock = Clock::new(3);
            clock.step(agent);
            clock
        })
    }

    #[test]
    fn a_read_needs_the_write_before_it() {
        let [writer, mut reader, _] = clocks();
        let mut shadow = Shadow::new(2);
        assert_eq!(shadow.read(0..1, &reader, 1), Err(Collision::Unwritten { word: 0 }));
        shadow.write(0..2, &writer, 0).unwrap();
        assert_eq!(shadow.read(1..2, &reader, 1), Err(Collision::Written { word: 1, agent: 0 }));
        reader.join(&writer);
        assert_eq!(shadow.read(0..2, &reader, 1), Ok(()));
    }

    #[test]
    fn a_write_needs_all_reads_before_it() {
        let [mut writer, mut one, mut two] = clocks();
        let mut shadow = Shadow::new(1);
        shadow.write(0..1, &writer, 0).unwrap();
        one.join(&writer);
        two.join(&writer);
        writer.step(0);
        shadow.read(0..1, &writer, 0).unwrap();
        shadow.read(0..1, &one, 1).unwrap();
        shadow.read(0..1, &two, 2).unwrap();
        writer.join(&one);
        assert_eq!(shadow.write(0..1, &writer, 0), Err(Collision::Read { word: 0, agent: 2 }));
        let mut shadow = Shadow::new(1);
        shadow.write(0..1, &writer, 0).unwrap();
        let mut late = two.clone();
        late.join(&writer);
        shadow.read(0..1, &late, 2).unwrap();
        writer.join(&late);
        assert_eq!(shadow.write(0..1, &writer, 0), Ok(()));
    }
}
