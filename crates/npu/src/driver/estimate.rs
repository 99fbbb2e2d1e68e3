//! How long a step takes, without values: each program is timed by the
//! simulator, and what the host does and moves is counted from shapes.

use girih_graph::backend::{Inputs, Range32, Sequence};
use girih_graph::{Graph, Outputs, ValueId};
use girih_tensor::Result;

use super::keys::{Seen, usual};
use super::list::Words;
use super::program::{tensors_of, values_of};
use super::runtime::Runtime;
use super::traffic::{Move, Passing, Place, Traffic, copies, elements, sees_all};
use super::{Compiled, Ledger, LoadCost};
use crate::Target;
use crate::form::groups::{Groups, Step, Tensor, TensorKind};
use crate::form::schedule::ArgumentRole;
use crate::host::{self, Job, Rows, Work};
use crate::memory::Memory;
use crate::sim::{Order, Report, Simulator, Unwatched};

/// A step's time, by program.
#[derive(Clone, Debug)]
pub struct Estimate {
    /// Each program of the graph, in order.
    pub programs: Vec<Timed>,
    /// Counts and the array's cycles over all runs.
    pub ledger: Ledger,
    /// Bytes that the host would copy besides, each up and down once, if every
    /// program had buffer objects of its own: what one program writes for
    /// another then goes through the host. The runtime binds both to one
    /// object instead.
    pub brokered_bytes: u64,
    /// Bytes of weights that are written once, before the first step.
    pub preload_bytes: u64,
    /// What the host copies and keeps when they are loaded.
    pub load: LoadCost,
}

/// One program and how often it runs.
#[derive(Clone, Debug)]
pub struct Timed {
    /// Its name.
    pub name: String,
    /// Runs in the step.
    pub runs: u64,
    /// How each run goes.
    pub report: Report,
}

/// A step to be timed: so many rows of one sequence that has `position` tokens
/// already, whose last is an output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scene {
    /// Tokens of the sequence before the step.
    pub position: u32,
    /// Rows that count; the program computes all that it was compiled for.
    pub rows: u32,
    /// How the runtime works.
    pub runtime: Runtime,
}

/// No weights: work is counted from shapes alone.
struct Shapes;

impl Rows for Shapes {
    fn row(&self, _: &str, _: usize) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }
}

/// Times one step of all rows of a graph, of one sequence that has `position`
/// tokens already, whose last row is an output row.
///
/// # Errors
/// When a schedule is faulty.
pub fn estimate(graph: &Graph, compiled: &Compiled, target: &Target, position: u32) -> Result<Estimate> {
    let scene = Scene { position, rows: graph.key.rows, runtime: Runtime::default() };
    Ok(estimate_scene(graph, compiled, target, times(compiled, target)?, scene))
}

/// Times each program of a graph once, from an array that holds another
/// program's configuration.
///
/// # Errors
/// When a schedule is faulty.
pub fn times(compiled: &Compiled, target: &Target) -> Result<Vec<Timed>> {
    let mut simulator = Simulator::new(target)?;
    let mut programs = Vec::new();
    for (number, schedule) in compiled.schedules.iter().enumerate() {
        let mut memory = Memory::TimeOnly;
        let report = simulator.run(schedule, &[], &mut memory, &mut Unwatched, Order::Earliest)?;
        let runs = compiled.groups.steps.iter().filter(|step| runs_program(step, number)).count() as u64;
        programs.push(Timed { name: schedule.name.clone(), runs, report });
        // Between two programs the array holds the other one's configuration.
        simulator.forget();
    }
    Ok(programs)
}

