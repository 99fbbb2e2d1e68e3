//! What the pool's way of sharing work comes to on machines that are not at
//! hand: pieces, barriers and predicted times, from sizes and from figures that
//! stand here and were measured or assumed as their comments say. It predicts
//! and decides nothing; `docs/scaling.md` holds what [`report`] prints.

use std::fmt::{self, Write};

use crate::kernels::packed::{BAND, NARROW};
use crate::ops::linear::bands_of_piece;
use crate::replicate::{Candidate, chosen};

/// Bytes of 32 weights and their scale in Q4_0.
const BLOCK_BYTES: u64 = 18;
/// Weights in such a block.
const BLOCK: u64 = 32;

/// A machine, in the figures that bound it.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// What it is called in the report.
    pub name: &'static str,
    /// Sockets, each with its own memory.
    pub sockets: u64,
    /// Cores of a socket, each with one thread.
    pub cores: u64,
    /// Bytes per nanosecond (GB/s) that one core draws from memory.
    pub core_bandwidth: f64,
    /// Bytes per nanosecond that the memory of one socket yields.
    pub socket_bandwidth: f64,
    /// Integer operations per nanosecond (GOPS) of one core in the kernels of prefill.
    pub core_speed: f64,
    /// Nanoseconds in which a cache line gets from one core to another, in a
    /// socket and between two.
    pub line: [f64; 2],
}

/// The machines of the report. A core's bandwidth and speed are those measured
/// on an Emerald Rapids at 3.5 GHz (17.3 GB/s; 665 GOPS in the Q4_0 kernel),
/// the latter less 15 % where many cores share a power budget. A socket yields
/// 85 % of its channels: 2 of DDR5-5600, 8 and 12 of DDR5-4800. Lines take what
/// is commonly measured on mesh and chiplet processors.
pub const MACHINES: [Machine; 3] = [
    Machine {
        name: "8 cores",
        sockets: 1,
        cores: 8,
        core_bandwidth: 17.3,
        socket_bandwidth: 76.0,
        core_speed: 665.0,
        line: [50.0, 50.0],
    },
    Machine {
        name: "64 cores",
        sockets: 1,
        cores: 64,
        core_bandwidth: 17.3,
        socket_bandwidth: 261.0,
        core_speed: 565.0,
        line: [70.0, 70.0],
    },
    Machine {
        name: "2 x 96 cores",
        sockets: 2,
        cores: 96,
        core_bandwidth: 17.3,
        socket_bandwidth: 392.0,
        core_speed: 565.0,
        line: [70.0, 150.0],
    },
];

impl Machine {
    /// Threads of the pool.
    pub fn threads(&self) -> u64 {
        self.sockets * self.cores
    }

    /// Nanoseconds from the caller's opening of a task to its closing, beside
    /// the work: a line to each worker and one back, each after the other. An
    /// upper bound, as processors fetch several lines at once.
    pub fn barrier(&self) -> f64 {
        let near = (self.cores - 1) as f64 * self.line[0];
        let far = (self.threads() - self.cores) as f64 * self.line[1];
        2.0 * (near + far)
    }

    /// Bytes per nanosecond that so many threads, spread over the sockets, draw.
    fn bandwidth(&self, threads: u64) -> f64 {
        (threads as f64 * self.core_bandwidth).min(self.sockets as f64 * self.socket_bandwidth)
    }
}

/// A matrix of weights, as a task reads it.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// What it is called in the report.
    pub name: &'static str,
    /// Outputs.
    pub rows: u64,
    /// Inputs.
    pub columns: u64,
    /// Of how many matrices a piece has the same rows: of two where one gates
    /// the other.
    pub each: u64,
    /// How many there are in the model.
    pub count: u64,
}

impl Matrix {
    /// Bytes in Q4_0.
    pub fn bytes(&self) -> u64 {
        self.rows * self.columns / BLOCK * BLOCK_BYTES
    }

    /// Rows of weights in a piece of a product with so many rows, as the backend
    /// cuts it for so many threads.
    fn piece_rows(&self, rows: u64, threads: u64) -> u64 {
        let [all, each] = [self.rows.div_ceil(BAND as u64), self.each].map(|count| count as usize);
        let bands = bands_of_piece(all, each, rows <= NARROW as u64, threads as usize);
        (bands * each * BAND) as u64
    }
}

/// The matrices of Llama-3.2-1B: 16 layers with fused projections, and the
/// output matrix, which a prefill applies to one row only.
pub const MATRICES: [Matrix; 5] = [
    Matrix { name: "q+k+v", rows: 3072, columns: 2048, each: 1, count: 16 },
    Matrix { name: "o", rows: 2048, columns: 2048, each: 1, count: 16 },
    Matrix { name: "gate+up", rows: 16384, columns: 2048, each: 2, count: 16 },
    Matrix { name: "down", rows: 2048, columns: 8192, each: 1, count: 16 },
    Matrix { name: "output", rows: 128_256, columns: 2048, each: 1, count: 1 },
];

