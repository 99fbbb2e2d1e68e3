//! What a format allows a stored value to be, given the source's value.
//!
//! - A float is the source's value, rounded to nearest.
//! - A value of a block is the level of its own group that is nearest to the source's value. Scales are
//!   chosen by least squares, which may leave values outside the levels: by half the range of the
//!   group's values at most, or by all of it with an importance matrix. A group whose scale was
//!   rounded to zero may lose what its block's coarse scales do not resolve.
//! - Quantizers often read a file of 16-bit floats instead of the source, so a value may have been
//!   rounded to one before.

use std::ops::Range;

use girih_tensor::{DType, Levels};

use super::fit::may_be_fit;

/// The smallest normal number of bf16; older converters store smaller ones as zero.
const LEAST_NORMAL: f32 = f32::MIN_POSITIVE;

/// The part of a group's range that a fitted scale may leave outside its levels: without an importance
/// matrix, and with one, which may give a value next to no weight.
const CUT: f64 = 0.5;
const CUT_BY_IMPORTANCE: f64 = 1.0;

/// Half a unit of the last place of subnormal numbers in half precision.
const HALF_PRECISION: f64 = 1.0 / ((1u32 << 25) as f64);

/// Half a unit of the last of bf16's 8 bits.
const BF16: f64 = 1.0 / 512.0;

/// The rounding of a few operations in single precision, relative to the largest operand.
const SINGLE: f64 = 1.0 / ((1u32 << 20) as f64);

/// How the values of a weight may have been stored.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowed {
    /// The format in the file.
    pub dtype: DType,
    /// Whether the source has more bits than bf16, which an intermediate file may have.
    pub may_be_bf16_between: bool,
    /// The rounding of a transform of the weight, such as 1 + w, relative to its result.
    pub transform: f64,
    /// Whether the file was quantized with an importance matrix.
    pub has_importance: bool,
}

/// What was found in a row.
#[derive(Clone, Debug, Default)]
pub(super) struct RowTally {
    /// The number of values that are not allowed.
    pub faults: usize,
    /// The index of the first of them.
    pub first: Option<usize>,
    /// The values that share the scale of the first.
    pub group: Range<usize>,
    /// The sum of the squares of the errors.
    pub squared_error: f64,
    /// The sum of the squares of the source's values.
    pub squared: f64,
}

impl RowTally {
    fn fault(&mut self, index: usize, group: &Range<usize>) {
        self.faults += 1;
        if self.first.is_none() {
            (self.first, self.group) = (Some(index), group.clone());
        }
    }
}

impl Allowed {
    /// Compares a row of the file, its bytes and its values, with the source's values.
    pub(super) fn row(&self, bytes: &[u8], stored: &[f32], values: &[f32]) -> RowTally {
        let mut tally = RowTally::default();
        for (stored, value) in stored.iter().zip(values) {
            let (stored, value) = (f64::from(*stored), f64::from(*value));
            tally.squared_error += (stored - value) * (stored - value);
            tally.squared += value * value;
        }
        if self.dtype.tile() == (1, 1) {
            self.floats(stored, values, &mut tally);
            return tally;
        }
        let width = self.dtype.tile().1;
        let blocks = bytes.chunks_exact(self.dtype.block_bytes());
        for (block, bytes) in blocks.enumerate() {
            let mut at = block * width;
            self.dtype.levels(bytes, &mut |levels| {
                let group = at..at + levels.values;
                at = group.end;
                self.group(&levels, &group, (stored, values), &mut tally);
            });
        }
        tally
    }

    /// Compares floats, each with the source's value rounded to nearest.
    fn floats(&self, stored: &[f32], values: &[f32], tally: &mut RowTally) {
        let mut bytes = [0; size_of::<f64>()];
        let bytes = &mut bytes[..self.dtype.block_bytes()];
        for (index, (stored, value)) in stored.iter().zip(values).enumerate() {
            let mut rounded = [0.0];
            self.dtype.pack(&[*value], bytes);
            self.dtype.unpack(bytes, &mut rounded);
            let error = (f64::from(*stored) - f64::from(*value)).abs();
            let is_transformed = error <= self.transform * f64::from(*value).abs();
            let is_flushed = *stored == 0.0 && value.abs() < LEAST_NORMAL;
            let is_finite = stored.is_finite() && value.is_finite();
            if !is_finite || *stored != rounded[0] && !is_transformed && !is_flushed {
                tally.fault(index, &(index..index + 1));
            }
        }
    }

