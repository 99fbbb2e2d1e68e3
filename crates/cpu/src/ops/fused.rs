//! Row operators one upon another, and what makes small integers of their results.
//!
//! What follows from a row while it is still in the first cache is computed
//! there: this saves a pass over memory and a meeting of the threads. The bits
//! are those of the operators one after the other.
//!
//! Operators with several results are cut into pieces before the threads meet:
//! a piece is the parts of all results that lie beside each other.

use std::array;

use girih_graph::Act;

use super::Executor;
use super::rows::PIECE;
use crate::kernels::GROUP;
use crate::pool::Grid;

/// Activations as small integers, in places for all rows of a step, one after
/// another: see [`crate::kernels::Table::quantize`].
pub(crate) struct Quantized<'a> {
    /// A code for each value.
    pub codes: &'a mut [i8],
    /// A scale for each [`GROUP`] values.
    pub scales: &'a mut [f32],
    /// The sum of the codes of each [`GROUP`] values.
    pub sums: &'a mut [i32],
}

impl<'a> Quantized<'a> {
    /// The places of each `len` values, which are whole groups.
    fn chunks(self, len: usize) -> impl Iterator<Item = Quantized<'a>> {
        let (scales, sums) = (self.scales.chunks_mut(len / GROUP), self.sums.chunks_mut(len / GROUP));
        let parts = self.codes.chunks_mut(len).zip(scales).zip(sums);
        parts.map(|((codes, scales), sums)| Quantized { codes, scales, sums })
    }
}

/// The most pieces of operators with several results: their list has a place
/// on the stack.
const PIECES: usize = 64;

/// Calls `body` with each of at most [`PIECES`] pieces and memory of a thread's own.
fn pieces<P: Send>(
    executor: &mut Executor<'_>,
    mut pieces: impl Iterator<Item = P>,
    body: impl Fn(P, &mut [f32]) + Sync,
) {
    let mut list: [Option<P>; PIECES] = array::from_fn(|_| pieces.next());
    assert!(pieces.next().is_none(), "no more than {PIECES} pieces");
    let count = list.iter().flatten().count();
    let grid = Grid { width: 1, row_step: 1, column_step: 1 };
    executor.pool.tiles(executor.locals, &mut list[..count], grid, |tile, scratch| {
        for row in tile.rows() {
            let piece = tile.row(row)[0].take().expect("a piece is handed out once");
            body(piece, scratch);
        }
    });
}

/// Values of each of at most [`PIECES`] pieces of `len` values, a multiple of `unit`.
fn piece_len(len: usize, unit: usize) -> usize {
    PIECE.max(len.div_ceil(PIECES)).next_multiple_of(unit)
}

/// `sum = a + b`, and each run of as many values as there are weights normalised.
pub(crate) fn add_norm(
    executor: &mut Executor<'_>,
    [a, b]: [&[f32]; 2],
    weight: &[f32],
    epsilon: f32,
    sum: &mut [f32],
    normed: &mut [f32],
) {
    let (kernels, width) = (executor.table, weight.len());
    let len = piece_len(sum.len(), width);
    let operands = a.chunks(len).zip(b.chunks(len));
    let parts = operands.zip(sum.chunks_mut(len)).zip(normed.chunks_mut(len));
    pieces(executor, parts, |(((a, b), sum), normed), _| {
        let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
        let results = sum.chunks_exact_mut(width).zip(normed.chunks_exact_mut(width));
        for ((a, b), (sum, normed)) in rows.zip(results) {
            (kernels.add)(a, b, sum);
            (kernels.norm)(sum, weight, epsilon, normed);
        }
    });
}

/// Values quantized.
pub(crate) fn quantize(executor: &mut Executor<'_>, x: &[f32], quantized: Quantized<'_>) {
    let kernels = executor.table;
    let len = piece_len(x.len(), GROUP);
    pieces(executor, x.chunks(len).zip(quantized.chunks(len)), |(x, q), _| {
        (kernels.quantize)(x, q.codes, q.scales, q.sums);
    });
}

/// Each run of as many values as there are weights normalised and then
/// quantized. A thread's own memory holds a row at least.
pub(crate) fn norm_quantize(
    executor: &mut Executor<'_>,
    x: &[f32],
    weight: &[f32],
    epsilon: f32,
    quantized: Quantized<'_>,
) {
    let (kernels, width) = (executor.table, weight.len());
    let len = piece_len(x.len(), width);
    pieces(executor, x.chunks(len).zip(quantized.chunks(len)), |(x, quantized), scratch| {
        let normed = &mut scratch[..width];
        for (x, q) in x.chunks_exact(width).zip(quantized.chunks(width)) {
            (kernels.norm)(x, weight, epsilon, normed);
            (kernels.quantize)(normed, q.codes, q.scales, q.sums);
        }
    });
}

