//! The rules of a well-formed graph. The list is the specification:
//!
//! 1. Names of values, and names of groups, are unique and made of letters,
//!    digits, `_` and `.`.
//! 2. Every id names a value or group of the graph.
//! 3. Values are declared before use: a node's output comes after its inputs
//!    (state may come before the operand of its `write`), and results come after
//!    the outputs of all earlier nodes.
//! 4. Scratch and output values are written by exactly one node, inputs and
//!    weights by none. State by position is written by exactly one, and only by `write`. A
//!    carried value is read and replaced by exactly one node, once.
//! 5. Nothing is read before it is written; state by position is written before it is read.
//! 6. There is at least one input and exactly one output; every value but the output
//!    is read. Only `embed` reads ids. An input that `splice` reads as given rows has
//!    no other reader.
//! 7. Every node has the operands, shapes and types of its op's entry in the
//!    table; scratch and outputs are `f32`.
//! 8. An outermost extent counts what the value's role requires: rows for an
//!    input, sequences for a pooled output and output rows for any other, one of
//!    these for scratch, positions for state by position, and nothing that varies for a weight
//!    or a carried value.
//!    An extent that varies is that of the key.
//! 9. The keys and values of `attend` are both state of one group, which has the same span, or
//!    both rows of the step, with the span `all`. Those of `attend_latent` are state of a group
//!    with its span. No group has the span `all`.
//! 10. Constants are in the ranges of the op's entry; windows and extents are
//!     positive; all values together fit into the address space of a process.

use std::collections::HashSet;
use std::fmt;

use girih_tensor::DType;

use crate::constant::{Span, Weighed};
use crate::graph::{Graph, Node};
use crate::ops::route::Router;
use crate::ops::{Op, OperandKind};
use crate::state_kind::{STATE_TYPES, StateKind};
use crate::value::{Extent, Role, Value, ValueId};

/// The maximum size of all values together in bytes, with four bytes for each
/// number: the address space of a process on current 64-bit machines. Sums of
/// sizes below it do not overflow.
const MAX_VALUE_BYTES: u64 = 1 << 47;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphFault {
    /// The name of the value, group or node at fault.
    pub name: String,
    /// The rule that it breaks, as a sentence.
    pub sentence: String,
}

impl fmt::Display for GraphFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.sentence)
    }
}

/// Returns every rule that the graph breaks; empty for a well-formed one.
pub fn faults(graph: &Graph) -> Vec<GraphFault> {
    let mut check = GraphCheck { graph, faults: Vec::new() };
    check.key();
    if check.ids() {
        check.names();
        check.order();
        check.roles();
        check.extents();
        check.size();
        for node in &graph.nodes {
            check.node(node);
        }
    }
    check.faults
}

struct GraphCheck<'a> {
    graph: &'a Graph,
    faults: Vec<GraphFault>,
}

