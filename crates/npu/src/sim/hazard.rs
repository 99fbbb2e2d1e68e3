//! Detects unordered accesses with vector clocks and, for each word of memory,
//! its last writer and readers.
//!
//! The order follows from the locks, from the words that a stream delivers,
//! from tasks and tokens, and from the program order of one agent; not from
//! time (Lamport 1978; the shadow words are those of FastTrack, Flanagan &
//! Freund 2009).
//!
//! Runs that only time first check by tile: the accesses to a tile's memory are
//! ordered by the locks of that tile, so short clocks suffice. Where they do not,
//! the launch is checked again with clocks of all agents.

use std::collections::HashMap;
use std::ops::Range;

use crate::form::schedule::Direction;

/// A vector clock: for each agent, the number of its steps that happened
/// before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VectorClock {
    /// The agents of one tile: its core, then its channels.
    Tile([u32; TILE_AGENTS]),
    /// All agents of a launch.
    Launch(Vec<u32>),
}

/// The largest number of agents of a tile: a memory tile has twelve channels, and every tile has
/// the place of a core, rounded up.
pub(super) const TILE_AGENTS: usize = 16;

impl VectorClock {
    pub fn new(agents: usize) -> VectorClock {
        VectorClock::Launch(vec![0; agents])
    }

    /// Takes the maximum with another clock of the same agents. A clock of other agents is
    /// ignored: it orders less, so that a check suspects more.
    pub fn join(&mut self, other: &VectorClock) {
        let max = |(ours, theirs): (&mut u32, &u32)| *ours = (*ours).max(*theirs);
        match (self, other) {
            (VectorClock::Tile(ours), VectorClock::Tile(theirs)) => ours.iter_mut().zip(theirs).for_each(max),
            (VectorClock::Launch(ours), VectorClock::Launch(theirs)) => {
                ours.iter_mut().zip(theirs).for_each(max);
            }
            _ => {}
        }
    }

    /// Starts a new step of agent `at`; clocks published before do not cover
    /// it.
    pub fn step(&mut self, at: usize) {
        match self {
            VectorClock::Tile(counts) => counts[at] += 1,
            VectorClock::Launch(counts) => counts[at] += 1,
        }
    }

    fn count(&self, agent: usize) -> u32 {
        match self {
            VectorClock::Tile(counts) => counts[agent],
            VectorClock::Launch(counts) => counts[agent],
        }
    }

    fn covers(&self, epoch: Epoch) -> bool {
        self.count(usize::from(epoch.agent)) >= epoch.count
    }

    fn epoch(&self, agent: usize) -> Epoch {
        Epoch { agent: agent as u16, count: self.count(agent) }
    }
}

/// The clocks of the agents of a launch.
#[derive(Debug)]
pub(super) struct AgentClocks {
    clocks: Vec<VectorClock>,
    /// The place of each agent in its clock.
    places: Vec<usize>,
    /// Whether clocks have the agents of one tile where they can. Such clocks leave out the order
    /// that follows from streams and tasks: what they find is a suspicion, and an exact run decides.
    pub by_tile: bool,
    /// Whether a check by tile has found something.
    pub is_suspected: bool,
}

impl AgentClocks {
    /// Clocks of all agents, each in its first step after `before`.
    pub fn exact(agents: usize, before: &VectorClock) -> AgentClocks {
        let mut all = AgentClocks {
            clocks: vec![before.clone(); agents],
            places: (0..agents).collect(),
            by_tile: false,
            is_suspected: false,
        };
        all.begin();
        all
    }

    /// As [`AgentClocks::exact`], by tile: `places` has the place of each agent among those of its
    /// tile, and none for agents that access DRAM.
    pub fn by_tile(places: &[Option<usize>], before: &VectorClock) -> AgentClocks {
        let clock = |place: &Option<usize>| match place {
            Some(_) => VectorClock::Tile([0; TILE_AGENTS]),
            None => before.clone(),
        };
        let place = |(agent, place): (usize, &Option<usize>)| place.unwrap_or(agent);
        let mut all = AgentClocks {
            clocks: places.iter().map(clock).collect(),
            places: places.iter().enumerate().map(place).collect(),
            by_tile: true,
            is_suspected: false,
        };
        all.begin();
        all
    }

    fn begin(&mut self) {
        self.clocks.iter_mut().zip(&self.places).for_each(|(clock, place)| clock.step(*place));
    }

