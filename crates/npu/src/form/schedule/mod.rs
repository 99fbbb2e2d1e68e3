//! The schedule: the content of a blob. A device needs nothing else to execute
//! it; it contains no ops.
//!
//! A [`Schedule`] is one program: its launches run one after another without
//! the host. A [`Launch`] is one configuration of the array, with its own
//! buffers, locks and core programs, and the commands that start it. Tile
//! memory and locks do not outlive a launch; data passes from one launch to the
//! next in DRAM.
//!
//! ```text
//! schedule add target toy
//! argument 0 x input 4096
//! argument 1 y output 4096
//! launch add
//!   buffer 0 x.0 0,2 0x400 1024              // name, tile, address, bytes
//!   lock 0 0,2 0 2                           // tile, id in the tile, initial value
//!   descriptor 0,2 0 b0+0 8x64,64x1 acquire l0 2 release l1 2 next 0
//!   start 0,2:s2mm:0 0 1                     // channel, descriptor, repeats
//!   route 0,0:mm2s:0 0,2:s2mm:0@2            // source, destinations with hops
//!   cascade 0,2 0,3
//!   core 0,2 {
//!     loop 4 {
//!       acquire l1 1
//!       call add b0|b1[0+1*i0]@0 b2@0+64*i0 : n=64
//!       release l0 1
//!     }
//!   }
//!   run {
//!     push 0,0:mm2s:0 0 0 1 token            // channel, descriptor, offset, repeats
//!     wait 0,0:mm2s:0
//!   }
//! ```
//!
//! # Execution
//! * **Locks** are counting semaphores of a tile, 0 ..= 63. *Acquire n* waits
//!   until the value is at least n and subtracts n; *release n* adds n
//!   (AM020; facts 1.4). A value over 63 is a fault.
//! * **Cores** run their instructions once, in order, and halt. A call accesses
//!   tile memory through its operands only.
//! * **Registers** of a descriptor hold sizes up to 1023, in cores up to 255, except
//!   the outermost; a transfer that is one contiguous run needs none. An iteration
//!   has at most 64 steps.
//! * **Channels** have a queue of four tasks. A task runs a chain of descriptors,
//!   linked by `next`, as often as its repeat count. A cyclic chain never ends
//!   and still waits when the launch ends. A descriptor acquires before its
//!   first word and releases after its last.
//! * **Streams** are circuits of 32-bit words, reserved for the whole launch;
//!   a broadcast delivers each word to all destinations, at the rate of the
//!   slowest. Descriptors of the two ends need not have the same boundaries.
//! * **Commands** run in order, on one command processor. [`ProcessorCommand::Push`]
//!   writes the descriptor's registers, with the byte offset added to its
//!   address, and queues it; it waits while the queue is full. A task pushed
//!   with a token yields one at its end, for [`ProcessorCommand::Wait`]. In a resident launch, waits
//!   in a row for the same channel of neighbouring columns are one command.
//! * **A launch ends** when the commands have run and all cores have halted.
//!   The streams must be empty then: a reader that still waits has received
//!   nothing of its current pass.

pub(crate) mod check;
pub(crate) mod registers;
pub(crate) mod text;

use std::fmt;

/// One program: launches that run one after another from one submission.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The program's name: `rms_gemms_rope`.
    pub name: String,
    /// The name of the target that it was compiled for.
    pub target: String,
    /// The buffers that the host binds; an index here is an argument's number.
    pub arguments: Vec<Argument>,
    /// The launches, in order.
    pub launches: Vec<Launch>,
}

/// A DRAM buffer that the host binds before a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// The name, without white space.
    pub name: String,
    /// How the program uses it.
    pub role: ArgumentRole,
    /// The size in bytes.
    pub bytes: u64,
}

/// How a program uses an argument: what writes and reads it, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgumentRole {
    /// Written once, when the model is loaded: weights.
    Static,
    /// Written by the host before each run.
    Input,
    /// Read by the host after each run.
    Output,
    /// Passed from launch to launch; the host does not access it.
    Intermediate,
    /// Kept between runs: keys and values.
    State,
}

/// The coordinates of a tile. Row 0 has the shim tiles, row 1 the memory tiles,
/// all rows above have compute tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    /// Counted from the left.
    pub column: u8,
    /// Counted from the bottom.
    pub row: u8,
}

/// The kind of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileKind {
    /// Accesses DRAM.
    Shim,
    /// Has L2 memory.
    Memory,
    /// Has L1 memory and a core.
    Compute,
}

