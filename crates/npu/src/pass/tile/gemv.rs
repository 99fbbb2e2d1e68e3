//! Matrix-vector products `y[n] = w[n, k] · x[k]`: each core has a range of the rows
//! of `w`. It sends the results of several calls at once. One channel of a column's
//! shim is slower than the column's share of DRAM bandwidth. With two cores in a
//! column, weights therefore arrive over both channels of its shim, after the
//! vector.

use super::nest::{CALL_ROWS, LaunchArguments, VECTOR_ELEMENTS, dim, divisor, whole};
use crate::form::schedule::Affine;
use crate::form::tiled::{Flow, Herd, Item, L2Staging, Local, Share, Stream, TiledLaunch, TiledOperand};
use crate::form::tiling::GemvTiling;
use crate::target::Target;

/// The possible numbers of results that a core sends at once, largest first.
const RESULT_ROWS: [u32; 5] = [32, 16, 8, 4, 2];

/// The maximum number of parts of a row: rows of 28672 values, those of Llama-3.1-70B, need 32.
const MAX_PARTS: u32 = 32;

/// Returns the tilings that are tried without a mapping, best first.
pub(super) fn guesses([n, k]: [u32; 2], target: &Target) -> Vec<GemvTiling> {
    let columns = divisor(n / 2, target.array.columns);
    tiles(n, Herd { columns: columns as u8, rows: 1 }, parts(k, target))
}

/// Returns all tilings that divide the product.
pub(super) fn space([n, k]: [u32; 2], target: &Target) -> Vec<GemvTiling> {
    let columns = (1..=target.array.columns as u8).rev();
    let side = side(target) as u8;
    let herds = columns.flat_map(|columns| (1..=side).map(move |rows| Herd { columns, rows }));
    herds.flat_map(|herd| tiles(n, herd, parts(k, target))).collect()
}

/// The maximum number of cores in a column: each has a channel of the column's shim each way.
pub(in crate::pass) fn side(target: &Target) -> u32 {
    let channels = target.shim.dma.channels_out.min(target.shim.dma.channels_in);
    channels.min(target.array.compute_rows).min(2)
}

/// Returns the smallest number of parts into which a row of `k` values is cut, so that two of them, the
/// vector and the results fit into a core.
fn parts(k: u32, target: &Target) -> u32 {
    let have = u64::from(target.compute.bytes - target.compute.reserved);
    let need = |parts: u32| 2 * u64::from(k) + 4 * u64::from(k / parts) + u64::from(8 * RESULT_ROWS[0]);
    let vectors = k / VECTOR_ELEMENTS;
    (1..=MAX_PARTS).find(|&parts| vectors.is_multiple_of(parts) && need(parts) <= have).unwrap_or(1)
}

fn tiles(n: u32, herd: Herd, parts: u32) -> Vec<GemvTiling> {
    let cores = u32::from(herd.columns) * u32::from(herd.rows);
    if !n.is_multiple_of(cores) {
        return Vec::new();
    }
    let (depth, staged) = (2, false);
    let rows = RESULT_ROWS.into_iter().filter(|rows| (n / cores).is_multiple_of(*rows));
    let steps = |rows: u32| CALL_ROWS.into_iter().filter(move |step| *step <= rows);
    rows.flat_map(|rows| steps(rows).map(move |step| GemvTiling { herd, rows, step, depth, staged, parts }))
        .collect()
}

/// Returns the launch of a product with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    first: u32,
    [n, k]: [u32; 2],
    tile: GemvTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let GemvTiling { herd, rows, step, parts, .. } = tile;
    let (columns, side) = (u32::from(herd.columns), u32::from(herd.rows));
    let channels = target.shim.dma.channels_out.min(target.shim.dma.channels_in);
    let max = if tile.staged { 1 } else { channels.min(target.array.compute_rows) };
    let fits = columns <= target.array.columns && side <= max;
    let even = rows.is_multiple_of(2) && rows.is_multiple_of(step);
    let parted = parts == 1 || (!tile.staged && k.is_multiple_of(parts.checked_mul(2)?));
    if !fits || !even || !parted || !n.is_multiple_of(rows.checked_mul(columns)?.checked_mul(side)?) {
        return None;
    }
    let own = n / (columns * side);
    let loops = [own / rows, rows / step];
    let streams = if tile.staged { staged(loops, k, tile) } else { direct(loops, k, tile) };
    let [mut w, mut x, mut y] = streams;
    (w.argument, x.argument, y.argument) = (launch.arguments[1], launch.arguments[0], launch.arguments[2]);
    w.base_bytes = u64::from(first) * u64::from(k) * 2;
    y.base_bytes = u64::from(first) * 2;
    let inner = Item::Loop { count: loops[1], body: products(k, tile) };
    let body = vec![Item::Loop { count: loops[0], body: vec![inner] }];
    let sums = Local { name: "sums".to_owned(), bytes: step * 4 };
    let locals = if parts > 1 { vec![sums] } else { Vec::new() };
    let name = launch.name.to_owned();
    Some(TiledLaunch { locals, ..TiledLaunch::of(name, herd, vec![w, x, y], body) })
}