impl GraphCheck<'_> {
    fn fault(&mut self, name: &str, sentence: impl Into<String>) {
        self.faults.push(GraphFault { name: name.to_owned(), sentence: sentence.into() });
    }

    /// Rule 10, for the key and the groups.
    fn key(&mut self) {
        let key = self.graph.key;
        if key.rows == 0 || key.sequences == 0 || key.context == 0 || key.output_rows == 0 {
            self.fault("graph", "rows, sequences, context and output rows are all at least one");
        }
        for group in &self.graph.groups {
            match group.kind {
                StateKind::Positions { span: Span::Window(0) | Span::Chunk(0) } => {
                    self.fault(&group.name, "a window or a chunk of no positions");
                }
                StateKind::Positions { span: Span::All | Span::Mutual } => {
                    self.fault(&group.name, "state cannot hold later positions");
                }
                StateKind::Positions { span: Span::Full | Span::Past | Span::Window(_) | Span::Chunk(_) }
                | StateKind::Carried => {}
            }
        }
    }

    /// Rule 2; the other rules rely on it.
    fn ids(&mut self) -> bool {
        let before = self.faults.len();
        let (values, groups) = (self.graph.values.len(), self.graph.groups.len());
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if node.inputs.iter().chain([&node.output]).any(|id| id.0 as usize >= values) {
                self.fault(&format!("node {index}"), "an operand is not a value of the graph");
            }
        }
        for value in &self.graph.values {
            if let Role::State(group) = value.role
                && group.0 as usize >= groups
            {
                self.fault(&value.name, "its group is not a group of the graph");
            }
        }
        self.faults.len() == before
    }

    /// Rule 1.
    fn names(&mut self) {
        let graph = self.graph;
        self.distinct("values", graph.values.iter().map(|value| value.name.as_str()));
        self.distinct("groups", graph.groups.iter().map(|group| group.name.as_str()));
    }

    fn distinct<'n>(&mut self, things: &str, names: impl Iterator<Item = &'n str>) {
        let mut seen = HashSet::new();
        for name in names {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            if name.is_empty() || !name.chars().all(plain) {
                self.fault(name, "a name is made of letters, digits, '_' and '.'");
            }
            if !seen.insert(name) {
                self.fault(name, format!("two {things} have this name"));
            }
        }
    }

    /// Rules 3 to 5.
    fn order(&mut self) {
        let mut written = vec![false; self.graph.values.len()];
        let mut last = None;
        for node in &self.graph.nodes {
            let output = self.graph.value(node.output);
            for input in &node.inputs {
                let value = self.graph.value(*input);
                let given = matches!(value.role, Role::Input | Role::Weight) || self.is_carried(value);
                if !given && !written[input.0 as usize] {
                    self.fault(&output.name, format!("reads '{}' before anything writes it", value.name));
                }
                if *input >= node.output && node.op != Op::Write {
                    self.fault(&output.name, format!("stands before its operand '{}'", value.name));
                }
            }
            if std::mem::replace(&mut written[node.output.0 as usize], true) {
                self.fault(&output.name, "two nodes write it");
            }
            if node.op != Op::Write && last > Some(node.output) {
                self.fault(&output.name, "stands before the result of an earlier node");
            }
            last = last.max(Some(node.output));
        }
        for (value, written) in self.graph.values.iter().zip(written) {
            if matches!(value.role, Role::Scratch | Role::Output) && !written {
                self.fault(&value.name, "nothing writes it");
            }
        }
    }

    /// Whether a value is state of a carried group.
    fn is_carried(&self, value: &Value) -> bool {
        self.graph.state_kind(value) == Some(StateKind::Carried)
    }

    /// Rule 4, for carried values.
    fn carried(&mut self) {
        let graph = self.graph;
        for (id, value) in graph.ids() {
            let reads = graph.nodes.iter().flat_map(|node| &node.inputs).filter(|input| **input == id);
            if self.is_carried(value) && reads.count() > 1 {
                self.fault(
                    &value.name,
                    "is carried, but read more than once; one node reads and replaces it",
                );
            }
        }
    }

    /// Rules 4 and 6.
    fn roles(&mut self) {
        let graph = self.graph;
        self.carried();
        for node in &graph.nodes {
            let output = graph.value(node.output);
            let fits = match node.op {
                Op::Write => matches!(output.role, Role::State(_)) && !self.is_carried(output),
                _ => matches!(output.role, Role::Scratch | Role::Output),
            };
            if !fits {
                self.fault(&output.name, format!("'{}' does not write values of its role", node.op.name()));
            }
        }
        let read: HashSet<ValueId> =
            graph.nodes.iter().flat_map(|node| node.inputs.iter().copied()).collect();
        for (id, value) in graph.ids() {
            if value.role != Role::Output && !read.contains(&id) {
                self.fault(&value.name, "nothing reads it");
            }
        }
        let count = |role| graph.values.iter().filter(|value| value.role == role).count();
        if count(Role::Input) == 0 {
            self.fault("graph", "has no input; at least one is needed");
        }
        if count(Role::Output) != 1 {
            let have = count(Role::Output);
            self.fault("graph", format!("has {have} values of the role output; one is needed"));
        }
        self.given();
    }

    /// Rule 6, for given rows.
    fn given(&mut self) {
        let graph = self.graph;
        let is_spliced = |node: &Node, index: usize| node.op == Op::Splice && index == 1;
        let reads = || {
            graph.nodes.iter().flat_map(|node| node.inputs.iter().enumerate().map(move |read| (node, read)))
        };
        for (id, value) in graph.inputs() {
            let mut own = reads().filter(|(_, (_, input))| **input == id);
            if own.any(|(node, (index, _))| is_spliced(node, index))
                && reads().any(|(node, (index, input))| *input == id && !is_spliced(node, index))
            {
                self.fault(
                    &value.name,
                    "is read by 'splice' as given rows and by another op; use two inputs",
                );
            }
        }
    }

    /// Rules 6 to 8 and 10, for values.
    fn extents(&mut self) {
        for value in &self.graph.values {
            self.outermost(value);
            if value.shape.extents().contains(&0) {
                self.fault(&value.name, "an extent is zero");
            }
            let typed = match value.role {
                Role::Scratch | Role::Output => value.dtype == DType::F32,
                Role::State(_) if self.is_carried(value) => value.dtype == DType::F32,
                Role::State(_) => {
                    self.heads(value);
                    STATE_TYPES.contains(&value.dtype)
                }
                Role::Input => match value.dtype {
                    DType::I32 => value.shape.extents().len() == 1,
                    dtype => dtype == DType::F32,
                },
                Role::Weight => value.dtype.bytes(&value.shape).is_ok(),
            };
            if !typed {
                self.fault(&value.name, format!("{} does not suit its role and shape", value.dtype));
            }
        }
    }

    /// Rule 7, for state in a block format: no block spans two heads.
    fn heads(&mut self, value: &Value) {
        let (size, (_, block)) = (value.shape.columns(), value.dtype.tile());
        if !size.is_multiple_of(block) {
            let dtype = value.dtype;
            self.fault(
                &value.name,
                format!("heads of {size} values cannot be kept as {dtype}, whose blocks hold {block}"),
            );
        }
    }

    /// Rule 8.
    fn outermost(&mut self, value: &Value) {
        let suits = match value.role {
            Role::Input => value.outermost == Extent::Rows,
            Role::Weight => value.outermost == Extent::Fixed,
            Role::State(_) if self.is_carried(value) => value.outermost == Extent::Fixed,
            Role::State(_) => value.outermost == Extent::Context,
            Role::Scratch => {
                matches!(value.outermost, Extent::Rows | Extent::OutputRows | Extent::Sequences)
            }
            Role::Output => value.outermost == self.graph.key.output.extent(),
        };
        if !suits {
            self.fault(&value.name, "its outermost extent does not count what its role requires");
        }
        let key = self.graph.key;
        let need = match value.outermost {
            Extent::Fixed => return,
            Extent::Rows => key.rows,
            Extent::OutputRows => key.output_rows,
            Extent::Sequences => key.sequences,
            Extent::Context => key.context,
        };
        let have = value.shape.extents()[0];
        if have != need as usize {
            self.fault(&value.name, format!("its outermost extent is {have}; the key says {need}"));
        }
    }

    /// Rule 10, for the sizes of values: reports the first value that exceeds the maximum.
    fn size(&mut self) {
        let mut total = 0u64;
        for value in &self.graph.values {
            total = total.saturating_add((value.shape.elements() as u64).saturating_mul(4));
            if total > MAX_VALUE_BYTES {
                return self
                    .fault(&value.name, "with it, the values need more bytes than a process can address");
            }
        }
    }

    /// Rules 7, 9 and 10, for one node.
    fn node(&mut self, node: &Node) {
        let inputs: Vec<&Value> = node.inputs.iter().map(|id| self.graph.value(*id)).collect();
        let output = self.graph.value(node.output);
        let sentence = operands(self.graph, node.op, &inputs, output).or_else(|| {
            let sentence = "a constant is not finite, or a bound is not positive";
            (!node.op.has_constants_in_range()).then_some(sentence)
        });
        if let Some(sentence) = sentence {
            self.fault(&output.name, format!("{}: {sentence}", node.op.name()));
        }
    }
}

