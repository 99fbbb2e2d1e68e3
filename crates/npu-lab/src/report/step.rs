//! Reports one step: each program is simulated once, with counters, and its
//! counts are summed over all its runs.

use std::collections::BTreeMap;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::{CompiledGraph, Scenario, TimedProgram, costs, host_spread, settle};
use girih_npu::form::groups::{ArrayProgram, StepAction, TensorKind};
use girih_npu::form::schedule::{Channel, Direction, Tile, TileKind};
use girih_npu::memory::SimMemory;
use girih_npu::pass::FUSED;
use girih_npu::sim::{self, EventOrder, Simulator};
use girih_tensor::Result;
use serde::Serialize;

use super::count::{ChannelCounts, CoreCounts, Counter, Counts, EntryCounts};
use super::limits::{ArrayLimits, BusyShares, LaunchBottleneck};
use super::spans::{self, StepSpan, StepSpanKind};
use crate::energy::EnergyEstimate;

/// A step of a model.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// The key of its graph.
    pub key: String,
    /// Rows of the step: 1 for a decoded token.
    pub rows: u32,
    /// Tokens before the step.
    pub position: u32,
    /// Seconds of the step at `position`; nothing overlaps. For a token, `position` is the last of 64 whose time is at
    /// most twice their mean.
    pub seconds: f64,
    /// The mean seconds of these tokens.
    pub mean_seconds: f64,
    /// The seconds of the slowest of them, and its position, if it is far above the mean.
    pub worst: Option<(f64, u32)>,
    /// Seconds of the array.
    pub array_seconds: f64,
    /// Seconds of host work: operations and bytes, divided by the target's
    /// rates.
    pub host_seconds: f64,
    /// Seconds of making bytes visible to host or array.
    pub sync_seconds: f64,
    /// The part of `array_seconds` spent on dispatch.
    pub dispatch_seconds: f64,
    /// The part of `array_seconds` spent on configuration.
    pub configure_seconds: f64,
    /// Runs of programs.
    pub submissions: u64,
    /// Launches in all runs.
    pub launches: u64,
    /// Multiply-accumulates on the array.
    pub macs: u64,
    /// Bytes that the array read from DRAM.
    pub dram_read: u64,
    /// Bytes that the array wrote to DRAM.
    pub dram_written: u64,
    /// Bytes that the host wrote for the array.
    pub host_written: u64,
    /// Bytes that the host read from the array's results.
    pub host_read: u64,
    /// Bytes of weights, written once before the first step.
    pub preload_bytes: u64,
    /// The programs.
    pub programs: Vec<ProgramUse>,
    /// The tiles, over the whole step.
    pub tiles: Vec<TileUse>,
    /// The kernel entries, over the whole step.
    pub entries: Vec<EntryUse>,
    /// The spans in order of time.
    pub spans: Vec<StepSpan>,
    /// The first part of one layer and the part after its last, if layers repeat.
    pub layer: Option<(usize, usize)>,
    /// The energy estimate.
    pub energy: EnergyEstimate,
}

/// A program and how often it runs.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramUse {
    /// The program's name.
    pub name: String,
    /// Runs in the step.
    pub runs: u64,
    /// Seconds of a run alone, from dispatch to end.
    pub seconds: f64,
    /// Seconds of all runs in the step; a run that directly follows another has a
    /// shorter dispatch.
    pub step_seconds: f64,
    /// The part of `seconds` spent on dispatch.
    pub dispatch_seconds: f64,
    /// The part of `seconds` spent on configuration.
    pub configure_seconds: f64,
    /// The launches, in order.
    pub launches: Vec<LaunchUse>,
}

/// One launch in one run of its program.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchUse {
    /// The launch's name.
    pub name: String,
    /// The kernel that it computes.
    pub kernel: String,
    /// The kernel entry with the most cycles.
    pub entry: String,
    /// Cores in use.
    pub cores: usize,
    /// Seconds, without configuration.
    pub seconds: f64,
    /// Seconds of configuring the array for the launch.
    pub configure_seconds: f64,
    /// Multiplications and additions that the kernel needs.
    pub operations: u64,
    /// Multiply-accumulates that were executed, including padding.
    pub macs: u64,
    /// Bytes read from DRAM.
    pub dram_read: u64,
    /// Bytes written to DRAM.
    pub dram_written: u64,
    /// Bytes that all streams moved.
    pub streamed: u64,
    /// The share of time within calls, averaged over the cores in use.
    pub busy: f64,
    /// The share of time waiting for locks or the cascade, averaged likewise.
    pub waits: f64,
    /// Operations per second.
    pub ops_per_second: f64,
    /// DRAM bytes per second.
    pub bytes_per_second: f64,
    /// Operations per DRAM byte.
    pub intensity: f64,
    /// `ops_per_second` as a share of the roofline at this intensity.
    pub of_roof: f64,
    /// How busy each part of the array was.
    pub shares: BusyShares,
    /// The part that limits the speed.
    pub bound: LaunchBottleneck,
    /// The channels.
    pub channels: Vec<ChannelUse>,
}