/// One configuration of the array, and the commands that start it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launch {
    /// The name within the program: `gemm_q`.
    pub name: String,
    /// Whether its configuration stays on the array beside those of other launches:
    /// only registers with other values are written before it runs. The loop counts
    /// of its cores are words that the command processor writes.
    pub resident: bool,
    /// Buffers in tile memory; a [`BufferId`] is an index here.
    pub buffers: Vec<Buffer>,
    /// Locks; a [`LockId`] is an index here.
    pub locks: Vec<TileLock>,
    /// The buffer descriptors of all tiles.
    pub descriptors: Vec<Descriptor>,
    /// The first tasks of channels, queued when the array is configured.
    pub starts: Vec<Start>,
    /// Stream circuits.
    pub routes: Vec<Route>,
    /// Cascade links between neighbouring cores.
    pub cascades: Vec<Cascade>,
    /// The programs of the used cores.
    pub cores: Vec<Core>,
    /// The commands of the command processor.
    pub commands: Vec<ProcessorCommand>,
}

/// Index into [`Launch::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Index into [`Launch::locks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub u32);

/// A buffer in tile memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// A name for readers, without white space.
    pub name: String,
    /// The tile.
    pub tile: Tile,
    /// The byte address in the tile, which also determines the bank.
    pub address: u32,
    /// The size in bytes.
    pub bytes: u32,
}

/// A lock of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLock {
    /// The tile.
    pub tile: Tile,
    /// The number of the lock in the tile.
    pub id: u8,
    /// The value when the launch begins.
    pub initial: u8,
}

/// A change of a lock: the value that an acquire subtracts or a release adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockChange {
    /// The lock.
    pub lock: LockId,
    /// The value.
    pub value: u8,
}

/// A buffer descriptor: which words a channel moves, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The tile.
    pub tile: Tile,
    /// The number of the descriptor in the tile.
    pub id: u8,
    /// The address of the first word.
    pub address: DmaAddress,
    /// Sizes and strides, outermost first; never empty. The word at index `i`
    /// is `Σ i_d · stride_d` words after the first.
    pub dims: Vec<Dim>,
    /// The dimension that advances from one run of this descriptor to the
    /// next, instead of within a run.
    pub iteration: Option<Dim>,
    /// The lock that it acquires before the first word.
    pub acquire: Option<LockChange>,
    /// The lock that it releases after the last word.
    pub release: Option<LockChange>,
    /// The number of the next descriptor of the same task.
    pub next: Option<u8>,
}

/// One dimension of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim {
    /// The number of indices.
    pub size: u32,
    /// The distance between them, in words of four bytes.
    pub stride: u32,
}

/// The address of a descriptor's first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaAddress {
    /// In tile memory: a buffer and a byte offset.
    Buffer(BufferId, u32),
    /// In DRAM, for shim tiles only: an argument's number and a byte offset. In a
    /// blob it is a relocation.
    Argument(u32, u64),
}

/// The direction in which a channel moves words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From memory to stream.
    Mm2s,
    /// From stream to memory.
    S2mm,
}

/// A DMA channel of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// The tile.
    pub tile: Tile,
    /// The direction.
    pub direction: Direction,
    /// The number of the channel in its tile and direction.
    pub number: u8,
}

/// The first task of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The channel.
    pub channel: Channel,
    /// The number of its first descriptor.
    pub descriptor: u8,
    /// The number of runs of the chain, 1 ..= 255.
    pub repeats: u32,
}

/// A stream circuit from one channel to one or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The source channel.
    pub from: Channel,
    /// The destination channels.
    pub to: Vec<Hop>,
}

/// One destination of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The channel that receives.
    pub channel: Channel,
    /// The number of stream switches between source and destination.
    pub hops: u8,
}

/// A cascade link, from a core's accumulators to those of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cascade {
    /// The core that sends.
    pub from: Tile,
    /// The core that receives.
    pub to: Tile,
}

/// The program of one core.
#[derive(Clone, Debug, PartialEq)]
pub struct Core {
    /// The tile.
    pub tile: Tile,
    /// The instructions, which run once.
    pub program: Vec<CoreInstruction>,
}

/// One instruction of a core.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreInstruction {
    /// Repeats its body.
    Loop {
        /// The number of iterations.
        count: u32,
        /// The body.
        body: Vec<CoreInstruction>,
    },
    /// Waits for a lock and subtracts from it.
    Acquire(LockChange),
    /// Adds to a lock.
    Release(LockChange),
    /// Calls a kernel entry.
    Call(CoreCall),
}

/// A call of a kernel entry.
#[derive(Clone, Debug, PartialEq)]
pub struct CoreCall {
    /// The entry's name.
    pub entry: String,
    /// Operands in tile memory, in the entry's order.
    pub operands: Vec<CallOperand>,
    /// Parameters, in the entry's order.
    pub parameters: Vec<Parameter>,
}

