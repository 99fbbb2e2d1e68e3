//! The work of rows of a prompt, and how much of it a step runs beside replies.

use girih_graph::backend::Range32;

/// The work of a row of a prompt, in a unit of the caller's, such as multiplications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowWork {
    /// That of a row at position 0.
    pub base: u64,
    /// What each earlier position adds: the attention to it.
    pub per_position: u64,
}

impl Default for RowWork {
    /// Every row is as much work as another one.
    fn default() -> RowWork {
        RowWork { base: 1, per_position: 0 }
    }
}

impl RowWork {
    /// The work of the rows of one sequence at these positions.
    pub fn of(self, positions: Range32) -> u64 {
        let Range32 { start, end } = positions;
        let count = u128::from(end.saturating_sub(start));
        // The sum of `count` numbers from `start` on.
        let earlier = count * (u128::from(start) + u128::from(end)).saturating_sub(1) / 2;
        let all = count * u128::from(self.base) + earlier.saturating_mul(u128::from(self.per_position));
        u64::try_from(all).unwrap_or(u64::MAX)
    }

    /// The largest number of rows from position `first` on, at most `rows`, whose work is at most `most`.
    pub fn rows_within(self, first: u32, rows: u32, most: u64) -> u32 {
        let (mut fit, mut exceed) = (0, rows.saturating_add(1));
        while exceed - fit > 1 {
            let middle = fit + (exceed - fit) / 2;
            let positions = Range32 { start: first, end: first.saturating_add(middle) };
            if self.of(positions) <= most {
                fit = middle;
            } else {
                exceed = middle;
            }
        }
        fit
    }
}

/// The prompts' share of a step that also runs replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptShare {
    /// The work of a row.
    pub row: RowWork,
    /// The most work of all rows of prompts.
    pub most: u64,
}

/// The minimum number of rows of the oldest prompt in a step, however much work they are. Reading all weights takes 25 ms and a row
/// 3.5 ms (Llama-3.2-1B in Q4_0 on two cores of Zen 4), so reading takes 18 % of a step of 32 rows, and half of one of 7.
pub const LEAST_PROMPT_ROWS: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_rows_is_the_sum_of_theirs() {
        let row = RowWork { base: 100, per_position: 3 };
        let slow = |start: u32, end: u32| (start..end).map(|at| 100 + 3 * u64::from(at)).sum::<u64>();
        for (start, end) in [(0, 0), (0, 1), (5, 5), (7, 40), (1000, 1512)] {
            assert_eq!(row.of(Range32 { start, end }), slow(start, end), "{start}..{end}");
        }
        let most = RowWork { base: u64::MAX, per_position: u64::MAX };
        assert_eq!(most.of(Range32 { start: 0, end: u32::MAX }), u64::MAX);
    }

    #[test]
    fn as_many_rows_as_possible_fit() {
        let row = RowWork { base: 10, per_position: 1 };
        for first in [0, 3, 100] {
            for most in 0..400 {
                let count = row.rows_within(first, 20, most);
                let work = |count| row.of(Range32 { start: first, end: first + count });
                assert!(work(count) <= most && (count == 20 || work(count + 1) > most), "{first} {most}");
            }
        }
    }
}
