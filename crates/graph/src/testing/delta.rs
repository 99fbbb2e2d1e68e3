//! Cases of the delta rule, and the bound of its recurrence.

use girih_tensor::Shape;

use super::case::Case;
use super::draft::{Begin, CaseDraft};
use super::roundoff::{Roundoff, TINY, U};
use crate::constant::HeadSharing;
use crate::ops::{Op, OpName};

/// An exponential below this may count as zero.
const LEAST_EXPONENTIAL: f64 = 1.0 / (1u128 << 125) as f64;

/// Roundings of an exponential.
const EXPONENTIAL_ROUNDINGS: f64 = 4.0;

/// One column of the matrix of a head, and the bound of its error.
struct Column {
    values: Vec<f64>,
    /// Of the Euclidean norm of the error.
    error: f64,
}

/// What a row brings for a column.
struct ColumnRow<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: f64,
    beta: f64,
    /// The exponents of the decays.
    exponents: &'a [f64],
}

/// The Euclidean norm.
fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

impl Column {
    /// Moves on by a row; returns the bound of the error of its result.
    ///
    /// An error `E` of the column becomes `(I − β k kᵀ) diag(g) E`, whose norm is that of `E` times the largest
    /// decay and `max(1, |1 − β kᵀk|)` at most: those are the eigenvalues of the first matrix. To it is added what the
    /// row rounds: a decay has the error of its exponent and [`EXPONENTIAL_ROUNDINGS`]; the prediction `Σ g S k` those of
    /// a sum of products; the change `u = β (v − prediction)` two, and that of the prediction; an element two
    /// products, a sum, and those of the decay and of `u`. The definition rounds each element once, too. A tenth
    /// more is for products of errors.
    fn advance(&mut self, row: &ColumnRow<'_>, round: Roundoff) -> f64 {
        let (size, unit) = (row.k.len(), round.unit);
        let wide = |x: &f32| f64::from(*x);
        let decays: Vec<f64> = row.exponents.iter().map(|x| x.exp()).collect();
        let decayed: Vec<f64> = decays.iter().zip(&self.values).map(|(g, s)| g * s).collect();
        // The error of each decayed element.
        let of_decay: Vec<f64> = (0..size)
            .map(|d| {
                let relative = unit * (row.exponents[d].abs() + EXPONENTIAL_ROUNDINGS);
                relative * decayed[d].abs() + LEAST_EXPONENTIAL * self.values[d].abs() + TINY
            })
            .collect();
        let products = || decayed.iter().zip(row.k).map(|(s, k)| s * wide(k));
        let (predicted, sizes) = (products().sum::<f64>(), products().map(f64::abs).sum::<f64>());
        let of_decays: f64 = of_decay.iter().zip(row.k).map(|(error, k)| error * wide(k).abs()).sum();
        let of_prediction = round.gamma(size + 1) * sizes + of_decays + size as f64 * TINY;
        let change = row.beta * (row.v - predicted);
        let of_change = row.beta.abs() * of_prediction + round.gamma(2) * change.abs() + TINY;
        let mut own = Vec::with_capacity(size);
        for d in 0..size {
            let k = wide(&row.k[d]);
            let (kept, added) = (decayed[d], k * change);
            self.values[d] = kept + added;
            let rounded = round.gamma(2) * (kept.abs() + added.abs()) + U * self.values[d].abs();
            own.push(of_decay[d] + k.abs() * of_change + rounded + TINY);
        }
        let length = norm(row.k.iter().map(wide)).powi(2);
        let reach = (1.0 - row.beta * length).abs().max(1.0) * decays.iter().copied().fold(0.0, f64::max);
        self.error = reach * self.error + 1.1 * norm(own.into_iter());
        let terms: f64 = self.values.iter().zip(row.q).map(|(s, q)| (s * wide(q)).abs()).sum();
        norm(row.q.iter().map(wide)) * self.error + 1.1 * round.gamma(size) * terms + size as f64 * TINY
    }
}

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    groups: usize,
    heads: usize,
    size: usize,
    width: usize,
    by_channel: bool,
    sharing: HeadSharing,
}

/// Heads that share keys, decays of each head or of each channel, and keys whose corrections do not overshoot by
/// much: beyond, states grow without bound.
pub(super) fn delta_rule(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::DeltaRule, seed, round, Begin::AtZero);
    let groups = 1 + draft.random.below(2);
    let sizes = Sizes {
        groups,
        heads: groups * (1 + draft.random.below(3)),
        size: draft.random.of(&[1, 3, 8, 16, 31, 64]),
        width: draft.random.of(&[1, 5, 16, 33, 64, 70]),
        by_channel: draft.in_turn(&[false, true]),
        sharing: draft.in_turn(&[HeadSharing::Neighbours, HeadSharing::Turns]),
    };
    let Sizes { groups, heads, size, width, by_channel, sharing } = sizes;
    // A key of random numbers below one has a third of its size as its square.
    let length = (3.0 / size as f32).sqrt();
    let ((q, queries), (k, keys)) =
        (draft.rows_within(length, "q", &[groups, size]), draft.rows_within(length, "k", &[groups, size]));
    let (v, values) = draft.rows_within(1.0, "v", &[heads, width]);
    let positive = |draft: &mut CaseDraft, name: &str, inner: &[usize], most: f32| {
        let count = draft.rows() * inner.iter().product::<usize>();
        let numbers = draft.random.numbers(count).into_iter().map(|x| most * x.abs()).collect();
        draft.input_rows(name, inner, numbers)
    };
    let (beta, betas) = positive(&mut draft, "beta", &[heads], 1.0);
    let channels = if by_channel { &[heads, size][..] } else { &[heads] };
    let most = draft.random.of(&[0.01, 0.3, 0.3, 4.0]);
    let (dt, steps) = positive(&mut draft, "dt", channels, most);
    let rates: Vec<f32> = draft.random.numbers(heads).into_iter().map(|x| -2.0 * x.abs() - 0.01).collect();
    let dtype = round.operands;
    let bytes = dtype.pack_matrix(1, heads, &rates).expect("a float is a whole block");
    let (a, rates) = draft.weight_of("a", Shape::vector(heads), dtype, bytes);
    let extents = [heads, size, width];
    let carried = draft.builder.carried("carried", Shape::new(&extents).expect("cases have small shapes"));

    let (mut bounds, mut first) = (Vec::new(), 0);
    for sequence in &draft.sequences {
        let zeros = || Column { values: vec![0.0; size], error: 0.0 };
        let mut columns: Vec<Column> = (0..heads * width).map(|_| zeros()).collect();
        for row in first..first + sequence.rows as usize {
            for (index, column) in columns.iter_mut().enumerate() {
                let head = index / width;
                let group = row * groups + sharing.group(head, heads, groups);
                let count = if by_channel { size } else { 1 };
                let steps = &steps[(row * heads + head) * count..][..count];
                let exponent = |d: usize| f64::from(steps[d % count]) * f64::from(rates[head]);
                let row = ColumnRow {
                    q: &queries[group * size..][..size],
                    k: &keys[group * size..][..size],
                    v: f64::from(values[row * heads * width + index]),
                    beta: f64::from(betas[row * heads + head]),
                    exponents: &(0..size).map(exponent).collect::<Vec<_>>(),
                };
                bounds.push(column.advance(&row, round));
            }
        }
        first += sequence.rows as usize;
    }
    let operands = [q, k, v, beta, dt, a, carried];
    let y = draft.builder.shaped("y", Op::DeltaRule { sharing }, &operands, &[heads, width]);
    draft.gathered(format!("{sizes:?}"), y, bounds)
}
