//! Adding a vector to each row of a matrix: each column's core has a range of
//! rows, which it processes part by part. A core keeps one part of the vector
//! while it receives the same part of each of its rows.

use super::nest::{LaunchArguments, VECTOR_ELEMENTS, call, dim, divisor, whole};
use crate::form::tiled::{Flow, Herd, Item, Share, Stream, TiledLaunch};
use crate::form::tiling::ElementTiling;
use crate::target::Target;

/// The maximum number of parts of a row.
const MAX_ROW_PARTS: u32 = 64;

/// Returns the tilings of `y[rows, n] = x + b`, fewest parts first. A chunk is a
/// part of a row.
pub(super) fn space([rows, n]: [u32; 2], target: &Target) -> Vec<ElementTiling> {
    let herd = Herd { columns: divisor(rows, target.array.columns) as u8, rows: 1 };
    let parts = (1..=MAX_ROW_PARTS).filter(|parts| n.is_multiple_of(parts * VECTOR_ELEMENTS));
    parts.map(|parts| ElementTiling { herd, chunk: n / parts }).collect()
}

/// Returns the launch with a tile, if the tile divides it.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    [rows, n]: [u32; 2],
    tile: ElementTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let columns = u32::from(tile.herd.columns);
    let fits = tile.herd.rows == 1 && (1..=target.array.columns).contains(&columns);
    let whole_vectors = tile.chunk > 0 && tile.chunk.is_multiple_of(VECTOR_ELEMENTS);
    let divides = fits && whole_vectors && rows.is_multiple_of(columns) && n.is_multiple_of(tile.chunk);
    divides.then(|| nest(launch, [rows / columns, n], tile))
}

fn nest(launch: LaunchArguments<'_>, [own, n]: [u32; 2], tile: ElementTiling) -> TiledLaunch {
    let (parts, words, part) = (n / tile.chunk, n / 2, tile.chunk / 2);
    let x = Stream {
        name: "x".to_owned(),
        argument: launch.arguments[0],
        flow: Flow::In,
        share: Share::Own,
        level: 2,
        depth: 2,
        base_bytes: 0,
        column_bytes: u64::from(own) * u64::from(words) * 4,
        row_bytes: 0,
        dims: vec![dim(parts, part), dim(own, words), dim(part, 1)],
        ahead_of: None,
        l2: None,
    };
    let b = Stream {
        name: "b".to_owned(),
        argument: launch.arguments[1],
        share: Share::All,
        level: 1,
        depth: if parts > 1 { 2 } else { 1 },
        column_bytes: 0,
        dims: vec![dim(parts, part), dim(part, 1)],
        ..x.clone()
    };
    let y = Stream { name: "y".to_owned(), argument: launch.arguments[2], flow: Flow::Out, ..x.clone() };
    let sum = call("add", &["x", "b", "y"], vec![whole("n", tile.chunk)]);
    let body = vec![Item::Loop { count: parts, body: vec![Item::Loop { count: own, body: vec![sum] }] }];
    let (name, streams) = (launch.name.to_owned(), vec![x, b, y]);
    TiledLaunch::of(name, tile.herd, streams, body)
}
