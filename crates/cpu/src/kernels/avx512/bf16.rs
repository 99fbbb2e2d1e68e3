//! Pairs of bf16 numbers, which AVX-512 BF16 multiplies in one instruction.

use std::arch::x86_64::*;

use super::{Avx512, fp16};
use crate::kernels::layout::Line;
use crate::kernels::machine::prefetch_address_l1;
use crate::kernels::packed::{Band, MatmulKernels, Sums, TILE};
use crate::kernels::prefetch::PrefetchChoice;
use crate::kernels::table::{InstructionSet, Table};
use crate::kernels::vector::floats::bf16_lines;
use crate::kernels::vector::packed::prefetch_lines;
use crate::kernels::vector::table::{table, token};
use crate::kernels::vector::{Packed, Vectors, by_count};

/// The token of AVX-512 BF16 and of all that [`Avx512`] stands for.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx512Bf16(Avx512);

impl Avx512Bf16 {
    /// The token, if the processor has the instructions.
    pub(in super::super) fn detect() -> Option<Avx512Bf16> {
        Avx512::detect().filter(|_| is_x86_feature_detected!("avx512bf16")).map(Avx512Bf16)
    }

    /// The token of AVX-512.
    pub(super) fn avx512(self) -> Avx512 {
        self.0
    }

    /// The table of AVX-512 with this multiplication of bf16 numbers.
    pub(in super::super) fn table(self) -> Table {
        let table = table(self.0, InstructionSet::Avx512(self.0));
        let matmul = MatmulKernels {
            // SAFETY: `self` is such a token.
            bf16: |band, first, x, sums| bf16(unsafe { token() }, band, first, x, sums),
            has_bf16_dot: true,
            fp16: fp16::kernel(self.0),
            ..table.matmul
        };
        Table { name: "avx512bf16", matmul, ..table }
    }
}

/// Adds the multiply-accumulates of a band of bf16 numbers with bf16 numbers.
///
/// ```text
/// for each pair of columns of weights:    two vectors, 16 rows each
///     for each column c:                  sums[c] += upper · x[c] upper, then lower · x[c] lower
/// ```
/// An instruction multiplies twice as many numbers as with floats, and activations have
/// half the bytes. A tile of 12 columns takes 24 instructions a pair; the loads (two
/// lines, 12 words) fit beside them, and so does the prefetch of the next tile's words.
/// Bytes moved: the band, once.
fn bf16(token: Avx512Bf16, band: Band<'_>, first: usize, x: &[u32], sums: &mut [Sums]) {
    let lines = bf16_lines(band, first);
    by_count!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| {
        // SAFETY: the token exists only where the processor has these features.
        unsafe { dots::<C>(token.0, lines.as_chunks().0, band.prefetch, x, sums) }
    });
}

/// [`bf16`] with `C` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16,avx2,fma,f16c")]
fn dots<const C: usize>(
    isa: Avx512,
    units: &[[Line; 2]],
    prefetch: PrefetchChoice,
    x: &[u32],
    sums: &mut [Sums],
) {
    let mut all = [[isa.splat(0.0); 2]; C];
    for (all, sums) in all.iter_mut().zip(&*sums) {
        let (halves, _) = sums.as_chunks();
        *all = [isa.load(&halves[0]), isa.load(&halves[1])];
    }
    let distance = prefetch.distance(C);
    let pairs = x.as_chunks::<C>().0;
    for (unit, x) in units.iter().zip(pairs) {
        prefetch_lines(unit, distance);
        if C == TILE {
            // The next tile's words lie behind this one's, as many. Behind the last
            // tile of a block lies nothing of use, and nothing is read.
            prefetch_address_l1(x.as_ptr().wrapping_add(pairs.len() * C).cast());
        }
        let weights = [bits(isa.load_piece(&unit[0], 0)), bits(isa.load_piece(&unit[1], 0))];
        for c in 0..C {
            let x = bits(isa.splat_integer(x[c] as i32));
            all[c][0] = _mm512_dpbf16_ps(all[c][0], weights[0], x);
            all[c][1] = _mm512_dpbf16_ps(all[c][1], weights[1], x);
        }
    }
    for (all, sums) in all.iter().zip(sums) {
        let (halves, _) = sums.as_chunks_mut();
        isa.store(all[0], &mut halves[0]);
        isa.store(all[1], &mut halves[1]);
    }
}

/// The same bits as bf16 numbers.
#[inline(always)]
fn bits(vector: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes, and any bits are valid.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(vector) }
}
