//! The loops of attention; see [`attend`](crate::kernels::attend) for operands and orders.
//!
//! ```text
//! score   for each dim:        1, 2 or 4 vectors of 16 keys, each times up to 8 queries
//! blend   for each position:   1 to 4 vectors of values, times up to 8 weights
//! ```
//! Sums stay in 2 to 16 registers while all dims or positions pass: of 32 registers
//! of AVX-512 and of 16 of AVX2, where a vector of 16 numbers takes two and eight
//! queries go four at a time. A vector of keys or values meets an FMA for each
//! query, whose numbers are broadcast from memory, so from four queries on the
//! FMAs bind and not the loads. Bytes moved: the cells, once from memory, and again
//! from L1 for each further pass. Each line read prefetches a line of the next
//! block, as the processor cannot know where that is.

use std::ops::Range;

use girih_graph::BLOCK_POSITIONS;
use girih_tensor::DType;

use super::quads::{Quads, sum_float_lanes};
use super::{Isa, QUAD, VectorKernel, Vectors, Wide, by_count};
use crate::kernels::attend::{
    Cells, ChunkWeights, EXP2, EXP2_LEAST, Format, KEY_TILE, KV_GROUP, LANES, MaxSum, ValueBlock,
};
use crate::kernels::machine::{as_bytes, prefetch_l2};

/// [`Format`] as a constant of a function.
const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;
const Q8_0: u8 = 3;
const Q4_0: u8 = 4;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The scales of a group of columns of values in a block of positions.
type BlockScales = [f32; BLOCK_POSITIONS];

/// Bytes of a number of values, without their scales.
const fn bytes_of<const FORMAT: u8>(values: usize) -> usize {
    match FORMAT {
        F32 => 4 * values,
        Q8_0 => values,
        Q4_0 => values / 2,
        _ => 2 * values,
    }
}

/// Whether [`KV_GROUP`] values share a scale.
const fn is_grouped<const FORMAT: u8>() -> bool {
    FORMAT == Q8_0 || FORMAT == Q4_0
}

/// The vectors that share their bytes.
const fn sharing<const FORMAT: u8>() -> usize {
    if FORMAT == Q4_0 { 2 } else { 1 }
}

/// Bytes of [`KV_GROUP`] dims of a tile of keys, with their scales.
const fn key_group_bytes<const FORMAT: u8>() -> usize {
    let scales = if is_grouped::<FORMAT>() { 2 * KEY_TILE } else { 0 };
    scales + bytes_of::<FORMAT>(KV_GROUP * KEY_TILE)
}

/// Bytes of a tile of keys of `dims` dims.
fn key_tile_bytes<const FORMAT: u8>(dims: usize) -> usize {
    match is_grouped::<FORMAT>() {
        true => dims / KV_GROUP * key_group_bytes::<FORMAT>(),
        false => bytes_of::<FORMAT>(dims * KEY_TILE),
    }
}

/// The constant for the format of cells, and their bytes.
fn format_and_bytes(cells: Cells<'_>) -> (u8, &[u8]) {
    match cells {
        Cells::Decoded(values) => (F32, as_bytes(values)),
        Cells::Stored(Format::F32, bytes) => (F32, bytes),
        Cells::Stored(Format::F16, bytes) => (F16, bytes),
        Cells::Stored(Format::BF16, bytes) => (BF16, bytes),
        Cells::Stored(Format::Q8_0, bytes) => (Q8_0, bytes),
        Cells::Stored(Format::Q4_0, bytes) => (Q4_0, bytes),
    }
}

/// Calls a kernel for the format of cells as a constant, with their bytes.
macro_rules! by_format {
    ($cells:expr, |$format:ident, $bytes:ident| $call:expr) => {{
        let (format, $bytes) = format_and_bytes($cells);
        match format {
            F32 => by_format!(@$format = F32, $call),
            F16 => by_format!(@$format = F16, $call),
            BF16 => by_format!(@$format = BF16, $call),
            Q8_0 => by_format!(@$format = Q8_0, $call),
            _ => by_format!(@$format = Q4_0, $call),
        }
    }};
    (@$format:ident = $value:expr, $call:expr) => {{
        const $format: u8 = $value;
        $call
    }};
}

