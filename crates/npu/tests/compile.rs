//! Graphs of Llama's form become schedules without faults, on every target.

use girih_graph::{Act, Builder, Graph, Key, Op, Pairing, Span, Variant};
use girih_npu::Target;
use girih_npu::form::groups::{Groups, Step};
use girih_npu::form::schedule::Schedule;
use girih_npu::pass::{NoDump, Policy, compile, groups};
use girih_tensor::{DType, Shape};

/// The sizes of a Llama.
struct Sizes {
    layers: usize,
    width: usize,
    heads: usize,
    kv_heads: usize,
    head: usize,
    hidden: usize,
    vocabulary: usize,
}

const SMALL: Sizes =
    Sizes { layers: 3, width: 64, heads: 4, kv_heads: 2, head: 16, hidden: 176, vocabulary: 512 };
const LLAMA_1B: Sizes =
    Sizes { layers: 16, width: 2048, heads: 32, kv_heads: 8, head: 64, hidden: 8192, vocabulary: 128256 };

/// Llama's graph, as the model crate builds it.
fn llama(sizes: &Sizes, rows: u32) -> Graph {
    let key = Key { rows, lanes: 1, context: 2048, wanted: 1, variant: Variant::GENERATE };
    let mut graph = Builder::new(key);
    let tokens = graph.input("tokens", &[], DType::I32);
    let table = graph.weight("embed.table", Shape::matrix(sizes.vocabulary, sizes.width), DType::BF16);
    let mut x = graph.shaped("embed", Op::Embed, &[tokens, table], &[sizes.width]);
    for layer in 0..sizes.layers {
        x = layer_of(&mut graph, sizes, layer, x);
    }
    let wanted = graph.take("head.rows", x);
    let weight = graph.weight("head.norm.weight", Shape::new(&[sizes.width]).unwrap(), DType::BF16);
    let normed = graph.same("head.norm", Op::Norm { epsilon: 1e-5 }, &[wanted, weight]);
    let logits = graph.shaped("logits", Op::Linear, &[normed, table], &[sizes.vocabulary]);
    graph.finish(logits)
}

fn layer_of(
    graph: &mut Builder,
    sizes: &Sizes,
    layer: usize,
    x: girih_graph::ValueId,
) -> girih_graph::ValueId {
    let at = |name: &str| format!("layers.{layer}.{name}");
    let Sizes { width, heads, kv_heads, head, hidden, .. } = *sizes;
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
    let turn = |graph: &mut Builder, name: &str, x, count: usize| {
        let seen = graph.shaped(&at(&format!("{name}.heads")), Op::Reshape, &[x], &[count, head]);
        let frequencies = graph.weight("rope.default", vector(head / 2), DType::F32);
        graph.same(
            &at(&format!("{name}.turned")),
            Op::Rope { pairing: Pairing::Halves },
            &[seen, frequencies],
        )
    };
    let q = linear(graph, "q", read, [width, heads * head]);
    let k = linear(graph, "k", read, [width, kv_heads * head]);
    let v = linear(graph, "v", read, [width, kv_heads * head]);
    let v = graph.shaped(&at("v.heads"), Op::Reshape, &[v], &[kv_heads, head]);
    let q = turn(graph, "q", q, heads);
    let k = turn(graph, "k", k, kv_heads);
    let group = graph.group(Span::Full);
    let keys = graph.state(&at("keys"), &[kv_heads, head], DType::BF16, group);
    let values = graph.state(&at("values"), &[kv_heads, head], DType::BF16, group);
    graph.write(k, keys);
    graph.write(v, values);
    let attend = Op::Attend { scale: (head as f32).powf(-0.5), span: Span::Full, softcap: None };
    let mixed = graph.same(&at("mixed_heads"), attend, &[q, keys, values]);
    let flat = graph.shaped(&at("flat"), Op::Reshape, &[mixed], &[heads * head]);
    let o = linear(graph, "o", flat, [heads * head, width]);
    let x = graph.same(&at("mixed"), Op::Add, &[x, o]);
    let read = norm(graph, "before_ffn", x);
    let gate = linear(graph, "gate", read, [width, hidden]);
    let up = linear(graph, "up", read, [width, hidden]);
    let gated = graph.same(&at("gated"), Op::Gate { act: Act::Silu }, &[gate, up]);
    let down = linear(graph, "down", gated, [hidden, width]);
    graph.same(&at("out"), Op::Add, &[x, down])
}

fn cut(sizes: &Sizes, rows: u32, target: &Target, policy: Policy) -> Groups {
    let graph = llama(sizes, rows);
    assert_eq!(girih_graph::faults(&graph), vec![]);
    groups(&graph, target, policy, &mut NoDump).unwrap()
}

#[test]
fn every_program_compiles_on_every_target() {
    for name in Target::names() {
        let target = Target::named(&name).unwrap();
        for policy in Policy::ALL {
            for rows in [1, 64] {
                let groups = cut(&SMALL, rows, &target, *policy);
                assert_eq!(groups.to_string().parse::<Groups>().unwrap(), groups);
                for program in &groups.programs {
                    let schedule = compile(program, &target, &mut NoDump);
                    let schedule = schedule.unwrap_or_else(|error| panic!("{name} {rows}: {error}"));
                    assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
                }
            }
        }
    }
}

/// The counts of the Llama-3.2-1B mapping by AMD's mlir-air, with attention on
/// the host: two programs a layer and the head.
#[test]
fn layers_are_two_programs_compiled_once_and_bound_sixteen_times() {
    let target = Target::named("xdna2-strix").unwrap();
    let names =
        |groups: &Groups| groups.programs.iter().map(|program| program.name.clone()).collect::<Vec<_>>();
    let prefill = cut(&LLAMA_1B, 2048, &target, Policy::Stitched);
    assert_eq!(names(&prefill)[..2], ["rms_gemms_rope", "o_ffn"]);
    assert_eq!(prefill.programs[0].launches.len(), 6);
    assert_eq!(prefill.programs[1].launches.len(), 8);
    assert_eq!(prefill.submissions(1), 33);
    let decode = cut(&LLAMA_1B, 1, &target, Policy::Stitched);
    assert_eq!(names(&decode)[..2], ["rms_gemv_rope", "o_gemv_ffn"]);
    assert_eq!(decode.submissions(1), 33);
    let runs = |groups: &Groups, wanted: u32| {
        groups
            .steps
            .iter()
            .filter(|step| matches!(step, Step::Array { program, .. } if *program == wanted))
            .count()
    };
    assert_eq!((runs(&decode, 0), runs(&decode, 1)), (16, 16));
    for program in prefill.programs.iter().chain(&decode.programs) {
        compile(program, &target, &mut NoDump).unwrap();
    }
}
