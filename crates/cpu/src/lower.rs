//! Graph to program: a flat list of steps whose operands are places in memory.

use std::collections::HashMap;

use girih_graph::backend::Refusal;
use girih_graph::{Act, Error, Extent, Graph, Node, Op, Pairing, Role, ScratchPlan, Span, Value, ValueId};
use girih_tensor::{DType, Shape};

use crate::arrange::{Kind, Precision};
use crate::kernels::packed::Layout;
use crate::ops;
use crate::state;
use crate::weights::{Form, Weights};

/// One node, ready to run. Weights and states are indexes into their lists.
#[derive(Debug)]
pub(crate) enum Instruction {
    /// Puts rows into state, whose name is kept for who watches.
    Write { x: Place, state: usize, name: String },
    /// Arranges rows for the products that follow; their name is kept, too.
    Arrange { source: Source, count: Count, width: usize, slot: usize, name: String },
    /// Multiplies rows by matrices of weights.
    Products(Products),
    /// Computes a value in another way.
    Compute(Compute),
}

/// Products of the same rows with several matrices, in one task.
#[derive(Debug)]
pub(crate) struct Products {
    pub rows: Count,
    /// Values in a row.
    pub width: usize,
    /// At most [`ops::MOST_PRODUCTS`], whose results do not share memory.
    pub parts: Vec<Product>,
    /// The names of all results in one.
    pub name: String,
}

/// A product with one matrix.
#[derive(Debug)]
pub(crate) struct Product {
    /// Where the activations were arranged.
    pub slot: usize,
    pub weight: usize,
    pub bias: Option<usize>,
    pub output: Place,
    /// The result's name and its shape at the program's key, for who watches.
    pub name: String,
    pub shape: Shape,
}

/// Where the rows to be arranged come from: a value, or operands of the
/// operator that would make it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source {
    Rows { x: Place },
    Norm { x: Place, weight: usize, epsilon: f32 },
    Gate { gate: Place, up: Place, act: Act },
}

/// How a value is computed, and where it lies.
#[derive(Debug)]
pub(crate) struct Compute {
    pub call: Call,
    pub output: Place,
    /// The value's name, for who watches.
    pub name: String,
    /// The operator's name, for who watches.
    pub op: &'static str,
    /// The value's shape at the program's key.
    pub shape: Shape,
    /// Whether only those who watch need the value, as its readers take it from
    /// where it was arranged while it was made.
    pub joined: bool,
}

/// What is done, with everything about it that a step does not change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// The result lies where the operand does: nothing is to be done.
    Alias,
    Embed {
        table: usize,
    },
    Norm {
        x: Place,
        weight: usize,
        epsilon: f32,
    },
    Rope {
        x: Place,
        frequencies: usize,
        /// The index among [`rotations`] of the turns by these frequencies.
        turns: usize,
        pairing: Pairing,
    },
    Attend {
        q: Place,
        keys: usize,
        values: usize,
        attention: Attention,
    },
    Take {
        x: Place,
    },
    Elementwise(Elementwise),
}

/// What is done element by element.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elementwise {
    Copy { x: Place },
    Gate { gate: Place, up: Place, act: Act },
    Add { a: Place, b: Place },
    Scale { x: Place, factor: f32 },
    Softcap { x: Place, cap: f32 },
}

/// The constants of [`Op::Attend`] and the sizes of its operands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    /// Heads of keys and values.
    pub groups: usize,
    /// Query heads that share one head of keys and values.
    pub shared: usize,
    /// Values in a head of the query and of a key.
    pub size: usize,
    /// Values in a head of a value and of the result.
    pub value_size: usize,
    pub scale: f32,
    pub span: Span,
    pub softcap: Option<f32>,
}

/// Where the rows of a value lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub at: At,
    /// Values in a row.
    pub stride: usize,
    pub count: Count,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The step's embeddings.
    Input,
    /// The step's output.
    Output,
    /// Scratch memory, from this number on.
    Scratch(usize),
}