    /// Returns the clock of an agent, then starts its next step.
    pub fn publish(&mut self, agent: usize) -> VectorClock {
        let clock = self.clocks[agent].clone();
        self.clocks[agent].step(self.places[agent]);
        clock
    }

    /// The clock of an agent.
    pub fn of(&mut self, agent: usize) -> &mut VectorClock {
        &mut self.clocks[agent]
    }

    /// Records an access of an agent to words.
    pub fn access(
        &self,
        agent: usize,
        shadow: &mut Shadow,
        words: Range<usize>,
        way: Direction,
    ) -> Result<(), Collision> {
        let (clock, place) = (&self.clocks[agent], self.places[agent]);
        match way {
            Direction::Mm2s => shadow.read(words, clock, place),
            Direction::S2mm => shadow.write(words, clock, place),
        }
    }
}

/// A step of an agent. Counts begin at 1; 0 means no access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Epoch {
    agent: u16,
    count: u32,
}

/// The last accesses to a range of memory.
///
/// They are recorded in grains of equal size. A range starts as one grain, and
/// its grains are split when an access begins or ends inside one, so every
/// access covers whole grains. The result is as exact as with one record per
/// word.
#[derive(Debug)]
pub(super) struct Shadow {
    words: usize,
    /// Words per grain.
    size: usize,
    grains: Vec<Grain>,
    /// The readers of a grain beyond the first two.
    others: HashMap<u32, Vec<Epoch>>,
}

/// The last writer and readers of some words.
#[derive(Clone, Copy, Debug, Default)]
struct Grain {
    write: Epoch,
    reads: [Epoch; 2],
}

/// The conflict of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collision {
    /// The word has not been written.
    Unwritten { word: usize },
    /// This agent wrote the word, and nothing orders that write before the
    /// access.
    Written { word: usize, agent: usize },
    /// This agent read the word, and nothing orders that read before the
    /// access.
    Read { word: usize, agent: usize },
}

impl Shadow {
    pub fn new(words: usize) -> Shadow {
        let grains = vec![Grain::default(); words.min(1)];
        Shadow { words, size: words.max(1), grains, others: HashMap::new() }
    }

    /// The number of words.
    pub fn words(&self) -> usize {
        self.words
    }

    /// The grains of these words, after splitting so that the words are whole
    /// grains.
    fn grains(&mut self, words: &Range<usize>) -> Range<usize> {
        let size = divisor(divisor(self.size, words.start), words.end);
        if size < self.size {
            let parts = self.size / size;
            let cut = |grain: &Grain| std::iter::repeat_n(*grain, parts);
            self.grains = self.grains.iter().flat_map(cut).collect();
            for (grain, readers) in std::mem::take(&mut self.others) {
                let first = grain * parts as u32;
                self.others.extend((first..first + parts as u32).map(|part| (part, readers.clone())));
            }
            self.size = size;
        }
        words.start / size..words.end / size
    }

    /// Marks words as written before the launch.
    pub fn written(&mut self, words: Range<usize>, clock: &VectorClock, agent: usize) {
        let grains = self.grains(&words);
        self.grains[grains].iter_mut().for_each(|grain| grain.write = clock.epoch(agent));
    }

    /// Records a read by `agent`, whose clock is `clock`.
    pub fn read(&mut self, words: Range<usize>, clock: &VectorClock, agent: usize) -> Result<(), Collision> {
        let epoch = clock.epoch(agent);
        for number in self.grains(&words) {
            let (grain, word) = (&mut self.grains[number], number * self.size);
            if grain.write.count == 0 {
                return Err(Collision::Unwritten { word });
            }
            if !clock.covers(grain.write) {
                return Err(Collision::Written { word, agent: usize::from(grain.write.agent) });
            }
            let known = |slot: &Epoch| slot.count == 0 || slot.agent == epoch.agent || clock.covers(*slot);
            match grain.reads.iter_mut().find(|slot| known(slot)) {
                Some(slot) => *slot = epoch,
                None => self.others.entry(number as u32).or_default().push(epoch),
            }
        }
        Ok(())
    }

