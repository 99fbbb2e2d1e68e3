//! Pass 3, placement: the tile of each core, and the address of each chunk and
//! local in tile memory.

use std::collections::BTreeMap;

use super::resident::lower_left;
use super::unfit::Unfit;
use crate::form::placed::{CoreBuffer, PlacedLaunch, SharedBuffer};
use crate::form::schedule::Tile;
use crate::form::tiled::{Circuit, Share, Stream, TiledLaunch};
use crate::target::Target;

/// Buffers are aligned to a vector register, so that loads are aligned.
const BUFFER_ALIGNMENT: u32 = 64;

/// Places a launch in the lower left corner of the array, or where it is resident.
///
/// # Errors
/// When the herd is larger than the array, or a tile's memory is too small.
pub fn place(group: &str, tiled: TiledLaunch, target: &Target) -> Result<PlacedLaunch, Unfit> {
    let unfit = |resource: String, need: u64, have: u64| Unfit {
        pass: "place",
        group: group.to_owned(),
        resource,
        need,
        have,
    };
    let (columns, rows) = (u32::from(tiled.herd.columns), u32::from(tiled.herd.rows));
    let (columns, rows) = if tiled.flat { (columns * rows, 1) } else { (columns, rows) };
    let corner = lower_left(target);
    let origin = tiled.resident.unwrap_or(corner);
    let columns = u32::from(origin.column) + columns;
    if columns > target.array.columns {
        return Err(unfit("columns".to_owned(), u64::from(columns), u64::from(target.array.columns)));
    }
    let rows = u32::from(origin.row.saturating_sub(corner.row)) + rows;
    if rows > target.array.compute_rows {
        return Err(unfit("rows of cores".to_owned(), u64::from(rows), u64::from(target.array.compute_rows)));
    }
    let mut placed = PlacedLaunch { tiled, origin, l1: Vec::new(), l2: Vec::new() };
    let mut free = BTreeMap::new();
    place_cores(&mut placed, target, &mut free);
    place_shared(&mut placed, target, &mut free);
    for (tile, end) in free {
        let memory = if tile.row < corner.row { &target.memory } else { &target.compute };
        if end > u64::from(memory.bytes) {
            let resource = format!("bytes of memory in tile {tile}");
            let have = u64::from(memory.bytes - memory.reserved);
            return Err(unfit(resource, end - u64::from(memory.reserved), have));
        }
    }
    Ok(placed)
}

/// Allocates bytes of a tile's memory and returns their address.
fn allocate(free: &mut BTreeMap<Tile, u64>, tile: Tile, reserved: u32, bytes: u32) -> u32 {
    let next = free.entry(tile).or_insert_with(|| u64::from(reserved.next_multiple_of(BUFFER_ALIGNMENT)));
    let address = *next;
    *next = (address + u64::from(bytes)).next_multiple_of(u64::from(BUFFER_ALIGNMENT));
    u32::try_from(address).unwrap_or(u32::MAX)
}

/// Places chunks of all streams, slot by slot, then locals, so that the two operands
/// of a call, which are loaded together, are mostly in different banks.
fn place_cores(placed: &mut PlacedLaunch, target: &Target, free: &mut BTreeMap<Tile, u64>) {
    let herd = placed.tiled.herd;
    for column in 0..herd.columns {
        for row in 0..herd.rows {
            let tile = placed.tile((column, row));
            let held = placed.tiled.streams.iter().filter(|stream| stream.is_held(row, herd));
            let streams: Vec<&Stream> = held.collect();
            let depth = streams.iter().map(|stream| stream.depth).max().unwrap_or(0);
            let chunks = (0..depth).flat_map(|slot| {
                let deep = streams.iter().filter(move |stream| slot < stream.depth);
                deep.map(move |stream| (stream.name.clone(), slot, stream.chunk_bytes()))
            });
            let locals = placed.tiled.locals.iter().map(|local| (local.name.clone(), 0, local.bytes));
            for (name, slot, bytes) in chunks.chain(locals).collect::<Vec<_>>() {
                let address = allocate(free, tile, target.compute.reserved, bytes);
                placed.l1.push(CoreBuffer { name, slot, tile, address, bytes });
            }
        }
    }
}

/// Places transfers in the memory tile of their column; those that a row shares are
/// distributed over the columns.
fn place_shared(placed: &mut PlacedLaunch, target: &Target, free: &mut BTreeMap<Tile, u64>) {
    for stream in &placed.tiled.streams {
        let Some(staging) = &stream.l2 else { continue };
        for (index, circuit) in stream.circuits(placed.tiled.herd).iter().enumerate() {
            let tile = Tile::new(home(&placed.tiled, stream, circuit, target), 1);
            let parts = if stream.joins() { circuit.cores.len() as u32 } else { 1 };
            for part in 0..parts {
                for slot in 0..staging.depth {
                    let bytes = stream.transfer_words().saturating_mul(4);
                    let address = allocate(free, tile, target.memory.reserved, bytes);
                    let (stream, circuit) = (stream.name.clone(), index as u32);
                    placed.l2.push(SharedBuffer { stream, circuit, part, slot, tile, address, bytes });
                }
            }
        }
    }
}

/// Returns the column whose shim tile and memory tile serve a circuit.
pub(super) fn home(launch: &TiledLaunch, stream: &Stream, circuit: &Circuit, target: &Target) -> u8 {
    let left = launch.resident.map_or(0, |corner| corner.column);
    match stream.share {
        Share::Own | Share::Column | Share::Bottom | Share::Top => {
            left + launch.place((circuit.column, circuit.row)).0
        }
        Share::Row => {
            (u32::from(circuit.row) * target.array.shim_columns / u32::from(launch.herd.rows)) as u8
        }
        Share::All => left,
    }
}
