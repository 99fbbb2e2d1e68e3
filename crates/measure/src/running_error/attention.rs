//! The errors of attention: those of scores, of weights by softmax, and of the sums of values.

use super::position_choice::PositionChoice;
use crate::rounding::{CAP_STORES, EXPONENTIAL_ROUNDINGS, RoundingErrors, mean_square};

/// Stores of a score: the sum, and its product with the scale. The mask adds 0.
const SCORE_STORES: f64 = 2.0;

/// The rows of an operand of attention.
pub(super) struct Rows<'a> {
    pub(super) data: &'a [f32],
    pub(super) heads: usize,
    pub(super) width: usize,
    /// The relative errors of rows, as mean squares.
    pub(super) errors: &'a [f64],
    /// The mean squares of rows.
    pub(super) sizes: &'a [f64],
}

impl<'a> Rows<'a> {
    /// One head of a row.
    pub(super) fn part(&self, row: usize, head: usize) -> HeadPart<'a> {
        let numbers = &self.data[(row * self.heads + head) * self.width..][..self.width];
        let size = self.sizes[row].max(mean_square(numbers.iter().copied()));
        HeadPart { numbers, error: self.errors[row], noise: self.errors[row] * size }
    }
}

/// One head of a row.
#[derive(Clone, Copy)]
pub(super) struct HeadPart<'a> {
    pub(super) numbers: &'a [f32],
    /// The relative error, as mean square.
    pub(super) error: f64,
    /// The mean square of the error, if it lies evenly on the row's elements.
    pub(super) noise: f64,
}

impl<'a> HeadPart<'a> {
    /// The first numbers, with the errors of all.
    pub(super) fn first(self, count: usize) -> HeadPart<'a> {
        HeadPart { numbers: &self.numbers[..count.min(self.numbers.len())], ..self }
    }
}

impl HeadPart<'_> {
    /// The distances from `mean` of `factor` times the numbers.
    fn distances(&self, factor: f64, mean: &[f64]) -> impl ExactSizeIterator<Item = f64> {
        self.numbers.iter().zip(mean).map(move |(x, mean)| factor * f64::from(*x) - mean)
    }
}

/// The derivative of a head's result by its query: a row for each element of the result.
struct QueryMatrix {
    columns: usize,
    elements: Vec<f64>,
}

impl QueryMatrix {
    fn zero(rows: usize, columns: usize) -> QueryMatrix {
        QueryMatrix { columns, elements: vec![0.0; rows * columns] }
    }

    /// Adds `factor` times the outer product of `left` and `right`.
    fn add(&mut self, factor: f64, left: impl Iterator<Item = f64>, right: impl Iterator<Item = f64>) {
        let right: Vec<f64> = right.map(|x| factor * x).collect();
        for (row, x) in self.elements.chunks_mut(self.columns.max(1)).zip(left) {
            row.iter_mut().zip(&right).for_each(|(sum, y)| *sum += x * y);
        }
    }

    /// The sum of the squares of a row, as the mean over the rows.
    fn mean_square_of_rows(&self) -> f64 {
        mean_square(self.elements.iter().copied()) * self.columns as f64
    }
}

/// A head of a row of attention.
pub(super) struct AttendingHead<'a> {
    pub(super) one: RoundingErrors,
    pub(super) scale: f64,
    pub(super) cap: Option<f64>,
    /// One more score, without a value.
    pub(super) sink: Option<f64>,
    pub(super) q: HeadPart<'a>,
    /// The keys and values that the row reads, or perhaps reads.
    pub(super) read: Vec<(HeadPart<'a>, HeadPart<'a>)>,
    /// Which of both, for each.
    pub(super) choices: Vec<PositionChoice>,
}

