//! What an observer sees of a run, and the totals that every run counts.

use super::time::Cycle;
use crate::form::schedule::{Channel, Tile};

/// Something that happened.
#[derive(Clone, Copy, Debug)]
pub enum SimEvent<'a> {
    /// A launch begins, after so many cycles of configuring.
    Launch {
        /// Its name.
        name: &'a str,
        /// Cycles of configuring; 0 if the array held the configuration.
        configure: Cycle,
    },
    /// A core calls a kernel; told when it is issued, as its end is known then.
    Call {
        /// The core's tile.
        tile: Tile,
        /// The entry's name.
        entry: &'static str,
        /// When it begins.
        begin: Cycle,
        /// When it is over.
        end: Cycle,
        /// Multiplications.
        macs: u64,
    },
    /// A core has waited and goes on.
    Wait {
        /// The core's tile.
        tile: Tile,
        /// For what.
        cause: Cause,
        /// Since when.
        begin: Cycle,
    },
    /// A stream has moved words.
    Move {
        /// Where they came from.
        from: Channel,
        /// The first of where they went.
        to: Channel,
        /// How many bytes, once for all destinations.
        bytes: u64,
        /// When the first word left.
        begin: Cycle,
    },
    /// The command processor has queued a task.
    Push {
        /// On this channel.
        channel: Channel,
    },
    /// The command processor has had a token.
    Token {
        /// Of this channel.
        channel: Channel,
    },
}

/// What a core waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A lock, an index into those of the launch.
    Lock(u32),
    /// Its neighbour in the cascade.
    Cascade,
}

/// An observer. Events come when they are over unless they say otherwise; all
/// times count from the beginning of the dispatch.
pub trait SimWatch {
    /// Something has happened.
    fn event(&mut self, at: Cycle, event: &SimEvent<'_>);

    /// Whether it must see every launch event by event, even one whose time is
    /// known already.
    fn wants_all(&self) -> bool {
        true
    }
}

/// Nobody watches.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimUnwatched;

impl SimWatch for SimUnwatched {
    fn event(&mut self, _: Cycle, _: &SimEvent<'_>) {}

    fn wants_all(&self) -> bool {
        false
    }
}

/// How a run went.
#[derive(Clone, Debug, PartialEq)]
pub struct SimReport {
    /// From the dispatch to its end.
    pub cycles: Cycle,
    /// Of these, the dispatch itself.
    pub dispatch: Cycle,
    /// Of these, configuring the array.
    pub configure: Cycle,
    /// Each launch.
    pub launches: Vec<LaunchReport>,
    /// Sums over all launches.
    pub totals: Totals,
}

/// How one launch went.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchReport {
    /// Its name.
    pub name: String,
    /// When its first command began.
    pub begin: Cycle,
    /// How long it took from there.
    pub cycles: Cycle,
    /// What its cores did.
    pub cores: Vec<CoreTotals>,
    /// Its share of the totals.
    pub totals: Totals,
}

/// What one core did in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreTotals {
    /// Its tile.
    pub tile: Tile,
    /// Cycles within calls.
    pub busy: Cycle,
    /// Calls.
    pub calls: u64,
    /// Multiplications.
    pub macs: u64,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes read from DRAM.
    pub dram_read: u64,
    /// Bytes written to DRAM.
    pub dram_written: u64,
    /// Bytes of long runs that DRAM could have moved in the time that it gave
    /// to transfers; 0 in a seeded order.
    pub dram_service: u64,
    /// Bytes that all streams moved.
    pub streamed: u64,
    /// Multiplications.
    pub macs: u64,
    /// Tasks that the command processor gave.
    pub pushes: u64,
    /// Events of the simulation.
    pub events: u64,
}

impl SimReport {
    pub(super) fn new(dispatch: Cycle) -> SimReport {
        let (launches, totals) = (Vec::new(), Totals::default());
        SimReport { cycles: dispatch, dispatch, configure: 0, launches, totals }
    }

    pub(super) fn add(&mut self, launch: LaunchReport, configure: Cycle) {
        self.cycles += launch.cycles;
        self.configure += configure;
        self.totals.add(&launch.totals);
        self.launches.push(launch);
    }
}

impl Totals {
    fn add(&mut self, other: &Totals) {
        self.dram_read += other.dram_read;
        self.dram_written += other.dram_written;
        self.dram_service += other.dram_service;
        self.streamed += other.streamed;
        self.macs += other.macs;
        self.pushes += other.pushes;
        self.events += other.events;
    }
}
