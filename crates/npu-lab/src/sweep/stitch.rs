//! Computes the gain of stitching and of common layouts: the time of every
//! grouping with the same tilings, the bytes that pass through the host, and the
//! five points where the kernels of mlir-air's Llama example disagree about layouts.

use std::fmt;

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::laid_bytes;
use girih_npu::form::groups::Kernel;
use girih_npu::pass::{ArrayMapping, Grouping, Policy};
use girih_tensor::Result;
use serde::Serialize;

use super::timing::{MappedStep, TimedMapping, time_mapping, tokens_before};

/// One step with one grouping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupingRow {
    /// The graph's key.
    pub key: String,
    /// The grouping of launches into programs.
    pub grouping: Grouping,
    /// Dispatches.
    pub submissions: u64,
    /// Milliseconds of the array, of the host, and of transfers between them.
    pub millis: [f64; 3],
    /// Bytes that host and array pass to each other.
    pub passed_bytes: u64,
    /// Additional bytes, in both directions, if programs shared no buffer
    /// objects.
    pub brokered_bytes: u64,
}

/// A disagreement about a layout, its solution here, and the remaining cost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayoutRow {
    /// Its number, in the order of mlir-air's implementation guide.
    pub number: u8,
    /// The two layouts that disagree.
    pub between: &'static str,
    /// The solution.
    pub solution: &'static str,
    /// Bytes that the host moves for it in all steps, in one direction.
    pub bytes: u64,
    /// Its cost in milliseconds over all steps.
    pub millis: f64,
}

/// The tables of groupings and layouts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stitching {
    /// Each step with each grouping.
    pub groupings: Vec<GroupingRow>,
    /// The layouts, over all steps.
    pub layouts: Vec<LayoutRow>,
}

/// The groupings that are searched, fewest launches in a program first. That of resident launches is
/// left out, because tilings are searched for launches that have the array for themselves.
pub(super) fn searched_groupings() -> impl DoubleEndedIterator<Item = Grouping> {
    let searched = |grouping: &Grouping| !matches!(grouping, Grouping::Resident | Grouping::ByCost);
    Grouping::ALL.iter().map(|(_, grouping)| *grouping).filter(searched)
}

/// Times the steps of `graphs` with a mapping's tilings under every grouping, and
/// counts the cost of layouts.
///
/// # Errors
/// When a program does not fit the target.
pub fn stitching(graphs: &[Graph], target: &Target, mapping: &ArrayMapping) -> Result<Stitching> {
    let mut timed_groupings: Vec<(Grouping, TimedMapping)> = Vec::new();
    for grouping in searched_groupings() {
        let policy = Policy { grouping, ..mapping.policy };
        let mapping = ArrayMapping { policy, ..mapping.clone() };
        timed_groupings.push((grouping, time_mapping(graphs, target, &mapping)?));
    }
    let mut groupings = Vec::new();
    for (number, graph) in graphs.iter().enumerate() {
        for (grouping, timed) in &timed_groupings {
            let step = &timed.steps[number];
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
    let own = timed_groupings.iter().find(|(grouping, _)| *grouping == mapping.policy.grouping);
    let layouts = own.map(|(_, timed)| layouts(graphs, &timed.steps, target)).unwrap_or_default();
    Ok(Stitching { groupings, layouts })
}

/// The five disagreements over these steps, as mlir-air's implementation guide of
/// Llama-3.2-1B lists them under "Layout matching between kernels".
fn layouts(graphs: &[Graph], steps: &[MappedStep], target: &Target) -> Vec<LayoutRow> {
    let laid =
        |(graph, step): (&Graph, &MappedStep)| laid_bytes(graph, &step.compiled.groups, tokens_before(graph));
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
            "solved: GEMM and GEMV read rows as stored, terms innermost, from one copy",
            0,
            0.0,
        ),
        row(
            2,
            "rotated keys, the KV cache and attention",
            "remains: the host copies new keys and values into blocks for attention on the array",
            laid,
            host + sync,
        ),
        row(
            3,
            "a flat matmul result, and the heads that RoPE rotates",
            "solved: a reshape is a view of the same bytes",
            0,
            0.0,
        ),
        row(
            4,
            "the flat sum at a layer's end, and the rows of the next norm",
            "solved: addition is elementwise and ignores shapes",
            0,
            0.0,
        ),
        row(
            5,
            "two matrix-vector products of different widths in one program",
            "solved: the width is a call parameter; the array is configured again for each new width",
            0,
            second,
        ),
    ]
}

/// Seconds of configuring for matrix-vector products whose width differs from the
/// first one's in the same program.
fn further_gemv_seconds(step: &MappedStep, target: &Target) -> f64 {
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
        writeln!(f, "layouts (where the kernels of mlir-air's Llama example disagree)")?;
        for LayoutRow { number, between, solution, bytes, millis } in &self.layouts {
            let megabytes = *bytes as f64 / 1e6;
            writeln!(f, "  {number} {between}: {solution}; {megabytes:.1} MB, {millis:.2} ms")?;
        }
        Ok(())
    }
}
