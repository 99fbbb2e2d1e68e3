//! What the tables for x86 share: bytes of blocks as vectors of small integers,
//! the scales of small integers that are made, and the way through the units of
//! packed weights.
//!
//! Everything here works within 256 bits, for which AVX2 is enough; how wide
//! the numbers are that come of it is each table's own affair.

use std::arch::x86_64::*;
use std::ptr;
use std::slice::{self, ChunksExact};

use super::ahead::Ahead;
use super::layout::Parts;
use super::packed::{Band, DEPTH, FLOAT_DEPTH, LINE, Layout, Panel, PanelGroup};
use super::portable::quantize::{self, LEAST, LEVELS};

/// Groups whose results are made together.
pub(super) const QUAD: usize = 4;

/// Values of four groups.
const QUAD_VALUES: usize = QUAD * super::GROUP;

/// Small integers that are decoded at once.
pub(super) const GROUP: usize = 16;

/// Reads 16 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn load_bytes(bytes: &[u8; GROUP]) -> __m128i {
    // SAFETY: the array is 16 readable bytes; this load needs no alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// The bytes of numbers, in the order of memory, which on x86 is that of files.
pub(super) fn as_bytes(values: &[f32]) -> &[u8] {
    let (start, len) = (values.as_ptr().cast(), size_of_val(values));
    // SAFETY: the bytes are those of the slice, which is borrowed for as long;
    // bytes need no alignment, and numbers have no padding between them.
    unsafe { slice::from_raw_parts(start, len) }
}

/// Asks for the line of memory in which `bytes` begins, for the second cache.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn prefetch(bytes: &[u8]) {
    _mm_prefetch::<_MM_HINT_T1>(bytes.as_ptr().cast());
}

/// As [`prefetch`], of the line at an address, whatever lies there.
#[inline]
pub(super) fn prefetch_at(address: usize) {
    // SAFETY: SSE, which has the instruction, is part of x86-64; it reads nothing
    // that the program sees, and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(ptr::without_provenance(address)) }
}

/// The half-precision number that two bytes hold.
#[target_feature(enable = "f16c")]
#[inline]
pub(super) fn half(bytes: [u8; 2]) -> f32 {
    _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(i32::from(u16::from_le_bytes(bytes)))))
}

/// Stores 16 bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_bytes(vector: __m128i, bytes: &mut [i8; 16]) {
    // SAFETY: the array is 16 writable bytes; this store needs no alignment.
    unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), vector) }
}

/// Stores four numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_quad(vector: __m128, numbers: &mut [f32; QUAD]) {
    // SAFETY: the array is 16 writable bytes; this store needs no alignment.
    unsafe { _mm_storeu_ps(numbers.as_mut_ptr(), vector) }
}

/// Stores four integers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn store_integers(vector: __m128i, integers: &mut [i32; QUAD]) {
    // SAFETY: the array is 16 writable bytes; this store needs no alignment.
    unsafe { _mm_storeu_si128(integers.as_mut_ptr().cast(), vector) }
}

/// Joins the four lanes of each vector by `join`: 0 with 2, 1 with 3, then both,
/// the order in which [`quantize`] adds numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn join_lanes(
    [a, b, c, d]: [__m128i; QUAD],
    join: impl Fn(__m128i, __m128i) -> __m128i,
) -> __m128i {
    let ab = join(_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b));
    let cd = join(_mm_unpacklo_epi32(c, d), _mm_unpackhi_epi32(c, d));
    join(_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd))
}

/// The scales of four groups, whose largest values are given as the bits of
/// numbers without a sign, and what their values are multiplied by, each in all
/// lanes of a vector; nothing if a group cannot be quantized. `left` gives the
/// sums of squares that multiplying by such numbers leaves.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn scales(
    largest: __m128i,
    left: impl Fn([__m128; QUAD]) -> __m128,
) -> Option<(__m128, [__m128; QUAD])> {
    let largest = _mm_castsi128_ps(largest);
    let enough = _mm_cmpge_ps(largest, _mm_set1_ps(LEAST));
    let finite = _mm_cmplt_ps(largest, _mm_set1_ps(f32::INFINITY));
    if _mm_movemask_ps(_mm_and_ps(enough, finite)) != 0b1111 {
        return None;
    }
    let (mut best, mut inverses) = (_mm_setzero_ps(), _mm_setzero_ps());
    let mut least = _mm_set1_ps(f32::INFINITY);
    for (levels, weight) in LEVELS {
        let levels = _mm_set1_ps(levels);
        let these = _mm_div_ps(levels, largest);
        let squares = _mm_mul_ps(left(spread(these)), _mm_set1_ps(weight));
        let less = _mm_cmplt_ps(squares, least);
        best = _mm_blendv_ps(best, levels, less);
        inverses = _mm_blendv_ps(inverses, these, less);
        least = _mm_blendv_ps(least, squares, less);
    }
    Some((_mm_div_ps(largest, best), spread(inverses)))
}

/// Each of four numbers in all lanes of a vector.
#[target_feature(enable = "avx2")]
#[inline]
fn spread(numbers: __m128) -> [__m128; QUAD] {
    [
        _mm_shuffle_ps::<0b00_00_00_00>(numbers, numbers),
        _mm_shuffle_ps::<0b01_01_01_01>(numbers, numbers),
        _mm_shuffle_ps::<0b10_10_10_10>(numbers, numbers),
        _mm_shuffle_ps::<0b11_11_11_11>(numbers, numbers),
    ]
}

