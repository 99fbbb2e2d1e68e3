//! The definition of every operator, as plain loops: sums in `f64`, every
//! value rounded once to `f32`. Slow on purpose; backends are judged by it.

mod attend;
mod rows;

use std::collections::HashMap;

use girih_tensor::{DType, Shape};

use crate::backend::{Backend, Block, Inputs, MemoryPlan, Refusal, Sequence, State, Step, WeightSource};
use crate::{BLOCK_POSITIONS, Error, Extent, Graph, GroupId, Key, Node, Op, Role, Value, ValueId};

/// The backend that runs a graph by its definition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interpreter;

/// Every weight as `f32`, by name.
#[derive(Debug)]
pub struct Weights(HashMap<String, Vec<f32>>);

/// Every state value as `f32` numbers that its own type can hold.
#[derive(Debug)]
pub struct Cache {
    tensors: Vec<StateTensor>,
}

/// One state value: `blocks` × [`BLOCK_POSITIONS`] × `inner` numbers.
#[derive(Debug)]
struct StateTensor {
    name: String,
    group: GroupId,
    dtype: DType,
    inner: usize,
    data: Vec<f32>,
}

impl StateTensor {
    fn new(value: &Value, group: GroupId, blocks: u32) -> Result<StateTensor, Error> {
        let inner = value.shape.stride();
        let count = (blocks as usize * BLOCK_POSITIONS).checked_mul(inner);
        let data = zeroed(&value.name, count)?;
        Ok(StateTensor { name: value.name.clone(), group, dtype: value.dtype, inner, data })
    }

    fn block(&self, block: Block) -> std::ops::Range<usize> {
        let length = self.inner * BLOCK_POSITIONS;
        block.0 as usize * length..(block.0 as usize + 1) * length
    }

    /// Where the numbers of a sequence's position lie.
    fn slot(&self, sequence: &Sequence<'_>, position: usize) -> std::ops::Range<usize> {
        let block = sequence.blocks[self.group.0 as usize][position / BLOCK_POSITIONS];
        let start = (block.0 as usize * BLOCK_POSITIONS + position % BLOCK_POSITIONS) * self.inner;
        start..start + self.inner
    }

    fn row(&self, sequence: &Sequence<'_>, position: usize) -> &[f32] {
        &self.data[self.slot(sequence, position)]
    }

    /// Stores a row, rounded to the state's type.
    fn put(&mut self, sequence: &Sequence<'_>, position: usize, row: &[f32]) {
        let mut bytes = vec![0; self.inner / self.dtype.tile().1 * self.dtype.block_bytes()];
        self.dtype.pack(row, &mut bytes);
        let slot = self.slot(sequence, position);
        self.dtype.unpack(&bytes, &mut self.data[slot]);
    }
}

impl Backend for Interpreter {
    type Weights = Weights;
    type State = Cache;
    type Program = Graph;

    fn name(&self) -> &'static str {
        "interpreter"
    }

    fn ladder(&self, most: Key) -> Vec<Key> {
        vec![most]
    }

    fn refuses(&self, _: &Graph) -> Vec<Refusal> {
        Vec::new()
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let bytes = |value: &Value| (value.shape.elements() * size_of::<f32>()) as u64;
        let state = graph.values.iter().filter_map(|value| match value.role {
            Role::State(group) => Some((value, u64::from(blocks[group.0 as usize]))),
            _ => None,
        });
        MemoryPlan {
            weights: graph.weights().map(|(_, value)| bytes(value)).sum(),
            state: state
                .map(|(v, n)| {
                    n.saturating_mul((v.shape.stride() * BLOCK_POSITIONS * size_of::<f32>()) as u64)
                })
                .fold(0, u64::saturating_add),
            scratch: graph.values.iter().filter(|v| v.role == Role::Scratch).map(bytes).sum(),
        }
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<Weights, Error> {
        let mut weights = HashMap::new();
        for (_, value) in graph.weights() {
            weights.insert(value.name.clone(), read(value, source)?);
        }
        Ok(Weights(weights))
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<Cache, Error> {
        let tensors = graph.values.iter().filter_map(|value| {
            let Role::State(group) = value.role else { return None };
            Some(StateTensor::new(value, group, blocks[group.0 as usize]))
        });
        Ok(Cache { tensors: tensors.collect::<Result<_, _>>()? })
    }

    fn compile(&self, graph: &Graph, _: &Weights) -> Result<Graph, Error> {
        Ok(graph.clone())
    }

    fn run(&self, graph: &Graph, weights: &Weights, state: &mut Cache, step: Step<'_>) -> Result<(), Error> {
        let mut run =
            Run { graph, weights, state, sequences: step.sequences, values: vec![None; graph.values.len()] };
        let input = graph.input().expect("programs are made of graphs without faults");
        run.values[input.0 as usize] = Some(match step.inputs {
            Inputs::Tokens(tokens) => tokens.iter().map(|&token| token as f32).collect(),
            Inputs::Embeddings(rows) => rows.to_vec(),
        });
        for node in &graph.nodes {
            run.node(node, step.inputs);
            let value = graph.value(node.output);
            if node.op != Op::Write && step.watch.wants(&value.name) {
                step.watch.value(&value.name, &run.shape(value), run.data(node.output));
            }
        }
        let output = graph.output().expect("programs are made of graphs without faults");
        step.output.copy_from_slice(run.data(output));
        Ok(())
    }
}

/// A weight's numbers.
fn read(value: &Value, source: &dyn WeightSource) -> Result<Vec<f32>, Error> {
    let mut bytes = zeroed(&value.name, Some(value.dtype.bytes(&value.shape)?))?;
    source.read(&value.name, 0, &mut bytes)?;
    let view = girih_tensor::View::new(value.dtype, value.shape.rows(), value.shape.columns(), &bytes)?;
    let mut numbers = zeroed(&value.name, Some(value.shape.elements()))?;
    view.unpack_rows(0..view.rows(), &mut numbers);
    Ok(numbers)
}

/// Zeros for the value of this name, if their count is one that memory has
/// room for.
fn zeroed<T: Clone + Default>(name: &str, count: Option<usize>) -> Result<Vec<T>, Error> {
    let mut zeros = Vec::new();
    let room = count.filter(|&count| zeros.try_reserve_exact(count).is_ok());
    zeros.resize(room.ok_or_else(|| Error::new(format!("memory is short for '{name}'")))?, T::default());
    Ok(zeros)
}

/// One step on its way through the graph.
struct Run<'a> {
    graph: &'a Graph,
    weights: &'a Weights,
    state: &'a mut Cache,
    sequences: &'a [Sequence<'a>],
    values: Vec<Option<Vec<f32>>>,
}

