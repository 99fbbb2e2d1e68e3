//! Measures the cycles of the main inner loops with operands in L1, and the GB/s of the loops for few
//! columns with each prefetch distance.
//!
//! ```text
//! cargo test --release --locked -p girih-cpu --test it inner_loops -- --ignored --nocapture
//! ```
//! `scripts/inner_loops.py` counts the instructions of the same loops, and `docs/kernels.md` compares both.
//! Ticks are those of the time stamp counter. A chain of dependent multiplications, timed before and after,
//! converts them to cycles of the core's clock. The time of two lengths is subtracted, so that the call
//! itself does not count. `GIRIH_ISA` names a table; the default is the best one.

use std::hint::black_box;

use girih_cpu::kernels::attend::{CHUNK_POSITIONS, Cells, ChunkWeights, Format, KEY_TILE, ValueBlock};
use girih_cpu::kernels::packed::{BAND, Band, DEPTH, GROUP, Layout, MatmulTileOperands, PanelGroup, TILE};
use girih_cpu::kernels::peaks::time_stamp;
use girih_cpu::kernels::prefetch::{PrefetchChoice, PrefetchDistance};
use girih_cpu::kernels::{Table, by_name, tables};
use girih_cpu::prefetch_distance::measure;
use girih_graph::BLOCK_POSITIONS;

use crate::bands::{
    InputCodes, IntegerBand, IntegerInputs, WeightCodes, WeightScales, coding, decoded, integer_layouts,
};
use crate::fixture::Random;

/// The number of rounds; the fastest counts.
const ROUNDS: usize = 30;

fn table() -> Table {
    std::env::var("GIRIH_ISA")
        .map_or(tables()[0], |name| by_name(&name).expect("a table that this machine can run"))
}

/// Ticks of a call, the minimum of several rounds.
fn ticks(mut call: impl FnMut()) -> f64 {
    const CALLS: usize = 300;
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begun = stamp();
        (0..CALLS).for_each(|_| call());
        least = least.min((stamp() - begun) as f64 / CALLS as f64);
    }
    least
}

/// Reads the time stamp counter.
fn stamp() -> u64 {
    time_stamp().expect("this machine has a time stamp counter")
}

/// Measures the core's cycles per tick with a chain of exclusive or and multiplication, which take one and
/// three cycles on all processors with AVX2.
fn clock() -> f64 {
    const STEPS: usize = 10_000;
    let key = black_box(0x9e37_79b9_7f4a_7c15u64);
    let chain = ticks(|| {
        let mut x = black_box(1u64);
        for _ in 0..STEPS {
            x = (x ^ key).wrapping_mul(key);
        }
        black_box(x);
    });
    4.0 * STEPS as f64 / chain
}

/// Prints the ticks and cycles of one iteration of a loop, and its multiply-accumulates per cycle. `time`
/// returns the ticks of a number of iterations.
fn print(name: &str, [few, many]: [usize; 2], multiply_accumulates: usize, time: impl Fn(usize) -> f64) {
    let before = clock();
    let [short, long] = [time(few), time(many)];
    let clock = f64::max(before, clock());
    let ticks = (long - short) / (many - few) as f64;
    let cycles = ticks * clock;
    println!(
        "{name:<28} {ticks:>8.2} {cycles:>8.2} {:>10.1} {clock:>8.3}",
        multiply_accumulates as f64 / cycles
    );
}

fn tiles(table: &Table) {
    for layout in [Layout::Q4_0, Layout::Q8_0, Layout::Q4K, Layout::Q6K] {
        let coding = coding(layout);
        let mut random = Random(61);
        let band = IntegerBand::random(layout, 8, WeightCodes::Any, WeightScales::Moderate, &mut random);
        let x = IntegerInputs::random(coding, 8, TILE, InputCodes::Any, &mut random);
        let panels = decoded(&band, 0, 8);
        // A call computes two half bands.
        print(&format!("tile {layout:?} x{TILE}"), [2 * 2, 2 * 8], TILE * GROUP * BAND / 2, |iterations| {
            let mut sums = [[0.0; BAND]; TILE];
            let mut memory = None;
            let signed = table.matmul.signed(coding, (&panels, 8), &mut memory);
            ticks(|| {
                let (groups, x) = (iterations / 2, black_box(&x.words[..]));
                (table.matmul.tile)(
                    MatmulTileOperands { coding, panels: &panels, signed, groups, x, next: &[] },
                    black_box(&mut sums),
                );
            })
        });
    }
}

fn few_columns(table: &Table) {
    for layout in integer_layouts() {
        for columns in [1, 4, 8] {
            let coding = coding(layout);
            let mut random = Random(62);
            let each = layout.unit().0 / GROUP;
            let band = IntegerBand::random(layout, 16, WeightCodes::Any, WeightScales::Moderate, &mut random);
            let x = IntegerInputs::random(coding, 16, columns, InputCodes::Any, &mut random);
            let multiply_accumulates = columns * GROUP * BAND;
            print(&format!("narrow {layout:?} x{columns}"), [8, 16], multiply_accumulates, |groups| {
                let band = Band {
                    layout,
                    columns: groups * GROUP,
                    bytes: &band.bytes[..groups / each * layout.unit().1],
                    prefetch: PrefetchChoice::DEFAULT,
                };
                let x = &x.words[..groups * coding.words() * columns];
                let mut sums = [[0.0; BAND]; 8];
                ticks(|| {
                    (table.matmul.narrow)(black_box(band), black_box(x), black_box(&mut sums[..columns]));
                })
            });
        }
    }
}

