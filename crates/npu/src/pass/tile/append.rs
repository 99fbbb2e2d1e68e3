//! Appending keys or values of a position to the chunks of attention: one core passes on head by head.
//! Heads follow one another in the row, and lie a chunk apart among the chunks.

use super::nest::{LaunchArguments, call, dim, whole};
use crate::form::groups::{ChunkHalf, chunk_bytes, values_offset};
use crate::form::tiled::{Flow, Herd, Item, Share, Stream, TiledLaunch};
use crate::form::tiling::ElementTiling;

/// Returns the only tiling: a head at a time.
pub(super) fn tiling(size: u32) -> ElementTiling {
    ElementTiling { herd: Herd { columns: 1, rows: 1 }, chunk: size }
}

/// Returns the launch with a tile, if it is the only one.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    [heads, size]: [u32; 2],
    half: ChunkHalf,
    tile: ElementTiling,
) -> Option<TiledLaunch> {
    if tile != tiling(size) || heads == 0 || size == 0 || !size.is_multiple_of(2) {
        return None;
    }
    let words = size / 2;
    let x = Stream {
        name: "x".to_owned(),
        argument: launch.arguments[0],
        flow: Flow::In,
        share: Share::Own,
        level: 1,
        depth: 2,
        base_bytes: 0,
        column_bytes: 0,
        row_bytes: 0,
        dims: vec![dim(heads, words), dim(words, 1)],
        ahead_of: None,
        l2: None,
    };
    let y = Stream {
        name: "y".to_owned(),
        argument: launch.arguments[1],
        flow: Flow::Out,
        base_bytes: match half {
            ChunkHalf::Keys => 0,
            ChunkHalf::Values => values_offset(size),
        },
        dims: vec![dim(heads, chunk_bytes(size) / 4), dim(words, 1)],
        ..x.clone()
    };
    let copy = call("copy", &["x", "y"], vec![whole("n", size)]);
    let body = vec![Item::Loop { count: heads, body: vec![copy] }];
    Some(TiledLaunch::of(launch.name.to_owned(), tile.herd, vec![x, y], body))
}
