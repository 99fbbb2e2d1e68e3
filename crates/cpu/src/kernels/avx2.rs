//! AVX2, with FMA and F16C: vectors of 8 numbers.

mod signed;
pub(super) mod vnni;

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::layout::Line;
use super::vector::twice::Twice;
use super::vector::{Isa, Packed, VectorKernel, Vectors, WIDE, Wide, instructions};

/// The token of AVX2, FMA and F16C, and of what `D` multiplies bytes with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2<D = Pairs>(PhantomData<D>);

/// How bytes are multiplied: by AVX2 itself, or by a set beside it.
pub(super) trait ByteDot: Copy {
    /// As [`Isa::NAME`].
    const NAME: &'static str;

    /// Whether the processor has the instructions.
    fn is_present() -> bool;
    /// As [`Isa::enter`].
    fn enter<R, K: VectorKernel<Avx2<Self>, R>>(isa: Avx2<Self>, kernel: K) -> R;
    /// As [`Packed::dot`].
    fn dot(isa: Avx2<Self>, bits: u8, n: &mut __m256i, pairs: &mut __m256i, codes: __m256i, x: __m256i);
    /// As [`Packed::flush`]. Like those below, it is for products that are added to sums of 32 bits.
    #[inline(always)]
    fn flush(_: Avx2<Self>, _n: &mut __m256i, _pairs: __m256i) {}
    /// As [`Packed::run_lines`].
    #[inline(always)]
    fn run_lines(_bits: u8) -> usize {
        1
    }
    /// As [`Packed::has_zero`].
    #[inline(always)]
    fn has_zero(_bits: u8) -> bool {
        false
    }
    /// As [`Packed::dot_bits`].
    #[inline(always)]
    fn dot_bits(_bits: u8) -> u8 {
        4
    }
    /// As [`Packed::tile_columns`]: two vectors of weights and a word leave room for the sums of six.
    #[inline(always)]
    fn tile_columns(_bits: u8) -> usize {
        6
    }
}

impl<D: ByteDot> Avx2<D> {
    /// The token, if the processor has the instructions.
    pub(super) fn detect() -> Option<Avx2<D>> {
        let present = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && D::is_present();
        present.then_some(Avx2(PhantomData))
    }

    /// The token without the set beside AVX2.
    fn pairs(self) -> Avx2 {
        Avx2(PhantomData)
    }
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

const SHORT: &str = "enough bytes for a vector";

// SAFETY: only `detect` makes a token, once the processor has reported AVX2, FMA and
// F16C, to which all instructions below belong, and those of `D`.
unsafe impl<D: ByteDot> Vectors for Avx2<D> {
    type Floats = __m256;
    type Integers = __m256i;
    type Lanes = [f32; 8];

    #[inline(always)]
    fn split(values: &[f32]) -> &[[f32; 8]] {
        values.as_chunks().0
    }

    #[inline(always)]
    fn split_mut(values: &mut [f32]) -> &mut [[f32; 8]] {
        values.as_chunks_mut().0
    }

