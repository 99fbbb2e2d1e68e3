//! Matrix products `y[m, n] = x[m, k] · w[n, k]ᵀ`: the rows of `y` are distributed
//! over the herd's columns, the columns of `y` over its rows. A column of cores
//! shares `x`, a row of cores shares `w`.

use super::nest::{GEMM_BLOCK, LaunchArguments, call, dim, whole};
use crate::form::schedule::{Affine, Dim};
use crate::form::tiled::{Flow, Herd, Item, L2Staging, Local, Share, Stream, TiledLaunch, TiledOperand};
use crate::form::tiling::{GemmTiling, Spread};
use crate::form::weights::{GROUP_COLUMNS, TILE_ROWS, WeightLayout};
use crate::target::Target;

/// The maximum number of slices of a transfer that is not kept: a memory tile needs
/// a descriptor for each slice of two buffers, and a channel can use half of its
/// descriptors.
const MAX_SLICES: u32 = 8;

/// The terms in whose time a call loads and stores the sums of a block, for ranking only.
const BLOCK_TERMS: u64 = 24;

/// Returns the tilings that are tried without a mapping, fastest guess first.
pub(super) fn guesses([m, n, k]: [u32; 3], weights: WeightLayout, target: &Target) -> Vec<GemmTiling> {
    let slices = if weights == WeightLayout::Rows { &[4, 3, 2, 1] } else { &[MAX_SLICES, 4, 2, 1] };
    let mut tiles = tiles([m, n, k], target, slices);
    tiles.retain(|tile| !tile.keep && is_whole(*tile, weights));
    // The sort is stable: equal guesses keep the order of the tiles.
    tiles.sort_by_key(|tile| guess([m, n, k], weights, *tile, target));
    tiles
}

/// Returns all tilings that divide the product.
pub(super) fn space(sizes: [u32; 3], weights: WeightLayout, target: &Target) -> Vec<GemmTiling> {
    let mut tiles = tiles(sizes, target, &[MAX_SLICES, 4, 2, 1]);
    tiles.retain(|tile| is_whole(*tile, weights));
    tiles
}

/// Whether the weights of a transfer are whole groups, if they lie in groups.
fn is_whole(tile: GemmTiling, weights: WeightLayout) -> bool {
    let terms = tile.k.saturating_mul(tile.slices);
    weights == WeightLayout::Rows || (tile.n.is_multiple_of(TILE_ROWS) && terms.is_multiple_of(GROUP_COLUMNS))
}

fn tiles([m, n, k]: [u32; 3], target: &Target, slices: &[u32]) -> Vec<GemmTiling> {
    let herd = herd(target);
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let mut tiles = Vec::new();
    for tile_m in [128, 64, 32, 16, 8].into_iter().filter(|tile| m.is_multiple_of(tile * columns)) {
        for tile_n in [128, 96, 64, 48, 32, 16, 8].into_iter().filter(|tile| n.is_multiple_of(tile * rows)) {
            for tile_k in [256, 128, 96, 64, 48, 32, 16, 8].into_iter().filter(|tile| k.is_multiple_of(*tile))
            {
                for &slices in slices.iter().filter(|slices| k.is_multiple_of(tile_k * **slices)) {
                    let spread = Spread::One;
                    let tile = GemmTiling { m: tile_m, n: tile_n, k: tile_k, slices, keep: false, spread };
                    tiles.push(tile);
                    if n > tile_n * rows {
                        tiles.push(GemmTiling { keep: true, ..tile });
                    }
                    let spreads = spreads([m, n, k], tile, target);
                    tiles.extend(spreads.map(|spread| GemmTiling { spread, ..tile }));
                }
            }
        }
    }
    tiles
}

/// Returns the tiles that a core may compute together. They cost it memory and calls, so they are
/// left out where a memory tile can keep whole rows of `x`.
fn spreads([m, n, k]: [u32; 3], tile: GemmTiling, target: &Target) -> impl Iterator<Item = Spread> {
    let herd = herd(target);
    let [down, across] = [m / (tile.m * u32::from(herd.columns)), n / (tile.n * u32::from(herd.rows))];
    let is_kept = u64::from(tile.m) * u64::from(k) * 2 <= u64::from(target.memory.bytes);
    let sums = u64::from(tile.m) * u64::from(tile.n) * 4;
    let have = u64::from(target.compute.bytes - target.compute.reserved);
    let spreads = [2, 3, 4].into_iter().flat_map(|tiles| [Spread::Columns(tiles), Spread::Rows(tiles)]);
    spreads.filter(move |spread| {
        let [rows, columns] = spread.tiles();
        let divides = down.is_multiple_of(rows) && across.is_multiple_of(columns);
        !is_kept && divides && sums * u64::from(rows * columns) < have
    })
}

