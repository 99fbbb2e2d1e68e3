//! Pairs of bf16 numbers by AMX: an instruction multiplies 16 rows of weights by all columns of activations.

use super::tiles::{TILE_ROW_BYTES, TILES, TileInstructions, TileShape};
use super::transposed::put_columns;
use crate::kernels::layout::Line;
use crate::kernels::packed::{Band, LANES, Sums};
use crate::kernels::prefetch::PrefetchDistance;
use crate::kernels::vector::by_count;
use crate::kernels::vector::floats::bf16_lines;
use crate::kernels::vector::packed::{COLUMNS, LINES, prefetch_lines};

/// The pairs of a row of activations in a tile.
const PAIRS: usize = TILE_ROW_BYTES / 4;

/// The tile of activations: a row for each column.
const ACTIVATIONS: usize = 0;

/// The tile of weights: a row for each pair of columns, 16 rows of the band.
const WEIGHTS: usize = 1;

/// The tiles of sums, one for each half of the band.
const SUMS: [usize; 2] = [2, 3];

/// As [`ACTIVATIONS`] and [`WEIGHTS`], for the last pairs of the band.
const LAST: [usize; 2] = [4, 5];

/// Adds the multiply-accumulates of a band of bf16 numbers with bf16 numbers.
///
/// ```text
/// for each 32 columns of weights, pairs 0..16:
///     activations = a row of pairs for each column c
///     for each half of the band:
///         sums[c] += Σ first · x[c] first + Σ second · x[c] second      tdpbf16ps
/// ```
/// The instruction adds up the first products of all pairs and the second ones, each from zero on with fused
/// multiply-adds, then both, then adds that to the sum. Each addition rounds to the nearest; subnormal numbers are
/// zeros (Intel SDM 2, TDPBF16PS). So the bits are not those of `vdpbf16ps`, and all numbers of columns are multiplied
/// here: a column's bits do not depend on the others.
///
/// Work for 32 columns of weights and 12 of activations, on the ports of Intel's cores: 2 × 16 cycles of `tdpbf16ps` (Intel's
/// Optimization Reference Manual 248966) beside 16 loads of words and 48 shuffles. Each of
/// the two tiles of sums waits for the instruction before. `vdpbf16ps` takes 384 instructions, at
/// one in a cycle. These are counts: no processor with AMX has run this.
/// Bytes moved: the band, once.
pub(super) fn bf16<T: TileInstructions>(
    permission: T::Permission,
    band: Band<'_>,
    first: usize,
    x: &[u32],
    sums: &mut [Sums],
) {
    let units = bf16_lines(band, first).as_chunks().0;
    let distance = band.prefetch.distance(sums.len());
    by_count!(sums.len(), [1 2 3 4 5 6 7 8 12], |C| {
        let sums: &mut [Sums; C] = sums.as_mut_array().expect(COLUMNS);
        // SAFETY: the table `amx` is made with the token of AVX-512, which shows these features; tests detect them.
        unsafe { products::<T, C>(permission, (units, distance), x.as_chunks().0, sums) }
    });
}

