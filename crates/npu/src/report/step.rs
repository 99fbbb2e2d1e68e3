//! One step: its programs run once each with everything counted, and the
//! counts put together for all runs.

use std::collections::BTreeMap;

use girih_graph::Graph;
use girih_tensor::Result;
use serde::Serialize;

use super::count::{ChannelCounts, CoreCounts, Counter, Counts, EntryCounts};
use super::energy::Energy;
use super::limits::{Bound, Limits, Shares};
use super::walk::{self, Span, SpanKind};
use crate::Target;
use crate::driver::{Compiled, Timed, costs};
use crate::form::groups::{ArrayProgram, StepAction, TensorKind};
use crate::form::schedule::{Channel, Direction, Tile, TileKind};
use crate::memory::Memory;
use crate::sim::{self, Order, Simulator};

/// A step of a model.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// The key of its graph.
    pub key: String,
    /// Rows of the step: 1 for a decoded token.
    pub rows: u32,
    /// Tokens before it.
    pub position: u32,
    /// From its beginning to its end, one thing after another.
    pub seconds: f64,
    /// Of these, the array.
    pub array_seconds: f64,
    /// The host's own work: counted, then timed by the target's figures.
    pub host_seconds: f64,
    /// Making bytes visible to the other side.
    pub sync_seconds: f64,
    /// Of the array's time, dispatching.
    pub dispatch_seconds: f64,
    /// Of the array's time, configuring.
    pub configure_seconds: f64,
    /// Runs of programs.
    pub submissions: u64,
    /// Launches in them.
    pub launches: u64,
    /// Multiplications on the array.
    pub macs: u64,
    /// Bytes that the array read from DRAM.
    pub dram_read: u64,
    /// Bytes that the array wrote to DRAM.
    pub dram_written: u64,
    /// Bytes that the host wrote for the array.
    pub host_written: u64,
    /// Bytes that the host read of what the array wrote.
    pub host_read: u64,
    /// Bytes of weights, written once before the first step.
    pub preload_bytes: u64,
    /// Each program.
    pub programs: Vec<ProgramUse>,
    /// Each tile, over the whole step.
    pub tiles: Vec<TileUse>,
    /// Each kernel entry, over the whole step.
    pub entries: Vec<EntryUse>,
    /// The step in the order of its time.
    pub spans: Vec<Span>,
    /// The parts that make one layer, if layers repeat.
    pub layer: Option<(usize, usize)>,
    /// The estimate of energy.
    pub energy: Energy,
}

/// A program and how often it runs.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramUse {
    /// Its name.
    pub name: String,
    /// Runs in the step.
    pub runs: u64,
    /// Seconds of a run by itself, from dispatch to end.
    pub seconds: f64,
    /// Seconds of all its runs; one that follows another is dispatched sooner.
    pub step_seconds: f64,
    /// Of these, the dispatch.
    pub dispatch_seconds: f64,
    /// Of these, configuring the array.
    pub configure_seconds: f64,
    /// Its launches, in order.
    pub launches: Vec<LaunchUse>,
}

/// One launch in one run.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchUse {
    /// Its name.
    pub name: String,
    /// What it computes.
    pub kernel: String,
    /// The kernel entry that took most cycles.
    pub entry: String,
    /// Cores in use.
    pub cores: usize,
    /// Seconds, without configuring.
    pub seconds: f64,
    /// Seconds of configuring the array for it.
    pub configure_seconds: f64,
    /// Multiplications and additions that count.
    pub operations: u64,
    /// Multiplications that were done.
    pub macs: u64,
    /// Bytes read from DRAM.
    pub dram_read: u64,
    /// Bytes written to DRAM.
    pub dram_written: u64,
    /// Bytes that all streams moved.
    pub streamed: u64,
    /// Share of the time that a core in use was within calls, on average.
    pub busy: f64,
    /// Share of the time that a core in use waited for locks or the cascade.
    pub waits: f64,
    /// Operations in a second.
    pub ops_per_second: f64,
    /// Bytes of DRAM in a second.
    pub bytes_per_second: f64,
    /// Operations for each byte of DRAM.
    pub intensity: f64,
    /// The share of what the roofline allows at this intensity.
    pub of_roof: f64,
    /// How busy each part was.
    pub shares: Shares,
    /// What keeps it from being faster.
    pub bound: Bound,
    /// Each channel.
    pub channels: Vec<ChannelUse>,
}

