//! Graphs: values with shapes and roles, and the nodes that compute them, in
//! the order in which they run.

use girih_tensor::{DType, Shape};

use crate::constant::Pooling;
use crate::ops::{AppliedOp, Op};
use crate::sequence::{Sequence, step_count};
use crate::state_kind::StateKind;
use crate::value::{Extent, GroupId, Role, Value, ValueId};
use crate::work::{NodeWork, WorkStep};

/// A whole computation of static shapes.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The largest step that the graph can run.
    pub key: Key,
    /// The groups of its state; a [`GroupId`] is an index here.
    pub groups: Vec<StateGroup>,
    /// Everything that nodes read and write; a [`ValueId`] is an index here.
    pub values: Vec<Value>,
    /// The nodes, in the order in which they run.
    pub nodes: Vec<Node>,
}

/// The largest step of one program: every extent that varies between steps.
///
/// Keys are ordered by rows, then sequences, then context, then output rows: of two
/// programs that fit, the smaller key is the one to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Rows: the tokens of all sequences together.
    pub rows: u32,
    /// Sequences of one step.
    pub sequences: u32,
    /// Positions of the longest sequence.
    pub context: u32,
    /// Rows whose results leave the program.
    pub output_rows: u32,
    /// The kind of the output.
    pub output: OutputKind,
}

/// The kind of a program's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutputKind {
    /// Scores over the vocabulary, for each output row.
    Logits,
    /// The hidden state after the last norm, for each output row.
    Hidden,
    /// One vector for each sequence, pooled as the model defines.
    Pooled,
}

impl OutputKind {
    /// What the output has one row for.
    pub fn extent(self) -> Extent {
        match self {
            OutputKind::Logits | OutputKind::Hidden => Extent::OutputRows,
            OutputKind::Pooled => Extent::Sequences,
        }
    }
}

/// A state group: the state of all layers of the same kind, which has one lifetime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateGroup {
    /// The name in printed graphs.
    pub name: String,
    /// What its blocks hold.
    pub kind: StateKind,
}

/// One operation: `output = op(inputs)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The op with its constants.
    pub op: Op,
    /// The operands, in the op's order.
    pub inputs: Vec<ValueId>,
    /// The result.
    pub output: ValueId,
}

impl Graph {
    /// The value of an id.
    ///
    /// # Panics
    /// When the id belongs to another graph.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// A node's op with its operands; `None` if the op cannot have this number of them.
    pub fn applied_op(&self, node: &Node) -> Option<AppliedOp<&Value>> {
        node.op.applied_to(&node.inputs.iter().map(|id| self.value(*id)).collect::<Vec<_>>())
    }

    /// The work of a node of a graph without faults in a step of these sequences; none if the step has no row
    /// of its result.
    pub fn work(&self, node: &Node, sequences: &[Sequence<'_>]) -> NodeWork {
        let shapes: Vec<Shape> = node.inputs.iter().map(|id| self.value(*id).shape).collect();
        let call = node.op.applied_to(&shapes).expect("the checker refuses other numbers of operands");
        let extent = match self.value(node.output).outermost {
            Extent::Fixed | Extent::Rows | Extent::Context => Extent::Rows,
            extent @ (Extent::OutputRows | Extent::Sequences) => extent,
        };
        match step_count(sequences, extent) {
            0 => NodeWork::default(),
            rows => call.work(WorkStep { rows: rows as u64, sequences, experts: None }),
        }
    }

    /// All values with their ids.
    pub fn ids(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values.iter().enumerate().map(|(i, value)| (ValueId(i as u32), value))
    }

    /// All weights with their ids.
    pub fn weights(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.ids().filter(|(_, value)| value.role == Role::Weight)
    }

    /// What the state value holds; `None` for other values.
    pub fn state_kind(&self, value: &Value) -> Option<StateKind> {
        match value.role {
            Role::State(group) => Some(self.groups[group.0 as usize].kind),
            _ => None,
        }
    }

    /// The output of a step.
    pub fn output(&self) -> Option<ValueId> {
        self.ids().find(|(_, value)| value.role == Role::Output).map(|(id, _)| id)
    }

    /// The inputs of a step, in the order in which a step has them.
    pub fn inputs(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.ids().filter(|(_, value)| value.role == Role::Input)
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.ids().find(|(_, value)| value.name == name).map(|(id, _)| id)
    }
}

impl Key {
    /// Whether a program of this key can run a step of that one.
    pub fn holds(&self, step: &Key) -> bool {
        self.rows >= step.rows
            && self.sequences >= step.sequences
            && self.context >= step.context
            && self.output_rows >= step.output_rows
            && self.output == step.output
    }
}

/// Appends values and nodes to a graph; what is appended never changes.
///
/// The builder computes shapes from operands, so a caller states only what does
/// not follow from them. It checks nothing: [`faults`](crate::faults) does.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
}