pub(super) fn herd(target: &Target) -> Herd {
    Herd { columns: target.array.columns as u8, rows: target.array.compute_rows as u8 }
}

/// Estimates the cycles of a product: the maximum of core, stream and DRAM. Used
/// for ranking only.
fn guess([m, n, k]: [u32; 3], weights: WeightLayout, tile: GemmTiling, target: &Target) -> u64 {
    let herd = herd(target);
    let (columns, rows) = (u64::from(herd.columns), u64::from(herd.rows));
    let [m, n, k] = [u64::from(m), u64::from(n), u64::from(k)];
    let [tm, tn, tk] = [u64::from(tile.m), u64::from(tile.n), u64::from(tile.k)];
    let calls = (m / (tm * columns)) * (n / (tn * rows)) * (k / tk);
    let core = tm * tn * (tk + BLOCK_TERMS) / u64::from(target.core_unit.bf16_macs) * 3 / 2 + 100;
    let stream = tm.max(tn) * tk * 2 / u64::from(target.stream.bytes_per_cycle);
    let [down, across] = tile.spread.tiles().map(u64::from);
    let run = 2 * tk * u64::from(tile.slices);
    let rows_of_run = if weights == WeightLayout::Groups { u64::from(TILE_ROWS) } else { 1 };
    let efficiency = |run: u64| target.dram.efficiency(run as f64);
    let other = (m * k * (n / (tn * rows * across)) + m * n) as f64 / efficiency(run);
    let read = (n * k * (m / (tm * columns * down))) as f64 / efficiency(run * rows_of_run);
    let dram = 2.0 * (other + read) / target.dram_bytes_per_cycle();
    (calls * core.max(stream)).max(dram as u64)
}

/// Returns the launch of a product with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    [m, n, k]: [u32; 3],
    weights: WeightLayout,
    tile: GemmTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let GemmTiling { m: tile_m, n: tile_n, k: tile_k, slices, .. } = tile;
    let herd = herd(target);
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let blocks = tile_m.is_multiple_of(GEMM_BLOCK.0)
        && tile_n.is_multiple_of(GEMM_BLOCK.1)
        && tile_k.is_multiple_of(GEMM_BLOCK.1);
    let [down, across] = tile.spread.tiles();
    let (all_m, all_n) = (tile_m.checked_mul(down)?, tile_n.checked_mul(across)?);
    let divides = m.is_multiple_of(all_m.checked_mul(columns)?)
        && n.is_multiple_of(all_n.checked_mul(rows)?)
        && k.is_multiple_of(tile_k.checked_mul(slices)?);
    let is_one = tile.spread == Spread::One;
    if !blocks || !divides || !is_whole(tile, weights) || (tile.keep && !is_one) {
        return None;
    }
    let loops = [m / (all_m * columns), n / (all_n * rows), k / tile_k];
    let mut streams = inputs(loops, k, tile, herd);
    if weights == WeightLayout::Groups {
        streams[1] = grouped(streams[1].clone(), k, tile);
    }
    if tile.keep && loops[1] > 1 {
        streams[0] = kept(streams[0].clone(), loops, k, tile, columns);
    }
    streams.push(output(loops, n, tile, herd));
    let streams = streams.into_iter().zip(launch.arguments);
    let streams = streams.map(|(stream, &argument)| Stream { argument, ..stream });
    let sums = Local { name: "sums".to_owned(), bytes: all_m.checked_mul(all_n)?.checked_mul(4)? };
    let per_tile = if is_one { one(loops, tile) } else { together(loops, tile) };
    let body =
        vec![Item::Loop { count: loops[0], body: vec![Item::Loop { count: loops[1], body: per_tile }] }];
    let (name, streams) = (launch.name.to_owned(), streams.collect());
    Some(TiledLaunch { locals: vec![sums], ..TiledLaunch::of(name, herd, streams, body) })
}

/// Returns the calls of one tile of the result.
fn one(loops: [u32; 3], tile: GemmTiling) -> Vec<Item> {
    let results = || vec![whole("n", tile.m * tile.n)];
    let inner = Item::Loop { count: loops[2], body: vec![product(tile)] };
    vec![call("zero_f32", &["sums"], results()), inner, call("store_bf16", &["sums", "y"], results())]
}

