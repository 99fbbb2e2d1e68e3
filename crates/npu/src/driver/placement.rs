//! Where attention costs less: the time of the array by simulation, that of the host by
//! counting.
//!
//! Both are compared for a sequence of [`COMPARED_POSITIONS`], whatever the context of a step,
//! and for steps of one row, of several, or of several sequences, whatever their number. So the choice depends on the
//! model and the target only, and a reply does not depend on the context or on the lengths
//! that programs are compiled for.

use std::fmt;

use girih_graph::backend::{Range32, Sequence};
use girih_graph::{BLOCK_POSITIONS, Graph, Key, Node, Op, Outputs, Span};
use girih_tensor::Result;

use super::ledger::Ledger;
use crate::form::groups::{
    ArrayProgram, AttendSizes, Kernel, KernelLaunch, StepAction, attended_blocks, chunk_bytes, latest_start,
};
use crate::form::schedule::{Argument, ArgumentRole};
use crate::host::HostCost;
use crate::memory::SimMemory;
use crate::pass::{self, ArrayMapping, AttentionPlacement, NoDump, Policy};
use crate::sim::{EventOrder, SimUnwatched, Simulator};
use crate::target::Target;

/// The positions of the sequence for which the places are compared.
pub const COMPARED_POSITIONS: u32 = 1024;

/// The rows of the compared step of several rows.
const SEVERAL_ROWS: u32 = 64;

/// The sequences of the compared step of several sequences, each with one row.
const SEVERAL_SEQUENCES: u32 = 8;

/// The cost of the attention of all layers in a step at the end of
/// [`COMPARED_POSITIONS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionCost {
    /// Sequences of the compared step.
    pub sequences: u32,
    /// Rows of each.
    pub rows: u32,
    /// Seconds on the array, with the transfers of keys and values; infinite if no program fits it.
    pub array_seconds: f64,
    /// Seconds on the host, with the transfers of queries and results.
    pub host_seconds: f64,
}

impl AttentionCost {
    /// The place where attention costs less, or the host if no program of it fits the array.
    pub fn placement(&self) -> AttentionPlacement {
        if self.array_seconds.is_infinite() {
            AttentionPlacement::HostOnly
        } else if self.host_seconds < self.array_seconds {
            AttentionPlacement::HostCheaper
        } else {
            AttentionPlacement::Array
        }
    }

    /// Compares the places for the attention of a graph; none if the graph has no attention
    /// that the array supports.
    ///
    /// # Errors
    /// When a program does not fit the target.
    pub fn of(graph: &Graph, target: &Target, mapping: &ArrayMapping) -> Result<Option<AttentionCost>> {
        let policy = Policy { attention: AttentionPlacement::Array, ..mapping.policy };
        let groups = pass::groups(graph, target, &ArrayMapping { policy, ..mapping.clone() }, &mut NoDump)?;
        let mut cost = AttentionCost { array_seconds: 0.0, ..AttentionCost::unfit(graph) };
        let AttentionCost { sequences, rows, .. } = cost;
        let mut runs = 0;
        for (number, program) in groups.programs.iter().enumerate() {
            for launch in &program.launches {
                let Kernel::Attend(sizes) = launch.kernel else { continue };
                let is_run = |step: &&StepAction| matches!(step, StepAction::Array { program, .. } if *program as usize == number);
                let count = groups.steps.iter().filter(is_run).count();
                runs += count;
                cost.array_seconds += count as f64 * array_seconds(sizes, [sequences, rows], target)?;
            }
        }
        for node in &graph.nodes {
            let Op::Attend { span, .. } = node.op else { continue };
            let HostCost { flops, bytes } = host_cost(graph, node, span, rows);
            let all = |one: u64| one * u64::from(sequences);
            let mut ledger =
                Ledger { host: HostCost { flops: all(flops), bytes: all(bytes) }, ..Ledger::default() };
            // Queries come from the array, results return to it, in bf16.
            let stride = graph.value(node.output).shape.stride() as u64;
            ledger.sync_down(all(u64::from(rows) * stride * 2));
            ledger.sync_up(all(u64::from(rows) * stride * 2));
            cost.host_seconds += ledger.seconds(target);
        }
        Ok((runs > 0).then_some(cost))
    }

    /// The cost if no program of attention fits the array.
    pub(super) fn unfit(graph: &Graph) -> AttentionCost {
        let [sequences, rows] = match graph.key {
            Key { sequences: 2.., .. } => [SEVERAL_SEQUENCES, 1],
            Key { rows: 2.., .. } => [1, SEVERAL_ROWS],
            _ => [1, 1],
        };
        AttentionCost { sequences, rows, array_seconds: f64::INFINITY, host_seconds: 0.0 }
    }
}