/// What is wrong with a node's operands (rules 7 and 9).
fn operands(graph: &Graph, op: Op, inputs: &[&Value], output: &Value) -> Option<&'static str> {
    if op.applied_to(inputs).is_none() {
        return Some("it has too few or too many operands");
    }
    let reads_ids = inputs.iter().any(|value| OperandKind::Ids.fits(value));
    if reads_ids && !op.spec().operands.contains(&OperandKind::Ids) {
        return Some("only 'embed' reads ids");
    }
    if let Op::Attend { span, .. } = op
        && !are_attended_together(graph, span, inputs[1], inputs[2])
    {
        return Some(
            "its keys and values are neither state of one group with its span, nor rows with the span 'all' or 'mutual'",
        );
    }
    if let Op::AttendLatent { span, values, .. } = op {
        if !are_attended_together(graph, span, inputs[1], inputs[1]) {
            return Some("its latents are not state of a group with its span");
        }
        if output.columns() != values as usize {
            return Some("its results do not have as many numbers as its values");
        }
    }
    if let Op::SelectKeys { best: _ } = op
        && !are_attended_together(graph, Span::Full, inputs[2], inputs[2])
    {
        return Some("its keys are not state of a group with the span 'full'");
    }
    if let Op::Hadamard { size } = op
        && !output.columns().is_multiple_of(size as usize)
    {
        return Some("its rows are not whole blocks of its size");
    }
    if let Op::Route { score, used, normalized, groups, factor, near } = op
        && !(Router { score, used, normalized, groups, factor, near }).suits(output.columns())
    {
        return Some(
            "it cannot choose that many of its experts, or of its groups of two or more, or 'near' has no softmax",
        );
    }
    if let Op::Experts { used: _, act: _, limit, offset, weighed } = op {
        if (limit.is_some() || offset.is_some()) && inputs.len() < 5 {
            return Some("a limit or an offset needs a gate");
        }
        if weighed == Weighed::Inputs && inputs.len() != 5 {
            return Some("weights of inputs need a gate and allow no biases");
        }
    }
    (!op.fits(inputs, output)).then_some("its operands do not have the shapes it needs")
}

/// Whether keys and values are state of one group with this span, or both rows (rule 9).
fn are_attended_together(graph: &Graph, span: Span, keys: &Value, values: &Value) -> bool {
    match (keys.role, values.role) {
        (Role::State(group), Role::State(other)) => {
            group == other && graph.groups[group.0 as usize].kind == StateKind::Positions { span }
        }
        (Role::State(_), _) | (_, Role::State(_)) => false,
        _ => span.is_of_step(),
    }
}
