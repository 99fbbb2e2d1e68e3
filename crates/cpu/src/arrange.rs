//! Activations as the kernels for packed weights read them: side by side in
//! tiles of columns, rounded to what they are multiplied as.
//!
//! ```text
//! arranged = block 0 | block 1 | …     16 groups (integers), 256 rows of floats or 128 of pairs each
//! block    = tile 0 | tile 1 | …       up to 12 columns
//! tile     = row 0 | row 1 | …         a word of each column
//! ```
//! So what meets one panel of weights follows each other in memory. A row of the
//! step is a column, or two whose products are added ([`Precision::Int8x2`]). Up
//! to [`NARROW`] columns are one tile of just as many; more of them are tiles of
//! [`TILE`], the last of which may be narrower and have columns of zeros.

use girih_graph::Act;
use girih_tensor::DType;

use crate::kernels::Table;
use crate::kernels::packed::{BAND, Coding, DEPTH, FLOAT_DEPTH, GROUP, INTEGER_BIAS, Layout, NARROW, TILE};

/// What activations are rounded to before they are multiplied by weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Nothing: single precision.
    F32,
    /// The sum of two terms, the second of which is what [`Precision::Int8`]
    /// makes of what the first one left.
    Int8x2,
    /// Brain float.
    Bf16,
    /// Signed bytes under one scale for each 32 values of a row.
    Int8,
}

impl Precision {
    /// Every precision, the finest first.
    pub const ALL: &'static [Precision] =
        &[Precision::F32, Precision::Int8x2, Precision::Bf16, Precision::Int8];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Int8x2 => "int8x2",
            Precision::Bf16 => "bf16",
            Precision::Int8 => "int8",
        }
    }

    /// The format with the same rounding, or a coarser one: int8 has a scale for
    /// as many values as Q8_0. Two terms leave `1 / (124 · 248 √12)` of a group's
    /// largest value (root mean squares), at the most 6e-5 of the group's own;
    /// half precision leaves 2e-4.
    pub fn format(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Int8x2 => DType::F16,
            Precision::Bf16 => DType::BF16,
            Precision::Int8 => DType::Q8_0,
        }
    }
}

/// What activations are arranged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Integers(Coding),
    /// Two columns of integers for each row.
    IntegersTwice(Coding),
    Floats,
    /// Floats that are rounded to brain float.
    Bf16,
    /// Brain floats, those of two columns of weights in a word.
    Brains,
}

impl Kind {
    /// How activations meet weights of a layout when `precision` is asked for. By
    /// default quantized weights meet integers; weights that are floats meet floats
    /// also where integers are asked for, as no kernel multiplies the two.
    pub fn of(layout: Layout, precision: Option<Precision>) -> Kind {
        match (precision, layout.coding()) {
            (Some(Precision::Bf16), _) if layout == Layout::Bf16 => Kind::Brains,
            (Some(Precision::Bf16), _) => Kind::Bf16,
            (Some(Precision::Int8) | None, Some(coding)) => Kind::Integers(coding),
            (Some(Precision::Int8x2), Some(coding)) => Kind::IntegersTwice(coding),
            (Some(Precision::F32), _) | (_, None) => Kind::Floats,
        }
    }

    /// What activations are rounded to.
    pub fn precision(self) -> Precision {
        match self {
            Kind::Integers(_) => Precision::Int8,
            Kind::IntegersTwice(_) => Precision::Int8x2,
            Kind::Floats => Precision::F32,
            Kind::Bf16 | Kind::Brains => Precision::Bf16,
        }
    }

    /// The name of its precision.
    pub fn name(self) -> &'static str {
        self.precision().name()
    }

    /// How integers become numbers; nothing where floats are multiplied.
    pub fn coding(self) -> Option<Coding> {
        match self {
            Kind::Integers(coding) | Kind::IntegersTwice(coding) => Some(coding),
            Kind::Floats | Kind::Bf16 | Kind::Brains => None,
        }
    }

    /// Columns for each row of a step.
    pub fn terms(self) -> usize {
        if matches!(self, Kind::IntegersTwice(_)) { 2 } else { 1 }
    }

    /// Columns of weights that a block covers.
    pub fn depth(self) -> usize {
        if self.coding().is_some() { DEPTH * GROUP } else { FLOAT_DEPTH }
    }

    /// Words of a block for each column of activations.
    pub fn block_words(self) -> usize {
        match self {
            Kind::Integers(coding) | Kind::IntegersTwice(coding) => DEPTH * coding.words(),
            Kind::Floats | Kind::Bf16 => FLOAT_DEPTH,
            Kind::Brains => FLOAT_DEPTH / 2,
        }
    }

    /// Words for `values` values of one column, in the last block of a row.
    pub fn words(self, values: usize) -> usize {
        match self {
            Kind::Integers(coding) | Kind::IntegersTwice(coding) => values.div_ceil(GROUP) * coding.words(),
            // Layouts of two columns in a lane end with a whole lane.
            Kind::Floats | Kind::Bf16 => values.next_multiple_of(2),
            Kind::Brains => values.div_ceil(2),
        }
    }

    /// Words for `rows` rows of `width` values.
    pub fn size(self, rows: usize, width: usize) -> usize {
        padded(rows * self.terms()) * self.block_words() * width.div_ceil(self.depth())
    }
}

