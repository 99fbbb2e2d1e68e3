//! What makes a graph well formed. The list is the specification:
//!
//! 1. Names of values, and names of groups, are unique and made of letters,
//!    digits, `_` and `.`.
//! 2. Every id names a value or group of the graph.
//! 3. Values are declared before use: a node's output stands after its inputs
//!    (state may stand before what `write` puts there), and results stand after
//!    the outputs of all earlier nodes.
//! 4. Scratch and output values are written by exactly one node, inputs and
//!    weights by none, state by exactly one, and only by `write`.
//! 5. Nothing is read before it is written; state is written before it is read.
//! 6. There is one input, of the type that the variant names, and one output;
//!    every value but the output is read.
//! 7. Every operator has the operands, shapes and types that its description
//!    asks for; scratch and outputs are `f32`.
//! 8. An outermost extent counts what the value's role asks for: rows of an
//!    input, output rows of the output, either of scratch, positions of state,
//!    nothing that varies of a weight. What varies equals the key's.
//! 9. `attend` sees as far back as the group that holds its keys and values.
//! 10. Constants are finite; bounds, windows and extents are positive; all
//!     values together fit into the addresses of a process.

use std::collections::HashSet;
use std::fmt;

use girih_tensor::DType;

use crate::{Extent, Graph, InputKind, Node, Op, Role, Span, Value, ValueId};

/// What all values may take together, in bytes, each number as an `f32`: the
/// addresses of a process on the machines of today. Sums of sizes below it do
/// not overflow.
const MOST_BYTES: u64 = 1 << 47;

/// A rule broken at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The value or node at fault, by name.
    pub place: String,
    /// The rule, as it is broken here.
    pub sentence: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.sentence)
    }
}

/// Every rule that the graph breaks; empty for a well-formed one.
pub fn faults(graph: &Graph) -> Vec<Fault> {
    let mut check = Check { graph, faults: Vec::new() };
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

struct Check<'a> {
    graph: &'a Graph,
    faults: Vec<Fault>,
}

