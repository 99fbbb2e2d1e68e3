//! Placed programs: each core of a herd is a tile of the array, and each chunk
//! and local has an address. Streams have no channels yet.

use std::fmt;

use super::FormFault;
use super::program::{FormLaunch, FormProgram};
use super::schedule::{Argument, Tile, TileKind};
use super::tiled::TiledLaunch;
use crate::target::Target;

/// A program whose launches are placed.
pub type Placed = FormProgram<PlacedLaunch>;

/// A launch whose cores and buffers have addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedLaunch {
    /// The launch before placement.
    pub tiled: TiledLaunch,
    /// The tile of the herd's lower left core.
    pub origin: Tile,
    /// Buffers in L1, core by core.
    pub l1: Vec<CoreBuffer>,
    /// Buffers in L2.
    pub l2: Vec<SharedBuffer>,
}

/// A buffer in a core's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoreBuffer {
    /// The stream or local.
    pub name: String,
    /// The number of the stream's buffer; 0 for a local.
    pub slot: u8,
    /// The tile.
    pub tile: Tile,
    /// The address in the tile.
    pub address: u32,
    /// The size.
    pub bytes: u32,
}

/// A buffer in a memory tile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBuffer {
    /// The stream.
    pub stream: String,
    /// The number of the stream's circuit.
    pub circuit: u32,
    /// The number of the core whose chunk it holds, if chunks are joined; else 0.
    pub part: u32,
    /// The number of the buffer.
    pub slot: u8,
    /// The tile.
    pub tile: Tile,
    /// The address in the tile.
    pub address: u32,
    /// The size.
    pub bytes: u32,
}

impl PlacedLaunch {
    /// Returns the tile of a core of the herd.
    pub fn tile(&self, core: (u8, u8)) -> Tile {
        let (column, row) = self.tiled.place(core);
        Tile::new(self.origin.column + column, self.origin.row + row)
    }

    /// Returns all buffers: tile, address, bytes and name.
    fn buffers(&self) -> impl Iterator<Item = (Tile, u32, u32, &str)> {
        let l1 =
            self.l1.iter().map(|buffer| (buffer.tile, buffer.address, buffer.bytes, buffer.name.as_str()));
        l1.chain(
            self.l2.iter().map(|buffer| (buffer.tile, buffer.address, buffer.bytes, buffer.stream.as_str())),
        )
    }
}

impl FormLaunch for PlacedLaunch {
    const NAME: &'static str = "placed";

    /// The rules: every tile is on the grid; every buffer is within its tile's
    /// memory, above the reserved bytes; no two buffers of a tile overlap.
    fn faults(&self, _: &[Argument], target: &Target) -> Vec<FormFault> {
        let mut faults = Vec::new();
        let mut ends: Vec<(Tile, u32, u32, &str)> = self.buffers().collect();
        ends.sort_unstable();
        let mut previous: Option<(Tile, u64)> = None;
        for (tile, address, bytes, name) in ends {
            let mut fault = |sentence: String| {
                faults.push(FormFault::new(format!("{}: {name} in tile {tile}", self.tiled.name), sentence));
            };
            let memory = match tile.kind() {
                TileKind::Compute => &target.compute,
                TileKind::Memory => &target.memory,
                TileKind::Shim => {
                    fault("is in a shim tile, which has no memory".to_owned());
                    continue;
                }
            };
            if !on_grid(tile, target) {
                fault("is outside the array".to_owned());
            }
            let end = u64::from(address) + u64::from(bytes);
            if address < memory.reserved || end > u64::from(memory.bytes) || address % 4 != 0 {
                let (first, last) = (memory.reserved, memory.bytes);
                fault(format!("is at {address}..{end}; whole words within {first}..{last} are allowed"));
            }
            if let Some((_, end)) = previous.filter(|&(of, end)| of == tile && end > u64::from(address)) {
                fault(format!("begins at {address}, before the end of another buffer at {end}"));
            }
            previous = Some((tile, end));
        }
        faults
    }
}

/// Whether the array has this tile.
pub fn on_grid(tile: Tile, target: &Target) -> bool {
    let rows = 1 + target.array.memory_rows + target.array.compute_rows;
    u32::from(tile.column) < target.array.columns && u32::from(tile.row) < rows
}

impl fmt::Display for PlacedLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tiled)?;
        writeln!(f, "  at {}", self.origin)?;
        for CoreBuffer { name, slot, tile, address, bytes } in &self.l1 {
            writeln!(f, "  l1 {name} {slot} {tile} {address:#x} {bytes}")?;
        }
        for SharedBuffer { stream, circuit, part, slot, tile, address, bytes } in &self.l2 {
            writeln!(f, "  l2 {stream} {circuit} {part} {slot} {tile} {address:#x} {bytes}")?;
        }
        Ok(())
    }
}
