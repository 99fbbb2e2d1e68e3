//! Events for an observer of a run, and the totals that every run counts.

use super::time::Cycle;
use crate::form::schedule::{Channel, Tile};

/// An event of a run.
#[derive(Clone, Copy, Debug)]
pub enum SimEvent<'a> {
    /// A launch begins, after `configure` cycles of configuration.
    Launch {
        /// Its name.
        name: &'a str,
        /// Cycles of configuration; 0 if the array already had it.
        configure: Cycle,
    },
    /// A core calls a kernel. Reported when the call is issued, since its end
    /// is then known.
    Call {
        /// The core's tile.
        tile: Tile,
        /// The entry's name.
        entry: &'static str,
        /// When the call begins.
        begin: Cycle,
        /// When the call ends.
        end: Cycle,
        /// Multiply-accumulates.
        macs: u64,
    },
    /// A core ends a wait.
    Wait {
        /// The core's tile.
        tile: Tile,
        /// The cause.
        cause: Cause,
        /// When the wait began.
        begin: Cycle,
    },
    /// A stream has moved words.
    Move {
        /// The source.
        from: Channel,
        /// The first destination.
        to: Channel,
        /// Bytes, counted once for all destinations.
        bytes: u64,
        /// When the first word left.
        begin: Cycle,
    },
    /// The command processor has queued a task.
    Push {
        /// The channel of the task.
        channel: Channel,
    },
    /// The command processor has taken a token.
    Token {
        /// The channel of the token.
        channel: Channel,
    },
}

/// The reason for a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A lock: its index in the launch.
    Lock(u32),
    /// The neighbour in the cascade.
    Cascade,
}

/// An observer. Events are reported when they end unless stated otherwise;
/// times count from the start of the dispatch.
pub trait SimWatch {
    /// Receives an event.
    fn event(&mut self, at: Cycle, event: &SimEvent<'_>);

    /// Whether it needs all events of every launch, even of a launch whose time
    /// is already known.
    fn wants_all(&self) -> bool {
        true
    }
}

/// An observer that ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimUnwatched;

impl SimWatch for SimUnwatched {
    fn event(&mut self, _: Cycle, _: &SimEvent<'_>) {}

    fn wants_all(&self) -> bool {
        false
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct SimReport {
    /// Cycles from the dispatch to its end.
    pub cycles: Cycle,
    /// The part of `cycles` spent on the dispatch itself.
    pub dispatch: Cycle,
    /// The part of `cycles` spent on configuring the array.
    pub configure: Cycle,
    /// The launches.
    pub launches: Vec<LaunchReport>,
    /// Totals of all launches.
    pub totals: Totals,
}

/// The result of one launch.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchReport {
    /// Its name.
    pub name: String,
    /// When its first command began.
    pub begin: Cycle,
    /// Its duration from there.
    pub cycles: Cycle,
    /// Totals of its cores.
    pub cores: Vec<CoreTotals>,
    /// Totals of the launch.
    pub totals: Totals,
}

/// Totals of one core in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreTotals {
    /// Its tile.
    pub tile: Tile,
    /// Cycles in calls.
    pub busy: Cycle,
    /// Calls.
    pub calls: u64,
    /// Multiply-accumulates.
    pub macs: u64,
}

/// Totals of a run or launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes read from DRAM.
    pub dram_read: u64,
    /// Bytes written to DRAM.
    pub dram_written: u64,
    /// Service bytes: what DRAM could have moved in long runs in the time that
    /// it served the transfers; 0 in a seeded order.
    pub dram_service: u64,
    /// Bytes moved by all streams.
    pub streamed: u64,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Tasks pushed by the command processor.
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
