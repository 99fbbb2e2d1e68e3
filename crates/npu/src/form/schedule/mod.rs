//! The schedule: everything a blob holds. A device executes it and needs
//! nothing else; it has never heard of ops.
//!
//! A [`Schedule`] is one program: its launches run one after another without
//! the host. A [`Launch`] is one configuration of the array, with its own
//! buffers, locks and core programs, and the commands that set it going. Tile
//! memory and locks do not outlive a launch; what passes from one to the next
//! lies in DRAM.
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
//!   route 0,0:mm2s:0 0,2:s2mm:0@2            // source, destinations at so many hops
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
//! # What executing means
//! * **Locks** are counting semaphores of a tile, 0 ..= 63. *Acquire n* waits
//!   until the value is at least n and takes n away; *release n* adds n
//!   (AM020; facts 1.4). Going over 63 is a fault.
//! * **Cores** run their instructions once and halt. Instructions of one core
//!   happen in order; a call reads and writes tile memory through its operands
//!   only.
//! * **Channels** have a queue of four tasks. A task runs its descriptor, then
//!   that one's `next` and so on until there is none; all of that so many
//!   times as it repeats. A chain that leads back to itself never ends, and is
//!   left waiting when the launch ends. A descriptor acquires before its first
//!   word and releases after its last.
//! * **Streams** are circuits of 32-bit words, reserved for the whole launch;
//!   a broadcast delivers each word to all destinations, at the pace of the
//!   slowest. Neither end knows where the other's descriptors begin or end.
//! * **Commands** run in order, on one command processor. [`ProcessorCommand::Push`]
//!   writes the descriptor's registers, with the byte offset added to its
//!   address, and queues it; it waits while the queue is full. A task pushed
//!   with a token yields one at its end, for [`ProcessorCommand::Wait`].
//! * **A launch ends** when the commands have run and all cores have halted.
//!   Words must not be left in a stream then: a reader that still waits has
//!   received nothing of its current pass.

mod check;
pub(crate) mod text;

use std::fmt;

/// One program: launches that run one after another from one submission.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The program's name: `rms_gemms_rope`.
    pub name: String,
    /// The name of the target that it was made for.
    pub target: String,
    /// What the host binds; an index here is an argument's number.
    pub arguments: Vec<Argument>,
    /// The launches, in order.
    pub launches: Vec<Launch>,
}

/// A stretch of DRAM that the host binds before a program runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Its name; no white space.
    pub name: String,
    /// What it is to the program.
    pub role: ArgumentRole,
    /// Its size in bytes.
    pub bytes: u64,
}

/// What an argument is to its program: which way its bytes travel, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArgumentRole {
    /// Written once, when the model is loaded: weights.
    Static,
    /// Written by the host before each run.
    Input,
    /// Read by the host after each run.
    Output,
    /// Passes from launch to launch; the host never looks.
    Intermediate,
    /// Kept between runs: keys and values.
    State,
}

/// A tile: column from the left, row from the bottom. Row 0 holds the shim
/// tiles, row 1 the memory tiles, all rows above compute tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    /// Counted from the left.
    pub column: u8,
    /// Counted from the bottom.
    pub row: u8,
}

/// What a tile is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileKind {
    /// Reaches DRAM.
    Shim,
    /// Holds L2.
    Memory,
    /// Holds L1 and a core.
    Compute,
}

/// One configuration of the array, and the commands that set it going.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Launch {
    /// Its name within the program: `gemm_q`.
    pub name: String,
    /// Tile memory; a [`BufferId`] is an index here.
    pub buffers: Vec<Buffer>,
    /// Semaphores; a [`LockId`] is an index here.
    pub locks: Vec<TileLock>,
    /// The buffer descriptors of all tiles.
    pub descriptors: Vec<Descriptor>,
    /// Tasks that channels begin with, queued when the array is configured.
    pub starts: Vec<Start>,
    /// Stream circuits.
    pub routes: Vec<Route>,
    /// Links from a core's accumulators to those of a neighbour.
    pub cascades: Vec<Cascade>,
    /// The programs of the cores in use.
    pub cores: Vec<Core>,
    /// What the command processor does.
    pub commands: Vec<ProcessorCommand>,
}

