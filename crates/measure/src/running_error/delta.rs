//! The errors of a delta rule: how those of a row's operands and of the matrix before it go on.
//!
//! An error of the matrix `S` becomes `(I − β k kᵀ) diag(g) E`. If it lies evenly on all elements, its mean square is
//! multiplied by that of the decays `g`, times `(D − 1 + (1 − β kᵀk)²) / D` for `D` channels. To it is added the noise
//! of the row's own operands, as if all were independent.

use std::ops::Range;

use girih_graph::HeadSharing;

/// Roundings of an exponential and of its factor.
const DECAY_ROUNDINGS: f64 = 5.0;

/// The rows of an operand, with the mean squares of their relative errors and of their numbers.
#[derive(Clone, Copy)]
pub(super) struct NoisyRows<'a> {
    pub data: &'a [f32],
    pub errors: &'a [f64],
    pub sizes: &'a [f64],
    /// Numbers in a row.
    pub stride: usize,
}

/// A delta rule: its rates by head, and its queries, keys, values, betas and steps.
pub(super) struct NoisyRule<'a> {
    pub sharing: HeadSharing,
    pub a: &'a [f32],
    pub operands: Vec<NoisyRows<'a>>,
    pub channels: usize,
    pub columns: usize,
}

impl NoisyRule<'_> {
    /// For each row of a sequence, the sum of the squares of the errors of its results, and of the results.
    pub fn sums(&self, rows: Range<usize>, term: f64) -> Vec<(f64, f64)> {
        let heads = self.a.len();
        let groups = self.operands[0].stride / self.channels;
        let new = || NoisyMatrix::new(self.channels, self.columns);
        let mut matrices: Vec<NoisyMatrix> = (0..heads).map(|_| new()).collect();
        let of_row = |row: usize| {
            let part = |operand: usize, head: usize, heads: usize| {
                let NoisyRows { data, errors, sizes, stride } = self.operands[operand];
                let numbers = &data[row * stride + head * stride / heads..][..stride / heads];
                NoisyPart { numbers, even: errors[row] * sizes[row], relative: errors[row] }
            };
            let (mut noise, mut size) = (0.0, 0.0);
            for (head, matrix) in matrices.iter_mut().enumerate() {
                let of_key = |operand| part(operand, self.sharing.group(head, heads, groups), groups);
                let of_value = |operand| part(operand, head, heads);
                let (q, k, v) = (of_key(0), of_key(1), of_value(2));
                let (beta, dt, a) = (of_value(3), of_value(4), f64::from(self.a[head]));
                let sums = matrix.advance(&NoisyHeadRow { q, k, v, beta, dt, a }, term);
                (noise, size) = (noise + sums.0, size + sums.1);
            }
            (noise, size)
        };
        rows.map(of_row).collect()
    }
}

/// Numbers of a row with the mean square of their errors, if those lie evenly on all, and relative to each.
#[derive(Clone, Copy)]
struct NoisyPart<'a> {
    numbers: &'a [f32],
    even: f64,
    relative: f64,
}

impl NoisyPart<'_> {
    /// The number at an index, and the mean square of its error: the larger one.
    fn at(&self, index: usize) -> (f64, f64) {
        let number = f64::from(self.numbers[index]);
        (number, self.even.max(self.relative * number * number))
    }
}

/// What a row brings for one head.
struct NoisyHeadRow<'a> {
    q: NoisyPart<'a>,
    k: NoisyPart<'a>,
    v: NoisyPart<'a>,
    beta: NoisyPart<'a>,
    /// One number, or one for each channel.
    dt: NoisyPart<'a>,
    a: f64,
}

/// The matrix of one head, and the mean square of the errors of its elements.
struct NoisyMatrix {
    channels: usize,
    columns: usize,
    numbers: Vec<f64>,
    noise: f64,
}

impl NoisyMatrix {
    /// Zeros.
    fn new(channels: usize, columns: usize) -> NoisyMatrix {
        NoisyMatrix { channels, columns, numbers: vec![0.0; channels * columns], noise: 0.0 }
    }