/// Vector `index` of the values in `bytes`, without their scale.
#[inline(always)]
fn read<V: Vectors, const FORMAT: u8>(v: V, bytes: &[u8], index: usize) -> V::Floats {
    let own = index % sharing::<FORMAT>();
    let bytes = &bytes[bytes_of::<FORMAT>((index - own) * LANES)..];
    match FORMAT {
        F32 => v.read_f32(bytes),
        F16 => v.read_f16(bytes),
        BF16 => v.read_bf16(bytes),
        Q8_0 => v.to_floats(v.read_i8(bytes)),
        _ if own == 0 => v.read_lower_codes(bytes),
        _ => v.read_upper_codes(bytes),
    }
}

pub(super) fn score<I: Isa>(
    isa: I,
    queries: &[f32],
    keys: Cells<'_>,
    next: &[u8],
    scores: &mut [ChunkWeights],
    at: usize,
) {
    by_format!(keys, |FORMAT, tiles| {
        // What is read next is the same part of a block, or nothing.
        let next = if next.len() < tiles.len() { tiles } else { next };
        by_count!(scores.len(), [1 2 3 4 6 8], |WIDTH| {
            const AT_ONCE: usize = if WIDTH > 6 { 4 } else { WIDTH };
            const TILES: usize = if WIDTH > 4 { 1 } else { 2 };
            let operands = TileOperands { queries, tiles, next, scores, at };
            if I::REGISTERS == 32 {
                isa.enter(Score::<FORMAT, WIDTH, WIDTH, 2, TILES>(operands));
            } else {
                isa.enter(Score::<FORMAT, WIDTH, AT_ONCE, 1, 1>(operands));
            }
        });
    });
}

struct TileOperands<'a> {
    queries: &'a [f32],
    /// Tiles that follow each other.
    tiles: &'a [u8],
    next: &'a [u8],
    scores: &'a mut [ChunkWeights],
    at: usize,
}

/// Scores `WIDTH` queries, `AT_ONCE` of them with `VECTORS` vectors of keys of each of `TILES` tiles at once. With
/// 32 registers few queries take two tiles, as their sums would wait for each other otherwise.
struct Score<
    'a,
    const FORMAT: u8,
    const WIDTH: usize,
    const AT_ONCE: usize,
    const VECTORS: usize,
    const TILES: usize,
