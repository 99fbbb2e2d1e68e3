//! The launches of a layer.

use girih_graph::backend::Unwatched;
use girih_graph::testing::WeightTable;
use girih_graph::{Act, Builder, Key, Op, OutputKind, Pairing, Span};
use girih_tensor::Shape;

use super::*;
use crate::device_list::adapters;
use crate::kernel::KernelTuning;

const WIDTH: usize = 64;

/// Builds graphs, and makes zeros for their weights.
struct Layers {
    builder: Builder,
    weights: WeightTable,
}

impl Layers {
    fn weight(&mut self, name: &str, extents: &[usize]) -> ValueId {
        let shape = Shape::new(extents).expect("it is small");
        self.weights.0.insert(name.to_owned(), vec![0; shape.elements() * 4]);
        self.builder.weight(name, shape, DType::F32)
    }

    fn linear(&mut self, name: &str, x: ValueId, [rows, columns]: [usize; 2]) -> ValueId {
        let weight = self.weight(&format!("{name}.weight"), &[rows, columns]);
        self.builder.shaped(name, Op::Linear, &[x, weight], &[rows])
    }

    fn norm(&mut self, name: &str, x: ValueId, width: usize) -> ValueId {
        let weight = self.weight(&format!("{name}.weight"), &[width]);
        self.builder.same(name, Op::Norm { epsilon: 1e-5 }, &[x, weight])
    }

    /// Heads of 32 numbers; normed, if the layer norms heads.
    fn heads(&mut self, name: &str, x: ValueId, count: usize, has_norm: bool) -> ValueId {
        let flat = self.linear(name, x, [32 * count, WIDTH]);
        let heads = self.builder.shaped(&format!("{name}.heads"), Op::Reshape, &[flat], &[count, 32]);
        if has_norm { self.norm(&format!("{name}.normed"), heads, 32) } else { heads }
    }

    /// A layer as that of Llama, or of Qwen 3, which norms heads.
    fn layer(&mut self, name: &str, x: ValueId, has_norms: bool) -> ValueId {
        let normed = self.norm(&format!("{name}.first"), x, WIDTH);
        let frequencies = self.weight(&format!("{name}.frequencies"), &[16]);
        let rope = Op::Rope { pairing: Pairing::Halves, factor: None };
        let q = self.heads(&format!("{name}.q"), normed, 2, has_norms);
        let q = self.builder.same(&format!("{name}.q.rotated"), rope, &[q, frequencies]);
        let k = self.heads(&format!("{name}.k"), normed, 1, has_norms);
        let k = self.builder.same(&format!("{name}.k.rotated"), rope, &[k, frequencies]);
        let v = self.heads(&format!("{name}.v"), normed, 1, false);
        let group = self.builder.group(Span::Full);
        let [keys, values] = ["keys", "values"]
            .map(|part| self.builder.state(&format!("{name}.{part}"), &[1, 32], DType::F16, group));
        self.builder.write(k, keys);
        self.builder.write(v, values);
        let op = Op::Attend { scale: 0.5, span: Span::Full, softcap: None };
        let mixed = self.builder.same(&format!("{name}.mixed"), op, &[q, keys, values]);
        let flat = self.builder.shaped(&format!("{name}.flat"), Op::Reshape, &[mixed], &[WIDTH]);
        let o = self.linear(&format!("{name}.o"), flat, [WIDTH, WIDTH]);
        let sum = self.builder.same(&format!("{name}.sum"), Op::Add, &[x, o]);
        let normed = self.norm(&format!("{name}.second"), sum, WIDTH);
        let [gate, up] =
            ["gate", "up"].map(|part| self.linear(&format!("{name}.{part}"), normed, [96, WIDTH]));
        let gated = self.builder.same(&format!("{name}.gated"), Op::gate(Act::Silu), &[gate, up]);
        let down = self.linear(&format!("{name}.down"), gated, [WIDTH, 96]);
        self.builder.same(&format!("{name}.out"), Op::Add, &[sum, down])
    }
}

/// The kernels of the launches of a step of one row and one chunk of positions.
fn kernels(program: &GpuProgram) -> Vec<&'static str> {
    let list = program.list(&Unwatched);
    let ways = list.ways(&Unwatched);
    let instructions = list.nodes.iter().flat_map(|node| node.of(ways[node.node]));
    let name = |instruction: &Instruction| match instruction {
        Instruction::Launch(launch) => Some(launch.kernel.name()),
        Instruction::ByRows(variants) => Some(variants[0].1.kernel.name()),
        Instruction::Above(..) | Instruction::LeftExperts => None,
        Instruction::Attend(attend) => Some(attend.chunks.kernel.name()),
    };
    instructions.filter_map(name).collect()
}

#[test]
fn a_layer_of_one_row_and_one_chunk_takes_nine_launches() {
    let adapters = adapters();
    let Some(adapter) = adapters.first() else {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
        return;
    };
    let device = GpuDevice::new(adapter, KernelTuning::SOFTWARE).expect("the adapter suits kernels");
    let device = Arc::new(device);
    for has_norms in [false, true] {
        let key = Key { rows: 4, sequences: 1, context: 64, output_rows: 4, output: OutputKind::Logits };
        let mut layers = Layers { builder: Builder::new(key), weights: WeightTable::default() };
        let x = layers.builder.input("x", &[WIDTH], DType::F32);
        let a = layers.layer("a", x, has_norms);
        let b = layers.layer("b", a, has_norms);
        let y = layers.builder.gather("y", b);
        let graph = layers.builder.finish(y);
        let weights =
            GpuWeights::load(&device, &graph, &layers.weights, (ActPrecision::F32, KernelTuning::SOFTWARE))
                .expect("the weights are small");
        let program = GpuProgram::new(&graph, &weights).expect("the layers run");
        let layer = ["norm", "gemv", "heads", "attend", "gemv", "norm", "gemv", "elements", "gemv"];
        assert_eq!(kernels(&program)[..9], layer, "with norms of heads: {has_norms}");
    }
}
