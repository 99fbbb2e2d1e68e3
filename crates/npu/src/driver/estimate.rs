//! Estimates the time of a step without values: the simulator times each
//! program, and the work and transfers of the host are counted from shapes.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use girih_graph::backend::{Range32, Sequence};
use girih_graph::{BLOCK_POSITIONS, Graph, Key, Outputs, ValueId};
use girih_tensor::Result;

use super::compiled::CompiledGraph;
use super::keys::changed_after_equal_steps;
use super::ledger::Ledger;
use super::list::ListAddresses;
use super::ring::{KeyRing, KeyStep};
use super::runtime::Runtime;
use super::tensors::{tensors_of, values_of};
use super::traffic::{
    Follows, PartTransfers, TensorLocation, TensorTransfer, Traffic, appended_to, copies, elements,
};
use super::weights::LoadCost;
use crate::form::groups::{Groups, ProgramRuns, StepAction, TensorKind};
use crate::form::schedule::{ArgumentRole, Schedule};
use crate::host::HostCost;
use crate::memory::SimMemory;
use crate::sim::{EventOrder, SimReport, SimUnwatched, Simulator};
use crate::target::Target;

/// The estimated cost of a step.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// The programs of the graph, in order.
    pub programs: Vec<TimedProgram>,
    /// Counts and array cycles of all runs.
    pub ledger: Ledger,
    /// Bytes that the host would copy if every program had its own buffer
    /// objects: each value between two programs once from the array and once to
    /// it. The runtime binds both programs to one object instead.
    pub brokered_bytes: u64,
    /// Bytes of weights written once, before the first step.
    pub preload_bytes: u64,
    /// The cost for the host of loading them.
    pub load: LoadCost,
}

/// The time of one program, and how often it runs.
#[derive(Clone, Debug)]
pub struct TimedProgram {
    /// Its name.
    pub name: String,
    /// The number of runs in the step.
    pub runs: u64,
    /// The result of one run.
    pub report: SimReport,
    /// The result of a run that follows another one of the same program, whose configuration the array has.
    pub again: SimReport,
}

impl TimedProgram {
    /// Cycles of all runs.
    pub fn cycles(&self) -> u64 {
        match self.runs {
            0 => 0,
            runs => self.report.cycles + (runs - 1) * self.again.cycles,
        }
    }
}

/// A step to be timed: `rows` rows of each sequence that already has `position`
/// tokens; its last row is an output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// The number of sequences.
    pub sequences: u32,
    /// Tokens of each sequence before the step.
    pub position: u32,
    /// Rows in use of each sequence; the program also computes padding, up to the rows that it
    /// was compiled for.
    pub rows: u32,
    /// The choices of the runtime.
    pub runtime: Runtime,
}

impl Scenario {
    /// A step of all rows of a graph of one sequence, or of a row of each of its sequences.
    pub fn of(graph: &Graph, position: u32) -> Scenario {
        let Key { rows, sequences, .. } = graph.key;
        let rows = if sequences == 1 { rows } else { 1 };
        Scenario { sequences, position, rows, runtime: Runtime::default() }
    }

    /// The tokens of each sequence before the last step that the context has room for.
    pub fn last_position(graph: &Graph) -> u32 {
        graph.key.context.saturating_sub(Scenario::of(graph, 0).rows)
    }

    /// The sequences of the step.
    fn sequences(self) -> Vec<Sequence<'static>> {
        let sequence = |number: u32| {
            let rows = Range32 { start: number * self.rows, end: (number + 1) * self.rows };
            Sequence { blocks: &[], position: self.position, rows, outputs: Outputs::Last, spans: &[] }
        };
        (0..self.sequences).map(sequence).collect()
    }

    /// The program that an array step runs, and how often.
    pub fn runs(self, program: u32, runs: ProgramRuns) -> (usize, usize) {
        let program = match runs {
            ProgramRuns::EachSequence { one_row } if self.rows == 1 => one_row,
            ProgramRuns::EachSequence { .. } | ProgramRuns::EachOutputRow | ProgramRuns::Once => program,
        };
        // The last row of each sequence is an output row.
        (program as usize, runs.count(self.sequences as usize, self.sequences as usize))
    }
}

/// Estimates one step of a graph of sequences that already have `position` tokens and whose last row is an output
/// row: of all rows of one sequence, or of a row of each of several.
///
/// # Errors
/// When a schedule has a fault.
pub fn estimate(graph: &Graph, compiled: &CompiledGraph, target: &Target, position: u32) -> Result<Estimate> {
    let scenario = Scenario::of(graph, position);
    Ok(estimate_step(graph, compiled, target, time_programs(compiled, target)?, scenario))
}

