//! The errors of a scan: those of its rows, of its steps, and of its sums.
//!
//! A result is `Σ_s w_s x_s + d · x_t` with `w_s = L_s Δ_s (b_s · c_t)`, where `L_s` is the decay from row `s` to row
//! `t`: attention without softmax. Errors of different rows are independent. An error of the step `Δ_k` changes the
//! term of row `k` and, through the decay, all terms before it, so the result by
//! `(w_k / Δ_k · x_k + a · Σ_{s<k} w_s x_s)` times it. Errors of `b` and `c` lie evenly on their elements or are
//! relative to each; the larger noise counts.

use std::ops::Range;

use girih_graph::Act;

use super::attention::{HeadPart, Rows};
use crate::rounding::{EXPONENTIAL_ROUNDINGS, RoundingErrors, mean_square};

/// Rows whose exponents transformers adds up before it takes a difference: its usual chunk.
const CHUNK: usize = 256;

/// A scan: its limits of steps, its vectors `a`, `d` and `bias`, and its rows `x`, `dt`, `b` and `c`.
pub(super) struct FollowedScan<'a> {
    pub(super) one: RoundingErrors,
    pub(super) limits: (f32, Option<f32>),
    pub(super) vectors: [&'a [f32]; 3],
    pub(super) rows: [Rows<'a>; 4],
}

impl FollowedScan<'_> {
    /// The mean square of the errors of each row's result.
    pub(super) fn noise(&self, sequences: &[Range<usize>]) -> Vec<f64> {
        let [x, dt, b, c] = &self.rows;
        let (shared, elements) = ((x.heads / b.heads).max(1), (x.heads * x.width) as f64);
        let mut noise = vec![0.0; x.sizes.len()];
        for sequence in sequences {
            for head in 0..x.heads {
                let row = |row: usize| ScannedRow {
                    x: x.part(row, head),
                    dt: dt.part(row, head),
                    b: b.part(row, head / shared),
                    c: c.part(row, head / shared),
                };
                let [a, d, bias] = self.vectors.map(|vector| f64::from(vector[head]));
                let (least, most) = self.limits;
                let scanned = ScannedHead {
                    one: self.one,
                    least: f64::from(least),
                    most: most.map_or(f64::INFINITY, f64::from),
                    a,
                    d,
                    bias,
                    rows: sequence.clone().map(row).collect(),
                };
                let of_head = scanned.noise();
                let sums = noise[sequence.clone()].iter_mut();
                sums.zip(of_head).for_each(|(sum, noise)| *sum += noise / elements);
            }
        }
        noise
    }
}

/// One head of the rows of a sequence.
struct ScannedHead<'a> {
    one: RoundingErrors,
    least: f64,
    most: f64,
    a: f64,
    d: f64,
    bias: f64,
    rows: Vec<ScannedRow<'a>>,
}

/// One head of a row.
#[derive(Clone, Copy)]
struct ScannedRow<'a> {
    x: HeadPart<'a>,
    dt: HeadPart<'a>,
    b: HeadPart<'a>,
    c: HeadPart<'a>,
}

/// The step of a row, and the mean square of its error.
struct NoisyStep {
    size: f64,
    noise: f64,
}

fn squares(numbers: &[f32]) -> f64 {
    mean_square(numbers.iter().copied()) * numbers.len() as f64
}

fn product(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// The sum of the products of squares.
fn product_of_squares(a: &[f32], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a).powi(2) * b).sum()
}

impl ScannedHead<'_> {
    /// The noise of each row's result, added up over its elements.
    fn noise(&self) -> Vec<f64> {
        let steps: Vec<NoisyStep> = self.rows.iter().map(|row| self.step(row)).collect();
        let (size, columns) = match self.rows.first() {
            None => return Vec::new(),
            Some(row) => (row.x.numbers.len(), row.b.numbers.len()),
        };
        let mut state = vec![0.0; size * columns];
        let mut all = Vec::with_capacity(self.rows.len());
        for (index, (row, step)) in self.rows.iter().zip(&steps).enumerate() {
            let decay = (self.a * step.size).exp();
            for (state, x) in state.chunks_exact_mut(columns).zip(row.x.numbers) {
                let added = step.size * f64::from(*x);
                state
                    .iter_mut()
                    .zip(row.b.numbers)
                    .for_each(|(s, b)| *s = decay * *s + added * f64::from(*b));
            }
            let squares_of =
                |column: usize| state[column..].iter().step_by(columns).map(|s| s * s).sum::<f64>();
            let columns: Vec<f64> = (0..columns).map(squares_of).collect();
            let evenly = row.c.noise * columns.iter().sum::<f64>();
            let of_c = evenly.max(row.c.error * product_of_squares(row.c.numbers, &columns));
            all.push(of_c + self.of_earlier(index, &steps));
        }
        all
    }

    /// Softplus of `dt + bias`, which is stored before and after.
    fn step(&self, row: &ScannedRow<'_>) -> NoisyStep {
        let RoundingErrors { term, result, .. } = self.one;
        let sum = row.dt.numbers.iter().map(|dt| f64::from(*dt)).sum::<f64>() + self.bias;
        let size = Act::Softplus.of(sum).max(self.least).min(self.most);
        let of_sum = row.dt.noise + result * sum * sum;
        let own = (result + EXPONENTIAL_ROUNDINGS * term) * size * size;
        NoisyStep { size, noise: Act::Sigmoid.of(sum).powi(2) * of_sum + own }
    }

    /// The noise that the rows up to `last` bring into its result.
    fn of_earlier(&self, last: usize, steps: &[NoisyStep]) -> f64 {
        let (c, term) = (self.rows[last].c.numbers, self.one.term);
        let (of_c, count) = (squares(c), c.len() as f64);
        // The decay from each row to the last one, and the sum of exponents that transformers may have rounded.
        let mut decays = vec![1.0; last + 1];
        for row in (0..last).rev() {
            decays[row] = decays[row + 1] * (self.a * steps[row + 1].size).exp();
        }
        let chunk = &steps[last / CHUNK * CHUNK..=last];
        let exponents = self.a * chunk.iter().map(|step| step.size).sum::<f64>();
        let mut before = vec![0.0; self.rows[last].x.numbers.len()];
        let (mut noise, mut terms) = (0.0, 0.0);
        for (index, (row, step)) in self.rows[..=last].iter().zip(steps).enumerate() {
            let (decay, size) = (decays[index], row.x.numbers.len() as f64);
            let dot = decay * product(row.b.numbers, c);
            let direct = if index == last { self.d } else { 0.0 };
            noise += size * row.x.noise * (dot * step.size + direct).powi(2);
            let of_x = squares(row.x.numbers);
            let relative = row.b.error * product_of_squares(row.b.numbers, &squared(c));
            let factor = (decay * step.size).powi(2) * of_x;
            noise += factor * (row.b.noise * of_c).max(relative);
            terms += factor * squares(row.b.numbers) * of_c / count;
            let changes = row.x.numbers.iter().zip(&mut before).map(|(x, before)| {
                let change = dot * f64::from(*x) + self.a * *before;
                *before += dot * step.size * f64::from(*x);
                change * change
            });
            noise += step.noise * changes.sum::<f64>();
        }
        noise + term * terms * (count + last as f64 + 2.0 + exponents * exponents)
    }
}

