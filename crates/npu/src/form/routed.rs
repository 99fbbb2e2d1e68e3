//! Routed programs: each circuit of a stream has DMA channels, from the shim tile
//! to the cores or back, directly or staged in a memory tile.

use std::collections::BTreeSet;
use std::fmt;

use super::FormFault;
use super::placed::PlacedLaunch;
use super::program::{FormLaunch, FormProgram};
use super::schedule::check::streams::{distance, overloaded};
use super::schedule::{Argument, Channel, Direction, Hop, Route, TileKind};
use super::tiled::Flow;
use crate::target::Target;

/// A program whose launches are routed.
pub type Routed = FormProgram<RoutedLaunch>;

/// A launch whose circuits have channels.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedLaunch {
    /// The launch before routing.
    pub placed: PlacedLaunch,
    /// The channels of each circuit of each stream; printed as `way`.
    pub circuits: Vec<RoutedCircuit>,
}

/// The DMA channels of one circuit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedCircuit {
    /// The stream.
    pub stream: String,
    /// The number of the stream's circuit.
    pub circuit: u32,
    /// The channel of the shim tile.
    pub shim: Channel,
    /// Channels that write to the memory tile; empty without staging in L2.
    pub arrive: Vec<Channel>,
    /// Channels that read from the memory tile; empty without staging in L2.
    pub leave: Vec<Channel>,
    /// The cores' channels, in the order of the circuit's cores.
    pub cores: Vec<Channel>,
}

impl RoutedCircuit {
    /// Returns the routes from channel to channel.
    pub fn routes(&self, flow: Flow) -> Vec<Route> {
        let route = |from: Channel, to: &[Channel]| {
            let to =
                to.iter().map(|&channel| Hop { channel, hops: distance(from.tile, channel.tile) }).collect();
            Route { from, to }
        };
        match (flow, self.arrive.is_empty()) {
            (Flow::In, true) => vec![route(self.shim, &self.cores)],
            (Flow::In, false) => {
                let parts = self.cores.chunks(self.cores.len() / self.leave.len().max(1));
                let far = self.leave.iter().zip(parts).map(|(&channel, cores)| route(channel, cores));
                std::iter::once(route(self.shim, &self.arrive)).chain(far).collect()
            }
            (Flow::Out, true) => self.cores.iter().map(|&core| route(core, &[self.shim])).collect(),
            (Flow::Out, false) => {
                let near = self.cores.iter().zip(&self.arrive).map(|(&core, &into)| route(core, &[into]));
                near.chain(self.leave.iter().map(|&channel| route(channel, &[self.shim]))).collect()
            }
        }
    }

    fn channels(&self) -> impl Iterator<Item = Channel> {
        let inner = self.arrive.iter().chain(&self.leave).chain(&self.cores);
        std::iter::once(self.shim).chain(inner.copied())
    }
}

impl FormLaunch for RoutedLaunch {
    const NAME: &'static str = "routed";

    /// The rules: each circuit is routed once; each channel exists and is used
    /// once; no switch carries more streams in a direction than it has ports.
    fn faults(&self, arguments: &[Argument], target: &Target) -> Vec<FormFault> {
        let mut faults = self.placed.faults(arguments, target);
        let name = &self.placed.tiled.name;
        let mut seen = BTreeSet::new();
        for channel in self.circuits.iter().flat_map(RoutedCircuit::channels) {
            let dma = match channel.tile.kind() {
                TileKind::Shim => &target.shim.dma,
                TileKind::Memory => &target.memory.dma,
                TileKind::Compute => &target.compute.dma,
            };
            let have = if channel.direction == Direction::Mm2s { dma.channels_out } else { dma.channels_in };
            if u32::from(channel.number) >= have {
                faults.push(FormFault::new(
                    format!("{name}: {channel}"),
                    format!("the tile has {have} such channels"),
                ));
            }
            if !seen.insert(channel) {
                faults.push(FormFault::new(format!("{name}: {channel}"), "two circuits use the channel"));
            }
        }
        for stream in &self.placed.tiled.streams {
            let circuits = stream.circuits(self.placed.tiled.herd).len();
            let routed = self.circuits.iter().filter(|circuit| circuit.stream == stream.name).count();
            if circuits != routed {
                let sentence = format!("has {circuits} circuits; {routed} are routed");
                faults.push(FormFault::new(format!("{name}: {}", stream.name), sentence));
            }
        }
        faults.extend(self.overloaded(target));
        faults
    }
}

impl RoutedLaunch {
    /// Returns the switches that carry more circuits than they have ports.
    fn overloaded(&self, target: &Target) -> Vec<FormFault> {
        let flow = |circuit: &RoutedCircuit| {
            let stream = self.placed.tiled.streams.iter().find(|stream| stream.name == circuit.stream);
            stream.map(|stream| stream.flow)
        };
        let routes = self.circuits.iter().filter_map(|circuit| Some(circuit.routes(flow(circuit)?)));
        let routes: Vec<Route> = routes.flatten().collect();
        let fault = |(tile, sentence)| {
            FormFault::new(format!("{}: the switch of tile {tile}", self.placed.tiled.name), sentence)
        };
        overloaded(&routes, target).into_iter().map(fault).collect()
    }
}

impl fmt::Display for RoutedLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.placed)?;
        self.circuits.iter().try_for_each(|circuit| writeln!(f, "  {circuit}"))
    }
}

impl fmt::Display for RoutedCircuit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "way {} {} shim {}", self.stream, self.circuit, self.shim)?;
        if !self.arrive.is_empty() {
            f.write_str(" arrive")?;
            self.arrive.iter().try_for_each(|channel| write!(f, " {channel}"))?;
            f.write_str(" leave")?;
            self.leave.iter().try_for_each(|channel| write!(f, " {channel}"))?;
        }
        f.write_str(" cores")?;
        self.cores.iter().try_for_each(|channel| write!(f, " {channel}"))
    }
}
