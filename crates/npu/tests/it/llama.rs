//! The Llama graph in several sizes, as the model crate builds it.

use girih_graph::{Act, Builder, Graph, Key, Op, OutputKind, Pairing, Span};
use girih_tensor::{DType, Shape};

/// The sizes of a Llama model.
#[derive(Clone, Copy)]
pub struct LlamaSizes {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head: usize,
    pub hidden: usize,
    pub vocabulary: usize,
    /// The preceding positions that a row attends to; `None` for all.
    pub window: Option<u32>,
}

/// Three layers, small enough to simulate in a test.
pub const SMALL: LlamaSizes = LlamaSizes {
    layers: 3,
    width: 64,
    heads: 4,
    kv_heads: 2,
    head: 16,
    hidden: 176,
    vocabulary: 512,
    window: None,
};
/// Llama-3.2-1B.
pub const LLAMA_1B: LlamaSizes = LlamaSizes {
    layers: 16,
    width: 2048,
    heads: 32,
    kv_heads: 8,
    head: 64,
    hidden: 8192,
    vocabulary: 128256,
    window: None,
};

/// The key of a step of `rows` rows of one sequence; the last is an output row.
pub fn key(rows: u32) -> Key {
    Key { rows, sequences: 1, context: 2048, output_rows: 1, output: OutputKind::Logits }
}

/// Builds the graph for steps up to `key`.
pub fn llama(sizes: &LlamaSizes, key: Key) -> Graph {
    let mut graph = Builder::new(key);
    let tokens = graph.input("tokens", &[], DType::I32);
    let table = graph.weight("embed.table", Shape::matrix(sizes.vocabulary, sizes.width), DType::BF16);
    let mut x = graph.shaped("embed", Op::Embed, &[tokens, table], &[sizes.width]);
    for layer in 0..sizes.layers {
        x = layer_of(&mut graph, sizes, layer, x);
    }
    let output_rows = graph.gather("head.rows", x);
    let weight = graph.weight("head.norm.weight", Shape::new(&[sizes.width]).unwrap(), DType::BF16);
    let normed = graph.same("head.norm", Op::Norm { epsilon: 1e-5 }, &[output_rows, weight]);
    let logits = graph.shaped("logits", Op::Linear, &[normed, table], &[sizes.vocabulary]);
    graph.finish(logits)
}

fn layer_of(
    graph: &mut Builder,
    sizes: &LlamaSizes,
    layer: usize,
    x: girih_graph::ValueId,
) -> girih_graph::ValueId {
    let at = |name: &str| format!("layers.{layer}.{name}");
    let LlamaSizes { width, heads, kv_heads, head, hidden, .. } = *sizes;
    let vector = |n: usize| Shape::new(&[n]).unwrap();
    let linear = |graph: &mut Builder, name: &str, x, [from, to]: [usize; 2]| {
        let weight = graph.weight(&at(&format!("{name}.weight")), Shape::matrix(to, from), DType::BF16);
        graph.shaped(&at(name), Op::Linear, &[x, weight], &[to])
    };
    let norm = |graph: &mut Builder, name: &str, x| {
        let weight = graph.weight(&at(&format!("{name}.weight")), vector(width), DType::BF16);
        graph.same(&at(name), Op::Norm { epsilon: 1e-5 }, &[x, weight])
    };
    let read = norm(graph, "before_mixer", x);
    let rotate = |graph: &mut Builder, name: &str, x, count: usize| {
        let by_heads = graph.shaped(&at(&format!("{name}.heads")), Op::Reshape, &[x], &[count, head]);
        let frequencies = graph.weight("rope.default", vector(head / 2), DType::F32);
        graph.same(
            &at(&format!("{name}.rotated")),
            Op::Rope { pairing: Pairing::Halves, factor: None },
            &[by_heads, frequencies],
        )
    };
    let q = linear(graph, "q", read, [width, heads * head]);
    let k = linear(graph, "k", read, [width, kv_heads * head]);
    let v = linear(graph, "v", read, [width, kv_heads * head]);
    let v = graph.shaped(&at("v.heads"), Op::Reshape, &[v], &[kv_heads, head]);
    let q = rotate(graph, "q", q, heads);
    let k = rotate(graph, "k", k, kv_heads);
    let span = sizes.window.map_or(Span::Full, Span::Window);
    let group = graph.group(span);
    let keys = graph.state(&at("keys"), &[kv_heads, head], DType::BF16, group);
    let values = graph.state(&at("values"), &[kv_heads, head], DType::BF16, group);
    graph.write(k, keys);
    graph.write(v, values);
    let attend = Op::Attend { scale: (head as f32).powf(-0.5), span, softcap: None };
    let mixed = graph.same(&at("mixed_heads"), attend, &[q, keys, values]);
    let flat = graph.shaped(&at("flat"), Op::Reshape, &[mixed], &[heads * head]);
    let o = linear(graph, "o", flat, [heads * head, width]);
    let x = graph.same(&at("mixed"), Op::Add, &[x, o]);
    let read = norm(graph, "before_ffn", x);
    let gate = linear(graph, "gate", read, [width, hidden]);
    let up = linear(graph, "up", read, [width, hidden]);
    let gated = graph.same(&at("gated"), Op::gate(Act::Silu), &[gate, up]);
    let down = linear(graph, "down", gated, [hidden, width]);
    graph.same(&at("out"), Op::Add, &[x, down])
}