/// The sum of each of four vectors' lanes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn lane_sums(vectors: [__m128; QUAD]) -> __m128 {
    let bits = vectors.map(|vector| _mm_castps_si128(vector));
    _mm_castsi128_ps(join_lanes(bits, |a, b| {
        _mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b)))
    }))
}

/// A line of packed weights.
pub(super) type Line = [u8; LINE];

/// Rows of a group of activations: eight of codes, one of what a sum begins
/// with, one of scales.
pub(super) const PLAIN: usize = 10;

/// As [`PLAIN`], with two sums.
pub(super) const HALVED: usize = 11;

/// Calls a kernel for as many columns as there are.
macro_rules! columns {
    ($count:expr, [$($c:literal)*], |$n:ident| $call:expr) => {
        match $count {
            $($c => { const $n: usize = $c; $call })*
            other => unreachable!("no kernel is made for {other} columns"),
        }
    };
}

pub(super) use columns;

/// Asks for the memory that lies `ahead` of each line, if it says that any is to
/// be asked for; what lies there is not read.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn ask(lines: &[Line], ahead: Ahead) {
    if !ahead.asks() {
        return;
    }
    for line in lines {
        let line = line.as_ptr();
        _mm_prefetch::<_MM_HINT_T1>(line.wrapping_add(ahead.far).cast());
        _mm_prefetch::<_MM_HINT_T0>(line.wrapping_add(ahead.near).cast());
    }
}

/// As [`ask`], of the codes of group `group` of a unit and of its share of the
/// unit's scales `tail`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn ask_for_group<P: Parts>(codes: &[Line], tail: &[Line], group: usize, ahead: Ahead) {
    if !ahead.asks() {
        return;
    }
    ask(codes, ahead);
    let share = const { P::SCALES.lines().div_ceil(P::SCALES.groups()) };
    for index in group * share..(group + 1) * share {
        ask(slice::from_ref(&tail[index.min(P::SCALES.lines() - 1)]), ahead);
    }
}

/// The units of a band, each the codes of all its groups and then their scales.
#[inline(always)]
pub(super) fn units<P: Parts>(bytes: &[u8]) -> ChunksExact<'_, Line> {
    bytes.as_chunks().0.chunks_exact(const { P::SCALES.groups() * P::CODES.lines() + P::SCALES.lines() })
}

/// Lets `put` decode `count` groups of a band from number `first` on, each into
/// both panels, given its codes, the scales of its unit and its number there.
///
/// # Panics
/// When a panel has no room for as many.
#[inline(always)]
pub(super) fn decode_groups<P: Parts>(
    bytes: &[u8],
    first: usize,
    count: usize,
    [low, high]: &mut [Panel; 2],
    put: impl Fn(&[Line], &[Line], usize, [&mut PanelGroup; 2]),
) {
    assert!(count <= DEPTH, "a panel holds {DEPTH} groups");
    let (each, lines) = const { (P::SCALES.groups(), P::CODES.lines()) };
    let mut panels = low[..count].iter_mut().zip(&mut high[..count]);
    let mut skip = first % each;
    for unit in units::<P>(bytes).skip(first / each) {
        let (codes, tail) = unit.split_at(each * lines);
        for (group, codes) in codes.chunks_exact(lines).enumerate().skip(skip) {
            let Some((low, high)) = panels.next() else { return };
            put(codes, tail, group, [low, high]);
        }
        skip = 0;
    }
}

/// The lines of a band of brain floats from column `first` on.
///
/// # Panics
/// When the band is of another layout.
pub(super) fn brain_lines(band: Band<'_>, first: usize) -> &[Line] {
    assert_eq!(band.layout, Layout::Bf16, "brain floats are multiplied by brain floats");
    &band.bytes.as_chunks().0[first..]
}

/// Rows of words of two brain floats as rows of floats: of each the upper
/// halves, then the lower ones.
#[inline(always)]
pub(super) fn widened<'a, const C: usize>(
    words: &[[u32; C]],
    floats: &'a mut [[[u32; C]; 2]; FLOAT_DEPTH / 2],
) -> &'a [u32] {
    let floats = &mut floats[..words.len()];
    for (words, [upper, lower]) in words.iter().zip(&mut *floats) {
        for ((word, upper), lower) in words.iter().zip(upper).zip(lower) {
            (*upper, *lower) = (word & 0xffff_0000, word << 16);
        }
    }
    floats.as_flattened().as_flattened()
}

/// Quantizes four groups at a time by `quad`, which says whether it could; what
/// it could not, and the groups that are left over, the portable kernel takes.
#[inline(always)]
pub(super) fn by_quads(
    x: &[f32],
    codes: &mut [i8],
    scales: &mut [f32],
    sums: &mut [i32],
    quad: impl Fn(&[f32; QUAD_VALUES], &mut [i8; QUAD_VALUES], &mut [f32; QUAD], &mut [i32; QUAD]) -> bool,
) {
    quantize::assert_fits(x, codes, scales, sums);
    let (x, x_rest) = x.as_chunks::<QUAD_VALUES>();
    let (codes, codes_rest) = codes.as_chunks_mut::<QUAD_VALUES>();
    let (scales, scales_rest) = scales.as_chunks_mut::<QUAD>();
    let (sums, sums_rest) = sums.as_chunks_mut::<QUAD>();
    for (((x, codes), scales), sums) in x.iter().zip(codes).zip(scales).zip(sums) {
        if !quad(x, codes, scales, sums) {
            quantize::quantize(x, codes, scales, sums);
        }
    }
    quantize::quantize(x_rest, codes_rest, scales_rest, sums_rest);
}