fn product(tile: GemmTiling) -> Item {
    let sizes = vec![whole("m", tile.m), whole("n", tile.n), whole("k", tile.k)];
    call("gemm_bf16", &["x", "w", "sums"], sizes)
}

/// Returns the calls of tiles that are computed together. Each of them has its own sums, whose
/// terms have the same order as those of a single tile.
fn together(loops: [u32; 3], tile: GemmTiling) -> Vec<Item> {
    let results = tile.m * tile.n;
    let tiles = tile.spread.tiles().iter().product();
    let with_sums = |item: Item, depth: u8| match item {
        Item::Call { entry, mut operands, parameters } => {
            let offset = Affine::constant(0).plus(depth, i64::from(results) * 4);
            for operand in operands.iter_mut().filter(|operand| operand.name == "sums") {
                *operand = TiledOperand { offset: offset.clone(), ..operand.clone() };
            }
            Item::Call { entry, operands, parameters }
        }
        other => other,
    };
    let repeat = |count, item| Item::Loop { count, body: vec![item] };
    let slices = repeat(tile.slices, with_sums(product(tile), 3));
    let store = call("store_bf16", &["sums", "y"], vec![whole("n", results)]);
    vec![
        call("zero_f32", &["sums"], vec![whole("n", results * tiles)]),
        repeat(loops[2] / tile.slices, repeat(tiles, slices)),
        repeat(tiles, with_sums(store, 2)),
    ]
}

/// Returns the streams of the operands, which enter L2 in rows and leave it in
/// blocks.
fn inputs(loops: [u32; 3], k: u32, tile: GemmTiling, herd: Herd) -> Vec<Stream> {
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let GemmTiling { m: tile_m, n: tile_n, k: tile_k, slices, .. } = tile;
    let [down, across] = tile.spread.tiles();
    let (block_rows, block_columns) = GEMM_BLOCK;
    let transfer_terms = tile_k * slices;
    // A block's row is four words: eight values of bf16.
    let blocked = |size: u32, block: u32| {
        let dims = vec![
            dim(size / block, block * transfer_terms / 2),
            dim(tile_k / block_columns, block_columns / 2),
            dim(block, transfer_terms / 2),
            dim(block_columns / 2, 1),
        ];
        L2Staging { depth: 2, slices, slice_words: tile_k / 2, passes: 1, into: Vec::new(), dims }
    };
    let staged = |size: u32, block: u32, passes: u32| match passes {
        1 => Some(blocked(size, block)),
        _ => Some(L2Staging { depth: 2, passes, ..scattered([size, block], tile_k, slices) }),
    };
    // The tiles that are computed together use either one transfer several times or several.
    let dram_dims = |outer: [Dim; 2], together: Dim, size: u32| {
        let mut dims = outer.to_vec();
        dims.push(dim(loops[2] / slices, transfer_terms / 2));
        if together.size > 1 {
            dims.extend([together, dim(1, 1)]);
        }
        dims.extend([dim(size, k / 2), dim(transfer_terms / 2, 1)]);
        dims
    };
    let (x_step, w_step) = (tile_m * columns * (k / 2), tile_n * rows * (k / 2));
    let x_dims = dram_dims([dim(loops[0], x_step * down), dim(loops[1], 0)], dim(down, x_step), tile_m);
    let w_dims = dram_dims([dim(loops[0], 0), dim(loops[1], w_step * across)], dim(across, w_step), tile_n);
    let x = Stream {
        name: "x".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Column,
        level: x_dims.len() as u8 - 2,
        depth: 2,
        base_bytes: 0,
        column_bytes: u64::from(tile_m) * u64::from(k) * 2,
        row_bytes: 0,
        dims: x_dims,
        ahead_of: None,
        l2: staged(tile_m, block_rows, across),
    };
    let w = Stream {
        name: "w".to_owned(),
        share: Share::Row,
        level: w_dims.len() as u8 - 2,
        column_bytes: 0,
        row_bytes: u64::from(tile_n) * u64::from(k) * 2,
        dims: w_dims,
        l2: staged(tile_n, block_columns, down),
        ..x.clone()
    };
    vec![x, w]
}

