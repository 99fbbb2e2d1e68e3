//! Integers by AMX: an instruction multiplies 16 rows of decoded weights by all columns of a tile. `amx_bf16` multiplies
//! bf16 numbers.

use std::arch::x86_64::*;

use super::Avx512;
use super::amx_bf16::bf16;
use super::bf16::Avx512Bf16;
use super::tiles::{ProcessorTiles, TILE_ROW_BYTES, TILES, TileInstructions, TilePermission, TileShape};
use super::transposed::put_columns;
use crate::kernels::layout::Line;
use crate::kernels::packed::{
    GROUP, INTEGER_BIAS, INTEGER_BIAS_FLOAT, LANES, MatmulKernels, MatmulTileOperands, PanelGroup, Sums,
};
use crate::kernels::table::Table;
use crate::kernels::vector::packed::{
    COLUMNS, HALVED, LINES, NextLines, PLAIN, float, prefetch_next, scale_in,
};
use crate::kernels::vector::table::token;
use crate::kernels::vector::{Packed, Vectors, by_count};

/// The token of AMX, and of all that [`Avx512Bf16`] stands for, which every processor with AMX has.
#[derive(Clone, Copy)]
pub(in super::super) struct Amx {
    avx512: Avx512Bf16,
    permission: TilePermission,
}

impl Amx {
    /// The token, if the processor has the instructions and the system lets this process use them.
    pub(in super::super) fn detect() -> Option<Amx> {
        let avx512 = Avx512Bf16::detect()?;
        Some(Amx { avx512, permission: TilePermission::request()? })
    }

    /// The table of AVX-512 with this multiplication of panels, and of bf16 numbers. Few columns of integers are multiplied as
    /// before: their time is that of reading weights.
    pub(in super::super) fn table(self) -> Table {
        let table = self.avx512.table();
        let matmul = MatmulKernels {
            tile: |operands, sums| {
                // SAFETY: `self` is such a token.
                let Amx { avx512, permission } = unsafe { token() };
                tile::<ProcessorTiles>(avx512.avx512(), permission, operands, sums);
            },
            bf16: |band, first, x, sums| {
                // SAFETY: `self` is such a token.
                let Amx { permission, .. } = unsafe { token() };
                bf16::<ProcessorTiles>(permission, band, first, x, sums);
            },
            ..table.matmul
        };
        Table { name: "amx", matmul, ..table }
    }
}

/// The tile of activations: a row for each column, of the codes of a scale.
const ACTIVATIONS: usize = 0;

/// The tile of weights: a line of the panel in each row.
const WEIGHTS: usize = 1;

/// The tile of sums: a row for each column, of 16 rows of weights.
const SUMS: usize = 2;

/// As the kernel `tile` of AVX-512, with the same bits.
///
/// ```text
/// for each group of 32 codes, which has one scale or two:
///     activations = the group's words, a column in each row
///     for each half of the band and each scale:
///         n = activations · weights                      tdpbsud; exact
///         sums += s · (scale · (n + begin)) − minimum · Σx   as in every table
/// ```
/// Work of a group with one scale and 12 columns, on the two ports of Intel's cores: 72 instructions of arithmetic and 24
/// shuffles, 48 cycles; `tdpbsud` takes 32 beside them (one in 16, Intel's Optimization Reference Manual 248966). With
/// VNNI 192 products and 48 of arithmetic take 120. These are counts: no processor with AMX has run this.
/// Bytes moved: the panel and the activations, from L1.
fn tile<T: TileInstructions>(
    isa: Avx512,
    permission: T::Permission,
    operands: MatmulTileOperands<'_>,
    sums: &mut [Sums],
) {
    let coding = operands.coding;
    by_count!(sums.len(), [4 8 12], |C| {
        let sums: &mut [Sums; C] = sums.as_mut_array().expect(COLUMNS);
        let add = match (coding.minimums, coding.halves) {
            (false, false) => add::<T, C, PLAIN, false>,
            (true, false) => add::<T, C, PLAIN, true>,
            (false, true) => add::<T, C, HALVED, false>,
            (true, true) => add::<T, C, HALVED, true>,
        };
        // SAFETY: the token exists only where the processor has these features.
        unsafe { add(isa, permission, operands, sums) }
    });
}