/// `sum = a + b`, and that as [`norm_quantize`] says.
pub(crate) fn add_norm_quantize(
    executor: &mut Executor<'_>,
    [a, b]: [&[f32]; 2],
    weight: &[f32],
    epsilon: f32,
    sum: &mut [f32],
    quantized: Quantized<'_>,
) {
    let (kernels, width) = (executor.table, weight.len());
    let len = piece_len(sum.len(), width);
    let operands = a.chunks(len).zip(b.chunks(len));
    let parts = operands.zip(sum.chunks_mut(len)).zip(quantized.chunks(len));
    pieces(executor, parts, |(((a, b), sum), quantized), scratch| {
        let normed = &mut scratch[..width];
        let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
        let results = sum.chunks_exact_mut(width).zip(quantized.chunks(width));
        for ((a, b), (sum, q)) in rows.zip(results) {
            (kernels.add)(a, b, sum);
            (kernels.norm)(sum, weight, epsilon, normed);
            (kernels.quantize)(normed, q.codes, q.scales, q.sums);
        }
    });
}

/// Values that [`gate_quantize`] holds between its two steps: 4 KB of the first cache.
pub(crate) const STRETCH: usize = 32 * GROUP;

/// `act(gate) · up` quantized. A thread's own memory holds [`STRETCH`] numbers
/// at least. The products themselves are not stored, which saves 8 of the 17
/// bytes a value that the two operators move one after the other.
pub(crate) fn gate_quantize(
    executor: &mut Executor<'_>,
    act: Act,
    [gate, up]: [&[f32]; 2],
    quantized: Quantized<'_>,
) {
    let kernels = executor.table;
    let len = piece_len(gate.len(), STRETCH);
    let parts = gate.chunks(len).zip(up.chunks(len)).zip(quantized.chunks(len));
    pieces(executor, parts, |((gate, up), quantized), scratch| {
        let stretches = gate.chunks(STRETCH).zip(up.chunks(STRETCH)).zip(quantized.chunks(STRETCH));
        for ((gate, up), q) in stretches {
            let gated = &mut scratch[..gate.len()];
            (kernels.gate)(act, gate, up, gated);
            (kernels.quantize)(gated, q.codes, q.scales, q.sums);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;
    use crate::kernels::{Table, tables};
    use crate::memory::Aligned;
    use crate::pool::Pool;

    const EPSILON: f32 = 1e-5;

    /// Codes, scales and sums.
    type Integers = (Vec<i8>, Vec<f32>, Vec<i32>);

    /// What an operator puts into places for `len` values.
    fn filled(len: usize, f: impl FnOnce(Quantized<'_>)) -> Integers {
        let groups = len / GROUP;
        let (mut codes, mut scales, mut sums) = (vec![99; len], vec![f32::NAN; groups], vec![-1; groups]);
        f(Quantized { codes: &mut codes, scales: &mut scales, sums: &mut sums });
        (codes, scales, sums)
    }

    /// Numbers of which some groups are larger than others.
    fn numbers(len: usize, seed: usize) -> Vec<f32> {
        let number = |i: usize| ((i * 7919 + seed * 104_729) % 2003) as f32 / 500.0 - 2.0;
        (0..len).map(|i| number(i) * (1 + i / 50 % 9) as f32).collect()
    }

    fn normed(table: &Table, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        for (x, y) in x.chunks_exact(weight.len()).zip(y.chunks_exact_mut(weight.len())) {
            (table.norm)(x, weight, EPSILON, y);
        }
        y
    }

    fn check(executor: &mut Executor<'_>, rows: usize, width: usize) {
        let (table, len) = (executor.table, rows * width);
        let [a, b, weight] = [numbers(len, 1), numbers(len, 2), numbers(width, 3)];
        let quantized = |x: &[f32]| filled(len, |q| (table.quantize)(x, q.codes, q.scales, q.sums));
        let (mut sum, mut gated) = (vec![0.0; len], vec![0.0; len]);
        (table.add)(&a, &b, &mut sum);
        (table.gate)(Act::Silu, &a, &b, &mut gated);

        let mut added = [vec![0.0; len], vec![0.0; len]];
        let [first, second] = &mut added;
        add_norm(executor, [&a, &b], &weight, EPSILON, first, second);
        assert_eq!(added, [sum.clone(), normed(table, &sum, &weight)]);

        assert_eq!(filled(len, |q| quantize(executor, &a, q)), quantized(&a));
        let got = filled(len, |q| norm_quantize(executor, &a, &weight, EPSILON, q));
        assert_eq!(got, quantized(&normed(table, &a, &weight)));
        added[0].fill(0.0);
        let got = filled(len, |q| add_norm_quantize(executor, [&a, &b], &weight, EPSILON, &mut added[0], q));
        assert_eq!((&added[0], got), (&sum, quantized(&normed(table, &sum, &weight))));
        let got = filled(len, |q| gate_quantize(executor, Act::Silu, [&a, &b], q));
        assert_eq!(got, quantized(&gated));
    }

    #[test]
    fn fused_operators_yield_what_they_yield_one_after_the_other() {
        for table in tables() {
            for threads in 1..=3 {
                let pool = Pool::new(threads).unwrap();
                let locals = (0..threads).map(|_| Aligned::zeroed(8192, "a test").unwrap());
                let mut locals: Vec<Aligned<f32>> = locals.collect();
                let mut executor =
                    Executor { table, pool: &pool, locals: &mut locals, partials: &mut [], variant: [""; 4] };
                for (rows, width) in [(0, 64), (1, 32), (1, 2048), (3, 96), (65, 1056), (200, 256), (7, 8192)]
                {
                    check(&mut executor, rows, width);
                }
            }
        }
    }

    /// The least time of a few calls, in milliseconds.
    fn least(mut f: impl FnMut()) -> f64 {
        let times = (0..15).map(|_| {
            let start = std::time::Instant::now();
            f();
            start.elapsed().as_secs_f64() * 1e3
        });
        times.fold(f64::MAX, f64::min)
    }

    /// `cargo test --release --locked -p girih-cpu joined_operators -- --ignored --nocapture`:
    /// 512 rows of Llama 3.2 1B, by two threads, in milliseconds.
    #[test]
    #[ignore = "measures, which takes some seconds of an idle machine in a release build"]
    fn joined_operators_are_timed() {
        let pool = Pool::new(2).unwrap();
        let mut locals = [0; 2].map(|_| Aligned::zeroed(8192, "a test").unwrap());
        for table in tables() {
            let mut executor =
                Executor { table, pool: &pool, locals: &mut locals, partials: &mut [], variant: [""; 4] };
            let (width, ffn) = (512 * 2048, 512 * 8192);
            let [a, b, weight] = [numbers(ffn, 1), numbers(ffn, 2), numbers(2048, 3)];
            let (mut sum, mut y) = (vec![0.0; width], vec![0.0; ffn]);
            let (mut codes, mut scales, mut sums) = (vec![0; ffn], vec![0.0; ffn / 32], vec![0; ffn / 32]);
            let mut integers = |len: usize, f: &mut dyn FnMut(Quantized<'_>)| {
                let (codes, scales) = (&mut codes[..len], &mut scales[..len / 32]);
                f(Quantized { codes, scales, sums: &mut sums[..len / 32] });
            };
            let operands = [&a[..width], &b[..width]];
            let apart = least(|| {
                rows::elementwise(&mut executor, operands, &mut sum, |[a, b], y| (table.add)(a, b, y));
                rows::norm(&mut executor, &sum, &weight, EPSILON, &mut y[..width]);
                integers(width, &mut |q| quantize(&mut executor, &y[..width], q));
            });
            let joined = least(|| {
                integers(width, &mut |q| {
                    add_norm_quantize(&mut executor, operands, &weight, EPSILON, &mut sum, q);
                });
            });
            println!("{}: add, norm, quantize {apart:.3}, joined {joined:.3}", table.name);
            let apart = least(|| {
                let gate = |[a, b]: [&[f32]; 2], y: &mut [f32]| (table.gate)(Act::Silu, a, b, y);
                rows::elementwise(&mut executor, [&a, &b], &mut y, gate);
                integers(ffn, &mut |q| quantize(&mut executor, &y, q));
            });
            let joined = least(|| {
                integers(ffn, &mut |q| gate_quantize(&mut executor, Act::Silu, [&a, &b], q));
            });
            println!("{}: gate, quantize {apart:.3}, joined {joined:.3}", table.name);
        }
    }
}
