//! Graph to program: a flat list of steps whose operands are places in memory.

use girih_graph::backend::Refusal;
use girih_graph::{
    Act, Error, Extent, Graph, Node, Op, OperandKind, Pairing, Role, ScratchPlan, Span, SunkGather, Value,
    ValueId,
};
use girih_tensor::Shape;

use crate::arrange::{Kind, Precision};
use crate::fuse::{grouped, joined_name};
use crate::kernels::packed::Layout;
use crate::ops;
use crate::state;
use crate::weights::{Form, Weights};

/// One node, ready to run. Weights and states are indexes into their lists.
#[derive(Debug)]
pub(crate) enum Instruction {
    /// Puts rows into state.
    Write(Writes),
    /// Arranges rows for the products that follow; their name is kept, too.
    Arrange { source: Source, count: Count, width: usize, slot: usize, name: String },
    /// Multiplies rows by matrices of weights.
    Products(Products),
    /// Computes a value in another way.
    Compute(Compute),
}

/// Rows put into state values of one group, in one task.
#[derive(Debug)]
pub(crate) struct Writes {
    /// One or two, of different state values.
    pub parts: Vec<Write>,
    /// The value of heads that are rotated on their way, unless someone wants to
    /// see it.
    pub rotated: Option<String>,
    /// The names of all that is done, in one.
    pub name: String,
}

/// Rows put into one state value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub x: Place,
    /// What the rows at `x` are before their heads are rotated, and how they are
    /// rotated, if that is done on their way.
    pub unturned: Option<(Place, Turn)>,
    pub state: usize,
}

/// How heads are rotated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub frequencies: usize,
    /// The index among [`rotations`] of the turns by these frequencies.
    pub turns: usize,
    pub pairing: Pairing,
}

/// Products of the same rows with several matrices, in one task.
#[derive(Debug)]
pub(crate) struct Products {
    pub rows: Count,
    /// Values in a row.
    pub width: usize,
    /// At most [`ops::MOST_PRODUCTS`], whose results do not share memory.
    pub parts: Vec<Product>,
    /// What becomes of the results before they are stored, and where; unless
    /// someone wants to see them.
    pub finish: Option<(Finish, Place)>,
    /// The names of all results in one.
    pub name: String,
}

/// What is made of results of products.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finish {
    /// The sum of the only one and of what lies here.
    Add { residual: Place },
    /// The second gated by the first.
    Gate { act: Act },
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
    pub made: Made,
}

/// When a value is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// When its instruction comes.
    Here,
    /// Row by row by the instruction that needs it; when its own comes, for
    /// those who watch only.
    InPassing,
    /// By the products before it, unless someone watches these.
    WithProducts,
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
        turn: Turn,
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
    OutputRows,
}

/// Whether the backend has code for an op: `lower` makes an instruction of each
/// of these, and refuses all others.
pub(crate) fn knows(op: Op) -> bool {
    matches!(
        op,
        Op::Embed
            | Op::Norm { .. }
            | Op::Linear
            | Op::Reshape
            | Op::Rope { .. }
            | Op::Write
            | Op::Attend { .. }
            | Op::Gate { .. }
            | Op::Add
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::Gather
    )
}

/// What activations are rounded to before they meet the weights of `graph`,
/// when `precision` is asked for: each precision once, the coarsest first.
pub fn activations(graph: &Graph, precision: Option<Precision>) -> Vec<Precision> {
    let linear = graph.nodes.iter().filter(|node| node.op == Op::Linear);
    let used: Vec<Precision> = linear.map(|node| arranged_as(graph, node, precision).precision()).collect();
    Precision::ALL.iter().rev().copied().filter(|precision| used.contains(precision)).collect()
}

/// What activations are rounded to before the product that yields the output of
/// `graph`, when `precision` is asked for; nothing if no product does.
pub fn output_activations(graph: &Graph, precision: Option<Precision>) -> Option<Precision> {
    let mut linear = graph.nodes.iter().filter(|node| node.op == Op::Linear);
    linear
        .find(|node| yields_output(graph, node.output))
        .map(|node| arranged_as(graph, node, precision).precision())
}

