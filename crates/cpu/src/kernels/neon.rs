//! NEON: vectors of 8 numbers, each in two registers.
//!
//! The 32 registers hold as many such vectors as those of AVX2, so the kernels take the same shapes. The tables
//! for this kind of machine differ only in how they multiply bytes ([`ByteProduct`]). Tests ran
//! under an emulator; the speed is unmeasured.

pub(super) mod products;
pub(super) mod tables;
mod tile;

use std::arch::aarch64::*;

use super::layout::Line;
use super::vector::twice::Twice;
use super::vector::{Isa, Packed, VectorKernel, Vectors, WIDE, Wide, instructions};

/// The token of NEON and of an instruction that multiplies bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neon<D>(D);

/// How bytes are multiplied.
///
/// # Safety
/// A value of the type may exist only where the processor has NEON and the instructions of
/// `dot`.
pub(super) unsafe trait ByteProduct: Copy {
    /// The name of the table.
    const NAME: &'static str;

    /// Adds the products of signed bytes, four in each lane, to `n`. Those of `x` are not −128.
    fn dot(self, n: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t;
    /// Runs a kernel in a function of its own that is compiled for the instructions.
    fn enter<R, K: VectorKernel<Neon<Self>, R>>(isa: Neon<Self>, kernel: K) -> R;
}

const SHORT: &str = "enough bytes for a vector";

type Floats = [float32x4_t; 2];
type Integers = [int32x4_t; 2];

/// Methods that do the same in both registers. What stands behind a semicolon is shared.
macro_rules! in_both {
    ($($name:ident($($operand:ident: $type:ty),* $(; $($shared:ident: $shared_type:ty),*)?) -> $result:ty {
        $($body:tt)*
    })*) => {$(
        #[inline(always)]
        fn $name(self, $($operand: [$type; 2]),* $(, $($shared: $shared_type),*)?) -> [$result; 2] {
            // SAFETY: `self` exists only where the processor has the instructions, and none
            // of them takes an address.
            unsafe {
                [
                    { let ($($operand,)*) = ($($operand[0],)*); $($body)* },
                    { let ($($operand,)*) = ($($operand[1],)*); $($body)* },
                ]
            }
        }
    )*};
}

/// The bytes of a vector's two registers.
#[inline(always)]
fn halves(bytes: &[u8; 32]) -> &[[u8; 16]; 2] {
    bytes.as_chunks().0.as_array().expect("twice 16 bytes")
}

// SAFETY: only the byte products' `detect` makes them, once the processor has reported NEON, to which
// all instructions below and those of `quads` belong.
unsafe impl<D: ByteProduct> Vectors for Neon<D> {
    type Floats = Floats;
    type Integers = Integers;
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
        load(values: &[f32; 8]) -> Floats {
            let [lower, upper]: &[[f32; 4]; 2] = values.as_chunks().0.as_array().expect(SHORT);
            [vld1q_f32(lower.as_ptr()), vld1q_f32(upper.as_ptr())]
        }
        store(vector: Floats, values: &mut [f32; 8]) {
            let [lower, upper]: &mut [[f32; 4]; 2] = values.as_chunks_mut().0.as_mut_array().expect(SHORT);
            vst1q_f32(lower.as_mut_ptr(), vector[0]);
            vst1q_f32(upper.as_mut_ptr(), vector[1])
        }
        splat(value: f32) -> Floats { [vdupq_n_f32(value); 2] }
        splat_integer(value: i32) -> Integers { [vdupq_n_s32(value); 2] }
        splat_f16(bytes: [u8; 2]) -> Floats {
            [vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(u16::from_le_bytes(bytes)))); 2]
        }
        broadcast(first: float32x4_t) -> Floats { [vdupq_laneq_f32::<0>(first); 2] }

        read_f32(bytes: &[u8]) -> Floats {
            let [lower, upper] = halves(bytes.first_chunk().expect(SHORT));
            [vreinterpretq_f32_u8(vld1q_u8(lower.as_ptr())), vreinterpretq_f32_u8(vld1q_u8(upper.as_ptr()))]
        }
        read_f16(bytes: &[u8]) -> Floats {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            let halves = vreinterpretq_f16_u8(vld1q_u8(bytes.as_ptr()));
            [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)]
        }
        read_bf16(bytes: &[u8]) -> Floats {
            let bytes: &[u8; 16] = bytes.first_chunk().expect(SHORT);
            let words = vreinterpretq_u16_u8(vld1q_u8(bytes.as_ptr()));
            let (lower, upper) = (vshll_n_u16::<16>(vget_low_u16(words)), vshll_high_n_u16::<16>(words));
            [vreinterpretq_f32_u32(lower), vreinterpretq_f32_u32(upper)]
        }
        read_i8(bytes: &[u8]) -> Integers {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            let words = vmovl_s8(vreinterpret_s8_u8(vld1_u8(bytes.as_ptr())));
            [vmovl_s16(vget_low_s16(words)), vmovl_high_s16(words)]
        }
        read_lower_codes(bytes: &[u8]) -> Floats {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            let codes = vand_u8(vld1_u8(bytes.as_ptr()), vdup_n_u8(0x0f));
            let words = vmovl_s8(vsub_s8(vreinterpret_s8_u8(codes), vdup_n_s8(8)));
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))]
        }
        read_upper_codes(bytes: &[u8]) -> Floats {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            let codes = vshr_n_u8::<4>(vld1_u8(bytes.as_ptr()));
            let words = vmovl_s8(vsub_s8(vreinterpret_s8_u8(codes), vdup_n_s8(8)));
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))]
        }
        write_f16(x: Floats, bytes: &mut [u8]) {
            let bytes: &mut [u8; 16] = bytes.first_chunk_mut().expect(SHORT);
            let halves = vcvt_high_f16_f32(vcvt_f16_f32(x[0]), x[1]);
            vst1q_u8(bytes.as_mut_ptr(), vreinterpretq_u8_f16(halves))
        }

        first(x: Floats) -> f32 { vgetq_lane_f32::<0>(x[0]) }
        largest(x: Floats) -> f32 { vmaxnmvq_f32(vmaxnmq_f32(x[0], x[1])) }
        fold(x: Floats) -> float32x4_t { vaddq_f32(x[0], x[1]) }
        fold_integers(x: Integers) -> int32x4_t { vaddq_s32(x[0], x[1]) }
        fold_max(x: Integers) -> int32x4_t { vmaxq_s32(x[0], x[1]) }
    }

    in_both! {
        add(a: float32x4_t, b: float32x4_t) -> float32x4_t { vaddq_f32(a, b) }
        sub(a: float32x4_t, b: float32x4_t) -> float32x4_t { vsubq_f32(a, b) }
        mul(a: float32x4_t, b: float32x4_t) -> float32x4_t { vmulq_f32(a, b) }
        div(a: float32x4_t, b: float32x4_t) -> float32x4_t { vdivq_f32(a, b) }
        fmadd(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmaq_f32(c, a, b) }
        // `vmaxq_f32` would yield NaN.
        max(a: float32x4_t, b: float32x4_t) -> float32x4_t { vbslq_f32(vcgtq_f32(a, b), a, b) }
        or(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)))
        }
        and(a: float32x4_t, b: float32x4_t) -> float32x4_t {
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b)))
        }
        round(x: float32x4_t) -> float32x4_t { vrndnq_f32(x) }
        rounding(x: float32x4_t) -> float32x4_t { vsubq_f32(x, vrndnq_f32(x)) }
        scale_by_power(x: float32x4_t, power: float32x4_t, bound: float32x4_t; least: f32) -> float32x4_t {
            // Exact: `x` is near 1 and the exponent, where it counts, within reach.
            let exponent = vaddq_s32(vcvtnq_s32_f32(power), vdupq_n_s32(127));
            let scaled = vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)));
            let counts = vcgeq_f32(bound, vdupq_n_f32(least));
            vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(scaled), counts))
        }

        to_floats(integers: int32x4_t) -> float32x4_t { vcvtq_f32_s32(integers) }
        to_integers(floats: float32x4_t) -> int32x4_t { vcvtnq_s32_f32(floats) }
        magnitude(floats: float32x4_t) -> int32x4_t { vreinterpretq_s32_f32(vabsq_f32(floats)) }
        add_integers(a: int32x4_t, b: int32x4_t) -> int32x4_t { vaddq_s32(a, b) }
        max_integers(a: int32x4_t, b: int32x4_t) -> int32x4_t { vmaxq_s32(a, b) }
    }
}

