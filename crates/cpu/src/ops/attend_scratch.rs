//! A thread's scratch memory for attention.

use girih_graph::BLOCK_POSITIONS;

use crate::kernels::attend::{CHUNK_POSITIONS, ChunkWeights, LANES, MaxSum, WIDTHS};

/// Queries in a tile of rows: enough that decoding keys and values costs little in comparison,
/// few enough that their scores fit into L2.
pub(super) const TILE_QUERIES: usize = 64;

/// The maximum number of queries in a kernel call.
pub(super) const BATCH_MAX: usize = WIDTHS[WIDTHS.len() - 1];

/// The number of rows in a tile.
pub(super) fn tile_rows(shared: usize) -> usize {
    (TILE_QUERIES / shared).max(1)
}

/// The number of queries in a tile, rounded up to whole kernel calls.
pub(super) fn tile_queries(shared: usize) -> usize {
    (tile_rows(shared) * shared).next_multiple_of(BATCH_MAX)
}

/// The lengths of the parts of a thread's scratch memory, in `f32` values.
#[derive(Clone, Copy)]
pub(super) struct AttendScratchSizes {
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) values: usize,
    pub(super) scores: usize,
    pub(super) sums: usize,
    ends: usize,
}

impl AttendScratchSizes {
    /// Returns the sizes for values padded to `width`.
    pub(super) fn of(shared: usize, size: usize, width: usize) -> AttendScratchSizes {
        let count = tile_queries(shared);
        AttendScratchSizes {
            queries: (count * size).next_multiple_of(LANES),
            keys: size * BLOCK_POSITIONS,
            values: BLOCK_POSITIONS * width,
            scores: count * CHUNK_POSITIONS,
            sums: count * width,
            ends: count * 2,
        }
    }

    pub(super) fn total(self) -> usize {
        let AttendScratchSizes { queries, keys, values, scores, sums, ends } = self;
        queries + keys + values + scores + 2 * sums + 2 * ends
    }
}

/// A thread's scratch memory, in parts.
pub(super) struct AttendScratch<'a> {
    /// Values in a row, padded to whole vectors.
    pub(super) width: usize,
    /// The queries, in the order of kernels.
    pub(super) queries: &'a mut [f32],
    /// The keys of a block.
    pub(super) keys: &'a mut [f32],
    /// A block of values.
    pub(super) values: &'a mut [f32],
    /// Scores, later weights, of each query over a chunk.
    pub(super) scores: &'a mut [ChunkWeights],
    /// The weighted sums of a chunk, for each query.
    pub(super) sums: &'a mut [f32],
    /// Running weighted sums, for each query.
    pub(super) results: &'a mut [f32],
    /// The largest score and the sum of weights of a chunk, for each query.
    pub(super) partial: &'a mut [MaxSum],
    /// Running largest score and sum of weights, for each query.
    pub(super) running: &'a mut [MaxSum],
}

impl<'a> AttendScratch<'a> {
    pub(super) fn of(scratch: &'a mut [f32], [shared, size, value_size]: [usize; 3]) -> AttendScratch<'a> {
        let width = value_size.next_multiple_of(LANES);
        let sizes = AttendScratchSizes::of(shared, size, width);
        let (queries, rest) = scratch.split_at_mut(sizes.queries);
        let (keys, rest) = rest.split_at_mut(sizes.keys);
        let (values, rest) = rest.split_at_mut(sizes.values);
        let (scores, rest) = rest.split_at_mut(sizes.scores);
        let (sums, rest) = rest.split_at_mut(sizes.sums);
        let (results, rest) = rest.split_at_mut(sizes.sums);
        let (partial, rest) = rest.split_at_mut(sizes.ends);
        let (scores, partial) = (scores.as_chunks_mut().0, partial.as_chunks_mut().0);
        let running = rest[..sizes.ends].as_chunks_mut().0;
        AttendScratch { width, queries, keys, values, scores, sums, results, partial, running }
    }
}
