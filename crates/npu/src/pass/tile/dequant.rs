//! Unpacking of Q4NX weights in DRAM (seed 001's dequantization engine): each core reads
//! tiles and writes groups of bf16, for matrix products that read them several times.

use super::nest::{LaunchArguments, dim, whole};
use crate::form::schedule::{Affine, Parameter, ParameterValue};
use crate::form::tiled::{Flow, Herd, Item, Share, Stream, TiledLaunch, TiledOperand};
use crate::form::tiling::ElementTiling;
use crate::form::weights::{GROUP_COLUMNS, TILE_BYTES, TILE_COLUMNS, TILE_ROWS};
use crate::target::Target;

/// Values of a group, all rows.
const GROUP_VALUES: u32 = TILE_ROWS * GROUP_COLUMNS;

/// Groups of a tile.
const TILE_GROUPS: u32 = TILE_COLUMNS / GROUP_COLUMNS;

/// Returns all tilings that divide the matrix, the largest herds and chunks first.
pub(super) fn space([n, k]: [u32; 2], target: &Target) -> Vec<ElementTiling> {
    let tiles = n / TILE_ROWS * (k / TILE_COLUMNS);
    let side = super::gemv::side(target) as u8;
    let columns = 1..=target.array.columns as u8;
    let herds = columns.flat_map(|columns| (1..=side).map(move |rows| Herd { columns, rows }));
    let cores = |herd: &Herd| u32::from(herd.columns) * u32::from(herd.rows);
    let mut herds: Vec<Herd> = herds.filter(|herd| tiles.is_multiple_of(cores(herd))).collect();
    herds.sort_by_key(|herd| std::cmp::Reverse((cores(herd), herd.columns)));
    let chunks = [8, 4, 2, 1].map(|groups| groups * GROUP_VALUES);
    herds.into_iter().flat_map(|herd| chunks.map(|chunk| ElementTiling { herd, chunk })).collect()
}

/// Returns the launch with a tile, if the tile divides the matrix.
pub(super) fn build(
    launch: LaunchArguments<'_>,
    [n, k]: [u32; 2],
    tile: ElementTiling,
    target: &Target,
) -> Option<TiledLaunch> {
    let ElementTiling { herd, chunk } = tile;
    let (columns, side) = (u32::from(herd.columns), u32::from(herd.rows));
    let tiles = n / TILE_ROWS * (k / TILE_COLUMNS);
    let groups = chunk / GROUP_VALUES;
    let whole_groups = chunk.is_multiple_of(GROUP_VALUES) && groups > 0 && TILE_GROUPS.is_multiple_of(groups);
    let fits = columns <= target.array.columns && side <= super::gemv::side(target);
    if !fits || !whole_groups || !tiles.is_multiple_of(columns * side) {
        return None;
    }
    let (own, parts) = (tiles / (columns * side), TILE_GROUPS / groups);
    let at = |name: &str| TiledOperand { name: name.to_owned(), offset: Affine::default() };
    let first = ParameterValue::Int(Affine::constant(0).plus(1, i64::from(groups)));
    let unpack = Item::Call {
        entry: "dequant_q4nx".to_owned(),
        operands: vec![at("w"), at("y")],
        parameters: vec![Parameter { name: "first".to_owned(), value: first }, whole("groups", groups)],
    };
    let body = vec![Item::Loop { count: own, body: vec![Item::Loop { count: parts, body: vec![unpack] }] }];
    let own_bytes = u64::from(own) * u64::from(TILE_BYTES);
    let words = TILE_BYTES / 4;
    let w = Stream {
        name: "w".to_owned(),
        argument: launch.arguments[0],
        flow: Flow::In,
        share: Share::Own,
        level: 1,
        depth: 2,
        base_bytes: 0,
        column_bytes: u64::from(side) * own_bytes,
        row_bytes: own_bytes,
        dims: vec![dim(own, words), dim(words, 1)],
        ahead_of: None,
        l2: None,
    };
    let (part, own_bytes) = (chunk / 2, u64::from(own) * u64::from(TILE_GROUPS * GROUP_VALUES) * 2);
    let y = Stream {
        name: "y".to_owned(),
        argument: launch.arguments[1],
        flow: Flow::Out,
        level: 2,
        column_bytes: u64::from(side) * own_bytes,
        row_bytes: own_bytes,
        dims: vec![dim(own, parts * part), dim(parts, part), dim(part, 1)],
        ..w.clone()
    };
    let (name, streams) = (launch.name.to_owned(), vec![w, y]);
    Some(TiledLaunch::of(name, herd, streams, body))
}
