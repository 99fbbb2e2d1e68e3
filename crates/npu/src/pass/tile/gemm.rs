//! Matrix products `y[m, n] = x[m, k] · w[n, k]ᵀ`: the rows of `y` are distributed
//! over the herd's columns, the columns of `y` over its rows. A column of cores
//! shares `x`, a row of cores shares `w`.

use super::nest::{GEMM_BLOCK, LaunchArguments, call, dim, whole};
use crate::form::schedule::Dim;
use crate::form::tiled::{Flow, Herd, Item, L2Staging, Local, Share, Stream, TiledLaunch};
use crate::form::tiling::GemmTiling;
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
                    let tile = GemmTiling { m: tile_m, n: tile_n, k: tile_k, slices, keep: false };
                    tiles.push(tile);
                    if n > tile_n * rows {
                        tiles.push(GemmTiling { keep: true, ..tile });
                    }
                }
            }
        }
    }
    tiles
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
    let run = 2 * tk * u64::from(tile.slices);
    let rows_of_run = if weights == WeightLayout::Groups { u64::from(TILE_ROWS) } else { 1 };
    let efficiency = |run: u64| target.dram.efficiency(run as f64);
    let other = (m * k * (n / (tn * rows)) + m * n) as f64 / efficiency(run);
    let read = (n * k * (m / (tm * columns))) as f64 / efficiency(run * rows_of_run);
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
    let divides = m.is_multiple_of(tile_m.checked_mul(columns)?)
        && n.is_multiple_of(tile_n.checked_mul(rows)?)
        && k.is_multiple_of(tile_k.checked_mul(slices)?);
    if !blocks || !divides || !is_whole(tile, weights) {
        return None;
    }
    let loops = [m / (tile_m * columns), n / (tile_n * rows), k / tile_k];
    let mut streams = inputs(loops, k, tile, herd);
    if weights == WeightLayout::Groups {
        streams[1] = grouped(streams[1].clone(), loops, k, tile);
    }
    if tile.keep && loops[1] > 1 {
        streams[0] = kept(streams[0].clone(), loops, k, tile, columns);
    }
    streams.push(output(loops, n, tile, herd));
    let streams = streams.into_iter().zip(launch.arguments);
    let streams = streams.map(|(stream, &argument)| Stream { argument, ..stream });
    let sums = Local { name: "sums".to_owned(), bytes: tile_m * tile_n * 4 };
    let results = || vec![whole("n", tile_m * tile_n)];
    let product = call(
        "gemm_bf16",
        &["x", "w", "sums"],
        vec![whole("m", tile_m), whole("n", tile_n), whole("k", tile_k)],
    );
    let inner = Item::Loop { count: loops[2], body: vec![product] };
    let per_tile =
        vec![call("zero_f32", &["sums"], results()), inner, call("store_bf16", &["sums", "y"], results())];
    let body =
        vec![Item::Loop { count: loops[0], body: vec![Item::Loop { count: loops[1], body: per_tile }] }];
    let (name, streams) = (launch.name.to_owned(), streams.collect());
    Some(TiledLaunch { locals: vec![sums], ..TiledLaunch::of(name, herd, streams, body) })
}

/// Returns the streams of the operands, which enter L2 in rows and leave it in
/// blocks.
fn inputs(loops: [u32; 3], k: u32, tile: GemmTiling, herd: Herd) -> Vec<Stream> {
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let GemmTiling { m: tile_m, n: tile_n, k: tile_k, slices, .. } = tile;
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
        Some(L2Staging { depth: 2, slices, slice_words: tile_k / 2, passes: 1, into: Vec::new(), dims })
    };
    let dram_dims = |outer: [Dim; 2], size: u32| {
        vec![
            outer[0],
            outer[1],
            dim(loops[2] / slices, transfer_terms / 2),
            dim(size, k / 2),
            dim(transfer_terms / 2, 1),
        ]
    };
    let x = Stream {
        name: "x".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Column,
        level: 3,
        depth: 2,
        base_bytes: 0,
        column_bytes: u64::from(tile_m) * u64::from(k) * 2,
        row_bytes: 0,
        dims: dram_dims([dim(loops[0], tile_m * columns * (k / 2)), dim(loops[1], 0)], tile_m),
        ahead_of: None,
        l2: blocked(tile_m, block_rows),
    };
    let w = Stream {
        name: "w".to_owned(),
        share: Share::Row,
        column_bytes: 0,
        row_bytes: u64::from(tile_n) * u64::from(k) * 2,
        dims: dram_dims([dim(loops[0], 0), dim(loops[1], tile_n * rows * (k / 2))], tile_n),
        l2: blocked(tile_n, block_columns),
        ..x.clone()
    };
    vec![x, w]
}