/// Whether two launches are one kernel that takes the same time and traffic.
pub(super) fn alike(a: &LaunchUse, b: &LaunchUse) -> bool {
    let what = |launch: &LaunchUse| (launch.operations, launch.dram_read, launch.dram_written);
    a.kernel == b.kernel && a.entry == b.entry && a.seconds == b.seconds && what(a) == what(b)
}

/// A channel in one launch.
#[derive(Clone, Debug, Serialize)]
pub struct ChannelUse {
    /// Its name: tile, direction, number.
    pub channel: String,
    /// Bytes that it moved.
    pub bytes: u64,
    /// Stretches between two stops.
    pub moves: u64,
    /// Share of the launch's time that it moved words.
    pub moving: f64,
}

/// A tile in the whole step.
#[derive(Clone, Debug, Serialize)]
pub struct TileUse {
    /// Counted from the left.
    pub column: u8,
    /// Counted from the bottom.
    pub row: u8,
    /// Share of the array's time that its core was within calls; of the other
    /// tiles, that its busiest channel moved words.
    pub busy: f64,
    /// Share that its core waited for locks or the cascade.
    pub waits: f64,
    /// Bytes that came in over its channels.
    pub bytes_in: u64,
    /// Bytes that left over them.
    pub bytes_out: u64,
}

/// A kernel entry in the whole step.
#[derive(Clone, Debug, Serialize)]
pub struct EntryUse {
    /// Its name.
    pub entry: String,
    /// Calls on all cores.
    pub calls: u64,
    /// Seconds within them, all cores added up.
    pub core_seconds: f64,
    /// Multiplications.
    pub macs: u64,
}

/// A program's run.
struct Run {
    timed: Timed,
    launches: Vec<Counts>,
    /// Cycles of the array in the step, all runs.
    cycles: u64,
}

impl StepReport {
    /// Simulates a step of all rows, after so many tokens.
    pub(super) fn of(
        graph: &Graph,
        compiled: &Compiled,
        target: &Target,
        limits: &Limits,
        position: u32,
    ) -> Result<StepReport> {
        let mut runs = runs(compiled, target)?;
        let programs: Vec<Timed> = runs.iter().map(|run| run.timed.clone()).collect();
        let costs = costs(graph, compiled, target, &programs, position);
        for (step, cost) in compiled.groups.steps.iter().zip(&costs.parts) {
            if let StepAction::Array { program, .. } = step {
                runs[*program as usize].cycles += cost.array_cycles;
            }
        }
        let spans = walk::walk(graph, compiled, target, &costs);
        let took = |kind: SpanKind| {
            spans.iter().filter(|span| span.kind == kind).map(|span| span.seconds).sum::<f64>()
        };
        let array_seconds = took(SpanKind::Array);
        let sum = |of: &dyn Fn(&sim::Report) -> u64| {
            runs.iter().map(|run| run.timed.runs * of(&run.timed.report)).sum::<u64>()
        };
        let (dram_read, dram_written) =
            (sum(&|report| report.totals.dram_read), sum(&|report| report.totals.dram_written));
        let macs = sum(&|report| report.totals.macs);
        let total = costs.total();
        let weights = compiled.groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static);
        let programs = compiled.groups.programs.iter().zip(&runs);
        let bytes = dram_read + dram_written;
        Ok(StepReport {
            key: graph.key.to_string(),
            rows: graph.key.rows,
            position,
            seconds: spans.last().map_or(0.0, |span| span.begin + span.seconds),
            array_seconds,
            host_seconds: took(SpanKind::Host),
            sync_seconds: took(SpanKind::Sync),
            dispatch_seconds: target
                .seconds(total.array_cycles - sum(&|report| report.cycles - report.dispatch)),
            configure_seconds: target.seconds(total.configure_cycles),
            submissions: total.submissions,
            launches: total.launches,
            macs,
            dram_read,
            dram_written,
            host_written: total.written_bytes,
            host_read: total.read_bytes,
            preload_bytes: weights.map(|tensor| tensor.bytes()).sum(),
            programs: programs.map(|(program, run)| program_use(program, run, target, limits)).collect(),
            tiles: tiles(&runs, target, array_seconds),
            entries: entries(&runs, target),
            layer: walk::layer(compiled).map(|parts| (parts.start, parts.end)),
            spans,
            energy: Energy::of(target, graph.key.rows > 1, array_seconds, bytes, macs),
        })
    }

    /// Whether it is a prompt rather than one decoded token.
    pub fn is_prefill(&self) -> bool {
        self.rows > 1
    }
}

