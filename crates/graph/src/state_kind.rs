//! Kinds of state: what a block of a group holds, and which blocks a sequence needs to go on.

use std::fmt;

use girih_tensor::{DType, Error, Result};

use crate::constant::{Constant, Span};

/// Positions in one block of state: the unit in which sequences own memory.
///
/// Attention computes partial sums over a fixed multiple of it, so that no
/// partial sum begins or ends within a block.
pub const BLOCK_POSITIONS: usize = 64;

/// The types that state by position can have, finest first. Carried values are f32.
pub const STATE_TYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];

/// What the blocks of a state group hold. Block `i` of a sequence belongs to its positions from
/// `i · BLOCK_POSITIONS` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// A row for each position of the block.
    Positions {
        /// How far back the readers of the state attend; older positions may be dropped.
        span: Span,
    },
    /// One value for each sequence, which every row replaces. A block holds the value after the
    /// last row that was run in it: that at the block's end, or at the sequence's.
    Carried,
}

impl From<Span> for StateKind {
    fn from(span: Span) -> StateKind {
        StateKind::Positions { span }
    }
}

impl StateKind {
    /// The number of rows that a block holds of each state value.
    pub fn rows_per_block(self) -> usize {
        match self {
            StateKind::Positions { .. } => BLOCK_POSITIONS,
            StateKind::Carried => 1,
        }
    }

    /// The first position whose block a row at `position` reads.
    pub fn first(self, position: usize) -> usize {
        match self {
            StateKind::Positions { span } => span.first(position),
            StateKind::Carried => position.saturating_sub(1),
        }
    }

    /// The index of the first block that a row at `position`, or a later one, reads.
    pub fn first_block(self, position: usize) -> usize {
        self.first(position) / BLOCK_POSITIONS
    }

    /// The last position, at most `to`, at which a sequence of `length` positions can go on if it
    /// holds its blocks from index `held` on; `None` if there is no such position.
    ///
    /// A carried value is known at the ends of blocks and of the sequence only.
    pub fn resumes_at(self, held: usize, length: usize, to: usize) -> Option<usize> {
        let at = match self {
            StateKind::Carried if to < length => to - to % BLOCK_POSITIONS,
            StateKind::Carried | StateKind::Positions { .. } => to,
        };
        (held <= self.first_block(at)).then_some(at)
    }

    /// The number of blocks that suffice for concurrent sequences that grow to these lengths, in
    /// steps of `rows` rows in total.
    ///
    /// With a window or a chunk of `n`, a sequence with `r` rows in a step touches `n − 1 + r`
    /// consecutive positions at most. At any offset, these lie in at most `⌈(n + r − 2) / 64⌉ + 1`
    /// blocks, which is at most `⌈(n − 1) / 64⌉ + 1 + (r + 62) / 64`, and all sequences
    /// together have at most `rows` rows. A span of positions that attend to each other
    /// (an image) changes nothing, because it lies within the rows of its step. A carried value
    /// is read behind the position before the first row, and kept at the end of each block that
    /// the rows reach, which is a window of 2.
    ///
    /// Sequences that share blocks need fewer.
    pub fn worst_case(self, lengths: impl Iterator<Item = u32>, rows: u32) -> u64 {
        let window = match self {
            StateKind::Positions { span: Span::Full | Span::Past | Span::All | Span::Mutual } => u64::MAX,
            StateKind::Positions { span: Span::Window(length) | Span::Chunk(length) } => {
                blocks_of(length - 1) + 1
            }
            StateKind::Carried => 2,
        };
        let (mut whole, mut windows, mut sequences) = (0, 0, 0);
        for length in lengths {
            whole += blocks_of(length);
            windows += blocks_of(length).min(window);
            sequences += 1;
        }
        // What the rows of one step need beyond the windows.
        let edge = BLOCK_POSITIONS as u64 - 2;
        whole.min(windows + (u64::from(rows) + sequences * edge) / BLOCK_POSITIONS as u64)
    }

    /// The name of the only group of this kind in a graph.
    pub(crate) fn group_name(self) -> String {
        match self {
            StateKind::Positions { span } => span.to_string().replace(':', "_"),
            StateKind::Carried => "carried".to_owned(),
        }
    }

    /// Parses what is printed.
    ///
    /// # Errors
    /// When the text is not a kind of state.
    pub(crate) fn parse(text: &str) -> Result<StateKind> {
        match text.strip_prefix("span ") {
            Some(span) => Span::parse(span).map(StateKind::from),
            None if text == "carried" => Ok(StateKind::Carried),
            None => Err(Error::new("a group has a span, or is carried")),
        }
    }
}

/// The number of blocks of this many positions.
fn blocks_of(positions: u32) -> u64 {
    u64::from(positions.div_ceil(BLOCK_POSITIONS as u32))
}

/// `span full`, or `carried`.
impl fmt::Display for StateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateKind::Positions { span } => write!(f, "span {span}"),
            StateKind::Carried => f.write_str("carried"),
        }
    }
}