>(TileOperands<'a>);

impl<
    I: Isa,
    const FORMAT: u8,
    const WIDTH: usize,
    const AT_ONCE: usize,
    const VECTORS: usize,
    const TILES: usize,
> VectorKernel<I> for Score<'_, FORMAT, WIDTH, AT_ONCE, VECTORS, TILES>
{
    #[inline(always)]
    fn run(self, isa: I) {
        let v = isa.wide();
        let TileOperands { queries, tiles, next, scores, mut at } = self.0;
        let queries = queries.as_chunks::<WIDTH>().0;
        let bytes = key_tile_bytes::<FORMAT>(queries.len());
        let mut tiles = tiles.chunks_exact(bytes).zip(next.chunks_exact(bytes));
        let mut left = tiles.len();
        while left > 0 {
            let (tile, next) = tiles.next().expect("a tile is left");
            if TILES == 2 && left >= TILES {
                let (second, second_next) = tiles.next().expect("two tiles are left");
                let keys = Keys { tiles: [tile, second], next: [next, second_next] };
                keys.scores::<I::Wide, FORMAT, WIDTH, AT_ONCE, VECTORS>(v, queries, scores, at);
                (left, at) = (left - 2, at + 2 * KEY_TILE);
            } else {
                let keys = Keys { tiles: [tile], next: [next] };
                keys.scores::<I::Wide, FORMAT, WIDTH, AT_ONCE, VECTORS>(v, queries, scores, at);
                (left, at) = (left - 1, at + KEY_TILE);
            }
        }
    }
}

/// Tiles of keys, and those that are read next.
struct Keys<'a, const TILES: usize> {
    tiles: [&'a [u8]; TILES],
    next: [&'a [u8]; TILES],
}

impl<const TILES: usize> Keys<'_, TILES> {
    /// Writes the scores of `WIDTH` queries from position `at` on.
    #[inline(always)]
    fn scores<
        V: Vectors<Lanes = [f32; LANES]>,
        const FORMAT: u8,
        const WIDTH: usize,
        const AT_ONCE: usize,
        const VECTORS: usize,
    >(
        &self,
        v: V,
        queries: &[[f32; WIDTH]],
        scores: &mut [ChunkWeights],
        at: usize,
    ) {
        for start in (0..KEY_TILE).step_by(VECTORS * LANES) {
            for (first, scores) in (0..WIDTH).step_by(AT_ONCE).zip(scores.chunks_exact_mut(AT_ONCE)) {
                let from = [start, first];
                let sums = if start + first == 0 {
                    self.score::<V, FORMAT, WIDTH, AT_ONCE, VECTORS, true>(v, queries, from)
                } else {
                    self.score::<V, FORMAT, WIDTH, AT_ONCE, VECTORS, false>(v, queries, from)
                };
                for (sums, scores) in sums.iter().zip(scores) {
                    let tiles = scores[at..at + TILES * KEY_TILE].as_chunks_mut::<KEY_TILE>().0;
                    for (sums, scores) in sums.iter().zip(tiles) {
                        for (sum, scores) in sums.iter().zip(scores[start..].as_chunks_mut().0) {
                            v.store(*sum, scores);
                        }
                    }
                }
            }
        }
    }

    /// The scores of `AT_ONCE` queries from number `first` on, with the keys of each tile from number `start` on;
    /// the first pass prefetches.
    #[inline(always)]
    fn score<
        V: Vectors,
        const FORMAT: u8,
        const WIDTH: usize,
        const AT_ONCE: usize,
        const VECTORS: usize,
        const PREFETCH: bool,
    >(
        &self,
        v: V,
        queries: &[[f32; WIDTH]],
        [start, first]: [usize; 2],
    ) -> [[[V::Floats; VECTORS]; TILES]; AT_ONCE] {
        let line = bytes_of::<FORMAT>(KEY_TILE);
        let group_bytes = key_group_bytes::<FORMAT>();
        let scale_bytes = if is_grouped::<FORMAT>() { 2 * KEY_TILE } else { 0 };
        let mut sums = [[[v.splat(0.0); VECTORS]; TILES]; AT_ONCE];
        for (group, queries) in queries.chunks(KV_GROUP).enumerate() {
            let mut own = [[v.splat(0.0); VECTORS]; TILES];
            for (own, tile) in own.iter_mut().zip(self.tiles) {
                let scales = &tile[group * group_bytes..][..scale_bytes];
                for (own, scales) in
                    own.iter_mut().zip(scales[start * scale_bytes / KEY_TILE..].chunks_exact(2 * LANES))
                {
                    *own = v.read_f16(scales);
                }
            }
            for (dim, queries) in queries.iter().enumerate() {
                let mut keys = [[v.splat(0.0); VECTORS]; TILES];
                for (index, keys) in keys.iter_mut().enumerate() {
                    if PREFETCH {
                        let each = group_bytes / KV_GROUP;
                        for line in self.next[index][group * group_bytes + dim * each..][..each].chunks(LINE)
                        {
                            prefetch_l2(line);
                        }
                    }
                    let line = &self.tiles[index][group * group_bytes + scale_bytes + dim * line..][..line];
                    for (vector, keys) in keys.iter_mut().enumerate() {
                        *keys = read::<V, FORMAT>(v, line, start / LANES + vector);
                        if is_grouped::<FORMAT>() {
                            *keys = v.mul(*keys, own[index][vector]);
                        }
                    }
                }
                let queries: &[f32; AT_ONCE] =
                    queries[first..].first_chunk().expect("a pass within the width");
                for (sums, query) in sums.iter_mut().zip(queries) {
                    let query = v.splat(*query);
                    for (sums, keys) in sums.iter_mut().zip(keys) {
                        for (sum, keys) in sums.iter_mut().zip(keys) {
                            *sum = v.fmadd(query, keys, *sum);
                        }
                    }
                }
            }
        }
        sums
    }
}

/// `2^x` for `x ≤ 0`, at most 2 units in the last place off.
#[inline(always)]
fn exp2<V: Vectors>(v: V, x: V::Floats) -> V::Floats {
    let whole = v.round(x);
    let part = v.sub(x, whole);
    let mut power = v.splat(EXP2[6]);
    for coefficient in EXP2.iter().rev().skip(1) {
        power = v.fmadd(power, part, v.splat(*coefficient));
    }
    v.scale_by_power(power, whole, x, EXP2_LEAST)
}

/// `cap · tanh(x / 2 · ln 2)`.
#[inline(always)]
fn capped<V: Vectors>(v: V, x: V::Floats, cap: V::Floats) -> V::Floats {
    let (sign, one) = (v.splat(-0.0), v.splat(1.0));
    let power = exp2(v, v.or(x, sign));
    let tanh = v.div(v.sub(one, power), v.add(one, power));
    v.mul(cap, v.or(tanh, v.and(x, sign)))
}

pub(super) fn weigh<I: Isa>(
    isa: I,
    mut scores: &mut [ChunkWeights],
    seen: Range<usize>,
    cap: Option<f32>,
    mut ends: &mut [MaxSum],
) {
    assert_eq!(scores.len(), ends.len(), "each query has a largest score and a sum");
    let most = if I::REGISTERS == 32 { 4 } else { 2 };
    while !scores.is_empty() {
        let count = [4, 2, 1].into_iter().find(|count| *count <= most.min(scores.len())).unwrap_or(1);
        let (now, others) = scores.split_at_mut(count);
        let (now_ends, other_ends) = ends.split_at_mut(count);
        by_count!(count, [1 2 4], |COUNT| {
            isa.enter(Weigh::<COUNT> { scores: now, seen: seen.clone(), cap, ends: now_ends });
        });
        (scores, ends) = (others, other_ends);
    }
}

/// Weighs `COUNT` queries at once, as the operations of one wait for each other.
struct Weigh<'a, const COUNT: usize> {
    scores: &'a mut [ChunkWeights],
    seen: Range<usize>,
    cap: Option<f32>,
    ends: &'a mut [MaxSum],
}