/// Runs each program once, with everything counted.
fn runs(compiled: &Compiled, target: &Target) -> Result<Vec<Run>> {
    let mut simulator = Simulator::new(target)?;
    let mut all = Vec::new();
    for (number, schedule) in compiled.schedules.iter().enumerate() {
        let mut counter = Counter::new(schedule);
        let mut memory = Memory::TimeOnly;
        let report = simulator.run(schedule, &[], &mut memory, &mut counter, Order::Earliest)?;
        // Between two programs the array holds the other one's configuration.
        simulator.forget();
        let steps = compiled.groups.steps.iter();
        let one = |step: &&StepAction| matches!(step, StepAction::Array { program, .. } if *program as usize == number);
        let timed = Timed { name: schedule.name.clone(), runs: steps.filter(one).count() as u64, report };
        all.push(Run { timed, launches: counter.launches, cycles: 0 });
    }
    Ok(all)
}

fn program_use(program: &ArrayProgram, run: &Run, target: &Target, limits: &Limits) -> ProgramUse {
    let Run { timed: Timed { report, runs, .. }, launches, cycles } = run;
    let uses = report.launches.iter().zip(launches).enumerate().map(|(at, (launch, counts))| {
        let task = program.launches.get(at).filter(|task| task.name == launch.name);
        let kernel = task.map_or("", |task| task.kernel.name());
        let operations = task.map_or(2 * launch.totals.macs, |task| task.kernel.flops());
        launch_use(launch, counts, (kernel, operations), target, limits)
    });
    ProgramUse {
        name: program.name.clone(),
        runs: *runs,
        seconds: target.seconds(report.cycles),
        step_seconds: target.seconds(*cycles),
        dispatch_seconds: target.seconds(report.dispatch),
        configure_seconds: target.seconds(report.configure),
        launches: uses.collect(),
    }
}

fn launch_use(
    launch: &sim::LaunchReport,
    counts: &Counts,
    (kernel, operations): (&str, u64),
    target: &Target,
    limits: &Limits,
) -> LaunchUse {
    let seconds = target.seconds(launch.cycles);
    let share = |cycles: u64| cycles as f64 / launch.cycles.max(1) as f64;
    let totals = &launch.totals;
    let bytes = totals.dram_read + totals.dram_written;
    let intensity = operations as f64 / bytes.max(1) as f64;
    let cores = launch.cores.len();
    let mean = |of: fn(&CoreCounts) -> u64| {
        counts.cores.values().map(|core| share(of(core))).sum::<f64>() / cores.max(1) as f64
    };
    let shares = shares(launch, counts, target);
    let slowest = counts.entries.iter().max_by_key(|(_, entry)| entry.cycles);
    let channel = |(channel, counts): (&Channel, &ChannelCounts)| ChannelUse {
        channel: channel.to_string(),
        bytes: counts.bytes,
        moves: counts.moves,
        moving: share(counts.moving),
    };
    let ops_per_second = operations as f64 / seconds.max(f64::MIN_POSITIVE);
    LaunchUse {
        name: launch.name.clone(),
        kernel: kernel.to_owned(),
        entry: slowest.map_or(String::new(), |(name, _)| (*name).to_owned()),
        cores,
        seconds,
        configure_seconds: target.seconds(counts.configure),
        operations,
        macs: totals.macs,
        dram_read: totals.dram_read,
        dram_written: totals.dram_written,
        streamed: totals.streamed,
        busy: mean(|core| core.busy),
        waits: mean(|core| core.locks + core.cascade),
        ops_per_second,
        bytes_per_second: bytes as f64 / seconds.max(f64::MIN_POSITIVE),
        intensity,
        of_roof: ops_per_second / limits.roof(intensity).max(f64::MIN_POSITIVE),
        shares,
        bound: shares.bound(),
        channels: counts.channels.iter().map(channel).collect(),
    }
}