    instructions! {
        load(values: &[f32; 8]) -> __m256 { _mm256_loadu_ps(values.as_ptr()) }
        store(vector: __m256, values: &mut [f32; 8]) { _mm256_storeu_ps(values.as_mut_ptr(), vector) }
        splat(value: f32) -> __m256 { _mm256_set1_ps(value) }
        splat_integer(value: i32) -> __m256i { _mm256_set1_epi32(value) }
        splat_f16(bytes: [u8; 2]) -> __m256 {
            let half = _mm_cvtsi32_si128(i32::from(u16::from_le_bytes(bytes)));
            _mm256_set1_ps(_mm_cvtss_f32(_mm_cvtph_ps(half)))
        }
        broadcast(first: __m128) -> __m256 { _mm256_broadcastss_ps(first) }

        add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        sub(a: __m256, b: __m256) -> __m256 { _mm256_sub_ps(a, b) }
        mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        div(a: __m256, b: __m256) -> __m256 { _mm256_div_ps(a, b) }
        fmadd(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        max(a: __m256, b: __m256) -> __m256 { _mm256_max_ps(a, b) }
        or(a: __m256, b: __m256) -> __m256 { _mm256_or_ps(a, b) }
        and(a: __m256, b: __m256) -> __m256 { _mm256_and_ps(a, b) }
        round(x: __m256) -> __m256 { _mm256_round_ps::<NEAREST>(x) }
        rounding(x: __m256) -> __m256 { _mm256_sub_ps(x, _mm256_round_ps::<NEAREST>(x)) }
        scale_by_power(x: __m256, power: __m256, bound: __m256, least: f32) -> __m256 {
            // Exact: `x` is near 1 and the exponent, where it counts, within reach.
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(power), _mm256_set1_epi32(127));
            let scaled = _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)));
            _mm256_and_ps(scaled, _mm256_cmp_ps::<_CMP_GE_OQ>(bound, _mm256_set1_ps(least)))
        }

        to_floats(integers: __m256i) -> __m256 { _mm256_cvtepi32_ps(integers) }
        to_integers(floats: __m256) -> __m256i { _mm256_cvtps_epi32(floats) }
        magnitude(floats: __m256) -> __m256i {
            _mm256_and_si256(_mm256_castps_si256(floats), _mm256_set1_epi32(i32::MAX))
        }
        add_integers(a: __m256i, b: __m256i) -> __m256i { _mm256_add_epi32(a, b) }
        max_integers(a: __m256i, b: __m256i) -> __m256i { _mm256_max_epi32(a, b) }

        read_f32(bytes: &[u8]) -> __m256 {
            let bytes: &[u8; 32] = bytes.first_chunk().expect(SHORT);
            _mm256_loadu_ps(bytes.as_ptr().cast())
        }
        read_f16(bytes: &[u8]) -> __m256 {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast()))
        }
        read_bf16(bytes: &[u8]) -> __m256 {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            let words = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words))
        }
        read_i8(bytes: &[u8]) -> __m256i {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()))
        }
        read_lower_codes(bytes: &[u8]) -> __m256 {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            let codes = _mm_and_si128(_mm_loadl_epi64(bytes.as_ptr().cast()), _mm_set1_epi8(0x0f));
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(codes, _mm_set1_epi8(8))))
        }
        read_upper_codes(bytes: &[u8]) -> __m256 {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            let upper = _mm_srli_epi16::<4>(_mm_loadl_epi64(bytes.as_ptr().cast()));
            let codes = _mm_and_si128(upper, _mm_set1_epi8(0x0f));
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_sub_epi8(codes, _mm_set1_epi8(8))))
        }
        write_f16(x: __m256, bytes: &mut [u8]) {
            let bytes: &mut [u8; 16] = bytes.first_chunk_mut().expect(SHORT);
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x);
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), halves)
        }

        first(x: __m256) -> f32 { _mm256_cvtss_f32(x) }
        largest(x: __m256) -> f32 {
            let mut lanes = [0.0; 8];
            _mm256_storeu_ps(lanes.as_mut_ptr(), x);
            lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
        }
        fold(x: __m256) -> __m128 { _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)) }
        fold_integers(x: __m256i) -> __m128i {
            _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
        }
        fold_max(x: __m256i) -> __m128i {
            _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x))
        }
    }
}

impl<D: ByteDot> Isa for Avx2<D> {
    const NAME: &'static str = D::NAME;
    const REGISTERS: usize = 16;
    type Wide = Twice<Avx2<D>>;

    #[inline(always)]
    fn wide(self) -> Twice<Avx2<D>> {
        Twice(self)
    }

    fn enter<R, K: VectorKernel<Avx2<D>, R>>(self, kernel: K) -> R {
        D::enter(self, kernel)
    }
}

impl<D: ByteDot> Wide for Twice<Avx2<D>> {
    type Narrowed = __m256i;

    instructions! {
        narrow(a: [__m256i; 2], b: [__m256i; 2]) -> __m256i {
            // Each half of the packed vector holds the halves of the four one after another.
            let packed = _mm256_packs_epi16(_mm256_packs_epi32(a[0], a[1]), _mm256_packs_epi32(b[0], b[1]));
            _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
        }
        write_bytes(groups: [__m256i; 2], bytes: &mut [i8; 4 * WIDE]) {
            let [first, second]: &mut [[i8; 2 * WIDE]; 2] = bytes.as_chunks_mut().0.as_mut_array().expect(SHORT);
            _mm256_storeu_si256(first.as_mut_ptr().cast(), groups[0]);
            _mm256_storeu_si256(second.as_mut_ptr().cast(), groups[1]);
        }
    }
}

impl<D: ByteDot> Packed for Avx2<D> {
    const LANES: usize = 8;
    const BYTES_IN_ORDER: bool = false;
    const BY_COLUMN: bool = true;

