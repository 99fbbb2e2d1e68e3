//! The scan of Mamba-2: each head's state decays by the row's step, and the row is added to it.
//!
//! ```text
//! step     = softplus(dt + bias), within its limits
//! decay    = e^(step · a)
//! s[p][n] ← decay · s[p][n] + (step · x[p]) · b[n]
//! sums[l] += s[p][n] · c[n]         for n = l, l + 16, l + 32 …   in 16 lanes l
//! y[p]     = d · x[p] + sum         sum = halves of the sums added, halves of these, … down to one
//! ```
//! The rows of a sequence follow each other, whether it has one in a step or hundreds, so all steps have the same
//! sums. A piece is a head of a sequence. Its state stays in L1 or L2 (32 KiB for 64 values with 128 columns)
//! while its rows run. Bytes: each row reads the state and writes it; with the step's first and last row, it comes
//! from and goes to memory.

use girih_graph::{Graph, ValueId};

use super::activate::exact;
use super::executor::Executor;
use crate::bound::{BoundOp, OpScratch};
use crate::carried::each_block;
use crate::kernels::{CpuKernel, Table, exponential};
use crate::pool::Grid;

/// Running sums of a row of the state.
const LANES: usize = 16;

/// One row of one head.
pub struct ScanRowKernel<'a> {
    pub rule: ScanHead,
    pub dt: f32,
    pub x: &'a [f32],
    pub b: &'a [f32],
    pub c: &'a [f32],
    /// A row of as many values as `b` has for each value of `x`.
    pub state: &'a mut [f32],
    pub y: &'a mut [f32],
}

/// The numbers of a head that all of its rows share.
#[derive(Clone, Copy, Debug)]
pub struct ScanHead {
    pub least: f32,
    pub most: Option<f32>,
    pub a: f32,
    pub d: f32,
    pub bias: f32,
}

impl ScanHead {
    /// A step within the limits; NaN stays NaN.
    #[inline(always)] // Kernels consist of it.
    fn limited(self, step: f32) -> f32 {
        let step = if step < self.least { self.least } else { step };
        match self.most {
            Some(most) if step > most => most,
            _ => step,
        }
    }
}

impl ScanRowKernel<'_> {
    /// Runs the row with this step and this decay, and `multiply_add(a, b, c)` for `a · b + c`.
    #[inline(always)] // Kernels consist of it.
    fn scan(self, step: f32, decay: f32, multiply_add: impl Fn(f32, f32, f32) -> f32) {
        let ScanRowKernel { rule, dt: _, x, b, c, state, y } = self;
        let (b_steps, b_rest) = b.as_chunks::<LANES>();
        let (c_steps, c_rest) = c.as_chunks::<LANES>();
        for ((x, y), state) in x.iter().zip(y).zip(state.chunks_exact_mut(b.len())) {
            let (mut sums, added) = ([0.0; LANES], step * x);
            let mut advance = |state: &mut [f32], b: &[f32], c: &[f32]| {
                for (((sum, state), b), c) in sums.iter_mut().zip(state).zip(b).zip(c) {
                    *state = multiply_add(decay, *state, added * b);
                    *sum = multiply_add(*state, *c, *sum);
                }
            };
            let (steps, rest) = state.as_chunks_mut::<LANES>();
            for ((state, b), c) in steps.iter_mut().zip(b_steps).zip(c_steps) {
                advance(state, b, c);
            }
            advance(rest, b_rest, c_rest);
            let mut half = LANES / 2;
            while half > 0 {
                let (lower, upper) = sums.split_at_mut(half);
                lower.iter_mut().zip(upper).for_each(|(lower, upper)| *lower += *upper);
                half /= 2;
            }
            *y = multiply_add(rule.d, *x, sums[0]);
        }
    }
}

impl CpuKernel for ScanRowKernel<'_> {
    #[inline(always)]
    fn run(self) {
        let step = self.rule.limited(exponential::softplus(self.dt + self.rule.bias));
        let decay = exponential::exp(step * self.rule.a);
        self.scan(step, decay, f32::mul_add);
    }

    fn run_portable(self) {
        let sum = f64::from(self.dt) + f64::from(self.rule.bias);
        let step = self.rule.limited(exact(girih_graph::Act::Softplus, sum) as f32);
        let decay = (f64::from(step) * f64::from(self.rule.a)).exp() as f32;
        self.scan(step, decay, |a, b, c| a * b + c);
    }
}

/// Scans the rows of each sequence, and replaces what is carried.
pub(crate) fn bind(
    graph: &Graph,
    (least, most): (f32, Option<f32>),
    [x, dt, b, c]: [ValueId; 4],
    vectors: [ValueId; 3],
    carried: ValueId,
    y: ValueId,
) -> BoundOp {
    let extents = |id| graph.value(id).shape.extents();
    let (heads, size) = (extents(x)[1], extents(x)[2]);
    let (groups, columns) = (extents(b)[1], extents(b)[2]);
    let shared = heads / groups;
    let run = BoundOp::new(move |step| {
        let (rows, [a, d, bias]) = (step.rows, vectors.map(|id| step.weights.vector(id)));
        let carried = step.state.carried_mut(step.values.state(carried));
        let (y, [x, dt, b, c]) = step.values.split(y, [x, dt, b, c]);
        let Executor { table, pool, locals, words, .. } = &mut step.executor;
        let table: &Table = table;
        let mut count = 0;
        for sequence in rows.sequences.iter().filter(|sequence| !sequence.rows.indexes().is_empty()) {
            words[count] = sequence.rows.end;
            count += 1;
        }
        let grid = Grid { width: heads * size, row_step: 1, column_step: size };
        let reached = carried.reached(rows.sequences, heads);
        pool.tiles_and_groups(locals, &words[..count], (y, grid), reached, |tile, group, _| {
            let (head, first) = (tile.columns().start / size, tile.rows());
            let rule = ScanHead { least, most, a: a[head], d: d[head], bias: bias[head] };
            let position = rows.origins[first.start].position;
            each_block(first, position, group, |rows, state| {
                for row in rows {
                    let of_group = (row * groups + head / shared) * columns;
                    table.run(ScanRowKernel {
                        rule,
                        dt: dt[row * heads + head],
                        x: &x[(row * heads + head) * size..][..size],
                        b: &b[of_group..][..columns],
                        c: &c[of_group..][..columns],
                        state,
                        y: tile.row(row),
                    });
                }
            });
        });
    });
    let scratch = OpScratch { words: graph.key.sequences as usize, ..OpScratch::default() };
    BoundOp { scratch, ..run }
}
