//! How long a step takes, without values: each program is timed by the
//! simulator, and what the host does and moves is counted from shapes.

use girih_graph::backend::{Inputs, Lane, Range32};
use girih_graph::{Extent, Graph, Op, Role, Want};
use girih_tensor::Result;

use super::{Compiled, Ledger};
use crate::Target;
use crate::form::groups::{Groups, Step, TensorKind};
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

/// No weights: work is counted from shapes alone.
struct Shapes;

impl Rows for Shapes {
    fn row(&self, _: &str, _: usize) -> Result<Vec<f32>> {
        Ok(Vec::new())
    }
}

/// Times one step of all rows of a graph, of one sequence that has `position`
/// tokens already, whose last row is wanted.
///
/// # Errors
/// When a schedule is faulty.
pub fn estimate(graph: &Graph, compiled: &Compiled, target: &Target, position: u32) -> Result<Estimate> {
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
    let mut ledger = costs(graph, &compiled.groups, position).total();
    let weights = compiled.groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Static);
    let preload_bytes = weights.map(|tensor| tensor.bytes()).sum();
    for Timed { runs, report, .. } in &programs {
        ledger.submissions += runs;
        ledger.launches += runs * report.launches.len() as u64;
        ledger.array_cycles += runs * report.cycles;
        ledger.configure_cycles += runs * report.configure;
    }
    let brokered_bytes = brokered(&compiled.groups);
    Ok(Estimate { programs, ledger, brokered_bytes, preload_bytes })
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

/// What the host does in a step: before its parts, in each of them, after them.
/// The ledgers count work and bytes of the host only.
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
            total.written_bytes += part.written_bytes;
            total.read_bytes += part.read_bytes;
            total.add(part.host);
        }
        total
    }
}

/// The costs of one step of all rows, as [`estimate`] times it.
pub fn costs(graph: &Graph, groups: &Groups, position: u32) -> Costs {
    let rows = Range32 { start: 0, end: graph.key.rows };
    costs_of(graph, groups, &[Lane { blocks: &[], position, rows, want: Want::Last, spans: &[] }])
}

/// What the host computes, writes for the array and reads of it.
fn costs_of(graph: &Graph, groups: &Groups, lanes: &[Lane<'_>]) -> Costs {
    let tensors = super::program::tensors_of(graph, groups);
    let turns = groups.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Turns);
    let mut costs = Costs::default();
    costs.begin.written_bytes = turns.map(|tensor| tensor.bytes()).sum();
    for step in &groups.steps {
        costs.parts.push(match step {
            Step::Array { tensors, .. } => gathering(groups, tensors),
            Step::Host { node } => host_cost(graph, groups, lanes, &tensors, *node as usize),
        });
    }
    if let Some(output) = graph.output() {
        let value = graph.value(output);
        let rows = if value.outermost == Extent::Wanted { 1 } else { graph.key.rows as usize };
        costs.end.read_bytes = 2 * (rows * value.shape.stride()) as u64;
    }
    costs
}

/// What the host lays out for a program that reads keys and values in chunks.
fn gathering(groups: &Groups, tensors: &[u32]) -> Ledger {
    let tensors = tensors.iter().filter_map(|&tensor| groups.tensors.get(tensor as usize));
    let bytes = tensors.filter(|tensor| tensor.kind == TensorKind::Chunks).map(|tensor| tensor.bytes()).sum();
    Ledger { written_bytes: bytes, host: Work { flops: 0, bytes: 2 * bytes }, ..Ledger::default() }
}

fn host_cost(
    graph: &Graph,
    groups: &Groups,
    lanes: &[Lane<'_>],
    tensors: &[Option<u32>],
    node: usize,
) -> Ledger {
    let mut ledger = Ledger::default();
    let node = &graph.nodes[node];
    let inputs = Inputs::Tokens(&[]);
    let job = Job { graph, node, operands: &[], weights: &Shapes, inputs, lanes };
    if let Some(kernel) = host::kernel(node.op) {
        ledger.add(kernel.work(&job));
    }
    for &input in node.inputs.iter().filter(|input| graph.value(**input).role == Role::Scratch) {
        if tensors[input.0 as usize].is_some() {
            ledger.read_bytes += 2 * job.count(graph.value(input)) as u64;
        }
    }
    if let Some(tensor) = tensors[node.output.0 as usize].filter(|_| node.op != Op::Write) {
        ledger.written_bytes += groups.tensors[tensor as usize].bytes();
    }
    ledger
}