    instructions! {
        load_piece(line: &Line, piece: usize) -> __m256i {
            let bytes: &[u8; 32] = &line.as_chunks().0[piece];
            _mm256_loadu_si256(bytes.as_ptr().cast())
        }
        store_piece(vector: __m256i, line: &mut Line, piece: usize) {
            let bytes: &mut [u8; 32] = &mut line.as_chunks_mut().0[piece];
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector)
        }
        read_u8(bytes: &[u8]) -> __m256i {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(bytes.as_ptr().cast()))
        }

        fmsub(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmsub_ps(a, b, c) }
        fnmadd(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fnmadd_ps(a, b, c) }
        negate(x: __m256) -> __m256 { _mm256_xor_ps(x, _mm256_set1_ps(-0.0)) }
        as_floats(integers: __m256i) -> __m256 { _mm256_castsi256_ps(integers) }

        splat_byte(byte: u8) -> __m256i { _mm256_set1_epi8(byte as i8) }
        and_integers(a: __m256i, b: __m256i) -> __m256i { _mm256_and_si256(a, b) }
        or_integers(a: __m256i, b: __m256i) -> __m256i { _mm256_or_si256(a, b) }
        sub_integers(a: __m256i, b: __m256i) -> __m256i { _mm256_sub_epi32(a, b) }
        shift_left(x: __m256i, bits: usize) -> __m256i {
            _mm256_sll_epi32(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_right(x: __m256i, bits: usize) -> __m256i {
            _mm256_srl_epi32(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_words_left(x: __m256i, bits: usize) -> __m256i {
            _mm256_sll_epi16(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_words_right(x: __m256i, bits: usize) -> __m256i {
            _mm256_srl_epi16(x, _mm_cvtsi32_si128(bits as i32))
        }
        shift_each_left(x: __m256i, bits: __m256i) -> __m256i { _mm256_sllv_epi32(x, bits) }
        select_below(x: __m256i, bound: i32, yes: __m256i, no: __m256i) -> __m256i {
            _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), x))
        }
        look_up(levels: &[u8; 16], codes: __m256i) -> __m256i {
            let levels = _mm_loadu_si128(levels.as_ptr().cast());
            _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(levels), codes)
        }
    }

    #[inline(always)]
    fn dot(self, bits: u8, n: &mut __m256i, pairs: &mut __m256i, codes: __m256i, x: __m256i) {
        D::dot(self, bits, n, pairs, codes, x);
    }

    #[inline(always)]
    fn flush(self, n: &mut __m256i, pairs: __m256i) {
        D::flush(self, n, pairs);
    }

    #[inline(always)]
    fn run_lines(bits: u8) -> usize {
        D::run_lines(bits)
    }

    #[inline(always)]
    fn has_zero(bits: u8) -> bool {
        D::has_zero(bits)
    }

    #[inline(always)]
    fn dot_bits(bits: u8) -> u8 {
        D::dot_bits(bits)
    }

    #[inline(always)]
    fn tile_columns(bits: u8) -> usize {
        D::tile_columns(bits)
    }

    // The sums and a vector of weights stay in registers; of 8 and 12 columns `floats` takes half at a time.
    #[inline(always)]
    fn vectors_at_once(columns: usize) -> usize {
        match columns {
            0..=3 => 4,
            4..=6 | 8 | 12 => 2,
            _ => 1,
        }
    }
}

/// Bytes multiplied by AVX2 itself, which adds two neighbours in 16 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pairs;

impl Avx2 {
    instructions! {
        // Codes of eight bits count from 128.
        add_products(bits: u8, pairs: &mut __m256i, codes: __m256i, x: __m256i) {
            let products = if bits == 8 {
                let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN));
                _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
            } else {
                _mm256_maddubs_epi16(codes, x)
            };
            *pairs = _mm256_add_epi16(*pairs, products);
        }
        add_pairs(n: &mut __m256i, pairs: __m256i) {
            *n = _mm256_add_epi32(*n, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
    }
}

impl ByteDot for Pairs {
    const NAME: &'static str = "avx2";

    fn is_present() -> bool {
        true
    }

    fn enter<R, K: VectorKernel<Avx2, R>>(isa: Avx2, kernel: K) -> R {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn compiled<R, K: VectorKernel<Avx2, R>>(isa: Avx2, kernel: K) -> R {
            kernel.run(isa)
        }
        // SAFETY: `isa` exists only where the processor has these features.
        unsafe { compiled(isa, kernel) }
    }

    #[inline(always)]
    fn dot(isa: Avx2, bits: u8, _n: &mut __m256i, pairs: &mut __m256i, codes: __m256i, x: __m256i) {
        isa.add_products(bits, pairs, codes, x);
    }

    #[inline(always)]
    fn flush(isa: Avx2, n: &mut __m256i, pairs: __m256i) {
        isa.add_pairs(n, pairs);
    }

    // The lines whose pairs have room in 16 bits together.
    #[inline(always)]
    fn run_lines(bits: u8) -> usize {
        match bits {
            0..=4 => 8,
            5 => 4,
            6 => 2,
            _ => 1,
        }
    }

    #[inline(always)]
    fn has_zero(bits: u8) -> bool {
        bits == 8
    }

    #[inline(always)]
    fn dot_bits(bits: u8) -> u8 {
        bits.max(4)
    }

    // Two vectors of weights and a word leave room for the pairs of six columns; where pairs are added up at
    // once, for the sums of four beside what that takes.
    #[inline(always)]
    fn tile_columns(bits: u8) -> usize {
        if bits <= 5 { 6 } else { 4 }
    }
}
