//! AVX-512 (F, BW, VL, DQ, VNNI): vectors of 16 numbers.

pub(super) mod amx;
mod amx_bf16;
pub(super) mod bf16;
mod fp16;
pub(super) mod tiles;
mod transposed;

use std::arch::x86_64::*;

use super::layout::Line;
use super::vector::{Isa, Packed, VectorKernel, Vectors, WIDE, Wide, instructions};

/// The token of AVX-512 F, BW, VL, DQ and VNNI, AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx512(());

impl Avx512 {
    /// The token, if the processor has the instructions.
    pub(super) fn detect() -> Option<Avx512> {
        let present = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        present.then_some(Avx512(()))
    }
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

const SHORT: &str = "enough bytes for a vector";

/// The numbers of the codes of Q4_0.
const CODES: [f32; WIDE] =
    [-8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];

// SAFETY: only `detect` makes a token, once the processor has reported the sets to
// which all instructions below belong, AVX2, FMA and F16C among them.
unsafe impl Vectors for Avx512 {
    type Floats = __m512;
    type Integers = __m512i;
    type Lanes = [f32; WIDE];

    #[inline(always)]
    fn split(values: &[f32]) -> &[[f32; WIDE]] {
        values.as_chunks().0
    }

    #[inline(always)]
    fn split_mut(values: &mut [f32]) -> &mut [[f32; WIDE]] {
        values.as_chunks_mut().0
    }

    instructions! {
        load(values: &[f32; WIDE]) -> __m512 { _mm512_loadu_ps(values.as_ptr()) }
        store(vector: __m512, values: &mut [f32; WIDE]) { _mm512_storeu_ps(values.as_mut_ptr(), vector) }
        splat(value: f32) -> __m512 { _mm512_set1_ps(value) }
        splat_integer(value: i32) -> __m512i { _mm512_set1_epi32(value) }
        splat_f16(bytes: [u8; 2]) -> __m512 {
            let half = _mm_cvtsi32_si128(i32::from(u16::from_le_bytes(bytes)));
            _mm512_set1_ps(_mm_cvtss_f32(_mm_cvtph_ps(half)))
        }
        broadcast(first: __m128) -> __m512 { _mm512_broadcastss_ps(first) }

        add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        sub(a: __m512, b: __m512) -> __m512 { _mm512_sub_ps(a, b) }
        mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        div(a: __m512, b: __m512) -> __m512 { _mm512_div_ps(a, b) }
        fmadd(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        max(a: __m512, b: __m512) -> __m512 { _mm512_max_ps(a, b) }
        or(a: __m512, b: __m512) -> __m512 { _mm512_or_ps(a, b) }
        and(a: __m512, b: __m512) -> __m512 { _mm512_and_ps(a, b) }
        round(x: __m512) -> __m512 { _mm512_roundscale_ps::<_MM_FROUND_TO_NEAREST_INT>(x) }
        rounding(x: __m512) -> __m512 { _mm512_reduce_ps::<NEAREST>(x) }
        scale_by_power(x: __m512, power: __m512, bound: __m512, least: f32) -> __m512 {
            let counts = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(bound, _mm512_set1_ps(least));
            _mm512_maskz_scalef_ps(counts, x, power)
        }

        to_floats(integers: __m512i) -> __m512 { _mm512_cvtepi32_ps(integers) }
        to_integers(floats: __m512) -> __m512i { _mm512_cvtps_epi32(floats) }
        magnitude(floats: __m512) -> __m512i {
            _mm512_and_si512(_mm512_castps_si512(floats), _mm512_set1_epi32(i32::MAX))
        }
        add_integers(a: __m512i, b: __m512i) -> __m512i { _mm512_add_epi32(a, b) }
        max_integers(a: __m512i, b: __m512i) -> __m512i { _mm512_max_epi32(a, b) }

        read_f32(bytes: &[u8]) -> __m512 {
            let bytes: &[u8; 64] = bytes.first_chunk().expect(SHORT);
            _mm512_loadu_ps(bytes.as_ptr().cast())
        }
        read_f16(bytes: &[u8]) -> __m512 {
            let bytes: &[u8; 32] = bytes.first_chunk().expect(SHORT);
            _mm512_cvtph_ps(_mm256_loadu_si256(bytes.as_ptr().cast()))
        }
        read_bf16(bytes: &[u8]) -> __m512 {
            let bytes: &[u8; 32] = bytes.first_chunk().expect(SHORT);
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(bytes.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
        read_i8(bytes: &[u8]) -> __m512i {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            _mm512_cvtepi8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))
        }
        // The permutation looks at the lower four bits of a lane only, and both halves share the load.
        read_lower_codes(bytes: &[u8]) -> __m512 {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            _mm512_permutexvar_ps(codes, _mm512_loadu_ps(CODES.as_ptr()))
        }
        read_upper_codes(bytes: &[u8]) -> __m512 {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            let codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            _mm512_permutexvar_ps(_mm512_srli_epi32::<4>(codes), _mm512_loadu_ps(CODES.as_ptr()))
        }
        write_f16(x: __m512, bytes: &mut [u8]) {
            let bytes: &mut [u8; 32] = bytes.first_chunk_mut().expect(SHORT);
            let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), halves)
        }

