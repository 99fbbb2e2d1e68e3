//! The times of a model's steps by their number of rows: what a draft costs.

use std::time::Duration;

/// The time of a further row in a step, as a share of the time of a step with one row, where it was not measured.
/// Decode is limited by memory, so this is small: a step of 8 rows of a 1B model in Q4_0 takes 1.3 to 1.7 times as
/// long as a step of one row, which gives 0.05 to 0.1. The value is above these, so that drafts do not make a reply
/// slower.
const ROW_COST: f32 = 0.125;

/// The times of steps by number of rows, in steps of one row. They change the length of drafts, and so the speed
/// of a reply, never its tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct StepCosts {
    /// Numbers of rows, from 1 on, with times that do not fall.
    points: Vec<(u32, f32)>,
    /// The time of a step of one row, if it was measured.
    one_row: Option<Duration>,
    /// Whether a step after a rejected token runs the rows before that token again: those of a model that carries values.
    repeats: bool,
}

impl Default for StepCosts {
    /// A table that was not measured: each further row takes an eighth of a step of one row.
    fn default() -> StepCosts {
        StepCosts { points: vec![(1, 1.0), (2, 1.0 + ROW_COST)], one_row: None, repeats: false }
    }
}

impl StepCosts {
    /// The table of these times, each with a number of rows, in order. The first number is 1. A step of more rows
    /// counts as no faster than one of fewer rows. Of one time alone, further rows take what they take in the default.
    pub fn of(times: &[(u32, Duration)]) -> StepCosts {
        let Some((1, one_row)) = times.first().copied().filter(|(_, time)| !time.is_zero()) else {
            return StepCosts::default();
        };
        let mut points: Vec<(u32, f32)> = Vec::new();
        for (rows, time) in times {
            let before = points.last().map_or(1.0, |(_, cost)| *cost);
            points.push((*rows, before.max((time.as_secs_f64() / one_row.as_secs_f64()) as f32)));
        }
        if points.len() == 1 {
            points.push((2, 1.0 + ROW_COST));
        }
        StepCosts { points, one_row: Some(one_row), repeats: false }
    }

    /// The numbers of rows and the times of their steps, in steps of one row.
    pub fn points(&self) -> &[(u32, f32)] {
        &self.points
    }

    /// The time of a step of one row, if it was measured.
    pub fn one_row(&self) -> Option<Duration> {
        self.one_row
    }

    /// The same table, for a model that runs the accepted rows again after a rejected token if `repeats` is set.
    pub(crate) fn repeating(self, repeats: bool) -> StepCosts {
        StepCosts { repeats, ..self }
    }

    /// Whether a step after a rejected token runs rows again.
    pub(crate) fn repeats(&self) -> bool {
        self.repeats
    }

    /// The time that the next step takes longer, in steps of one row, if a draft was rejected after `accepted` tokens in
    /// a step beside `others` rows.
    pub(crate) fn of_rejection(&self, others: u32, accepted: u32) -> f32 {
        let first = others.saturating_add(1);
        let again = self.of_rows(first.saturating_add(accepted).saturating_add(1)) - self.of_rows(first);
        if self.repeats { again } else { 0.0 }
    }

    /// The time of a step of this number of rows, at least 1: on the line between the two measured ones around it, or
    /// on the line through the last two.
    pub fn of_rows(&self, rows: u32) -> f32 {
        let above = self.points.partition_point(|(have, _)| *have < rows).clamp(1, self.points.len() - 1);
        let [(from, low), (to, high)] = [self.points[above - 1], self.points[above]];
        low + (high - low) * (rows as f32 - from as f32) / (to - from) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_lie_on_lines_between_measured_steps() {
        let ms = Duration::from_millis;
        let costs = StepCosts::of(&[(1, ms(10)), (2, ms(12)), (4, ms(11)), (8, ms(20))]);
        assert_eq!(costs.points(), [(1, 1.0), (2, 1.2), (4, 1.2), (8, 2.0)]);
        let at = |rows| (costs.of_rows(rows) * 100.0).round();
        assert_eq!([1, 2, 3, 6, 8, 12].map(at), [100.0, 120.0, 120.0, 160.0, 200.0, 280.0]);
        assert_eq!(costs.one_row(), Some(ms(10)));
    }

    #[test]
    fn a_table_without_a_slope_has_that_of_the_default() {
        let only = StepCosts::of(&[(1, Duration::from_millis(7))]);
        let usual = StepCosts::default();
        assert_eq!([1, 2, 9].map(|rows| only.of_rows(rows)), [1, 2, 9].map(|rows| usual.of_rows(rows)));
        assert_eq!(StepCosts::of(&[(1, Duration::ZERO)]), usual);
        assert_eq!(StepCosts::of(&[]), usual);
        assert_eq!(usual.of_rows(9), 2.0);
    }
}