/// [`bf16`] with `C` columns.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn products<T: TileInstructions, const C: usize>(
    permission: T::Permission,
    (units, distance): (&[[Line; 2]], PrefetchDistance),
    x: &[[u32; C]],
    sums: &mut [Sums; C],
) {
    let last = x.len() % PAIRS;
    let mut shapes = [TileShape::default(); TILES];
    for (tile, shape) in [
        (ACTIVATIONS, TileShape { rows: C, bytes: TILE_ROW_BYTES }),
        (WEIGHTS, TileShape { rows: PAIRS, bytes: TILE_ROW_BYTES }),
        (SUMS[0], TileShape { rows: C, bytes: TILE_ROW_BYTES }),
        (SUMS[1], TileShape { rows: C, bytes: TILE_ROW_BYTES }),
    ] {
        shapes[tile] = shape;
    }
    if last > 0 {
        shapes[LAST[0]] = TileShape { rows: C, bytes: 4 * last };
        shapes[LAST[1]] = TileShape { rows: last, bytes: TILE_ROW_BYTES };
    }
    // SAFETY: it is the only value of this thread, which it does not leave.
    let mut tiles = unsafe { T::configured(permission, shapes) };
    let mut halves = [[[0; TILE_ROW_BYTES]; C]; 2];
    for (half, rows) in halves.iter_mut().enumerate() {
        for (row, sums) in rows.iter_mut().zip(&*sums) {
            for (bytes, sum) in row.as_chunks_mut().0.iter_mut().zip(&sums[half * LANES..]) {
                *bytes = sum.to_le_bytes();
            }
        }
    }
    tiles.load::<{ SUMS[0] }>(halves[0].as_flattened(), TILE_ROW_BYTES);
    tiles.load::<{ SUMS[1] }>(halves[1].as_flattened(), TILE_ROW_BYTES);
    let mut columns = [[0; TILE_ROW_BYTES]; LANES];
    for (units, x) in units.chunks(PAIRS).zip(x.chunks(PAIRS)) {
        prefetch_lines(units.as_flattened(), distance);
        let bytes = units.as_flattened().as_flattened();
        if let Some(x) = x.as_array::<PAIRS>() {
            put_columns::<C, 0, TILE_ROW_BYTES>(x.first_chunk().expect(PARTS), &mut columns);
            put_columns::<C, { TILE_ROW_BYTES / 2 }, TILE_ROW_BYTES>(
                x.last_chunk().expect(PARTS),
                &mut columns,
            );
            tiles.load::<ACTIVATIONS>(columns.as_flattened(), TILE_ROW_BYTES);
            tiles.load::<WEIGHTS>(bytes, 2 * TILE_ROW_BYTES);
            tiles.dot_bf16::<{ SUMS[0] }, ACTIVATIONS, WEIGHTS>();
            tiles.load::<WEIGHTS>(&bytes[TILE_ROW_BYTES..], 2 * TILE_ROW_BYTES);
            tiles.dot_bf16::<{ SUMS[1] }, ACTIVATIONS, WEIGHTS>();
        } else {
            for (pair, words) in x.iter().enumerate() {
                for (row, word) in columns.iter_mut().zip(words) {
                    row[4 * pair..4 * pair + 4].copy_from_slice(&word.to_le_bytes());
                }
            }
            tiles.load::<{ LAST[0] }>(columns.as_flattened(), TILE_ROW_BYTES);
            tiles.load::<{ LAST[1] }>(bytes, 2 * TILE_ROW_BYTES);
            tiles.dot_bf16::<{ SUMS[0] }, { LAST[0] }, { LAST[1] }>();
            tiles.load::<{ LAST[1] }>(&bytes[TILE_ROW_BYTES..], 2 * TILE_ROW_BYTES);
            tiles.dot_bf16::<{ SUMS[1] }, { LAST[0] }, { LAST[1] }>();
        }
    }
    tiles.store::<{ SUMS[0] }>(&mut halves[0]);
    tiles.store::<{ SUMS[1] }>(&mut halves[1]);
    for (half, rows) in halves.iter().enumerate() {
        for (row, sums) in rows.iter().zip(&mut *sums) {
            for (bytes, sum) in row.as_chunks().0.iter().zip(&mut sums[half * LANES..]) {
                *sum = f32::from_le_bytes(*bytes);
            }
        }
    }
}

const PARTS: &str = "a tile has two parts of eight pairs";

