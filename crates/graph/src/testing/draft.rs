//! A case in the making: draws sizes, numbers and weights, and builds the graph.

use girih_tensor::{DType, Random, Shape, View};

use super::case::{Case, CaseInput, CaseSequence, WeightTable};
use super::roundoff::Roundoff;
use crate::graph::{Builder, Graph, Key, OutputKind};
use crate::ops::OpName;
use crate::sequence::Outputs;
use crate::value::ValueId;

/// A value of the graph, and its numbers.
pub(super) type Numbers = (ValueId, Vec<f32>);

/// The positions at which sequences begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Begin {
    /// At 0: later rows read what earlier ones have left.
    AtZero,
    /// Anywhere.
    Anywhere,
}

/// A case in the making.
pub(super) struct CaseDraft {
    pub random: Random,
    pub builder: Builder,
    pub sequences: Vec<CaseSequence>,
    pub round: Roundoff,
    /// What is left of the seed for choices in turn.
    turn: u64,
    op: OpName,
    weights: WeightTable,
    inputs: Vec<CaseInput>,
}

impl CaseDraft {
    /// Draws the sequences of a case, `begin` says where they begin.
    pub fn new(op: OpName, seed: u64, round: Roundoff, begin: Begin) -> CaseDraft {
        CaseDraft::with_output(op, seed, round, begin, OutputKind::Hidden)
    }

    /// As [`CaseDraft::new`], with another kind of output.
    pub fn with_output(
        op: OpName,
        seed: u64,
        round: Roundoff,
        begin: Begin,
        output: OutputKind,
    ) -> CaseDraft {
        let mut random = Random(seed.wrapping_mul(OpName::ALL.len() as u64).wrapping_add(op as u64));
        let sequences = sequences(&mut random, begin);
        let rows = sequences.iter().map(|s| s.rows).sum();
        let context = sequences.iter().map(|s| s.position + s.rows).max().unwrap_or(1);
        let key = Key { rows, sequences: sequences.len() as u32, context, output_rows: rows, output };
        let (weights, inputs) = (WeightTable::default(), Vec::new());
        CaseDraft { random, builder: Builder::new(key), sequences, round, turn: seed, op, weights, inputs }
    }

    /// The rows of all sequences.
    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|s| s.rows as usize).sum()
    }

    /// The choice whose turn it is: consecutive seeds have each of them, and each combination of those of several
    /// calls.
    pub fn in_turn<T: Copy>(&mut self, choices: &[T]) -> T {
        let count = choices.len() as u64;
        let choice = choices[(self.turn % count) as usize];
        self.turn /= count;
        choice
    }

    /// A number of columns: some remainder of a vector, and sometimes several vectors.
    pub fn columns(&mut self) -> usize {
        match self.random.below(4) {
            0 => self.random.of(&[16, 31, 32, 33, 64, 65, 100, 128, 257]),
            _ => 1 + self.random.below(40),
        }
    }

    /// A number of columns that rows of this format may have.
    pub fn columns_of(&mut self, dtype: DType) -> usize {
        match dtype.tile() {
            (1, 1) => self.columns(),
            (1, columns) => columns * (1 + self.random.below(3)),
            (_, columns) => 1 + self.random.below(2 * columns + 2),
        }
    }

    /// A format of weights whose numbers the type of operands holds.
    pub fn format(&mut self) -> DType {
        match self.round.operands {
            DType::F32 => self.random.of(DType::ALL),
            operands => operands,
        }
    }

    /// An input of rows with numbers of any kind.
    pub fn any_rows(&mut self, name: &str, inner: &[usize]) -> Numbers {
        let columns = inner[inner.len() - 1];
        let rows = self.rows() * inner.iter().product::<usize>() / columns;
        let numbers = (0..rows).flat_map(|_| numbers(&mut self.random, columns)).collect();
        self.input_rows(name, inner, numbers)
    }

    /// An input of rows with numbers between −`size` and `size`.
    pub fn rows_within(&mut self, size: f32, name: &str, inner: &[usize]) -> Numbers {
        let count = self.rows() * inner.iter().product::<usize>();
        let numbers = self.random.numbers(count).iter().map(|x| x * size).collect();
        self.input_rows(name, inner, numbers)
    }

    /// An input of these rows, as the type of operands holds them.
    pub fn input_rows(&mut self, name: &str, inner: &[usize], numbers: Vec<f32>) -> Numbers {
        let numbers = held_by(self.round.operands, &numbers);
        self.inputs.push(CaseInput::Rows(inner.iter().product(), numbers.clone()));
        (self.builder.input(name, inner, DType::F32), numbers)
    }

    /// An input of ids below `bound`.
    pub fn ids(&mut self, name: &str, bound: usize) -> ValueId {
        let ids = (0..self.rows()).map(|_| self.random.below(bound) as u32).collect();
        self.inputs.push(CaseInput::Ids(ids));
        self.builder.input(name, &[], DType::I32)
    }

    /// An input of given rows for some rows.
    pub fn given(&mut self, name: &str, width: usize) -> ValueId {
        let (mut runs, mut first) = (Vec::new(), self.random.below(3));
        while first < self.rows() {
            let count = 1 + self.random.below(self.rows() - first);
            runs.push((first, self.random.numbers(count * width)));
            first += count + self.random.below(4);
        }
        if self.random.once_in(8) {
            runs.clear();
        }
        self.inputs.push(CaseInput::Given(width, runs));
        self.builder.input(name, &[width], DType::F32)
    }

    /// A weight with random bytes.
    pub fn weight(&mut self, name: &str, extents: &[usize], dtype: DType) -> Numbers {
        let shape = Shape::new(extents).expect("cases have small shapes");
        let bytes = stored_values(dtype, &shape, &mut self.random);
        self.weight_of(name, shape, dtype, bytes)
    }

    /// A type of vectors: of biases and weights of norms.
    pub fn vector_format(&mut self) -> DType {
        match self.round.operands {
            DType::F32 => self.random.of(&[DType::F32, DType::BF16, DType::F16]),
            operands => operands,
        }
    }

    /// A weight of these bytes.
    pub fn weight_of(&mut self, name: &str, shape: Shape, dtype: DType, bytes: Vec<u8>) -> Numbers {
        let view =
            View::new(dtype, shape.rows(), shape.columns(), &bytes).expect("the bytes are of this shape");
        let mut numbers = vec![0.0; shape.elements()];
        view.unpack_rows(0..view.rows(), &mut numbers);
        self.weights.0.insert(name.to_owned(), bytes);
        (self.builder.weight(name, shape, dtype), numbers)
    }

    /// The case whose result is the output rows of `y`, with a bound for each of their values.
    pub fn gathered(mut self, name: String, y: ValueId, bounds: Vec<f64>) -> Case {
        let output = self.builder.gather("gathered", y);
        self.ended(name, output, bounds)
    }

    /// The case whose result is `y`, which has a row for each output row.
    pub fn ended(mut self, name: String, y: ValueId, bounds: Vec<f64>) -> Case {
        let builder = std::mem::replace(&mut self.builder, Builder::new(KEY_OF_NOTHING));
        self.finished(name, builder.finish(y), bounds)
    }

    /// The case whose result is `y`, which has a row for each sequence.
    pub fn pooled(mut self, name: String, y: ValueId, bounds: Vec<f64>) -> Case {
        self.sequences.iter_mut().for_each(|s| s.outputs = Outputs::None);
        self.ended(name, y, bounds)
    }

    /// The case without bounds whose result is `y`.
    pub fn finished_by(self, name: String, y: ValueId) -> Case {
        Case { of: "block", ..self.ended(name, y, Vec::new()) }
    }

    fn finished(self, name: String, graph: Graph, bounds: Vec<f64>) -> Case {
        let CaseDraft { sequences, op, weights, inputs, .. } = self;
        Case { of: op.spec().name, name, graph, weights, inputs, sequences, bounds }
    }
}