impl<I: Isa, const COUNT: usize> VectorKernel<I> for Weigh<'_, COUNT> {
    #[inline(always)]
    fn run(self, isa: I) {
        let v = isa.wide();
        let Weigh { scores, seen, cap, ends } = self;
        let scores = scores.as_mut_array::<COUNT>().expect("the caller has looked at their number");
        // Whole vectors hold the positions seen; the other positions in them weigh nothing.
        let whole = seen.start / LANES * LANES..seen.end.next_multiple_of(LANES);
        for scores in scores.iter_mut() {
            if let Some(cap) = cap {
                let cap = v.splat(cap);
                for vector in scores[whole.clone()].as_chunks_mut().0 {
                    v.store(capped(v, v.load(vector), cap), vector);
                }
            }
            scores[whole.start..seen.start].fill(f32::NEG_INFINITY);
            scores[seen.end..whole.end].fill(f32::NEG_INFINITY);
        }
        let vectors = whole.start / LANES..whole.end / LANES;
        let mut largest = [v.splat(f32::NEG_INFINITY); COUNT];
        for index in vectors.clone() {
            for (largest, scores) in largest.iter_mut().zip(&*scores) {
                *largest = v.max(*largest, v.load(&scores.as_chunks().0[index]));
            }
        }
        let mut tops = [0.0; COUNT];
        for (top, largest) in tops.iter_mut().zip(largest) {
            *top = v.largest(largest);
        }
        let mut sums = [v.splat(0.0); COUNT];
        for index in vectors {
            for ((sums, scores), top) in sums.iter_mut().zip(scores.iter_mut()).zip(tops) {
                let vector = &mut scores.as_chunks_mut().0[index];
                let weights = exp2(v, v.sub(v.load(vector), v.splat(top)));
                *sums = v.add(*sums, weights);
                v.store(weights, vector);
            }
        }
        // In the order of `add_lanes`.
        let mut quads = [v.quad(0.0); QUAD];
        for (quad, sums) in quads.iter_mut().zip(sums) {
            *quad = v.fold(sums);
        }
        let mut totals = [0.0; QUAD];
        v.write_quad(sum_float_lanes(v, quads), &mut totals);
        for ((ends, total), top) in ends.iter_mut().zip(totals).zip(tops) {
            *ends = [top, total];
        }
    }
}

pub(super) fn blend<I: Isa>(
    isa: I,
    weights: &[ChunkWeights],
    at: usize,
    block: ValueBlock<'_>,
    sums: &mut [f32],
) {
    by_format!(block.cells, |FORMAT, bytes| {
        by_count!(weights.len(), [1 2 3 4 6 8], |WIDTH| {
            const VECTORS: usize = if WIDTH > 4 { 2 } else { 4 };
            const AT_ONCE: usize = if WIDTH > 6 { 4 } else { WIDTH };
            let block = &block;
            if I::REGISTERS == 32 {
                isa.enter(Blend::<FORMAT, WIDTH, VECTORS> { weights, at, bytes, block, sums });
            } else {
                let parts = sums.chunks_mut(AT_ONCE * block.width);
                for (weights, sums) in weights.chunks_exact(AT_ONCE).zip(parts) {
                    isa.enter(Blend::<FORMAT, AT_ONCE, 1> { weights, at, bytes, block, sums });
                }
            }
        });
    });
}