const _: () = assert!(PAIRS == 2 * LINES, "a part is as long as a group of integers");

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::super::Avx512;
    use super::super::tiles::{EmulatedTiles, flushed};
    use super::*;
    use crate::kernels::packed::{BAND, Layout, NARROW, TILE};
    use crate::kernels::prefetch::PrefetchChoice;

    /// A bf16 number, now and then a zero or a subnormal one.
    fn number(random: &mut Random) -> u16 {
        let bits = random.bits();
        match bits % 61 {
            0 => (bits >> 60 << 15) as u16,
            1 => (bits >> 32) as u16 & 0x807f,
            _ => ((bits as i32 as f32 * 2f32.powi(-31)).to_bits() >> 16) as u16,
        }
    }

    fn value(bits: u16) -> f32 {
        flushed(f32::from_bits(u32::from(bits) << 16))
    }

    /// What a sum is by the manual, given the weights of a row and the activations of a column.
    fn expected(begin: f32, weights: &[u16], x: &[u16]) -> f32 {
        weights.chunks(2 * PAIRS).zip(x.chunks(2 * PAIRS)).fold(begin, |sum, (weights, x)| {
            let mut parts = [0.0_f32; 2];
            for (index, (w, x)) in weights.iter().zip(x).enumerate() {
                let part = &mut parts[index % 2];
                *part = flushed(value(*w).mul_add(value(*x), *part));
            }
            flushed(flushed(sum) + flushed(parts[0] + parts[1]))
        })
    }

    #[test]
    fn sums_have_the_order_of_the_manual_for_all_numbers_of_columns() {
        if Avx512::detect().is_none() {
            eprintln!("skipped: this processor has no AVX-512 with VNNI");
            return;
        }
        let mut random = Random(3);
        for columns_of_weights in [2, 32, 34, 256, 290] {
            let weights: Vec<Vec<u16>> =
                (0..BAND).map(|_| (0..columns_of_weights).map(|_| number(&mut random)).collect()).collect();
            let pairs = columns_of_weights / 2;
            let mut bytes = Vec::new();
            for (pair, row) in (0..pairs).flat_map(|pair| (0..BAND).map(move |row| (pair, row))) {
                bytes.extend([0, 1].map(|at| weights[row][2 * pair + at].to_le_bytes()).concat());
            }
            let prefetch = PrefetchChoice::NONE;
            let band = Band { layout: Layout::Bf16, columns: columns_of_weights, bytes: &bytes, prefetch };
            for columns in (1..=NARROW).chain([TILE]) {
                let x: Vec<Vec<u16>> = (0..columns)
                    .map(|_| (0..columns_of_weights).map(|_| number(&mut random)).collect())
                    .collect();
                let word = |pair: usize, column: &Vec<u16>| {
                    u32::from(column[2 * pair]) | u32::from(column[2 * pair + 1]) << 16
                };
                let words: Vec<u32> =
                    (0..pairs).flat_map(|pair| x.iter().map(move |column| word(pair, column))).collect();
                let mut sums = vec![[0.75; BAND]; columns];
                bf16::<EmulatedTiles>((), band, 0, &words, &mut sums);
                for (column, sums) in x.iter().zip(&sums) {
                    let wanted = weights.iter().map(|row| expected(0.75, row, column).to_bits());
                    assert!(
                        wanted.eq(sums.iter().map(|sum| sum.to_bits())),
                        "{columns_of_weights} columns of weights, {columns} of activations"
                    );
                }
            }
        }
    }

    /// From a column in the middle on, where a group of 32 columns begins, sums go on as if there were no break.
    #[test]
    fn sums_may_be_continued_at_each_block() {
        if Avx512::detect().is_none() {
            eprintln!("skipped: this processor has no AVX-512 with VNNI");
            return;
        }
        let mut random = Random(5);
        let bytes: Vec<u8> = (0..96 * BAND).flat_map(|_| number(&mut random).to_le_bytes()).collect();
        let words: Vec<u32> = (0..48 * 4)
            .map(|_| u32::from(number(&mut random)) | u32::from(number(&mut random)) << 16)
            .collect();
        let band = Band { layout: Layout::Bf16, columns: 96, bytes: &bytes, prefetch: PrefetchChoice::NONE };
        let (mut whole, mut parts) = ([[1.0; BAND]; 4], [[1.0; BAND]; 4]);
        bf16::<EmulatedTiles>((), band, 0, &words, &mut whole);
        for (first, words) in [(0, &words[..32 * 4]), (64, &words[32 * 4..])] {
            bf16::<EmulatedTiles>((), band, first, words, &mut parts);
        }
        assert_eq!(whole, parts);
    }
}
