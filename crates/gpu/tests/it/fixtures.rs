//! Fixtures on this GPU, or on software that computes as one: within the bounds of their goldens, and with the same bytes in any
//! chunks, alone and among others. The interpreter stands for the CPU where it runs a part of a model.
//!
//! `GIRIH_SAMPLE` chooses what the second test runs, such as the id of a commit, or `all`.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::time::Instant;

use girih_engine::{
    Encoder, Engine, EngineLimits, EventKind, Hooks, RequestId, Sampling, Tenant, TokenRequest, cache,
};
use girih_graph::description::AnyBackend;
use girih_graph::host_experts::HostExpertsBackend;
use girih_graph::interpret::Interpreter;
use girih_graph::staged::StagedBackend;
use girih_graph::stages::layer_count;
use girih_graph::{Graph, Key, OpName, OutputKind, Runner};
use girih_measure::{
    EncoderGolden, ErrorBound, Golden, GoldenPrecision, GoldenSizes, verify, verify_encoder,
};
use girih_model::{GraphOptions, ModelFiles, ModelLimits};
use girih_tensor::{DType, Random};

use crate::opened::{adapter, open};

/// Which part of a model is on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnGpu {
    Everything,
    /// All but the routed experts.
    AllButExperts,
    /// The last layer and the head.
    LastLayer,
}

use OnGpu::{AllButExperts, Everything, LastLayer};