impl Run<'_> {
    /// The extents of a value in this step.
    fn shape(&self, value: &Value) -> Shape {
        let rows = self.sequences.last().map_or(0, |sequence| sequence.rows.end as usize);
        match value.outermost {
            Extent::Rows => value.shape.with_outermost(rows),
            Extent::OutputRows => value
                .shape
                .with_outermost(self.sequences.iter().map(|sequence| sequence.output_rows().len()).sum()),
            Extent::Fixed | Extent::Context => value.shape,
        }
    }

    fn data(&self, id: ValueId) -> &[f32] {
        let value = self.graph.value(id);
        match value.role {
            Role::Weight => &self.weights.0[&value.name],
            _ => self.values[id.0 as usize].as_ref().expect("checked: written before it is read"),
        }
    }

    fn tensor(&self, id: ValueId) -> usize {
        let name = &self.graph.value(id).name;
        self.state
            .tensors
            .iter()
            .position(|tensor| tensor.name == *name)
            .expect("state was made of this graph")
    }

    fn node(&mut self, node: &Node, inputs: Inputs<'_>) {
        let inner = self.graph.value(node.inputs[0]).shape;
        let input = |index: usize| self.data(node.inputs[index]);
        let result = match node.op {
            Op::Embed => rows::embed(inputs, input(1), self.graph.value(node.inputs[1]).shape.columns()),
            Op::Norm { epsilon } => rows::norm(input(0), input(1), epsilon),
            Op::Linear => {
                let bias = node.inputs.get(2).map(|id| self.data(*id));
                rows::linear(input(0), input(1), bias, inner.columns())
            }
            Op::Reshape => input(0).to_vec(),
            Op::Rope { pairing } => rows::rope(input(0), input(1), pairing, self.sequences, inner.stride()),
            Op::Write => return self.write(node),
            Op::Attend { scale, span, softcap } => {
                let keys = &self.state.tensors[self.tensor(node.inputs[1])];
                let values = &self.state.tensors[self.tensor(node.inputs[2])];
                let heads = inner.extents()[1];
                attend::attend(
                    input(0),
                    heads,
                    keys,
                    values,
                    self.sequences,
                    attend::Scores { scale, span, softcap },
                )
            }
            Op::Gate { act } => rows::pairwise(input(0), input(1), |gate, up| rows::act(act, gate) * up),
            Op::Add => rows::pairwise(input(0), input(1), |a, b| a + b),
            Op::Scale { factor } => rows::each(input(0), |x| x * f64::from(factor)),
            Op::Softcap { cap } => rows::each(input(0), |x| f64::from(cap) * (x / f64::from(cap)).tanh()),
            Op::Gather => rows::take(input(0), inner.stride(), self.sequences),
        };
        self.values[node.output.0 as usize] = Some(result);
    }

    /// Puts every row where its sequence's state has its position.
    fn write(&mut self, node: &Node) {
        let tensor = self.tensor(node.output);
        let rows =
            self.values[node.inputs[0].0 as usize].as_ref().expect("checked: written before it is read");
        let tensor = &mut self.state.tensors[tensor];
        for sequence in self.sequences {
            for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
                tensor.put(sequence, position, &rows[row * tensor.inner..(row + 1) * tensor.inner]);
            }
        }
    }
}

impl State for Cache {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.group == group) {
            let (from, to) = (tensor.block(from), tensor.block(to).start);
            tensor.data.copy_within(from, to);
        }
    }

    fn zero(&mut self, group: GroupId, block: Block) {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.group == group) {
            let range = tensor.block(block);
            tensor.data[range].fill(0.0);
        }
    }

    fn export(&self, group: GroupId, block: Block) -> Vec<u8> {
        let tensors = self.tensors.iter().filter(|tensor| tensor.group == group);
        tensors
            .flat_map(|tensor| tensor.data[tensor.block(block)].iter().flat_map(|x| x.to_le_bytes()))
            .collect()
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<(), Error> {
        let tensors = || self.tensors.iter().filter(|tensor| tensor.group == group);
        let need: usize = tensors().map(|tensor| tensor.block(block).len() * size_of::<f32>()).sum();
        if bytes.len() != need {
            let have = bytes.len();
            return Err(Error::new(format!("a block of state is {need} bytes; {have} were given")));
        }
        let mut numbers = bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.group == group) {
            let range = tensor.block(block);
            tensor.data[range].iter_mut().zip(&mut numbers).for_each(|(slot, x)| *slot = x);
        }
        Ok(())
    }
}