/// Times each program of a graph once, starting with the configuration of
/// another program, or with what the programs of an equal step before have left.
///
/// # Errors
/// When a schedule has a fault.
pub fn time_programs(compiled: &CompiledGraph, target: &Target) -> Result<Vec<TimedProgram>> {
    let mut simulator = Simulator::new(target)?;
    if settle(compiled, &mut simulator)? {
        return time_in_order(compiled, &mut simulator);
    }
    let mut programs = Vec::new();
    for (number, schedule) in compiled.schedules.iter().enumerate() {
        let report = time_once(schedule, &mut simulator)?;
        let is_repeated = compiled.groups.steps.iter().any(|step| repeats(step, number));
        let again = if is_repeated { time_once(schedule, &mut simulator)? } else { report.clone() };
        programs.push(TimedProgram {
            name: schedule.name.clone(),
            runs: runs(compiled, number),
            report,
            again,
        });
        // The array then has the configuration of another program.
        simulator.forget();
    }
    Ok(programs)
}

/// Runs a step with resident launches, so that the array holds what an equal step before has left.
/// Returns whether there are such launches.
///
/// # Errors
/// When a schedule has a fault.
pub fn settle(compiled: &CompiledGraph, simulator: &mut Simulator) -> Result<bool> {
    let resident = |schedule: &Arc<Schedule>| schedule.launches.iter().any(|launch| launch.resident);
    let is_resident = compiled.schedules.iter().any(resident);
    if is_resident {
        time_in_order(compiled, simulator)?;
    }
    Ok(is_resident)
}

/// Times the runs of a step in order, and returns the longest run of each program.
fn time_in_order(compiled: &CompiledGraph, simulator: &mut Simulator) -> Result<Vec<TimedProgram>> {
    let mut longest: Vec<Option<SimReport>> = vec![None; compiled.schedules.len()];
    for step in &compiled.groups.steps {
        let StepAction::Array { program, .. } = step else { continue };
        let number = *program as usize;
        let report = time_once(&compiled.schedules[number], simulator)?;
        if longest[number].as_ref().is_none_or(|known| known.cycles < report.cycles) {
            longest[number] = Some(report);
        }
    }
    let timed = compiled.schedules.iter().zip(longest).enumerate();
    let timed = timed.filter_map(|(number, (schedule, report))| {
        let (name, report) = (schedule.name.clone(), report?);
        Some(TimedProgram { name, runs: runs(compiled, number), again: report.clone(), report })
    });
    Ok(timed.collect())
}

fn time_once(schedule: &Schedule, simulator: &mut Simulator) -> Result<SimReport> {
    let mut memory = SimMemory::TimeOnly;
    Ok(simulator.run(schedule, &[], &mut memory, &mut SimUnwatched, EventOrder::Earliest)?)
}

/// The number of runs of a program in a step of one sequence with one output row.
fn runs(compiled: &CompiledGraph, number: usize) -> u64 {
    compiled.groups.steps.iter().filter(|step| runs_program(step, number)).count() as u64
}

/// Whether a step may run a program several times, one after another.
fn repeats(step: &StepAction, number: usize) -> bool {
    match step {
        StepAction::Array { program, runs: ProgramRuns::EachSequence { one_row }, with_spans, .. } => {
            [Some(*program), Some(*one_row), *with_spans].contains(&Some(number as u32))
        }
        StepAction::Array { program, runs: ProgramRuns::EachOutputRow, .. } => *program as usize == number,
        StepAction::Array { runs: ProgramRuns::Once, .. } | StepAction::Host { .. } => false,
    }
}

/// Estimates a step from timed programs. It is one of many equal steps, so
/// command lists are already bound to the addresses of the previous step.
pub fn estimate_step(
    graph: &Graph,
    compiled: &CompiledGraph,
    target: &Target,
    mut programs: Vec<TimedProgram>,
    scenario: Scenario,
) -> Estimate {
    let (runtime, sequences) = (scenario.runtime, scenario.sequences());
    programs.iter_mut().for_each(|program| program.runs = 0);
    for step in &compiled.groups.steps {
        let StepAction::Array { program, runs, .. } = step else { continue };
        let (program, count) = scenario.runs(*program, *runs);
        programs[program].runs += count as u64;
    }
    let groups = &compiled.groups;
    let tensors = tensors_of(graph, groups);
    let traffic = Traffic::new(graph, groups, &tensors, runtime);
    let shapes = StepShapes::new(graph, groups, &tensors);
    let mut costs = costs_of(graph, groups, &shapes, &traffic, &sequences, runtime);
    count_runs(compiled, &shapes.rings, &traffic, &programs, target, scenario, &mut costs.parts);
    let ledger = costs.total();
    let weights = groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static);
    let preload_bytes = weights.map(|tensor| tensor.bytes()).sum();
    let load = LoadCost::of(graph, groups, runtime.weights);
    Estimate { programs, ledger, brokered_bytes: brokered(groups), preload_bytes, load }
}

