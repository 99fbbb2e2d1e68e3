//! The progress of each channel, stream and core, and of the command processor.

use std::collections::VecDeque;

use super::agent::Blocked;
use super::hazard::VectorClock;
use super::plan::{ChannelPlan, TaskPlan};
use super::time::Cycle;

/// The progress of a channel.
#[derive(Debug, Default)]
pub(super) struct ChannelState {
    pub queue: VecDeque<(TaskPlan, Cycle)>,
    pub task: Option<RunningTask>,
    pub pass: Option<DescriptorPass>,
    /// The earliest cycle at which the first word of its task can move.
    pub ready: Cycle,
    pub blocked: Option<Blocked>,
    pub tokens: u32,
    /// The clock of the command processor when it pushed each task.
    pub given: VecDeque<VectorClock>,
    /// The clock of the channel when each task with a token ended.
    pub ended: VecDeque<VectorClock>,
}

/// A running task.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningTask {
    pub plan: TaskPlan,
    pub descriptor: u32,
    pub left: u32,
    /// Completed passes of its first descriptor.
    pub passes: u64,
}

/// A running pass of a descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorPass {
    pub descriptor: u32,
    /// Words moved so far.
    pub done: u64,
    /// Bytes added to its addresses.
    pub offset: i64,
}

/// The progress of a stream.
#[derive(Debug, Default)]
pub(super) struct RouteState {
    pub moving: bool,
    /// Words of the current move.
    pub words: u64,
    pub begin: Cycle,
    /// When its last move ended.
    pub stopped: Option<Cycle>,
}

impl ChannelState {
    /// Checks that the queue has a free slot.
    pub fn room(&self, channel: u32, plan: &ChannelPlan) -> Result<(), Blocked> {
        if self.queue.len() < plan.queue { Ok(()) } else { Err(Blocked::Queue { channel }) }
    }

    /// Checks that a token has arrived.
    pub fn has_token(&self, channel: u32) -> Result<(), Blocked> {
        if self.tokens > 0 { Ok(()) } else { Err(Blocked::Token { channel }) }
    }

    /// The reason why the launch may not end yet, if any.
    pub fn unfinished(&self) -> Option<&'static str> {
        let pushed = |task: &TaskPlan| task.pushed;
        if self.pass.is_some_and(|pass| pass.done > 0) {
            Some("is in the middle of a descriptor")
        } else if self.queue.iter().any(|(task, _)| pushed(task))
            || self.task.is_some_and(|task| pushed(&task.plan))
        {
            Some("has an unfinished task")
        } else {
            None
        }
    }
}

/// The progress of a core.
#[derive(Debug, Default)]
pub(super) struct CoreState {
    pub at: usize,
    pub counters: Vec<u32>,
    pub doing: Doing,
    /// When it finishes its current work.
    pub free_at: Cycle,
    /// The start of its current wait.
    pub waits_since: Option<Cycle>,
    pub busy: Cycle,
    pub calls: u64,
    pub macs: u64,
    /// Cycles of calls with constant parameters, by call and slots.
    pub known: Vec<((u32, u32), u64)>,
}

/// The activity of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Doing {
    #[default]
    Ready,
    Calling,
    Waiting(Blocked),
    Halted,
}

/// The progress of the command processor.
#[derive(Debug, Default)]
pub(super) struct ControlState {
    pub at: usize,
    pub counters: Vec<u32>,
    /// Whether the registers of a task are being written.
    pub writing: bool,
    /// Whether its current command has finished.
    pub free: bool,
    pub busy: bool,
    pub blocked: Option<Blocked>,
    /// When the last command finished.
    pub ended: Option<Cycle>,
}