impl<D: ByteProduct> Isa for Neon<D> {
    const NAME: &'static str = D::NAME;
    // 32 registers hold 16 vectors of two.
    const REGISTERS: usize = 16;
    type Wide = Twice<Neon<D>>;

    #[inline(always)]
    fn wide(self) -> Twice<Neon<D>> {
        Twice(self)
    }

    fn enter<R, K: VectorKernel<Neon<D>, R>>(self, kernel: K) -> R {
        D::enter(self, kernel)
    }
}

impl<D: ByteProduct> Wide for Twice<Neon<D>> {
    type Narrowed = [int8x16_t; 2];

    instructions! {
        narrow(a: [Integers; 2], b: [Integers; 2]) -> [int8x16_t; 2] {
            let [[a, b], [c, d]] = [a.as_flattened(), b.as_flattened()].map(|four| {
                let words = |at: usize| vqmovn_high_s32(vqmovn_s32(four[at]), four[at + 1]);
                [words(0), words(2)]
            });
            [vqmovn_high_s16(vqmovn_s16(a), b), vqmovn_high_s16(vqmovn_s16(c), d)]
        }
        write_bytes(groups: [[int8x16_t; 2]; 2], bytes: &mut [i8; 4 * WIDE]) {
            let vectors = groups.as_flattened().iter().zip(bytes.as_chunks_mut::<16>().0);
            vectors.for_each(|(vector, bytes)| vst1q_s8(bytes.as_mut_ptr(), *vector))
        }
    }
}

