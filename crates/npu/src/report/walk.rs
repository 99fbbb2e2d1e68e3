//! A step in the order of its time: what the host computes, what travels, and
//! which program runs when. One follows the other, as in the published flow.

use girih_graph::Graph;
use serde::Serialize;

use crate::Target;
use crate::driver::{Compiled, Costs, Ledger};
use crate::form::groups::StepAction;

/// Something that takes time in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Span {
    /// What it is.
    pub kind: SpanKind,
    /// The program, or what the host computes.
    pub name: String,
    /// When it begins, in seconds from the beginning of the step.
    pub begin: f64,
    /// How long it takes, in seconds.
    pub seconds: f64,
    /// The part of the groups that it belongs to; none for what the step
    /// begins and ends with.
    pub part: Option<usize>,
}

/// Who is busy in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanKind {
    /// The host computes or copies.
    Host,
    /// Bytes are made visible to the other side.
    Sync,
    /// The array runs a program, from its dispatch to its end.
    Array,
}

/// The spans of a step that costs so much.
pub fn walk(graph: &Graph, compiled: &Compiled, target: &Target, costs: &Costs) -> Vec<Span> {
    let mut walk = Walk { target, now: 0.0, spans: Vec::new() };
    walk.host(&costs.begin, "inputs", None);
    for (number, (part, cost)) in compiled.groups.steps.iter().zip(&costs.parts).enumerate() {
        match part {
            StepAction::Host { node } => {
                let node = &graph.nodes[*node as usize];
                let name = format!("{} {}", node.op.name(), graph.value(node.output).name);
                walk.host(cost, &name, Some(number));
            }
            StepAction::Array { program, .. } => {
                let name = &compiled.groups.programs[*program as usize].name;
                walk.host(cost, &format!("operands of {name}"), Some(number));
                let seconds = cost.array_seconds(target);
                walk.span(SpanKind::Array, name, seconds, Some(number));
            }
        }
    }
    walk.host(&costs.end, "output", None);
    walk.spans
}

/// The parts of one layer: from the first run of a program that runs several
/// times up to its next run.
pub fn layer(compiled: &Compiled) -> Option<std::ops::Range<usize>> {
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

struct Walk<'a> {
    target: &'a Target,
    now: f64,
    spans: Vec<Span>,
}

impl Walk<'_> {
    fn span(&mut self, kind: SpanKind, name: &str, seconds: f64, part: Option<usize>) {
        if seconds > 0.0 {
            self.spans.push(Span { kind, name: name.to_owned(), begin: self.now, seconds, part });
            self.now += seconds;
        }
    }

    /// What is read, then what is computed, then what is written.
    fn host(&mut self, cost: &Ledger, name: &str, part: Option<usize>) {
        let read = cost.read_bytes as f64 / (cost.read_bytes + cost.written_bytes).max(1) as f64;
        let sync = cost.sync_seconds(self.target);
        let (up, down) = (sync * (1.0 - read), sync * read);
        let work = cost.host_seconds(self.target) + cost.copy_seconds(self.target);
        self.span(SpanKind::Sync, &format!("read for {name}"), down, part);
        self.span(SpanKind::Host, name, work, part);
        self.span(SpanKind::Sync, &format!("write of {name}"), up, part);
    }
}
