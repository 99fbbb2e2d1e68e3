//! Matrix products whose cores unpack Q4NX weights into their own memory: tiles stay packed on
//! their way, so a step of few rows reads a third of the bytes. Every column of cores unpacks
//! every tile once for each of its row tiles. With many rows, it is faster to read weights that
//! one launch has unpacked.

use super::gemm::{herd, output};
use super::nest::{GEMM_BLOCK, LaunchArguments, call, dim, whole};
use crate::form::schedule::{Affine, Parameter, ParameterValue};
use crate::form::tiled::{Flow, Herd, Item, L2Staging, Local, Share, Stream, TiledLaunch, TiledOperand};
use crate::form::tiling::{GemmTiling, Spread};
use crate::form::weights::{GROUP_COLUMNS, TILE_BYTES, TILE_COLUMNS, TILE_ROWS};
use crate::target::Target;

/// Returns all tilings that divide the product; those that unpack least often come first.
pub(super) fn space([m, _, k]: [u32; 3], target: &Target) -> Vec<GemmTiling> {
    let columns = u32::from(herd(target).columns);
    if !k.is_multiple_of(TILE_COLUMNS) {
        return Vec::new();
    }
    let rows = [64, 32, 16, 8].into_iter().filter(|rows| m.is_multiple_of(rows * columns));
    let tile =
        |m, k| GemmTiling { m, n: TILE_ROWS, k, slices: TILE_COLUMNS / k, keep: false, spread: Spread::One };
    rows.flat_map(|m| [256, 128, 64, 32].map(move |k| tile(m, k))).collect()
}

/// Returns the launch of a product with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    [m, n, k]: [u32; 3],
    tile: GemmTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let herd = herd(target);
    let (columns, rows) = (u32::from(herd.columns), u32::from(herd.rows));
    let whole_tiles = tile.n == TILE_ROWS
        && tile.k.checked_mul(tile.slices)? == TILE_COLUMNS
        && tile.k.is_multiple_of(GROUP_COLUMNS)
        && tile.m.is_multiple_of(GEMM_BLOCK.0)
        && !tile.keep
        && tile.spread == Spread::One;
    let divides = m.is_multiple_of(tile.m.checked_mul(columns)?)
        && n.is_multiple_of(TILE_ROWS * rows)
        && k.is_multiple_of(TILE_COLUMNS);
    if !whole_tiles || !divides {
        return None;
    }
    let loops = [m / (tile.m * columns), n / (TILE_ROWS * rows), k / TILE_COLUMNS];
    let streams = [rows_of(loops, k, tile, herd), tiles_of(loops, k, herd), output(loops, n, tile, herd)];
    let streams = streams.into_iter().zip(launch.arguments);
    let streams = streams.map(|(stream, &argument)| Stream { argument, ..stream }).collect();
    let at = |name: &str| TiledOperand { name: name.to_owned(), offset: Affine::default() };
    let groups = tile.k / GROUP_COLUMNS;
    let first = ParameterValue::Int(Affine::constant(0).plus(3, i64::from(groups)));
    let unpack = Item::Call {
        entry: "unpack_q4nx".to_owned(),
        operands: vec![at("w"), at("unpacked")],
        parameters: vec![Parameter { name: "first".to_owned(), value: first }, whole("groups", groups)],
    };
    let sizes = vec![whole("m", tile.m), whole("n", TILE_ROWS), whole("k", tile.k)];
    let product = call("gemm_bf16", &["x", "unpacked", "sums"], sizes);
    let results = || vec![whole("n", tile.m * TILE_ROWS)];
    let slices = Item::Loop { count: tile.slices, body: vec![unpack, product] };
    let per_tile = vec![
        call("zero_f32", &["sums"], results()),
        Item::Loop { count: loops[2], body: vec![slices] },
        call("store_bf16", &["sums", "y"], results()),
    ];
    let local = |name: &str, bytes| Local { name: name.to_owned(), bytes };
    let body = Item::Loop { count: loops[1], body: per_tile };
    Some(TiledLaunch {
        locals: vec![local("sums", tile.m * TILE_ROWS * 4), local("unpacked", TILE_ROWS * tile.k * 2)],
        ..TiledLaunch::of(
            launch.name.to_owned(),
            herd,
            streams,
            vec![Item::Loop { count: loops[0], body: vec![body] }],
        )
    })
}

/// Returns the stream of the left operand: the rows of a column's cores arrive in L2 as wide as a
/// tile and leave it in blocks, slice by slice.
fn rows_of(loops: [u32; 3], k: u32, tile: GemmTiling, herd: Herd) -> Stream {
    let (block_rows, block_columns) = GEMM_BLOCK;
    let (columns, words) = (u32::from(herd.columns), TILE_COLUMNS / 2);
    let blocked = vec![
        dim(tile.m / block_rows, block_rows * words),
        dim(tile.k / block_columns, block_columns / 2),
        dim(block_rows, words),
        dim(block_columns / 2, 1),
    ];
    let (slices, slice_words) = (tile.slices, tile.k / 2);
    Stream {
        name: "x".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Column,
        level: 4,
        depth: 2,
        base_bytes: 0,
        column_bytes: u64::from(tile.m) * u64::from(k) * 2,
        row_bytes: 0,
        dims: vec![
            dim(loops[0], tile.m * columns * (k / 2)),
            dim(loops[1], 0),
            dim(loops[2], words),
            dim(1, words),
            dim(tile.m, k / 2),
            dim(words, 1),
        ],
        ahead_of: None,
        l2: Some(L2Staging { depth: 2, slices, slice_words, passes: 1, into: Vec::new(), dims: blocked }),
    }
}

/// Returns the stream of tiles, which the cores of a row share.
fn tiles_of(loops: [u32; 3], k: u32, herd: Herd) -> Stream {
    let (across, words) = (k / TILE_COLUMNS, TILE_BYTES / 4);
    Stream {
        name: "w".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Row,
        level: 3,
        depth: 2,
        base_bytes: 0,
        column_bytes: 0,
        row_bytes: u64::from(across) * u64::from(TILE_BYTES),
        dims: vec![
            dim(loops[0], 0),
            dim(loops[1], u32::from(herd.rows) * across * words),
            dim(loops[2], words),
            dim(words, 1),
        ],
        ahead_of: None,
        l2: None,
    }
}