/// How many rows a step brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Rows,
    Wanted,
}

/// What a node may have as an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Tokens,
    /// So many rows of floats.
    Activations(Count),
    Weight,
    State,
    /// Values that no operator yields by rows.
    Other,
}

/// What activations are rounded to before they meet the weights of `graph`,
/// when `precision` is asked for: each precision once, the coarsest first.
pub fn activations(graph: &Graph, precision: Option<Precision>) -> Vec<Precision> {
    let linear = graph.nodes.iter().filter(|node| node.op == Op::Linear);
    let layouts: Vec<Layout> = linear.map(|node| Layout::of(graph.value(node.inputs[1]).dtype)).collect();
    let used = |of: &Precision| {
        layouts.iter().any(|&layout| precision.unwrap_or(Precision::default_for(layout)) == *of)
    };
    Precision::ALL.iter().rev().copied().filter(used).collect()
}

/// The nodes of `graph` that are not run with activations of `precision`.
pub(crate) fn refusals(graph: &Graph, precision: Option<Precision>) -> Vec<Refusal> {
    let refuse =
        |node: &Node, reason: String| Refusal { node: graph.value(node.output).name.clone(), reason };
    graph.nodes.iter().filter_map(|node| Some(refuse(node, objection(graph, node, precision)?))).collect()
}

/// Why a node is not run, if it is not.
fn objection(graph: &Graph, node: &Node, precision: Option<Precision>) -> Option<String> {
    let operands = (0..node.inputs.len()).find_map(|index| operand_objection(graph, node, index));
    operands.or_else(|| products_objection(graph, node, precision)).or_else(|| {
        let (row, table) = (graph.value(node.output).shape.stride(), graph.value(*node.inputs.last()?));
        let width = table.shape.columns();
        (node.op == Op::Embed && row != width)
            .then(|| format!("its rows of {row} values are not the {width} of a row of the table"))
    })
}

/// Why activations of `precision` do not meet the weights of a node.
fn products_objection(graph: &Graph, node: &Node, precision: Option<Precision>) -> Option<String> {
    if node.op != Op::Linear {
        return None;
    }
    let weight = graph.value(node.inputs[1]);
    let name = precision?.name();
    Kind::of(Layout::of(weight.dtype), precision).is_none().then(|| {
        format!("weights of {} are not multiplied by activations of {name}; choose f32 or bf16", weight.dtype)
    })
}

/// What is wrong with one operand of a node.
fn operand_objection(graph: &Graph, node: &Node, index: usize) -> Option<String> {
    let id = node.inputs[index];
    let (name, kind) = (&graph.value(id).name, kind(graph.value(id)));
    let form = Form::of(node.op, index);
    let positional = matches!(node.op, Op::Rope { .. } | Op::Write | Op::Attend { .. } | Op::Take);
    let (need, fits) = match (node.op, index) {
        _ if form.is_some() => ("a weight", kind == Operand::Weight),
        (Op::Embed, _) => ("tokens", kind == Operand::Tokens),
        (Op::Attend { .. }, 1 | 2) => ("state", kind == Operand::State),
        _ if positional => ("the rows of the step", kind == Operand::Activations(Count::Rows)),
        _ => ("rows of activations", matches!(kind, Operand::Activations(_))),
    };
    if !fits {
        return Some(format!("its operand '{name}' is not {need}, which '{}' needs here", node.op.name()));
    }
    if kind == Operand::State
        && let Some(reason) = state::objection(graph, id)
    {
        return Some(format!("its operand '{name}' cannot be kept: {reason}"));
    }
    (form.is_some() && Form::in_graph(graph, id) != form)
        .then(|| format!("its operand '{name}' is used as a matrix and as a vector"))
}

