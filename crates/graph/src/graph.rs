//! Graphs: values with shapes and roles, nodes in the order they run.

use girih_tensor::{DType, Shape};

use crate::{Op, Span};

/// A whole computation of static shapes; nodes run in the order they stand.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The largest step the graph can take.
    pub key: Key,
    /// The groups that its state falls into.
    pub groups: Vec<Group>,
    /// Everything that nodes read and write; a [`ValueId`] is an index here.
    pub values: Vec<Value>,
    /// The operations, in order.
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
    /// Sequences side by side.
    pub sequences: u32,
    /// Positions of the longest sequence.
    pub context: u32,
    /// Rows whose results leave the program.
    pub output_rows: u32,
    /// What goes in and what comes out.
    pub variant: Variant,
}

/// What a program takes and what it yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Variant {
    /// What goes in.
    pub input: InputKind,
    /// What comes out.
    pub output: OutputKind,
}

/// What goes into a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InputKind {
    /// Token ids, one a row.
    Tokens,
    /// Rows of the model's width, as the embedding would have made them.
    Embeddings,
}

/// What comes out of a program, one row for each output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutputKind {
    /// Scores over the vocabulary.
    Logits,
    /// The hidden state after the last norm.
    Hidden,
    /// One vector for each sequence, pooled as the model says.
    Pooled,
}

/// State that lives and dies together: the layers that see equally far back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The name in printed graphs.
    pub name: String,
    /// How far back its readers see; older positions may be dropped.
    pub span: Span,
}

/// Index of a [`Group`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// Index of a [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub u32);

/// Something that nodes read or write.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Unique; stable across shapes: `layers.3.attend.q`.
    pub name: String,
    /// The extents at the graph's key.
    pub shape: Shape,
    /// How it is stored.
    pub dtype: DType,
    /// What it is to the graph.
    pub role: Role,
    /// What the outermost extent counts.
    pub outermost: Extent,
}

/// What a value is to its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Given anew in every step.
    Input,
    /// Constant over the life of the program.
    Weight,
    /// Kept between steps, per sequence and position.
    State(GroupId),
    /// Lives within one step.
    Scratch,
    /// What the step is for.
    Output,
}

/// What an outermost extent counts; elastic backends shrink all but `Fixed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Nothing that varies.
    Fixed,
    /// Rows of the step.
    Rows,
    /// Wanted rows of the step.
    OutputRows,
    /// Positions of a sequence.
    Context,
}

/// One operation: `output = op(inputs)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// What is done.
    pub op: Op,
    /// What it reads, in the operator's order.
    pub inputs: Vec<ValueId>,
    /// What it writes.
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

    /// All values with their ids.
    pub fn ids(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.values.iter().enumerate().map(|(i, value)| (ValueId(i as u32), value))
    }

    /// The values of weights, with their ids.
    pub fn weights(&self) -> impl Iterator<Item = (ValueId, &Value)> {
        self.ids().filter(|(_, value)| value.role == Role::Weight)
    }

    /// The value that a step is for.
    pub fn output(&self) -> Option<ValueId> {
        self.ids().find(|(_, value)| value.role == Role::Output).map(|(id, _)| id)
    }

    /// The value that each step brings.
    pub fn input(&self) -> Option<ValueId> {
        self.ids().find(|(_, value)| value.role == Role::Input).map(|(id, _)| id)
    }

    /// The value of this name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.ids().find(|(_, value)| value.name == name).map(|(id, _)| id)
    }
}

impl Key {
    /// Whether a program of this key can take a step of that one.
    pub fn holds(&self, step: &Key) -> bool {
        self.rows >= step.rows
            && self.sequences >= step.sequences
            && self.context >= step.context
            && self.output_rows >= step.output_rows
            && self.variant == step.variant
    }
}

impl Variant {
    /// Tokens in, logits out: text generation.
    pub const GENERATE: Variant = Variant { input: InputKind::Tokens, output: OutputKind::Logits };
}

/// Appends values and nodes to a graph; what is appended never changes.
///
/// The builder computes shapes from operands, so a caller states only what an
/// operator cannot know. It does not check: [`faults`](crate::faults) does.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
}

impl Builder {
    /// An empty graph for steps up to `key`.
    pub fn new(key: Key) -> Builder {
        Builder { graph: Graph { key, groups: Vec::new(), values: Vec::new(), nodes: Vec::new() } }
    }

    /// The group of state for readers of this span, made when first asked for.
    pub fn group(&mut self, span: Span) -> GroupId {
        let groups = &mut self.graph.groups;
        let index = groups.iter().position(|group| group.span == span).unwrap_or_else(|| {
            groups.push(Group { name: span.to_string().replace(':', "_"), span });
            groups.len() - 1
        });
        GroupId(index as u32)
    }

    /// The input of every step, of `rows` rows.
    pub fn input(&mut self, name: &str, inner: &[usize], dtype: DType) -> ValueId {
        let shape = leading(self.graph.key.rows as usize, inner);
        self.value(name, shape, dtype, Role::Input, Extent::Rows)
    }

    /// A weight; asked for twice under one name, it is the same value.
    pub fn weight(&mut self, name: &str, shape: Shape, dtype: DType) -> ValueId {
        let known = self.graph.find(name);
        known.unwrap_or_else(|| self.value(name, shape, dtype, Role::Weight, Extent::Fixed))
    }

    /// State of one sequence: `inner` for each position of the context.
    pub fn state(&mut self, name: &str, inner: &[usize], dtype: DType, group: GroupId) -> ValueId {
        let shape = leading(self.graph.key.context as usize, inner);
        self.value(name, shape, dtype, Role::State(group), Extent::Context)
    }

    /// A node whose result has the shape of its first input.
    pub fn same(&mut self, name: &str, op: Op, inputs: &[ValueId]) -> ValueId {
        let Value { shape, outermost, .. } = self.graph.value(inputs[0]).clone();
        self.node(name, op, inputs, shape, outermost)
    }

    /// A node whose result keeps the outermost extent and has `inner` within.
    pub fn shaped(&mut self, name: &str, op: Op, inputs: &[ValueId], inner: &[usize]) -> ValueId {
        let Value { shape, outermost, .. } = self.graph.value(inputs[0]).clone();
        self.node(name, op, inputs, leading(shape.extents()[0], inner), outermost)
    }

    /// The output rows of `x`.
    pub fn gather(&mut self, name: &str, x: ValueId) -> ValueId {
        let shape = self.graph.value(x).shape.with_outermost(self.graph.key.output_rows as usize);
        self.node(name, Op::Gather, &[x], shape, Extent::OutputRows)
    }

    /// Puts the rows of `x` into `state`.
    pub fn write(&mut self, x: ValueId, state: ValueId) {
        self.graph.nodes.push(Node { op: Op::Write, inputs: vec![x], output: state });
    }

    /// Makes `value` the output and ends the graph.
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
fn leading(outermost: usize, inner: &[usize]) -> Shape {
    let extents: Vec<usize> = std::iter::once(outermost).chain(inner.iter().copied()).collect();
    Shape::new(&extents).expect("sizes of a model were checked when its facts were made")
}