/// Columns that there is room for where so many are needed.
pub(crate) fn padded(columns: usize) -> usize {
    if columns <= NARROW { columns } else { columns.next_multiple_of(TILE / 3) }
}

/// Arranged activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arranged<'a> {
    pub kind: Kind,
    /// Rows of the step.
    pub rows: usize,
    /// Values in a row.
    pub width: usize,
    pub words: &'a [u32],
}

impl<'a> Arranged<'a> {
    /// Blocks of a row.
    pub fn blocks(&self) -> usize {
        self.width.div_ceil(self.kind.depth())
    }

    /// Columns without those of zeros.
    pub fn columns(&self) -> usize {
        self.rows * self.kind.terms()
    }

    /// Each tile's first column and its number of columns.
    pub fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let padded = padded(self.columns());
        (0..padded).step_by(TILE).map(move |first| (first, TILE.min(padded - first)))
    }

    /// The words of a tile in `blocks` blocks from `block` on.
    ///
    /// # Panics
    /// When there is more than one of each.
    pub fn part(&self, block: usize, (first, columns): (usize, usize)) -> &'a [u32] {
        let each = self.kind.block_words();
        let values = self.kind.depth().min(self.width - block * self.kind.depth());
        let start = (block * padded(self.columns()) + first) * each;
        &self.words[start..start + columns * self.kind.words(values)]
    }

    /// The words of the only tile, in all blocks.
    ///
    /// # Panics
    /// When there is more than one tile.
    pub fn whole(&self) -> &'a [u32] {
        let columns = self.columns();
        assert!(columns <= NARROW, "{columns} columns are more than a tile");
        let blocks = self.blocks() - 1;
        let rest = self.kind.words(self.width - blocks * self.kind.depth());
        &self.words[..columns * (blocks * self.kind.block_words() + rest)]
    }
}

/// Rows to be arranged: such as lie in memory, or what an operator makes of
/// those; then they are made row by row, while they are needed, and never
/// stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Rows(&'a [f32]),
    Norm { x: &'a [f32], weight: &'a [f32], epsilon: f32 },
    Gate { gate: &'a [f32], up: &'a [f32], act: Act },
}

impl Source<'_> {
    /// What is done besides arranging, for `profile`.
    pub fn name(&self) -> &'static str {
        match self {
            Source::Rows(_) => "",
            Source::Norm { .. } => "norm",
            Source::Gate { .. } => "gate",
        }
    }

    /// The numbers of all rows.
    pub fn len(&self) -> usize {
        match self {
            Source::Rows(x) | Source::Norm { x, .. } => x.len(),
            Source::Gate { gate, .. } => gate.len(),
        }
    }

    /// A row of `width` values, made in `scratch` if it is not there yet.
    pub fn row<'a>(&'a self, table: &Table, row: usize, width: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let range = row * width..(row + 1) * width;
        let made = match self {
            Source::Rows(x) => return &x[range],
            Source::Norm { .. } | Source::Gate { .. } => &mut scratch[..width],
        };
        match *self {
            Source::Rows(_) => unreachable!("returned above"),
            Source::Norm { x, weight, epsilon } => (table.norm)(&x[range], weight, epsilon, made),
            Source::Gate { gate, up, act } => (table.gate)(act, &gate[range.clone()], &up[range], made),
        }
        made
    }
}

/// Puts a block of a row into a tile of `columns`, from column `column` on.
pub(crate) fn arrange(
    table: &Table,
    kind: Kind,
    values: &[f32],
    (column, columns): (usize, usize),
    words: &mut [u32],
) {
    let words = &mut words[..columns * kind.words(values.len())];
    match kind {
        Kind::Integers(coding) => {
            let mut integers = Integers::ZERO;
            integers.round(table, values);
            integers.put(coding, values.len().div_ceil(GROUP), column, columns, words);
        }
        Kind::IntegersTwice(coding) => {
            let (mut integers, mut rest) = (Integers::ZERO, [0.0; DEPTH * GROUP]);
            let (groups, rest) = (values.len().div_ceil(GROUP), &mut rest[..values.len()]);
            integers.round(table, values);
            integers.put(coding, groups, column, columns, words);
            integers.rest(values, rest);
            integers.round(table, rest);
            integers.put(coding, groups, column + 1, columns, words);
        }
        Kind::Floats => floats(values, column, columns, words, |x| x.to_bits()),
        Kind::Bf16 => {
            floats(values, column, columns, words, |x| brain(x) << 16);
        }
        Kind::Brains => {
            let mut pairs = [0; FLOAT_DEPTH / 2];
            pair_up(values, &mut pairs);
            for (words, pair) in words.chunks_exact_mut(columns).zip(pairs) {
                words[column] = pair;
            }
        }
    }
}

