//! The agents of a launch, the events they are due for, and what blocks them.

/// An agent that may have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    Core(u32),
    Route(u32),
    Control,
}

/// An event in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A core's call ends.
    Core(u32),
    /// A stream has moved its words.
    Route(u32),
    /// A stream starts to move words to or from DRAM.
    DramStart(u32),
    /// A DRAM transfer ends; stale unless the DRAM server still has this
    /// version.
    DramEnd(u64),
    /// The command processor finishes a command.
    Control,
    /// A token of a channel arrives.
    Token(u32),
}

/// Why an agent cannot continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// A channel has no task.
    Idle,
    /// The lock value is too low.
    Lock { lock: u32, needs: u32, has: u32 },
    /// The neighbour is not ready at the cascade.
    Cascade,
    /// The queue of a channel is full.
    Queue { channel: u32 },
    /// No token has arrived from a channel.
    Token { channel: u32 },
}