fn kind(value: &Value) -> Operand {
    match (value.role, value.outermost) {
        (Role::Weight, _) => Operand::Weight,
        (Role::State(_), _) => Operand::State,
        (Role::Input, _) if value.dtype == DType::I32 => Operand::Tokens,
        (_, Extent::Rows) => Operand::Activations(Count::Rows),
        (_, Extent::Wanted) => Operand::Activations(Count::Wanted),
        (_, Extent::Fixed | Extent::Context) => Operand::Other,
    }
}

/// A graph as the backend runs it.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub instructions: Vec<Instruction>,
    /// Numbers of scratch that the instructions share.
    pub scratch: usize,
    /// What activations are arranged in.
    pub slots: Vec<Slot>,
}

/// Memory for activations of one kind, the present ones until others come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub kind: Kind,
    /// Words for the most and the widest rows.
    pub words: usize,
}

/// The memory that the graph's products take for their activations.
pub(crate) fn slots(graph: &Graph, precision: Option<Precision>) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for node in graph.nodes.iter().filter(|node| node.op == Op::Linear) {
        let (x, weight) = (graph.value(node.inputs[0]), graph.value(node.inputs[1]));
        let Some(kind) = Kind::of(Layout::of(weight.dtype), precision) else { continue };
        let words = kind.size(x.shape.rows(), x.shape.columns());
        match slots.iter_mut().find(|slot| slot.kind == kind) {
            Some(slot) => slot.words = slot.words.max(words),
            None => slots.push(Slot { kind, words }),
        }
    }
    slots
}

/// Lowers a graph.
///
/// # Errors
/// When a node is refused, or a weight is not among `weights`.
pub(crate) fn lower(
    graph: &Graph,
    weights: &Weights,
    precision: Option<Precision>,
) -> Result<Lowered, Error> {
    if let Some(Refusal { node, reason }) = refusals(graph, precision).first() {
        return Err(Error::new(format!("the cpu backend does not run '{node}': {reason}")));
    }
    let graph = &grouped(graph);
    let plan = ScratchPlan::of(graph);
    let slots = slots(graph, precision);
    let mut held: Vec<Option<ValueId>> = vec![None; slots.len()];
    let lowering = Lowering { graph, weights, places: places(graph, &plan), precision, slots: &slots };
    let mut instructions = Vec::with_capacity(graph.nodes.len());
    let mut index = 0;
    while index < graph.nodes.len() {
        let together = lowering.together(index);
        let nodes = &graph.nodes[index..index + together];
        for (slot, node) in nodes.iter().filter_map(|node| Some((lowering.slot(node)?, node))) {
            let x = node.inputs[0];
            if held[slot] != Some(x) {
                instructions.push(lowering.arrange(x, Source::Rows { x: lowering.place(x) }, slot));
                held[slot] = Some(x);
            }
        }
        if nodes[0].op == Op::Linear {
            instructions.push(Instruction::Products(lowering.products(nodes)?));
        } else {
            let joined = lowering.joined(index);
            instructions.push(lowering.node(&nodes[0], joined.is_some())?);
            if let Some(slot) = joined {
                let source = lowering.source(&nodes[0])?;
                instructions.push(lowering.arrange(nodes[0].output, source, slot));
                held[slot] = Some(nodes[0].output);
            }
        }
        index += together;
    }
    Ok(Lowered { instructions, scratch: plan.bytes / size_of::<f32>(), slots })
}

/// Numbers of scratch that a program of `graph` takes for its values.
pub(crate) fn scratch_size(graph: &Graph) -> usize {
    ScratchPlan::of(&grouped(graph)).bytes / size_of::<f32>()
}