/// Whether a value is the graph's output, or is only scaled or capped to be that.
fn yields_output(graph: &Graph, mut id: ValueId) -> bool {
    loop {
        let mut readers = graph.nodes.iter().filter(|node| node.inputs.contains(&id));
        match (readers.next(), readers.next()) {
            (None, _) => return graph.value(id).role == Role::Output,
            (Some(Node { op: Op::Scale { .. } | Op::Softcap { .. }, output, .. }), None) => id = *output,
            _ => return false,
        }
    }
}

/// How activations are arranged for a product.
fn arranged_as(graph: &Graph, node: &Node, precision: Option<Precision>) -> Kind {
    Kind::of(Layout::of(graph.value(node.inputs[1]).dtype), precision)
}

/// The nodes of `graph` that are not run with activations of `precision`.
pub(crate) fn objections(graph: &Graph, precision: Option<Precision>) -> Vec<Refusal> {
    let refuse =
        |node: &Node, reason: String| Refusal { node: graph.value(node.output).name.clone(), reason };
    let unmet = precision.filter(|precision| !activations(graph, Some(*precision)).contains(precision));
    graph.nodes.iter().filter_map(|node| Some(refuse(node, objection(graph, node, unmet)?))).collect()
}

/// Why a node is not run, if it is not; `unmet` is a precision of activations
/// that is asked for, and that meets none of the weights.
fn objection(graph: &Graph, node: &Node, unmet: Option<Precision>) -> Option<String> {
    let operands = (0..node.inputs.len()).find_map(|index| operand_objection(graph, node, index));
    operands.or_else(|| product_objection(graph, node, unmet?)).or_else(|| {
        let (row, table) = (graph.value(node.output).shape.stride(), graph.value(*node.inputs.last()?));
        let width = table.shape.columns();
        (node.op == Op::Embed && row != width)
            .then(|| format!("its rows of {row} values are not the {width} of a row of the table"))
    })
}

/// Why activations of a precision that meets none of the weights do not meet
/// those of this node.
fn product_objection(graph: &Graph, node: &Node, unmet: Precision) -> Option<String> {
    let (dtype, name) = (graph.value(*node.inputs.get(1)?).dtype, unmet.name());
    let sentence = "are not multiplied by activations of";
    (node.op == Op::Linear).then(|| format!("weights of {dtype} {sentence} {name}; choose f32 or bf16"))
}

/// What is wrong with one operand of a node.
fn operand_objection(graph: &Graph, node: &Node, index: usize) -> Option<String> {
    let id = node.inputs[index];
    let name = &graph.value(id).name;
    let need = *node.op.spec().operands.get(index)?;
    if !need.fits(graph.value(id)) {
        return Some(format!("its operand '{name}' is not {need}, which '{}' needs here", node.op.name()));
    }
    if need == OperandKind::State
        && let Some(reason) = state::objection(graph, id)
    {
        return Some(format!("its operand '{name}' cannot be kept: {reason}"));
    }
    let form = Form::of(node.op, index);
    (form.is_some() && Form::in_graph(graph, id) != form)
        .then(|| format!("its operand '{name}' is used as a matrix and as a vector"))
}

/// The rows of a value, if it is one of activations.
fn row_count(value: &Value) -> Option<Count> {
    let is_activations = OperandKind::Activations.fits(value);
    is_activations.then_some(if value.outermost == Extent::Rows { Count::Rows } else { Count::OutputRows })
}

/// A graph as the backend runs it.
#[derive(Debug)]
pub(crate) struct Lowered {
    pub instructions: Vec<Instruction>,
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
        let x = graph.value(node.inputs[0]);
        let kind = arranged_as(graph, node, precision);
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
    if let Some(Refusal { node, reason }) = objections(graph, precision).first() {
        return Err(Error::new(format!("the cpu backend does not run '{node}': {reason}")));
    }
    let graph = &grouped(graph);
    let plan = ScratchPlan::of(graph);
    let slots = slots(graph, precision);
    let mut held: Vec<Option<ValueId>> = vec![None; slots.len()];
    let lowering = Lowering { graph, weights, places: places(graph, &plan), precision, slots: &slots };
    let mut instructions = Vec::with_capacity(graph.nodes.len());
    let (mut index, mut finish) = (0, None);
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
        let joined = if finish == Some(index) { None } else { lowering.joined(index) };
        match nodes[0].op {
            Op::Linear => {
                finish = lowering.finish(index, together).map(|_| index + together);
                instructions.push(Instruction::Products(lowering.products(index, together)?));
            }
            Op::Write => instructions.push(Instruction::Write(lowering.writes(index, together)?)),
            _ => {
                let made = match finish == Some(index) {
                    true => Made::WithProducts,
                    false if joined.is_some() || lowering.turned_in_passing(index) => Made::InPassing,
                    false => Made::Here,
                };
                instructions.push(Instruction::Compute(lowering.compute(&nodes[0], made)?));
            }
        }
        if let Some(slot) = joined {
            instructions.push(lowering.arrange(nodes[0].output, lowering.source(&nodes[0])?, slot));
            held[slot] = Some(nodes[0].output);
        }
        index += together;
    }
    Ok(Lowered { instructions, slots })
}

