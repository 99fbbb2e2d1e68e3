//! A step in order of time: host work, syncs, and runs of programs. Nothing
//! overlaps, as in the published flow.

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::{CompiledGraph, Costs, Ledger};
use girih_npu::form::groups::StepAction;
use serde::Serialize;

/// A span of time in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSpan {
    /// The part of the system that is busy.
    pub kind: StepSpanKind,
    /// The program, or the host's work.
    pub name: String,
    /// Its start, in seconds from the start of the step.
    pub begin: f64,
    /// Its length, in seconds.
    pub seconds: f64,
    /// The index of the action of the groups that it belongs to; none for the
    /// inputs and the output.
    pub part: Option<usize>,
}

/// The part of the system that works during a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StepSpanKind {
    /// The host computes or copies.
    Host,
    /// Host and array make bytes visible to each other.
    Sync,
    /// The array runs a program, from its dispatch to its end.
    Array,
}

/// The spans of a step with these costs.
pub fn step_spans(graph: &Graph, compiled: &CompiledGraph, target: &Target, costs: &Costs) -> Vec<StepSpan> {
    let mut builder = SpanBuilder { target, now: 0.0, spans: Vec::new() };
    builder.host(&costs.begin, "inputs", None);
    for (number, (part, cost)) in compiled.groups.steps.iter().zip(&costs.parts).enumerate() {
        match part {
            StepAction::Host { node } => {
                let node = &graph.nodes[*node as usize];
                let name = format!("{} {}", node.op.name(), graph.value(node.output).name);
                builder.host(cost, &name, Some(number));
            }
            StepAction::Array { program, .. } => {
                let name = &compiled.groups.programs[*program as usize].name;
                builder.host(cost, &format!("operands of {name}"), Some(number));
                let seconds = cost.array_seconds(target);
                builder.span(StepSpanKind::Array, name, seconds, Some(number));
            }
        }
    }
    builder.host(&costs.end, "output", None);
    builder.spans
}

/// The parts of one layer: from the first run of a program that runs repeatedly
/// up to its next run.
pub fn layer_parts(compiled: &CompiledGraph) -> Option<std::ops::Range<usize>> {
    let steps = &compiled.groups.steps;
    let program = |part: &StepAction| match part {
        StepAction::Array { program, .. } => Some(*program),
        StepAction::Host { .. } => None,
    };
    for (from, part) in steps.iter().enumerate() {
        let Some(first) = program(part) else { continue };
        let again = steps[from + 1..].iter().position(|later| program(later) == Some(first));
        if let Some(again) = again {
            return Some(from..from + 1 + again);
        }
    }
    None
}

struct SpanBuilder<'a> {
    target: &'a Target,
    now: f64,
    spans: Vec<StepSpan>,
}

impl SpanBuilder<'_> {
    fn span(&mut self, kind: StepSpanKind, name: &str, seconds: f64, part: Option<usize>) {
        if seconds > 0.0 {
            self.spans.push(StepSpan { kind, name: name.to_owned(), begin: self.now, seconds, part });
            self.now += seconds;
        }
    }

    /// Adds the spans of reading, of the work itself, and of writing.
    fn host(&mut self, cost: &Ledger, name: &str, part: Option<usize>) {
        let read = cost.read_bytes as f64 / (cost.read_bytes + cost.written_bytes).max(1) as f64;
        let sync = cost.sync_seconds(self.target);
        let (up, down) = (sync * (1.0 - read), sync * read);
        let work = cost.host_seconds(self.target) + cost.copy_seconds(self.target);
        self.span(StepSpanKind::Sync, &format!("read for {name}"), down, part);
        self.span(StepSpanKind::Host, name, work, part);
        self.span(StepSpanKind::Sync, &format!("write of {name}"), up, part);
    }
}