/// Returns the stream of weights that lie in groups. The groups of a transfer that belong to the
/// same 32 rows are contiguous in DRAM; in L2, they become rows, or eight terms of all rows if a
/// transfer is sent again.
fn grouped(w: Stream, k: u32, tile: GemmTiling) -> Stream {
    let terms = tile.k * tile.slices;
    let (row_words, group_words) = (GROUP_COLUMNS / 2, TILE_ROWS * GROUP_COLUMNS / 2);
    let down = tile.n / TILE_ROWS;
    let run = terms / GROUP_COLUMNS * group_words;
    let mut dims = w.dims[..usize::from(w.level)].to_vec();
    dims[2].stride = run;
    dims.extend([dim(down, TILE_ROWS * k / 2), dim(run, 1)]);
    let groups = terms / GROUP_COLUMNS;
    let l2 = w.l2.clone().map(|staging| {
        let into = if staging.repeats() {
            let words = GEMM_BLOCK.1 / 2;
            vec![
                dim(down, TILE_ROWS * words),
                dim(groups, row_words * tile.n),
                dim(TILE_ROWS, words),
                dim(row_words / words, tile.n * words),
                dim(words, 1),
            ]
        } else {
            vec![
                dim(down, TILE_ROWS * terms / 2),
                dim(groups, row_words),
                dim(TILE_ROWS, terms / 2),
                dim(row_words, 1),
            ]
        };
        L2Staging { into, ..staging }
    });
    Stream { dims, l2, ..w }
}

/// Returns the stream of a column's rows that are kept in L2.
fn kept(x: Stream, loops: [u32; 3], k: u32, tile: GemmTiling, columns: u32) -> Stream {
    let m = tile.m;
    let staging = L2Staging { passes: loops[1], ..scattered([m, GEMM_BLOCK.0], tile.k, loops[2]) };
    Stream {
        level: 1,
        dims: vec![dim(loops[0], m * columns * (k / 2)), dim(m, k / 2), dim(k / 2, 1)],
        l2: Some(staging),
        ..x
    }
}

/// Returns the staging of a transfer of `slices` slices that is sent again. Its rows arrive and
/// are scattered so that the same eight terms of all rows are adjacent. Then the
/// rows of a block are contiguous, and the four dimensions of a descriptor cover
/// all slices.
fn scattered([rows, block_rows]: [u32; 2], tile_k: u32, slices: u32) -> L2Staging {
    let block_columns = GEMM_BLOCK.1;
    let words = block_columns / 2;
    let per_slice = tile_k / block_columns;
    let dims = vec![
        dim(slices, per_slice * rows * words),
        dim(rows / block_rows, block_rows * words),
        dim(per_slice, rows * words),
        dim(block_rows * words, 1),
    ];
    let into = vec![dim(rows, words), dim(per_slice * slices, rows * words), dim(words, 1)];
    L2Staging { depth: 1, slices, slice_words: 0, passes: 1, into, dims }
}

/// Returns the stream of the result, which enters L2 in blocks, core by core of a
/// column, and leaves it in rows.
pub(super) fn output(loops: [u32; 3], n: u32, tile: GemmTiling, herd: Herd) -> Stream {
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let GemmTiling { m: tile_m, n: tile_n, .. } = tile;
    let [down, across] = tile.spread.tiles();
    let (block_rows, block_columns) = GEMM_BLOCK;
    let block_words = block_rows * block_columns / 2;
    let by_rows = vec![
        dim(tile_m / block_rows, tile_n / block_columns * block_words),
        dim(block_rows, block_columns / 2),
        dim(tile_n / block_columns, block_words),
        dim(block_columns / 2, 1),
    ];
    let (row_step, column_step) = (tile_m * columns * (n / 2), tile_n * rows / 2);
    let mut dims = vec![dim(loops[0], row_step * down), dim(loops[1], column_step * across)];
    match tile.spread {
        Spread::One => {}
        Spread::Rows(tiles) => dims.push(dim(tiles, row_step)),
        Spread::Columns(tiles) => dims.push(dim(tiles, column_step)),
    }
    let level = dims.len() as u8;
    dims.extend([dim(tile_m, n / 2), dim(tile_n / 2, 1)]);
    Stream {
        name: "y".to_owned(),
        argument: 0,
        flow: Flow::Out,
        share: Share::Own,
        level,
        depth: 1,
        base_bytes: 0,
        column_bytes: u64::from(tile_m) * u64::from(n) * 2,
        row_bytes: u64::from(tile_n) * 2,
        dims,
        ahead_of: None,
        l2: Some(L2Staging::unsliced(1, by_rows)),
    }
}
