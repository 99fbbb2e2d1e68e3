//! Random graphs from a seed, the same on every machine.

use girih_graph::{Act, Builder, GateLimit, Graph, Key, Op, OutputKind, Pairing, Pooling, Span, ValueId};
use girih_tensor::{DType, Random, Shape};

/// Columns of every row, equal to heads × head size.
const WIDTH: usize = 8;
const HEADS: [usize; 2] = [2, 4];

/// A graph without faults: some ops on rows of one width, then a head.
pub fn graph(seed: u64) -> Graph {
    let mut random = Random(seed);
    let output = random.of(&[OutputKind::Logits, OutputKind::Hidden, OutputKind::Pooled]);
    let mut extent = |end: usize| random.below(end) as u32 + 1;
    let key =
        Key { rows: extent(40), sequences: extent(4), context: extent(300), output_rows: extent(9), output };
    let mut grower = GraphGrower { random, graph: Builder::new(key), output, count: 0, unread: Vec::new() };
    grower.input();
    for _ in 0..grower.random.below(25) {
        grower.grow();
    }
    grower.finish()
}

/// A graph that grows by one op at a time.
struct GraphGrower {
    random: Random,
    graph: Builder,
    output: OutputKind,
    count: usize,
    /// Values that no op reads yet; never empty.
    unread: Vec<ValueId>,
}

impl GraphGrower {
    fn name(&mut self, kind: &str) -> String {
        self.count += 1;
        format!("{kind}.{}", self.count)
    }

    fn input(&mut self) {
        let mut first = match self.random.below(2) {
            0 => self.graph.input("input", &[WIDTH], DType::F32),
            _ => {
                let tokens = self.graph.input("input", &[], DType::I32);
                let table = self.graph.weight("table", Shape::matrix(5, WIDTH), DType::BF16);
                self.graph.shaped("embed", Op::Embed, &[tokens, table], &[WIDTH])
            }
        };
        if self.random.below(3) == 0 {
            let given = self.graph.input("given", &[WIDTH], DType::F32);
            first = self.graph.same("spliced", Op::Splice, &[first, given]);
        }
        self.unread.push(first);
    }

    /// A value to read; one time in four it can be read again.
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
        let new = match self.random.below(13) {
            0 => {
                let mut operands = vec![x];
                if self.random.below(4) > 0 {
                    operands.push(self.weight(&[WIDTH]));
                }
                let epsilon = self.random.positive();
                self.graph.same(&name, Op::Norm { epsilon }, &operands)
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
            5 => {
                let act = self.random.of(Act::ALL);
                self.graph.same(&name, Op::Activate { act }, &[x])
            }
            6 => self.layer_norm(&name, x),
            7 => self.attend_rows(&name, x),
            10 => self.short_conv(&name, x),
            11 => self.xielu(&name, x),
            12 => {
                let (beta, every) = (self.random.positive(), 1 + self.random.below(5) as u32);
                self.graph.same(&name, Op::Temper { beta, every, offset: 1 }, &[x])
            }
            pairwise => {
                self.unread.push(x);
                let other = self.rows();
                let act = self.random.of(Act::ALL);
                let op = match (pairwise, self.random.below(2)) {
                    (8, _) => Op::Add,
                    (_, 0) => Op::gate(act),
                    _ => Op::Gate {
                        act,
                        limit: Some(GateLimit::Gate(self.random.positive())),
                        offset: Some(1.0),
                    },
                };
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

    fn layer_norm(&mut self, name: &str, x: ValueId) -> ValueId {
        let mut operands = vec![x];
        for _ in 0..self.random.below(3) {
            operands.push(self.weight(&[WIDTH]));
        }
        self.graph.same(name, Op::LayerNorm { epsilon: self.random.positive() }, &operands)
    }

    fn xielu(&mut self, name: &str, x: ValueId) -> ValueId {
        let [positive, negative, beta] = [(); 3].map(|()| self.random.positive());
        self.graph.same(name, Op::Xielu { positive, negative, beta, epsilon: -1e-6 }, &[x])
    }

    fn short_conv(&mut self, name: &str, x: ValueId) -> ValueId {
        let taps = 2 + self.random.below(3);
        let weight = self.weight(&[taps, WIDTH]);
        let carried = self.graph.carried(&format!("{name}.carried"), Shape::matrix(taps - 1, WIDTH));
        self.graph.same(name, Op::ShortConv, &[x, weight, carried])
    }

    /// Attention over the rows of the step.
    fn attend_rows(&mut self, name: &str, x: ValueId) -> ValueId {
        let heads = self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[x], &HEADS);
        let op = Op::Attend { scale: self.random.positive(), span: Span::All, softcap: None };
        let mixed = self.graph.same(&format!("{name}.mixed"), op, &[heads, heads, heads]);
        self.graph.shaped(name, Op::Reshape, &[mixed], &[WIDTH])
    }

    fn attend(&mut self, name: &str, x: ValueId) -> ValueId {
        let heads = self.graph.shaped(&format!("{name}.heads"), Op::Reshape, &[x], &HEADS);
        let pairs = 1 + self.random.below(HEADS[1] / 2);
        let frequencies = self.weight(&[pairs]);
        let pairing = self.random.of(&[Pairing::Halves, Pairing::Neighbours]);
        let factor = (self.random.below(2) == 0).then(|| self.random.positive());
        let op = Op::Rope { pairing, factor };
        let rotated = self.graph.same(&format!("{name}.rotated"), op, &[heads, frequencies]);
        let span = self.random.of(&[Span::Full, Span::Window(1), Span::Window(7), Span::Chunk(5)]);
        let group = self.graph.group(span);
        let dtype = self.random.of(&[DType::F32, DType::F16, DType::BF16]);
        let keys = self.graph.state(&format!("{name}.keys"), &HEADS, dtype, group);
        let values = self.graph.state(&format!("{name}.values"), &HEADS, dtype, group);
        self.graph.write(rotated, keys);
        self.graph.write(heads, values);
        let softcap = (self.random.below(2) == 0).then(|| self.random.positive());
        let op = Op::Attend { scale: self.random.positive(), span, softcap };
        let mut operands = vec![rotated, keys, values];
        if self.random.below(2) == 0 {
            operands.push(self.weight(&[HEADS[0]]));
        }
        let mut mixed = self.graph.same(&format!("{name}.mixed"), op, &operands);
        if self.random.below(2) == 0 {
            let operands = [x, self.weight(&[HEADS[0], WIDTH])];
            let gate = self.graph.shaped(&format!("{name}.gate"), Op::Linear, &operands, &[HEADS[0]]);
            let act = self.random.of(Act::ALL);
            mixed =
                self.graph.shaped(&format!("{name}.gated"), Op::GateHeads { act }, &[gate, mixed], &HEADS);
        }
        self.graph.shaped(name, Op::Reshape, &[mixed], &[WIDTH])
    }

    /// Adds the sum of all unread values, its gather or pool, and the head.
    fn finish(mut self) -> Graph {
        let mut sum = self.unread[0];
        for value in std::mem::take(&mut self.unread).split_off(1) {
            let name = self.name("sum");
            sum = self.graph.same(&name, Op::Add, &[sum, value]);
        }
        let last = match self.output {
            OutputKind::Pooled => self.graph.pool("last", self.random.of(Pooling::ALL), sum),
            OutputKind::Logits | OutputKind::Hidden => self.graph.gather("last", sum),
        };
        let head = self.weight(&[3, WIDTH]);
        let output = self.graph.shaped("output", Op::Linear, &[last, head], &[3]);
        self.graph.finish(output)
    }
}
