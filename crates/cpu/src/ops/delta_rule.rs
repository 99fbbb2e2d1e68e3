//! The gated delta rule: a matrix for each head that decays, and that each row corrects.
//!
//! ```text
//! part of a head   = panel 0 | panel 1 | …    32 columns of its matrix each, the last one fewer
//! panel            = channel 0 | channel 1 | …
//! for each panel, for each row:
//!     p[c] = Σ S[d][c] · (g[d] · k[d])         over channels d, even ones and odd ones apart
//!     u[c] = β · (v[c] − p[c])
//!     S[d][c] = g[d] · S[d][c] + k[d] · u[c]
//!     y[c] = Σ S[d][c] · q[d]                  in the same order
//! ```
//! A column's bits depend on no other column, so neither panels nor vectors matter. A row is computed as in a
//! step of its own, so prefill has decode's sums. A panel of 128 channels is 16 KiB and stays in L1 while the rows
//! of a block pass by.
//!
//! Bytes: for each row, a panel is read twice and written once, in L1; for each step, the matrices are read and
//! written once.

use std::ops::Range;

use girih_graph::{Graph, HeadSharing, ValueId};

use super::executor::Executor;
use crate::bound::{BoundOp, OpScratch};
use crate::carried::each_block;
use crate::cut::OutputTile;
use crate::kernels::{CpuKernel, Table, exponential};
use crate::pool::Grid;

/// Columns of a panel: two vectors of AVX-512.
const PANEL: usize = 32;

/// Sizes of the operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaSizes {
    heads: usize,
    /// Heads of queries and keys.
    groups: usize,
    /// Channels of a key.
    size: usize,
    /// Columns of a value.
    width: usize,
    sharing: HeadSharing,
    /// Steps of a head: one, or one for each channel.
    steps: usize,
}

/// The rows of the operands, of all rows of the step.
#[derive(Clone, Copy)]
pub(crate) struct DeltaOperands<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    beta: &'a [f32],
    dt: &'a [f32],
    a: &'a [f32],
}

/// Rows of one head in one block of the carried value.
pub(crate) struct DeltaRows<'a, 't> {
    sizes: DeltaSizes,
    operands: DeltaOperands<'a>,
    head: usize,
    rows: Range<usize>,
    /// The head's matrix.
    matrix: &'a mut [f32],
    y: &'a mut OutputTile<'t, f32>,
    /// Two numbers for each channel.
    local: &'a mut [f32],
}

impl CpuKernel for DeltaRows<'_, '_> {
    #[inline(always)]
    fn run(self) {
        self.each_panel(exponential::exp, f32::mul_add);
    }

    /// Not fused, because a processor without the instruction would call a function.
    fn run_portable(self) {
        self.each_panel(|x| f64::from(x).exp() as f32, |a, b, c| a * b + c);
    }
}

impl DeltaRows<'_, '_> {
    #[inline(always)] // Kernels consist of it.
    fn each_panel(self, exp: impl Fn(f32) -> f32, fused: impl Fn(f32, f32, f32) -> f32 + Copy) {
        let DeltaRows { sizes, operands, head, rows, matrix, y, local } = self;
        let DeltaSizes { heads, groups, size, width, sharing, steps } = sizes;
        let of_keys = sharing.group(head, heads, groups);
        let DeltaOperands { q, k, v, beta, dt, a } = operands;
        let (decays, rest) = local.split_at_mut(size);
        let decayed_keys = &mut rest[..size];
        for (panel, first) in matrix.chunks_mut(size * PANEL).zip((0..width).step_by(PANEL)) {
            let count = PANEL.min(width - first);
            for row in rows.clone() {
                let group = (row * groups + of_keys) * size;
                let (q, k) = (&q[group..group + size], &k[group..group + size]);
                let at = row * heads + head;
                let dt = &dt[at * steps..(at + 1) * steps];
                if let [dt] = dt {
                    decays.fill(exp(dt * a[head]));
                } else {
                    decays.iter_mut().zip(dt).for_each(|(decay, dt)| *decay = exp(dt * a[head]));
                }
                decayed_keys.iter_mut().zip(&*decays).zip(k).for_each(|((to, g), k)| *to = g * k);
                let v = &v[at * width + first..][..count];
                let y = &mut y.row(row)[first..first + count];
                let channels = Channels { decays, decayed_keys, k, q, beta: beta[at] };
                match (v.as_array::<PANEL>(), y.as_mut_array::<PANEL>()) {
                    (Some(v), Some(y)) => channels.whole(panel.as_chunks_mut().0, v, y, fused),
                    _ => channels.narrow(panel, v, y, fused),
                }
            }
        }
    }
}

/// What a row has for each channel of a head.
struct Channels<'a> {
    decays: &'a [f32],
    decayed_keys: &'a [f32],
    k: &'a [f32],
    q: &'a [f32],
    beta: f32,
}