        first(x: __m512) -> f32 { _mm512_cvtss_f32(x) }
        largest(x: __m512) -> f32 { _mm512_reduce_max_ps(x) }
        fold(x: __m512) -> __m128 {
            let x = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x));
            _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x))
        }
        fold_integers(x: __m512i) -> __m128i {
            let x = _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
            _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
        }
        fold_max(x: __m512i) -> __m128i {
            let x = _mm256_max_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64::<1>(x));
            _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
        }
    }
}

impl Isa for Avx512 {
    const NAME: &'static str = "avx512";
    const REGISTERS: usize = 32;
    type Wide = Avx512;

    #[inline(always)]
    fn wide(self) -> Avx512 {
        self
    }

    fn enter<R, K: VectorKernel<Avx512, R>>(self, kernel: K) -> R {
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
        fn compiled<R, K: VectorKernel<Avx512, R>>(isa: Avx512, kernel: K) -> R {
            kernel.run(isa)
        }
        // SAFETY: `self` exists only where the processor has these features.
        unsafe { compiled(self, kernel) }
    }
}

impl Wide for Avx512 {
    type Narrowed = __m512i;

    instructions! {
        narrow(a: __m512i, b: __m512i) -> __m512i { _mm512_packs_epi32(a, b) }
        write_bytes(groups: [__m512i; 2], bytes: &mut [i8; 4 * WIDE]) {
            // Each quarter of packed bytes holds a quarter of each vector that went into it.
            let sorted = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let packed = _mm512_packs_epi16(groups[0], groups[1]);
            _mm512_storeu_si512(bytes.as_mut_ptr().cast(), _mm512_permutexvar_epi32(sorted, packed))
        }
    }
}

impl Packed for Avx512 {
    const LANES: usize = WIDE;
    const BYTES_IN_ORDER: bool = true;
    const BY_COLUMN: bool = false;

    instructions! {
        load_piece(line: &Line, _piece: usize) -> __m512i { _mm512_loadu_si512(line.as_ptr().cast()) }
        store_piece(vector: __m512i, line: &mut Line, _piece: usize) {
            _mm512_storeu_si512(line.as_mut_ptr().cast(), vector)
        }
        read_u8(bytes: &[u8]) -> __m512i {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            _mm512_cvtepu8_epi32(_mm_loadu_si128(bytes.as_ptr().cast()))
        }

        fmsub(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmsub_ps(a, b, c) }
        fnmadd(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fnmadd_ps(a, b, c) }
        negate(x: __m512) -> __m512 { _mm512_xor_ps(x, _mm512_set1_ps(-0.0)) }
        as_floats(integers: __m512i) -> __m512 { _mm512_castsi512_ps(integers) }

        splat_byte(byte: u8) -> __m512i { _mm512_set1_epi8(byte as i8) }
        and_integers(a: __m512i, b: __m512i) -> __m512i { _mm512_and_si512(a, b) }
        or_integers(a: __m512i, b: __m512i) -> __m512i { _mm512_or_si512(a, b) }
        sub_integers(a: __m512i, b: __m512i) -> __m512i { _mm512_sub_epi32(a, b) }
        shift_left(x: __m512i, bits: usize) -> __m512i {
            _mm512_sll_epi32(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_right(x: __m512i, bits: usize) -> __m512i {
            _mm512_srl_epi32(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_words_left(x: __m512i, bits: usize) -> __m512i {
            _mm512_sll_epi16(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_words_right(x: __m512i, bits: usize) -> __m512i {
            _mm512_srl_epi16(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_each_left(x: __m512i, bits: __m512i) -> __m512i { _mm512_sllv_epi32(x, bits) }
        select_below(x: __m512i, bound: i32, yes: __m512i, no: __m512i) -> __m512i {
            _mm512_mask_mov_epi32(no, _mm512_cmplt_epi32_mask(x, _mm512_set1_epi32(bound)), yes)
        }
        look_up(levels: &[u8; 16], codes: __m512i) -> __m512i {
            let levels = _mm_loadu_si128(levels.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(levels), codes)
        }

        dot(_bits: u8, n: &mut __m512i, _pairs: &mut __m512i, codes: __m512i, x: __m512i) {
            *n = _mm512_dpbusd_epi32(*n, codes, x);
        }
    }

    #[inline(always)]
    fn has_zero(_bits: u8) -> bool {
        false
    }

    #[inline(always)]
    fn dot_bits(_bits: u8) -> u8 {
        4
    }

    #[inline(always)]
    fn vectors_at_once(_columns: usize) -> usize {
        2
    }
}
