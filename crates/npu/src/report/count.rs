//! What cores and channels do in one run of a program, launch by launch.

use std::collections::BTreeMap;

use crate::form::schedule::{Channel, Schedule, Tile};
use crate::sim::{Cause, Cycle, SimEvent, SimWatch};

/// Counts of one launch.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Cycles of configuring the array for it.
    pub configure: Cycle,
    /// Each core's, by tile.
    pub cores: BTreeMap<Tile, CoreCounts>,
    /// Each channel's.
    pub channels: BTreeMap<Channel, ChannelCounts>,
    /// Each kernel entry's, over all cores.
    pub entries: BTreeMap<&'static str, EntryCounts>,
}

/// What a core did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoreCounts {
    /// Cycles within calls.
    pub busy: Cycle,
    /// Cycles of waiting for locks.
    pub locks: Cycle,
    /// Cycles of waiting for the neighbour in the cascade.
    pub cascade: Cycle,
}

/// What a channel did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChannelCounts {
    /// Bytes.
    pub bytes: u64,
    /// Cycles of moving them.
    pub moving: Cycle,
    /// Stretches between two stops.
    pub moves: u64,
}

/// What the calls of an entry were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EntryCounts {
    /// Calls.
    pub calls: u64,
    /// Cycles within them.
    pub cycles: Cycle,
    /// Multiplications.
    pub macs: u64,
}

/// Counts the launches of one run.
pub(super) struct Counter {
    /// Where the words of each channel go, by launch.
    ends: Vec<BTreeMap<Channel, Vec<Channel>>>,
    pub launches: Vec<Counts>,
}

impl Counter {
    pub fn new(schedule: &Schedule) -> Counter {
        let ends = schedule.launches.iter().map(|launch| {
            let route = |route: &crate::form::schedule::Route| {
                (route.from, route.to.iter().map(|hop| hop.channel).collect())
            };
            launch.routes.iter().map(route).collect()
        });
        Counter { ends: ends.collect(), launches: Vec::new() }
    }
}

impl SimWatch for Counter {
    fn event(&mut self, at: Cycle, event: &SimEvent<'_>) {
        if let SimEvent::Launch { configure, .. } = *event {
            self.launches.push(Counts { configure, ..Counts::default() });
        }
        let number = self.launches.len().wrapping_sub(1);
        let Some(counts) = self.launches.last_mut() else { return };
        match *event {
            SimEvent::Call { tile, entry, begin, end, macs } => {
                counts.cores.entry(tile).or_default().busy += end - begin;
                let entry = counts.entries.entry(entry).or_default();
                entry.calls += 1;
                entry.cycles += end - begin;
                entry.macs += macs;
            }
            SimEvent::Wait { tile, cause, begin } => {
                let core = counts.cores.entry(tile).or_default();
                match cause {
                    Cause::Lock(_) => core.locks += at - begin,
                    Cause::Cascade => core.cascade += at - begin,
                }
            }
            SimEvent::Move { from, bytes, begin, .. } => {
                let ends = self.ends[number].get(&from).into_iter().flatten();
                for channel in [from].iter().chain(ends) {
                    let channel = counts.channels.entry(*channel).or_default();
                    channel.bytes += bytes;
                    channel.moving += at - begin;
                    channel.moves += 1;
                }
            }
            SimEvent::Launch { .. } | SimEvent::Push { .. } | SimEvent::Token { .. } => {}
        }
    }
}
