//! What stitching and layouts save: the same tilings grouped in every way, with
//! the bytes that pass through the host, and the five places where seed 000's
//! kernels disagree about layouts.

use std::fmt;

use girih_graph::Graph;
use girih_tensor::Result;
use serde::Serialize;

use super::{Timed, Weighed, tokens_before, weigh};
use crate::Target;
use crate::driver::laid_bytes;
use crate::form::groups::Kernel;
use crate::pass::{ArrayMapping, Grouping, Policy};

/// One way of grouping, over one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupingRow {
    /// The graph's key.
    pub key: String,
    /// What shares a program.
    pub grouping: Grouping,
    /// Dispatches.
    pub submissions: u64,
    /// Milliseconds of array, host, and passing bytes between them.
    pub millis: [f64; 3],
    /// Bytes that host and array pass to each other.
    pub passed_bytes: u64,
    /// Bytes that they would pass besides, up and down, if programs shared no
    /// buffer objects.
    pub brokered_bytes: u64,
}

/// One disagreement about a layout: how it is solved here, and what remains.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutRow {
    /// Seed 000's number, B4.
    pub number: u8,
    /// Who disagrees.
    pub between: &'static str,
    /// What is done.
    pub solution: &'static str,
    /// Bytes that the host moves for it in the steps, once each way.
    pub bytes: u64,
    /// Milliseconds of the steps that it costs.
    pub millis: f64,
}

/// Both tables.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stitching {
    /// The groupings of each step.
    pub groupings: Vec<GroupingRow>,
    /// The layouts, over all steps.
    pub layouts: Vec<LayoutRow>,
}

/// Times the steps of `graphs` with the tilings of a mapping under every
/// grouping, and counts what layouts cost.
///
/// # Errors
/// When a program does not fit the target.
pub fn stitching(graphs: &[Graph], target: &Target, mapping: &ArrayMapping) -> Result<Stitching> {
    let mut ways: Vec<(Grouping, Weighed)> = Vec::new();
    for (_, grouping) in Grouping::ALL {
        let policy = Policy { grouping: *grouping, ..mapping.policy };
        ways.push((*grouping, weigh(graphs, target, &ArrayMapping { policy, ..mapping.clone() })?));
    }
    let mut groupings = Vec::new();
    for (number, graph) in graphs.iter().enumerate() {
        for (grouping, weighed) in &ways {
            let step = &weighed.steps[number];
            let ledger = &step.estimate.ledger;
            groupings.push(GroupingRow {
                key: graph.key.to_string(),
                grouping: *grouping,
                submissions: ledger.submissions,
                millis: step.seconds(target).map(|seconds| seconds * 1e3),
                passed_bytes: ledger.written_bytes + ledger.read_bytes,
                brokered_bytes: 2 * step.estimate.brokered_bytes,
            });
        }
    }
    let own = ways.iter().find(|(grouping, _)| *grouping == mapping.policy.grouping);
    let layouts = own.map(|(_, weighed)| layouts(graphs, &weighed.steps, target)).unwrap_or_default();
    Ok(Stitching { groupings, layouts })
}

/// The five disagreements of seed 000 (B4) over these steps.
fn layouts(graphs: &[Graph], steps: &[Timed], target: &Target) -> Vec<LayoutRow> {
    let laid =
        |(graph, step): (&Graph, &Timed)| laid_bytes(graph, &step.compiled.groups, tokens_before(graph));
    let laid: u64 = graphs.iter().zip(steps).map(laid).sum();
    let host = 2.0 * laid as f64 / target.host.bytes_per_second;
    let sync = laid as f64 / target.host.sync_bytes_per_second;
    let second: f64 = steps.iter().map(|step| further_gemv_seconds(step, target)).sum();
    let row = |number, between, solution, bytes, seconds: f64| LayoutRow {
        number,
        between,
        solution,
        bytes,
        millis: seconds * 1e3,
    };
    vec![
        row(
            1,
            "weights as stored, and the matrix-vector product",
            "solved: both products read rows as they are stored, terms innermost, from one copy",
            0,
            0.0,
        ),
        row(
            2,
            "rotated keys, the KV cache and attention",
            "remains: what has changed of keys and values the host lays out in blocks for attention on the array",
            laid,
            host + sync,
        ),
        row(
            3,
            "a flat product, and the heads that are rotated",
            "solved: a reshape is another view of the same bytes",
            0,
            0.0,
        ),
        row(
            4,
            "the flat sum at a layer's end, and the rows of the next norm",
            "solved: a sum is of elements, whatever their shape",
            0,
            0.0,
        ),
        row(
            5,
            "two matrix-vector products of other widths in one program",
            "solved: the width is a number of a call; each launch of another width is configured for",
            0,
            second,
        ),
    ]
}

/// Seconds of configuring for matrix-vector products whose width another such
/// product of the same program does not have.
fn further_gemv_seconds(step: &Timed, target: &Target) -> f64 {
    let mut cycles = 0;
    for (program, timed) in step.compiled.groups.programs.iter().zip(&step.estimate.programs) {
        let (mut before, mut first) = (timed.report.dispatch, None);
        for (task, launch) in program.launches.iter().zip(&timed.report.launches) {
            let configure = launch.begin - before;
            before = launch.begin + launch.cycles;
            if let Kernel::Gemv { k, .. } = task.kernel {
                let other = *first.get_or_insert(k) != k;
                cycles += if other { timed.runs * configure } else { 0 };
            }
        }
    }
    target.seconds(cycles)
}

impl fmt::Display for Stitching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut key = "";
        for row in &self.groupings {
            if row.key != key {
                writeln!(f, "{}", row.key)?;
                let head = ["submissions", "array ms", "host ms", "passing ms", "passed MB", "brokered MB"];
                write!(f, "  {:<12}", "")?;
                head.iter().try_for_each(|name| write!(f, "{name:>12}"))?;
                writeln!(f)?;
                key = &row.key;
            }
            let GroupingRow { grouping, submissions, millis: [array, host, sync], .. } = row;
            let [passed, brokered] = [row.passed_bytes, row.brokered_bytes].map(|bytes| bytes as f64 / 1e6);
            write!(f, "  {:<12}{submissions:>12}{array:>12.2}{host:>12.2}{sync:>12.2}", grouping.name())?;
            writeln!(f, "{passed:>12.2}{brokered:>12.2}")?;
        }
        writeln!(f, "layouts (seed 000, B4)")?;
        for LayoutRow { number, between, solution, bytes, millis } in &self.layouts {
            let megabytes = *bytes as f64 / 1e6;
            writeln!(f, "  {number} {between}: {solution}; {megabytes:.1} MB, {millis:.2} ms")?;
        }
        Ok(())
    }
}
