//! Packs activations for the kernels: rounds them to the type of the matmul and lays them out in
//! tiles of columns.
//!
//! ```text
//! packed = block 0 | block 1 | …     16 groups (integers), 256 rows of floats or 128 of pairs each
//! block  = tile 0 | tile 1 | …       up to 12 columns
//! tile   = row 0 | row 1 | …         a word of each column
//! ```
//! So everything that is multiplied by one panel of weights is contiguous. A row of the step is a
//! column, or two whose results are added ([`ActivationPrecision::Int8x2`]). Up to [`NARROW`] columns are one
//! tile of that width. More columns are tiles of [`TILE`]; the last may be narrower and is padded
//! with columns of zeros.

use girih_graph::{GateRule, Graph, Node, Rounding, ValueId, multiplied_weights};
use girih_tensor::DType;

use crate::kernels::Table;
use crate::kernels::packed::{Coding, DEPTH, FLOAT_DEPTH, GROUP, INTEGER_BIAS, Layout, NARROW, TILE};
use crate::ops::{Gate, Norm};
use crate::rounded_floats::{RoundedFloat, bf16_bits, round_summed};

/// The precision to which activations are rounded before they are multiplied by weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationPrecision {
    /// Single precision: not rounded.
    F32,
    /// The sum of two [`ActivationPrecision::Int8`] terms; the second is the rounding error of the first.
    Int8x2,
    /// Half precision with a scale for each 32 values of a row. Weights in half precision are multiplied and, in groups of 32 columns,
    /// added up in half precision by tables that have a kernel for it; all others as `f32`.
    Fp16,
    /// bf16.
    Bf16,
    /// Signed bytes with one scale for each 32 values of a row.
    Int8,
    /// Eight-bit floats E4M3 with a scale for each 32 values of a row, multiplied as `f32`.
    Fp8E4M3,
    /// Eight-bit floats E5M2 with a scale for each 32 values of a row, multiplied as `f32`.
    Fp8E5M2,
}

impl ActivationPrecision {
    /// All precisions, the finest first.
    pub const ALL: &'static [ActivationPrecision] = &[
        ActivationPrecision::F32,
        ActivationPrecision::Int8x2,
        ActivationPrecision::Fp16,
        ActivationPrecision::Bf16,
        ActivationPrecision::Int8,
        ActivationPrecision::Fp8E4M3,
        ActivationPrecision::Fp8E5M2,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            ActivationPrecision::F32 => "f32",
            ActivationPrecision::Int8x2 => "int8x2",
            ActivationPrecision::Fp16 => "fp16",
            ActivationPrecision::Bf16 => "bf16",
            ActivationPrecision::Int8 => "int8",
            ActivationPrecision::Fp8E4M3 => "fp8-e4m3",
            ActivationPrecision::Fp8E5M2 => "fp8-e5m2",
        }
    }

    /// The format with the same rounding, or a coarser one. Int8 has the scales of Q8_0. Int8x2 leaves
    /// an error of `1 / (124 · 248 √12)` of a group's largest value (root mean square), at most 6e-5 of
    /// the group's root mean square; half precision leaves 2e-4. E4M3 and E5M2 leave `0.425 / 16` and `0.425 / 8` of each value
    /// (root mean square), 0.027 and 0.053; Q5_0 and Q4_0 leave 0.044 and 0.091 of a group's.
    pub fn format(self) -> DType {
        match self {
            ActivationPrecision::F32 => DType::F32,
            ActivationPrecision::Int8x2 | ActivationPrecision::Fp16 => DType::F16,
            ActivationPrecision::Bf16 => DType::BF16,
            ActivationPrecision::Int8 => DType::Q8_0,
            ActivationPrecision::Fp8E4M3 => DType::Q5_0,
            ActivationPrecision::Fp8E5M2 => DType::Q4_0,
        }
    }
}

