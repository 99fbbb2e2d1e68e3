//! Measures the cost of the pool: barriers without work, and a decode token's reads, on a quiet machine
//! and beside busy threads. The measurements test no results; run them alone on the machine:
//!
//! ```text
//! cargo test --release -p girih-cpu --lib -- --ignored --nocapture --test-threads=1 pool_timing
//! ```
//!
//! The busy threads belong to the same process and scheduling group, so they get the same share of the
//! CPUs as the pool's.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::affinity::{Affinity, thread_cpus};
use crate::memory::Aligned;
use crate::pool::{Grid, ThreadPool};
use crate::probe::{HostMachine, default_threads};

/// The matrices of a layer of Llama-3.2-1B, in rows and columns: q+k+v, o, gate+up and down.
const LAYER_MATRICES: [(usize, usize); 4] = [(3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192)];
const MODEL_LAYERS: usize = 16;
const OUTPUT_MATRIX: (usize, usize) = (128_256, 2048);

/// Rows in a piece: 32 of 2048 columns in Q4_0 are 36 KB, two microseconds of reading.
const PIECE_ROWS: usize = 32;

/// The matrices of a token in Q4_0: rows, and the width of a row in words of eight bytes.
fn token() -> Vec<(usize, usize)> {
    let matrices =
        LAYER_MATRICES.iter().cycle().take(LAYER_MATRICES.len() * MODEL_LAYERS).chain([&OUTPUT_MATRIX]);
    matrices.map(|&(rows, columns)| (rows, columns / 32 * 18 / 8)).collect()
}

/// The sum of `words`, with enough independent chains to keep memory busy.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    for chunk in words.chunks_exact(16) {
        for (sum, word) in sums.iter_mut().zip(chunk) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.iter().fold(0, |sum, part| sum.wrapping_add(*part))
}

/// What bounds a piece of a token.
#[derive(Clone, Copy, Debug)]
enum PieceBound {
    /// Memory: it reads its own rows.
    Memory,
    /// Arithmetic, in which threads do not disturb each other: for each of its rows it reads the first row,
    /// which stays in L1, six times, and so takes about two milliseconds per megabyte.
    Arithmetic,
}

/// Reads the matrices of one token, each in one task.
fn token_time(pool: &ThreadPool, locals: &mut [()], weights: &[u64], bound: PieceBound, output: &mut [u64]) {
    let mut start = 0;
    for (rows, width) in token() {
        let matrix = &weights[start..start + rows * width];
        start += rows * width;
        let grid = Grid { width: rows, row_step: 1, column_step: PIECE_ROWS };
        pool.tiles(locals, &mut output[..rows], grid, |tile, ()| {
            for column in tile.columns() {
                let first = tile.columns().start;
                tile.row(0)[column - first] = match bound {
                    PieceBound::Memory => sum(&matrix[column * width..(column + 1) * width]),
                    PieceBound::Arithmetic => (0..6).map(|_| sum(black_box(&matrix[..width]))).sum(),
                };
            }
        });
    }
}

/// The minimum, median and maximum of `runs` calls, in milliseconds.
fn milliseconds(runs: usize, mut call: impl FnMut()) -> [f64; 3] {
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    [times[0], times[runs / 2], times[runs - 1]]
}

/// Calls `body` while `count` other threads are busy.
fn beside<R>(count: usize, body: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                let mut x = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    x = black_box(x.wrapping_add(1));
                }
            });
        }
        thread::sleep(Duration::from_millis(20));
        let result = body();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
#[ignore = "a measurement; run it alone on the machine"]
fn pool_timing_of_empty_tasks() {
    const TASKS: usize = 20_000;
    for threads in 1..=2 {
        let pool = ThreadPool::new(threads).unwrap();
        let (mut locals, mut output) = (vec![(); threads], vec![0u64; threads]);
        let grid = Grid { width: threads, row_step: 1, column_step: 1 };
        let times = milliseconds(9, || {
            for _ in 0..TASKS {
                pool.tiles(&mut locals, &mut output, grid, |_, ()| ());
            }
        });
        let [min, median, max] = times.map(|ms| ms * 1e6 / TASKS as f64);
        println!("{threads} threads: empty task {min:.0} / {median:.0} / {max:.0} ns");
    }
}

/// The words of all matrices of a token, all of them touched.
fn token_weights() -> Aligned<u64> {
    let words = token().iter().map(|(rows, width)| rows * width).sum();
    let mut weights = Aligned::zeroed(words, "a test").unwrap();
    weights.iter_mut().enumerate().for_each(|(index, word)| *word = index as u64);
    weights
}

#[test]
#[ignore = "a measurement; run it alone on the machine"]
fn pool_timing_of_tokens() {
    let weights = token_weights();
    let mut output = vec![0u64; OUTPUT_MATRIX.0];
    for bound in [PieceBound::Memory, PieceBound::Arithmetic] {
        let mut quiet = [0.0; 2];
        for round in 0..3 {
            for (threads, busy) in [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2)] {
                let pool = ThreadPool::new(threads).unwrap();
                let mut locals = vec![(); threads];
                let [min, median, max] = beside(busy, || {
                    milliseconds(31, || token_time(&pool, &mut locals, &weights, bound, &mut output))
                });
                if busy == 0 {
                    quiet[threads - 1] = median;
                }
                println!(
                    "{bound:?} {round}: {threads} threads beside {busy} busy: \
                     {min:.1} / {median:.1} / {max:.1} ms, {:.1} GB/s, {:.0} % of quiet",
                    weights.len() as f64 * 8.0 / median / 1e6,
                    100.0 * quiet[threads - 1] / median,
                );
            }
        }
    }
}

#[test]
#[ignore = "a measurement; run it alone on the machine"]
fn pool_timing_of_affinities() {
    let weights = token_weights();
    let mut output = vec![0u64; OUTPUT_MATRIX.0];
    let threads = default_threads();
    let cpus = thread_cpus(Affinity::Compact, &HostMachine::here().topology, threads).unwrap();
    for bound in [PieceBound::Memory, PieceBound::Arithmetic] {
        for round in 0..3 {
            for (name, cpus, busy) in [
                ("none", None, 0),
                ("compact", cpus.clone(), 0),
                ("none", None, 1),
                ("compact", cpus.clone(), 1),
            ] {
                let [min, median, max] = beside(busy, || {
                    let pool = ThreadPool::pinned(threads, cpus).unwrap();
                    let mut locals = vec![(); threads];
                    milliseconds(31, || token_time(&pool, &mut locals, &weights, bound, &mut output))
                });
                println!(
                    "{bound:?} {round}: affinity {name}, {threads} threads beside {busy} busy: \
                     {min:.1} / {median:.1} / {max:.1} ms"
                );
            }
        }
    }
}
