//! The loops of attention; see [`super::super::attend`] for operands and orders.
//!
//! ```text
//! score   for each dim:        two vectors of 16 keys, each times up to 8 queries
//! blend   for each position:   up to four vectors of values, times up to 8 weights
//! ```
//! Sums stay in 2 to 16 registers while all dims or positions pass. With a
//! vector of keys or values come as many FMAs as there are queries, whose
//! numbers are broadcast from memory, so that from four queries on the FMAs
//! bind and not the loads. Bytes moved: the cells, once. Each line read asks for
//! a line of what comes next, which lies a block ahead, as the processor cannot
//! know where that is.

use std::arch::x86_64::*;
use std::ops::Range;

use super::super::attend::{
    Attend, Block, Cells, EXP2, EXP2_LEAST, Ends, Format, GROUP, LANES, Q8_0_GROUP, Scales, TILE, Weights,
    add_lanes,
};
use super::super::x86::{half, load_bytes, prefetch};
use super::super::x86_attend::{BF16, F16, F32, Q8_0, by_format, bytes_of, loops_of_width};
use super::{LANES as VECTOR, load, store};
use girih_graph::BLOCK_POSITIONS;

/// This file's kernels.
pub(super) const ATTEND: Attend = Attend {
    score: enter!(|queries, keys, ahead, scores, at| score),
    weigh: enter!(|scores, seen, cap| weigh),
    blend: enter!(|weights, at, values, sums| blend),
    join: enter!(|running, result, partial, sums| join),
    widen_keys: enter!(|format, tile, into| widen_keys),
    widen_values: enter!(|values, into| widen_values),
    halve: enter!(|values, bytes| halve),
};