/// Blends all columns, `VECTORS` vectors at a time as far as they go.
struct Blend<'a, const FORMAT: u8, const WIDTH: usize, const VECTORS: usize> {
    weights: &'a [ChunkWeights],
    at: usize,
    bytes: &'a [u8],
    block: &'a ValueBlock<'a>,
    sums: &'a mut [f32],
}

impl<I: Isa, const FORMAT: u8, const WIDTH: usize, const VECTORS: usize> VectorKernel<I>
    for Blend<'_, FORMAT, WIDTH, VECTORS>
{
    #[inline(always)]
    fn run(self, isa: I) {
        let v = isa.wide();
        let Blend { weights, at, bytes, block, sums } = self;
        let weights = weights.as_array::<WIDTH>().expect("the caller has looked at their number");
        let mut column = 0;
        while column + VECTORS * LANES <= block.width {
            blend_vectors::<I::Wide, FORMAT, WIDTH, VECTORS>(v, weights, at, bytes, block, column, sums);
            column += VECTORS * LANES;
        }
        while VECTORS > 1 && column < block.width {
            blend_vectors::<I::Wide, FORMAT, WIDTH, 1>(v, weights, at, bytes, block, column, sums);
            column += LANES;
        }
    }
}

/// Blends `COUNT` vectors of columns from `column` on.
#[inline(always)]
fn blend_vectors<V: Wide, const FORMAT: u8, const WIDTH: usize, const COUNT: usize>(
    v: V,
    weights: &[ChunkWeights; WIDTH],
    at: usize,
    bytes: &[u8],
    block: &ValueBlock<'_>,
    column: usize,
    sums: &mut [f32],
) {
    let Range { start, end } = block.positions;
    assert!(end <= BLOCK_POSITIONS && at + BLOCK_POSITIONS <= weights[0].len(), "positions of a chunk");
    let mut totals = [[v.splat(0.0); COUNT]; WIDTH];
    for (totals, sums) in totals.iter_mut().zip(sums.chunks_exact(block.width)) {
        let sums = sums[column..column + COUNT * LANES].as_chunks().0;
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = v.load(sum);
        }
    }
    // A byte has codes of two vectors, so an odd vector is read from the start of its pair. Several vectors begin a pair.
    debug_assert!(COUNT == 1 || (column / LANES).is_multiple_of(sharing::<FORMAT>()), "a pair begins here");
    let before = if COUNT > 1 { 0 } else { column / LANES % sharing::<FORMAT>() };
    let (row_bytes, left) = (bytes_of::<FORMAT>(block.width), bytes_of::<FORMAT>(column - before * LANES));
    let (cells, scales) = bytes.split_at(BLOCK_POSITIONS * row_bytes);
    let scales = group_scales(v, &scales[scales.len().min(2 * BLOCK_POSITIONS * (column / KV_GROUP))..]);
    let next = if block.next.len() < bytes.len() { bytes } else { block.next };
    let (next, next_scales) = next.split_at(cells.len());
    if is_grouped::<FORMAT>() {
        for line in next_scales[2 * BLOCK_POSITIONS * (column / KV_GROUP)..].chunks(LINE).take(4) {
            prefetch_l2(line);
        }
    }
    let part = bytes_of::<FORMAT>(COUNT.next_multiple_of(sharing::<FORMAT>()) * LANES);
    let rows = start * row_bytes..end * row_bytes;
    let rows = cells[rows.clone()].chunks_exact(row_bytes).zip(next[rows].chunks_exact(row_bytes));
    for ((row, next), position) in rows.zip(start..end) {
        let (row, next) = (&row[left..left + part], &next[left..left + part]);
        for line in next.chunks(LINE) {
            prefetch_l2(line);
        }
        let mut values = [v.splat(0.0); COUNT];
        for (index, value) in values.iter_mut().enumerate() {
            *value = read::<V, FORMAT>(v, row, before + index);
            if is_grouped::<FORMAT>() {
                let scale = scales[(column % KV_GROUP + index * LANES) / KV_GROUP][position];
                *value = v.mul(*value, v.splat(scale));
            }
        }
        for (totals, weights) in totals.iter_mut().zip(weights) {
            let weight = v.splat(weights[at + position]);
            for (total, value) in totals.iter_mut().zip(values) {
                *total = v.fmadd(weight, value, *total);
            }
        }
    }
    for (totals, sums) in totals.iter().zip(sums.chunks_exact_mut(block.width)) {
        let sums = sums[column..column + COUNT * LANES].as_chunks_mut().0;
        for (total, sum) in totals.iter().zip(sums) {
            v.store(*total, sum);
        }
    }
}

