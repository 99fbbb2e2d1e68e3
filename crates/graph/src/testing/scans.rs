//! Cases of scans, whose errors decay with the state.

use girih_tensor::{DType, Shape};

use super::case::Case;
use super::draft::{Begin, CaseDraft, Numbers};
use super::roundoff::{Roundoff, TINY};
use crate::constant::Act;
use crate::ops::ssm_scan::{ScanRow, ScanRule, define};
use crate::ops::{Op, OpName};

/// The errors of one head in one sequence.
struct HeadErrors {
    /// The largest error of each number of the state.
    state: Vec<f64>,
}

/// What one row does to one head.
struct HeadRow<'a> {
    x: &'a [f32],
    b: &'a [f32],
    c: &'a [f32],
    /// `dt + bias`.
    sum: f64,
    /// The step, and how it makes the state decay.
    step: f64,
    a: f64,
    d: f64,
    /// The state before and after the row, by the definition.
    before: &'a [f32],
    after: &'a [f32],
}

impl HeadErrors {
    /// Takes one row in, and returns the bounds of its results.
    ///
    /// The sum `dt + bias` has one rounding, which softplus multiplies by its slope; softplus itself has 11
    /// (`gate_bound` of elements). The exponent has the error of the step and a rounding, and the exponential
    /// three. The product `Δ · x` has a rounding. A number of the state then has the old one's error times the decay,
    /// that of the decay times the old number, that of `Δ · x` times `b`, and four roundings: two products, the sum,
    /// and that of the definition. A result is a sum of N + 1 products in any order, beside the errors of the state
    /// times `c`.
    fn row(&mut self, row: &HeadRow<'_>, round: Roundoff) -> Vec<f64> {
        let (unit, columns) = (round.unit, row.b.len());
        // An exponential this small may be zero.
        let flushed = 2f64.powi(-121);
        let of_sum = unit * row.sum.abs();
        let slope = Act::Sigmoid.of(row.sum + of_sum);
        let of_step = row.step * round.gamma(11) + slope * of_sum + flushed;
        let exponent = row.step * row.a;
        let of_exponent = row.a.abs() * of_step + unit * exponent.abs();
        let decay = exponent.exp();
        let of_decay = decay * (1.01 * of_exponent.exp_m1() + round.gamma(3)) + flushed;
        let states = row.before.chunks_exact(columns).zip(row.after.chunks_exact(columns));
        let errors = self.state.chunks_exact_mut(columns);
        let bounds = states.zip(errors).zip(row.x).map(|(((before, after), errors), x)| {
            let x = f64::from(x.abs());
            let of_product = 1.01 * x * of_step + unit * row.step * x;
            let (mut carried, mut terms) = (0.0, row.d.abs() * x);
            for (index, error) in errors.iter_mut().enumerate() {
                let number = |values: &[f32]| f64::from(values[index].abs());
                let (b, c) = (number(row.b), number(row.c));
                let old = number(before) + *error;
                *error = decay * *error
                    + of_decay * old
                    + b * of_product
                    + round.gamma(4) * (decay * old + row.step * x * b)
                    + TINY;
                carried += c * *error;
                terms += c * (number(after) + *error);
            }
            carried + round.gamma(columns + 4) * terms + TINY
        });
        bounds.collect()
    }
}

/// The operands of a scan, and its sizes.
struct Scan<'a> {
    rule: ScanRule<'a>,
    size: usize,
    /// The rows of `x`, `dt`, `b` and `c`.
    rows: [&'a [f32]; 4],
}