/// Returns the calls for `step` results: one, or one for each part of the rows.
fn products(k: u32, tile: GemvTiling) -> Vec<Item> {
    let GemvTiling { step, parts, .. } = tile;
    let operand = |name: &str, offset: Affine| TiledOperand { name: name.to_owned(), offset };
    let at = |name: &str| operand(name, Affine::default());
    let y = operand("y", Affine::constant(0).plus(1, i64::from(step) * 2));
    let part = k / parts;
    let call =
        |entry: &str, operands, parameters| Item::Call { entry: entry.to_owned(), operands, parameters };
    let sizes = vec![whole("rows", step), whole("k", part)];
    if parts == 1 {
        return vec![call("gemv_bf16", vec![at("w"), at("x"), y], sizes)];
    }
    let x = operand("x", Affine::constant(0).plus(2, i64::from(part) * 2));
    let product = call("gemv_bf16_part", vec![at("w"), x, at("sums")], sizes);
    vec![
        call("zero_f32", vec![at("sums")], vec![whole("n", step)]),
        Item::Loop { count: parts, body: vec![product] },
        call("store_bf16", vec![at("sums"), y], vec![whole("n", step)]),
    ]
}

/// Returns the streams of weights, vector and results: weights go directly to the
/// cores, the vector is sent once to all of them.
fn direct(loops: [u32; 2], k: u32, tile: GemvTiling) -> [Stream; 3] {
    let GemvTiling { herd, rows, step, depth, parts, .. } = tile;
    let (own, side) = (u64::from(loops[0]) * u64::from(rows), u64::from(herd.rows));
    let mut dims = vec![dim(loops[0], rows * (k / 2)), dim(loops[1], step * (k / 2))];
    if parts > 1 {
        let words = k / parts / 2;
        dims.extend([dim(parts, words), dim(step, k / 2), dim(words, 1)]);
    } else {
        dims.push(dim(step * (k / 2), 1));
    }
    let w = Stream {
        name: "w".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Own,
        level: if parts > 1 { 3 } else { 2 },
        depth,
        base_bytes: 0,
        column_bytes: side * own * u64::from(k) * 2,
        row_bytes: own * u64::from(k) * 2,
        dims,
        ahead_of: None,
        l2: None,
    };
    let x = vector(&w, k, side);
    let y = Stream {
        name: "y".to_owned(),
        flow: Flow::Out,
        level: 1,
        column_bytes: side * own * 2,
        row_bytes: own * 2,
        dims: vec![dim(loops[0], rows / 2), dim(rows / 2, 1)],
        ..w.clone()
    };
    [w, x, y]
}

/// Returns the stream of the vector of `k` values, which all cores read, beside that of the weights `w`.
/// With two cores in a column (`side`), both channels of its shim carry weights, and the vector is sent
/// ahead of them.
pub(super) fn vector(w: &Stream, k: u32, side: u64) -> Stream {
    Stream {
        name: "x".to_owned(),
        share: Share::All,
        level: 0,
        depth: 1,
        column_bytes: 0,
        row_bytes: 0,
        dims: vec![dim(k / 2, 1)],
        ahead_of: (side > 1).then(|| w.name.clone()),
        ..w.clone()
    }
}

/// Returns the streams of the published design: weights are staged in the memory
/// tile, the vector is sent for each call, and results have one buffer.
fn staged(loops: [u32; 2], k: u32, tile: GemvTiling) -> [Stream; 3] {
    let [mut w, mut x, mut y] = direct(loops, k, tile);
    let staging = L2Staging::unsliced(2, vec![dim(w.chunk_words(), 1)]);
    w.l2 = Some(staging);
    x.share = Share::Own;
    x.level = 2;
    x.dims = vec![dim(loops[0], 0), dim(loops[1], 0), dim(k / 2, 1)];
    y.depth = 1;
    [w, x, y]
}
