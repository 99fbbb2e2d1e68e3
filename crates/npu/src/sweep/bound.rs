//! What a tiled launch cannot be faster than: its busiest core, its busiest
//! stream, and DRAM, each as if nothing else held it up. Counted from the loop
//! nest with the figures of the simulator, so that no run is below it.

use girih_tensor::{Error, Result};
use serde::Serialize;

use crate::Target;
use crate::form::schedule::{Dim, ParameterValue};
use crate::form::tiled::{Flow, Item, Stream, TiledLaunch};
use crate::kernel::{self, Extent, Table};
use crate::sim::Cycle;

/// Least cycles of a launch, by what holds it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bound {
    /// Calls of the busiest core.
    pub core: Cycle,
    /// Words of the busiest stream.
    pub stream: Cycle,
    /// All bytes from and to DRAM, as long as their runs let them take.
    pub dram: Cycle,
    /// Bytes from and to DRAM.
    pub dram_bytes: u64,
    /// The length of runs that would take as long, in bytes.
    pub run_bytes: f64,
}

impl Bound {
    /// The bound of a launch.
    ///
    /// # Errors
    /// When it calls what is no entry, or one without times.
    pub fn of(launch: &TiledLaunch, target: &Target, table: &Table) -> Result<Bound> {
        let mut core = 0;
        for row in 0..launch.herd.rows {
            core = core.max(calls(&launch.body, row, table)?);
        }
        let (mut words, mut bytes, mut service) = (0, 0, 0.0);
        for stream in &launch.streams {
            let circuits = stream.circuits(launch.herd);
            for circuit in &circuits {
                let joined = if stream.joins() { circuit.cores.len() as u64 } else { 1 };
                let staging = stream.l2.as_ref().filter(|_| stream.flow == Flow::In);
                let passes = staging.map_or(1, |staging| u64::from(staging.passes));
                let own: u64 = stream.dims.iter().map(|dim| u64::from(dim.size)).product();
                words = words.max(own * joined.max(passes));
                let moved = own * joined * 4;
                bytes += moved;
                service += moved as f64 / target.dram.efficiency(run_bytes(stream, joined) as f64);
            }
        }
        let stream = words * 4 / u64::from(target.stream.bytes_per_cycle);
        let dram = (service / target.dram_bytes_per_cycle()).floor() as Cycle;
        // efficiency(run) = run / (run + a), solved for the run of this share.
        let share = (bytes as f64 / service).min(1.0 - 1e-9);
        let run_bytes = target.dram.run_bytes * share / (1.0 - share);
        Ok(Bound { core, stream, dram, dram_bytes: bytes, run_bytes })
    }

    /// The largest of them.
    pub fn cycles(&self) -> Cycle {
        self.core.max(self.stream).max(self.dram)
    }

    /// What holds the launch, if anything on the array does for most of its
    /// time.
    pub fn binds(&self, cycles: Cycle) -> &'static str {
        let most = self.cycles();
        if most * 2 < cycles {
            "latency"
        } else if most == self.core {
            "core"
        } else if most == self.dram {
            "DRAM"
        } else {
            "stream"
        }
    }
}

/// Cycles of the calls of a body that the cores of a row make.
fn calls(body: &[Item], row: u8, table: &Table) -> Result<Cycle> {
    let mut cycles: Cycle = 0;
    for item in body {
        cycles += match item {
            Item::Loop { count, body } => u64::from(*count) * calls(body, row, table)?,
            Item::On { first, last, body } if (*first..=*last).contains(&row) => calls(body, row, table)?,
            Item::On { .. } => 0,
            Item::Call { entry, operands, parameters } => {
                let at = kernel::ENTRIES.iter().position(|known| known.name == entry);
                let at = at.filter(|&at| table.knows(at));
                let at = at.ok_or_else(|| Error::new(format!("no times are known of the kernel {entry}")))?;
                let numbers = parameters.iter().map(|parameter| match &parameter.value {
                    ParameterValue::Int(value) => u32::try_from(value.constant).unwrap_or(0),
                    ParameterValue::Float(value) => value.to_bits(),
                });
                // Loads of different tiles never wait for one bank.
                let apart = |tile: usize| Extent { tile: tile as u32, address: 0, bytes: 0 };
                let places: Vec<Extent> = (0..operands.len()).map(apart).collect();
                table.cycles(at, &numbers.collect::<Vec<_>>(), &places)
            }
        };
    }
    Ok(cycles)
}

/// Contiguous bytes of a stream in DRAM, as its descriptors walk.
fn run_bytes(stream: &Stream, joined: u64) -> u64 {
    let mut dims = stream.dims.clone();
    if stream.joins() {
        let level = usize::from(stream.level);
        dims.insert(level, Dim { size: joined as u32, stride: (stream.row_bytes / 4) as u32 });
    }
    let mut run = 1;
    for dim in dims.iter().rev().filter(|dim| dim.size > 1) {
        if u64::from(dim.stride) != run {
            break;
        }
        run *= u64::from(dim.size);
    }
    run * 4
}