    /// Records a write by `agent`, whose clock is `clock`.
    pub fn write(&mut self, words: Range<usize>, clock: &VectorClock, agent: usize) -> Result<(), Collision> {
        let epoch = clock.epoch(agent);
        for number in self.grains(&words) {
            let (grain, word) = (&mut self.grains[number], number * self.size);
            if grain.write.count > 0 && !clock.covers(grain.write) {
                return Err(Collision::Written { word, agent: usize::from(grain.write.agent) });
            }
            let more = if self.others.is_empty() { None } else { self.others.remove(&(number as u32)) };
            let readers = grain.reads.into_iter().chain(more.into_iter().flatten());
            for reader in readers {
                if reader.count > 0 && !clock.covers(reader) {
                    return Err(Collision::Read { word, agent: usize::from(reader.agent) });
                }
            }
            *grain = Grain { write: epoch, reads: [Epoch::default(); 2] };
        }
        Ok(())
    }
}

/// The greatest common divisor of a size and a number that may be 0.
fn divisor(size: usize, number: usize) -> usize {
    let (mut size, mut rest) = (size, number % size);
    while rest > 0 {
        (size, rest) = (rest, size % rest);
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clocks of three agents, each at its first step.
    fn clocks() -> [VectorClock; 3] {
        std::array::from_fn(|agent| {
            let mut clock = VectorClock::new(3);
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

    /// The plain twin: one record per word.
    struct WordNotes {
        writes: Vec<Epoch>,
        reads: Vec<Vec<Epoch>>,
    }

    impl WordNotes {
        fn access(
            &mut self,
            write: bool,
            words: Range<usize>,
            clock: &VectorClock,
            at: usize,
        ) -> Result<(), Collision> {
            for word in words {
                let last = self.writes[word];
                let agent = |epoch: Epoch| usize::from(epoch.agent);
                if last.count == 0 && !write {
                    return Err(Collision::Unwritten { word });
                }
                if last.count > 0 && !clock.covers(last) {
                    return Err(Collision::Written { word, agent: agent(last) });
                }
                let reads = &mut self.reads[word];
                if !write {
                    reads.push(clock.epoch(at));
                    continue;
                }
                if let Some(&read) = reads.iter().find(|read| !clock.covers(**read)) {
                    return Err(Collision::Read { word, agent: agent(read) });
                }
                reads.clear();
                self.writes[word] = clock.epoch(at);
            }
            Ok(())
        }
    }

    /// Random accesses with random bounds, by agents that sometimes join
    /// clocks: grains find a collision exactly where words do, at the same
    /// word. If two readers collide, either may be named.
    #[test]
    fn grains_are_as_exact_as_words() {
        const WORDS: usize = 48;
        let mut random = girih_tensor::Random(11);
        let mut draw = |limit: usize| random.below(limit);
        let (mut passed, mut collided) = (0, [0; 3]);
        for trial in 0..2000 {
            let (mut clocks, mut shadow) = (clocks(), Shadow::new(WORDS));
            let (writes, reads) = (vec![Epoch::default(); WORDS], vec![Vec::new(); WORDS]);
            let mut words = WordNotes { writes, reads };
            if trial % 8 > 0 {
                words.access(true, 0..WORDS, &clocks[0], 0).unwrap();
                shadow.write(0..WORDS, &clocks[0], 0).unwrap();
                let begun = clocks[0].clone();
                clocks.iter_mut().for_each(|clock| clock.join(&begun));
            }
            for _ in 0..40 {
                let (at, from, size) = (draw(3), draw(3), [1, 4, 8, 12][draw(4)]);
                let known = clocks[from].clone();
                clocks[at].join(&known);
                clocks[from].step(from);
                let first = draw(WORDS / size) * size;
                let range = first..first + size;
                let write = draw(6) == 0;
                let want = words.access(write, range.clone(), &clocks[at], at);
                let found = match write {
                    true => shadow.write(range, &clocks[at], at),
                    false => shadow.read(range, &clocks[at], at),
                };
                match (want, found) {
                    (Ok(()), Ok(())) => passed += 1,
                    (Err(Collision::Read { word, .. }), Err(Collision::Read { word: found, .. })) => {
                        assert_eq!(word, found);
                        collided[2] += 1;
                        break;
                    }
                    (Err(want), Err(found)) => {
                        assert_eq!(want, found);
                        collided[usize::from(matches!(want, Collision::Written { .. }))] += 1;
                        break;
                    }
                    (want, found) => panic!("words give {want:?} and grains {found:?}"),
                }
            }
        }
        assert!(passed > 1000 && collided.iter().all(|&count| count > 20), "{passed} {collided:?}");
    }
}