/// Which precision activations are rounded to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrecisionRule {
    /// This one, for all weights that have a kernel for it.
    Requested(ActivationPrecision),
    /// int8 for quantized weights and f32 for float weights, on every processor.
    #[default]
    Fixed,
    /// As `Fixed`, except bf16 for BF16 weights: the default of a processor that multiplies bf16 faster.
    Bf16Products {
        /// The processor's name, for people.
        processor: &'static str,
    },
    /// fp16 is requested, and the table has a kernel for it ([`MatmulKernels::fp16`]).
    ///
    /// [`MatmulKernels::fp16`]: crate::kernels::packed::MatmulKernels::fp16
    Fp16Products,
}

impl PrecisionRule {
    /// The requested precision.
    pub(crate) fn requested(self) -> Option<ActivationPrecision> {
        match self {
            PrecisionRule::Requested(precision) => Some(precision),
            PrecisionRule::Fp16Products => Some(ActivationPrecision::Fp16),
            PrecisionRule::Fixed | PrecisionRule::Bf16Products { .. } => None,
        }
    }

    /// The rule for the kernels of `table`.
    pub(crate) fn for_table(self, table: &Table) -> PrecisionRule {
        match self {
            PrecisionRule::Requested(ActivationPrecision::Fp16) | PrecisionRule::Fp16Products => {
                match table.matmul.fp16 {
                    Some(_) => PrecisionRule::Fp16Products,
                    None => PrecisionRule::Requested(ActivationPrecision::Fp16),
                }
            }
            rule => rule,
        }
    }
}

/// The name of the numbers that [`ActivationKind::Fp16Groups`] multiplies, which marks a kernel for them.
pub(crate) const FP16_NAME: &str = "fp16-sums";

/// How activations are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationKind {
    Integers(Coding),
    /// Two columns of integers for each row.
    IntegersTwice(Coding),
    Floats,
    /// Floats that are rounded.
    Rounded(RoundedFloat),
    /// bf16 in pairs: a word holds those of two columns of weights.
    Bf16Pairs,
    /// Half precision under a scale for each group; a word holds a number twice.
    Fp16Groups,
}

impl ActivationKind {
    /// The kind for weights of a layout. Float weights are multiplied by floats even if integers are
    /// requested, as no kernel multiplies floats by integers.
    pub fn of(layout: Layout, rule: PrecisionRule) -> ActivationKind {
        let precision = match rule {
            PrecisionRule::Requested(precision) => precision,
            PrecisionRule::Fp16Products => ActivationPrecision::Fp16,
            PrecisionRule::Bf16Products { .. } if layout == Layout::Bf16 => ActivationPrecision::Bf16,
            PrecisionRule::Fixed | PrecisionRule::Bf16Products { .. } => ActivationPrecision::Int8,
        };
        match (precision, layout.coding()) {
            (ActivationPrecision::Bf16, _) if layout == Layout::Bf16 => ActivationKind::Bf16Pairs,
            (ActivationPrecision::Bf16, _) => ActivationKind::Rounded(RoundedFloat::Bf16),
            (ActivationPrecision::Fp16, _)
                if layout == Layout::F16 && rule == PrecisionRule::Fp16Products =>
            {
                ActivationKind::Fp16Groups
            }
            (ActivationPrecision::Fp16, _) => ActivationKind::Rounded(RoundedFloat::Fp16),
            (ActivationPrecision::Fp8E4M3, _) => ActivationKind::Rounded(RoundedFloat::E4M3),
            (ActivationPrecision::Fp8E5M2, _) => ActivationKind::Rounded(RoundedFloat::E5M2),
            (ActivationPrecision::Int8, Some(coding)) => ActivationKind::Integers(coding),
            (ActivationPrecision::Int8x2, Some(coding)) => ActivationKind::IntegersTwice(coding),
            (ActivationPrecision::F32, _) | (_, None) => ActivationKind::Floats,
        }
    }

