//! The levels of values that share a scale: all that a block with these scales and minimums can
//! hold. A tensor that was stored in a format is compared with its source by them.

/// The levels of consecutive values of a block that share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// The number of values.
    pub values: usize,
    grid: LevelGrid,
    /// The distance by which rounding scale and minimum to half precision moves a level at most,
    /// where integers are chosen before; 0 where they are chosen after. A value's own level and
    /// the nearest one may move, each by this distance.
    pub rounding: f64,
    /// The distance by which the coarse scales of a block of groups move a level at most.
    pub coarseness: f64,
    /// Whether llama.cpp fits scale and minimum to an importance matrix after it chose the integers
    /// (`quantize_row_q4_0_impl` and its like); else each value takes its nearest level.
    pub may_be_fitted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum LevelGrid {
    /// `least + step · i` for `i` from 0 to `last`.
    Steps { least: f64, step: f64, last: f64 },
    /// `scale` times each number of an ascending table.
    Table { scale: f64, table: &'static [f32] },
}

impl Levels {
    /// The levels `first + step · i` for `i` from 0 to `last`; the step may be negative.
    pub(super) fn steps(values: usize, first: f32, step: f32, last: u8) -> Levels {
        let (first, step, last) = (f64::from(first), f64::from(step), f64::from(last));
        let least = first.min(first + step * last);
        Levels::of(values, LevelGrid::Steps { least, step: step.abs(), last })
    }

    /// The levels `scale` times each number of a table in ascending order.
    pub(super) fn table(values: usize, scale: f32, table: &'static [f32]) -> Levels {
        Levels::of(values, LevelGrid::Table { scale: f64::from(scale), table })
    }

    fn of(values: usize, grid: LevelGrid) -> Levels {
        Levels { values, grid, rounding: 0.0, coarseness: 0.0, may_be_fitted: false }
    }

    /// Levels whose scale was rounded to half precision after integers of at most this size were
    /// chosen, and perhaps a minimum.
    pub(super) fn rounded(self, scale: f32, largest: f64, minimum: Option<f32>) -> Levels {
        let rounding = largest * half_unit(scale) + minimum.map_or(0.0, half_unit);
        Levels { rounding, coarseness: rounding, ..self }
    }

    /// Levels of integers up to `largest`, whose scale is one of `factors` times `unit`, and whose minimum is one
    /// of as many times `minimum_unit`: the largest integer, and one beyond it, are off by a unit, and units are
    /// half precision.
    pub(super) fn coarse(self, unit: f32, largest: f64, factors: f64, minimum_unit: Option<f32>) -> Levels {
        let off = |unit: f32| f64::from(unit).abs() + factors * half_unit(unit);
        Levels { coarseness: (largest + 1.0) * off(unit) + minimum_unit.map_or(0.0, off), ..self }
    }

    /// Levels that an importance matrix may have changed after the integers were chosen.
    pub(super) fn fitted(self) -> Levels {
        Levels { may_be_fitted: true, ..self }
    }

    /// The lowest and the highest level.
    pub fn ends(&self) -> (f64, f64) {
        match self.grid {
            LevelGrid::Steps { least, step, last } => (least, least + step * last),
            LevelGrid::Table { scale, table } => {
                let end = |value: Option<&f32>| scale * value.copied().map_or(0.0, f64::from);
                let (one, other) = (end(table.first()), end(table.last()));
                (one.min(other), one.max(other))
            }
        }
    }

    /// The level that is nearest to a value.
    pub fn nearest(&self, value: f64) -> f64 {
        match self.grid {
            LevelGrid::Steps { least, step: 0.0, .. } => least,
            LevelGrid::Steps { least, step, last } => {
                least + step * ((value - least) / step).round().clamp(0.0, last)
            }
            LevelGrid::Table { scale, table } => {
                let levels = table.iter().map(|number| scale * f64::from(*number));
                let nearer = |best: f64, level: f64| {
                    if (level - value).abs() < (best - value).abs() { level } else { best }
                };
                levels.reduce(nearer).unwrap_or(0.0)
            }
        }
    }
}

/// Half a unit of the last place of a number in half precision: 11 bits, or 2^-24 if it is subnormal.
fn half_unit(number: f32) -> f64 {
    (f64::from(number).abs() / 2048.0).max(1.0 / f64::from(1u32 << 25))
}