/// Seconds of the host in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostSeconds {
    /// Its work.
    pub work: f64,
    /// Syncs.
    pub sync: f64,
}

/// The host's time of steps that differ only in their position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostSpread {
    /// The mean.
    pub mean: HostSeconds,
    /// The longest.
    pub worst: HostSeconds,
    /// The position of the longest.
    pub worst_position: u32,
    /// The last position whose time is not far above the mean.
    pub usual_position: u32,
}

/// A token is usual if it takes at most this many times the mean. Neither attention
/// on the host within a block nor a block of keys and values that is copied takes that much.
const USUAL: f64 = 2.0;

impl HostSeconds {
    /// All seconds.
    pub fn total(self) -> f64 {
        self.work + self.sync
    }
}

impl HostSpread {
    /// Whether the longest time is far above the mean.
    pub fn is_uneven(&self) -> bool {
        self.worst.total() > USUAL * self.mean.total()
    }
}

/// Estimates the host's time of a step of sequences that already have `position` tokens: of all rows of one sequence,
/// or of a row of each of several. A single row stands for the last tokens up to that one: a block of them, or those
/// of a lap of the longest window, so that copies of keys and values are included.
pub fn host_spread(graph: &Graph, compiled: &CompiledGraph, target: &Target, position: u32) -> HostSpread {
    let groups = &compiled.groups;
    let tensors = tensors_of(graph, groups);
    let runtime = Runtime::default();
    let traffic = Traffic::new(graph, groups, &tensors, runtime);
    let shapes = StepShapes::new(graph, groups, &tensors);
    let period = shapes.rings.iter().flatten().map(|ring| ring.period()).max();
    let last = period.unwrap_or(BLOCK_POSITIONS as u32);
    let is_token = Scenario::of(graph, position).rows == 1;
    let first = if is_token { (position + 1).saturating_sub(last) } else { position };
    let times = (first..=position).map(|position| {
        let sequences = Scenario::of(graph, position).sequences();
        let ledger = costs_of(graph, groups, &shapes, &traffic, &sequences, runtime).total();
        (position, HostSeconds { work: ledger.host_seconds(target), sync: ledger.sync_seconds(target) })
    });
    spread(&times.collect::<Vec<_>>())
}

/// The mean and the longest of times with their positions.
fn spread(times: &[(u32, HostSeconds)]) -> HostSpread {
    let count = times.len() as f64;
    let mean = HostSeconds {
        work: times.iter().map(|(_, time)| time.work).sum::<f64>() / count,
        sync: times.iter().map(|(_, time)| time.sync).sum::<f64>() / count,
    };
    let longest = times.iter().max_by(|one, other| one.1.total().total_cmp(&other.1.total()));
    let (worst_position, worst) = *longest.expect("a step has a position");
    let usual = times.iter().rev().find(|(_, time)| time.total() <= USUAL * mean.total());
    let (usual_position, _) = *usual.expect("the shortest time is at most the mean");
    HostSpread { mean, worst, worst_position, usual_position }
}

/// The bytes that programs write for other programs.
fn brokered(groups: &Groups) -> u64 {
    let mut written = vec![false; groups.tensors.len()];
    let mut bytes = 0;
    for step in &groups.steps {
        let StepAction::Array { program, tensors, .. } = step else { continue };
        for (argument, &tensor) in groups.programs[*program as usize].arguments.iter().zip(tensors) {
            match argument.role {
                ArgumentRole::Input if written[tensor as usize] => bytes += argument.bytes,
                ArgumentRole::Output => written[tensor as usize] = true,
                _ => {}
            }
        }
    }
    bytes
}

fn runs_program(step: &StepAction, number: usize) -> bool {
    matches!(step, StepAction::Array { program, .. } if *program as usize == number)
}

/// The cost of a step: before its parts, of each part, and after them.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Before the first part.
    pub begin: Ledger,
    /// Of each part of the groups.
    pub parts: Vec<Ledger>,
    /// After the last part.
    pub end: Ledger,
}

impl Costs {
    /// The sum.
    pub fn total(&self) -> Ledger {
        let mut total = Ledger::default();
        for part in [&self.begin].into_iter().chain(&self.parts).chain([&self.end]) {
            total += *part;
        }
        total
    }
}