/// A vector of the values that begin `bytes`; those of Q8_0 are without their scale.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn values<const FORMAT: u8>(bytes: &[u8]) -> __m512 {
    const WHOLE: &str = "a vector of values";
    match FORMAT {
        F32 => _mm512_castsi512_ps(load_512(bytes.first_chunk().expect(WHOLE))),
        F16 => _mm512_cvtph_ps(load_256(bytes.first_chunk().expect(WHOLE))),
        BF16 => {
            let words = _mm512_cvtepu16_epi32(load_256(bytes.first_chunk().expect(WHOLE)));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
        _ => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_bytes(bytes.first_chunk().expect(WHOLE)))),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn load_512(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the array is 64 readable bytes; this load needs no alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn load_256(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the array is 32 readable bytes; this load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn score(queries: &[f32], keys: Cells<'_>, ahead: &[u8], scores: &mut [Weights], at: usize) {
    by_format!(keys, |bytes| score_by_width(queries, bytes, ahead, scores, at));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn score_by_width<const FORMAT: u8>(
    queries: &[f32],
    tile: &[u8],
    ahead: &[u8],
    scores: &mut [Weights],
    at: usize,
) {
    // What lies ahead is the same part of a block, or nothing.
    let ahead = if ahead.len() < tile.len() { tile } else { ahead };
    match scores.len() {
        1 => score_tile::<FORMAT, 1>(queries, tile, ahead, scores, at),
        2 => score_tile::<FORMAT, 2>(queries, tile, ahead, scores, at),
        3 => score_tile::<FORMAT, 3>(queries, tile, ahead, scores, at),
        4 => score_tile::<FORMAT, 4>(queries, tile, ahead, scores, at),
        6 => score_tile::<FORMAT, 6>(queries, tile, ahead, scores, at),
        8 => score_tile::<FORMAT, 8>(queries, tile, ahead, scores, at),
        width => unreachable!("{width} queries are none of the widths"),
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn score_tile<const FORMAT: u8, const WIDTH: usize>(
    queries: &[f32],
    tile: &[u8],
    ahead: &[u8],
    scores: &mut [Weights],
    at: usize,
) {
    let queries = queries.as_chunks::<WIDTH>().0;
    let line = bytes_of::<FORMAT>(TILE);
    let group_bytes = if FORMAT == Q8_0 { Q8_0_GROUP } else { GROUP * line };
    let mut sums = [[_mm512_setzero_ps(); 2]; WIDTH];
    let groups = tile.chunks(group_bytes).zip(ahead.chunks(group_bytes)).zip(queries.chunks(GROUP));
    for ((group, ahead), queries) in groups {
        let (scales, group) = group.split_at(if FORMAT == Q8_0 { 2 * TILE } else { 0 });
        let scales = if FORMAT == Q8_0 {
            [values::<F16>(scales), values::<F16>(&scales[2 * LANES..])]
        } else {
            [_mm512_setzero_ps(); 2]
        };
        let lines = group.chunks_exact(line).zip(ahead.chunks_exact(group_bytes / GROUP));
        for ((line, ahead), queries) in lines.zip(queries) {
            for line in ahead.chunks(64) {
                prefetch(line);
            }
            let mut keys = [values::<FORMAT>(line), values::<FORMAT>(&line[bytes_of::<FORMAT>(LANES)..])];
            if FORMAT == Q8_0 {
                keys = [_mm512_mul_ps(keys[0], scales[0]), _mm512_mul_ps(keys[1], scales[1])];
            }
            for (sums, query) in sums.iter_mut().zip(queries) {
                let query = _mm512_set1_ps(*query);
                sums[0] = _mm512_fmadd_ps(query, keys[0], sums[0]);
                sums[1] = _mm512_fmadd_ps(query, keys[1], sums[1]);
            }
        }
    }
    for (sums, scores) in sums.iter().zip(scores) {
        let [low, high] = scores[at..at + TILE].as_chunks_mut().0 else {
            unreachable!("a tile is two vectors")
        };
        store(sums[0], low);
        store(sums[1], high);
    }
}

/// `2^x` for `x ≤ 0`, at most 2 units in the last place off.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn exp2(x: __m512) -> __m512 {
    let whole = _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x);
    let part = _mm512_sub_ps(x, whole);
    let mut power = _mm512_set1_ps(EXP2[6]);
    for coefficient in EXP2.iter().rev().skip(1) {
        power = _mm512_fmadd_ps(power, part, _mm512_set1_ps(*coefficient));
    }
    let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, _mm512_set1_ps(EXP2_LEAST));
    _mm512_maskz_scalef_ps(counts, power, whole)
}

/// `cap · tanh(x / 2 · ln 2)`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn capped(x: __m512, cap: __m512) -> __m512 {
    let sign = _mm512_set1_ps(-0.0);
    let one = _mm512_set1_ps(1.0);
    let power = exp2(_mm512_or_ps(x, sign));
    let tanh = _mm512_div_ps(_mm512_sub_ps(one, power), _mm512_add_ps(one, power));
    _mm512_mul_ps(cap, _mm512_or_ps(tanh, _mm512_and_ps(x, sign)))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn weigh(scores: &mut Weights, seen: Range<usize>, cap: Option<f32>) -> Ends {
    // Whole vectors hold what is seen; what else they hold weighs nothing.
    let whole = seen.start / LANES * LANES..seen.end.next_multiple_of(LANES);
    if let Some(cap) = cap {
        let cap = _mm512_set1_ps(cap);
        for vector in scores[whole.clone()].as_chunks_mut().0 {
            store(capped(load(vector), cap), vector);
        }
    }
    scores[whole.start..seen.start].fill(f32::NEG_INFINITY);
    scores[seen.end..whole.end].fill(f32::NEG_INFINITY);
    let vectors = scores[whole].as_chunks_mut().0;
    let mut largest = _mm512_set1_ps(f32::NEG_INFINITY);
    for vector in &*vectors {
        largest = _mm512_max_ps(largest, load(vector));
    }
    let largest = _mm512_reduce_max_ps(largest);
    let mut sums = _mm512_setzero_ps();
    for vector in vectors {
        let weights = exp2(_mm512_sub_ps(load(vector), _mm512_set1_ps(largest)));
        sums = _mm512_add_ps(sums, weights);
        store(weights, vector);
    }
    let mut lanes = [0.0; LANES];
    store(sums, &mut lanes);
    [largest, add_lanes(lanes)]
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn blend(weights: &[Weights], at: usize, values: Block<'_>, sums: &mut [f32]) {
    let cells = values.cells;
    by_format!(cells, |bytes| blend_by_width(weights, at, bytes, &values, sums));
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn blend_by_width<const FORMAT: u8>(
    weights: &[Weights],
    at: usize,
    bytes: &[u8],
    values: &Block<'_>,
    sums: &mut [f32],
) {
    match weights.len() {
        1 => blend_columns::<FORMAT, 1, 4>(weights, at, bytes, values, sums),
        2 => blend_columns::<FORMAT, 2, 4>(weights, at, bytes, values, sums),
        3 => blend_columns::<FORMAT, 3, 4>(weights, at, bytes, values, sums),
        4 => blend_columns::<FORMAT, 4, 4>(weights, at, bytes, values, sums),
        6 => blend_columns::<FORMAT, 6, 2>(weights, at, bytes, values, sums),
        8 => blend_columns::<FORMAT, 8, 2>(weights, at, bytes, values, sums),
        width => unreachable!("{width} rows of weights are none of the widths"),
    }
}

/// Blends all columns, `VECTORS` vectors at a time as far as they go.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn blend_columns<const FORMAT: u8, const WIDTH: usize, const VECTORS: usize>(
    weights: &[Weights],
    at: usize,
    bytes: &[u8],
    values: &Block<'_>,
    sums: &mut [f32],
) {
    let weights = weights.as_array::<WIDTH>().expect("the caller has looked at their number");
    let mut column = 0;
    while column + VECTORS * LANES <= values.width {
        blend_vectors::<FORMAT, WIDTH, VECTORS>(weights, at, bytes, values, column, sums);
        column += VECTORS * LANES;
    }
    while column < values.width {
        blend_vectors::<FORMAT, WIDTH, 1>(weights, at, bytes, values, column, sums);
        column += LANES;
    }
}

/// The scales of up to two groups of columns, which is as many as are blended
/// at once.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn group_scales(bytes: &[u8]) -> [Scales; 2] {
    let mut scales = [[0.0; BLOCK_POSITIONS]; 2];
    for (bytes, scales) in bytes.chunks_exact(2 * BLOCK_POSITIONS).zip(&mut scales) {
        widen_run::<F16>(bytes, scales);
    }
    scales
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn blend_vectors<const FORMAT: u8, const WIDTH: usize, const VECTORS: usize>(
    weights: &[Weights; WIDTH],
    at: usize,
    bytes: &[u8],
    block: &Block<'_>,
    column: usize,
    sums: &mut [f32],
) {
    let Range { start, end } = block.positions;
    assert!(end <= BLOCK_POSITIONS && at + BLOCK_POSITIONS <= weights[0].len(), "positions of a chunk");
    let mut totals = [[_mm512_setzero_ps(); VECTORS]; WIDTH];
    for (totals, sums) in totals.iter_mut().zip(sums.chunks_exact(block.width)) {
        let sums = sums[column..column + VECTORS * LANES].as_chunks().0;
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = load(sum);
        }
    }
    let (row_bytes, left) = (bytes_of::<FORMAT>(block.width), bytes_of::<FORMAT>(column));
    let (cells, scales) = bytes.split_at(BLOCK_POSITIONS * row_bytes);
    let scales = group_scales(&scales[scales.len().min(2 * BLOCK_POSITIONS * (column / GROUP))..]);
    let ahead = if block.ahead.len() < bytes.len() { bytes } else { block.ahead };
    let (ahead, scales_ahead) = ahead.split_at(cells.len());
    if FORMAT == Q8_0 {
        for line in scales_ahead[2 * BLOCK_POSITIONS * (column / GROUP)..].chunks(64).take(4) {
            prefetch(line);
        }
    }
    let part = bytes_of::<FORMAT>(VECTORS * LANES);
    let rows = cells.chunks_exact(row_bytes).zip(ahead.chunks_exact(row_bytes));
    for (position, (row, ahead)) in rows.enumerate().take(end).skip(start) {
        let (row, ahead) = (&row[left..left + part], &ahead[left..left + part]);
        for line in ahead.chunks(64) {
            prefetch(line);
        }
        let mut values = [_mm512_setzero_ps(); VECTORS];
        for (index, value) in values.iter_mut().enumerate() {
            *value = self::values::<FORMAT>(&row[bytes_of::<FORMAT>(index * LANES)..]);
            if FORMAT == Q8_0 {
                let scale = scales[(column % GROUP + index * LANES) / GROUP][position];
                *value = _mm512_mul_ps(*value, _mm512_set1_ps(scale));
            }
        }
        for (totals, weights) in totals.iter_mut().zip(weights) {
            let weight = _mm512_set1_ps(weights[at + position]);
            for (total, value) in totals.iter_mut().zip(values) {
                *total = _mm512_fmadd_ps(weight, value, *total);
            }
        }
    }
    for (totals, sums) in totals.iter().zip(sums.chunks_exact_mut(block.width)) {
        let sums = sums[column..column + VECTORS * LANES].as_chunks_mut().0;
        for (total, sum) in totals.iter().zip(sums) {
            store(*total, sum);
        }
    }
}

loops_of_width!(
    "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c",
    _mm512_set1_ps,
    _mm512_mul_ps,
    _mm512_fmadd_ps,
    _mm512_cvtss_f32
);

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
fn halve(values: &[f32], bytes: &mut [u8]) {
    let (vectors, rest) = values.as_chunks::<LANES>();
    let (halves, bytes_rest) = bytes.split_at_mut(vectors.len() * 2 * LANES);
    for (values, bytes) in vectors.iter().zip(halves.as_chunks_mut().0) {
        store_256(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(load(values)), bytes);
    }
    girih_tensor::DType::F16.pack(rest, bytes_rest);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
#[inline]
fn store_256(vector: __m256i, bytes: &mut [u8; 32]) {
    // SAFETY: the array is 32 writable bytes; this store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}