/// The graph with all products of one value behind the first of them. They read
/// that value and weights only, so each of them could as well have come then.
fn grouped(graph: &Graph) -> Graph {
    let mut groups: HashMap<ValueId, Vec<Node>> = HashMap::new();
    for node in graph.nodes.iter().filter(|node| node.op == Op::Linear) {
        groups.entry(node.inputs[0]).or_default().push(node.clone());
    }
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    for node in &graph.nodes {
        match node.op {
            Op::Linear => nodes.extend(groups.remove(&node.inputs[0]).unwrap_or_default()),
            _ => nodes.push(node.clone()),
        }
    }
    Graph { key: graph.key, groups: graph.groups.clone(), values: graph.values.clone(), nodes }
}

/// One name for several: `a.q`, `a.k` and `a.v` are `a.q+k+v`.
fn joined_name(names: &[&str]) -> String {
    let split = |name| str::rsplit_once(name, '.').unwrap_or(("", name));
    let (first, _) = split(names[0]);
    if !first.is_empty() && names.iter().all(|name| split(name).0 == first) {
        let last: Vec<&str> = names.iter().map(|name| split(name).1).collect();
        return format!("{first}.{}", last.join("+"));
    }
    names.join("+")
}

/// Where each value lies; nothing for tokens, weights and states.
fn places(graph: &Graph, plan: &ScratchPlan) -> Vec<Option<Place>> {
    let mut places: Vec<Option<Place>> = Vec::with_capacity(graph.values.len());
    for (value, planned) in graph.values.iter().zip(&plan.places) {
        let Operand::Activations(count) = kind(value) else {
            places.push(None);
            continue;
        };
        let at = match value.role {
            Role::Input => At::Input,
            Role::Output => At::Output,
            _ => At::Scratch(planned.map_or(0, |place| place.offset / size_of::<f32>())),
        };
        places.push(Some(Place { at, stride: value.shape.stride(), count }));
    }
    // A reshaped input needs no memory of its own either; the plan speaks of
    // scratch only.
    for node in graph.nodes.iter().filter(|node| node.op == Op::Reshape) {
        let (from, to) = (node.inputs[0].0 as usize, node.output.0 as usize);
        if let (Some(from), Some(to)) = (places[from], &mut places[to])
            && to.at != At::Output
        {
            to.at = from.at;
        }
    }
    places
}

struct Lowering<'a> {
    graph: &'a Graph,
    weights: &'a Weights,
    places: Vec<Option<Place>>,
    precision: Option<Precision>,
    slots: &'a [Slot],
}