/// [`tile`] with `C` columns and `ROWS` rows of words for each group.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn add<T: TileInstructions, const C: usize, const ROWS: usize, const MINIMUMS: bool>(
    isa: Avx512,
    permission: T::Permission,
    MatmulTileOperands { panels, groups, x, next, .. }: MatmulTileOperands<'_>,
    sums: &mut [Sums; C],
) {
    let parts = ROWS - LINES - 1;
    let lines = LINES / parts;
    let mut shapes = [TileShape::default(); TILES];
    shapes[ACTIVATIONS] = TileShape { rows: C, bytes: 4 * lines };
    shapes[WEIGHTS] = TileShape { rows: lines, bytes: TILE_ROW_BYTES };
    shapes[SUMS] = TileShape { rows: C, bytes: TILE_ROW_BYTES };
    // SAFETY: it is the only value of this thread, which it does not leave.
    let mut tiles = unsafe { T::configured(permission, shapes) };
    let mut all = [[isa.splat(0.0); C]; 2];
    for c in 0..C {
        let halves = sums[c].as_chunks().0;
        (all[0][c], all[1][c]) = (isa.load(&halves[0]), isa.load(&halves[1]));
    }
    let mut products = [[0; TILE_ROW_BYTES]; C];
    let mut columns = [[0; GROUP]; LANES];
    let mut next = NextLines::new(next, groups);
    for (group, x) in x.as_chunks::<C>().0.as_chunks::<ROWS>().0.iter().take(groups).enumerate() {
        prefetch_next(x, groups);
        next.prefetch();
        put_columns::<C, 0, GROUP>(x.first_chunk().expect(GROUP_LINES), &mut columns);
        for part in 0..parts {
            tiles.load::<ACTIVATIONS>(&columns.as_flattened()[4 * part * lines..], GROUP);
            for half in 0..2 {
                let weights = &panels[half][group];
                tiles.load::<WEIGHTS>(weights.codes[part * lines..].as_flattened(), TILE_ROW_BYTES);
                tiles.zero::<SUMS>();
                tiles.dot::<SUMS, ACTIVATIONS, WEIGHTS>();
                tiles.store::<SUMS>(&mut products);
                add_scaled::<C, ROWS, MINIMUMS>(isa, &products, x, (weights, part), &mut all[half]);
            }
        }
    }
    for c in 0..C {
        let halves = sums[c].as_chunks_mut().0;
        isa.store(all[0][c], &mut halves[0]);
        isa.store(all[1][c], &mut halves[1]);
    }
}

/// Adds what the products of one half of the band yield.
#[inline(always)]
fn add_scaled<const C: usize, const ROWS: usize, const MINIMUMS: bool>(
    isa: Avx512,
    products: &[Line; C],
    x: &[[u32; C]; ROWS],
    (weights, part): (&PanelGroup, usize),
    all: &mut [__m512; C],
) {
    let scale = isa.load(&weights.scales[part]);
    let bias = isa.mul(scale, isa.splat(INTEGER_BIAS_FLOAT));
    let minimum = isa.load(&weights.minimums[part]);
    for c in 0..C {
        let begin = if MINIMUMS { INTEGER_BIAS } else { x[LINES + part][c] as i32 };
        let n = isa.add_integers(isa.load_piece(&products[c], 0), isa.splat_integer(begin));
        let sum = scale_in(isa, n, scale, bias, x[ROWS - 1][c], all[c]);
        all[c] = if MINIMUMS { isa.fnmadd(minimum, float(isa, x[LINES + part][c]), sum) } else { sum };
    }
}

const GROUP_LINES: &str = "a group has eight rows of codes";

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::super::tiles::EmulatedTiles;
    use super::*;
    use crate::kernels::layout::Layout;
    use crate::kernels::packed::{Coding, DEPTH, Panels, TILE};

    /// Panels of codes of this kind.
    fn panels(coding: Coding, random: &mut Random) -> Panels {
        let mut panels = [[PanelGroup::ZERO; DEPTH]; 2];
        for group in panels.as_flattened_mut() {
            let codes = group.codes.as_flattened_mut();
            codes.fill_with(|| (random.bits() >> (64 - coding.bits)) as u8);
            group.scales.as_flattened_mut().fill_with(|| random.bits() as i32 as f32 * 1e-10);
            if coding.minimums {
                group.minimums.as_flattened_mut().fill_with(|| random.bits() as i32 as f32 * 1e-10);
            }
        }
        panels
    }

    /// Words of `groups` groups of `columns` columns.
    fn words(coding: Coding, groups: usize, columns: usize, random: &mut Random) -> Vec<u32> {
        let mut words = Vec::new();
        for _ in 0..groups {
            let codes: Vec<u32> = (0..LINES * columns).map(|_| random.bits() as u32).collect();
            words.extend(&codes);
            for part in codes.chunks(codes.len() / coding.sums()) {
                for column in 0..columns {
                    let bytes = part.iter().skip(column).step_by(columns).flat_map(|word| word.to_le_bytes());
                    let sum: i32 = bytes.map(|byte| i32::from(byte as i8)).sum();
                    words.push(match coding.minimums {
                        true => (0.01 * sum as f32).to_bits(),
                        false => (INTEGER_BIAS - i32::from(coding.zero) * sum) as u32,
                    });
                }
            }
            words.extend((0..columns).map(|_| (random.bits() as i32 as f32 * 1e-12).to_bits()));
        }
        words
    }

    #[test]
    fn tiles_have_the_bits_of_avx512() {
        let Some(avx512) = Avx512::detect() else {
            eprintln!("skipped: this processor has no AVX-512 with VNNI");
            return;
        };
        let expected = crate::kernels::by_name("avx512").unwrap().matmul.tile;
        let mut random = Random(7);
        for layout in Layout::INTEGERS {
            let coding = layout.coding().unwrap();
            for (columns, groups) in [(4, 1), (8, 3), (TILE, DEPTH), (TILE, 5)] {
                let panels = panels(coding, &mut random);
                let x = words(coding, groups, columns, &mut random);
                let begun = [[0.5; 32], [-3.25; 32]].repeat(columns / 2);
                let (mut seen, mut wanted) = (begun.clone(), begun);
                let operands =
                    MatmulTileOperands { coding, panels: &panels, signed: None, groups, x: &x, next: &[] };
                expected(operands, &mut wanted);
                tile::<EmulatedTiles>(avx512, (), operands, &mut seen);
                let bits =
                    |sums: &[Sums]| sums.as_flattened().iter().map(|sum| sum.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&seen), bits(&wanted), "{layout:?}, {columns} columns, {groups} groups");
            }
        }
    }
}