impl Scan<'_> {
    /// The bounds of the results of a sequence with these rows.
    fn bounds(&self, rows: std::ops::Range<usize>, round: Roundoff) -> Vec<f64> {
        let ScanRule { a, d, bias, groups, columns, .. } = self.rule;
        let (heads, of_head) = (a.len(), self.size * columns);
        let mut state = vec![0.0; heads * of_head];
        let mut errors: Vec<HeadErrors> = Vec::new();
        errors.resize_with(heads, || HeadErrors { state: vec![0.0; of_head] });
        let mut bounds = Vec::new();
        for row in rows {
            let [x, dt, b, c] = self.rows;
            let of = |values, width| row_of(values, row, width);
            let (x, dt) = (of(x, heads * self.size), of(dt, heads));
            let (b, c) = (of(b, groups * columns), of(c, groups * columns));
            let before = state.clone();
            define(self.rule, ScanRow { x, dt, b, c }, &mut state);
            for head in 0..heads {
                let group = head / (heads / groups) * columns;
                let held = head * of_head..(head + 1) * of_head;
                let row = HeadRow {
                    x: &x[head * self.size..][..self.size],
                    b: &b[group..][..columns],
                    c: &c[group..][..columns],
                    sum: f64::from(dt[head]) + f64::from(bias[head]),
                    step: self.rule.step(head, dt[head]),
                    a: f64::from(a[head]),
                    d: f64::from(d[head]),
                    before: &before[held.clone()],
                    after: &state[held],
                };
                bounds.extend(errors[head].row(&row, round));
            }
        }
        bounds
    }
}

fn row_of(values: &[f32], row: usize, width: usize) -> &[f32] {
    &values[row * width..][..width]
}

impl CaseDraft {
    /// A vector of numbers between these.
    fn numbers_between(&mut self, name: &str, count: usize, least: f32, most: f32) -> Numbers {
        let between = |x: f32| least + (x + 1.0) / 2.0 * (most - least);
        let numbers: Vec<f32> = self.random.numbers(count).into_iter().map(between).collect();
        let mut bytes = vec![0; 4 * count];
        DType::F32.pack(&numbers, &mut bytes);
        self.weight_of(name, Shape::vector(count), DType::F32, bytes)
    }
}

/// A scan of heads that share groups, with limits of the step or without. Heads forget at once, or hardly anything.
pub(super) fn ssm_scan(seed: u64, round: Roundoff) -> Case {
    let mut draft = CaseDraft::new(OpName::SsmScan, seed, round, Begin::AtZero);
    let groups = 1 + draft.random.below(3);
    let heads = groups * (1 + draft.random.below(3));
    let size = draft.random.of(&[1, 2, 3, 8, 12]);
    let columns = draft.random.of(&[1, 4, 15, 16, 17, 31, 32, 33, 48, 64]);
    let (least, most) = draft.in_turn(&[(0.0, None), (0.25, Some(1.5)), (0.0, Some(0.5))]);
    let (x, xs) = draft.rows_within(1.0, "x", &[heads, size]);
    let (dt, dts) = draft.rows_within(4.0, "dt", &[heads]);
    let (b, bs) = draft.rows_within(1.0, "b", &[groups, columns]);
    let (c, cs) = draft.rows_within(1.0, "c", &[groups, columns]);
    let slowest = draft.random.of(&[-0.001, -0.5]);
    let (a, a_numbers) = draft.numbers_between("a", heads, -8.0, slowest);
    let (d, d_numbers) = draft.numbers_between("d", heads, -1.0, 1.0);
    let (bias, biases) = draft.numbers_between("bias", heads, -4.0, 1.0);
    let carried = draft.builder.carried("carried", Shape::new(&[heads, size, columns]).expect("it is small"));
    let rule = ScanRule { least, most, a: &a_numbers, d: &d_numbers, bias: &biases, groups, columns };
    let scan = Scan { rule, size, rows: [&xs, &dts, &bs, &cs] };
    let (mut bounds, mut first) = (Vec::new(), 0);
    for sequence in &draft.sequences {
        let end = first + sequence.rows as usize;
        bounds.extend(scan.bounds(first..end, round));
        first = end;
    }
    let y = draft.builder.same("y", Op::SsmScan { least, most }, &[x, dt, b, c, a, d, bias, carried]);
    draft.gathered(format!("{heads} heads of {size} with {columns} columns in {groups} groups"), y, bounds)
}
