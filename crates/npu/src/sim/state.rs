//! How far each channel, stream, core and the command processor have come.

use std::collections::VecDeque;

use super::agent::Blocked;
use super::hazard::VectorClock;
use super::plan::{ChannelPlan, TaskPlan};
use super::time::Cycle;

/// Where a channel is.
#[derive(Debug, Default)]
pub(super) struct ChannelState {
    pub queue: VecDeque<(TaskPlan, Cycle)>,
    pub task: Option<RunningTask>,
    pub pass: Option<DescriptorPass>,
    /// When the first word of its task can move.
    pub ready: Cycle,
    pub blocked: Option<Blocked>,
    pub tokens: u32,
    /// What the command processor knew when it gave each task.
    pub given: VecDeque<VectorClock>,
    /// What the channel knew when each task ended that yields a token.
    pub ended: VecDeque<VectorClock>,
}

/// A task under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningTask {
    pub plan: TaskPlan,
    pub descriptor: u32,
    pub left: u32,
    /// Passes of the descriptor that it began with.
    pub passes: u64,
}

/// A pass of a descriptor under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorPass {
    pub descriptor: u32,
    /// Words that have moved.
    pub done: u64,
    /// Bytes added to its addresses.
    pub offset: i64,
}

/// Where a stream is.
#[derive(Debug, Default)]
pub(super) struct RouteState {
    pub moving: bool,
    /// Words that it moves now.
    pub words: u64,
    pub begin: Cycle,
    /// When it last stopped, if it has moved.
    pub stopped: Option<Cycle>,
}

impl ChannelState {
    /// Whether the queue has a place.
    pub fn room(&self, channel: u32, plan: &ChannelPlan) -> Result<(), Blocked> {
        if self.queue.len() < plan.queue { Ok(()) } else { Err(Blocked::Queue { channel }) }
    }

    /// Whether a token has come.
    pub fn has_token(&self, channel: u32) -> Result<(), Blocked> {
        if self.tokens > 0 { Ok(()) } else { Err(Blocked::Token { channel }) }
    }

    /// Why the launch may not end, if it may not.
    pub fn unfinished(&self) -> Option<&'static str> {
        let pushed = |task: &TaskPlan| task.pushed;
        if self.pass.is_some_and(|pass| pass.done > 0) {
            Some("is amid a descriptor")
        } else if self.queue.iter().any(|(task, _)| pushed(task))
            || self.task.is_some_and(|task| pushed(&task.plan))
        {
            Some("has a task that is not done")
        } else {
            None
        }
    }
}

/// Where a core is.
#[derive(Debug, Default)]
pub(super) struct CoreState {
    pub at: usize,
    pub counters: Vec<u32>,
    pub doing: Doing,
    /// When it is done with what it has begun.
    pub free_at: Cycle,
    /// Since when it waits, if it does.
    pub waits_since: Option<Cycle>,
    pub busy: Cycle,
    pub calls: u64,
    pub macs: u64,
    /// Cycles of calls whose numbers no loop changes, by call and slots.
    pub known: Vec<((u32, u32), u64)>,
}

/// What a core does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Doing {
    #[default]
    Ready,
    Calling,
    Waiting(Blocked),
    Halted,
}

/// Where the command processor is.
#[derive(Debug, Default)]
pub(super) struct ControlState {
    pub at: usize,
    pub counters: Vec<u32>,
    /// The task whose registers are written.
    pub writing: bool,
    /// Whether what it began is over.
    pub free: bool,
    pub busy: bool,
    pub blocked: Option<Blocked>,
    /// When the last command was done.
    pub ended: Option<Cycle>,
}