fn floats(values: &[f32], column: usize, columns: usize, words: &mut [u32], bits: impl Fn(f32) -> u32) {
    let mut words = words.chunks_exact_mut(columns);
    for (words, x) in (&mut words).zip(values) {
        words[column] = bits(*x);
    }
    words.for_each(|words| words[column] = 0);
}

/// Two brain floats in each word, the first in its lower half; an odd last one
/// beside zero. Without branches, so that it becomes vectors.
fn pair_up(values: &[f32], words: &mut [u32; FLOAT_DEPTH / 2]) {
    let (pairs, last) = values.as_chunks::<2>();
    for (word, [lower, upper]) in words.iter_mut().zip(pairs) {
        *word = brain(*lower) | brain(*upper) << 16;
    }
    if let [last] = last {
        words[pairs.len()] = brain(*last);
    }
}

/// The bits of the brain float next to a number, to even where two are as near;
/// what is no number stays none.
fn brain(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

/// A block of one row, rounded to integers.
struct Integers {
    codes: [i8; DEPTH * GROUP],
    scales: [f32; DEPTH],
    sums: [i32; DEPTH],
}

impl Integers {
    const ZERO: Integers = Integers { codes: [0; DEPTH * GROUP], scales: [0.0; DEPTH], sums: [0; DEPTH] };

    /// Rounds groups, the last of which is filled up with zeros.
    fn round(&mut self, table: &Table, values: &[f32]) {
        let groups = values.len() / GROUP;
        let (whole, rest) = values.split_at(groups * GROUP);
        let (scales, last_scale) = self.scales.split_at_mut(groups);
        let (sums, last_sum) = self.sums.split_at_mut(groups);
        let (codes, last_codes) = self.codes.split_at_mut(whole.len());
        (table.quantize)(whole, codes, scales, sums);
        if !rest.is_empty() {
            let mut last = [0.0; GROUP];
            last[..rest.len()].copy_from_slice(rest);
            (table.quantize)(&last, &mut last_codes[..GROUP], &mut last_scale[..1], &mut last_sum[..1]);
        }
    }

    /// What rounding took from the values.
    fn rest(&self, values: &[f32], rest: &mut [f32]) {
        let groups = values.chunks(GROUP).zip(rest.chunks_mut(GROUP));
        let (codes, _) = self.codes.as_chunks::<GROUP>();
        for (((values, rest), codes), scale) in groups.zip(codes).zip(self.scales) {
            for ((rest, value), code) in rest.iter_mut().zip(values).zip(codes) {
                *rest = value - scale * f32::from(*code);
            }
        }
    }

    /// Puts the groups into a column among its neighbours.
    fn put(&self, coding: Coding, groups: usize, column: usize, columns: usize, words: &mut [u32]) {
        let (codes, _) = self.codes.as_chunks::<GROUP>();
        let groups = codes.iter().zip(&self.scales).zip(&self.sums).take(groups);
        for (((codes, scale), sum), words) in groups.zip(words.chunks_exact_mut(coding.words() * columns)) {
            let mut rows = words.chunks_exact_mut(columns);
            let mut set = |word: u32| {
                if let Some(row) = rows.next() {
                    row[column] = word;
                }
            };
            for bytes in codes.as_chunks::<4>().0 {
                set(u32::from_le_bytes(bytes.map(i8::cast_unsigned)));
            }
            let total = |sum: i32| {
                if coding.minimums {
                    (scale * sum as f32).to_bits()
                } else {
                    (INTEGER_BIAS - i32::from(coding.zero) * sum).cast_unsigned()
                }
            };
            if coding.halves {
                let first = codes[..GROUP / 2].iter().map(|&code| i32::from(code)).sum::<i32>();
                set(total(first));
                set(total(sum - first));
            } else {
                set(total(*sum));
            }
            set(scale.to_bits());
        }
    }
}

/// Bands that a matrix of so many rows has.
pub(crate) fn bands(rows: usize) -> usize {
    rows.div_ceil(BAND)
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Every upper half of a number, with lower halves at and beside ties.
    #[test]
    fn brain_floats_are_the_nearest() {
        let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in (0..=u16::MAX).flat_map(|upper| lower.map(|lower| u32::from(upper) << 16 | lower)) {
            let x = f32::from_bits(bits);
            let (got, want) = (brain(x), bf16::from_f32(x));
            assert!(got >> 16 == 0, "{bits:x}");
            if x.is_nan() {
                assert!(bf16::from_bits(got as u16).is_nan(), "{bits:x}");
            } else {
                assert_eq!(got as u16, want.to_bits(), "{bits:x}");
            }
        }
    }

    #[test]
    fn an_odd_value_is_paired_with_zero() {
        let mut words = [7; FLOAT_DEPTH / 2];
        pair_up(&[1.0, -2.0, 0.5], &mut words);
        assert_eq!(words[..2], [0xc000_3f80, 0x3f00]);
    }
}
