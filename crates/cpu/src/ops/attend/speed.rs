//! Measures the speed of attention, and that of only reading the same bytes:
//! `cargo test --release -p girih-cpu --lib speed -- --ignored --nocapture`; to
//! run one of them, `speed::decode`, `speed::shared` or `speed::prefill`.

use std::time::{Duration, Instant};

use girih_graph::backend::{Block, Range32, Sequence};
use girih_graph::{BLOCK_POSITIONS, Builder, Graph, Key, Op, OutputKind, Outputs, Span, backend::State};
use girih_tensor::DType;

use super::super::attend_piece::{AttentionOperands, AttentionParams, ValuesHeld};
use super::{attend, scratch};
use crate::bound::OpScratch;
use crate::kernels;
use crate::limits::{Numbers, peaks};
use crate::memory::Aligned;
use crate::ops::{Executor, RowOrigin, StepRows};
use crate::os;
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
const DTYPES: [DType; 5] = [DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::F32];
/// Rounds whose median is reported.
const BENCH_ROUNDS: usize = 7;

/// A step of `sequences` sequences, whose last `rows` rows end at position `context`, in each of `layers`. They
/// share all blocks but the last.
#[derive(Clone, Copy)]
struct BenchStep {
    layers: usize,
    sequences: usize,
    rows: usize,
    context: usize,
}

/// Layers of attention, each with its own keys and values.
fn graph(BenchStep { layers, sequences, rows, context }: BenchStep, dtype: DType) -> Graph {
    let (rows, sequences) = ((sequences * rows) as u32, sequences as u32);
    let (context, output) = (context as u32, OutputKind::Hidden);
    let mut builder = Builder::new(Key { rows, sequences, context, output_rows: rows, output });
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

/// Attention to state, ready to run.
struct AttendBench {
    cache: CpuState,
    step: BenchStep,
    pool: ThreadPool,
    locals: Vec<Aligned<f32>>,
    partials: Aligned<f32>,
    words: Aligned<u32>,
}

impl AttendBench {
    fn new(step: BenchStep, dtype: DType, threads: usize) -> AttendBench {
        let graph = graph(step, dtype);
        let blocks = step.context.div_ceil(BLOCK_POSITIONS) - 1 + step.sequences;
        let mut cache = CpuState::new(&graph, &[blocks as u32]).unwrap();
        let group = girih_graph::GroupId(0);
        // As f16 or bf16, numbers near 1; as q8_0, any scale and integers near 50.
        let len = cache.export(group, Block(0)).unwrap().len();
        let bytes: Vec<u8> = (0..len).map(|i| if i % 2 == 0 { (i * 37) as u8 } else { 0x3c }).collect();
        (0..blocks).for_each(|block| cache.import(group, Block(block as u32), &bytes).unwrap());
        let OpScratch { local, partials, words } = scratch(graph.key, ATTENTION);
        let locals = (0..threads).map(|_| Aligned::zeroed(local, "a test").unwrap()).collect();
        let partials = Aligned::zeroed(partials, "a test").unwrap();
        let words = Aligned::zeroed(words, "a test").unwrap();
        let pool = ThreadPool::new(threads).unwrap();
        AttendBench { cache, step, pool, locals, partials, words }
    }

    /// Times a layer of attention.
    fn attend(&mut self) -> BenchTime {
        let BenchStep { layers, sequences, rows, context } = self.step;
        let prefix = context.div_ceil(BLOCK_POSITIONS) - 1;
        let own = (prefix..).take(sequences);
        let blocks: Vec<Vec<Block>> =
            own.map(|own| (0..prefix).chain([own]).map(|block| Block(block as u32)).collect()).collect();
        let blocks: Vec<[&[Block]; 1]> = blocks.iter().map(|blocks| [&blocks[..]]).collect();
        let position = (context - rows) as u32;
        let sequence = |(index, blocks)| {
            let rows = Range32 { start: (index * rows) as u32, end: ((index + 1) * rows) as u32 };
            Sequence { blocks, position, rows, outputs: Outputs::All, spans: &[] }
        };
        let listed: Vec<Sequence<'_>> =
            blocks.iter().enumerate().map(|(index, blocks)| sequence((index, &blocks[..]))).collect();
        let origin = |row: usize| RowOrigin {
            sequence: (row / rows) as u32,
            position: position + (row % rows) as u32,
        };
        let rows = sequences * rows;
        let origins: Vec<RowOrigin> = (0..rows).map(origin).collect();
        let step_rows = StepRows { sequences: &listed, origins: &origins, output_rows: &[] };
        let q: Vec<f32> = (0..rows * QUERY_HEADS * HEAD_SIZE).map(|i| (i % 97) as f32 / 97.0 - 0.5).collect();
        let mut output = vec![0.0; q.len()];
        let table = &kernels::by_name(isa()).unwrap();
        let mut executor = Executor {
            table,
            pool: &self.pool,
            locals: &mut self.locals,
            partials: &mut self.partials,
            words: &mut self.words,
            variant: [""; 4],
        };
        let start = BenchStart::now();
        for layer in 0..layers {
            let (keys, values) = (self.cache.tensor(2 * layer), self.cache.tensor(2 * layer + 1));
            let heads = AttentionOperands { q: &q, keys, values, sinks: None, selected: None };
            attend(&mut executor, heads, ATTENTION, step_rows, &mut output);
        }
        let taken = start.taken(layers);
        assert!(output.iter().all(|x| x.is_finite()));
        taken
    }

    /// Times reading a layer's keys and values, and returns their bytes.
    fn read(&mut self) -> (BenchTime, usize) {
        let layers = self.step.layers;
        let mut sums = vec![0u8; 16];
        let mut bytes = 0;
        let start = BenchStart::now();
        for tensor in 0..2 * layers {
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
        (start.taken(layers), bytes / layers)
    }
}

/// The milliseconds of a layer, and those of all threads on CPUs, which other processes lengthen less.
struct BenchTime {
    wall: f64,
    cpu: f64,
}

/// The beginning of what is timed.
struct BenchStart {
    at: Instant,
    cpu: Duration,
}

impl BenchStart {
    fn now() -> BenchStart {
        BenchStart { at: Instant::now(), cpu: os::cpu_time() }
    }

    fn taken(self, layers: usize) -> BenchTime {
        let each = |time: Duration| time.as_secs_f64() * 1e3 / layers as f64;
        BenchTime { wall: each(self.at.elapsed()), cpu: each(os::cpu_time() - self.cpu) }
    }
}

/// The operations in `f32` of a second of CPU time that a loop of nothing else does: the best of several runs.
fn peak() -> f64 {
    const ROUNDS: u64 = 20_000_000;
    let peak = peaks().iter().find(|peak| peak.numbers == Numbers::F32).unwrap();
    let run = || {
        let before = os::cpu_time();
        (peak.run)(ROUNDS);
        (peak.operations * ROUNDS) as f64 / (os::cpu_time() - before).as_secs_f64()
    };
    (0..5).map(|_| run()).fold(0.0, f64::max)
}

/// The name of the best kernels, which are measured.
fn isa() -> &'static str {
    kernels::tables()[0].name
}

/// The median and the minimum.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0])
}