impl Builder {
    /// An empty graph for steps up to `key`.
    pub fn new(key: Key) -> Builder {
        Builder { graph: Graph { key, groups: Vec::new(), values: Vec::new(), nodes: Vec::new() } }
    }

    /// The state group of this kind; the first call adds it.
    pub fn group(&mut self, kind: impl Into<StateKind>) -> GroupId {
        let (groups, kind) = (&mut self.graph.groups, kind.into());
        let index = groups.iter().position(|group| group.kind == kind).unwrap_or_else(|| {
            groups.push(StateGroup { name: kind.group_name(), kind });
            groups.len() - 1
        });
        GroupId(index as u32)
    }

    /// Adds an input; `inner` is the shape of one row.
    pub fn input(&mut self, name: &str, inner: &[usize], dtype: DType) -> ValueId {
        let shape = with_leading(self.graph.key.rows as usize, inner);
        self.value(name, shape, dtype, Role::Input, Extent::Rows)
    }

    /// The weight of this name; the first call adds it.
    pub fn weight(&mut self, name: &str, shape: Shape, dtype: DType) -> ValueId {
        let known = self.graph.find(name);
        known.unwrap_or_else(|| self.value(name, shape, dtype, Role::Weight, Extent::Fixed))
    }

    /// Adds state; `inner` is the shape of one position of the context.
    pub fn state(&mut self, name: &str, inner: &[usize], dtype: DType, group: GroupId) -> ValueId {
        let shape = with_leading(self.graph.key.context as usize, inner);
        self.value(name, shape, dtype, Role::State(group), Extent::Context)
    }

    /// Adds a carried value of this shape.
    pub fn carried(&mut self, name: &str, shape: Shape) -> ValueId {
        let group = self.group(StateKind::Carried);
        self.value(name, shape, DType::F32, Role::State(group), Extent::Fixed)
    }

    /// Adds a node whose result has the shape of its first operand.
    pub fn same(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        let Value { shape, outermost, .. } = self.graph.value(inputs[0]).clone();
        self.node(name, op, inputs, shape, outermost)
    }

    /// Adds a node whose result has the outermost extent of its first operand, then `inner`.
    pub fn shaped(&mut self, name: &str, op: Op, inputs: &[ValueId], inner: &[usize]) -> ValueId {
        let Value { shape, outermost, .. } = self.graph.value(inputs[0]).clone();
        self.node(name, op, inputs, with_leading(shape.extents()[0], inner), outermost)
    }

    /// Adds the output rows of `x`.
    pub fn gather(&mut self, name: &str, x: ValueId) -> ValueId {
        let shape = self.graph.value(x).shape.with_outermost(self.graph.key.output_rows as usize);
        self.node(name, Op::Gather, &[x], shape, Extent::OutputRows)
    }

    /// Pools the rows of `x` to one row for each sequence.
    pub fn pool(&mut self, name: &str, how: Pooling, x: ValueId) -> ValueId {
        let shape = self.graph.value(x).shape.with_outermost(self.graph.key.sequences as usize);
        self.node(name, Op::Pool { how }, &[x], shape, Extent::Sequences)
    }

    /// Writes the rows of `x` to `state`.
    pub fn write(&mut self, x: ValueId, state: ValueId) {
        self.graph.nodes.push(Node { op: Op::Write, inputs: vec![x], output: state });
    }

    /// Makes `value` the output and returns the graph.
    pub fn finish(mut self, value: ValueId) -> Graph {
        self.graph.values[value.0 as usize].role = Role::Output;
        self.graph
    }

    fn node(&mut self, name: &str, op: Op, inputs: &[ValueId], shape: Shape, outermost: Extent) -> ValueId {
        let output = self.value(name, shape, DType::F32, Role::Scratch, outermost);
        self.graph.nodes.push(Node { op, inputs: inputs.to_vec(), output });
        output
    }

    fn value(&mut self, name: &str, shape: Shape, dtype: DType, role: Role, outermost: Extent) -> ValueId {
        let id = ValueId(self.graph.values.len() as u32);
        self.graph.values.push(Value { name: name.to_owned(), shape, dtype, role, outermost });
        id
    }
}

/// A shape of `outermost` slices of `inner`.
fn with_leading(outermost: usize, inner: &[usize]) -> Shape {
    let extents: Vec<usize> = std::iter::once(outermost).chain(inner.iter().copied()).collect();
    Shape::new(&extents).expect("sizes of a model were checked when its facts were made")
}