impl Channels<'_> {
    /// A row of a whole panel.
    #[inline(always)] // Kernels consist of it.
    fn whole(
        &self,
        panel: &mut [[f32; PANEL]],
        v: &[f32; PANEL],
        y: &mut [f32; PANEL],
        fused: impl Fn(f32, f32, f32) -> f32 + Copy,
    ) {
        let Channels { decays: _, decayed_keys, k, q, beta } = *self;
        let (mut even, mut odd) = ([0.0; PANEL], [0.0; PANEL]);
        let (pairs, last) = panel.as_chunks_mut::<2>();
        let last = last.first_mut();
        for (index, [first, second]) in pairs.iter().enumerate() {
            add_products(&mut even, first, decayed_keys[2 * index], fused);
            add_products(&mut odd, second, decayed_keys[2 * index + 1], fused);
        }
        if let Some(last) = &last {
            add_products(&mut even, last, decayed_keys[k.len() - 1], fused);
        }
        let mut changes = [0.0; PANEL];
        for (((to, v), even), odd) in changes.iter_mut().zip(v).zip(&even).zip(&odd) {
            *to = beta * (v - (even + odd));
        }
        (even, odd) = ([0.0; PANEL], [0.0; PANEL]);
        for (index, [first, second]) in pairs.iter_mut().enumerate() {
            self.advance(first, &changes, 2 * index, fused);
            add_products(&mut even, first, q[2 * index], fused);
            self.advance(second, &changes, 2 * index + 1, fused);
            add_products(&mut odd, second, q[2 * index + 1], fused);
        }
        if let Some(last) = last {
            self.advance(last, &changes, k.len() - 1, fused);
            add_products(&mut even, last, q[k.len() - 1], fused);
        }
        for ((y, even), odd) in y.iter_mut().zip(&even).zip(&odd) {
            *y = even + odd;
        }
    }

    /// The columns of a channel after the row.
    #[inline(always)] // Kernels consist of it.
    fn advance(
        &self,
        held: &mut [f32; PANEL],
        changes: &[f32; PANEL],
        channel: usize,
        fused: impl Fn(f32, f32, f32) -> f32,
    ) {
        let (decay, key) = (self.decays[channel], self.k[channel]);
        for (held, change) in held.iter_mut().zip(changes) {
            *held = fused(key, *change, decay * *held);
        }
    }

    /// A row of a panel with fewer columns, column by column.
    #[inline(always)] // Kernels consist of it.
    fn narrow(&self, panel: &mut [f32], v: &[f32], y: &mut [f32], fused: impl Fn(f32, f32, f32) -> f32) {
        let Channels { decays, decayed_keys, k, q, beta } = *self;
        let count = v.len();
        for (column, (v, y)) in v.iter().zip(y).enumerate() {
            let mut sums = [0.0; 2];
            for (channel, held) in panel[column..].iter().step_by(count).enumerate() {
                sums[channel % 2] = fused(*held, decayed_keys[channel], sums[channel % 2]);
            }
            let change = beta * (v - (sums[0] + sums[1]));
            sums = [0.0; 2];
            for (channel, held) in panel[column..].iter_mut().step_by(count).enumerate() {
                *held = fused(k[channel], change, decays[channel] * *held);
                sums[channel % 2] = fused(*held, q[channel], sums[channel % 2]);
            }
            *y = sums[0] + sums[1];
        }
    }
}

/// Adds the products of a channel's columns with a factor.
#[inline(always)] // Kernels consist of it.
fn add_products(
    sums: &mut [f32; PANEL],
    held: &[f32; PANEL],
    factor: f32,
    fused: impl Fn(f32, f32, f32) -> f32,
) {
    for (sum, held) in sums.iter_mut().zip(held) {
        *sum = fused(*held, factor, *sum);
    }
}

/// Applies the rows (queries, keys, values, betas, steps) to what each sequence carries.
pub(crate) fn bind(
    graph: &Graph,
    sharing: HeadSharing,
    rows: [ValueId; 5],
    [a, carried]: [ValueId; 2],
    y: ValueId,
) -> BoundOp {
    let inner = |id: ValueId| &graph.value(id).shape.extents()[1..];
    let ([q, _, v, _, dt], a_weight) = (rows.map(inner), a);
    let (heads, width) = (v[0], v[1]);
    let sizes =
        DeltaSizes { heads, groups: q[0], size: q[1], width, sharing, steps: dt[1..].iter().product() };
    let scratch =
        OpScratch { local: 2 * sizes.size, words: graph.key.sequences as usize, ..OpScratch::default() };
    let run = BoundOp::new(move |step| {
        let step_rows = step.rows;
        let carried = step.state.carried_mut(step.values.state(carried));
        let a = step.weights.vector(a_weight);
        let (y, [q, k, v, beta, dt]) = step.values.split(y, rows);
        let operands = DeltaOperands { q, k, v, beta, dt, a };
        let Executor { table, pool, locals, words, .. } = &mut step.executor;
        let table: &Table = table;
        let mut count = 0;
        for sequence in step_rows.sequences.iter().filter(|sequence| !sequence.rows.indexes().is_empty()) {
            words[count] = sequence.rows.end;
            count += 1;
        }
        let reached = carried.reached(step_rows.sequences, heads);
        let grid = Grid { width: heads * width, row_step: 1, column_step: width };
        pool.tiles_and_groups(locals, &words[..count], (y, grid), reached, |tile, reached, local| {
            let (rows, head) = (tile.rows(), tile.columns().start / width);
            let position = step_rows.origins[rows.start].position;
            each_block(rows, position, reached, |rows, matrix| {
                table.run(DeltaRows { sizes, operands, head, rows, matrix, y: tile, local });
            });
        });
    });
    BoundOp { scratch, ..run }
}
