//! Seeded numbers and seeded graphs, the same on every machine.

use girih_graph::{Act, Builder, Graph, InputKind, Key, Op, OutputKind, Pairing, Span, ValueId, Variant};
use girih_tensor::{DType, Shape};

/// A SplitMix64 generator (Steele, Lea and Flood, 2014).
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// Uniform in `[-1, 1)`, in steps that `f32` holds exactly.
    pub fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Any positive finite `f32`, of every magnitude.
    fn positive(&mut self) -> f32 {
        loop {
            let number = f32::from_bits(self.bits() as u32 >> 1);
            if number.is_finite() && number > 0.0 {
                return number;
            }
        }
    }
}

/// Columns of every row, and how they fall into heads.
const WIDTH: usize = 8;
const HEADS: [usize; 2] = [2, 4];

/// A graph without faults: some operators over rows of one width, then a head.
pub fn graph(seed: u64) -> Graph {
    let mut random = Random(seed);
    let variant = Variant {
        input: random.of(&[InputKind::Tokens, InputKind::Embeddings]),
        output: random.of(&[OutputKind::Logits, OutputKind::Hidden, OutputKind::Pooled]),
    };
    let mut extent = |end: usize| random.below(end) as u32 + 1;
    let key =
        Key { rows: extent(40), sequences: extent(4), context: extent(300), output_rows: extent(9), variant };
    let mut making = Making { random, graph: Builder::new(key), count: 0, unread: Vec::new() };
    making.input(variant.input);
    for _ in 0..making.random.below(25) {
        making.grow();
    }
    making.finish()
}

struct Making {
    random: Random,
    graph: Builder,
    count: usize,
    /// Rows that the end must read; never empty.
    unread: Vec<ValueId>,
}

impl Making {
    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}.{}", self.count)
    }

    fn input(&mut self, kind: InputKind) {
        let first = match kind {
            InputKind::Embeddings => self.graph.input("input", &[WIDTH], DType::F32),
            InputKind::Tokens => {
                let tokens = self.graph.input("input", &[], DType::I32);
                let table = self.graph.weight("table", Shape::matrix(5, WIDTH), DType::BF16);
                self.graph.shaped("embed", Op::Embed, &[tokens, table], &[WIDTH])
            }
        };
        self.unread.push(first);
    }

    /// Rows to read; now and then ones that others read as well.
    fn rows(&mut self) -> ValueId {
        let index = self.random.below(self.unread.len());
        if self.random.below(4) == 0 { self.unread[index] } else { self.unread.swap_remove(index) }
    }

    fn weight(&mut self, extents: &[usize]) -> ValueId {
        let name = self.name("weight");
        let dtype = self.random.of(&[DType::F32, DType::F16, DType::BF16]);
        self.graph.weight(&name, Shape::new(extents).expect("small extents"), dtype)
    }

    fn grow(&mut self) {
        let x = self.rows();
        let name = self.name("row");
        let new = match self.random.below(7) {
            0 => {
                let weight = self.weight(&[WIDTH]);
                let epsilon = self.random.positive();
                self.graph.same(&name, Op::Norm { epsilon }, &[x, weight])
            }
            1 => self.linear(&name, x),
            2 => self.attend(&name, x),
            3 => {
                let factor = -self.random.positive();
                self.graph.same(&name, Op::Scale { factor }, &[x])
            }
            4 => {
                let cap = self.random.positive();
                self.graph.same(&name, Op::Softcap { cap }, &[x])
            }
            pairwise => {
                self.unread.push(x);
                let other = self.rows();
                let act = self.random.of(Act::ALL);
                let op = if pairwise == 5 { Op::Add } else { Op::Gate { act } };
                self.graph.same(&name, op, &[x, other])
            }
        };
        self.unread.push(new);
    }

    fn linear(&mut self, name: &str, x: ValueId) -> ValueId {
        let mut operands = vec![x, self.weight(&[WIDTH, WIDTH])];
        if self.random.below(2) == 0 {
            operands.push(self.weight(&[WIDTH]));
        }
        self.graph.shaped(name, Op::Linear, &operands, &[WIDTH])
    }

    fn attend(&mut self, name: &str, x: ValueId) -> ValueId {
        let heads = self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[x], &HEADS);
        let frequencies = self.weight(&[HEADS[1] / 2]);
        let pairing = self.random.of(&[Pairing::Halves, Pairing::Neighbours]);
        let turned = self.graph.same(&format!("{name}.rotated"), Op::Rope { pairing }, &[heads, frequencies]);
        let span = self.random.of(&[Span::Full, Span::Window(1), Span::Window(7)]);
        let group = self.graph.group(span);
        let dtype = self.random.of(&[DType::F32, DType::F16, DType::BF16]);
        let keys = self.graph.state(&format!("{name}.keys"), &HEADS, dtype, group);
        let values = self.graph.state(&format!("{name}.values"), &HEADS, dtype, group);
        self.graph.write(turned, keys);
        self.graph.write(heads, values);
        let softcap = (self.random.below(2) == 0).then(|| self.random.positive());
        let op = Op::Attend { scale: self.random.positive(), span, softcap };
        let mixed = self.graph.same(&format!("{name}.mixed"), op, &[turned, keys, values]);
        self.graph.shaped(name, Op::Reshape, &[mixed], &[WIDTH])
    }

    /// Adds up what nothing reads yet and takes the output rows of the sum.
    fn finish(mut self) -> Graph {
        let mut sum = self.unread[0];
        for value in std::mem::take(&mut self.unread).split_off(1) {
            let name = self.name("sum");
            sum = self.graph.same(&name, Op::Add, &[sum, value]);
        }
        let taken = self.graph.gather("taken", sum);
        let head = self.weight(&[3, WIDTH]);
        let output = self.graph.shaped("output", Op::Linear, &[taken, head], &[3]);
        self.graph.finish(output)
    }
}