/// The key of a builder that builds nothing more.
const KEY_OF_NOTHING: Key =
    Key { rows: 1, sequences: 1, context: 1, output_rows: 1, output: OutputKind::Hidden };

/// Up to three sequences: mostly of a few rows, sometimes of one, or of several blocks of state.
fn sequences(random: &mut Random, begin: Begin) -> Vec<CaseSequence> {
    let count = 1 + random.below(3);
    let sequence = |_| {
        let rows = match random.below(24) {
            0..6 => 1,
            6..9 => 40 + random.below(110),
            9 if begin == Begin::AtZero => 260 + random.below(300),
            _ => 1 + random.below(20),
        };
        let position = match begin {
            Begin::AtZero => 0,
            Begin::Anywhere => random.of(&[0, 3, 1000, 131_070]),
        };
        CaseSequence::new(position, rows as u32)
    };
    (0..count).map(sequence).collect()
}

/// Numbers of one of several kinds: plain, of many sizes, or those of a sum that cancels.
fn numbers(random: &mut Random, count: usize) -> Vec<f32> {
    match random.below(4) {
        0 => {
            let power = |bits: u64| 2f32.powi((bits % 30) as i32 - 20);
            (0..count).map(|_| random.number() * power(random.bits())).collect()
        }
        1 => (0..count).map(|i| if i % 2 == 0 { 1e4 + random.number() } else { -1e4 }).collect(),
        _ => random.numbers(count).iter().map(|x| 4.0 * x).collect(),
    }
}

/// Numbers as a type holds them.
pub(super) fn held_by(dtype: DType, numbers: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; numbers.len() / dtype.tile().1 * dtype.block_bytes()];
    dtype.pack(numbers, &mut bytes);
    let mut held = vec![0.0; numbers.len()];
    dtype.unpack(&bytes, &mut held);
    held
}

/// Stored values of any format, of moderate size. A format that girih does not write gets random bytes.
///
/// # Panics
/// When the shape has no whole blocks of the format.
pub fn stored_values(dtype: DType, shape: &Shape, random: &mut Random) -> Vec<u8> {
    if dtype.writes() {
        // Otherwise integers would round numbers below one to zero.
        let scale = if matches!(dtype, DType::I8 | DType::I32) { 100.0 } else { 1.0 };
        let values: Vec<f32> = random.numbers(shape.elements()).iter().map(|x| x * scale).collect();
        return dtype
            .pack_matrix(shape.rows(), shape.columns(), &values)
            .expect("the shape has whole blocks");
    }
    let mut bytes = vec![0; dtype.bytes(shape).expect("the shape has whole blocks")];
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        fill_block(dtype, block, random);
    }
    bytes
}

/// Fills a block of a format that girih does not write.
fn fill_block(dtype: DType, block: &mut [u8], random: &mut Random) {
    let (rows, columns) = dtype.tile();
    let mut values = vec![0.0; rows * columns];
    for _ in 0..1000 {
        block.iter_mut().for_each(|byte| *byte = random.bits() as u8);
        dtype.unpack(block, &mut values);
        if values.iter().all(|x| x.abs() < 1e4) {
            return;
        }
    }
    panic!("no block of {dtype} has moderate values");
}