/// Barriers of a token: one for each matrix, one for the attention of each layer.
pub const BARRIERS: u64 = 16 * 5 + 1;

/// Rows of the step in a piece of prefill: all of them, unless that leaves
/// fewer than four pieces for each thread; then half as many, and so on, down
/// to what the packed kernels need to reach their speed.
pub fn prefill_rows(matrix: Matrix, rows: u64, threads: u64) -> u64 {
    const LEAST: u64 = 48;
    let mut step = rows;
    while step / 2 >= LEAST && pieces(matrix, rows, step, threads) < 4 * threads {
        step = step.div_ceil(2);
    }
    step
}

/// Pieces of a product with so many rows, `step` of them to a piece, for so
/// many threads. Matrices that are one task are counted as one; the backend cuts
/// each of them, which may make a piece more of each.
pub fn pieces(matrix: Matrix, rows: u64, step: u64, threads: u64) -> u64 {
    matrix.rows.div_ceil(matrix.piece_rows(rows, threads)) * rows.div_ceil(step)
}

/// Nanoseconds of a product with one row. Memory bounds it, and the threads
/// that still have a piece when others have none.
pub fn decode_time(machine: Machine, matrix: Matrix) -> f64 {
    let threads = machine.threads();
    let pieces = pieces(matrix, 1, 1, threads);
    let piece = matrix.bytes() as f64 / pieces as f64;
    let full = pieces / threads * threads;
    let rest = pieces - full;
    let all = full as f64 * piece / machine.bandwidth(threads);
    let last = if rest == 0 { 0.0 } else { rest as f64 * piece / machine.bandwidth(rest) };
    all + last
}

/// Nanoseconds of a product with `rows` rows, `step` of them to a piece, where
/// arithmetic bounds it.
pub fn prefill_time(machine: Machine, matrix: Matrix, rows: u64, step: u64) -> f64 {
    let threads = machine.threads();
    let rounds = pieces(matrix, rows, step, threads).div_ceil(threads);
    let operations = 2 * matrix.piece_rows(rows, threads) * matrix.columns * step;
    rounds as f64 * operations as f64 / machine.core_speed
}

/// Milliseconds of a decode token: matrices, then barriers.
pub fn decode_token(machine: Machine) -> [f64; 2] {
    let reads: f64 = MATRICES.iter().map(|&matrix| matrix.count as f64 * decode_time(machine, matrix)).sum();
    [reads, BARRIERS as f64 * machine.barrier()].map(|ns| ns / 1e6)
}

/// Milliseconds of a prefill of `rows` rows, without attention, when `step`
/// says how many rows a piece has.
pub fn prefill(machine: Machine, rows: u64, step: impl Fn(Matrix) -> u64) -> f64 {
    let layers = MATRICES.iter().filter(|matrix| matrix.count > 1);
    let time = |&matrix: &Matrix| matrix.count as f64 * prefill_time(machine, matrix, rows, step(matrix));
    let output = decode_time(machine, MATRICES[4]);
    (layers.map(time).sum::<f64>() + output + BARRIERS as f64 * machine.barrier()) / 1e6
}

/// Bytes that copies under `cap` take in each further socket, of all bytes.
/// Each matrix has its home ranges in all sockets; a tenth of its pieces is
/// taken by a thread of another one.
pub fn copies(machine: Machine, cap: u64) -> [u64; 2] {
    let weights: Vec<Candidate> = MATRICES
        .iter()
        .flat_map(|matrix| (0..matrix.count).map(|_| matrix.bytes()))
        .map(|bytes| Candidate { bytes, remote: bytes / 10 })
        .collect();
    let copied = chosen(&weights, machine.sockets as usize, cap);
    [copied.iter().map(|&index| weights[index].bytes).sum(), weights.iter().map(|weight| weight.bytes).sum()]
}

/// The tables of `docs/scaling.md`.
pub fn report() -> String {
    let mut text = String::new();
    write_report(&mut text).expect("a string takes any text");
    text
}

