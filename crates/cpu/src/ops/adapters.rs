//! Adapters: each row with the two narrow matrices of the adapter that it chose.
//!
//! ```text
//! runs = rows that chose one adapter, at most a tile of them
//! for each run (threads share them):          t[row] = A · x[row]
//! for each band of the result:                y[row] = 0 + factor · (B · t[row])
//! ```
//! The second product is part of the task of the matrix that the adapters change ([`AdapterTerms`]): while threads
//! multiply the matrix, the bands of B arrive. Only if one of its values is watched, it is a task of its own, with the same
//! bits: that is the slow twin. Rows of A are packed in parts ([`row_parts`](crate::adapter_node::row_parts)), and the sums
//! of the parts are added in their order. So a result depends neither on the other rows, nor on threads. Bytes moved: A and
//! B of each adapter that a row chose, once for each run.

use girih_graph::{Graph, ValueId};

use super::adapter_terms::{AdapterRows, AdapterTerms, packed_start};
use super::executor::Executor;
use super::linear::{MAX_MATMULS, bands_of_columns};
use super::product::{Product, pack_rows};
use crate::activations::{ActivationKind, PackedActivations, PrecisionRule, padded};
use crate::adapter_node::{AdapterNode, row_parts};
use crate::bound::{BoundOp, OpScratch};
use crate::kernels::packed::{BAND, NARROW, TILE};
use crate::packed_matrix::PackedMatrix;
use crate::pool::Grid;
use crate::step::CpuStep;

/// The number of bands of a result in a piece.
const PIECE_BANDS: usize = 4;

/// The adapters of one matrix: A and B of each, and how rows are packed for them.
#[derive(Clone, Copy)]
pub(crate) struct AdapterMatrices<'a> {
    pub a: &'a [PackedMatrix],
    pub b: &'a [PackedMatrix],
    pub kinds: [ActivationKind; 2],
}

impl AdapterMatrices<'_> {
    /// The length of `t`.
    fn rank(&self) -> usize {
        self.b[0].columns
    }
}

/// The number of lists of rows: the adapter of each row, those with one, and of each run its adapter, its end, and the end
/// of its packed columns.
const LISTS: usize = 5;

/// The words of packed columns of all runs.
fn packed_len(kind: ActivationKind, columns: usize, width: usize) -> usize {
    kind.size(1, width).saturating_mul(packed_start(columns) + 1)
}

/// Binds a node, to be computed alone.
pub(crate) fn bind(graph: &Graph, rule: PrecisionRule, node: AdapterNode, y: ValueId) -> BoundOp {
    let AdapterNode { x, chosen, a, b } = node;
    let kinds = [a, b].map(|weight| ActivationKind::of_weight(graph, weight, rule));
    let (rows, width, parts) =
        (graph.value(x).shape.rows(), graph.value(x).shape.columns(), row_parts(graph, a));
    let rank = graph.value(b).shape.columns();
    let words = LISTS * rows
        + packed_len(kinds[0], rows * parts, width / parts)
        + MAX_MATMULS * packed_len(kinds[1], rows, rank);
    let scratch = OpScratch { local: 0, partials: rows * (1 + MAX_MATMULS * rank), words };
    BoundOp { scratch, ..BoundOp::new(move |step| run([x, chosen, a, b], kinds, y, step)) }
}

/// Computes what adapters add.
fn run([x, chosen, a, b]: [ValueId; 4], kinds: [ActivationKind; 2], y: ValueId, step: &mut CpuStep<'_>) {
    let CpuStep { executor, values, weights, .. } = step;
    let (a, b) = (weights.experts(a), weights.experts(b));
    let pair = AdapterMatrices { a, b, kinds };
    let width = values.stride(x);
    let (y, [x, chosen]) = values.split(y, [x, chosen]);
    let words = std::mem::take(&mut executor.words);
    let partials = std::mem::take(&mut executor.partials);
    let pairs = [Some(pair), None, None, None];
    let [terms, ..] = products_with_a(executor, (x, width), chosen, pairs, (&mut *partials, &mut *words));
    let terms = terms.expect("there is a pair");
    let (table, outputs) = (executor.table, b[0].rows);
    let way = if terms.rows.rows.len() <= NARROW { "small" } else { "gemm" };
    executor.variant = [way, table.name, kinds[1].name(), b[0].layout.name()];
    let grid = Grid { width: outputs, row_step: usize::MAX, column_step: PIECE_BANDS * BAND };
    executor.pool.tiles(executor.locals, y, grid, |tile, _| {
        let columns = tile.columns();
        tile.rows().for_each(|row| tile.row(row).fill(0.0));
        for band in bands_of_columns(columns.clone()) {
            let first = band * BAND - columns.start;
            terms.each(table, band, |row, factor, product| {
                let y = tile.row(row)[first..].iter_mut().take(BAND);
                y.zip(product).for_each(|(y, term)| *y += factor * term);
            });
        }
    });
    (executor.words, executor.partials) = (words, partials);
}

