//! Pass 4, routing: the DMA channels of each circuit.

use std::collections::BTreeMap;

use girih_tensor::Result;

use super::place::home;
use super::unfit::Unfit;
use crate::form::placed::{Placed, PlacedLaunch};
use crate::form::routed::{Routed, RoutedCircuit, RoutedLaunch};
use crate::form::schedule::{Channel, Direction, Tile, TileKind};
use crate::form::tiled::{Circuit, Flow, Stream};
use crate::target::Target;

/// Assigns channels to every circuit, the lowest numbers first.
///
/// # Errors
/// An [`Unfit`] when a tile has too few channels.
pub fn route(placed: Placed, target: &Target) -> Result<Routed> {
    let mut launches = Vec::new();
    for launch in placed.launches {
        let group = format!("{}: {}", placed.name, launch.tiled.name);
        let circuits = circuits(&group, &launch, target)?;
        launches.push(RoutedLaunch { placed: launch, circuits });
    }
    Ok(Routed { name: placed.name, arguments: placed.arguments, launches })
}

/// Assigns channels; counts the used ones by tile and direction.
struct FreeChannels<'a> {
    group: &'a str,
    target: &'a Target,
    used: BTreeMap<(Tile, Direction), u8>,
}

impl FreeChannels<'_> {
    /// Assigns the next channel of a tile.
    fn take(&mut self, tile: Tile, direction: Direction) -> Result<Channel, Unfit> {
        let (dma, kind) = match tile.kind() {
            TileKind::Shim => (&self.target.shim.dma, "shim"),
            TileKind::Memory => (&self.target.memory.dma, "memory"),
            TileKind::Compute => (&self.target.compute.dma, "compute"),
        };
        let (have, name) = match direction {
            Direction::Mm2s => (dma.channels_out, "MM2S"),
            Direction::S2mm => (dma.channels_in, "S2MM"),
        };
        let have =
            if kind == "shim" && u32::from(tile.column) >= self.target.array.shim_columns { 0 } else { have };
        let next = self.used.entry((tile, direction)).or_default();
        if u32::from(*next) >= have {
            return Err(Unfit {
                pass: "route",
                group: self.group.to_owned(),
                resource: format!("{name} channels in the {kind} tile {tile}"),
                need: u64::from(*next) + 1,
                have: u64::from(have),
            });
        }
        *next += 1;
        Ok(tile.channel(direction, *next - 1))
    }

    fn each(&mut self, tiles: &[Tile], direction: Direction) -> Result<Vec<Channel>, Unfit> {
        tiles.iter().map(|&tile| self.take(tile, direction)).collect()
    }
}

fn circuits(group: &str, launch: &PlacedLaunch, target: &Target) -> Result<Vec<RoutedCircuit>, Unfit> {
    let mut channels = FreeChannels { group, target, used: BTreeMap::new() };
    let mut routed = Vec::new();
    for stream in &launch.tiled.streams {
        for (index, circuit) in stream.circuits(launch.tiled.herd).iter().enumerate() {
            routed.push(routed_circuit(launch, stream, index as u32, circuit, &mut channels)?);
        }
    }
    Ok(routed)
}

fn routed_circuit(
    launch: &PlacedLaunch,
    stream: &Stream,
    index: u32,
    circuit: &Circuit,
    channels: &mut FreeChannels<'_>,
) -> Result<RoutedCircuit, Unfit> {
    let column = home(&launch.tiled, stream, circuit, channels.target);
    let (shim, memory) = (Tile::new(column, 0), Tile::new(column, 1));
    let cores: Vec<Tile> = circuit.cores.iter().map(|&core| launch.tile(core)).collect();
    let (from_dram, to_cores) = (Direction::Mm2s, Direction::S2mm);
    let staged = stream.l2.is_some();
    let by_memory = if staged { vec![memory] } else { Vec::new() };
    let (shim, arrive, leave, cores) = match stream.flow {
        Flow::In => (
            channels.take(shim, from_dram)?,
            channels.each(&by_memory, Direction::S2mm)?,
            channels.each(&by_memory, Direction::Mm2s)?,
            channels.each(&cores, to_cores)?,
        ),
        Flow::Out => (
            channels.take(shim, Direction::S2mm)?,
            channels.each(&vec![memory; if staged { cores.len() } else { 0 }], Direction::S2mm)?,
            channels.each(&by_memory, Direction::Mm2s)?,
            channels.each(&cores, Direction::Mm2s)?,
        ),
    };
    Ok(RoutedCircuit { stream: stream.name.clone(), circuit: index, shim, arrive, leave, cores })
}
