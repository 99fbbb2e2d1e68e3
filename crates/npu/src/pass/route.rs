//! Pass 4, routing: the DMA channels of each circuit.

use std::collections::BTreeMap;

use girih_tensor::Result;

use super::place::home;
use super::resident::lower_left;
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
    /// The channels of each shim tile and direction that resident launches of other kernels use.
    others: u8,
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

    /// Assigns the next channel of the shim tile of a column. A kernel beside resident matrix
    /// products takes that of a following column if it has none.
    fn take_shim(&mut self, column: u8, direction: Direction) -> Result<Channel, Unfit> {
        let (others, columns) = (self.others, self.target.array.shim_columns as u8);
        let mut take = |column: u8| {
            let tile = Tile::new(column, 0);
            self.used.entry((tile, direction)).or_insert(others);
            self.take(tile, direction)
        };
        let first = take(column);
        if others == 0 || first.is_ok() {
            return first;
        }
        let mut following = (1..columns).map(|next| take((column + next) % columns));
        following.find(Result::is_ok).unwrap_or(first)
    }

    fn each(&mut self, tiles: &[Tile], direction: Direction) -> Result<Vec<Channel>, Unfit> {
        tiles.iter().map(|&tile| self.take(tile, direction)).collect()
    }
}

fn circuits(group: &str, launch: &PlacedLaunch, target: &Target) -> Result<Vec<RoutedCircuit>, Unfit> {
    // Attention above the products needs all channels.
    let others = u8::from(launch.origin.row > lower_left(target).row && !launch.tiled.flat);
    let mut channels = FreeChannels { group, target, used: BTreeMap::new(), others };
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
    let memory = Tile::new(column, 1);
    let cores: Vec<Tile> = circuit.cores.iter().map(|&core| launch.tile(core)).collect();
    let (from_dram, to_cores) = (Direction::Mm2s, Direction::S2mm);
    let staged = stream.l2.is_some();
    let by_memory = if staged { vec![memory] } else { Vec::new() };
    // A memory tile that joins or divides the chunks of its column has a channel for each core.
    let by_core = if stream.joins() { vec![memory; cores.len()] } else { by_memory.clone() };
    let (shim, arrive, leave, cores) = match stream.flow {
        Flow::In => (
            channels.take_shim(column, from_dram)?,
            channels.each(&by_memory, Direction::S2mm)?,
            channels.each(&by_core, Direction::Mm2s)?,
            channels.each(&cores, to_cores)?,
        ),
        Flow::Out => (
            channels.take_shim(column, Direction::S2mm)?,
            channels.each(&vec![memory; if staged { cores.len() } else { 0 }], Direction::S2mm)?,
            channels.each(&by_memory, Direction::Mm2s)?,
            channels.each(&cores, Direction::Mm2s)?,
        ),
    };
    Ok(RoutedCircuit { stream: stream.name.clone(), circuit: index, shim, arrive, leave, cores })
}