impl<D: ByteProduct> Neon<D> {
    instructions! {
        // Codes of eight bits from 128 on become signed bytes.
        signed(codes: Integers) -> Integers {
            let zero = vdupq_n_s32(i32::from_ne_bytes([128; 4]));
            [veorq_s32(codes[0], zero), veorq_s32(codes[1], zero)]
        }
    }
}

impl<D: ByteProduct> Packed for Neon<D> {
    const LANES: usize = 8;
    const BYTES_IN_ORDER: bool = false;
    const BY_COLUMN: bool = true;

    instructions! {
        load_piece(line: &Line, piece: usize) -> Integers {
            let [lower, upper] = halves(&line.as_chunks().0[piece]);
            [vreinterpretq_s32_u8(vld1q_u8(lower.as_ptr())), vreinterpretq_s32_u8(vld1q_u8(upper.as_ptr()))]
        }
        store_piece(vector: Integers, line: &mut Line, piece: usize) {
            let bytes: &mut [u8; 32] = &mut line.as_chunks_mut().0[piece];
            let [lower, upper]: &mut [[u8; 16]; 2] = bytes.as_chunks_mut().0.as_mut_array().expect(SHORT);
            vst1q_u8(lower.as_mut_ptr(), vreinterpretq_u8_s32(vector[0]));
            vst1q_u8(upper.as_mut_ptr(), vreinterpretq_u8_s32(vector[1]))
        }
        read_u8(bytes: &[u8]) -> Integers {
            let bytes: &[u8; 8] = bytes.first_chunk().expect(SHORT);
            let words = vmovl_u8(vld1_u8(bytes.as_ptr()));
            let (lower, upper) = (vmovl_u16(vget_low_u16(words)), vmovl_high_u16(words));
            [vreinterpretq_s32_u32(lower), vreinterpretq_s32_u32(upper)]
        }

        splat_byte(byte: u8) -> Integers { [vreinterpretq_s32_u8(vdupq_n_u8(byte)); 2] }
        select_below(x: Integers, bound: i32, yes: Integers, no: Integers) -> Integers {
            let bound = vdupq_n_s32(bound);
            [
                vbslq_s32(vcltq_s32(x[0], bound), yes[0], no[0]),
                vbslq_s32(vcltq_s32(x[1], bound), yes[1], no[1]),
            ]
        }
        look_up(levels: &[u8; 16], codes: Integers) -> Integers {
            let levels = vld1q_u8(levels.as_ptr());
            [
                vreinterpretq_s32_u8(vqtbl1q_u8(levels, vreinterpretq_u8_s32(codes[0]))),
                vreinterpretq_s32_u8(vqtbl1q_u8(levels, vreinterpretq_u8_s32(codes[1]))),
            ]
        }
    }

    #[inline(always)]
    fn dot(self, bits: u8, n: &mut Integers, _pairs: &mut Integers, codes: Integers, x: Integers) {
        let codes = if bits == 8 { self.signed(codes) } else { codes };
        n[0] = self.0.dot(n[0], codes[0], x[0]);
        n[1] = self.0.dot(n[1], codes[1], x[1]);
    }

    in_both! {
        // The sign of `c` changes once for all columns.
        fmsub(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmaq_f32(vnegq_f32(c), a, b) }
        fnmadd(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t { vfmsq_f32(c, a, b) }
        negate(x: float32x4_t) -> float32x4_t { vnegq_f32(x) }
        as_floats(integers: int32x4_t) -> float32x4_t { vreinterpretq_f32_s32(integers) }

        and_integers(a: int32x4_t, b: int32x4_t) -> int32x4_t { vandq_s32(a, b) }
        or_integers(a: int32x4_t, b: int32x4_t) -> int32x4_t { vorrq_s32(a, b) }
        sub_integers(a: int32x4_t, b: int32x4_t) -> int32x4_t { vsubq_s32(a, b) }
        shift_left(x: int32x4_t; bits: usize) -> int32x4_t { vshlq_s32(x, vdupq_n_s32(bits as i32)) }
        // A negative number of bits shifts to the right.
        shift_right(x: int32x4_t; bits: usize) -> int32x4_t {
            vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), vdupq_n_s32(-(bits as i32))))
        }
        shift_words_left(x: int32x4_t; bits: usize) -> int32x4_t {
            vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(x), vdupq_n_s16(bits as i16)))
        }
        shift_words_right(x: int32x4_t; bits: usize) -> int32x4_t {
            vreinterpretq_s32_u16(vshlq_u16(vreinterpretq_u16_s32(x), vdupq_n_s16(-(bits as i16))))
        }
        shift_each_left(x: int32x4_t, bits: int32x4_t) -> int32x4_t { vshlq_s32(x, bits) }
    }

    #[inline(always)]
    fn has_zero(bits: u8) -> bool {
        bits == 8
    }

    // The other codes are signed bytes, too.
    #[inline(always)]
    fn dot_bits(bits: u8) -> u8 {
        if bits == 8 { 8 } else { 4 }
    }

    // The sums and a vector of weights stay in registers.
    #[inline(always)]
    fn vectors_at_once(columns: usize) -> usize {
        match columns {
            0..=3 => 4,
            4..=6 => 2,
            _ => 1,
        }
    }
}