/// Whether two launches have the same kernel, time and traffic.
pub(super) fn alike(a: &LaunchUse, b: &LaunchUse) -> bool {
    let work = |launch: &LaunchUse| (launch.operations, launch.dram_read, launch.dram_written);
    a.kernel == b.kernel && a.entry == b.entry && a.seconds == b.seconds && work(a) == work(b)
}

/// A channel in one launch.
#[derive(Clone, Debug, Serialize)]
pub struct ChannelUse {
    /// The channel's name: tile, direction, number.
    pub channel: String,
    /// Bytes moved.
    pub bytes: u64,
    /// The number of uninterrupted moves.
    pub moves: u64,
    /// The share of the launch's time that it moved words.
    pub moving: f64,
}

/// A tile in the whole step.
#[derive(Clone, Debug, Serialize)]
pub struct TileUse {
    /// The column, counted from the left.
    pub column: u8,
    /// The row, counted from the bottom.
    pub row: u8,
    /// The share of array time that its core spent in calls; for tiles without
    /// a core, that its busiest channel moved words.
    pub busy: f64,
    /// The share of array time that its core spent waiting for locks or the
    /// cascade.
    pub waits: f64,
    /// Bytes received over its channels.
    pub bytes_in: u64,
    /// Bytes sent over its channels.
    pub bytes_out: u64,
}

/// A kernel entry in the whole step.
#[derive(Clone, Debug, Serialize)]
pub struct EntryUse {
    /// The entry's name.
    pub entry: String,
    /// Calls on all cores.
    pub calls: u64,
    /// Seconds within calls, summed over all cores.
    pub core_seconds: f64,
    /// Multiply-accumulates.
    pub macs: u64,
}

/// The counted run of a program.
struct ProgramRun {
    timed: TimedProgram,
    launches: Vec<Counts>,
    /// Array cycles of all runs in the step.
    cycles: u64,
}

impl StepReport {
    /// Simulates a step of all rows of a graph, after `position` tokens.
    pub(super) fn of(
        graph: &Graph,
        compiled: &CompiledGraph,
        target: &Target,
        limits: &ArrayLimits,
        position: u32,
    ) -> Result<StepReport> {
        let scenario = Scenario::of(graph, position);
        let mut runs = runs(compiled, target, scenario)?;
        let programs: Vec<TimedProgram> = runs.iter().map(|run| run.timed.clone()).collect();
        let host = host_spread(graph, compiled, target, position);
        let position = host.usual_position;
        let costs = costs(graph, compiled, target, &programs, position);
        for (step, cost) in compiled.groups.steps.iter().zip(&costs.parts) {
            if let StepAction::Array { program, runs: each, .. } = step {
                let (program, _) = scenario.runs(*program, *each);
                runs[program].cycles += cost.array_cycles;
            }
        }
        let spans = spans::step_spans(graph, compiled, target, &costs);
        let took = |kind: StepSpanKind| {
            spans.iter().filter(|span| span.kind == kind).map(|span| span.seconds).sum::<f64>()
        };
        let array_seconds = took(StepSpanKind::Array);
        let here = took(StepSpanKind::Host) + took(StepSpanKind::Sync);
        let seconds = spans.last().map_or(0.0, |span| span.begin + span.seconds);
        let sum = |of: &dyn Fn(&sim::SimReport) -> u64| {
            runs.iter().map(|run| run.timed.runs * of(&run.timed.report)).sum::<u64>()
        };
        let (dram_read, dram_written) =
            (sum(&|report| report.totals.dram_read), sum(&|report| report.totals.dram_written));
        let macs = sum(&|report| report.totals.macs);
        let total = costs.total();
        let weights = compiled.groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static);
        let programs = compiled.groups.programs.iter().zip(&runs);
        Ok(StepReport {
            key: graph.key.to_string(),
            rows: graph.key.rows,
            position,
            seconds,
            mean_seconds: seconds - here + host.mean.total(),
            worst: host.is_uneven().then(|| (seconds - here + host.worst.total(), host.worst_position)),
            array_seconds,
            host_seconds: took(StepSpanKind::Host),
            sync_seconds: took(StepSpanKind::Sync),
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
            layer: spans::layer_parts(compiled).map(|parts| (parts.start, parts.end)),
            spans,
            energy: EnergyEstimate::of(target, graph, array_seconds),
        })
    }

    /// The step in words: `Prefill of 2048 tokens`, `Prefill of 2048 tokens after 6144`, `One token
    /// after 2047 tokens`.
    pub fn title(&self) -> String {
        match (self.is_prefill(), self.position) {
            (true, 0) => format!("Prefill of {} tokens", self.rows),
            (true, position) => format!("Prefill of {} tokens after {position}", self.rows),
            (false, position) => format!("One token after {position} tokens"),
        }
    }

    /// Whether the step is prefill, not the decode of one token.
    pub fn is_prefill(&self) -> bool {
        self.rows > 1
    }
}