impl fmt::Display for AttentionCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AttentionCost { sequences, rows, array_seconds, host_seconds } = self;
        if self.placement() == AttentionPlacement::HostOnly {
            return write!(f, "attention does not fit the array: it runs on the host");
        }
        let [array, host] = [array_seconds, host_seconds].map(|seconds| seconds * 1e3);
        let place = match self.placement() {
            AttentionPlacement::Array => "the array",
            _ => "the host",
        };
        let rows = match (sequences, rows) {
            (1, 1) => "of a row".to_owned(),
            (1, _) => format!("of {rows} rows"),
            _ => format!("of a row of each of {sequences} sequences"),
        };
        write!(f, "attention {rows} at {COMPARED_POSITIONS} positions takes {array:.2} ms on the array ")?;
        write!(f, "and {host:.2} ms on the host: it runs on {place}")
    }
}

/// The host's cost of the attention of the last `rows` of [`COMPARED_POSITIONS`]. Rows of an encoder attend to those of their step, so
/// theirs is a share of a step of all positions.
fn host_cost(graph: &Graph, node: &Node, span: Span, rows: u32) -> HostCost {
    let counted = if span == Span::All { COMPARED_POSITIONS } else { rows };
    let range = Range32 { start: 0, end: counted };
    let position = COMPARED_POSITIONS - counted;
    let sequence = Sequence { blocks: &[], position, rows: range, outputs: Outputs::Last, spans: &[] };
    let HostCost { flops, bytes } = HostCost::of(graph, node, &[sequence]);
    let share = |all: u64| all * u64::from(rows) / u64::from(counted);
    HostCost { flops: share(flops), bytes: share(bytes) }
}

/// Seconds of one attention on the array for each sequence, from the dispatch that follows another, and of
/// writing the blocks of keys and values that a step changes. Only the first run configures the array.
fn array_seconds(sizes: AttendSizes, [sequences, rows]: [u32; 2], target: &Target) -> Result<f64> {
    let AttendSizes { kv_heads, size, window, .. } = sizes;
    let key = Key {
        rows,
        sequences: 1,
        context: COMPARED_POSITIONS,
        output_rows: 1,
        output: girih_graph::OutputKind::Logits,
    };
    let blocks = attended_blocks(rows, COMPARED_POSITIONS, window);
    let granule = pass::tile::block_granule(rows, kv_heads, target);
    let keys = blocks.next_multiple_of(granule) * BLOCK_POSITIONS as u32;
    let latest = latest_start(key, window);
    let kernel = Kernel::Attend(AttendSizes { rows, keys, latest, ..sizes });
    let schedule = pass::compile(&program(kernel), target, &mut NoDump)?;
    let mut simulator = Simulator::new(target)?;
    // A step that runs this launch checks it.
    simulator.look_for_hazards(false);
    let mut memory = SimMemory::TimeOnly;
    let report = simulator.run(&schedule, &[], &mut memory, &mut SimUnwatched, EventOrder::Earliest)?;
    let changed = u64::from(rows).div_ceil(BLOCK_POSITIONS as u64) * u64::from(kv_heads);
    let bytes = changed * u64::from(chunk_bytes(size));
    let host = HostCost { flops: 0, bytes: 2 * bytes * u64::from(sequences) };
    let mut ledger = Ledger { host, ..Ledger::default() };
    (0..sequences).for_each(|_| ledger.sync_up(bytes));
    let run = target.seconds(report.cycles - report.dispatch - report.configure);
    let runs = f64::from(sequences) * (run + target.control.runlist_us * 1e-6);
    Ok(target.seconds(report.configure) + runs + ledger.seconds(target))
}

/// A program of one kernel.
fn program(kernel: Kernel) -> ArrayProgram {
    let bytes = kernel.operand_bytes();
    let last = bytes.len() - 1;
    let role = |index| if index == last { ArgumentRole::Output } else { ArgumentRole::Input };
    let argument = |(index, bytes)| Argument { name: format!("operand.{index}"), role: role(index), bytes };
    let arguments: Vec<Argument> = bytes.into_iter().enumerate().map(argument).collect();
    let numbers = (0..arguments.len() as u32).collect();
    let launches = vec![KernelLaunch {
        name: kernel.name().to_owned(),
        kernel,
        arguments: numbers,
        tiling: None,
        resident: false,
    }];
    ArrayProgram { name: "attention".to_owned(), arguments, launches }
}
