//! Matrix-vector products with Q4NX weights, unpacked on the fly (seed 001's FusedDQP):
//! each core has a range of the tile rows of `w`, 32 results each. A core's tiles follow one
//! another in DRAM and arrive in one run, over a channel of their own.

use super::gemv::vector;
use super::nest::{LaunchArguments, call, dim, whole};
use crate::form::schedule::Affine;
use crate::form::tiled::{Flow, Herd, Item, L2Staging, Local, Share, Stream, TiledLaunch, TiledOperand};
use crate::form::tiling::GemvTiling;
use crate::form::weights::{TILE_BYTES, TILE_COLUMNS, TILE_ROWS};
use crate::pass::resident;
use crate::target::Target;

/// Tiles that a memory tile buffers for each core.
const STAGED_TILES: u8 = 4;

/// The possible numbers of tiles that a core receives at once. With few, the first call begins
/// early and little is left to compute after the last tile has arrived.
const PART_TILES: [u32; 3] = [1, 2, 4];

/// Cycles in which a core unpacks and multiplies a tile, and bytes of its program: the figures
/// of `gemv_q4nx` on AIE2P, for ranking only.
const TILE_CYCLES: u64 = 2457;
const PROGRAM_BYTES: f64 = 3500.0;

/// Returns the tilings that are tried without a mapping, fastest guess first: a large herd is
/// fast, but takes long to configure.
pub(super) fn guesses(sides: [u32; 2], target: &Target) -> Vec<GemvTiling> {
    let mut tiles = space(sides, target);
    // The sort is stable: of equal guesses, wider herds and smaller parts come first.
    tiles.sort_by_key(|tile| guess(sides, *tile, target));
    tiles
}

/// Estimates the cycles of a product with the configuration of its cores.
fn guess([n, k]: [u32; 2], tile: GemvTiling, target: &Target) -> u64 {
    let cores = u64::from(tile.herd.columns) * u64::from(tile.herd.rows);
    let tiles = u64::from(n / TILE_ROWS) * u64::from(k / TILE_COLUMNS);
    let dram = (tiles * u64::from(TILE_BYTES)) as f64 / target.dram_bytes_per_cycle();
    let control = &target.control;
    let each = control.configure_tile_us * 1e-6 + control.configure_byte_ns * 1e-9 * PROGRAM_BYTES;
    (tiles / cores * TILE_CYCLES).max(dram as u64) + cores * target.cycles(each)
}

/// Returns all tilings that divide the product.
pub(super) fn space([n, k]: [u32; 2], target: &Target) -> Vec<GemvTiling> {
    let across = k / TILE_COLUMNS;
    let side = super::gemv::side(target) as u8;
    let columns = (1..=target.array.columns as u8).rev();
    let herds = columns.flat_map(|columns| (1..=side).rev().map(move |rows| Herd { columns, rows }));
    let divides =
        |herd: &Herd| (n / TILE_ROWS).is_multiple_of(u32::from(herd.columns) * u32::from(herd.rows));
    let parts = PART_TILES.into_iter().filter(|tiles| across.is_multiple_of(*tiles));
    let parts: Vec<u32> = parts.map(|tiles| across / tiles).collect();
    let tile = |herd, depth, parts| GemvTiling {
        herd,
        rows: TILE_ROWS,
        step: TILE_ROWS,
        depth,
        staged: false,
        parts,
    };
    let of = |herd| parts.iter().flat_map(move |&parts| [2, 1].map(|depth| tile(herd, depth, parts)));
    herds.filter(divides).flat_map(of).collect()
}

/// Returns the tilings of a resident launch: chunks have the same size in all products, so
/// that only loop counts differ.
pub(super) fn resident([n, k]: [u32; 2], target: &Target) -> Vec<GemvTiling> {
    let Herd { columns, rows } = resident::product_herd(target);
    let herds =
        (1..=columns).rev().flat_map(|columns| (1..=rows).rev().map(move |rows| Herd { columns, rows }));
    let divides =
        |herd: &Herd| (n / TILE_ROWS).is_multiple_of(u32::from(herd.columns) * u32::from(herd.rows));
    let mut herds: Vec<Herd> = herds.filter(divides).collect();
    herds.sort_by_key(|herd| std::cmp::Reverse(u32::from(herd.columns) * u32::from(herd.rows)));
    let (rows, parts) = (TILE_ROWS, k / TILE_COLUMNS);
    let tile = |herd| GemvTiling { herd, rows, step: rows, depth: 2, staged: true, parts };
    herds.into_iter().map(tile).collect()
}