/// Numbers of scratch that a program of `graph` takes for its values, whether or
/// not it takes rows `early`.
pub(crate) fn scratch_size(graph: &Graph, early: Option<&SunkGather>) -> usize {
    let size = |graph: &Graph| ScratchPlan::of(&grouped(graph)).bytes / size_of::<f32>();
    size(graph).max(early.map_or(0, |early| size(&early.graph)))
}

/// Where each value lies; nothing for tokens, weights and states.
fn places(graph: &Graph, plan: &ScratchPlan) -> Vec<Option<Place>> {
    let mut places: Vec<Option<Place>> = Vec::with_capacity(graph.values.len());
    for (value, planned) in graph.values.iter().zip(&plan.placements) {
        let Some(count) = row_count(value) else {
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

/// A graph on its way to instructions; what is fused, [`fuse`](crate::fuse) says.
pub(crate) struct Lowering<'a> {
    pub graph: &'a Graph,
    weights: &'a Weights,
    places: Vec<Option<Place>>,
    precision: Option<Precision>,
    slots: &'a [Slot],
}

impl Lowering<'_> {
    /// Where a product's activations are arranged.
    pub fn slot(&self, node: &Node) -> Option<usize> {
        if node.op != Op::Linear {
            return None;
        }
        let kind = arranged_as(self.graph, node, self.precision);
        self.slots.iter().position(|slot| slot.kind == kind)
    }

    /// The products of one value that begin at node `index`, in one task.
    fn products(&self, index: usize, count: usize) -> Result<Products, Error> {
        let nodes = &self.graph.nodes[index..index + count];
        let part = |node: &Node| {
            Ok(Product {
                slot: self.slot(node).expect("there is a slot for each product"),
                weight: self.weight(node, 1)?,
                bias: if node.inputs.len() > 2 { Some(self.weight(node, 2)?) } else { None },
                output: self.place(node.output),
                name: self.name(node.output).to_owned(),
                shape: self.graph.value(node.output).shape,
            })
        };
        let finish = self.finish(index, count);
        let last = if finish.is_some() { index + count + 1 } else { index + count };
        let names: Vec<&str> =
            self.graph.nodes[index..last].iter().map(|node| self.name(node.output)).collect();
        Ok(Products {
            rows: self.place(nodes[0].inputs[0]).count,
            width: self.graph.value(nodes[0].inputs[1]).shape.columns(),
            parts: nodes.iter().map(part).collect::<Result<_, Error>>()?,
            finish: finish.map(|finish| (finish, self.place(self.graph.nodes[index + count].output))),
            name: joined_name(&names),
        })
    }

    /// The writes that begin at node `index`, in one task.
    fn writes(&self, index: usize, count: usize) -> Result<Writes, Error> {
        let before = index.checked_sub(1).filter(|&before| self.turned_in_passing(before));
        let rope = before.map(|before| &self.graph.nodes[before]);
        let part = |node: &Node| {
            let rope = rope.filter(|rope| rope.output == node.inputs[0]);
            let unturned = rope.map(|rope| Ok((self.place(rope.inputs[0]), self.turn(rope)?)));
            let x = self.place(node.inputs[0]);
            Ok(Write { x, unturned: unturned.transpose()?, state: self.state(node.output) })
        };
        let nodes = &self.graph.nodes[index..index + count];
        let names: Vec<&str> = rope.into_iter().chain(nodes).map(|node| self.name(node.output)).collect();
        Ok(Writes {
            parts: nodes.iter().map(part).collect::<Result<_, Error>>()?,
            rotated: rope.map(|rope| self.name(rope.output).to_owned()),
            name: joined_name(&names),
        })
    }

    fn turn(&self, rope: &Node) -> Result<Turn, Error> {
        let Op::Rope { pairing } = rope.op else { unreachable!("only ropes turn heads") };
        let turns = rotations(self.graph).iter().position(|id| *id == rope.inputs[1]);
        let turns = turns.expect("the frequencies of every rope are listed");
        Ok(Turn { frequencies: self.weight(rope, 1)?, turns, pairing })
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

    fn compute(&self, node: &Node, made: Made) -> Result<Compute, Error> {
        let value = self.graph.value(node.output);
        Ok(Compute {
            call: self.call(node)?,
            output: self.place(node.output),
            name: value.name.clone(),
            op: node.op.name(),
            shape: value.shape,
            made,
        })
    }

    /// Where the weight lies that is operand `index` of a node.
    fn weight(&self, node: &Node, index: usize) -> Result<usize, Error> {
        self.weights.index(self.name(node.inputs[index]))
    }

    fn name(&self, id: ValueId) -> &str {
        &self.graph.value(id).name
    }

    fn call(&self, node: &Node) -> Result<Call, Error> {
        let place = |index: usize| self.place(node.inputs[index]);
        let weight = |index: usize| self.weight(node, index);
        Ok(match node.op {
            Op::Reshape if place(0).at == self.place(node.output).at => Call::Alias,
            Op::Embed => Call::Embed { table: weight(1)? },
            Op::Norm { epsilon } => Call::Norm { x: place(0), weight: weight(1)?, epsilon },
            Op::Rope { .. } => Call::Rope { x: place(0), turn: self.turn(node)? },
            Op::Attend { scale, span, softcap } => {
                let attention = self.attention(node, scale, span, softcap);
                let (keys, values) = (self.state(node.inputs[1]), self.state(node.inputs[2]));
                Call::Attend { q: place(0), keys, values, attention }
            }
            Op::Gather => Call::Take { x: place(0) },
            Op::Reshape => Call::Elementwise(Elementwise::Copy { x: place(0) }),
            Op::Gate { act } => Call::Elementwise(Elementwise::Gate { gate: place(0), up: place(1), act }),
            Op::Add => Call::Elementwise(Elementwise::Add { a: place(0), b: place(1) }),
            Op::Scale { factor } => Call::Elementwise(Elementwise::Scale { x: place(0), factor }),
            Op::Softcap { cap } => Call::Elementwise(Elementwise::Softcap { x: place(0), cap }),
            Op::Write | Op::Linear => unreachable!("these are instructions of their own"),
            op => return Err(Error::new(format!("the cpu backend has no code for the op '{}'", op.name()))),
        })
    }

    fn attention(&self, node: &Node, scale: f32, span: Span, softcap: Option<f32>) -> Attention {
        let [q, keys, values] = [0, 1, 2].map(|index| self.graph.value(node.inputs[index]).shape);
        let groups = keys.extents()[1];
        let (shared, size, value_size) = (q.extents()[1] / groups, q.columns(), values.columns());
        Attention { groups, shared, size, value_size, scale, span, softcap }
    }

    pub fn place(&self, id: ValueId) -> Place {
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
pub(crate) fn local_size(graph: &Graph, precision: Option<Precision>) -> usize {
    graph.nodes.iter().map(|node| node_local_size(graph, node, precision)).max().unwrap_or(0)
}

/// Numbers of memory for the partial sums of attention.
pub(crate) fn partials_size(graph: &Graph) -> usize {
    let nodes = graph.nodes.iter().filter(|node| matches!(node.op, Op::Attend { .. }));
    nodes.map(|node| ops::attend::partials_size(graph, node)).max().unwrap_or(0)
}

fn node_local_size(graph: &Graph, node: &Node, precision: Option<Precision>) -> usize {
    let input = |index: usize| graph.value(node.inputs[index]);
    match node.op {
        Op::Linear => {
            let terms = arranged_as(graph, node, precision).terms();
            ops::linear::local_size(input(0).shape.rows() * terms, input(1).shape.columns())
        }
        Op::Attend { .. } => {
            let (heads, groups) = (input(0).shape.extents()[1], input(1).shape.extents()[1]);
            let (size, value_size) = (input(1).shape.columns(), input(2).shape.columns());
            ops::attend::local_size(heads / groups, size, value_size)
        }
        Op::Write => ops::write::local_size(input(0).shape.columns()),
        _ => 0,
    }
}