impl Check<'_> {
    fn fault(&mut self, place: &str, sentence: impl Into<String>) {
        self.faults.push(Fault { place: place.to_owned(), sentence: sentence.into() });
    }

    /// Rule 10, for the key and the groups.
    fn key(&mut self) {
        let key = self.graph.key;
        if key.rows == 0 || key.sequences == 0 || key.context == 0 || key.output_rows == 0 {
            self.fault("graph", "rows, sequences, context and output rows are all at least one");
        }
        for group in self.graph.groups.iter().filter(|group| group.span == Span::Window(0)) {
            self.fault(&group.name, "a window of no positions");
        }
    }

    /// Rule 2; the other rules rely on it.
    fn ids(&mut self) -> bool {
        let before = self.faults.len();
        let (values, groups) = (self.graph.values.len(), self.graph.groups.len());
        for (index, node) in self.graph.nodes.iter().enumerate() {
            if node.inputs.iter().chain([&node.output]).any(|id| id.0 as usize >= values) {
                self.fault(&format!("node {index}"), "an operand is no value of the graph");
            }
        }
        for value in &self.graph.values {
            if let Role::State(group) = value.role
                && group.0 as usize >= groups
            {
                self.fault(&value.name, "its group is no group of the graph");
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
                let given = matches!(value.role, Role::Input | Role::Weight);
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

    /// Rules 4 and 6.
    fn roles(&mut self) {
        let graph = self.graph;
        for node in &graph.nodes {
            let output = graph.value(node.output);
            let fits = match node.op {
                Op::Write => matches!(output.role, Role::State(_)),
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
        for (role, name) in [(Role::Input, "input"), (Role::Output, "output")] {
            let count = graph.values.iter().filter(|value| value.role == role).count();
            if count != 1 {
                self.fault("graph", format!("has {count} values of the role {name}; one is needed"));
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
                Role::State(_) => {
                    self.heads(value);
                    matches!(value.dtype, DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0)
                }
                Role::Input => match self.graph.key.variant.input {
                    InputKind::Tokens => value.dtype == DType::I32 && value.shape.extents().len() == 1,
                    InputKind::Embeddings => value.dtype == DType::F32,
                },
                Role::Weight => value.dtype.bytes(&value.shape).is_ok(),
            };
            if !typed {
                self.fault(&value.name, format!("{} does not suit its role and shape", value.dtype));
            }
        }
    }

    /// Rule 7, for state in blocks: none reaches from one head into the next.
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
            Role::State(_) => value.outermost == Extent::Context,
            Role::Scratch => matches!(value.outermost, Extent::Rows | Extent::OutputRows),
            Role::Output => value.outermost == Extent::OutputRows,
        };
        if !suits {
            self.fault(&value.name, "its outermost extent does not count what its role asks for");
        }
        let key = self.graph.key;
        let need = match value.outermost {
            Extent::Fixed => return,
            Extent::Rows => key.rows,
            Extent::OutputRows => key.output_rows,
            Extent::Context => key.context,
        };
        let have = value.shape.extents()[0];
        if have != need as usize {
            self.fault(&value.name, format!("its outermost extent is {have}; the key says {need}"));
        }
    }

    /// Rule 10, for the sizes of values; named is the first that is too much.
    fn size(&mut self) {
        let mut total = 0u64;
        for value in &self.graph.values {
            total = total.saturating_add((value.shape.elements() as u64).saturating_mul(4));
            if total > MOST_BYTES {
                return self.fault(&value.name, "with it, the values take more bytes than a process has");
            }
        }
    }

    /// Rules 7, 9 and 10, for one node.
    fn node(&mut self, node: &Node) {
        let inputs: Vec<&Value> = node.inputs.iter().map(|id| self.graph.value(*id)).collect();
        let output = self.graph.value(node.output);
        if let Some(sentence) = operands(self.graph, node.op, &inputs, output).or_else(|| constants(node.op))
        {
            self.fault(&output.name, format!("{}: {sentence}", node.op.name()));
        }
    }
}

/// What is wrong with a node's constants (rule 10).
fn constants(op: Op) -> Option<&'static str> {
    let fine = match op {
        Op::Norm { epsilon } => epsilon.is_finite() && epsilon >= 0.0,
        Op::Scale { factor } => factor.is_finite(),
        Op::Softcap { cap } => cap.is_finite() && cap > 0.0,
        Op::Attend { scale, span, softcap } => {
            scale.is_finite()
                && span != Span::Window(0)
                && softcap.is_none_or(|cap| cap.is_finite() && cap > 0.0)
        }
        Op::Embed
        | Op::Linear
        | Op::Reshape
        | Op::Rope { .. }
        | Op::Write
        | Op::Gate { .. }
        | Op::Add
        | Op::Gather => true,
    };
    (!fine).then_some("a constant is not finite, or a bound is not positive")
}

/// What is wrong with a node's operands (rules 7 and 9).
fn operands(graph: &Graph, op: Op, inputs: &[&Value], output: &Value) -> Option<&'static str> {
    let arity = match op {
        Op::Scale { .. } | Op::Softcap { .. } | Op::Reshape | Op::Gather | Op::Write => 1..=1,
        Op::Linear => 2..=3,
        Op::Attend { .. } => 3..=3,
        Op::Embed | Op::Norm { .. } | Op::Rope { .. } | Op::Gate { .. } | Op::Add => 2..=2,
    };
    if !arity.contains(&inputs.len()) {
        return Some("it has too few or too many operands");
    }
    let tokens = |value: &&Value| value.role == Role::Input && value.dtype == DType::I32;
    if op != Op::Embed && inputs.iter().any(tokens) {
        return Some("only 'embed' reads tokens");
    }
    let x = inputs[0];
    let same = |a: &Value, b: &Value| a.shape == b.shape && a.outermost == b.outermost;
    let ok = match op {
        Op::Embed => embed(inputs, output),
        Op::Norm { .. } => {
            let weight = inputs[1];
            same(x, output) && weight.role == Role::Weight && weight.shape.extents() == [x.shape.columns()]
        }
        Op::Linear => linear(inputs, output),
        Op::Reshape => {
            x.outermost == output.outermost
                && x.shape.extents()[0] == output.shape.extents()[0]
                && x.shape.elements() == output.shape.elements()
        }
        Op::Rope { .. } => {
            let (size, frequencies) = (x.shape.columns(), inputs[1]);
            same(x, output)
                && x.outermost == Extent::Rows
                && x.shape.extents().len() == 3
                && size % 2 == 0
                && frequencies.role == Role::Weight
                && frequencies.shape.extents() == [size / 2]
        }
        Op::Write => {
            x.outermost == Extent::Rows
                && x.shape.extents().len() == 3
                && x.shape.extents()[1..] == output.shape.extents()[1..]
        }
        Op::Attend { span, .. } => {
            if !held(graph, span, inputs[1], inputs[2]) {
                return Some("its keys and values are not state of one group that sees as far back");
            }
            attend(inputs, output)
        }
        Op::Gate { .. } | Op::Add => same(x, inputs[1]) && same(x, output),
        Op::Scale { .. } | Op::Softcap { .. } => same(x, output),
        Op::Gather => {
            x.outermost == Extent::Rows
                && output.outermost == Extent::OutputRows
                && x.shape.extents()[1..] == output.shape.extents()[1..]
        }
    };
    (!ok).then_some("its operands do not have the shapes it needs")
}

fn embed(inputs: &[&Value], output: &Value) -> bool {
    let (tokens, table) = (inputs[0], inputs[1]);
    tokens.role == Role::Input
        && tokens.dtype == DType::I32
        && table.role == Role::Weight
        && table.shape.extents().len() == 2
        && output.shape.extents() == [tokens.shape.extents()[0], table.shape.columns()]
        && output.outermost == tokens.outermost
}

fn linear(inputs: &[&Value], output: &Value) -> bool {
    let (x, weight) = (inputs[0], inputs[1]);
    let matrix = x.shape.extents().len() == 2 && weight.shape.extents().len() == 2;
    let constant = inputs[1..].iter().all(|value| value.role == Role::Weight);
    let bias = inputs.get(2).is_none_or(|bias| bias.shape.extents() == [weight.shape.extents()[0]]);
    matrix
        && constant
        && bias
        && x.shape.columns() == weight.shape.columns()
        && output.shape.extents() == [x.shape.extents()[0], weight.shape.extents()[0]]
        && x.outermost == output.outermost
}

/// Whether keys and values are state of the one group of this span (rule 9).
fn held(graph: &Graph, span: Span, keys: &Value, values: &Value) -> bool {
    match keys.role {
        Role::State(group) => keys.role == values.role && graph.groups[group.0 as usize].span == span,
        _ => false,
    }
}

fn attend(inputs: &[&Value], output: &Value) -> bool {
    let (q, k, v, y) = (inputs[0], inputs[1], inputs[2], output);
    let rows = q.outermost == Extent::Rows && y.outermost == Extent::Rows;
    let (q, k, v, y) = (q.shape.extents(), k.shape.extents(), v.shape.extents(), y.shape.extents());
    let ranks = q.len() == 3 && k.len() == 3 && v.len() == 3 && y.len() == 3;
    rows && ranks && k[1] > 0 && q[1] % k[1] == 0 && q[2] == k[2] && k[1] == v[1] && y == [q[0], q[1], v[2]]
}