/// Counts a step of programs that were timed: one of many alike, so lists are
/// bound to what the step before left.
pub fn estimate_scene(
    graph: &Graph,
    compiled: &Compiled,
    target: &Target,
    programs: Vec<Timed>,
    scene: Scene,
) -> Estimate {
    let Scene { position, rows, runtime } = scene;
    let range = Range32 { start: 0, end: rows };
    let sequences = [Sequence { blocks: &[], position, rows: range, outputs: Outputs::Last, spans: &[] }];
    let groups = &compiled.groups;
    let tensors = tensors_of(graph, groups);
    let traffic = Traffic::new(graph, groups, &tensors, runtime);
    let mut costs = costs_of(graph, groups, &tensors, &traffic, &sequences, runtime);
    count_runs(compiled, &traffic, &programs, target, runtime, &mut costs.parts);
    let ledger = costs.total();
    let weights = groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static);
    let preload_bytes = weights.map(|tensor| tensor.bytes()).sum();
    let load = LoadCost::of(graph, groups, runtime.weights);
    Estimate { programs, ledger, brokered_bytes: brokered(groups), preload_bytes, load }
}

/// Bytes that programs write for other programs.
fn brokered(groups: &Groups) -> u64 {
    let mut written = vec![false; groups.tensors.len()];
    let mut bytes = 0;
    for step in &groups.steps {
        let Step::Array { program, tensors, .. } = step else { continue };
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

fn runs_program(step: &Step, number: usize) -> bool {
    matches!(step, Step::Array { program, .. } if *program as usize == number)
}

/// What a step costs: before its parts, in each of them, after them.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Before the first part.
    pub begin: Ledger,
    /// In each part of the groups.
    pub parts: Vec<Ledger>,
    /// After the last part.
    pub end: Ledger,
}

impl Costs {
    /// All of it.
    pub fn total(&self) -> Ledger {
        let mut total = Ledger::default();
        for part in [&self.begin].into_iter().chain(&self.parts).chain([&self.end]) {
            total += *part;
        }
        total
    }
}

/// The costs of one step of all rows, as [`estimate`] counts them, of programs
/// that were timed.
pub fn costs(
    graph: &Graph,
    compiled: &Compiled,
    target: &Target,
    programs: &[Timed],
    position: u32,
) -> Costs {
    let groups = &compiled.groups;
    let rows = Range32 { start: 0, end: graph.key.rows };
    let sequences = [Sequence { blocks: &[], position, rows, outputs: Outputs::Last, spans: &[] }];
    let tensors = tensors_of(graph, groups);
    let runtime = Runtime::default();
    let traffic = Traffic::new(graph, groups, &tensors, runtime);
    let mut costs = costs_of(graph, groups, &tensors, &traffic, &sequences, runtime);
    count_runs(compiled, &traffic, programs, target, runtime, &mut costs.parts);
    costs
}

/// What the host computes, writes for the array and reads of it.
fn costs_of(
    graph: &Graph,
    groups: &Groups,
    tensors: &[Option<u32>],
    traffic: &Traffic,
    sequences: &[Sequence<'_>],
    runtime: Runtime,
) -> Costs {
    let values = values_of(graph, groups, tensors);
    let count = Count { graph, groups, values: &values, sequences, runtime };
    let part = |(step, passing): (&Step, &Passing)| {
        let mut ledger = Ledger::default();
        passing.down.iter().for_each(|&step| count.down(step, &mut ledger));
        if let Step::Host { node } = step {
            count.work(*node as usize, &mut ledger);
        }
        passing.up.iter().chain(&passing.made).for_each(|&step| count.up(step, &mut ledger));
        ledger
    };
    let mut costs =
        Costs { parts: groups.steps.iter().zip(&traffic.parts).map(part).collect(), ..Costs::default() };
    traffic.begin.iter().for_each(|&step| count.up(step, &mut costs.begin));
    traffic.end.iter().for_each(|&step| count.down(step, &mut costs.end));
    costs
}

/// A step whose costs are counted.
struct Count<'a> {
    graph: &'a Graph,
    groups: &'a Groups,
    values: &'a [Option<ValueId>],
    sequences: &'a [Sequence<'a>],
    runtime: Runtime,
}

