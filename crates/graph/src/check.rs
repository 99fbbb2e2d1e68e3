//! What makes a graph well formed. The list is the specification:
//!
//! 1. Names are unique and made of letters, digits, `_` and `.`.
//! 2. Every id names a value or group of the graph.
//! 3. Values are declared before use: a node's output stands after its inputs,
//!    and outputs stand in the order of their nodes.
//! 4. Scratch and output values are written by exactly one node, inputs and
//!    weights by none, state by at most one, and only by `write`.
//! 5. Nothing is read before it is written; state is written before it is read.
//! 6. There is one input and one output, both of the kinds the variant names;
//!    every other value is read.
//! 7. Every operator has the operands, shapes and types that its description
//!    asks for; scratch and outputs are `f32`.
//! 8. An outermost extent that varies equals the key's.
//! 9. `attend` sees as far back as the group that holds its keys and values.
//! 10. Constants are finite; bounds, windows and extents are positive.

use std::collections::HashSet;
use std::fmt;

use girih_tensor::DType;

use crate::{Extent, Graph, InputKind, Node, Op, Role, Span, Value, ValueId};

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

    /// Rule 10, for the key.
    fn key(&mut self) {
        let key = self.graph.key;
        if key.rows == 0 || key.lanes == 0 || key.context == 0 || key.wanted == 0 {
            self.fault("graph", "rows, lanes, context and wanted rows are all at least one");
        }
    }

    /// Rule 2; the other rules rely on it.
    fn ids(&mut self) -> bool {
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
        self.faults.is_empty()
    }

    /// Rule 1.
    fn names(&mut self) {
        let mut seen = HashSet::new();
        for value in &self.graph.values {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            if value.name.is_empty() || !value.name.chars().all(plain) {
                self.fault(&value.name, "a name is made of letters, digits, '_' and '.'");
            }
            if !seen.insert(&value.name) {
                self.fault(&value.name, "two values have this name");
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
            if node.op != Op::Write {
                if last > Some(node.output) {
                    self.fault(&output.name, "stands before the result of an earlier node");
                }
                last = Some(node.output);
            }
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
                self.fault(&output.name, format!("'{}' writes a value of this role", node.op.name()));
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

    /// Rules 7 and 8, for values.
    fn extents(&mut self) {
        let key = self.graph.key;
        for value in &self.graph.values {
            let need = match value.outermost {
                Extent::Fixed => None,
                Extent::Rows => Some(key.rows),
                Extent::Wanted => Some(key.wanted),
                Extent::Context => Some(key.context),
            };
            let have = value.shape.extents()[0];
            if let Some(need) = need.filter(|&need| need as usize != have) {
                self.fault(&value.name, format!("its outermost extent is {have}; the key says {need}"));
            }
            if value.shape.elements() == 0 {
                self.fault(&value.name, "an extent is zero");
            }
            let typed = match value.role {
                Role::Scratch | Role::Output => value.dtype == DType::F32,
                Role::State(_) => matches!(value.dtype, DType::F32 | DType::F16 | DType::BF16),
                Role::Input => match key.variant.input {
                    InputKind::Tokens => value.dtype == DType::I32,
                    InputKind::Embeddings => value.dtype == DType::F32,
                },
                Role::Weight => value.dtype.bytes(&value.shape).is_ok(),
            };
            if !typed {
                self.fault(&value.name, format!("{} does not suit its role and shape", value.dtype));
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
        | Op::Take => true,
    };
    (!fine).then_some("a constant is not finite, or a bound is not positive")
}

/// What is wrong with a node's operands (rules 7 and 9).
fn operands(graph: &Graph, op: Op, inputs: &[&Value], output: &Value) -> Option<&'static str> {
    let arity = match op {
        Op::Scale { .. } | Op::Softcap { .. } | Op::Reshape | Op::Take | Op::Write => 1..=1,
        Op::Linear => 2..=3,
        Op::Attend { .. } => 3..=3,
        Op::Embed | Op::Norm { .. } | Op::Rope { .. } | Op::Gate { .. } | Op::Add => 2..=2,
    };
    if !arity.contains(&inputs.len()) {
        return Some("it has too few or too many operands");
    }
    let x = inputs[0];
    let same = |a: &Value, b: &Value| a.shape == b.shape && a.outermost == b.outermost;
    let ok = match op {
        Op::Embed => {
            let table = inputs[1].shape;
            x.dtype == DType::I32 && table.extents().len() == 2 && output.shape.columns() == table.columns()
        }
        Op::Norm { .. } => same(x, output) && inputs[1].shape.extents() == [x.shape.columns()],
        Op::Linear => linear(inputs, output),
        Op::Reshape => {
            x.outermost == output.outermost
                && x.shape.extents()[0] == output.shape.extents()[0]
                && x.shape.elements() == output.shape.elements()
        }
        Op::Rope { .. } => {
            let size = x.shape.columns();
            same(x, output) && x.shape.extents().len() == 3 && inputs[1].shape.elements() * 2 == size
        }
        Op::Write => x.shape.extents()[1..] == output.shape.extents()[1..] && x.outermost == Extent::Rows,
        Op::Attend { span, .. } => attend(graph, span, inputs, output),
        Op::Gate { .. } | Op::Add => same(x, inputs[1]) && same(x, output),
        Op::Scale { .. } | Op::Softcap { .. } => same(x, output),
        Op::Take => {
            x.outermost == Extent::Rows
                && output.outermost == Extent::Wanted
                && x.shape.extents()[1..] == output.shape.extents()[1..]
        }
    };
    (!ok).then_some("its operands do not have the shapes it needs")
}

fn linear(inputs: &[&Value], output: &Value) -> bool {
    let (x, weight) = (inputs[0], inputs[1]);
    let matrix = x.shape.extents().len() == 2 && weight.shape.extents().len() == 2;
    let bias = inputs.get(2).is_none_or(|bias| bias.shape.extents() == [weight.shape.extents()[0]]);
    matrix
        && bias
        && x.shape.columns() == weight.shape.columns()
        && output.shape.extents() == [x.shape.extents()[0], weight.shape.extents()[0]]
        && x.outermost == output.outermost
}

fn attend(graph: &Graph, span: Span, inputs: &[&Value], output: &Value) -> bool {
    let [q, keys, values] = inputs else { return false };
    let held = |state: &Value| match state.role {
        Role::State(group) => graph.groups[group.0 as usize].span == span,
        _ => false,
    };
    let (q, k, v, y) =
        (q.shape.extents(), keys.shape.extents(), values.shape.extents(), output.shape.extents());
    let ranks = q.len() == 3 && k.len() == 3 && v.len() == 3 && y.len() == 3;
    held(keys)
        && held(values)
        && keys.role == values.role
        && ranks
        && k[1] > 0
        && q[1] % k[1] == 0
        && q[2] == k[2]
        && k[1] == v[1]
        && y == [q[0], q[1], v[2]]
}