fn panels(table: &Table) {
    for layout in integer_layouts() {
        let band =
            IntegerBand::random(layout, DEPTH, WeightCodes::Any, WeightScales::Moderate, &mut Random(63));
        print(&format!("decode {layout:?}"), [8, DEPTH], GROUP * BAND, |groups| {
            let mut panels = Box::new([[PanelGroup::ZERO; DEPTH]; 2]);
            ticks(|| {
                (table.matmul.decode)(black_box(band.band()), 0, groups, black_box(&mut panels));
            })
        });
    }
}

fn floats(table: &Table) {
    for (layout, columns) in [Layout::Bf16, Layout::F16, Layout::F32]
        .into_iter()
        .flat_map(|layout| [1, 8, TILE].map(|c| (layout, c)))
    {
        let bytes = vec![0x11; layout.band_bytes(128).expect("a small band")];
        let x = vec![0.5f32.to_bits(); 128 * columns];
        // An iteration computes two columns of weights.
        print(&format!("floats {layout:?} x{columns}"), [32, 64], 2 * columns * BAND, |iterations| {
            let bytes = &bytes[..layout.band_bytes(2 * iterations).expect("a small band")];
            let band = Band { layout, columns: 2 * iterations, bytes, prefetch: PrefetchChoice::DEFAULT };
            let mut sums = [[0.0; BAND]; TILE];
            ticks(|| {
                let x = &x[..2 * iterations * columns];
                (table.matmul.floats)(black_box(band), 0, black_box(x), black_box(&mut sums[..columns]));
            })
        });
    }
}

fn bf16(table: &Table) {
    for columns in [1, 8, TILE] {
        let bytes = vec![0x11; Layout::Bf16.band_bytes(128).expect("a small band")];
        let x = vec![0x3f00_3f00; 64 * columns];
        print(&format!("bf16 x{columns}"), [32, 64], 2 * columns * BAND, |iterations| {
            let bytes = &bytes[..Layout::Bf16.band_bytes(2 * iterations).expect("a small band")];
            let band = Band {
                layout: Layout::Bf16,
                columns: 2 * iterations,
                bytes,
                prefetch: PrefetchChoice::DEFAULT,
            };
            let mut sums = [[0.0; BAND]; TILE];
            ticks(|| {
                let x = &x[..iterations * columns];
                (table.matmul.bf16)(black_box(band), 0, black_box(x), black_box(&mut sums[..columns]));
            })
        });
    }
}

fn attention(table: &Table) {
    const SIZE: usize = 128;
    for (format, width) in [Format::F16, Format::Q8_0, Format::Q4_0]
        .into_iter()
        .flat_map(|format| [1, 4, 8].map(|width| (format, width)))
    {
        let tile = vec![0x11; format.bytes(KEY_TILE, SIZE)];
        let queries = vec![0.5; SIZE * width];
        let mut scores: Vec<ChunkWeights> = vec![[0.0; CHUNK_POSITIONS]; width];
        let scores = std::cell::RefCell::new(&mut scores);
        print(&format!("score {format:?} x{width}, a dim"), [64, SIZE], width * KEY_TILE, |dims| {
            let tile = Cells::Stored(format, &tile[..format.bytes(KEY_TILE, dims)]);
            ticks(|| {
                let queries = black_box(&queries[..dims * width]);
                (table.attend.score)(queries, black_box(tile), &[], &mut scores.borrow_mut(), 0);
            })
        });
        let values = vec![0x11; format.bytes(BLOCK_POSITIONS, 64)];
        let weights: Vec<ChunkWeights> = vec![[0.5; CHUNK_POSITIONS]; width];
        let name = format!("blend {format:?} x{width}, a position");
        print(&name, [32, BLOCK_POSITIONS], width * 64, |positions| {
            let cells = Cells::Stored(format, &values);
            let mut sums = vec![0.0; width * 64];
            ticks(|| {
                let block = ValueBlock { cells, positions: 0..positions, width: 64, next: &[] };
                (table.attend.blend)(black_box(&weights), 0, black_box(block), black_box(&mut sums));
            })
        });
    }
}

/// Prints the GB/s of kernels with each prefetch distance: the distances alternate, and the best round of
/// each counts.
fn distances(table: &Table) {
    let layouts =
        [Layout::Q4_0, Layout::Q4_1, Layout::Q5_0, Layout::Q8_0, Layout::Bf16, Layout::F16, Layout::F32];
    for (threads, layout) in [1, 2].into_iter().flat_map(|threads| layouts.iter().map(move |l| (threads, *l)))
    {
        let rates = measure(table, threads, layout).expect("memory for a measurement");
        let figures: Vec<String> = rates
            .iter()
            .map(|rate| format!("{:>8.2}{}", rate.bytes / 1e9, if rate.chosen { "*" } else { " " }))
            .collect();
        println!("{threads} threads, {layout:<8?} {}", figures.join(""));
    }
}

#[test]
#[ignore = "a measurement; takes half a minute on an idle machine in a release build"]
fn inner_loops_are_timed() {
    let table = table();
    println!(
        "{:<28} {:>8} {:>8} {:>10} {:>8}   {}",
        "loop", "ticks", "cycles", "macs/cycle", "c/tick", table.name
    );
    [tiles, few_columns, panels, floats, bf16, attention].iter().for_each(|measure| measure(&table));
}

#[test]
#[ignore = "a measurement; takes a minute on an idle machine in a release build"]
fn memory_is_read_with_each_prefetch_distance() {
    println!(
        "GB/s with one column, then with four; prefetch distances: {}",
        PrefetchDistance::ALL.map(PrefetchDistance::name).join(", ")
    );
    distances(&table());
}
