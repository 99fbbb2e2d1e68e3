//! The product of a band that has present units only with packed rows, in one thread.
//!
//! ```text
//! for some present units at a time:
//!     gathered = the activations of their columns         L1
//!     sums    += units · gathered                         the kernels for whole bands
//! ```
//! So every layout and instruction set has the bits of the whole band: the terms that are missing are exact zeros. Bytes
//! moved: the present units, and for each of them its activations once in and once out of L1 (40 bytes a column for a
//! group of Q4_0, whose 32 rows are 576 bytes).
//!
//! A zero times infinity or NaN is NaN. So sums of rows with such numbers in a unit that is left out are set to NaN.

use std::ops::Range;

use super::product::{Product, fp16_kernel};
use crate::activations::ActivationKind;
use crate::kernels::Table;
use crate::kernels::packed::{
    Band, DEPTH, FLOAT_DEPTH, GROUP, LINE, MatmulTileOperands, NARROW, PanelGroup, Sums, TILE,
};

/// Words that are gathered at once: a block of floats of a whole tile.
const GATHERED_WORDS: usize = FLOAT_DEPTH * TILE;

/// Memory for gathered activations.
type Words = [u32; GATHERED_WORDS];

/// What products with sparse matrices need beside their operands.
pub(super) struct SparseScratch {
    gathered: Words,
    /// Whether all activations are finite.
    is_finite: bool,
}

impl SparseScratch {
    /// Memory for these products.
    pub fn of<'a>(mut products: impl Iterator<Item = Product<'a>>) -> SparseScratch {
        let is_finite = products.all(|product| !product.weight.is_sparse() || product.x.is_finite());
        SparseScratch { gathered: [0; GATHERED_WORDS], is_finite }
    }

    /// Adds the products of some blocks of a band, of a sparse matrix or of another, with all columns of activations.
    pub fn add(
        &mut self,
        product: Product<'_>,
        table: &Table,
        (band, blocks): (usize, Range<usize>),
        sums: &mut [Sums],
    ) {
        let Some((units, each)) = product.weight.units(band) else {
            return product.add(table, band, blocks, sums);
        };
        let depth = product.x.kind.depth();
        let columns = blocks.start * depth..blocks.end * depth;
        let SparseScratch { gathered, is_finite } = self;
        SparseProduct { product, band, units, each, is_finite: *is_finite }
            .add(table, columns, gathered, sums);
    }
}

/// A band of a sparse matrix, and the rows that it is multiplied with.
struct SparseProduct<'a> {
    product: Product<'a>,
    band: usize,
    /// The numbers of the units that are present, and the columns of each.
    units: &'a [u16],
    each: usize,
    /// Whether all activations are finite.
    is_finite: bool,
}