impl Count<'_> {
    /// What the host computes for a node.
    fn work(&self, node: usize, ledger: &mut Ledger) {
        let Count { graph, sequences, .. } = *self;
        let (node, inputs) = (&graph.nodes[node], Inputs::Tokens(&[]));
        let job = Job { graph, node, operands: &[], weights: &Shapes, inputs, sequences };
        if let Some(kernel) = host::kernel(node.op) {
            ledger.add(kernel.work(&job));
        }
    }

    fn up(&self, step: Move, ledger: &mut Ledger) {
        let tensor = &self.groups.tensors[step.tensor as usize];
        let bytes = tensor.bytes();
        if let Place::Kept(_) = step.place {
            return self.keep(tensor, ledger);
        }
        if tensor.kind == TensorKind::Chunks {
            ledger.add(Work { flops: 0, bytes: 2 * bytes });
        }
        if copies(tensor, self.runtime) {
            ledger.copied_bytes += bytes;
        }
        ledger.sync_up(bytes);
    }

    /// Keys and values that stay: what of them changes.
    fn keep(&self, tensor: &Tensor, ledger: &mut Ledger) {
        let Some(sequence) = self.sequences.last() else { return };
        let end = sequence.position + sequence.rows.end - sequence.rows.start;
        for bytes in changed_bytes(self.graph, tensor, sequence.position, end) {
            ledger.add(Work { flops: 0, bytes: 2 * bytes });
            ledger.sync_up(bytes);
        }
    }

    fn down(&self, step: Move, ledger: &mut Ledger) {
        let Some(value) = self.values[step.tensor as usize] else { return };
        let tensor = &self.groups.tensors[step.tensor as usize];
        let rows = self.sequences.last().map_or(0, |sequence| sequence.rows.end as usize);
        let rows =
            elements(self.graph, value, rows, output_rows(self.sequences)) / tensor.extent[1].max(1) as usize;
        ledger.sync_down(rows as u64 * tensor.row_bytes());
    }
}

/// The bytes of each stretch of keys and values that stay which a step changes
/// that begins after `position` tokens and ends before `end`.
fn changed_bytes(graph: &Graph, tensor: &Tensor, position: u32, end: u32) -> Vec<u64> {
    let full = sees_all(graph, &tensor.name);
    let blocks = tensor.padded[0] / tensor.extent[0].max(1);
    let block_bytes = u64::from(tensor.extent[0]) * tensor.row_bytes();
    let ranges = usual(Seen { position, end, full }, blocks as usize);
    ranges.into_iter().map(|range| range.len() as u64 * block_bytes).collect()
}

/// Bytes of keys and values that the host lays out for the array in a step of
/// all rows of a graph, after `position` tokens.
pub fn laid_bytes(graph: &Graph, groups: &Groups, position: u32) -> u64 {
    let chunks = groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Chunks);
    let end = position.saturating_add(graph.key.rows);
    chunks.flat_map(|tensor| changed_bytes(graph, tensor, position, end)).sum()
}

fn output_rows(sequences: &[Sequence<'_>]) -> usize {
    sequences.iter().map(|sequence| sequence.output_rows().len()).sum()
}

/// Counts what the array does, for one output row, and what is written of
/// lists that the same step has bound before.
fn count_runs(
    compiled: &Compiled,
    traffic: &Traffic,
    programs: &[Timed],
    target: &Target,
    runtime: Runtime,
    parts: &mut [Ledger],
) {
    let mut lists: Vec<Words<Place>> =
        compiled.schedules.iter().map(|schedule| Words::of(schedule)).collect();
    for pass in 0..2 {
        let steps = compiled.groups.steps.iter().zip(&traffic.parts);
        for ((step, passing), ledger) in steps.zip(parts.iter_mut()) {
            let Step::Array { program, .. } = step else { continue };
            let words = lists[*program as usize].bind(&passing.places, runtime.lists);
            if pass == 1 {
                ledger.list_words += words;
                ledger.submit(&programs[*program as usize].report, target, runtime, passing.follows);
            }
        }
    }
}