impl Lowering<'_> {
    /// Where a product's activations are arranged.
    fn slot(&self, node: &Node) -> Option<usize> {
        if node.op != Op::Linear {
            return None;
        }
        let layout = Layout::of(self.graph.value(node.inputs[1]).dtype);
        let kind = Kind::of(layout, self.precision).expect("refusals were checked: there is a way");
        self.slots.iter().position(|slot| slot.kind == kind)
    }

    /// How many nodes from `index` on are one instruction: products of one value
    /// that write apart from each other.
    fn together(&self, index: usize) -> usize {
        let nodes = &self.graph.nodes[index..];
        let fits = |count: &usize| {
            let (node, before) = (&nodes[*count], &nodes[..*count]);
            node.op == Op::Linear
                && node.inputs[0] == nodes[0].inputs[0]
                && before.iter().all(|other| self.apart(node.output, other.output))
        };
        if nodes[0].op != Op::Linear {
            return 1;
        }
        1 + (1..nodes.len().min(ops::MOST_PRODUCTS)).take_while(fits).count()
    }

    /// Whether two values share no memory.
    fn apart(&self, a: ValueId, b: ValueId) -> bool {
        let range = |id| {
            let (place, len) = (self.place(id), self.graph.value(id).shape.elements());
            match place.at {
                At::Scratch(start) => (At::Scratch(0), start..start + len),
                at => (at, 0..len),
            }
        };
        let ((a, range_a), (b, range_b)) = (range(a), range(b));
        a != b || range_a.end <= range_b.start || range_b.end <= range_a.start
    }

    /// Products of one value, in one task.
    fn products(&self, nodes: &[Node]) -> Result<Products, Error> {
        let name = |id: ValueId| self.graph.value(id).name.as_str();
        let part = |node: &Node| {
            let weight = |index: usize| self.weights.index(name(node.inputs[index]));
            Ok(Product {
                slot: self.slot(node).expect("there is a slot for each product"),
                weight: weight(1)?,
                bias: if node.inputs.len() > 2 { Some(weight(2)?) } else { None },
                output: self.place(node.output),
                name: name(node.output).to_owned(),
                shape: self.graph.value(node.output).shape,
            })
        };
        let names: Vec<&str> = nodes.iter().map(|node| name(node.output)).collect();
        Ok(Products {
            rows: self.place(nodes[0].inputs[0]).count,
            width: self.graph.value(nodes[0].inputs[1]).shape.columns(),
            parts: nodes.iter().map(part).collect::<Result<_, Error>>()?,
            name: joined_name(&names),
        })
    }

    /// The slot that the readers of node `index` take its value from, if it
    /// can be arranged there while it is made: all readers are products that
    /// take it from the same slot, and nothing else is arranged there before
    /// the last of them.
    fn joined(&self, index: usize) -> Option<usize> {
        let node = &self.graph.nodes[index];
        let (value, row) = (node.output, self.graph.value(node.output));
        let makes_rows = match node.op {
            Op::Norm { .. } => self.graph.value(node.inputs[1]).shape.elements() == row.shape.stride(),
            Op::Gate { .. } => true,
            _ => false,
        };
        if !makes_rows || row.role != Role::Scratch {
            return None;
        }
        let after = || self.graph.nodes[index + 1..].iter();
        let last = after().rposition(|reader| reader.inputs.contains(&value))?;
        let mut slots =
            after().take(last + 1).filter(|reader| reader.inputs.contains(&value)).map(|reader| {
                self.slot(reader).filter(|_| reader.inputs.iter().filter(|id| **id == value).count() == 1)
            });
        let slot = slots.next()??;
        let one_slot = slots.all(|other| other == Some(slot));
        // Another norm or gate might be arranged there meanwhile, too.
        let undisturbed = after().take(last + 1).all(|between| match between.op {
            Op::Linear => self.slot(between) != Some(slot) || between.inputs[0] == value,
            Op::Norm { .. } | Op::Gate { .. } => {
                after().all(|reader| reader.inputs[0] != between.output || self.slot(reader) != Some(slot))
            }
            _ => true,
        });
        (one_slot && undisturbed).then_some(slot)
    }

    /// What a joined node makes its rows of.
    fn source(&self, node: &Node) -> Result<Source, Error> {
        Ok(match self.call(node)? {
            Call::Norm { x, weight, epsilon } => Source::Norm { x, weight, epsilon },
            Call::Elementwise(Elementwise::Gate { gate, up, act }) => Source::Gate { gate, up, act },
            _ => unreachable!("only norms and gates are joined"),
        })
    }

    fn arrange(&self, x: ValueId, source: Source, slot: usize) -> Instruction {
        let (Place { stride, count, .. }, name) = (self.place(x), self.graph.value(x).name.clone());
        Instruction::Arrange { source, count, width: stride, slot, name }
    }

    fn node(&self, node: &Node, joined: bool) -> Result<Instruction, Error> {
        if node.op == Op::Write {
            let (x, state) = (self.place(node.inputs[0]), self.state(node.output));
            let name = self.graph.value(node.output).name.clone();
            return Ok(Instruction::Write { x, state, name });
        }
        let value = self.graph.value(node.output);
        Ok(Instruction::Compute(Compute {
            call: self.call(node)?,
            output: self.place(node.output),
            name: value.name.clone(),
            op: node.op.name(),
            shape: value.shape,
            joined,
        }))
    }

    fn call(&self, node: &Node) -> Result<Call, Error> {
        let place = |index: usize| self.place(node.inputs[index]);
        let weight = |index: usize| self.weights.index(&self.graph.value(node.inputs[index]).name);
        Ok(match node.op {
            Op::Reshape if place(0).at == self.place(node.output).at => Call::Alias,
            Op::Embed => Call::Embed { table: weight(1)? },
            Op::Norm { epsilon } => Call::Norm { x: place(0), weight: weight(1)?, epsilon },
            Op::Rope { pairing } => {
                let turns = rotations(self.graph).iter().position(|id| *id == node.inputs[1]);
                let turns = turns.expect("the frequencies of every rope are listed");
                Call::Rope { x: place(0), frequencies: weight(1)?, turns, pairing }
            }
            Op::Attend { scale, span, softcap } => {
                let attention = self.attention(node, scale, span, softcap);
                let (keys, values) = (self.state(node.inputs[1]), self.state(node.inputs[2]));
                Call::Attend { q: place(0), keys, values, attention }
            }
            Op::Take => Call::Take { x: place(0) },
            Op::Reshape => Call::Elementwise(Elementwise::Copy { x: place(0) }),
            Op::Gate { act } => Call::Elementwise(Elementwise::Gate { gate: place(0), up: place(1), act }),
            Op::Add => Call::Elementwise(Elementwise::Add { a: place(0), b: place(1) }),
            Op::Scale { factor } => Call::Elementwise(Elementwise::Scale { x: place(0), factor }),
            Op::Softcap { cap } => Call::Elementwise(Elementwise::Softcap { x: place(0), cap }),
            Op::Write | Op::Linear => unreachable!("these are instructions of their own"),
        })
    }

    fn attention(&self, node: &Node, scale: f32, span: Span, softcap: Option<f32>) -> Attention {
        let [q, keys, values] = [0, 1, 2].map(|index| self.graph.value(node.inputs[index]).shape);
        let groups = keys.extents()[1];
        let (shared, size, value_size) = (q.extents()[1] / groups, q.columns(), values.columns());
        Attention { groups, shared, size, value_size, scale, span, softcap }
    }

    fn place(&self, id: ValueId) -> Place {
        self.places[id.0 as usize].expect("refusals were checked: it is a value of rows")
    }

    /// The index of a state value among those of the graph.
    fn state(&self, id: ValueId) -> usize {
        let before = &self.graph.values[..id.0 as usize];
        before.iter().filter(|value| matches!(value.role, Role::State(_))).count()
    }
}