/// Returns the launch of a product with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    first: u32,
    [n, k]: [u32; 2],
    tile: GemvTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let GemvTiling { herd, rows, step, parts, staged: is_staged, .. } = tile;
    let (columns, side) = (u32::from(herd.columns), u32::from(herd.rows));
    let max = if is_staged { target.array.compute_rows } else { super::gemv::side(target) };
    let fits = columns <= target.array.columns && side <= max;
    let (down, across) = (n / TILE_ROWS, k / TILE_COLUMNS);
    if !fits || [rows, step] != [TILE_ROWS; 2] || !across.is_multiple_of(parts) {
        return None;
    }
    if !down.is_multiple_of(columns * side) {
        return None;
    }
    let loops = [down / (columns * side), parts];
    let part = k / parts;
    let sums = || vec![whole("n", TILE_ROWS)];
    let at = |name: &str| TiledOperand { name: name.to_owned(), offset: Affine::default() };
    let whole_vector = TiledOperand { offset: Affine::constant(0).plus(1, i64::from(part) * 2), ..at("x") };
    let x = if is_staged { at("x") } else { whole_vector };
    let product = Item::Call {
        entry: "gemv_q4nx".to_owned(),
        operands: vec![at("w"), x, at("sums")],
        parameters: vec![whole("rows", TILE_ROWS), whole("k", part)],
    };
    let tile_row = vec![
        call("zero_f32", &["sums"], sums()),
        Item::Loop { count: parts, body: vec![product] },
        call("store_bf16", &["sums", "y"], sums()),
    ];
    let [mut w, mut x, mut y] = if is_staged { staged(loops, k, tile) } else { direct(loops, k, tile) };
    (w.argument, x.argument, y.argument) = (launch.arguments[1], launch.arguments[0], launch.arguments[2]);
    w.base_bytes = u64::from(first / TILE_ROWS) * u64::from(across) * u64::from(TILE_BYTES);
    y.base_bytes = u64::from(first) * 2;
    Some(TiledLaunch {
        locals: vec![Local { name: "sums".to_owned(), bytes: TILE_ROWS * 4 }],
        ..TiledLaunch::of(
            launch.name.to_owned(),
            herd,
            vec![w, x, y],
            vec![Item::Loop { count: loops[0], body: tile_row }],
        )
    })
}

/// Returns the streams of tiles, vector and results: each core has a channel for its tiles.
fn direct([own, parts]: [u32; 2], k: u32, tile: GemvTiling) -> [Stream; 3] {
    let (across, side) = (k / TILE_COLUMNS, u64::from(tile.herd.rows));
    let words = across / parts * TILE_BYTES / 4;
    let own_bytes = u64::from(own) * u64::from(across) * u64::from(TILE_BYTES);
    let w = Stream {
        name: "w".to_owned(),
        argument: 0,
        flow: Flow::In,
        share: Share::Own,
        level: 2,
        depth: tile.depth,
        base_bytes: 0,
        column_bytes: side * own_bytes,
        row_bytes: own_bytes,
        dims: vec![dim(own, parts * words), dim(parts, words), dim(words, 1)],
        ahead_of: None,
        l2: None,
    };
    let x = vector(&w, k, side);
    let own_results = u64::from(own) * u64::from(TILE_ROWS) * 2;
    let y = Stream {
        name: "y".to_owned(),
        flow: Flow::Out,
        level: 1,
        depth: 2,
        column_bytes: side * own_results,
        row_bytes: own_results,
        dims: vec![dim(own, TILE_ROWS / 2), dim(TILE_ROWS / 2, 1)],
        ..w.clone()
    };
    [w, x, y]
}

/// Returns the streams of a staged product: one channel of each column carries the tiles of its
/// cores, which the memory tile divides and whose results it joins. The parts of the vector are sent
/// again for each tile row, so that a core needs no memory for the whole.
fn staged([own, parts]: [u32; 2], k: u32, tile: GemvTiling) -> [Stream; 3] {
    let [mut w, mut x, mut y] = direct([own, parts], k, tile);
    // The cores of a column take turns at its tile rows, so that strides are short.
    let side = u32::from(tile.herd.rows);
    (w.row_bytes, y.row_bytes) = (w.column_bytes / u64::from(side * own), u64::from(TILE_ROWS) * 2);
    w.dims[0].stride *= side;
    y.dims[0].stride *= side;
    w.l2 = Some(L2Staging::unsliced(STAGED_TILES, vec![dim(w.chunk_words(), 1)]));
    (x.level, x.depth, x.ahead_of) = (2, tile.depth, None);
    x.dims = vec![dim(own, 0), dim(parts, k / parts / 2), dim(k / parts / 2, 1)];
    y.l2 = Some(L2Staging::unsliced(2, vec![dim(y.chunk_words(), 1)]));
    [w, x, y]
}
