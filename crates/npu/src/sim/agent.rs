//! The parts of the array that act, and what each of them waits for.

/// Somebody who may have to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agent {
    Core(u32),
    Route(u32),
    Control,
}

/// What the queue announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A core's call is over.
    Core(u32),
    /// A stream has moved its words.
    Route(u32),
    /// A stream's words reach DRAM, or come from there.
    Join(u32),
    /// A transfer of DRAM ends, if nothing has changed since this version.
    Dram(u64),
    /// The command processor is done with a command.
    Control,
    /// A token of a channel arrives.
    Token(u32),
}

/// Why a part cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// A channel has no task.
    Idle,
    /// A lock has less than is asked for.
    Lock { lock: u32, needs: u32, has: u32 },
    /// The neighbour has not come to the cascade.
    Cascade,
    /// The queue of a channel is full.
    Queue { channel: u32 },
    /// No token has come from a channel.
    Token { channel: u32 },
}
