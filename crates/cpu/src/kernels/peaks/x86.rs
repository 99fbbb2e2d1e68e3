//! The loops of x86, each chosen after the processor has reported its instructions.
//!
//! ```text
//! round: for each of CHAINS accumulators: accumulator = instruction(accumulator, a, b)
//! ```
//! The longest latency of these instructions is 5 cycles and at most two issue
//! in one, so that ten chains would do.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::peak::{Numbers, Peak, chains, fold};
use crate::kernels::avx512::tiles::{
    ProcessorTiles, TILE_ROW_BYTES, TILE_ROWS, TILES, TileInstructions, TilePermission, TileShape,
};

/// Accumulators of a round; with two operands they fit the 16 registers of AVX2.
const CHAINS: usize = 12;

/// Tiles of sums in a round of products of whole tiles, which take 16 cycles each and have a latency of 52 (Intel's
/// Optimization Reference Manual, 248966).
const TILE_CHAINS: u64 = 6;

/// Multiplications and additions of `lanes` lanes in a round.
const fn operations(lanes: u64) -> u64 {
    2 * lanes * CHAINS as u64
}

/// The loops whose instructions this processor has.
pub(super) fn peaks() -> Vec<Peak> {
    let mut peaks = Vec::new();
    if TilePermission::request().is_some() {
        peaks.push(Peak {
            instruction: "tdpbsud tmm",
            numbers: Numbers::Int8,
            operations: 2 * 16 * 16 * 64 * TILE_CHAINS,
            run: tdpbsud,
        });
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the processor has just reported the features of the loop.
        let run = |rounds| unsafe { vpdpbusd_zmm(rounds) };
        peaks.push(peak("vpdpbusd zmm", Numbers::Int8, 64, run));
    }
    if is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the processor has just reported the features of the loop.
        let run = |rounds| unsafe { vpdpbusd_ymm(rounds) };
        peaks.push(peak("vpdpbusd ymm", Numbers::Int8, 32, run));
    } else if is_x86_feature_detected!("avxvnni") {
        // SAFETY: the processor has just reported the features of the loop.
        let run = |rounds| unsafe { vpdpbusd_vex(rounds) };
        peaks.push(peak("vpdpbusd ymm", Numbers::Int8, 32, run));
    }
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16") {
        // SAFETY: the processor has just reported the features of the loop.
        let run = |rounds| unsafe { vdpbf16ps_zmm(rounds) };
        peaks.push(peak("vdpbf16ps zmm", Numbers::Bf16, 32, run));
    }
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has just reported the features of the loop.
        let run = |rounds| unsafe { vfmadd_zmm(rounds) };
        peaks.push(peak("vfmadd231ps zmm", Numbers::F32, 16, run));
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has just reported the features of the loop.
        let run = |rounds| unsafe { vpmaddubsw_ymm(rounds) };
        peaks.push(peak("vpmaddubsw ymm", Numbers::Int8, 32, run));
        // SAFETY: the processor has just reported the features of the loop.
        let run = |rounds| unsafe { vfmadd_ymm(rounds) };
        peaks.push(peak("vfmadd231ps ymm", Numbers::F32, 8, run));
    }
    peaks
}

fn peak(instruction: &'static str, numbers: Numbers, lanes: u64, run: fn(u64)) -> Peak {
    Peak { instruction, numbers, operations: operations(lanes), run }
}

chains!(
    vpdpbusd_zmm,
    "avx512f,avx512vnni",
    __m512i,
    _mm512_setzero_si512(),
    _mm512_set1_epi8(1),
    |chain, a, b| _mm512_dpbusd_epi32(chain, a, b)
);
chains!(
    vpdpbusd_ymm,
    "avx512vl,avx512vnni",
    __m256i,
    _mm256_setzero_si256(),
    _mm256_set1_epi8(1),
    |chain, a, b| _mm256_dpbusd_epi32(chain, a, b)
);
chains!(vpdpbusd_vex, "avxvnni", __m256i, _mm256_setzero_si256(), _mm256_set1_epi8(1), |chain, a, b| {
    _mm256_dpbusd_avx_epi32(chain, a, b)
});
chains!(
    vdpbf16ps_zmm,
    "avx512f,avx512bf16",
    __m512,
    _mm512_setzero_ps(),
    _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.5), _mm512_set1_ps(0.5)),
    |chain, a, b| _mm512_dpbf16_ps(chain, a, b)
);
chains!(vfmadd_zmm, "avx512f", __m512, _mm512_set1_ps(1.0), _mm512_set1_ps(0.5), |chain, a, b| {
    _mm512_fmadd_ps(chain, a, b)
});
chains!(vfmadd_ymm, "avx2,fma", __m256, _mm256_set1_ps(1.0), _mm256_set1_ps(0.5), |chain, a, b| {
    _mm256_fmadd_ps(chain, a, b)
});
chains!(
    vpmaddubsw_ymm,
    "avx2,fma",
    __m256i,
    _mm256_set1_epi8(1),
    _mm256_set1_epi8(1),
    // It has no accumulator: the result is the next operand.
    |chain, a, _| _mm256_maddubs_epi16(chain, a)
);

/// A loop of [`TILE_CHAINS`] chains.
fn tdpbsud(rounds: u64) {
    let permission = TilePermission::request().expect("`peaks` lists the loop only with a permission");
    let shapes = [TileShape { rows: TILE_ROWS, bytes: TILE_ROW_BYTES }; TILES];
    // SAFETY: it is the only value of this thread, which it does not leave.
    let mut tiles = unsafe { ProcessorTiles::configured(permission, shapes) };
    for _ in 0..rounds {
        tiles.dot::<0, 6, 7>();
        tiles.dot::<1, 6, 7>();
        tiles.dot::<2, 6, 7>();
        tiles.dot::<3, 6, 7>();
        tiles.dot::<4, 6, 7>();
        tiles.dot::<5, 6, 7>();
    }
}

/// The time stamp (`rdtsc`).
pub(super) fn time_stamp() -> u64 {
    // SAFETY: every processor of this kind has the instruction, and it touches no memory.
    unsafe { _rdtsc() }
}

/// The widest loads of this processor, if it has wider ones than all have.
pub(super) fn read() -> Option<fn(&[u64]) -> u64> {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has just reported the features of the loop.
        return Some(|words| unsafe { read_zmm(words) });
    }
    // SAFETY: the processor has just reported the features of the loop.
    is_x86_feature_detected!("avx2").then_some(|words| unsafe { read_ymm(words) })
}

#[target_feature(enable = "avx512f")]
fn read_zmm(words: &[u64]) -> u64 {
    fold(words)
}

#[target_feature(enable = "avx2")]
fn read_ymm(words: &[u64]) -> u64 {
    fold(words)
}