/// Index into [`Launch::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BufferId(pub u32);

/// Index into [`Launch::locks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockId(pub u32);

/// A stretch of a tile's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// What it holds, for people; no white space.
    pub name: String,
    /// Whose memory it lies in.
    pub tile: Tile,
    /// Where it begins there, in bytes; its bank follows from it.
    pub address: u32,
    /// Its size.
    pub bytes: u32,
}

/// A semaphore of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLock {
    /// Whose it is.
    pub tile: Tile,
    /// Its number among those of the tile.
    pub id: u8,
    /// Its value when the launch begins.
    pub initial: u8,
}

/// A change of a lock: how much an acquire takes or a release adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockChange {
    /// The lock.
    pub lock: LockId,
    /// How much.
    pub value: u8,
}

/// A buffer descriptor: which words a channel moves, in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Whose it is.
    pub tile: Tile,
    /// Its number among those of the tile.
    pub id: u8,
    /// Where its first word lies.
    pub address: DmaAddress,
    /// Extents and strides, outermost first; never empty. The word at index
    /// `i` lies `Σ i_d · stride_d` words after the first.
    pub dims: Vec<Dim>,
    /// The dimension that advances from one run of this descriptor to the
    /// next, instead of within a run.
    pub iteration: Option<Dim>,
    /// Waits for this before the first word.
    pub acquire: Option<LockChange>,
    /// Does this after the last word.
    pub release: Option<LockChange>,
    /// The descriptor that follows in the same task.
    pub next: Option<u8>,
}

/// One dimension of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dim {
    /// How many.
    pub size: u32,
    /// How far apart, in words of four bytes.
    pub stride: u32,
}

/// Where a descriptor's words lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmaAddress {
    /// In a tile's memory: a buffer and a byte offset in it.
    Buffer(BufferId, u32),
    /// In DRAM: an argument's number and a byte offset in it; of shim tiles
    /// only. In a blob it is a relocation.
    Argument(u32, u64),
}

/// Which way a channel moves words.
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
    /// Whose it is.
    pub tile: Tile,
    /// Which way it moves words.
    pub direction: Direction,
    /// Its number among those of the tile and direction.
    pub number: u8,
}

/// A task that a channel begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The channel.
    pub channel: Channel,
    /// The number of the descriptor that it begins with.
    pub descriptor: u8,
    /// How many times the chain runs, 1 ..= 256.
    pub repeats: u32,
}

/// A stream circuit from one channel to one or more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// A channel to the stream.
    pub from: Channel,
    /// Channels from the stream.
    pub to: Vec<Hop>,
}

/// One end of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The channel that receives.
    pub channel: Channel,
    /// Stream switches on the way.
    pub hops: u8,
}

/// A link from a core's accumulators to those of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cascade {
    /// Whose accumulators leave.
    pub from: Tile,
    /// Who receives them.
    pub to: Tile,
}

/// The program of one core.
#[derive(Clone, Debug, PartialEq)]
pub struct Core {
    /// The tile.
    pub tile: Tile,
    /// What it does, once.
    pub program: Vec<CoreInstruction>,
}

/// One instruction of a core.
#[derive(Clone, Debug, PartialEq)]
pub enum CoreInstruction {
    /// Repeats its body.
    Loop {
        /// How many times.
        count: u32,
        /// What is repeated.
        body: Vec<CoreInstruction>,
    },
    /// Waits for a lock and takes from it.
    Acquire(LockChange),
    /// Adds to a lock.
    Release(LockChange),
    /// Calls a kernel entry.
    Call(KernelCall),
}

/// A call of a kernel entry.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelCall {
    /// The entry's name.
    pub entry: String,
    /// Tile memory, in the entry's order.
    pub operands: Vec<CallOperand>,
    /// Numbers, by name, in the entry's order.
    pub parameters: Vec<Parameter>,
}