/// Multiplies the rows that chose adapters by A of each of the pairs, which have matrices of one format and rank.
pub(crate) fn products_with_a<'a>(
    executor: &mut Executor<'_>,
    (x, width): (&[f32], usize),
    chosen: &[f32],
    pairs: [Option<AdapterMatrices<'a>>; MAX_MATMULS],
    (partials, words): (&'a mut [f32], &'a mut [u32]),
) -> [Option<AdapterTerms<'a>>; MAX_MATMULS] {
    let Some(first) = pairs.iter().flatten().next() else { return [None; MAX_MATMULS] };
    let [kind, narrow_kind] = first.kinds;
    let (count, rank, parts) = (first.a.len(), first.rank(), first.a[0].row_parts);
    let rows = chosen.len() / count;
    let (lists, words) = words.split_at_mut(LISTS * rows);
    let (factors, partials) = partials.split_at_mut(rows);
    let (rows, packed_ends) = list(chosen, count, parts, lists, factors);
    let (packed, words) = words.split_at_mut(packed_len(kind, rows.rows.len() * parts, width / parts));
    pack_x(executor, rows, packed_ends, (x, width), (kind, parts), packed);
    let packed = &*packed;
    let sums = multiply(executor, rows, pairs, (packed, width / parts), partials);
    let (mut rest, mut sums) = (words, sums.into_iter());
    pairs.map(|pair| {
        let (sums, pair) = (sums.next()?, pair?);
        let length = packed_len(narrow_kind, rows.rows.len(), rank);
        let words = rest.split_off_mut(..length).expect("the memory suffices for all pairs");
        let unit = narrow_kind.size(1, rank);
        for run in 0..rows.adapters.len() {
            let range = rows.run(run);
            let size = narrow_kind.size(range.len(), rank);
            let row = |index: usize| &sums[(range.start + index) * rank..][..rank];
            let words = &mut words[packed_start(range.start) * unit..][..size];
            pack_rows(executor.table, narrow_kind, range.len(), row, words);
        }
        Some(AdapterTerms { rows, b: pair.b, kind: narrow_kind, words })
    })
}

/// Lists the rows that chose an adapter, in runs, and the end of each run's packed columns.
fn list<'a>(
    chosen: &[f32],
    adapters: usize,
    parts: usize,
    words: &'a mut [u32],
    factors: &'a mut [f32],
) -> (AdapterRows<'a>, &'a [u32]) {
    let count = words.len() / LISTS;
    let (adapter_of, words) = words.split_at_mut(count);
    let (rows, words) = words.split_at_mut(count);
    let (of_runs, words) = words.split_at_mut(count);
    let (ends, packed_ends) = words.split_at_mut(count);
    let mut used = 0;
    for (row, numbers) in chosen.chunks_exact(adapters).enumerate() {
        if let Some(adapter) = numbers.iter().position(|number| *number != 0.0) {
            (adapter_of[row], rows[used]) = (adapter as u32, row as u32);
            used += 1;
        }
    }
    let rows = &mut rows[..used];
    rows.sort_unstable_by_key(|row| (adapter_of[*row as usize], *row));
    let (mut runs, mut end) = (0, 0);
    while end < used {
        let adapter = adapter_of[rows[end] as usize];
        let same = rows[end..].iter().take(TILE).take_while(|row| adapter_of[**row as usize] == adapter);
        end += same.count();
        (of_runs[runs], ends[runs]) = (adapter, end as u32);
        packed_ends[runs] = packed_start(end * parts) as u32;
        runs += 1;
    }
    for (row, factor) in rows.iter().zip(&mut *factors) {
        *factor = chosen[*row as usize * adapters + adapter_of[*row as usize] as usize];
    }
    let (rows, factors) = (&*rows, &*factors);
    let listed =
        AdapterRows { rows, factors: &factors[..used], adapters: &of_runs[..runs], ends: &ends[..runs] };
    (listed, &packed_ends[..runs])
}

