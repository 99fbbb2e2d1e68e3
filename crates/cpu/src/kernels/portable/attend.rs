//! The loops of attention; see [`super::super::attend`] for operands and orders.

use std::ops::Range;

use super::super::attend::{
    AttendKernels, Cells, ChunkWeights, EXP2, EXP2_LEAST, Format, KEY_TILE, KV_GROUP, LANES, MaxSum,
    ValueBlock, add_lanes,
};
use super::unpack;
use girih_graph::BLOCK_POSITIONS;
use girih_tensor::DType;

/// This file's kernels.
pub(super) const ATTEND: AttendKernels =
    AttendKernels { score, weigh, blend, join, widen_keys, widen_values, halve };

fn score(queries: &[f32], keys: Cells<'_>, _next: &[u8], scores: &mut [ChunkWeights], at: usize) {
    let width = scores.len();
    let mut line = [0.0; KEY_TILE];
    for (tile, at) in keys.key_tiles(queries.len() / width).zip((at..).step_by(KEY_TILE)) {
        scores.iter_mut().for_each(|scores| scores[at..at + KEY_TILE].fill(0.0));
        for (dim, queries) in queries.chunks_exact(width).enumerate() {
            read_keys(tile, dim, &mut line);
            for (query, scores) in queries.iter().zip(&mut *scores) {
                for (score, key) in scores[at..at + KEY_TILE].iter_mut().zip(&line) {
                    *score += query * key;
                }
            }
        }
    }
}

fn weigh(scores: &mut [ChunkWeights], seen: Range<usize>, cap: Option<f32>, ends: &mut [MaxSum]) {
    for (scores, ends) in scores.iter_mut().zip(ends) {
        *ends = weigh_query(scores, seen.clone(), cap);
    }
}

fn weigh_query(scores: &mut ChunkWeights, seen: Range<usize>, cap: Option<f32>) -> MaxSum {
    if let Some(cap) = cap {
        scores[seen.clone()].iter_mut().for_each(|score| *score = cap * tanh(*score));
    }
    let largest = scores[seen.clone()].iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sums = [0.0; LANES];
    for position in seen {
        scores[position] = exp2(scores[position] - largest);
        sums[position % LANES] += scores[position];
    }
    [largest, add_lanes(sums)]
}

/// `2^x` for `x ≤ 0`, at most 2 units in the last place off.
#[inline(always)]
pub(in super::super) fn exp2(x: f32) -> f32 {
    if x < EXP2_LEAST {
        return 0.0;
    }
    let whole = x.round_ties_even();
    let part = x - whole;
    let power = EXP2.iter().rev().skip(1).fold(EXP2[6], |sum, coefficient| sum * part + coefficient);
    // Exact: the power is near 1 and the exponent within reach.
    power * f32::from_bits(((whole as i32 + 127) as u32) << 23)
}

/// `tanh(x / 2 · ln 2)`.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let power = exp2(-x.abs());
    ((1.0 - power) / (1.0 + power)).copysign(x)
}

fn blend(weights: &[ChunkWeights], at: usize, values: ValueBlock<'_>, sums: &mut [f32]) {
    let width = values.width;
    assert_eq!(sums.len(), weights.len() * width, "a row of sums for each of weights");
    let mut line = [0.0; LANES];
    for position in values.positions.clone() {
        for column in (0..width).step_by(LANES) {
            read_values(values.cells, position * width + column, width, &mut line);
            for (weights, sums) in weights.iter().zip(sums.chunks_exact_mut(width)) {
                let weight = weights[at + position];
                for (sum, value) in sums[column..column + LANES].iter_mut().zip(&line) {
                    *sum += weight * value;
                }
            }
        }
    }
}

fn join(running: &mut MaxSum, result: &mut [f32], [top, sum]: MaxSum, sums: &[f32]) {
    let larger = running[0].max(top);
    let (before, now) = (exp2(running[0] - larger), exp2(top - larger));
    *running = [larger, sum * now + running[1] * before];
    for (result, value) in result.iter_mut().zip(sums) {
        *result = value * now + *result * before;
    }
}