/// The weights of frequencies by which a graph turns heads, each once.
pub(crate) fn rotations(graph: &Graph) -> Vec<ValueId> {
    let mut rotations = Vec::new();
    for node in graph.nodes.iter().filter(|node| matches!(node.op, Op::Rope { .. })) {
        if !rotations.contains(&node.inputs[1]) {
            rotations.push(node.inputs[1]);
        }
    }
    rotations
}

/// Numbers of scratch that each thread needs for itself.
pub(crate) fn local_size(graph: &Graph) -> usize {
    graph.nodes.iter().map(|node| node_local_size(graph, node)).max().unwrap_or(0)
}

/// Numbers of memory for the partial sums of attention.
pub(crate) fn partials_size(graph: &Graph) -> usize {
    let nodes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Attend { .. }));
    nodes.map(|node| ops::attend::partials_size(graph, node)).max().unwrap_or(0)
}

fn node_local_size(graph: &Graph, node: &Node) -> usize {
    let input = |index: usize| graph.value(node.inputs[index]);
    match node.op {
        Op::Linear => ops::linear::local_size(graph.key.rows as usize, input(1).shape.columns()),
        Op::Attend { .. } => {
            let (heads, groups) = (input(0).shape.extents()[1], input(1).shape.extents()[1]);
            let (size, value_size) = (input(1).shape.columns(), input(2).shape.columns());
            ops::attend::local_size(heads / groups, size, value_size)
        }
        _ => 0,
    }
}