/// The scales of up to two groups of columns, the most that are blended at once.
#[inline(always)]
fn group_scales<V: Wide>(v: V, bytes: &[u8]) -> [BlockScales; 2] {
    let mut scales = [[0.0; BLOCK_POSITIONS]; 2];
    for (bytes, scales) in bytes.chunks_exact(2 * BLOCK_POSITIONS).zip(&mut scales) {
        decode_run::<V, F16>(v, bytes, scales);
    }
    scales
}

pub(super) fn join<I: Isa>(isa: I, running: &mut MaxSum, result: &mut [f32], partial: MaxSum, sums: &[f32]) {
    isa.enter(Join { running, result, partial, sums });
}

struct Join<'a> {
    running: &'a mut MaxSum,
    result: &'a mut [f32],
    partial: MaxSum,
    sums: &'a [f32],
}

impl<I: Isa> VectorKernel<I> for Join<'_> {
    #[inline(always)]
    fn run(self, isa: I) {
        let v = isa.wide();
        let Join { running, result, partial: [max, sum], sums } = self;
        let larger = running[0].max(max);
        let before = exp2(v, v.splat(running[0] - larger));
        let now = exp2(v, v.splat(max - larger));
        let total = v.mul(v.splat(running[1]), before);
        *running = [larger, v.first(v.fmadd(v.splat(sum), now, total))];
        for (result, value) in result.as_chunks_mut().0.iter_mut().zip(sums.as_chunks().0) {
            let kept = v.mul(v.load(result), before);
            v.store(v.fmadd(v.load(value), now, kept), result);
        }
    }
}

pub(super) fn widen_keys<I: Isa>(isa: I, format: Format, tile: &[u8], next: &[u8], into: &mut [f32]) {
    let next = if next.len() < tile.len() { tile } else { next };
    by_format!(Cells::Stored(format, tile), |FORMAT, tile| {
        isa.enter(WidenKeys::<FORMAT> { tile, next, into });
    });
}

struct WidenKeys<'a, const FORMAT: u8> {
    tile: &'a [u8],
    next: &'a [u8],
    into: &'a mut [f32],
}

impl<I: Isa, const FORMAT: u8> VectorKernel<I> for WidenKeys<'_, FORMAT> {
    #[inline(always)]
    fn run(self, isa: I) {
        let v = isa.wide();
        let WidenKeys { tile, next, into } = self;
        if !is_grouped::<FORMAT>() {
            return decode_ahead::<I::Wide, FORMAT>(v, tile, next, into);
        }
        let groups = tile.chunks_exact(key_group_bytes::<FORMAT>());
        let groups = groups.zip(next.chunks_exact(key_group_bytes::<FORMAT>()));
        for ((group, next), into) in groups.zip(into.chunks_exact_mut(KV_GROUP * KEY_TILE)) {
            for line in next.chunks(LINE) {
                prefetch_l2(line);
            }
            let (scales, group) = group.split_at(2 * KEY_TILE);
            let mut own = [v.splat(0.0); KEY_TILE / LANES];
            for (own, scales) in own.iter_mut().zip(scales.chunks_exact(2 * LANES)) {
                *own = v.read_f16(scales);
            }
            let lines = group.chunks_exact(bytes_of::<FORMAT>(KEY_TILE));
            for (line, into) in lines.zip(into.as_chunks_mut::<KEY_TILE>().0) {
                for (index, into) in into.as_chunks_mut().0.iter_mut().enumerate() {
                    v.store(v.mul(read::<I::Wide, FORMAT>(v, line, index), own[index]), into);
                }
            }
        }
    }
}

