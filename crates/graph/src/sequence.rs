//! What a step brings: the sequences that its rows belong to, and its inputs.

use std::ops::Range;

use crate::constant::Span;
pub use crate::state_kind::BLOCK_POSITIONS;
use crate::value::Extent;

/// A block of state: what every state value of one group holds for [`BLOCK_POSITIONS`]
/// positions. The engine assigns blocks to sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Block(pub u32);

/// The part of a step that belongs to one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// The sequence's blocks of each group, in order of position. Entry `i` is
    /// the block of the positions from `i · BLOCK_POSITIONS`, up to the sequence's
    /// last row.
    ///
    /// A block that the sequence's rows write belongs to this sequence alone; a block
    /// that they only read may be shared. An entry whose positions are not used,
    /// because they come before [`StateKind::first`](crate::StateKind::first), may name any block of
    /// the group, even one that another sequence writes in this step: its contents must
    /// not change any result.
    ///
    /// A carried value is read from the block of the position before the first row, and written
    /// to that of each position of the rows. The first row of a sequence reads zeros instead.
    pub blocks: &'a [&'a [Block]],
    /// The position of the first row within the sequence.
    pub position: u32,
    /// The sequence's rows among the rows of the step. The sequences of a step
    /// cover its rows in order, without gaps.
    pub rows: Range32,
    /// Which of its rows are output rows.
    pub outputs: Outputs,
    /// Mutual spans: ranges of this step's positions with bidirectional
    /// attention, such as the tokens of one image. They are in order, not empty,
    /// and do not overlap. With [`Span::Mutual`], they are what rows attend to, and cover all rows.
    pub spans: &'a [Range32],
}

/// A half-open range of `u32`, which unlike [`Range`] is `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range32 {
    /// The first index.
    pub start: u32,
    /// One past the last index.
    pub end: u32,
}

impl Range32 {
    /// The range as indexes.
    pub fn indexes(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

/// Which rows of a sequence are output rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outputs {
    /// None: a prefill chunk other than the last one.
    None,
    /// The last row: generation.
    Last,
    /// The last `n` rows: verification of a draft.
    LastN(u32),
    /// Every row: perplexity.
    All,
}

impl Outputs {
    /// The number of output rows among `rows` rows.
    pub fn count(self, rows: u32) -> u32 {
        match self {
            Outputs::None => 0,
            Outputs::Last => rows.min(1),
            Outputs::LastN(n) => rows.min(n),
            Outputs::All => rows,
        }
    }
}

impl Sequence<'_> {
    /// The range of the output rows among the rows of the step.
    pub fn output_rows(&self) -> Range<usize> {
        let rows = self.rows.indexes();
        rows.end - self.outputs.count(rows.len() as u32) as usize..rows.end
    }

    /// The positions that the row at `position` attends to: from the start of
    /// `span` to its own, and all of a mutual span that contains it, even
    /// positions before the start of `span`. With [`Span::Past`], mutual spans change nothing; with [`Span::All`], they are
    /// those of all rows of the sequence in this step.
    pub fn sees(&self, span: Span, position: usize) -> Range<usize> {
        if span == Span::All {
            return self.position as usize..self.position as usize + self.rows.indexes().len();
        }
        let first = span.first(position);
        if span == Span::Past {
            return first..position + 1;
        }
        let next = self.spans.partition_point(|span| span.indexes().end <= position);
        let mutual = self.spans.get(next).map(|span| span.indexes()).filter(|span| span.contains(&position));
        mutual.map_or(first..position + 1, |mutual| first.min(mutual.start)..mutual.end)
    }
}

/// One input of a step.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// One id per row, such as a token or a token type.
    Ids(&'a [u32]),
    /// One row of values per row, row after row.
    Rows(&'a [f32]),
    /// Values of some rows, for `splice`: in order of their rows, without overlap.
    Given(&'a [GivenRows<'a>]),
}

/// Consecutive rows that a step gives, such as those of an image.
#[derive(Clone, Copy, Debug)]
pub struct GivenRows<'a> {
    /// The index of the first one among the rows of the step.
    pub first_row: u32,
    /// The values, row after row.
    pub values: &'a [f32],
}

/// The number of rows that a step of these sequences has of a value of this outermost extent; 0
/// for weights and state.
pub fn step_count(sequences: &[Sequence<'_>], extent: Extent) -> usize {
    match extent {
        Extent::Rows => sequences.last().map_or(0, |sequence| sequence.rows.end as usize),
        Extent::OutputRows => sequences.iter().map(|sequence| sequence.output_rows().len()).sum(),
        Extent::Sequences => sequences.len(),
        Extent::Fixed | Extent::Context => 0,
    }
}