/// Returns the stream of weights that lie in groups. The groups of a transfer that belong to the
/// same 32 rows are contiguous in DRAM; in L2, they become rows.
fn grouped(w: Stream, loops: [u32; 3], k: u32, tile: GemmTiling) -> Stream {
    let terms = tile.k * tile.slices;
    let (row_words, group_words) = (GROUP_COLUMNS / 2, TILE_ROWS * GROUP_COLUMNS / 2);
    let down = tile.n / TILE_ROWS;
    let run = terms / GROUP_COLUMNS * group_words;
    let mut dims = w.dims[..2].to_vec();
    dims.extend([dim(loops[2] / tile.slices, run), dim(down, TILE_ROWS * k / 2), dim(run, 1)]);
    let into = vec![
        dim(down, TILE_ROWS * terms / 2),
        dim(terms / GROUP_COLUMNS, row_words),
        dim(TILE_ROWS, terms / 2),
        dim(row_words, 1),
    ];
    let l2 = w.l2.clone().map(|staging| L2Staging { into, ..staging });
    Stream { dims, l2, ..w }
}

/// Returns the stream of a column's rows that are kept in L2. Whole rows arrive and
/// are scattered so that the same eight terms of all rows are adjacent. Then the
/// rows of a block are contiguous, and the four dimensions of a descriptor cover
/// all slices.
fn kept(x: Stream, loops: [u32; 3], k: u32, tile: GemmTiling, columns: u32) -> Stream {
    let GemmTiling { m, k: tile_k, .. } = tile;
    let (block_rows, block_columns) = GEMM_BLOCK;
    let words = block_columns / 2;
    let per_slice = tile_k / block_columns;
    let dims = vec![
        dim(loops[2], per_slice * m * words),
        dim(m / block_rows, block_rows * words),
        dim(per_slice, m * words),
        dim(block_rows * words, 1),
    ];
    let into = vec![dim(m, words), dim(k / block_columns, m * words), dim(words, 1)];
    let staging = L2Staging { depth: 1, slices: loops[2], slice_words: 0, passes: loops[1], into, dims };
    Stream {
        level: 1,
        dims: vec![dim(loops[0], m * columns * (k / 2)), dim(m, k / 2), dim(k / 2, 1)],
        l2: Some(staging),
        ..x
    }
}

/// Returns the stream of the result, which enters L2 in blocks, core by core of a
/// column, and leaves it in rows.
pub(super) fn output(loops: [u32; 3], n: u32, tile: GemmTiling, herd: Herd) -> Stream {
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let GemmTiling { m: tile_m, n: tile_n, .. } = tile;
    let (block_rows, block_columns) = GEMM_BLOCK;
    let block_words = block_rows * block_columns / 2;
    let by_rows = vec![
        dim(tile_m / block_rows, tile_n / block_columns * block_words),
        dim(block_rows, block_columns / 2),
        dim(tile_n / block_columns, block_words),
        dim(block_columns / 2, 1),
    ];
    Stream {
        name: "y".to_owned(),
        argument: 0,
        flow: Flow::Out,
        share: Share::Own,
        level: 2,
        depth: 1,
        base_bytes: 0,
        column_bytes: u64::from(tile_m) * u64::from(n) * 2,
        row_bytes: u64::from(tile_n) * 2,
        dims: vec![
            dim(loops[0], tile_m * columns * (n / 2)),
            dim(loops[1], tile_n * rows / 2),
            dim(tile_m, n / 2),
            dim(tile_n / 2, 1),
        ],
        ahead_of: None,
        l2: Some(L2Staging::unsliced(1, by_rows)),
    }
}