fn shares(launch: &sim::LaunchReport, counts: &Counts, target: &Target) -> Shares {
    let cycles = launch.cycles.max(1) as f64;
    let control = &target.control;
    let push = target.cycles((control.block_write_ns + control.write_ns) * 1e-9);
    let stream = f64::from(target.stream.bytes_per_cycle);
    let most = |shares: &mut dyn Iterator<Item = f64>| shares.fold(0.0, f64::max);
    // A stream that shares DRAM moves slowly; so its words count, not its time.
    let moving = |(_, channel): (&Channel, &ChannelCounts)| channel.bytes as f64 / stream / cycles;
    Shares {
        cores: most(&mut counts.cores.values().map(|core| core.busy as f64 / cycles)),
        dram: launch.totals.dram_service as f64 / (target.dram_bytes_per_cycle() * cycles),
        streams: most(&mut counts.channels.iter().map(moving)),
        control: (launch.totals.pushes * push) as f64 / cycles,
    }
}

/// All tiles of the grid, the unused ones too.
fn tiles(runs: &[Run], target: &Target, seconds: f64) -> Vec<TileUse> {
    let cycles = (seconds * target.clock.hertz).max(1.0);
    let mut cores: BTreeMap<Tile, CoreCounts> = BTreeMap::new();
    let mut channels: BTreeMap<Channel, ChannelCounts> = BTreeMap::new();
    for Run { timed: Timed { runs, .. }, launches, .. } in runs {
        for counts in launches {
            for (tile, counts) in &counts.cores {
                let core = cores.entry(*tile).or_default();
                core.busy += runs * counts.busy;
                core.locks += runs * (counts.locks + counts.cascade);
            }
            for (channel, counts) in &counts.channels {
                let channel = channels.entry(*channel).or_default();
                channel.bytes += runs * counts.bytes;
                channel.moving += runs * counts.moving;
            }
        }
    }
    let rows = 1 + target.array.memory_rows + target.array.compute_rows;
    let grid = (0..rows).flat_map(|row| (0..target.array.columns).map(move |column| (column, row)));
    let tile = |(column, row): (u32, u32)| {
        let tile = Tile::new(column as u8, row as u8);
        let core = cores.get(&tile).copied().unwrap_or_default();
        let own = || channels.iter().filter(|(channel, _)| channel.tile == tile);
        let bytes = |way: Direction| {
            own().filter(|(channel, _)| channel.direction == way).map(|(_, counts)| counts.bytes).sum()
        };
        let moving = own().map(|(_, counts)| counts.moving).max().unwrap_or(0);
        let busy = if tile.kind() == TileKind::Compute { core.busy } else { moving };
        TileUse {
            column: tile.column,
            row: tile.row,
            busy: busy as f64 / cycles,
            waits: core.locks as f64 / cycles,
            bytes_in: bytes(Direction::S2mm),
            bytes_out: bytes(Direction::Mm2s),
        }
    };
    grid.map(tile).collect()
}

/// All entries, the one with most cycles first.
fn entries(runs: &[Run], target: &Target) -> Vec<EntryUse> {
    let mut all: BTreeMap<&'static str, EntryCounts> = BTreeMap::new();
    for Run { timed: Timed { runs, .. }, launches, .. } in runs {
        for (name, counts) in launches.iter().flat_map(|launch| &launch.entries) {
            let entry = all.entry(name).or_default();
            entry.calls += runs * counts.calls;
            entry.cycles += runs * counts.cycles;
            entry.macs += runs * counts.macs;
        }
    }
    let mut sorted: Vec<(&'static str, EntryCounts)> = all.into_iter().collect();
    sorted.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.cycles));
    let entry = |(name, counts): (&'static str, EntryCounts)| EntryUse {
        entry: name.to_owned(),
        calls: counts.calls,
        core_seconds: target.seconds(counts.cycles),
        macs: counts.macs,
    };
    sorted.into_iter().map(entry).collect()
}
