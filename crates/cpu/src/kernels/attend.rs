//! What the kernels of attention share: their operands, the layout of keys and
//! values, and the constants of the exponential.
//!
//! ```text
//! keys    32 positions of one head   [size][32]
//! values  64 positions of one head   [64][width]
//! Q8_0    keys    for each 32 dims of the head:  32 f16 scales, one a position | [32][32] i8
//!         values  [64][width] i8 | for each 32 columns:  64 f16 scales, one a position
//! Q4_0    as Q8_0, with codes of four bits, which are the value + 8: 16 bytes have two vectors of 16 positions
//!         (keys) or columns (values), the first one in the lower halves
//! ```
//! Keys lie transposed, so that one vector holds one dim of many positions and
//! no sum runs across its lanes. Rows of values are filled up to whole vectors
//! of [`LANES`], which the loops may then read without a case of their own.
//!
//! # The order of sums
//! For one query head of one row: a score is one chain of fused
//! multiply-additions over the dims; the weights of a chunk are added up in 16
//! lanes by position and then by `add_lanes`; a column of the weighted sum is
//! one chain over the positions of the chunk; chunks are joined in order. No
//! sum depends on which queries, rows or positions are computed beside it.
//! The tables for AVX-512, AVX2 and NEON do the same operations in the same order and
//! yield equal bits. The portable table does the same, but rounds each product,
//! as a fused operation in software would cost a call.

use std::ops::Range;

use girih_graph::BLOCK_POSITIONS;
use girih_tensor::DType;

/// Positions over which a partial sum is formed.
pub const CHUNK_POSITIONS: usize = 4 * BLOCK_POSITIONS;

/// Positions of a tile of keys.
pub const KEY_TILE: usize = 32;

/// The number of lanes in which weights are summed. Rows of values are padded to a
/// multiple of it.
pub const LANES: usize = 16;

/// Dims of a head that share a scale; Q8_0 and Q4_0 fix it.
pub const KV_GROUP: usize = 32;

/// Numbers of queries that kernels process at once, in ascending order.
pub const WIDTHS: [usize; 6] = [1, 2, 3, 4, 6, 8];

/// The softmax weights of one query over a chunk, or its scores before the
/// exponentiation.
pub type ChunkWeights = [f32; CHUNK_POSITIONS];

/// The max and the sum of softmax: the largest score, in units of log 2, and the sum of
/// weights, which are `2^(score − largest)`.
pub type MaxSum = [f32; 2];

/// Stored keys or values of one head.
#[derive(Clone, Copy, Debug)]
pub enum Cells<'a> {
    /// Decoded already.
    Decoded(&'a [f32]),
    /// As the state holds them.
    Stored(Format, &'a [u8]),
}

impl<'a> Cells<'a> {
    /// Tiles of keys of `size` dims, one after the other.
    pub fn key_tiles(self, size: usize) -> impl Iterator<Item = Cells<'a>> {
        let (decoded, (format, stored)) = match self {
            Cells::Decoded(values) => (values, (Format::F32, &[][..])),
            Cells::Stored(format, bytes) => (&[][..], (format, bytes)),
        };
        let decoded = decoded.chunks_exact(size * KEY_TILE).map(Cells::Decoded);
        let stored = stored.chunks_exact(format.bytes(KEY_TILE, size));
        decoded.chain(stored.map(move |tile| Cells::Stored(format, tile)))
    }
}

/// The types of cells of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Format {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
}

impl Format {
    /// The format of this type, if state can have it.
    pub fn of(dtype: DType) -> Option<Format> {
        match dtype {
            DType::F32 => Some(Format::F32),
            DType::F16 => Some(Format::F16),
            DType::BF16 => Some(Format::BF16),
            DType::Q8_0 => Some(Format::Q8_0),
            DType::Q4_0 => Some(Format::Q4_0),
            _ => None,
        }
    }

    /// The type.
    pub fn dtype(self) -> DType {
        match self {
            Format::F32 => DType::F32,
            Format::F16 => DType::F16,
            Format::BF16 => DType::BF16,
            Format::Q8_0 => DType::Q8_0,
            Format::Q4_0 => DType::Q4_0,
        }
    }

