//! Lower bounds on the cycles of a tiled launch: its busiest core, its busiest
//! stream, and DRAM, each without any wait. They are computed from the loop
//! nest with the simulator's figures, so no simulated run is faster.

use girih_npu::Target;
use girih_npu::form::schedule::{Dim, ParameterValue};
use girih_npu::form::tiled::{Flow, Item, Stream, TiledLaunch};
use girih_npu::kernel::{self, KernelTimes, OperandExtent};
use girih_npu::sim::Cycle;
use girih_tensor::{Error, Result};
use serde::Serialize;

/// The minimum cycles of a launch, by limiting part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LaunchBound {
    /// Cycles of the calls of the busiest core.
    pub core: Cycle,
    /// Cycles of the words of the busiest stream.
    pub stream: Cycle,
    /// Cycles of all bytes from and to DRAM, at the efficiency of their runs.
    pub dram: Cycle,
    /// Bytes from and to DRAM.
    pub dram_bytes: u64,
    /// The mean run length: with equal runs of this many bytes, DRAM would take
    /// the same time.
    pub run_bytes: f64,
}

impl LaunchBound {
    /// What can limit a launch.
    pub const LIMITS: [&str; 4] = ["core", "DRAM", "stream", "latency"];

    /// Counts the bounds of a launch.
    ///
    /// # Errors
    /// When the launch calls an unknown entry, or one without times.
    pub fn of(launch: &TiledLaunch, target: &Target, table: &KernelTimes) -> Result<LaunchBound> {
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
        // efficiency(run) = run / (run + a), solved for `run`.
        let share = (bytes as f64 / service).min(1.0 - 1e-9);
        let run_bytes = target.dram.run_bytes * share / (1.0 - share);
        Ok(LaunchBound { core, stream, dram, dram_bytes: bytes, run_bytes })
    }

    /// The largest of the three bounds.
    pub fn cycles(&self) -> Cycle {
        self.core.max(self.stream).max(self.dram)
    }

    /// The part that limits a launch of `cycles`, one of [`LIMITS`](Self::LIMITS), or `latency` if no part is
    /// busy for half of the cycles.
    pub fn binds(&self, cycles: Cycle) -> &'static str {
        let max = self.cycles();
        if max * 2 < cycles {
            "latency"
        } else if max == self.core {
            "core"
        } else if max == self.dram {
            "DRAM"
        } else {
            "stream"
        }
    }
}

/// Cycles of the calls in a body by a core of this row.
fn calls(body: &[Item], row: u8, table: &KernelTimes) -> Result<Cycle> {
    let mut cycles: Cycle = 0;
    for item in body {
        cycles += match item {
            Item::Loop { count, body } => u64::from(*count) * calls(body, row, table)?,
            Item::On { first, last, body } if (*first..=*last).contains(&row) => calls(body, row, table)?,
            Item::On { .. } => 0,
            Item::Call { entry, operands, parameters } => {
                let at = kernel::ENTRIES.iter().position(|known| known.name == entry);
                let at = at.filter(|&at| table.knows(at));
                let at = at.ok_or_else(|| {
                    Error::new(format!("the kernel {entry} has no times in the target's table"))
                })?;
                let numbers = parameters.iter().map(|parameter| match &parameter.value {
                    ParameterValue::Int(value) => u32::try_from(value.constant).unwrap_or(0),
                    ParameterValue::Float(value) => value.to_bits(),
                });
                // Operands in different tiles never conflict over a bank.
                let apart = |tile: usize| OperandExtent { tile: tile as u32, address: 0, bytes: 0 };
                let extents: Vec<OperandExtent> = (0..operands.len()).map(apart).collect();
                table.cycles(at, &numbers.collect::<Vec<_>>(), &extents)
            }
        };
    }
    Ok(cycles)
}

/// Contiguous bytes of a stream in DRAM, in the order of its descriptors.
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