    /// The kinds of all matmuls of `graph`.
    pub fn of_graph(graph: &Graph, rule: PrecisionRule) -> impl Iterator<Item = ActivationKind> + Clone {
        multiplied_weights(graph).map(move |weight| ActivationKind::of_weight(graph, weight, rule))
    }

    /// The kind for products with a weight of `graph`.
    pub fn of_weight(graph: &Graph, weight: ValueId, rule: PrecisionRule) -> ActivationKind {
        ActivationKind::of(Layout::of(graph.value(weight).dtype), rule)
    }

    /// The kind for a matmul of `graph`.
    pub fn of_node(graph: &Graph, node: &Node, rule: PrecisionRule) -> ActivationKind {
        ActivationKind::of_weight(graph, node.inputs[1], rule)
    }

    /// The precision to which activations are rounded.
    pub fn precision(self) -> ActivationPrecision {
        match self {
            ActivationKind::Integers(_) => ActivationPrecision::Int8,
            ActivationKind::IntegersTwice(_) => ActivationPrecision::Int8x2,
            ActivationKind::Floats => ActivationPrecision::F32,
            ActivationKind::Rounded(RoundedFloat::Bf16) | ActivationKind::Bf16Pairs => {
                ActivationPrecision::Bf16
            }
            ActivationKind::Rounded(RoundedFloat::Fp16) | ActivationKind::Fp16Groups => {
                ActivationPrecision::Fp16
            }
            ActivationKind::Rounded(RoundedFloat::E4M3) => ActivationPrecision::Fp8E4M3,
            ActivationKind::Rounded(RoundedFloat::E5M2) => ActivationPrecision::Fp8E5M2,
        }
    }

    /// Whether an instruction may multiply its numbers as they are, while those of other kinds of the same precision become `f32`.
    pub fn has_own_product(self) -> bool {
        matches!(self, ActivationKind::Bf16Pairs | ActivationKind::Fp16Groups)
    }

    /// The rounding, and the numbers that the kernels of `table` multiply.
    ///
    /// A sum of 32 products in half precision has `√(32/2)` roundings of its size (Higham & Mary 2019, as in the bound of
    /// `girih verify`), and activations have one: `√17` times `2⁻¹¹`, which is below the `2⁻⁸` of bf16.
    pub fn rounding(self, table: &Table) -> Rounding {
        let precision = self.precision();
        if self == ActivationKind::Fp16Groups {
            // The name says which bits the results have: other tables round activations alike, but add up in f32.
            return Rounding { name: FP16_NAME, format: DType::BF16, multiplied: FP16_NAME };
        }
        let multiplied = match self {
            ActivationKind::Bf16Pairs => table.matmul.bf16_name(),
            ActivationKind::Rounded(RoundedFloat::Fp16 | RoundedFloat::E4M3 | RoundedFloat::E5M2) => "f32",
            _ => precision.name(),
        };
        Rounding { name: precision.name(), format: precision.format(), multiplied }
    }