/// An operand of a call in tile memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOperand {
    /// Buffers of one size that a loop alternates between (ping and pong); mostly
    /// one or two.
    pub slots: Vec<BufferId>,
    /// The current buffer: the value modulo the number of slots.
    pub slot: Affine,
    /// The byte offset in the buffer.
    pub offset: Affine,
}

/// A named parameter of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The name.
    pub name: String,
    /// The value.
    pub value: ParameterValue,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// An integer, which may depend on the enclosing loops.
    Int(Affine),
    /// A float.
    Float(f32),
}

/// An integer that depends on the enclosing loops:
/// `constant + Σ factor · i_depth`, where `i_0` counts the outermost loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affine {
    /// The constant part.
    pub constant: i64,
    /// The terms of the loops that it depends on.
    pub terms: Vec<Term>,
}

/// The term of an [`Affine`] for one loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// The loop: 0 is the outermost.
    pub depth: u8,
    /// The value that each iteration adds.
    pub factor: i64,
}

/// One command of the command processor.
#[derive(Clone, Debug, PartialEq)]
pub enum ProcessorCommand {
    /// Repeats its body; expanded when a blob is loaded.
    Loop {
        /// The number of iterations.
        count: u32,
        /// The body.
        body: Vec<ProcessorCommand>,
    },
    /// Writes a descriptor's registers and queues it on a channel.
    Push(Push),
    /// Waits for one token of a channel.
    Wait(Channel),
}

/// A task that the command processor queues on a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The channel.
    pub channel: Channel,
    /// The number of its first descriptor.
    pub descriptor: u8,
    /// Bytes added to the descriptor's address.
    pub offset: Affine,
    /// The number of runs of the chain, 1 ..= 255.
    pub repeats: u32,
    /// Whether the task yields a token at its end.
    pub token: bool,
}

impl Tile {
    /// Creates the coordinates of a tile.
    pub const fn new(column: u8, row: u8) -> Tile {
        Tile { column, row }
    }

    /// The kind of the tile.
    pub fn kind(self) -> TileKind {
        match self.row {
            0 => TileKind::Shim,
            1 => TileKind::Memory,
            _ => TileKind::Compute,
        }
    }

    /// Returns a channel of the tile.
    pub const fn channel(self, direction: Direction, number: u8) -> Channel {
        Channel { tile: self, direction, number }
    }
}

impl ArgumentRole {
    /// Every role.
    pub const ALL: &'static [ArgumentRole] = &[
        ArgumentRole::Static,
        ArgumentRole::Input,
        ArgumentRole::Output,
        ArgumentRole::Intermediate,
        ArgumentRole::State,
    ];

    /// The name in printed schedules.
    pub fn name(self) -> &'static str {
        match self {
            ArgumentRole::Static => "static",
            ArgumentRole::Input => "input",
            ArgumentRole::Output => "output",
            ArgumentRole::Intermediate => "intermediate",
            ArgumentRole::State => "state",
        }
    }
}

impl Affine {
    /// Creates a number that depends on no loop.
    pub fn constant(constant: i64) -> Affine {
        Affine { constant, terms: Vec::new() }
    }

    /// Adds `factor` for each iteration of the loop at `depth`.
    pub fn plus(mut self, depth: u8, factor: i64) -> Affine {
        if factor != 0 {
            self.terms.push(Term { depth, factor });
        }
        self
    }

    /// Returns the value at these loop counters, outermost first; missing
    /// counters are zero. Wraps on overflow, which checked schedules exclude.
    pub fn at(&self, counters: &[u32]) -> i64 {
        self.terms.iter().fold(self.constant, |sum, term| {
            let counter = counters.get(usize::from(term.depth)).copied().unwrap_or(0);
            sum.wrapping_add(term.factor.wrapping_mul(i64::from(counter)))
        })
    }
}

impl CallOperand {
    /// Creates an operand at the start of one buffer.
    pub fn whole(buffer: BufferId) -> CallOperand {
        CallOperand { slots: vec![buffer], slot: Affine::default(), offset: Affine::default() }
    }

    /// Returns the buffer and the byte offset at these loop counters.
    ///
    /// # Panics
    /// When the operand has no slots.
    pub fn at(&self, counters: &[u32]) -> (BufferId, i64) {
        let slot = self.slot.at(counters).rem_euclid(self.slots.len() as i64);
        (self.slots[slot as usize], self.offset.at(counters))
    }
}

impl Descriptor {
    /// The number of words that one run moves.
    pub fn words(&self) -> u64 {
        self.dims.iter().map(|dim| u64::from(dim.size)).fold(1, u64::saturating_mul)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.column, self.row)
    }
}
