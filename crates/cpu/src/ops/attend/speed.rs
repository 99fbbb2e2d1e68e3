//! Measures the speed of attention, and that of only reading the same bytes:
//! `cargo test --release -p girih-cpu --lib speed -- --ignored --nocapture`; to
//! run one of them, `speed::decode` or `speed::prefill`.

use std::time::Instant;

use girih_graph::backend::{Block, Range32, Sequence};
use girih_graph::{BLOCK_POSITIONS, Builder, Graph, Key, Op, OutputKind, Outputs, Span, backend::State};
use girih_tensor::DType;

use super::{AttentionOperands, AttentionParams, ValuesHeld, attend, local_len, partials_len};
use crate::kernels;
use crate::memory::Aligned;
use crate::ops::{Executor, RowOrigin, StepRows};
use crate::pool::{Grid, ThreadPool};
use crate::state::CpuState;

const QUERY_HEADS: usize = 32;
const KV_HEADS: usize = 8;
const HEAD_SIZE: usize = 64;
const ATTENTION: AttentionParams = AttentionParams {
    held: ValuesHeld::Apart,
    kv_heads: KV_HEADS,
    shared: QUERY_HEADS / KV_HEADS,
    size: HEAD_SIZE,
    value_size: HEAD_SIZE,
    scale: 0.125,
    span: Span::Full,
    softcap: None,
};
/// Rounds whose median is reported.
const BENCH_ROUNDS: usize = 7;

/// Layers of attention, each with its own keys and values.
fn graph(layers: usize, rows: u32, context: u32, dtype: DType) -> Graph {
    let output = OutputKind::Hidden;
    let mut builder = Builder::new(Key { rows, sequences: 1, context, output_rows: rows, output });
    let mut x = builder.input("x", &[QUERY_HEADS, HEAD_SIZE], DType::F32);
    let group = builder.group(Span::Full);
    for layer in 0..layers {
        let [keys, values] = ["keys", "values"]
            .map(|name| builder.state(&format!("{layer}.{name}"), &[KV_HEADS, HEAD_SIZE], dtype, group));
        let op = Op::Attend { scale: 0.125, span: Span::Full, softcap: None };
        x = builder.same(&format!("{layer}.y"), op, &[x, keys, values]);
    }
    builder.finish(x)
}

/// A step whose last `rows` rows end at position `context`, in each of `layers`.
struct AttendBench {
    cache: CpuState,
    layers: usize,
    rows: usize,
    context: usize,
    pool: ThreadPool,
    locals: Vec<Aligned<f32>>,
    partials: Aligned<f32>,
}

impl AttendBench {
    fn new(layers: usize, rows: usize, context: usize, dtype: DType, threads: usize) -> AttendBench {
        let graph = graph(layers, rows as u32, context as u32, dtype);
        let blocks = context.div_ceil(BLOCK_POSITIONS);
        let mut cache = CpuState::new(&graph, &[blocks as u32]).unwrap();
        let group = girih_graph::GroupId(0);
        // As f16 or bf16, numbers near 1; as q8_0, any scale and integers near 50.
        let len = cache.export(group, Block(0)).unwrap().len();
        let bytes: Vec<u8> = (0..len).map(|i| if i % 2 == 0 { (i * 37) as u8 } else { 0x3c }).collect();
        (0..blocks).for_each(|block| cache.import(group, Block(block as u32), &bytes).unwrap());
        let local = local_len(QUERY_HEADS / KV_HEADS, HEAD_SIZE, HEAD_SIZE);
        let locals = (0..threads).map(|_| Aligned::zeroed(local, "a test").unwrap()).collect();
        let partials = Aligned::zeroed(partials_len(graph.key, ATTENTION), "a test").unwrap();
        let pool = ThreadPool::new(threads).unwrap();
        AttendBench { cache, layers, rows, context, pool, locals, partials }
    }