impl SparseProduct<'_> {
    /// Adds the products of some columns of the weights, whole units, with all rows to the sums of the band.
    fn add(&self, table: &Table, columns: Range<usize>, gathered: &mut Words, sums: &mut [Sums]) {
        let before =
            |column: usize| self.units.partition_point(|unit| usize::from(*unit) * self.each < column);
        let (first, end) = (before(columns.start), before(columns.end));
        let at_once = self.units_at_once();
        for first in (first..end).step_by(at_once) {
            self.add_units(table, first..end.min(first + at_once), gathered, sums);
        }
        if !self.is_finite {
            self.spoil(columns, sums);
        }
    }

    fn is_narrow(&self) -> bool {
        self.product.x.columns() <= NARROW
    }

    /// The units whose activations are gathered at once.
    fn units_at_once(&self) -> usize {
        let x = self.product.x;
        let columns = if self.is_narrow() { x.columns() } else { TILE };
        let fit = GATHERED_WORDS / (x.kind.words(self.each) * columns.max(1));
        match x.kind {
            ActivationKind::Integers(_) | ActivationKind::IntegersTwice(_) if self.is_narrow() => fit,
            ActivationKind::Integers(_) | ActivationKind::IntegersTwice(_) => DEPTH * GROUP / self.each,
            _ => fit.min(FLOAT_DEPTH / self.each),
        }
    }

    /// Adds the products of some of the present units.
    fn add_units(&self, table: &Table, range: Range<usize>, gathered: &mut Words, sums: &mut [Sums]) {
        let (Product { x, weight }, units) = (self.product, &self.units[range.clone()]);
        let (whole, columns) = (weight.band(self.band), units.len() * self.each);
        let unit_bytes = whole.bytes.len() / self.units.len();
        let bytes = &whole.bytes[range.start * unit_bytes..range.end * unit_bytes];
        let band = Band { columns, bytes, ..whole };
        let mut each_tile = |kernel: &mut dyn FnMut(&[u32], &mut [Sums])| {
            for tile in x.tiles() {
                kernel(self.gather(units, tile, gathered), &mut sums[tile.0..tile.0 + tile.1]);
            }
        };
        match x.kind {
            ActivationKind::Integers(_) | ActivationKind::IntegersTwice(_) if self.is_narrow() => {
                each_tile(&mut |x, sums| (table.matmul.narrow)(band, x, sums));
            }
            ActivationKind::Integers(coding) | ActivationKind::IntegersTwice(coding) => {
                let (mut panels, groups) = ([[PanelGroup::ZERO; DEPTH]; 2], columns / GROUP);
                (table.matmul.decode)(band, 0, groups, &mut panels);
                let mut signed = None;
                let tiles = x.tiles().count();
                let signed = table.matmul.signed_for(tiles, coding, (&panels, groups), &mut signed);
                each_tile(&mut |x, sums| {
                    (table.matmul.tile)(
                        MatmulTileOperands { coding, panels: &panels, signed, groups, x, next: &[] },
                        sums,
                    );
                });
            }
            ActivationKind::Bf16Pairs => each_tile(&mut |x, sums| (table.matmul.bf16)(band, 0, x, sums)),
            ActivationKind::Fp16Groups => each_tile(&mut |x, sums| fp16_kernel(table)(band, 0, x, sums)),
            ActivationKind::Floats | ActivationKind::Rounded(_) if weight.is_float() => {
                each_tile(&mut |x, sums| (table.matmul.floats)(band, 0, x, sums));
            }
            ActivationKind::Floats | ActivationKind::Rounded(_) => {
                let mut lines = [0; FLOAT_DEPTH * 2 * LINE];
                let columns = range.start * self.each..range.end * self.each;
                let decoded = weight.decoded(table, self.band, columns, &mut lines);
                each_tile(&mut |x, sums| (table.matmul.floats)(decoded, 0, x, sums));
            }
        }
    }

    /// The words of the columns of a unit in a tile.
    fn unit_words(&self, unit: usize, (first, columns): (usize, usize)) -> &[u32] {
        let (x, column) = (self.product.x, unit * self.each);
        let block = x.part(column / x.kind.depth(), (first, columns));
        let start = x.kind.words(column % x.kind.depth()) * columns;
        &block[start..start + x.kind.words(self.each) * columns]
    }

    /// Copies the words of units in a tile, one unit after another.
    fn gather<'g>(&self, units: &[u16], tile: (usize, usize), to: &'g mut Words) -> &'g [u32] {
        let words = self.product.x.kind.words(self.each) * tile.1;
        let to = &mut to[..words * units.len()];
        if self.is_narrow() {
            let from = self.product.x.whole();
            // Copies of a known length take two instructions, not a call.
            match words {
                10 => return copy_units::<10>(from, units, to),
                11 => return copy_units::<11>(from, units, to),
                16 => return copy_units::<16>(from, units, to),
                32 => return copy_units::<32>(from, units, to),
                _ => {}
            }
        }
        for (to, unit) in to.chunks_exact_mut(words).zip(units) {
            to.copy_from_slice(self.unit_words(usize::from(*unit), tile));
        }
        to
    }

    /// Sets the sums of rows to NaN that have infinity or NaN in some columns of a unit that is left out.
    fn spoil(&self, columns: Range<usize>, sums: &mut [Sums]) {
        let x = self.product.x;
        let units = columns.start / self.each..columns.end.min(x.width) / self.each;
        for unit in units.filter(|unit| self.units.binary_search(&(*unit as u16)).is_err()) {
            for (first, count) in x.tiles() {
                let words = self.unit_words(unit, (first, count));
                for (column, sums) in sums[first..first + count].iter_mut().enumerate() {
                    let mut own = words.iter().skip(column).step_by(count).enumerate();
                    if own.any(|(row, word)| !x.kind.is_finite(row, *word)) {
                        sums.fill(f32::NAN);
                    }
                }
            }
        }
    }
}