    /// The name of that precision.
    pub fn name(self) -> &'static str {
        self.precision().name()
    }

    /// The coding of the weights that integers are multiplied by; `None` for floats.
    pub fn coding(self) -> Option<Coding> {
        match self {
            ActivationKind::Integers(coding) | ActivationKind::IntegersTwice(coding) => Some(coding),
            ActivationKind::Floats
            | ActivationKind::Rounded(_)
            | ActivationKind::Bf16Pairs
            | ActivationKind::Fp16Groups => None,
        }
    }

    /// Words of a column for each group, if groups have scales; the last one is the scale.
    fn group_words(self) -> Option<usize> {
        match self {
            ActivationKind::Fp16Groups => Some(GROUP + 1),
            _ => self.coding().map(Coding::words),
        }
    }

    /// Columns for each row of a step.
    pub fn terms(self) -> usize {
        if matches!(self, ActivationKind::IntegersTwice(_)) { 2 } else { 1 }
    }

    /// Columns of weights that a block covers.
    pub fn depth(self) -> usize {
        if self.coding().is_some() { DEPTH * GROUP } else { FLOAT_DEPTH }
    }

    /// Words in a block for each column of activations.
    pub fn block_words(self) -> usize {
        match self {
            ActivationKind::Integers(coding) | ActivationKind::IntegersTwice(coding) => {
                DEPTH * coding.words()
            }
            ActivationKind::Floats | ActivationKind::Rounded(_) => FLOAT_DEPTH,
            ActivationKind::Bf16Pairs => FLOAT_DEPTH / 2,
            ActivationKind::Fp16Groups => FLOAT_DEPTH / GROUP * (GROUP + 1),
        }
    }

    /// Words for `values` values of one column, in the last block of a row.
    pub fn words(self, values: usize) -> usize {
        match self {
            ActivationKind::Integers(coding) | ActivationKind::IntegersTwice(coding) => {
                values.div_ceil(GROUP) * coding.words()
            }
            // A lane may hold two columns of weights; the last lane is whole.
            ActivationKind::Floats | ActivationKind::Rounded(_) => values.next_multiple_of(2),
            ActivationKind::Bf16Pairs => values.div_ceil(2),
            ActivationKind::Fp16Groups => values.div_ceil(GROUP) * (GROUP + 1),
        }
    }

    /// Whether the word of a row of words stands for a finite number, or for none. Of groups with scales only the scale, their last
    /// row, can be infinite or NaN: codes are then zeros.
    pub fn is_finite(self, row: usize, word: u32) -> bool {
        const EXPONENT: u32 = 0x7f80_0000;
        match (self.group_words(), self) {
            (Some(words), _) => row % words + 1 < words || word & EXPONENT != EXPONENT,
            (None, ActivationKind::Bf16Pairs) => {
                word & EXPONENT != EXPONENT && word << 16 & EXPONENT != EXPONENT
            }
            (None, _) => word & EXPONENT != EXPONENT,
        }
    }

    /// Words for `rows` rows of `width` values.
    pub fn size(self, rows: usize, width: usize) -> usize {
        padded(rows * self.terms()) * self.block_words() * width.div_ceil(self.depth())
    }
}

/// The number of allocated columns, padding included.
pub(crate) fn padded(columns: usize) -> usize {
    if columns <= NARROW { columns } else { columns.next_multiple_of(TILE / 3) }
}

/// Packed activations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedActivations<'a> {
    pub kind: ActivationKind,
    /// Rows of the step.
    pub rows: usize,
    /// Values in a row.
    pub width: usize,
    pub words: &'a [u32],
}

impl<'a> PackedActivations<'a> {
    /// Blocks in a row.
    pub fn blocks(&self) -> usize {
        self.width.div_ceil(self.kind.depth())
    }

    /// Whether no activation is infinite or NaN.
    pub fn is_finite(&self) -> bool {
        let is_finite = |(block, tile): (usize, (usize, usize))| {
            let words = self.part(block, tile).chunks_exact(tile.1);
            match self.kind.group_words() {
                Some(group) => {
                    let scale = group - 1;
                    let scales = words.skip(scale).step_by(group);
                    scales.flatten().all(|word| self.kind.is_finite(scale, *word))
                }
                None => words.flatten().fold(true, |all, word| all & self.kind.is_finite(0, *word)),
            }
        };
        let mut parts = (0..self.blocks()).flat_map(|block| self.tiles().map(move |tile| (block, tile)));
        parts.all(is_finite)
    }

    /// Columns without padding.
    pub fn columns(&self) -> usize {
        self.rows * self.kind.terms()
    }

    /// The first column and the number of columns of each tile.
    pub fn tiles(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let padded = padded(self.columns());
        (0..padded).step_by(TILE).map(move |first| (first, TILE.min(padded - first)))
    }