/// Decodes values without scales, one after another.
#[inline(always)]
fn decode_run<V: Wide, const FORMAT: u8>(v: V, bytes: &[u8], into: &mut [f32]) {
    for (bytes, into) in bytes.chunks_exact(bytes_of::<FORMAT>(LANES)).zip(into.as_chunks_mut().0) {
        v.store(read::<V, FORMAT>(v, bytes, 0), into);
    }
}

/// As [`decode_run`]; each line prefetches one of `next`, which is as long.
#[inline(always)]
fn decode_ahead<V: Wide, const FORMAT: u8>(v: V, bytes: &[u8], next: &[u8], into: &mut [f32]) {
    let values = LINE / bytes_of::<FORMAT>(LANES) * LANES;
    for ((bytes, next), into) in bytes.chunks(LINE).zip(next.chunks(LINE)).zip(into.chunks_mut(values)) {
        prefetch_l2(next);
        decode_run::<V, FORMAT>(v, bytes, into);
    }
}

pub(super) fn widen_values<I: Isa>(isa: I, block: ValueBlock<'_>, into: &mut [f32]) {
    let width = block.width;
    let range = block.positions.start * width..block.positions.end * width;
    let into = &mut into[range.clone()];
    by_format!(block.cells, |FORMAT, bytes| {
        let next = if block.next.len() < bytes.len() { bytes } else { block.next };
        isa.enter(WidenValues::<FORMAT> { bytes, next, range, width, into });
    });
}

struct WidenValues<'a, const FORMAT: u8> {
    bytes: &'a [u8],
    next: &'a [u8],
    range: Range<usize>,
    width: usize,
    into: &'a mut [f32],
}

impl<I: Isa, const FORMAT: u8> VectorKernel<I> for WidenValues<'_, FORMAT> {
    #[inline(always)]
    fn run(self, isa: I) {
        let v = isa.wide();
        let WidenValues { bytes, next, range, width, into } = self;
        let (cells, scales) = bytes.split_at(bytes_of::<FORMAT>(BLOCK_POSITIONS * width));
        let (next, next_scales) = next.split_at(cells.len());
        let bytes = bytes_of::<FORMAT>(range.start)..bytes_of::<FORMAT>(range.end);
        let (cells, next) = (&cells[bytes.clone()], &next[bytes]);
        if !is_grouped::<FORMAT>() {
            return decode_ahead::<I::Wide, FORMAT>(v, cells, next, into);
        }
        for line in next_scales.chunks(LINE) {
            prefetch_l2(line);
        }
        let rows = cells.chunks_exact(bytes_of::<FORMAT>(width)).zip(into.chunks_exact_mut(width));
        let rows = rows.zip(next.chunks_exact(bytes_of::<FORMAT>(width)));
        for (position, ((cells, into), next)) in (range.start / width..).zip(rows) {
            for line in next.chunks(LINE) {
                prefetch_l2(line);
            }
            let groups = cells.chunks_exact(bytes_of::<FORMAT>(KV_GROUP));
            let groups = groups.zip(into.as_chunks_mut::<KV_GROUP>().0);
            for (group, (cells, into)) in groups.enumerate() {
                let at = 2 * (group * BLOCK_POSITIONS + position);
                let scale = v.splat_f16([scales[at], scales[at + 1]]);
                for (index, into) in into.as_chunks_mut().0.iter_mut().enumerate() {
                    v.store(v.mul(read::<I::Wide, FORMAT>(v, cells, index), scale), into);
                }
            }
        }
    }
}

pub(super) fn halve<I: Isa>(isa: I, values: &[f32], bytes: &mut [u8]) {
    isa.enter(Halve { values, bytes });
}

struct Halve<'a> {
    values: &'a [f32],
    bytes: &'a mut [u8],
}

impl<I: Isa> VectorKernel<I> for Halve<'_> {
    #[inline(always)]
    fn run(self, isa: I) {
        let v = isa.wide();
        let (vectors, rest) = self.values.as_chunks::<LANES>();
        let (halves, bytes_rest) = self.bytes.split_at_mut(vectors.len() * 2 * LANES);
        for (values, bytes) in vectors.iter().zip(halves.as_chunks_mut::<{ 2 * LANES }>().0) {
            v.write_f16(v.load(values), bytes);
        }
        DType::F16.pack(rest, bytes_rest);
    }
}
