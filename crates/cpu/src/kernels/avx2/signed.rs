//! Tiles of codes of eight bits by AVX2 itself, with signs and magnitudes that all tiles share.
//!
//! The magnitude of a code is multiplied by `x` with the sign of the code. Signed codes and magnitudes of a panel are
//! computed once, not for each tile. A line of two vectors and four columns then takes 32 instructions of arithmetic
//! instead of 36: `vpsignb`, `vpmaddubsw`, `vpmaddwd` and `vpaddd` for each product.
//! Bytes moved: a tile reads 42.5 KB of codes, magnitudes, scales and `x`, where a tile with panels reads 26.1 KB. That fits
//! into an L1 of 48 KiB (Zen 5); with 32 KiB a part comes from L2, and the speed was not measured.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::Avx2;
use crate::kernels::packed::{
    INTEGER_BIAS, INTEGER_BIAS_FLOAT, MatmulKernels, MatmulTileOperands, PanelGroup, Panels, SignedGroup,
    SignedPanels, Sums, TILE,
};
use crate::kernels::table::{InstructionSet, Table};
use crate::kernels::vector::packed::{self, LINES, NextLines, PLAIN, keep_order, prefetch_next, scale_in};
use crate::kernels::vector::table::{table, token};
use crate::kernels::vector::{Isa, Packed, VectorKernel, Vectors, by_count, instructions};

/// Columns that two vectors of codes are multiplied by at once: eight sums, four vectors of codes and magnitudes, a word,
/// ones and a product fit into the registers.
const COLUMNS: usize = 4;

impl Avx2 {
    /// The table of AVX2 itself.
    pub(in super::super) fn table(self) -> Table {
        let table = table(self, InstructionSet::Avx2(self));
        let matmul = MatmulKernels {
            // SAFETY: `self` is such a token.
            tile: |operands, sums| tile(unsafe { token() }, operands, sums),
            // SAFETY: as above.
            sign: Some(|panels, groups, signed| sign(unsafe { token() }, panels, groups, signed)),
            ..table.matmul
        };
        Table { matmul, ..table }
    }

    instructions! {
        magnitudes(codes: __m256i) -> __m256i { _mm256_abs_epi8(codes) }
        add_signed(n: &mut __m256i, codes: __m256i, magnitudes: __m256i, x: __m256i) {
            let pairs = _mm256_maddubs_epi16(magnitudes, _mm256_sign_epi8(x, codes));
            *n = _mm256_add_epi32(*n, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        less_128(codes: __m256i) -> __m256i { _mm256_xor_si256(codes, _mm256_set1_epi8(i8::MIN)) }
    }
}

/// [`MatmulKernels::sign`].
fn sign(isa: Avx2, panels: &Panels, groups: usize, signed: &mut SignedPanels) {
    isa.enter(Sign { panels, groups, signed });
}

/// Makes signed numbers of the codes of panels, and computes their magnitudes.
struct Sign<'a> {
    panels: &'a Panels,
    groups: usize,
    signed: &'a mut SignedPanels,
}

impl VectorKernel<Avx2> for Sign<'_> {
    #[inline(always)]
    fn run(self, isa: Avx2) {
        for (panel, signed) in self.panels.iter().zip(self.signed) {
            for (group, signed) in panel[..self.groups].iter().zip(signed) {
                for (line, [codes, magnitudes]) in group.codes.iter().zip(&mut signed.lines) {
                    for piece in 0..<Avx2>::PIECES {
                        let vector = isa.less_128(isa.load_piece(line, piece));
                        isa.store_piece(vector, codes, piece);
                        isa.store_piece(isa.magnitudes(vector), magnitudes, piece);
                    }
                }
            }
        }
    }
}

/// [`MatmulKernels::tile`].
fn tile(isa: Avx2, operands: MatmulTileOperands<'_>, sums: &mut [Sums]) {
    const { assert!(TILE == 12, "a kernel for each third of a tile") };
    match operands.signed {
        None => packed::tile(isa, operands, sums),
        Some(signed) => by_count!(sums.len(), [4 8 12], |C| {
            isa.enter(SignedTile::<C> { operands, signed, sums });
        }),
    }
}

