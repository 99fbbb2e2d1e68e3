//! The instructions that multiply bytes: those of NEON itself, and those of later processors.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};

use super::tile::TileProduct;
use super::{ByteProduct, Integers, Neon, SHORT};
use crate::kernels::packed::LINE;
use crate::kernels::vector::{Packed, VectorKernel, Vectors, instructions};

/// A token, its name, its features, and its product of four bytes in each lane.
macro_rules! byte_product {
    ($(#[$doc:meta])* $token:ident, $name:literal, [$($feature:tt)+] $enabled:literal; $dot:item) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(in super::super) struct $token(());

        impl $token {
            /// The token, if the processor has the instructions.
            pub(super) fn detect() -> Option<Neon<$token>> {
                let present = true $(&& is_aarch64_feature_detected!($feature))+;
                present.then_some(Neon($token(())))
            }
        }

        // SAFETY: only `detect` makes a token, once the processor has reported the features.
        unsafe impl ByteProduct for $token {
            const NAME: &'static str = $name;

            #[inline(always)]
            $dot

            fn enter<R, K: VectorKernel<Neon<$token>, R>>(isa: Neon<$token>, kernel: K) -> R {
                #[target_feature(enable = $enabled)]
                fn compiled<R, K: VectorKernel<Neon<$token>, R>>(isa: Neon<$token>, kernel: K) -> R {
                    kernel.run(isa)
                }
                // SAFETY: `isa` exists only where the processor has these features.
                unsafe { compiled(isa, kernel) }
            }
        }
    };
}

byte_product! {
    /// The byte products of every processor.
    Plain, "neon", ["neon"] "neon";
    fn dot(self, n: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
        // SAFETY: the token exists only where the processor has the instructions.
        unsafe {
            let (codes, x) = (vreinterpretq_s8_s32(codes), vreinterpretq_s8_s32(x));
            // Two products of 128 · 127 fit 16 bits.
            let (lower, upper) = (vmull_s8(vget_low_s8(codes), vget_low_s8(x)), vmull_high_s8(codes, x));
            vpadalq_s16(n, vpaddq_s16(lower, upper))
        }
    }
}

byte_product! {
    /// The dot products of four bytes (`sdot`, FEAT_DotProd).
    DotProducts, "dotprod", ["neon" "dotprod"] "neon,dotprod";
    fn dot(self, n: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
        // SAFETY: the token exists only where the processor has the instruction.
        unsafe { sdot(n, codes, x) }
    }
}

byte_product! {
    /// The products of matrices of 2 × 8 bytes (`smmla`, FEAT_I8MM), and the dot products.
    MatrixProducts, "i8mm", ["neon" "dotprod" "i8mm"] "neon,dotprod,i8mm";
    fn dot(self, n: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
        // SAFETY: the token exists only where the processor has the instruction.
        unsafe { sdot(n, codes, x) }
    }
}

/// An instruction with an accumulator and two operands, which has no stable intrinsic. It touches no memory.
macro_rules! product {
    ($template:literal, $n:expr, $a:expr, $b:expr $(, $lane:ident)?) => {{
        let mut n = $n;
        asm!(
            $template,
            inout(vreg) n,
            in(vreg) $a,
            in(vreg) $b,
            $(const $lane,)?
            options(pure, nomem, nostack, preserves_flags),
        );
        n
    }};
}

/// Adds the products of four signed bytes in each lane.
///
/// # Safety
/// The processor has FEAT_DotProd.
#[inline(always)]
unsafe fn sdot(n: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
    // SAFETY: the caller says that the processor has the instruction.
    unsafe { product!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", n, codes, x) }
}

/// As [`sdot`], with the four bytes of one lane of `x` for all lanes.
///
/// # Safety
/// The processor has FEAT_DotProd.
#[inline(always)]
unsafe fn sdot_lane<const LANE: usize>(n: int32x4_t, codes: int32x4_t, x: int32x4_t) -> int32x4_t {
    // SAFETY: the caller says that the processor has the instruction.
    unsafe { product!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]", n, codes, x, LANE) }
}

/// Adds the products of two rows of eight signed bytes with two others: lane `2i + j` is of row `i` of `rows`
/// and row `j` of `columns`.
///
/// # Safety
/// The processor has FEAT_I8MM.
#[inline(always)]
unsafe fn smmla(n: int32x4_t, rows: int32x4_t, columns: int32x4_t) -> int32x4_t {
    // SAFETY: the caller says that the processor has the instruction.
    unsafe { product!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", n, rows, columns) }
}

impl<D: ByteProduct> Neon<D> {
    instructions! {
        words(words: &[u32; 4]) -> int32x4_t { vreinterpretq_s32_u32(vld1q_u32(words.as_ptr())) }
        put_words(vectors: [int32x4_t; 2], words: &mut [u32; 8]) {
            let [first, second]: &mut [[u32; 4]; 2] = words.as_chunks_mut().0.as_mut_array().expect(SHORT);
            vst1q_u32(first.as_mut_ptr(), vreinterpretq_u32_s32(vectors[0]));
            vst1q_u32(second.as_mut_ptr(), vreinterpretq_u32_s32(vectors[1]))
        }
        mix(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] { [vzip1q_s32(a, b), vzip2q_s32(a, b)] }
        sort(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] { [vuzp1q_s32(a, b), vuzp2q_s32(a, b)] }
    }

    /// The codes of a piece of a line as signed bytes.
    #[inline(always)]
    fn signed_codes<const BITS: u8>(self, line: &[u8; LINE], piece: usize) -> Integers {
        let codes = self.load_piece(line, piece);
        if BITS == 8 { self.signed(codes) } else { codes }
    }
}

impl TileProduct for DotProducts {
    const ARRANGES: bool = false;

    #[inline(always)]
    fn arrange<const C: usize>(_: Neon<DotProducts>, x: &[[u32; C]], to: &mut [[u32; C]]) {
        to.copy_from_slice(x);
    }

    #[inline(always)]
    fn multiply<const C: usize, const BITS: u8>(
        isa: Neon<DotProducts>,
        lines: &[[u8; LINE]],
        piece: usize,
        x: &[[u32; C]],
        begin: [i32; C],
    ) -> [Integers; C] {
        let mut n = [isa.splat_integer(0); C];
        for c in 0..C {
            n[c] = isa.splat_integer(begin[c]);
        }
        for (line, x) in lines.iter().zip(x) {
            let codes = isa.signed_codes::<BITS>(line, piece);
            for (n, x) in n.as_chunks_mut::<4>().0.iter_mut().zip(x.as_chunks().0) {
                let x = isa.words(x);
                for half in 0..2 {
                    // SAFETY: the token exists only where the processor has the instruction.
                    unsafe {
                        n[0][half] = sdot_lane::<0>(n[0][half], codes[half], x);
                        n[1][half] = sdot_lane::<1>(n[1][half], codes[half], x);
                        n[2][half] = sdot_lane::<2>(n[2][half], codes[half], x);
                        n[3][half] = sdot_lane::<3>(n[3][half], codes[half], x);
                    }
                }
            }
        }
        n
    }
}

impl TileProduct for MatrixProducts {
    const ARRANGES: bool = true;

    /// Of each two lines and each two columns the words side by side.
    #[inline(always)]
    fn arrange<const C: usize>(isa: Neon<MatrixProducts>, x: &[[u32; C]], to: &mut [[u32; C]]) {
        for (x, to) in x.as_chunks::<2>().0.iter().zip(to.as_chunks_mut::<2>().0) {
            let words = x[0].as_chunks().0.iter().zip(x[1].as_chunks().0);
            for ((first, second), to) in words.zip(to.as_flattened_mut().as_chunks_mut::<8>().0) {
                isa.put_words(isa.mix(isa.words(first), isa.words(second)), to);
            }
        }
    }

    // The sums of two columns and four rows are in two registers, of two rows each, until the end.
    #[inline(always)]
    fn multiply<const C: usize, const BITS: u8>(
        isa: Neon<MatrixProducts>,
        lines: &[[u8; LINE]],
        piece: usize,
        x: &[[u32; C]],
        begin: [i32; C],
    ) -> [Integers; C] {
        let mut n = [isa.splat_integer(0); C];
        for (n, begin) in n.as_chunks_mut::<2>().0.iter_mut().zip(begin.as_chunks::<2>().0) {
            let [both, _] = isa.mix(isa.splat_integer(begin[0])[0], isa.splat_integer(begin[1])[0]);
            *n = [[both; 2]; 2];
        }
        for (lines, x) in lines.as_chunks::<2>().0.iter().zip(x.as_chunks::<2>().0) {
            let first = isa.signed_codes::<BITS>(&lines[0], piece);
            let second = isa.signed_codes::<BITS>(&lines[1], piece);
            let rows = [isa.mix(first[0], second[0]), isa.mix(first[1], second[1])];
            let columns = x.as_flattened().as_chunks().0;
            for (n, columns) in n.as_chunks_mut::<2>().0.iter_mut().zip(columns) {
                let columns = isa.words(columns);
                for half in 0..2 {
                    // SAFETY: the token exists only where the processor has the instruction.
                    unsafe {
                        n[0][half] = smmla(n[0][half], rows[half][0], columns);
                        n[1][half] = smmla(n[1][half], rows[half][1], columns);
                    }
                }
            }
        }
        for [first, second] in n.as_chunks_mut::<2>().0 {
            for half in 0..2 {
                [first[half], second[half]] = isa.sort(first[half], second[half]);
            }
        }
        n
    }
}