    /// Moves on by a row, with rounding errors of the mean square `term`; returns the sum of the squares of the
    /// errors of its results, and of the results.
    fn advance(&mut self, row: &NoisyHeadRow<'_>, term: f64) -> (f64, f64) {
        let (channels, columns) = (self.channels, self.columns);
        let decays: Vec<(f64, f64)> = (0..channels)
            .map(|channel| {
                let (dt, noise) = row.dt.at(channel % row.dt.numbers.len());
                let exponent = dt * row.a;
                (exponent.exp(), row.a * row.a * noise + (exponent * exponent + DECAY_ROUNDINGS) * term)
            })
            .collect();
        let keys: Vec<(f64, f64)> = (0..channels).map(|channel| row.k.at(channel)).collect();
        let queries: Vec<(f64, f64)> = (0..channels).map(|channel| row.q.at(channel)).collect();
        let (beta, beta_noise) = row.beta.at(0);
        let squares = |numbers: &[(f64, f64)]| numbers.iter().map(|(x, _)| x * x).sum::<f64>();
        let terms = channels as f64 * term;
        let mut added = 0.0;
        for column in 0..columns {
            let column_of = |numbers: &[f64]| -> Vec<f64> {
                (0..channels).map(|channel| decays[channel].0 * numbers[channel * columns + column]).collect()
            };
            let element = column_of(&self.numbers);
            let (mut predicted, mut of_prediction) = (0.0, 0.0);
            for (channel, (k, k_noise)) in keys.iter().enumerate() {
                let held = element[channel];
                predicted += held * k;
                of_prediction += held * held * (k_noise + k * k * (decays[channel].1 + terms));
            }
            let (v, v_noise) = row.v.at(column);
            let change = beta * (v - predicted);
            let of_change = beta * beta * (v_noise + of_prediction)
                + beta_noise * (v - predicted).powi(2)
                + 2.0 * term * change * change;
            for (channel, (k, k_noise)) in keys.iter().enumerate() {
                let held = element[channel];
                let new = held + k * change;
                added += k * k * of_change
                    + k_noise * change * change
                    + held * held * (decays[channel].1 + term)
                    + (new * new + (k * change).powi(2)) * term;
                self.numbers[channel * columns + column] = new;
            }
        }
        let kept = ((channels - 1) as f64 + (1.0 - beta * squares(&keys)).powi(2)) / channels as f64;
        self.noise =
            self.noise * kept * squares(&decays) / channels as f64 + added / (channels * columns) as f64;
        let (mut noise, mut size) = (0.0, 0.0);
        for column in 0..columns {
            let mut result = 0.0;
            for (channel, (q, q_noise)) in queries.iter().enumerate() {
                let held = self.numbers[channel * columns + column];
                result += held * q;
                noise += held * held * (q_noise + q * q * terms);
            }
            noise += squares(&queries) * self.noise;
            size += result * result;
        }
        (noise, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(numbers: &[f32], even: f64) -> NoisyPart<'_> {
        NoisyPart { numbers, even, relative: 0.0 }
    }

    /// One channel: the matrix is a number, and its errors those of the formula.
    #[test]
    fn errors_decay_with_the_matrix_and_are_corrected() {
        let mut matrix = NoisyMatrix::new(1, 1);
        let row = |beta, v_noise| NoisyHeadRow {
            q: part(&[2.0], 0.0),
            k: part(&[1.0], 0.0),
            v: part(&[3.0], v_noise),
            beta: part(if beta { &[1.0] } else { &[0.0] }, 0.0),
            dt: part(&[1.0], 0.0),
            a: -0.5,
        };
        // The value is stored: its error doubles with the query.
        assert_eq!(matrix.advance(&row(true, 1e-4), 0.0), (4.0 * 1e-4, 36.0));
        // Nothing is corrected, and all decays by e^−0.5.
        let (noise, size) = matrix.advance(&row(false, 1.0), 0.0);
        let square = (-1f64).exp();
        assert!(
            (noise / (4.0 * 1e-4 * square) - 1.0).abs() < 1e-12
                && (size / (36.0 * square) - 1.0).abs() < 1e-12
        );
        // A whole correction forgets the error.
        assert_eq!(matrix.advance(&row(true, 0.0), 0.0), (0.0, 36.0));
        // Rounding alone makes some.
        assert!(matrix.advance(&row(true, 0.0), 1e-14).0 > 1e-14);
    }

    #[test]
    fn noise_of_the_other_operands_reaches_the_result() {
        let noise = |changed: usize| {
            let mut matrix = NoisyMatrix::new(2, 1);
            let own = |index: usize| if index == changed { 1e-4 } else { 0.0 };
            let mut noise = 0.0;
            for _ in 0..2 {
                let row = NoisyHeadRow {
                    q: part(&[1.0, 0.5], own(0)),
                    k: part(&[0.6, 0.8], own(1)),
                    v: part(&[1.0], own(2)),
                    beta: part(&[0.5], own(3)),
                    dt: part(&[0.3], own(4)),
                    a: -1.0,
                };
                noise = matrix.advance(&row, 0.0).0;
            }
            noise
        };
        assert!((0..5).all(|operand| noise(operand) > 1e-6));
        assert_eq!(noise(5), 0.0);
    }
}