    /// The words of a tile (its first column and its number of columns) in block `block`.
    ///
    /// # Panics
    /// If the tile is not one of [`PackedActivations::tiles`].
    pub fn part(&self, block: usize, (first, columns): (usize, usize)) -> &'a [u32] {
        let each = self.kind.block_words();
        let values = self.kind.depth().min(self.width - block * self.kind.depth());
        let start = (block * padded(self.columns()) + first) * each;
        &self.words[start..start + columns * self.kind.words(values)]
    }

    /// The words of the only tile, in all blocks.
    ///
    /// # Panics
    /// If there is more than one tile.
    pub fn whole(&self) -> &'a [u32] {
        let columns = self.columns();
        assert!(columns <= NARROW, "{columns} columns are more than a tile");
        let blocks = self.blocks() - 1;
        let rest = self.kind.words(self.width - blocks * self.kind.depth());
        &self.words[..columns * (blocks * self.kind.block_words() + rest)]
    }
}

/// Rows to be packed: values in memory, or the operands of an operator whose rows are computed when
/// they are packed and never stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SourceRows<'a> {
    Rows(&'a [f32]),
    Norm { x: &'a [f32], weight: Option<&'a [f32]>, epsilon: f32 },
    Gate { gate: &'a [f32], up: &'a [f32], rule: GateRule },
}

impl SourceRows<'_> {
    /// The name of that operator, for `profile`; empty for values in memory.
    pub fn name(&self) -> &'static str {
        match self {
            SourceRows::Rows(_) => "",
            SourceRows::Norm { .. } => "norm",
            SourceRows::Gate { .. } => "gate",
        }
    }

    /// The number of values in all rows.
    pub fn len(&self) -> usize {
        match self {
            SourceRows::Rows(x) | SourceRows::Norm { x, .. } => x.len(),
            SourceRows::Gate { gate, .. } => gate.len(),
        }
    }

    /// Returns a row of `width` values; an operator's row is computed into `scratch`.
    pub fn row<'a>(&'a self, table: &Table, row: usize, width: usize, scratch: &'a mut [f32]) -> &'a [f32] {
        let range = row * width..(row + 1) * width;
        let made = match self {
            SourceRows::Rows(x) => return &x[range],
            SourceRows::Norm { .. } | SourceRows::Gate { .. } => &mut scratch[..width],
        };
        match *self {
            SourceRows::Rows(_) => unreachable!("returned above"),
            SourceRows::Norm { x, weight, epsilon } => {
                table.run(Norm { x: &x[range], weight, epsilon, y: made });
            }
            SourceRows::Gate { gate, up, rule } => {
                made.copy_from_slice(&up[range.clone()]);
                table.run(Gate { rule, gate: &gate[range], up: made });
            }
        }
        made
    }
}

/// Packs a block of a row into a tile of `columns` columns, from column `column` on.
pub(crate) fn pack_block(
    table: &Table,
    kind: ActivationKind,
    values: &[f32],
    (column, columns): (usize, usize),
    words: &mut [u32],
) {
    let words = &mut words[..columns * kind.words(values.len())];
    match kind {
        ActivationKind::Integers(coding) => {
            let mut integers = Integers::ZERO;
            integers.round(table, values);
            integers.put(coding, values.len().div_ceil(GROUP), column, columns, words);
        }
        ActivationKind::IntegersTwice(coding) => {
            let (mut integers, mut rest) = (Integers::ZERO, [0.0; DEPTH * GROUP]);
            let (groups, rest) = (values.len().div_ceil(GROUP), &mut rest[..values.len()]);
            integers.round(table, values);
            integers.put(coding, groups, column, columns, words);
            integers.rest(values, rest);
            integers.round(table, rest);
            integers.put(coding, groups, column + 1, columns, words);
        }
        ActivationKind::Floats => {
            for (words, x) in words.chunks_exact_mut(columns).zip(values) {
                words[column] = x.to_bits();
            }
            zeros_behind(values.len(), column, columns, words);
        }
        ActivationKind::Rounded(to) => {
            to.round(values, |index, bits| words[index * columns + column] = bits);
            zeros_behind(values.len(), column, columns, words);
        }
        ActivationKind::Bf16Pairs => {
            let mut pairs = [0; FLOAT_DEPTH / 2];
            pair_up(values, &mut pairs);
            for (words, pair) in words.chunks_exact_mut(columns).zip(pairs) {
                words[column] = pair;
            }
        }
        ActivationKind::Fp16Groups => {
            let groups = words.chunks_exact_mut((GROUP + 1) * columns);
            for (words, values) in groups.zip(values.chunks(GROUP)) {
                let mut column_words = words.iter_mut().skip(column).step_by(columns);
                let mut next =
                    |word: u32| *column_words.next().expect("a group has a row for each column") = word;
                let scale = round_summed(values, |bits| next(u32::from(bits) * 0x1_0001));
                (values.len()..GROUP).for_each(|_| next(0));
                next(scale.to_bits());
            }
        }
    }
}