fn widen_keys(format: Format, tile: &[u8], _next: &[u8], into: &mut [f32]) {
    for (dim, line) in into.as_chunks_mut::<KEY_TILE>().0.iter_mut().enumerate() {
        read_keys(Cells::Stored(format, tile), dim, line);
    }
}

fn widen_values(values: ValueBlock<'_>, into: &mut [f32]) {
    let width = values.width;
    for index in (values.positions.start * width..values.positions.end * width).step_by(LANES) {
        let line = into[index..].first_chunk_mut().expect("rows are whole vectors");
        read_values(values.cells, index, width, line);
    }
}

fn halve(values: &[f32], bytes: &mut [u8]) {
    DType::F16.pack(values, bytes);
}

/// One dim of a tile of keys.
#[inline(always)]
fn read_keys(keys: Cells<'_>, dim: usize, line: &mut [f32; KEY_TILE]) {
    match keys {
        Cells::Decoded(values) => line.copy_from_slice(&values[dim * KEY_TILE..(dim + 1) * KEY_TILE]),
        Cells::Stored(Format::F32, bytes) => {
            unpack::f32(&bytes[dim * KEY_TILE * 4..(dim + 1) * KEY_TILE * 4], line)
        }
        Cells::Stored(Format::F16, bytes) => {
            unpack::f16(&bytes[dim * KEY_TILE * 2..(dim + 1) * KEY_TILE * 2], line)
        }
        Cells::Stored(Format::BF16, bytes) => {
            unpack::bf16(&bytes[dim * KEY_TILE * 2..(dim + 1) * KEY_TILE * 2], line);
        }
        Cells::Stored(format @ (Format::Q8_0 | Format::Q4_0), bytes) => {
            let group = format.bytes(KEY_TILE, KV_GROUP);
            let (scales, codes) = bytes[dim / KV_GROUP * group..][..group].split_at(KEY_TILE * 2);
            unpack::f16(scales, line);
            let first = dim % KV_GROUP * KEY_TILE;
            line.iter_mut().zip(first..).for_each(|(value, index)| *value *= code(format, codes, index));
        }
    }
}

/// The values from number `index` of a block on.
#[inline(always)]
fn read_values(cells: Cells<'_>, index: usize, width: usize, line: &mut [f32; LANES]) {
    match cells {
        Cells::Decoded(values) => line.copy_from_slice(&values[index..index + LANES]),
        Cells::Stored(Format::F32, bytes) => unpack::f32(&bytes[index * 4..(index + LANES) * 4], line),
        Cells::Stored(Format::F16, bytes) => unpack::f16(&bytes[index * 2..(index + LANES) * 2], line),
        Cells::Stored(Format::BF16, bytes) => unpack::bf16(&bytes[index * 2..(index + LANES) * 2], line),
        Cells::Stored(format @ (Format::Q8_0 | Format::Q4_0), bytes) => {
            let (codes, scales) = bytes.split_at(format.code_bytes(BLOCK_POSITIONS * width));
            let mut scale = [0.0];
            let (position, group) = (index / width, index % width / KV_GROUP);
            unpack::f16(&scales[(group * BLOCK_POSITIONS + position) * 2..][..2], &mut scale);
            line.iter_mut()
                .zip(index..)
                .for_each(|(value, index)| *value = scale[0] * code(format, codes, index));
        }
    }
}

/// The code of a value, which its scale multiplies. Those of Q4_0 are less 8, and two vectors share their bytes.
#[inline(always)]
fn code(format: Format, codes: &[u8], index: usize) -> f32 {
    if format == Format::Q8_0 {
        return f32::from(codes[index] as i8);
    }
    let both = codes[index / (2 * LANES) * LANES + index % LANES];
    let own = if (index / LANES).is_multiple_of(2) { both & 0x0f } else { both >> 4 };
    f32::from(own) - 8.0
}