    /// The name of the type.
    pub fn name(self) -> &'static str {
        self.dtype().name()
    }

    /// Whether [`KV_GROUP`] values share a scale.
    pub fn is_grouped(self) -> bool {
        matches!(self, Format::Q8_0 | Format::Q4_0)
    }

    /// Bytes of `values` values of each of `positions`.
    ///
    /// # Panics
    /// When values that share scales are not whole groups.
    pub fn bytes(self, positions: usize, values: usize) -> usize {
        let scales = if self.is_grouped() { self.groups(values) * 2 } else { 0 };
        positions * (self.code_bytes(values) + scales)
    }

    /// Bytes of `values` values without their scales.
    pub(crate) fn code_bytes(self, values: usize) -> usize {
        match self {
            Format::F32 => 4 * values,
            Format::F16 | Format::BF16 => 2 * values,
            Format::Q8_0 => values,
            Format::Q4_0 => values / 2,
        }
    }

    /// The groups of `values` values.
    fn groups(self, values: usize) -> usize {
        assert!(values.is_multiple_of(KV_GROUP), "{values} values are whole groups of {KV_GROUP}");
        values / KV_GROUP
    }
}

/// Replaces each query's scores of the positions seen, in units of log 2, by
/// `2^(score − largest)`, and its `ends` by the largest and the sum of the
/// replacements. With a cap, a score is first replaced by
/// `cap · tanh(score / 2 · ln 2)`.
pub type WeighKernel =
    fn(scores: &mut [ChunkWeights], seen: Range<usize>, cap: Option<f32>, ends: &mut [MaxSum]);

/// The kernels of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttendKernels {
    /// The dot products of queries with tiles of keys that follow each other: `scores[q][at + p]` becomes
    /// `Σ queries[dim][q] · keys[dim][p]`, of the next tile `scores[q][at + 32 + p]`. There are as many queries
    /// as rows of scores, one of [`WIDTHS`]. `next` is what will be read soon.
    pub score: fn(queries: &[f32], keys: Cells<'_>, next: &[u8], scores: &mut [ChunkWeights], at: usize),
    /// Weighs queries that see the same positions.
    pub weigh: WeighKernel,
    /// Adds weights times values to `sums`, `[q][width]`, over positions of one
    /// block in their order; the block's first weight is `weights[q][at]`.
    /// There are as many rows of weights as one of [`WIDTHS`].
    pub blend: fn(weights: &[ChunkWeights], at: usize, values: ValueBlock<'_>, sums: &mut [f32]),
    /// Joins a partial sum to the running max and sum: both are scaled to the larger
    /// of their largest scores.
    pub join: fn(running: &mut MaxSum, result: &mut [f32], partial: MaxSum, sums: &[f32]),
    /// Decodes tiles of keys that follow each other. `next` is what will be read soon.
    pub widen_keys: fn(format: Format, tile: &[u8], next: &[u8], into: &mut [f32]),
    /// Decodes the values of some positions of a block, each to its position there.
    pub widen_values: fn(values: ValueBlock<'_>, into: &mut [f32]),
    /// Rounds values to half precision, to nearest even.
    pub halve: fn(values: &[f32], bytes: &mut [u8]),
}

/// The values of one head in a block, and which positions count.
#[derive(Clone, Debug)]
pub struct ValueBlock<'a> {
    /// All positions of the block.
    pub cells: Cells<'a>,
    /// The positions that count.
    pub positions: Range<usize>,
    /// Values of a position; a multiple of [`LANES`].
    pub width: usize,
    /// What will be read soon.
    pub next: &'a [u8],
}

/// The coefficients of `2^x` in `−0.5 ..= 0.5`, from x⁰ on. They are those of
/// the least largest relative error among polynomials that are 1 at 0 (found by
/// Remez's exchange): 3.9e-9, a fifteenth of a rounding.
pub(super) const EXP2: [f32; 7] =
    [1.0, 0.693_147_24, 0.240_226_5, 0.055_502_973, 0.009_618_031, 0.001_341_000_1, 0.000_154_697_32];

/// Below it `2^x` counts as zero: beside a largest weight of 1 it does not matter.
pub(super) const EXP2_LEAST: f32 = -125.0;

/// Adds up lanes by halves: 8 and 8, 4 and 4, `(l0 + l2) + (l1 + l3)`.
#[inline(always)]
pub(super) fn add_lanes(lanes: [f32; LANES]) -> f32 {
    let mut sums = lanes;
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            sums[lane] += sums[lane + half];
        }
    }
    sums[0]
}

/// Writes the numbers of each position of a tile of keys as a row of `width`, a multiple of [`LANES`]. Numbers
/// behind those of the keys are 0. A line of a row is written at once, as rows lie far apart.
pub fn transpose(keys: &[[f32; KEY_TILE]], width: usize, rows: &mut [f32]) {
    for (part, first) in (0..width).step_by(LANES).enumerate() {
        let keys = &keys[first.min(keys.len())..keys.len().min(first + LANES)];
        for (position, row) in rows.chunks_exact_mut(width).enumerate() {
            let line: [f32; LANES] =
                std::array::from_fn(|dim| keys.get(dim).map_or(0.0, |key| key[position]));
            row.as_chunks_mut().0[part] = line;
        }
    }
}