/// Prints the times of a layer, and its share of the peak by the minimum of CPU time.
fn report(what: &str, rounds: &[BenchTime], operations: f64) {
    let wall = spread(rounds.iter().map(|taken| taken.wall));
    let cpu = spread(rounds.iter().map(|taken| taken.cpu));
    let (rate, peak) = (operations / cpu.1 * 1e-6, peak() * 1e-9);
    print!(
        "{} {what}: {:.3} ms, at least {:.3}; of CPU time {:.3}, {:.3}: {rate:.1} of {peak:.1} GFLOPS ({:.0} %)",
        isa(),
        wall.0,
        wall.1,
        cpu.0,
        cpu.1,
        rate / peak * 100.0
    );
}

/// Measures steps of one row of each sequence, and reading the bytes of all blocks once.
fn decode_at(step: BenchStep, rounds: usize) {
    let BenchStep { layers, sequences, context, .. } = step;
    for threads in [1, 2] {
        for dtype in DTYPES {
            let mut bench = AttendBench::new(step, dtype, threads);
            bench.attend();
            let (attend, read): (Vec<_>, Vec<_>) =
                (0..rounds).map(|_| (bench.attend(), bench.read())).unzip();
            let operations = 4.0 * (sequences * context * HEAD_SIZE * QUERY_HEADS) as f64;
            let what = format!("threads {threads}, {dtype}, {sequences} x {context} x {layers} layers");
            report(&what, &attend, operations);
            let least = |cpu: &dyn Fn(&BenchTime) -> f64| {
                let [attend, read] =
                    [spread(attend.iter().map(cpu)).1, spread(read.iter().map(|(read, _)| cpu(read))).1];
                (read, read / attend * 100.0)
            };
            let ((wall, of_wall), (cpu, of_cpu)) = (least(&|taken| taken.wall), least(&|taken| taken.cpu));
            let rate = read[0].1 as f64 / wall * 1e-6;
            println!(
                "; bare read at least {wall:.3} ms, {rate:.1} GB/s ({of_wall:.0} %), of CPU time {cpu:.3} ({of_cpu:.0} %)"
            );
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn decode() {
    for (context, layers) in [(32768, 4), (16384, 8), (4096, 24), (1024, 32)] {
        decode_at(BenchStep { layers, sequences: 1, rows: 1, context }, BENCH_ROUNDS);
    }
}

/// The bytes per second count the shared blocks once.
#[test]
#[ignore = "a measurement"]
fn shared() {
    for (context, layers) in [(16384, 8), (4096, 24)] {
        decode_at(BenchStep { layers, sequences: 8, rows: 1, context }, BENCH_ROUNDS);
    }
}

#[test]
#[ignore = "a measurement"]
fn cached() {
    decode_at(BenchStep { layers: 1, sequences: 1, rows: 1, context: 1024 }, 1000);
}

/// Whole prompts, and the last rows of a long one.
#[test]
#[ignore = "a measurement"]
fn prefill() {
    for threads in [1, 2] {
        for (rows, context) in [(512, 512), (2048, 2048), (128, 32768)] {
            for dtype in DTYPES {
                let step = BenchStep { layers: 1, sequences: 1, rows, context };
                let mut bench = AttendBench::new(step, dtype, threads);
                bench.attend();
                let rounds: Vec<_> = (0..BENCH_ROUNDS).map(|_| bench.attend()).collect();
                let products = rows * (context - rows) + rows * (rows + 1) / 2;
                let operations = 4.0 * (products * HEAD_SIZE * QUERY_HEADS) as f64;
                report(
                    &format!("threads {threads}, {dtype}, prefill {rows} to {context}"),
                    &rounds,
                    operations,
                );
                println!();
            }
        }
    }
}

/// A prompt of 512 rows with one thread, long enough for a sampling profiler.
#[test]
#[ignore = "a measurement"]
fn profiled() {
    let step = BenchStep { layers: 1, sequences: 1, rows: 512, context: 512 };
    let mut bench = AttendBench::new(step, DType::F16, 1);
    let rounds: Vec<_> = (0..300).map(|_| bench.attend()).collect();
    println!("{:.3} ms at least", spread(rounds.iter().map(|taken| taken.cpu)).1);
}