fn squared(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|x| f64::from(*x).powi(2)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBERS: [f32; 4] = [0.5, -0.25, 1.0, 0.75];

    /// Two rows of a head of two values, with a state of two columns.
    fn head(errors: [f64; 4], term: f64) -> Vec<f64> {
        let part = |numbers: &'static [f32], error: f64| HeadPart {
            numbers,
            error,
            noise: error * mean_square(numbers.iter().copied()),
        };
        let row = |first: usize| ScannedRow {
            x: part(&NUMBERS[first..first + 2], errors[0]),
            dt: part(&NUMBERS[first..first + 1], errors[1]),
            b: part(&NUMBERS[1..3], errors[2]),
            c: part(&NUMBERS[2..4], errors[3]),
        };
        let one = RoundingErrors { term, result: 0.0, state: 0.0, largest: 7.0, change: 1.0 };
        let rows = vec![row(0), row(2)];
        ScannedHead { one, least: 0.0, most: f64::INFINITY, a: -0.5, d: 0.5, bias: 0.25, rows }.noise()
    }

    /// The results of the second row, with one number changed.
    fn results(operand: usize, row: usize, index: usize, change: f64) -> [f64; 2] {
        let mut state = [[0.0; 2]; 2];
        let mut y = [0.0; 2];
        for at in 0..2 {
            let number = |of: usize, first: usize, i: usize| {
                let changed = of == operand && at == row && i == index;
                f64::from(NUMBERS[first + i]) + if changed { change } else { 0.0 }
            };
            let step = Act::Softplus.of(number(1, 2 * at, 0) + 0.25);
            for (p, y) in y.iter_mut().enumerate() {
                *y = 0.5 * number(0, 2 * at, p);
                for (n, state) in state[p].iter_mut().enumerate() {
                    *state = (-0.5 * step).exp() * *state + step * number(0, 2 * at, p) * number(2, 1, n);
                    *y += *state * number(3, 2, n);
                }
            }
        }
        y
    }

    /// What small changes of one operand make of the result, one after the other.
    #[test]
    fn the_noise_is_that_of_small_changes() {
        let (error, change): (f64, f64) = (1e-4, 1e-6);
        for operand in 0..4 {
            let mut errors = [0.0; 4];
            errors[operand] = error;
            let found = head(errors, 0.0)[1];
            let exact = results(4, 0, 0, 0.0);
            let (mut even, mut relative) = (0.0, 0.0);
            for row in 0..2 {
                let firsts = [2 * row, 2 * row, 1, 2];
                let count = if operand == 1 { 1 } else { 2 };
                let numbers = &NUMBERS[firsts[operand]..][..count];
                let mean = mean_square(numbers.iter().copied());
                for (index, number) in numbers.iter().enumerate() {
                    let changed = results(operand, row, index, change);
                    let slopes = changed.iter().zip(exact).map(|(y, exact)| ((y - exact) / change).powi(2));
                    let slopes = slopes.sum::<f64>();
                    even += error * mean * slopes;
                    relative += error * f64::from(*number).powi(2) * slopes;
                }
            }
            // For `b` and `c` the larger one of each row counts; those of `x` and `dt` are even.
            let want = if operand < 2 { even } else { even.max(relative) };
            assert!(found >= want * 0.999 && found <= 1.5 * want, "operand {operand}: {found} {want}");
        }
        assert_eq!(head([0.0; 4], 0.0), [0.0; 2]);
        assert!(head([0.0; 4], 1e-14)[1] > head([0.0; 4], 1e-14)[0]);
    }
}