    /// Returns the seconds of a layer of attention.
    fn attend(&mut self) -> f64 {
        let blocks: Vec<Block> = (0..self.context.div_ceil(BLOCK_POSITIONS) as u32).map(Block).collect();
        let position = (self.context - self.rows) as u32;
        let rows = Range32 { start: 0, end: self.rows as u32 };
        let sequence = Sequence { blocks: &[&blocks], position, rows, outputs: Outputs::All, spans: &[] };
        let origins: Vec<RowOrigin> =
            (0..self.rows as u32).map(|row| RowOrigin { sequence: 0, position: position + row }).collect();
        let rows = StepRows { sequences: &[sequence], origins: &origins, output_rows: &[] };
        let q: Vec<f32> =
            (0..self.rows * QUERY_HEADS * HEAD_SIZE).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect();
        let mut output = vec![0.0; q.len()];
        let table = &kernels::by_name(isa()).unwrap();
        let mut executor = Executor {
            table,
            pool: &self.pool,
            locals: &mut self.locals,
            partials: &mut self.partials,
            words: &mut [],
            variant: [""; 4],
        };
        let start = Instant::now();
        for layer in 0..self.layers {
            let (keys, values) = (self.cache.tensor(2 * layer), self.cache.tensor(2 * layer + 1));
            let heads = AttentionOperands { q: &q, keys, values, sinks: None, selected: None };
            attend(&mut executor, heads, ATTENTION, rows, &mut output);
        }
        assert!(output.iter().all(|x| x.is_finite()));
        start.elapsed().as_secs_f64() / self.layers as f64
    }

    /// Returns the seconds of reading a layer's keys and values, and their bytes.
    fn read(&mut self) -> (f64, usize) {
        let mut sums = vec![0u8; 16];
        let mut bytes = 0;
        let start = Instant::now();
        for tensor in 0..2 * self.layers {
            let all = self.cache.tensor(tensor).bytes();
            bytes += all.len();
            let part = all.len() / 16;
            let grid = Grid { width: 16, row_step: 1, column_step: 1 };
            self.pool.tiles(&mut self.locals, &mut sums, grid, |tile, _| {
                let column = tile.columns().start;
                let mut sums = [0u8; 128];
                for bytes in all[column * part..(column + 1) * part].as_chunks::<128>().0 {
                    sums.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
                }
                tile.row(0)[0] ^= sums.iter().fold(0, |a, b| a ^ b);
            });
        }
        assert!(sums.iter().any(|sum| *sum != 1));
        (start.elapsed().as_secs_f64() / self.layers as f64, bytes / self.layers)
    }
}

/// The name of the best kernels, which are measured.
fn isa() -> &'static str {
    kernels::tables()[0].name
}

/// The median and the minimum, in milliseconds.
fn spread(mut seconds: Vec<f64>) -> (f64, f64) {
    seconds.sort_by(f64::total_cmp);
    (seconds[seconds.len() / 2] * 1e3, seconds[0] * 1e3)
}

fn decode_at(context: usize, layers: usize, rounds: usize) {
    for threads in [1, 2] {
        for dtype in [DType::F16, DType::Q8_0, DType::Q4_0, DType::F32] {
            let mut bench = AttendBench::new(layers, 1, context, dtype, threads);
            bench.attend();
            let rounds: Vec<_> = (0..rounds).map(|_| (bench.attend(), bench.read())).collect();
            let bytes = rounds[0].1.1 as f64;
            let attend = spread(rounds.iter().map(|round| round.0).collect());
            let read = spread(rounds.iter().map(|round| round.1.0).collect());
            println!(
                "{} threads {threads} {dtype} context {context} x {layers} layers, median and minimum: {:.3} {:.3} ms, \
                 {:.1} {:.1} GB/s; bare read {:.3} {:.3} ms, {:.1} {:.1} GB/s",
                isa(),
                attend.0,
                attend.1,
                bytes / attend.0 * 1e-6,
                bytes / attend.1 * 1e-6,
                read.0,
                read.1,
                bytes / read.0 * 1e-6,
                bytes / read.1 * 1e-6,
            );
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn decode() {
    for (context, layers) in [(16384, 8), (4096, 24), (1024, 32)] {
        decode_at(context, layers, BENCH_ROUNDS);
    }
}

#[test]
#[ignore = "a measurement"]
fn cached() {
    decode_at(1024, 1, 1000);
}

#[test]
#[ignore = "a measurement"]
fn prefill() {
    for threads in [1, 2] {
        for rows in [32, 512, 2048] {
            for dtype in [DType::F16, DType::Q8_0, DType::Q4_0, DType::F32] {
                let mut bench = AttendBench::new(1, rows, rows, dtype, threads);
                bench.attend();
                let rounds = if rows < 100 { 300 } else { BENCH_ROUNDS };
                let (median, min) = spread((0..rounds).map(|_| bench.attend()).collect());
                let operations = 4.0 * (rows * (rows + 1) / 2 * HEAD_SIZE * QUERY_HEADS) as f64;
                println!(
                    "{} threads {threads} {dtype} prefill {rows}, median and minimum: {median:.3} {min:.3} ms, \
                     {:.1} {:.1} GFLOPS",
                    isa(),
                    operations / median * 1e-6,
                    operations / min * 1e-6,
                );
            }
        }
    }
}