impl AttendingHead<'_> {
    /// The mean squares of the result's error and of the result.
    pub(super) fn noise_and_size(&self) -> (f64, f64) {
        let RoundingErrors { term, result, .. } = self.one;
        let scores: Vec<KeyScore> = self.read.iter().map(|(key, _)| self.score(key)).collect();
        let sink = self.sink.unwrap_or(f64::NEG_INFINITY);
        let largest = scores.iter().fold(sink, |largest, score| largest.max(score.value));
        let all: Vec<f64> = scores.iter().map(|score| (score.value - largest).exp()).collect();
        // Those that it does not read have no weight.
        let is_read = |choice: &PositionChoice| *choice != PositionChoice::PerhapsRead;
        let weights = all.iter().zip(&self.choices);
        let weights: Vec<f64> =
            weights.map(|(weight, choice)| if is_read(choice) { *weight } else { 0.0 }).collect();
        let sum: f64 = weights.iter().sum::<f64>() + (sink - largest).exp();
        // Errors of the query act through the cap's slope.
        let keys = self.read.iter().zip(&scores).map(|((key, _), score)| (key.numbers, score.slope));
        let values = self.read.iter().map(|(_, value)| value.numbers);
        let mean_key = weighted(keys.zip(&weights).map(|((key, slope), weight)| (key, slope * weight / sum)));
        let mean_value = weighted(values.zip(&weights).map(|(value, weight)| (value, weight / sum)));
        let mut of_q = QueryMatrix::zero(mean_value.len(), mean_key.len());
        let (mut noise, mut parts) = (0.0, 0.0);
        for (((key, value), score), weight) in self.read.iter().zip(&scores).zip(&weights) {
            let p = weight / sum;
            let spread = mean_square(value.distances(1.0, &mean_value));
            noise += p.powi(2) * (score.noise * spread + value.noise);
            of_q.add(p, value.distances(1.0, &mean_value), key.distances(score.slope, &mean_key));
            parts += p.powi(2) * mean_square(value.numbers.iter().copied());
        }
        noise += self.noise_of_choices(&all, (sink - largest).exp(), &mean_value);
        // The sink counts as a key of zeros whose value is zeros: its distances from the means are those means, negated.
        of_q.add((sink - largest).exp() / sum, mean_value.iter().copied(), mean_key.iter().copied());
        let size = mean_square(mean_value.iter().copied());
        let count = weights.len() as f64;
        // The softmax and its store; the sums of its divisor and of the result; the result's store.
        let own =
            (result + EXPONENTIAL_ROUNDINGS * term) * parts + count * term * (size + parts) + result * size;
        (noise + self.scale.powi(2) * self.q.noise * of_q.mean_square_of_rows() + own, size)
    }

    /// The noise of another choice of positions, of which all have these weights, and the sink one more: a result is a mean
    /// of values, so what may change of its weights may move it to the farthest value that may be read, once for what is
    /// missing and once for what is there instead.
    fn noise_of_choices(&self, weights: &[f64], sink: f64, mean_value: &[f64]) -> f64 {
        let (mut changed, mut farthest) = (0.0, 0.0f64);
        for (((_, value), choice), weight) in self.read.iter().zip(&self.choices).zip(weights) {
            if choice.is_uncertain() {
                changed += weight;
                farthest = farthest.max(mean_square(value.distances(1.0, mean_value)));
            }
        }
        let all = weights.iter().sum::<f64>() + sink;
        2.0 * self.one.change * (changed / all).powi(2) * farthest
    }

    /// The score of a key, without the error of the query.
    fn score(&self, key: &HeadPart) -> KeyScore {
        let RoundingErrors { term, result, .. } = self.one;
        let products = self.q.numbers.iter().zip(key.numbers).map(|(q, k)| f64::from(*q) * f64::from(*k));
        let (sum, squares) = products.fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        let width = key.numbers.len() as f64;
        let q_squares = mean_square(self.q.numbers.iter().copied()) * width;
        let of_key = (q_squares * key.noise).max(squares * key.error);
        let value = self.scale * sum;
        let own = width * term * squares.max(sum.powi(2));
        let noise = self.scale.powi(2) * (of_key + own) + SCORE_STORES * result * value.powi(2);
        let Some(cap) = self.cap else { return KeyScore { value, slope: 1.0, noise } };
        let capped = cap * (value / cap).tanh();
        let slope = 1.0 - (capped / cap).powi(2);
        // The quotient's store counts as if it came after tanh, which has more of it.
        let stores = CAP_STORES * result + EXPONENTIAL_ROUNDINGS * term;
        KeyScore { value: capped, slope, noise: slope.powi(2) * noise + stores * capped.powi(2) }
    }
}

/// The score of a key.
struct KeyScore {
    value: f64,
    /// The cap's derivative.
    slope: f64,
    /// The mean square of the absolute error, without that of the query.
    noise: f64,
}

/// A sum of rows, each times its weight.
fn weighted<'a>(rows: impl Iterator<Item = (&'a [f32], f64)>) -> Vec<f64> {
    let mut sum = Vec::new();
    for (row, weight) in rows {
        sum.resize(row.len(), 0.0);
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight * f64::from(*x));
    }
    sum
}