    /// Compares the values of a group that share a scale.
    fn group(
        &self,
        levels: &Levels,
        group: &Range<usize>,
        (stored, values): (&[f32], &[f32]),
        tally: &mut RowTally,
    ) {
        let (stored, values) = (&stored[group.clone()], &values[group.clone()]);
        let (low, high) = levels.ends();
        let slack = 2.0 * levels.rounding + HALF_PRECISION + SINGLE * low.abs().max(high.abs());
        let range = values.iter().fold(0.0f32, |range, value| range.max(*value))
            - values.iter().fold(0.0f32, |range, value| range.min(*value));
        let cut = if self.has_importance { CUT_BY_IMPORTANCE } else { CUT };
        let outside = levels.coarseness + if low == high { 0.0 } else { cut * f64::from(range) };
        let between = self.transform + if self.may_be_bf16_between { BF16 } else { 0.0 };
        let is_allowed = |stored: f32, value: f32| {
            let (stored, value) = (f64::from(stored), f64::from(value));
            let nearest = (levels.nearest(value) - value).abs();
            let beyond = (low - value).max(value - high).max(0.0);
            // NaN is not allowed.
            let slack = slack + (between + SINGLE) * value.abs();
            (stored - value).abs() <= nearest + slack && beyond <= outside + slack
        };
        let is_fault = |(stored, value): (&f32, &f32)| !is_allowed(*stored, *value);
        let faults = stored.iter().zip(values).map(is_fault).enumerate().filter(|(_, fault)| *fault);
        let faults: Vec<usize> = faults.map(|(index, _)| index).collect();
        if faults.is_empty() {
            return;
        }
        let is_finite = stored.iter().chain(values).all(|value| value.is_finite());
        let has_minimum = matches!(self.dtype, DType::Q4_1 | DType::Q5_1);
        if self.has_importance
            && levels.may_be_fitted
            && is_finite
            && may_be_fit(values, stored, has_minimum, slack)
        {
            return;
        }
        faults.iter().for_each(|index| tally.fault(group.start + index, group));
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;

    const EXACT: Allowed =
        Allowed { dtype: DType::F32, may_be_bf16_between: false, transform: 0.0, has_importance: false };

    fn faults(allowed: Allowed, bytes: &[u8], values: &[f32]) -> usize {
        let mut stored = vec![0.0; values.len()];
        allowed.dtype.unpack(bytes, &mut stored);
        allowed.row(bytes, &stored, values).faults
    }

    #[test]
    fn what_girih_writes_is_allowed_and_another_block_is_not() {
        let mut random = Random(5);
        for dtype in DType::ALL.iter().copied().filter(|dtype| dtype.writes() && dtype.tile().0 == 1) {
            if matches!(dtype, DType::I8 | DType::U8 | DType::I32 | DType::I64) {
                continue;
            }
            let (allowed, width) = (Allowed { dtype, ..EXACT }, dtype.tile().1.max(32));
            // Blocks of very different size, and one of zeros.
            let mut values = Vec::new();
            for size in [1.0, 1e-3, 1e-7, 0.0, 300.0] {
                values.extend(random.bells(width).iter().map(|value| value * size));
            }
            let bytes = dtype.pack_matrix(1, values.len(), &values).unwrap();
            assert_eq!(faults(allowed, &bytes, &values), 0, "{dtype}");
            let block = bytes.len() / 5;
            let mut moved = bytes.clone();
            moved.copy_within(..block, 4 * block);
            assert!(faults(allowed, &moved, &values) > 0, "{dtype}");
        }
    }

    #[test]
    fn a_scale_that_is_off_is_found() {
        let mut random = Random(6);
        for (dtype, at) in [(DType::Q4_0, 0), (DType::Q8_0, 0), (DType::Q4_K, 0), (DType::Q6_K, 208)] {
            let allowed = Allowed { dtype, ..EXACT };
            let values = random.bells(256);
            let mut bytes = dtype.pack_matrix(1, 256, &values).unwrap();
            // The exponent of the first block's scale: twice as much, then half.
            for change in [4u8, 252] {
                let mut wrong = bytes.clone();
                wrong[at + 1] = wrong[at + 1].wrapping_add(change);
                assert!(faults(allowed, &wrong, &values) > 0, "{dtype} by {change}");
            }
            bytes[at..at + 2].copy_from_slice(&[0, 0]);
            assert!(faults(allowed, &bytes, &values) > 0, "{dtype} with the scale 0");
            bytes[at..at + 2].copy_from_slice(&[0, 0x7e]);
            assert!(faults(allowed, &bytes, &values) > 0, "{dtype} with the scale NaN");
        }
    }
}
