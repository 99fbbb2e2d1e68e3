//! Counts what cores and channels do in each launch of one run of a program.

use std::collections::BTreeMap;

use girih_npu::form::schedule::{Channel, Route, Schedule, Tile};
use girih_npu::sim::{Cause, Cycle, SimEvent, SimWatch};

/// Counts of one launch.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    /// Cycles spent on configuring the array for the launch.
    pub configure: Cycle,
    /// The counts of each core, by tile.
    pub cores: BTreeMap<Tile, CoreCounts>,
    /// The counts of each channel.
    pub channels: BTreeMap<Channel, ChannelCounts>,
    /// The counts of each kernel entry, over all cores.
    pub entries: BTreeMap<&'static str, EntryCounts>,
}

/// The activity of a core.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoreCounts {
    /// Cycles within calls.
    pub busy: Cycle,
    /// Cycles spent waiting for locks.
    pub locks: Cycle,
    /// Cycles spent waiting for the neighbour in the cascade.
    pub cascade: Cycle,
}

/// The activity of a channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ChannelCounts {
    /// Bytes moved.
    pub bytes: u64,
    /// Cycles spent moving them.
    pub moving: Cycle,
    /// The number of uninterrupted moves.
    pub moves: u64,
}

/// The calls of a kernel entry.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct EntryCounts {
    /// Calls.
    pub calls: u64,
    /// Cycles within calls.
    pub cycles: Cycle,
    /// Multiply-accumulates.
    pub macs: u64,
}

/// Counts the launches of one run.
pub(super) struct Counter {
    /// The receiving channels of each channel, by launch.
    ends: Vec<BTreeMap<Channel, Vec<Channel>>>,
    pub launches: Vec<Counts>,
}

impl Counter {
    pub fn new(schedule: &Schedule) -> Counter {
        let ends = schedule.launches.iter().map(|launch| {
            let route = |route: &Route| (route.from, route.to.iter().map(|hop| hop.channel).collect());
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