/// The costs of one step, counted as in [`estimate`], from timed programs.
pub fn costs(
    graph: &Graph,
    compiled: &CompiledGraph,
    target: &Target,
    programs: &[TimedProgram],
    position: u32,
) -> Costs {
    let groups = &compiled.groups;
    let scenario = Scenario::of(graph, position);
    let (runtime, sequences) = (scenario.runtime, scenario.sequences());
    let tensors = tensors_of(graph, groups);
    let traffic = Traffic::new(graph, groups, &tensors, runtime);
    let shapes = StepShapes::new(graph, groups, &tensors);
    let mut costs = costs_of(graph, groups, &shapes, &traffic, &sequences, runtime);
    count_runs(compiled, &shapes.rings, &traffic, programs, target, scenario, &mut costs.parts);
    costs
}

/// What the costs of all steps of a graph are counted from.
struct StepShapes {
    /// The value of each tensor.
    values: Vec<Option<ValueId>>,
    /// The ring of each tensor of chunks.
    rings: Vec<Option<KeyRing>>,
}

impl StepShapes {
    fn new(graph: &Graph, groups: &Groups, tensors: &[Option<u32>]) -> StepShapes {
        StepShapes { values: values_of(graph, groups, tensors), rings: KeyRing::all(graph, groups) }
    }
}

/// Counts the work and the transfers of the host.
fn costs_of(
    graph: &Graph,
    groups: &Groups,
    shapes: &StepShapes,
    traffic: &Traffic,
    sequences: &[Sequence<'_>],
    runtime: Runtime,
) -> Costs {
    let count = StepCounter {
        graph,
        groups,
        shapes,
        sequences,
        runtime,
        slots: &traffic.slots,
        rows_are_synced: Cell::new(false),
    };
    let part = |(step, transfers): (&StepAction, &PartTransfers)| {
        let mut ledger = Ledger::default();
        transfers.down.iter().for_each(|&step| count.down(step, &mut ledger));
        match step {
            StepAction::Host { node } => {
                ledger.add(HostCost::of(graph, &graph.nodes[*node as usize], sequences));
            }
            StepAction::Array { .. } => count.rows_are_synced.set(false),
        }
        transfers.up.iter().chain(&transfers.made).for_each(|&step| count.up(step, &mut ledger));
        ledger
    };
    let mut costs =
        Costs { parts: groups.steps.iter().zip(&traffic.parts).map(part).collect(), ..Costs::default() };
    traffic.begin.iter().for_each(|&step| count.up(step, &mut costs.begin));
    traffic.end.iter().for_each(|&step| count.down(step, &mut costs.end));
    costs
}

/// Counts the costs of a step.
struct StepCounter<'a> {
    graph: &'a Graph,
    groups: &'a Groups,
    shapes: &'a StepShapes,
    sequences: &'a [Sequence<'a>],
    runtime: Runtime,
    /// Bytes of each scratch object.
    slots: &'a [u64],
    /// Whether the host sees all rows that programs have appended.
    rows_are_synced: Cell<bool>,
}

impl StepCounter<'_> {
    fn up(&self, step: TensorTransfer, ledger: &mut Ledger) {
        let tensor = &self.groups.tensors[step.tensor as usize];
        let each = if tensor.kind == TensorKind::Chunks { self.sequences.len() as u64 } else { 1 };
        let bytes = tensor.bytes() * each;
        if let TensorLocation::Resident(_) = step.location {
            return self.changed_keys(step.tensor, ledger);
        }
        if matches!(tensor.kind, TensorKind::Chunks | TensorKind::RowChunks) {
            ledger.add(HostCost { flops: 0, bytes: 2 * bytes });
        }
        if copies(tensor, self.runtime) {
            ledger.copied_bytes += bytes;
        }
        ledger.sync_up(bytes);
    }

    /// Counts the changed blocks of resident keys and values of each sequence.
    fn changed_keys(&self, tensor: u32, ledger: &mut Ledger) {
        for sequence in self.sequences {
            let end = sequence.position + sequence.rows.end - sequence.rows.start;
            for bytes in changed_bytes(self.groups, &self.shapes.rings, tensor, sequence.position..end) {
                ledger.add(HostCost { flops: 0, bytes: 2 * bytes });
                ledger.sync_up(bytes);
            }
        }
    }

    fn down(&self, step: TensorTransfer, ledger: &mut Ledger) {
        let Some(value) = self.shapes.values[step.tensor as usize] else { return };
        if let TensorLocation::Row(slot, _) = step.location {
            if !self.rows_are_synced.replace(true) {
                ledger.sync_down(self.slots[slot as usize]);
            }
            return;
        }
        let tensor = &self.groups.tensors[step.tensor as usize];
        let rows = elements(self.graph, value, self.sequences) / tensor.extent[1].max(1) as usize;
        ledger.sync_down(rows as u64 * tensor.row_bytes());
    }
}