/// A fixture, and what of it is on the GPU.
type Run = (&'static str, OnGpu);

/// Fixtures with all ops and kinds of state that fixtures have, and parts of models on the host.
const RUNS: [Run; 18] = [
    ("llama32_tied", Everything),
    ("qwen3", Everything),
    ("gemma2", Everything),
    ("gemma3_text", Everything),
    ("gemma4", Everything),
    ("gpt_oss", Everything),
    ("deepseek_v3", Everything),
    ("qwen3_5", Everything),
    ("granitemoehybrid", Everything),
    ("lfm2", Everything),
    ("mlx", Everything),
    ("bert", Everything),
    ("gpt_oss", AllButExperts),
    ("deepseek_v3", AllButExperts),
    ("granitemoehybrid", AllButExperts),
    ("gemma4", AllButExperts),
    ("laguna", AllButExperts),
    ("qwen3_5", LastLayer),
];

/// Ops that no fixture of a text model has; the conformance suite has cases of all.
const WITHOUT_FIXTURE: [&str; 10] = [
    "splice",
    "match_rms",
    "sparsify",
    "temper",
    "select_keys",
    "mix_heads",
    "xielu",
    "shift_columns",
    "clamp",
    "hadamard",
];

/// Chunks: one row, fewer than a tile, a tile, and all rows of a prompt.
const CHUNKS: [u32; 4] = [1, 7, 64, 128];

/// The positions of a sequence.
const CONTEXT: u32 = 128;

/// The sequences that run at once, if a step has a row of each.
const SEQUENCES: u32 = 7;

/// The runs of a sample.
const SAMPLE: usize = 2;

fn folder(fixture: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(fixture)
}

fn files(fixture: &str) -> ModelFiles {
    ModelFiles::open(&folder(fixture), Vec::new(), &ModelLimits::DEFAULT).expect("the fixture is whole")
}

/// The backend that runs a graph.
fn backend(name: &str, on_gpu: OnGpu, graph: &Graph) -> Box<dyn AnyBackend> {
    let (gpu, host) = (open(name), Box::new(Interpreter));
    match on_gpu {
        Everything => gpu,
        AllButExperts => Box::new(HostExpertsBackend::new(gpu, host).expect("the GPU leaves experts")),
        LastLayer => Box::new(StagedBackend::new(host, gpu, layer_count(graph) - 1)),
    }
}

/// A model, its largest graph, and the backend that runs it.
struct Opened {
    files: ModelFiles,
    options: GraphOptions,
    graph: Graph,
    backend: Box<dyn AnyBackend>,
}

impl Opened {
    fn new(name: &str, (fixture, on_gpu): Run, key: Key, state: DType) -> Opened {
        let files = files(fixture);
        let options = GraphOptions { state, given_rows: false, hidden_rows: false };
        let graph = files.graph(key, options).expect("the key suits the fixture");
        let backend = backend(name, on_gpu, &graph);
        Opened { files, options, graph, backend }
    }

    fn load(self) -> Box<dyn Runner> {
        let Opened { files, options, graph, backend } = self;
        let build = |key| files.graph(key, options);
        let runner = backend.load(&files.weights, graph.key, &cache::blocks_of(&graph), &build);
        runner.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Compares a fixture with its golden. Returns the names of its ops.
fn verified(name: &str, run: Run, kv: DType) -> Vec<&'static str> {
    let (fixture, precision) = (run.0, GoldenPrecision::F32);
    let facts = files(fixture).facts;
    let layers = facts.layers.len();
    let golden = folder(fixture).join("golden.safetensors");
    let sizes =
        GoldenSizes { layers, width: facts.sizes.width, vocabulary: facts.sizes.vocabulary, image: None };
    let key = Key { rows: 512, sequences: 1, context: 512, output_rows: 64, output: OutputKind::Logits };
    let bound = |opened: &Opened| {
        let numbers = |name: &str| opened.files.weights.numbers(name);
        let numerics = opened.backend.numerics(&opened.graph);
        ErrorBound::new(precision, &opened.graph, &numerics, true, numbers).expect("the weights are there")
    };
    let ops = |opened: &Opened| opened.graph.nodes.iter().map(|node| node.op.name()).collect();
    if facts.is_encoder() {
        let golden = EncoderGolden::read(&golden, precision, &sizes).unwrap();
        let sequences = golden.batch.len().max(1) as u32;
        let key = Key { sequences, output_rows: 1, output: OutputKind::Pooled, ..key };
        let opened = Opened::new(name, run, key, DType::F32);
        let (bound, ops) = (bound(&opened), ops(&opened));
        let mut encoder = Encoder::new(opened.load()).unwrap();
        let pooling = facts.pooling.expect("the fixture pools").how;
        let verdict = verify_encoder(&mut encoder, &golden, layers, pooling, &bound, &mut |_| {}).unwrap();
        assert!(verdict.passed, "{run:?}");
        return ops;
    }
    let golden = Golden::read(&golden, precision, &sizes).unwrap();
    let opened = Opened::new(name, run, key, kv);
    let (bound, ops) = (bound(&opened), ops(&opened));
    let mut engine = Engine::new(opened.load(), EngineLimits::new(key.context, key.rows)).unwrap();
    let verdict = verify(&mut engine, &golden, layers, &bound, &mut |_| {}).unwrap();
    assert!(verdict.passed, "{run:?}, {kv}: {verdict:?}");
    ops
}

/// The adapter, and the device, which stays open with its compiled kernels.
fn device() -> Option<(&'static str, Box<dyn AnyBackend>)> {
    let name = adapter();
    if name.is_none() {
        eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
    }
    Some((name?, open(name?)))
}

#[test]
fn fixtures_are_within_the_bounds_of_their_goldens() {
    let Some((name, _open)) = device() else { return };
    let mut ops = BTreeSet::new();
    for (index, run) in RUNS.into_iter().enumerate() {
        let (kv, begun) = ([DType::F32, DType::F16][index % 2], Instant::now());
        ops.extend(verified(name, run, kv));
        println!("{run:?}, {kv}: {:.1} s", begun.elapsed().as_secs_f64());
    }
    let absent: Vec<&str> =
        OpName::ALL.iter().map(|op| op.spec().name).filter(|op| !ops.contains(op)).collect();
    assert_eq!(absent, WITHOUT_FIXTURE);
}

/// The ids of a reply, each with the bits of its log-probability.
type Bits = Vec<(u32, u64)>;

/// A request; the first one has a prompt of more than a tile of rows.
fn request(number: u64, vocabulary: usize) -> TokenRequest {
    let mut random = Random(number << 20);
    let length = if number == 0 { 70 } else { 3 + random.below(9) };
    TokenRequest {
        tokens: (0..length).map(|_| random.below(vocabulary) as u32).collect(),
        sampling: Sampling::greedy(),
        max_new: Some(4),
        logprobs: Some(0),
        tenant: Tenant::new(&number.to_string()),
        ..TokenRequest::default()
    }
}

/// The replies to requests that run at once.
fn replies(engine: &mut Engine, requests: &[u64], vocabulary: usize) -> Vec<Bits> {
    let mut replies = vec![Bits::new(); requests.len()];
    let mut indexes: HashMap<RequestId, usize> = HashMap::new();
    for (index, number) in requests.iter().enumerate() {
        let id = engine.submit(request(*number, vocabulary), Hooks::default()).unwrap();
        indexes.insert(id, index);
    }
    while !engine.is_idle() {
        for event in engine.step() {
            match &event.kind {
                EventKind::Token { id, logprobs, .. } => {
                    let value = logprobs.as_ref().expect("they were asked for").chosen.value;
                    replies[indexes[&event.request]].push((*id, value.to_bits()));
                }
                EventKind::Failed(error) => panic!("{error}"),
                _ => {}
            }
        }
    }
    replies
}

/// The replies to all requests at once, and to the first one alone, by steps of up to `chunk` rows.
fn replies_of(name: &str, run: Run, kv: DType, chunk: u32) -> (Vec<Bits>, Bits) {
    let sequences = SEQUENCES.min(chunk);
    let output = OutputKind::Logits;
    let key = Key { rows: chunk, sequences, context: CONTEXT, output_rows: sequences, output };
    let fresh = || {
        let opened = Opened::new(name, run, key, kv);
        let vocabulary = opened.files.facts.sizes.vocabulary;
        let limits = EngineLimits { sequences, ..EngineLimits::new(CONTEXT, chunk) };
        (Engine::new(opened.load(), limits).expect("the limits are those of the key"), vocabulary)
    };
    let all: Vec<u64> = (0..u64::from(SEQUENCES)).collect();
    let (mut engine, vocabulary) = fresh();
    let among = replies(&mut engine, &all, vocabulary);
    drop(engine);
    let alone = replies(&mut fresh().0, &all[..1], vocabulary);
    (among, alone.concat())
}

/// The runs of a sample, each with a type of KV cache.
fn sample(of: &str) -> Vec<(Run, DType)> {
    let kvs = [DType::F32, DType::F16];
    let generating = RUNS.into_iter().filter(|(fixture, _)| *fixture != "bert");
    let all: Vec<(Run, DType)> = generating.flat_map(|run| kvs.map(|kv| (run, kv))).collect();
    if of == "all" {
        return all;
    }
    // FNV-1a (Fowler, Noll, Vo): 64 bits of the text.
    let seed = of.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut random = Random(seed);
    (0..SAMPLE).map(|_| all[random.below(all.len())]).collect()
}

#[test]
fn a_sample_has_the_same_bytes_in_any_chunks_alone_and_among_seven() {
    let Some((name, _open)) = device() else { return };
    let of = std::env::var("GIRIH_SAMPLE").unwrap_or_else(|_| "a commit".to_owned());
    for (run, kv) in sample(&of) {
        let begun = Instant::now();
        let mut first = None;
        for chunk in CHUNKS {
            let (among, alone) = replies_of(name, run, kv, chunk);
            assert_eq!(among[0], alone, "{run:?}, {kv}, chunk {chunk}: alone and among {SEQUENCES}");
            let first = first.get_or_insert_with(|| among.clone());
            assert_eq!(among, *first, "{run:?}, {kv}, chunk {chunk}");
        }
        println!("{run:?}, {kv}: {:.1} s", begun.elapsed().as_secs_f64());
    }
}