/// An address that a call is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallOperand {
    /// Buffers of one size that take turns (ping and pong); mostly one or two.
    pub slots: Vec<BufferId>,
    /// Whose turn it is: the value modulo the number of slots.
    pub turn: Affine,
    /// The byte offset in the buffer.
    pub offset: Affine,
}

/// A number that a call is given.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// The entry's name for it.
    pub name: String,
    /// Its value.
    pub value: ParameterValue,
}

/// The value of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum ParameterValue {
    /// A whole number, which may depend on the enclosing loops.
    Int(Affine),
    /// A float.
    Float(f32),
}

/// A whole number that depends on the enclosing loops:
/// `constant + Σ factor · i_depth`, where `i_0` counts the outermost loop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Affine {
    /// The part that does not depend on them.
    pub constant: i64,
    /// The factor of each loop that counts.
    pub terms: Vec<Term>,
}

/// The part of an [`Affine`] that one loop brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Which loop: 0 is the outermost.
    pub depth: u8,
    /// What each of its iterations adds.
    pub factor: i64,
}

/// One command of the command processor.
#[derive(Clone, Debug, PartialEq)]
pub enum ProcessorCommand {
    /// Repeats its body; loops that are expanded when a blob is loaded.
    Loop {
        /// How many times.
        count: u32,
        /// What is repeated.
        body: Vec<ProcessorCommand>,
    },
    /// Writes a descriptor's registers and queues it on a channel.
    Push(Push),
    /// Waits for one token of a channel.
    Wait(Channel),
}

/// A task given to a channel by the command processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Push {
    /// The channel.
    pub channel: Channel,
    /// The number of the descriptor that the task begins with.
    pub descriptor: u8,
    /// Bytes added to the descriptor's address.
    pub offset: Affine,
    /// How many times the chain runs, 1 ..= 256.
    pub repeats: u32,
    /// Whether its end yields a token.
    pub token: bool,
}

impl Tile {
    /// The tile at a column and a row.
    pub const fn new(column: u8, row: u8) -> Tile {
        Tile { column, row }
    }

    /// What the tile is.
    pub fn kind(self) -> TileKind {
        match self.row {
            0 => TileKind::Shim,
            1 => TileKind::Memory,
            _ => TileKind::Compute,
        }
    }

    /// Its channel of this direction and number.
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
    /// A number that depends on no loop.
    pub fn constant(constant: i64) -> Affine {
        Affine { constant, terms: Vec::new() }
    }

    /// The number plus `factor` for each iteration of the loop at `depth`.
    pub fn plus(mut self, depth: u8, factor: i64) -> Affine {
        if factor != 0 {
            self.terms.push(Term { depth, factor });
        }
        self
    }

    /// The value at these loop counters, outermost first; counters that are
    /// not there count as zero. Wraps on overflow: checked schedules have none.
    pub fn at(&self, counters: &[u32]) -> i64 {
        self.terms.iter().fold(self.constant, |sum, term| {
            let counter = counters.get(usize::from(term.depth)).copied().unwrap_or(0);
            sum.wrapping_add(term.factor.wrapping_mul(i64::from(counter)))
        })
    }
}

impl CallOperand {
    /// The start of one buffer.
    pub fn whole(buffer: BufferId) -> CallOperand {
        CallOperand { slots: vec![buffer], turn: Affine::default(), offset: Affine::default() }
    }

    /// The buffer and the byte offset at these loop counters.
    ///
    /// # Panics
    /// When the operand has no slots.
    pub fn at(&self, counters: &[u32]) -> (BufferId, i64) {
        let turn = self.turn.at(counters).rem_euclid(self.slots.len() as i64);
        (self.slots[turn as usize], self.offset.at(counters))
    }
}

impl Descriptor {
    /// The words that one run moves.
    pub fn words(&self) -> u64 {
        self.dims.iter().map(|dim| u64::from(dim.size)).fold(1, u64::saturating_mul)
    }
}

impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.column, self.row)
    }
}