fn write_report(text: &mut String) -> fmt::Result {
    const ROWS: u64 = 512;
    writeln!(text, "Pieces of a decode task, and pieces for each thread:\n")?;
    writeln!(text, "| machine | q+k+v | o | gate+up | down | output |\n|---|--:|--:|--:|--:|--:|")?;
    for machine in MACHINES {
        write!(text, "| {} |", machine.name)?;
        for matrix in MATRICES {
            let pieces = pieces(matrix, 1, 1, machine.threads());
            write!(text, " {pieces} ({:.1}) |", pieces as f64 / machine.threads() as f64)?;
        }
        writeln!(text)?;
    }
    writeln!(text, "\nA decode token, in milliseconds ({BARRIERS} barriers):\n")?;
    writeln!(
        text,
        "| machine | matrices | bound by memory alone | one barrier, us | all barriers | token/s |"
    )?;
    writeln!(text, "|---|--:|--:|--:|--:|--:|")?;
    let bytes: u64 = MATRICES.iter().map(|matrix| matrix.count * matrix.bytes()).sum();
    for machine in MACHINES {
        let [reads, barriers] = decode_token(machine);
        let bound = bytes as f64 / machine.bandwidth(machine.threads()) / 1e6;
        let (barrier, speed) = (machine.barrier() / 1e3, 1e3 / (reads + barriers));
        writeln!(
            text,
            "| {} | {reads:.2} | {bound:.2} | {barrier:.1} | {barriers:.2} | {speed:.0} |",
            machine.name
        )?;
    }
    writeln!(
        text,
        "\nA prefill of {ROWS} rows without attention; rows of a piece for q+k+v, o, gate+up, down:\n"
    )?;
    writeln!(text, "| machine | all rows in a piece, ms | rows of a piece when cut | cut, ms | token/s |")?;
    writeln!(text, "|---|--:|--:|--:|--:|")?;
    for machine in MACHINES {
        let step = |matrix| prefill_rows(matrix, ROWS, machine.threads());
        let (whole, cut) = (prefill(machine, ROWS, |_| ROWS), prefill(machine, ROWS, step));
        let steps: Vec<String> = MATRICES[..4].iter().map(|&matrix| step(matrix).to_string()).collect();
        let speed = ROWS as f64 / cut * 1e3;
        writeln!(text, "| {} | {whole:.1} | {} | {cut:.1} | {speed:.0} |", machine.name, steps.join(", "))?;
    }
    writeln!(text, "\nMegabytes of copies in each further socket, of all matrices:\n")?;
    writeln!(text, "| machine | cap 64 MB | cap 256 MB | no cap |\n|---|--:|--:|--:|")?;
    for machine in MACHINES {
        let cell = |cap| copies(machine, cap).map(|bytes| format!("{:.0}", bytes as f64 / 1e6)).join(" of ");
        let cells = [64_000_000, 256_000_000, u64::MAX].map(cell).join(" | ");
        writeln!(text, "| {} | {cells} |", machine.name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of the model's matrices in Q4_0: 16 layers and the output matrix.
    #[test]
    fn the_matrices_are_those_of_the_model() {
        let bytes: u64 = MATRICES.iter().map(|matrix| matrix.count * matrix.bytes()).sum();
        assert_eq!(bytes, 695_107_584);
    }

    #[test]
    fn one_thread_is_bound_by_itself_alone() {
        let one = Machine { cores: 1, sockets: 1, ..MACHINES[0] };
        let [reads, barriers] = decode_token(one);
        assert!((reads - 695.107_584 / 17.3).abs() < 1e-6, "{reads}");
        assert_eq!(barriers, 0.0);
    }

    #[test]
    fn no_prediction_beats_the_memory_or_the_cores() {
        for machine in MACHINES {
            let bound = 695.107_584 / machine.bandwidth(machine.threads());
            assert!(decode_token(machine)[0] >= bound * (1.0 - 1e-9), "{}", machine.name);
            let operations: u64 =
                MATRICES[..4].iter().map(|matrix| 2 * matrix.count * matrix.rows * matrix.columns).sum();
            let least = 512.0 * operations as f64 / machine.core_speed / machine.threads() as f64 / 1e6;
            let cut = prefill(machine, 512, |matrix| prefill_rows(matrix, 512, machine.threads()));
            assert!(cut >= least && cut <= prefill(machine, 512, |_| 512), "{}", machine.name);
        }
    }

    #[test]
    fn rows_are_cut_only_where_threads_would_wait() {
        let [_, o, gate, ..] = MATRICES;
        assert_eq!([8, 64, 192].map(|threads| prefill_rows(o, 512, threads)), [512, 128, 64]);
        assert_eq!([8, 64, 192].map(|threads| prefill_rows(gate, 512, threads)), [512, 512, 128]);
        assert_eq!(prefill_rows(o, 20, 192), 20);
    }

    /// Up to four bands of each matrix are a piece where threads have enough of
    /// them, and gate and up are one.
    #[test]
    fn pieces_are_those_of_the_backend() {
        let [qkv, o, gate, _, output] = MATRICES;
        let decode = |matrix| [8, 64, 192].map(|threads| pieces(matrix, 1, 1, threads));
        assert_eq!([qkv, o, gate].map(decode), [[32, 96, 96], [32, 64, 64], [64, 256, 256]]);
        assert_eq!(decode(output), [1002; 3]);
        assert_eq!(pieces(output, 512, 512, 8), 501, "eight bands in prefill");
    }

    #[test]
    fn the_document_holds_what_is_computed() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/scaling.md");
        let document = std::fs::read_to_string(path).unwrap();
        assert!(document.contains(&report()), "docs/scaling.md is not what this prints:\n{}", report());
    }
}