/// Packs the parts of the rows of all runs.
fn pack_x(
    executor: &mut Executor<'_>,
    rows: AdapterRows<'_>,
    packed_ends: &[u32],
    (x, width): (&[f32], usize),
    (kind, parts): (ActivationKind, usize),
    words: &mut [u32],
) {
    let (table, each) = (executor.table, width / parts);
    let unit = kind.size(1, each);
    let words = &mut words[..packed_ends.last().map_or(0, |end| *end as usize) * unit];
    let grid = Grid { width: unit, row_step: 1, column_step: unit };
    executor.pool.tiles_of_groups(executor.locals, packed_ends, [(words, grid)], |_, tile, _| {
        let run = packed_ends.partition_point(|end| *end as usize <= tile.rows().start);
        let range = rows.run(run);
        let columns = range.len() * parts;
        let part = |column: usize| {
            let row = rows.rows[range.start + column / parts] as usize;
            &x[row * width + column % parts * each..][..each]
        };
        pack_rows(table, kind, columns, part, &mut tile.whole()[..kind.size(columns, each)]);
    });
}

/// Multiplies packed rows by A of each pair: returns the products of each, one row for each that chose an adapter.
fn multiply<'a>(
    executor: &mut Executor<'_>,
    rows: AdapterRows<'_>,
    pairs: [Option<AdapterMatrices<'_>>; MAX_MATMULS],
    (packed, width): (&[u32], usize),
    mut partials: &'a mut [f32],
) -> [&'a [f32]; MAX_MATMULS] {
    let table = executor.table;
    let mut outputs: [&'a mut [f32]; MAX_MATMULS] = pairs.map(|pair| {
        let length = pair.map_or(0, |pair| rows.rows.len() * pair.rank());
        partials.split_off_mut(..length).expect("the memory suffices for all pairs")
    });
    let grids = pairs.map(|pair| {
        let (rank, parts) = pair.map_or((1, 1), |pair| (pair.rank(), pair.a[0].row_parts));
        Grid { width: rank, row_step: 1, column_step: if parts == 1 { BAND } else { rank } }
    });
    let mut cut = grids.into_iter();
    let cuts = outputs.each_mut().map(|output| (&mut **output, cut.next().expect("as many as outputs")));
    executor.pool.tiles_of_groups(executor.locals, rows.ends, cuts, |index, tile, _| {
        let pair = pairs[index].expect("where there is no pair there are no tiles");
        let run = rows.ends.partition_point(|end| *end as usize <= tile.rows().start);
        let weight = &pair.a[rows.adapters[run] as usize];
        let (parts, kind) = (weight.row_parts, pair.kinds[0]);
        let start = packed_start(tile.rows().start * parts) * kind.size(1, width);
        let x = PackedActivations { kind, rows: tile.rows().len() * parts, width, words: &packed[start..] };
        let mut sums = [[0.0; BAND]; TILE * NARROW];
        let sums = &mut sums[..padded(x.rows)];
        if parts == 1 {
            let band = tile.columns().start / BAND;
            Product { x, weight }.set(table, band, sums);
            for (row, sums) in tile.rows().zip(sums) {
                let to = tile.row(row);
                to.copy_from_slice(&sums[..to.len()]);
            }
        } else {
            Product { x, weight }.set(table, 0, sums);
            for (row, sums) in tile.rows().zip(sums.chunks_exact(parts)) {
                for (index, to) in tile.row(row).iter_mut().enumerate() {
                    let own = sums.iter().enumerate().map(|(part, sums)| sums[index * parts + part]);
                    *to = own.fold(0.0, |sum, part| sum + part);
                }
            }
        }
    });
    outputs.map(|output| &*output)
}