/// Simulates each program with counters: once, or if launches stay configured, in the order of the
/// step, of which the longest run counts.
fn runs(compiled: &CompiledGraph, target: &Target, scenario: Scenario) -> Result<Vec<ProgramRun>> {
    let mut simulator = Simulator::new(target)?;
    let is_resident = settle(compiled, &mut simulator)?;
    let in_step = compiled.groups.steps.iter().flat_map(|step| match step {
        StepAction::Array { program, runs, .. } => {
            let (program, count) = scenario.runs(*program, *runs);
            vec![program; count]
        }
        StepAction::Host { .. } => Vec::new(),
    });
    let in_step: Vec<usize> = in_step.collect();
    let order = if is_resident { in_step.clone() } else { (0..compiled.schedules.len()).collect() };
    let mut longest: Vec<Option<ProgramRun>> = compiled.schedules.iter().map(|_| None).collect();
    for number in order {
        let schedule = &compiled.schedules[number];
        let mut counter = Counter::new(schedule);
        let mut memory = SimMemory::TimeOnly;
        let report = simulator.run(schedule, &[], &mut memory, &mut counter, EventOrder::Earliest)?;
        if !is_resident {
            // In a step, another program's configuration precedes the next run.
            simulator.forget();
        }
        if longest[number].as_ref().is_none_or(|known| known.timed.report.cycles < report.cycles) {
            let runs = in_step.iter().filter(|program| **program == number).count() as u64;
            let timed = TimedProgram { name: schedule.name.clone(), runs, again: report.clone(), report };
            longest[number] = Some(ProgramRun { timed, launches: counter.launches, cycles: 0 });
        }
    }
    Ok(longest.into_iter().flatten().collect())
}

fn program_use(
    program: &ArrayProgram,
    run: &ProgramRun,
    target: &Target,
    limits: &ArrayLimits,
) -> ProgramUse {
    let ProgramRun { timed: TimedProgram { report, runs, .. }, launches, cycles } = run;
    let uses = report.launches.iter().zip(launches).map(|(launch, counts)| {
        // A fused launch has several tasks.
        let named = |name: &str| program.launches.iter().find(|task| task.name == name);
        let tasks: Option<Vec<_>> = launch.name.split(FUSED).map(named).collect();
        let tasks = tasks.unwrap_or_default();
        let kernel = tasks.first().map_or("", |task| task.kernel.name());
        let operations = tasks.iter().map(|task| task.kernel.flops()).sum();
        let operations = if tasks.is_empty() { 2 * launch.totals.macs } else { operations };
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
    limits: &ArrayLimits,
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

fn shares(launch: &sim::LaunchReport, counts: &Counts, target: &Target) -> BusyShares {
    let cycles = launch.cycles.max(1) as f64;
    let control = &target.control;
    let push = target.cycles((control.block_write_ns + control.write_ns) * 1e-9);
    let stream = f64::from(target.stream.bytes_per_cycle);
    let max = |shares: &mut dyn Iterator<Item = f64>| shares.fold(0.0, f64::max);
    // A stream that waits for DRAM moves slowly, so its share is computed from its
    // bytes, not from its time.
    let moving = |(_, channel): (&Channel, &ChannelCounts)| channel.bytes as f64 / stream / cycles;
    BusyShares {
        cores: max(&mut counts.cores.values().map(|core| core.busy as f64 / cycles)),
        dram: launch.totals.dram_service as f64 / (target.dram_bytes_per_cycle() * cycles),
        streams: max(&mut counts.channels.iter().map(moving)),
        control: (launch.totals.pushes * push) as f64 / cycles,
    }
}

/// All tiles of the grid, including unused ones.
fn tiles(runs: &[ProgramRun], target: &Target, seconds: f64) -> Vec<TileUse> {
    let cycles = (seconds * target.clock.hertz).max(1.0);
    let mut cores: BTreeMap<Tile, CoreCounts> = BTreeMap::new();
    let mut channels: BTreeMap<Channel, ChannelCounts> = BTreeMap::new();
    for ProgramRun { timed: TimedProgram { runs, .. }, launches, .. } in runs {
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
        let bytes = |direction: Direction| {
            own().filter(|(channel, _)| channel.direction == direction).map(|(_, counts)| counts.bytes).sum()
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

/// All entries, sorted by cycles, most first.
fn entries(runs: &[ProgramRun], target: &Target) -> Vec<EntryUse> {
    let mut all: BTreeMap<&'static str, EntryCounts> = BTreeMap::new();
    for ProgramRun { timed: TimedProgram { runs, .. }, launches, .. } in runs {
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
