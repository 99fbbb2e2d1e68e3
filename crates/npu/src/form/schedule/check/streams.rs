//! The rules of streams and cascades:
//!
//! * a route leads from an MM2S channel to S2MM channels that exist; a channel is
//!   in one route;
//! * no switch carries more streams in a direction than it has ports;
//! * a shim has channels only in a column with a shim DMA;
//! * a core sends over the cascade to its neighbour in the south or in the east,
//!   over one link, and receives over one link.

use std::collections::{BTreeMap, BTreeSet};

use super::{LaunchCheck, channels};
use crate::form::placed::on_grid;
use crate::form::schedule::{Cascade, Channel, Direction, Hop, Route, Tile, TileKind};
use crate::target::Target;

impl LaunchCheck<'_> {
    pub(super) fn routes(&mut self) {
        let before = self.faults.len();
        let mut seen = BTreeMap::new();
        for (index, route) in self.launch.routes.iter().enumerate() {
            let what = format!("route {index}");
            if route.to.is_empty() {
                self.fault(what.clone(), "has no destination");
            }
            let ends = route.to.iter().map(|hop| (hop.channel, Direction::S2mm));
            for (channel, need) in std::iter::once((route.from, Direction::Mm2s)).chain(ends) {
                if channel.direction != need {
                    self.fault(what.clone(), format!("uses {channel} in the wrong direction"));
                }
                if !self.exists(channel) {
                    self.fault(what.clone(), format!("uses {channel}, which does not exist"));
                }
                // Cores could share a shim channel only if they never sent at once, which cannot be checked here.
                if let Some(other) = seen.insert(channel, index) {
                    self.fault(what.clone(), format!("uses {channel}, which route {other} uses too"));
                }
            }
        }
        // The paths of channels outside the array could be long.
        if self.faults.len() == before {
            self.paths();
        }
    }

    /// Checks the switches on the way of each route.
    fn paths(&mut self) {
        for (index, route) in self.launch.routes.iter().enumerate() {
            for &Hop { channel, hops } in &route.to {
                let need = distance(route.from.tile, channel.tile);
                if hops != need {
                    let sentence = format!("counts {hops} switches to {channel}; there are {need}");
                    self.fault(format!("route {index}"), sentence);
                }
            }
        }
        for (tile, sentence) in overloaded(&self.launch.routes, self.target) {
            self.fault(format!("the switch of tile {tile}"), sentence);
        }
    }

    /// Whether the array has this channel.
    fn exists(&self, channel: Channel) -> bool {
        let dma = self.dma(channel.tile);
        let column = u32::from(channel.tile.column);
        let has_dma = channel.tile.kind() != TileKind::Shim || column < self.target.array.shim_columns;
        let numbered = u32::from(channel.number) < channels(dma, channel.direction);
        numbered && has_dma && on_grid(channel.tile, self.target)
    }

    pub(super) fn cascades(&mut self) {
        let (mut senders, mut receivers) = (BTreeSet::new(), BTreeSet::new());
        for &Cascade { from, to } in &self.launch.cascades {
            let what = format!("cascade from {from} to {to}");
            let is_core = |tile: Tile| tile.kind() == TileKind::Compute && on_grid(tile, self.target);
            let south = from.column == to.column && from.row.checked_sub(1) == Some(to.row);
            let east = from.row == to.row && from.column.checked_add(1) == Some(to.column);
            if !is_core(from) || !is_core(to) {
                self.fault(what.clone(), "connects a tile that is no core");
            } else if !south && !east {
                self.fault(
                    what.clone(),
                    "leads neither to the neighbour in the south nor to that in the east",
                );
            }
            if !senders.insert(from) {
                self.fault(what.clone(), format!("is the second link from {from}; a core has one"));
            }
            if !receivers.insert(to) {
                self.fault(what, format!("is the second link to {to}; a core has one"));
            }
        }
    }
}

/// The number of stream switches between two tiles.
pub(crate) fn distance(from: Tile, to: Tile) -> u8 {
    from.column.abs_diff(to.column).saturating_add(from.row.abs_diff(to.row))
}

/// Returns the switches that carry more streams in a direction than they have ports, each
/// with a sentence.
pub(crate) fn overloaded<'a>(
    routes: impl IntoIterator<Item = &'a Route>,
    target: &Target,
) -> Vec<(Tile, String)> {
    overloaded_ports(routes.into_iter().flat_map(switches), target)
}

/// As [`overloaded`], for the ports through which streams leave switches.
pub(crate) fn overloaded_ports(
    ports: impl IntoIterator<Item = SwitchPort>,
    target: &Target,
) -> Vec<(Tile, String)> {
    let mut loads: BTreeMap<SwitchPort, u32> = BTreeMap::new();
    for port in ports {
        *loads.entry(port).or_default() += 1;
    }
    let ports = |direction: &str| match direction {
        "north" => target.stream.ports_north,
        "south" => target.stream.ports_south,
        "east" => target.stream.ports_east,
        _ => target.stream.ports_west,
    };
    let over = loads.into_iter().filter(|((_, direction), load)| *load > ports(direction));
    let sentence = |((tile, direction), load): (SwitchPort, u32)| {
        (tile, format!("{load} streams go {direction}; it has {} ports there", ports(direction)))
    };
    over.map(sentence).collect()
}

/// A switch, and the direction in which a stream leaves it.
pub(crate) type SwitchPort = (Tile, &'static str);

/// The number of registers of switches that make a circuit: one for each port where it enters a switch, and one
/// for each port where it leaves it (aie-rt, `XAie_StrmConnCctEnable`).
pub(crate) fn circuit_registers(route: &Route) -> u32 {
    let leaves = switches(route);
    let ends = route.to.iter().map(|hop| hop.channel.tile);
    let entered: BTreeSet<Tile> = leaves.iter().map(|(tile, _)| *tile).chain(ends).collect();
    (leaves.len() + route.to.len() + entered.len()) as u32
}

/// Returns the switches of a route with the direction in which it leaves them:
/// first along the column of its source, then along the row. Destinations of a
/// broadcast share switches.
pub(crate) fn switches(route: &Route) -> BTreeSet<SwitchPort> {
    let mut switches = BTreeSet::new();
    for Hop { channel, .. } in &route.to {
        let (mut at, to) = (route.from.tile, channel.tile);
        while at != to {
            let direction = if at.row < to.row {
                "north"
            } else if at.row > to.row {
                "south"
            } else if at.column < to.column {
                "east"
            } else {
                "west"
            };
            switches.insert((at, direction));
            match direction {
                "north" => at.row += 1,
                "south" => at.row -= 1,
                "east" => at.column += 1,
                _ => at.column -= 1,
            }
        }
    }
    switches
}