/// Adds the multiply-accumulates of both halves of a band with `C` columns.
struct SignedTile<'a, const C: usize> {
    operands: MatmulTileOperands<'a>,
    signed: &'a SignedPanels,
    sums: &'a mut [Sums],
}

impl<const C: usize> VectorKernel<Avx2> for SignedTile<'_, C> {
    #[inline(always)]
    fn run(self, isa: Avx2) {
        let MatmulTileOperands { panels, groups, x, next, .. } = self.operands;
        // Not a constant: the compiler would unroll the lines, and mix them until sums are on the stack.
        let lines = black_box(LINES);
        let mut next = NextLines::new(next, 2 * groups * (C / COLUMNS));
        for (half, (panel, signed)) in panels.iter().zip(self.signed).enumerate() {
            let (panel, signed) = (&panel[..groups], &signed[..groups]);
            for column in (0..C).step_by(COLUMNS) {
                let sums = &mut self.sums[column..column + COLUMNS];
                let mut all = [[isa.splat(0.0); COLUMNS]; 2];
                for (v, all) in all.iter_mut().enumerate() {
                    for (all, sums) in all.iter_mut().zip(&*sums) {
                        *all = isa.load(&<Avx2>::split(sums)[<Avx2>::PIECES * half + v]);
                    }
                }
                let groups_of_x = x.as_chunks::<C>().0.as_chunks::<PLAIN>().0;
                for ((panel, signed), x) in panel.iter().zip(signed).zip(groups_of_x) {
                    if half == 0 && column == 0 {
                        prefetch_next(x, groups);
                    }
                    next.prefetch();
                    SignedColumns { panel, signed, x, column, lines }.add(isa, &mut all);
                }
                for (v, all) in all.iter().enumerate() {
                    for (all, sums) in all.iter().zip(&mut *sums) {
                        isa.store(*all, &mut <Avx2>::split_mut(sums)[<Avx2>::PIECES * half + v]);
                    }
                }
            }
        }
    }
}

/// A group of half a band, and the columns from `column` on.
struct SignedColumns<'a, const C: usize> {
    panel: &'a PanelGroup,
    signed: &'a SignedGroup,
    x: &'a [[u32; C]; PLAIN],
    column: usize,
    /// The number of lines, [`LINES`].
    lines: usize,
}

impl<const C: usize> SignedColumns<'_, C> {
    /// Adds the multiply-accumulates of the group.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // counts are constants
    fn add(self, isa: Avx2, all: &mut [[__m256; COLUMNS]; 2]) {
        let SignedColumns { panel, signed, x, column, lines } = self;
        let mut n = [[isa.splat_integer(INTEGER_BIAS); COLUMNS]; 2];
        for line in 0..lines {
            debug_assert!(line < LINES, "a turn for each line");
            // Checks would tell the compiler how many turns there can be.
            // SAFETY: `lines` is the number of lines.
            let [codes, magnitudes] = unsafe { signed.lines.get_unchecked(line) };
            // SAFETY: as above; words have more rows than that.
            let words = unsafe { x.get_unchecked(line) };
            let codes = [isa.load_piece(codes, 0), isa.load_piece(codes, 1)];
            let magnitudes = [isa.load_piece(magnitudes, 0), isa.load_piece(magnitudes, 1)];
            for c in 0..COLUMNS {
                let word = isa.splat_integer(words[column + c] as i32);
                isa.add_signed(&mut n[0][c], codes[0], magnitudes[0], word);
                isa.add_signed(&mut n[1][c], codes[1], magnitudes[1], word);
                keep_order();
            }
        }
        for v in 0..2 {
            let scale = isa.load(&<Avx2>::split(&panel.scales[0])[v]);
            let bias = isa.mul(scale, isa.splat(INTEGER_BIAS_FLOAT));
            for c in 0..COLUMNS {
                all[v][c] = scale_in(isa, n[v][c], scale, bias, x[PLAIN - 1][column + c], all[v][c]);
            }
        }
    }
}