/// The bytes of each range of resident keys and values that changes in a step
/// of these positions.
fn changed_bytes(groups: &Groups, rings: &[Option<KeyRing>], chunks: u32, step: Range<u32>) -> Vec<u64> {
    let Some(ring) = rings[chunks as usize] else { return Vec::new() };
    let written = if appended_to(groups, chunks).is_some() { step.start } else { step.end };
    let step = KeyStep { position: step.start, written, end: step.end };
    let runs = changed_after_equal_steps(ring, step);
    let block_bytes = groups.tensors[chunks as usize].block_bytes();
    runs.into_iter().map(|blocks| blocks as u64 * block_bytes).collect()
}

/// The bytes of keys and values that the host writes in the array's layout in a
/// step of all rows of a graph, after `position` tokens.
pub fn laid_bytes(graph: &Graph, groups: &Groups, position: u32) -> u64 {
    let (rings, step) = (KeyRing::all(graph, groups), position..position.saturating_add(graph.key.rows));
    let all = 0..groups.tensors.len() as u32;
    all.flat_map(|chunks| changed_bytes(groups, &rings, chunks, step.clone())).sum()
}

/// Counts the runs of programs, for one output row of each sequence, and the list words written
/// when the lists were bound by an equal step before.
fn count_runs(
    compiled: &CompiledGraph,
    rings: &[Option<KeyRing>],
    traffic: &Traffic,
    programs: &[TimedProgram],
    target: &Target,
    scenario: Scenario,
    parts: &mut [Ledger],
) {
    let Scenario { position, rows, runtime, .. } = scenario;
    let mut lists: Vec<ListAddresses<(TensorLocation, usize, u32, usize)>> =
        compiled.schedules.iter().map(|schedule| ListAddresses::of(schedule)).collect();
    for pass in 0..2 {
        let position = if pass == 0 { position.saturating_sub(rows) } else { position };
        let first_slot = |location| match location {
            TensorLocation::Resident(chunks) => {
                rings[chunks as usize].map_or(0, |ring| ring.first_slot(position))
            }
            TensorLocation::Slot(_) | TensorLocation::Row(..) | TensorLocation::Weight(_) => 0,
        };
        let steps = compiled.groups.steps.iter().zip(&traffic.parts);
        for ((step, transfers), ledger) in steps.zip(parts.iter_mut()) {
            let StepAction::Array { program, tensors, runs, .. } = step else { continue };
            let (program, count) = scenario.runs(*program, *runs);
            for run in 0..count {
                // The place where rows are appended moves with each step, and windows move. Each run has rows of its own.
                let address = |(location, tensor): (&TensorLocation, &u32)| {
                    let kind = compiled.groups.tensors[*tensor as usize].kind;
                    let moves = kind == TensorKind::Appended;
                    let run = if kind == TensorKind::Static { 0 } else { run };
                    (*location, first_slot(*location), if moves { pass } else { 0 }, run)
                };
                let addresses: Vec<_> = transfers.locations.iter().zip(tensors).map(address).collect();
                let words = lists[program].bind(&addresses, runtime.lists);
                if pass == 1 {
                    ledger.list_words += words;
                    let timed = &programs[program];
                    let report = if run == 0 { &timed.report } else { &timed.again };
                    let is_first = run == 0 || transfers.follows != Follows::Host;
                    let follows = if is_first { transfers.follows } else { Follows::Program };
                    ledger.submit(report, target, runtime, follows);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_far_above_the_mean_is_the_worst_and_not_usual() {
        let at = |(position, work)| (position, HostSeconds { work, sync: 1.0 });
        let even = spread(&[(4, 1.0), (5, 2.0), (6, 3.0)].map(at));
        assert_eq!((even.mean.work, even.mean.sync, even.is_uneven()), (2.0, 1.0, false));
        assert_eq!((even.worst_position, even.worst.work, even.usual_position), (6, 3.0, 6));
        // As a token at which the host copies many blocks of keys and values.
        let uneven = spread(&[(4, 1.0), (5, 1.0), (6, 1.0), (7, 97.0)].map(at));
        assert_eq!((uneven.mean.work, uneven.is_uneven()), (25.0, true));
        assert_eq!((uneven.worst_position, uneven.worst.work, uneven.usual_position), (7, 97.0, 6));
    }
}