/// Sets a column of a tile to zeros behind its first `values` words.
fn zeros_behind(values: usize, column: usize, columns: usize, words: &mut [u32]) {
    words.chunks_exact_mut(columns).skip(values).for_each(|words| words[column] = 0);
}

/// Packs two bf16 numbers into each word, the first in the lower half; an odd last one is paired
/// with zero. The loop has no branches, so that it is vectorized.
fn pair_up(values: &[f32], words: &mut [u32; FLOAT_DEPTH / 2]) {
    let (pairs, last) = values.as_chunks::<2>();
    for (word, [lower, upper]) in words.iter_mut().zip(pairs) {
        *word = bf16_bits(*lower) | bf16_bits(*upper) << 16;
    }
    if let [last] = last {
        words[pairs.len()] = bf16_bits(*last);
    }
}

/// A block of one row, rounded to integers.
struct Integers {
    codes: [i8; DEPTH * GROUP],
    scales: [f32; DEPTH],
    sums: [i32; DEPTH],
}

impl Integers {
    const ZERO: Integers = Integers { codes: [0; DEPTH * GROUP], scales: [0.0; DEPTH], sums: [0; DEPTH] };

    /// Rounds groups of values; the last group is padded with zeros.
    fn round(&mut self, table: &Table, values: &[f32]) {
        let groups = values.len() / GROUP;
        let (whole, rest) = values.split_at(groups * GROUP);
        let (scales, last_scale) = self.scales.split_at_mut(groups);
        let (sums, last_sum) = self.sums.split_at_mut(groups);
        let (codes, last_codes) = self.codes.split_at_mut(whole.len());
        (table.matmul.quantize)(whole, codes, scales, sums);
        if !rest.is_empty() {
            let mut last = [0.0; GROUP];
            last[..rest.len()].copy_from_slice(rest);
            (table.matmul.quantize)(
                &last,
                &mut last_codes[..GROUP],
                &mut last_scale[..1],
                &mut last_sum[..1],
            );
        }
    }

    /// Writes the rounding errors of the values to `rest`.
    fn rest(&self, values: &[f32], rest: &mut [f32]) {
        let groups = values.chunks(GROUP).zip(rest.chunks_mut(GROUP));
        let (codes, _) = self.codes.as_chunks::<GROUP>();
        for (((values, rest), codes), scale) in groups.zip(codes).zip(self.scales) {
            for ((rest, value), code) in rest.iter_mut().zip(values).zip(codes) {
                *rest = value - scale * f32::from(*code);
            }
        }
    }

    /// Writes the groups to one column of a tile.
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

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    /// Every upper half of a number, with lower halves at ties and beside them.
    #[test]
    fn bf16_numbers_are_the_nearest() {
        let lower = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
        for bits in (0..=u16::MAX).flat_map(|upper| lower.map(|lower| u32::from(upper) << 16 | lower)) {
            let x = f32::from_bits(bits);
            let (got, want) = (bf16_bits(x), bf16::from_f32(x));
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