/// Copies the units of `N` words each.
fn copy_units<'g, const N: usize>(from: &[u32], units: &[u16], to: &'g mut [u32]) -> &'g [u32] {
    let from = from.as_chunks::<N>().0;
    for (to, unit) in to.as_chunks_mut::<N>().0.iter_mut().zip(units) {
        *to = from[usize::from(*unit)];
    }
    to
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use girih_tensor::{DType, Random};

    use super::*;
    use crate::activations::{ActivationPrecision, PackedActivations, PrecisionRule, padded};
    use crate::kernels::packed::{BAND, Layout};
    use crate::kernels::tables;
    use crate::memory::{Aligned, BytesOwner, SharedBytes};
    use crate::ops::product::pack_rows;
    use crate::pack::pack_band;
    use crate::packed_matrix::PackedMatrix;
    use crate::packed_matrix::PackedShape;
    use crate::present::{BandPlaces, FilledWeight, PresentUnits, UnitGrid, Zeros};

    const BANDS: usize = 2;

    /// A byte of a block of zeros: codes of zero under a scale, negative zeros, or nothing but zero bits.
    fn zero_byte(dtype: DType, at: usize) -> u8 {
        match dtype {
            DType::Q4_0 | DType::Q8_0 if at < 2 => 0x2c,
            DType::Q4_0 => 0x88,
            DType::BF16 | DType::F16 => 0x80 * (at % 2) as u8,
            DType::F32 if at % 4 == 3 => 0x80,
            _ => 0,
        }
    }

    /// Random rows in a format; half of their units are zeros.
    fn rows(dtype: DType, columns: usize, unit: usize, random: &mut Random) -> Vec<u8> {
        let (tall, wide) = dtype.tile();
        let each = columns / wide * dtype.block_bytes();
        let count = BANDS * BAND / tall;
        let absent: Vec<bool> = (0..BANDS * columns / unit).map(|_| random.below(2) == 0).collect();
        let mut rows = vec![0; count * each];
        for (at, byte) in rows.iter_mut().enumerate() {
            let (band, column) = (at / each * tall / BAND, at % each / dtype.block_bytes() * wide);
            *byte = if absent[band * (columns / unit) + column / unit] {
                zero_byte(dtype, at % dtype.block_bytes())
            } else {
                // Exponents of any format stay small.
                random.below(256) as u8 & 0x3b
            };
        }
        rows
    }

    /// The matrix of these rows with all units, and with those only that are present.
    fn matrices(table: &Table, dtype: DType, columns: usize, rows: &[u8]) -> [PackedMatrix; 2] {
        let layout = Layout::of(dtype);
        let shape = PackedShape { experts: 1, rows: BANDS * BAND, columns, row_parts: 1 };
        let grid = UnitGrid::of(layout, [1, BANDS * BAND, columns], Zeros::Any).unwrap();
        let band_bytes = layout.band_bytes(columns).unwrap();
        let mut memory = Aligned::zeroed(BANDS * band_bytes, "a test").unwrap();
        let mut masks = vec![0; BANDS * grid.mask_words()];
        for ((band, rows), mask) in memory
            .chunks_exact_mut(band_bytes)
            .zip(rows.chunks_exact(rows.len() / BANDS))
            .zip(masks.chunks_exact_mut(grid.mask_words()))
        {
            pack_band(dtype, columns, rows, band);
            grid.scan(table, band, mask);
        }
        let present = PresentUnits::of_masks(grid, &masks).expect("some units are zeros");
        let mut compact = Aligned::zeroed(memory.len(), "a test").unwrap();
        compact.copy_from_slice(&memory);
        let end = present.compact(&mut compact, 0, 0);
        compact.truncate(end);
        let part = |memory: Aligned<u8>| {
            let range = 0..memory.len();
            SharedBytes::part(BytesOwner::Memory(Arc::new(memory)), range)
        };
        let all = FilledWeight { bytes: part(memory), places: BandPlaces::Equal(band_bytes) };
        let some = FilledWeight { bytes: part(compact), places: BandPlaces::Present(present) };
        [all, some].map(|filled| PackedMatrix::of_weight("w", layout, shape, &filled).pop().unwrap())
    }

    /// The sums of all bands with these rows of activations.
    fn sums(table: &Table, weight: &PackedMatrix, x: PackedActivations<'_>) -> Vec<u32> {
        let product = Product { x, weight };
        let mut scratch = SparseScratch::of([product].into_iter());
        let mut all = Vec::new();
        for band in 0..BANDS {
            let mut sums = vec![[0.0; BAND]; padded(x.columns())];
            if x.columns() <= NARROW {
                scratch.add(product, table, (band, 0..x.blocks()), &mut sums);
            } else {
                // In two parts, as if activations did not fit into a cache.
                let middle = x.blocks() / 2;
                scratch.add(product, table, (band, 0..middle), &mut sums);
                scratch.add(product, table, (band, middle..x.blocks()), &mut sums);
            }
            let number = |sum: f32| if sum.is_nan() { f32::NAN } else { sum };
            all.extend(sums[..x.columns()].as_flattened().iter().map(|sum| number(*sum).to_bits()));
        }
        all
    }

    /// Calls `check` for each table, format and precision, with both matrices and a number of columns.
    fn each_case(
        counts: &[usize],
        mut check: impl FnMut(&Table, ActivationKind, [&PackedMatrix; 2], usize, usize, &mut Random),
    ) {
        let mut random = Random(41);
        let packed = |dtype: &&DType| !matches!(Layout::of(**dtype), Layout::Stored(_));
        for (table, &dtype) in
            tables().iter().flat_map(|table| DType::ALL.iter().filter(packed).map(move |d| (table, d)))
        {
            let (columns, layout) = (1280, Layout::of(dtype));
            let rows = rows(dtype, columns, layout.unit().0.max(GROUP), &mut random);
            let [all, some] = &matrices(table, dtype, columns, &rows);
            for &precision in ActivationPrecision::ALL {
                let kind = ActivationKind::of(layout, PrecisionRule::Requested(precision).for_table(table));
                counts.iter().for_each(|&rows| check(table, kind, [all, some], columns, rows, &mut random));
            }
        }
    }

    fn packed(table: &Table, kind: ActivationKind, values: &[f32], width: usize) -> Vec<u32> {
        let rows = values.len() / width;
        let mut words = vec![0; kind.size(rows, width)];
        pack_rows(table, kind, rows, |row| &values[row * width..][..width], &mut words);
        words
    }

    /// The sums of a matrix without its zeros have the bits of those of the whole matrix.
    fn check_sums(
        table: &Table,
        kind: ActivationKind,
        [all, some]: [&PackedMatrix; 2],
        width: usize,
        values: &[f32],
    ) {
        let words = packed(table, kind, values, width);
        let x = PackedActivations { kind, rows: values.len() / width, width, words: &words };
        let (got, want) = (sums(table, some, x), sums(table, all, x));
        assert!(got == want, "{} {kind:?} {:?} x{}", table.name, some.layout, x.rows);
    }

    #[test]
    fn sums_have_the_bits_of_the_whole_matrix() {
        each_case(&[1, 2, 5, 9, 25], |table, kind, [all, some], width, rows, random| {
            let values: Vec<f32> =
                (0..rows * width).map(|_| random.below(2001) as f32 / 500.0 - 2.0).collect();
            check_sums(table, kind, [all, some], width, &values);
        });
    }

    #[test]
    fn activations_without_a_number_spoil_the_same_sums() {
        each_case(&[2, 9], |table, kind, [all, some], width, rows, random| {
            for odd in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
                let mut values = vec![0.5; rows * width];
                values[random.below(rows * width)] = odd;
                check_sums(table, kind, [all, some], width, &values);
            }
        });
    }

    #[test]
    fn rows_have_the_numbers_of_the_whole_matrix() {
        each_case(&[1], |table, _, [all, some], width, _, random| {
            let row = random.below(BANDS * BAND);
            let [want, got] = [all, some].map(|matrix| {
                let mut values = vec![7.0; width];
                matrix.row(row, table, &mut values);
                values
            });
            assert_eq!(got, want, "{} {:?}", table.name, some.layout);
        });
    }
}
