//! Published measurements beside the simulator: each row of the tables is
//! simulated with the tile configuration that was measured.
//!
//! The designs are built by hand, as the public builders lay them out. One set
//! of figures per target and per kernel entry explains all rows; what was
//! fitted to which of them stands in the target and kernel files.

mod attend;
mod design;
mod gemm;
mod gemv;
mod paper;
mod rows;
mod tables;

use std::fmt;

use girih_tensor::{Error, Result};

use crate::form::schedule::Schedule;
use crate::memory::SimMemory;
use crate::sim::{EventOrder, SimUnwatched, Simulator};
use attend::Attend;
use design::{Design, divides, program};
use gemm::Gemm;
use gemv::Gemv;
use paper::Product;
use rows::Walk;

/// A published time.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The file that it stands in.
    pub table: String,
    /// What was measured: shape, tile and variant.
    pub label: String,
    /// Microseconds from dispatch to end.
    pub micros: f64,
    /// The target that it was measured on.
    pub target: &'static str,
    /// Whether every dispatch configures the array, as programs in ELF form do.
    elf: bool,
    plan: Plan,
}

/// What has to be built to simulate a measurement.
#[derive(Clone, Debug)]
enum Plan {
    Gemm(Gemm),
    /// A product in f32, then a launch that rounds it.
    GemmAndCast(Gemm),
    Gemv(Gemv),
    /// With contiguous parts for the tiles, or pieces in turn.
    Walk(Walk, bool),
    Attend(Attend),
    Product(Product),
    /// Launches one after another.
    Program(Vec<Plan>),
}

/// A measurement and what the simulator says.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was measured.
    pub measured: Measurement,
    /// Simulated microseconds.
    pub micros: f64,
}

/// All outcomes, with medians and percentiles of their errors.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// In the order of the tables.
    pub outcomes: Vec<Outcome>,
}

impl Measurement {
    fn new(table: &str, label: String, micros: f64, plan: Plan) -> Measurement {
        Measurement { table: table.to_owned(), label, micros, target: "xdna2-strix", elf: false, plan }
    }

    fn elf(self) -> Measurement {
        Measurement { elf: true, ..self }
    }

    /// The program that was measured.
    pub fn schedule(&self) -> Schedule {
        let mut designs = Vec::new();
        self.plan.designs(&mut designs);
        program("measured", self.target, designs)
    }
}

impl Plan {
    /// Whether it can be built: the tables are read, not trusted.
    ///
    /// # Errors
    /// When sizes do not fit their tiles.
    fn fits(&self) -> Result<()> {
        match self {
            Plan::Gemm(gemm) => gemm.fits(),
            Plan::GemmAndCast(gemm) => {
                gemm.fits()?;
                divides("the number of results to round", gemm.m * gemm.n, CAST_TILE)?;
                cast(gemm.m * gemm.n).fits()
            }
            Plan::Gemv(gemv) => gemv.fits(),
            Plan::Walk(walk, _) => walk.fits(),
            Plan::Attend(attend) => attend.fits(),
            Plan::Product(product) => product.fits(),
            Plan::Program(parts) => parts.iter().try_for_each(Plan::fits),
        }
    }

    fn designs(&self, all: &mut Vec<Design>) {
        match self {
            Plan::Gemm(gemm) => all.push(gemm.design("gemm")),
            Plan::GemmAndCast(gemm) => {
                all.extend([gemm.design("gemm"), cast(gemm.m * gemm.n).design("cast", false)]);
            }
            Plan::Gemv(gemv) => all.push(gemv.design("gemv")),
            Plan::Walk(walk, parts) => all.push(walk.design(walk.entry, *parts)),
            Plan::Attend(attend) => all.push(attend.design("attend")),
            Plan::Product(product) => all.push(product.design("product")),
            Plan::Program(parts) => parts.iter().for_each(|part| part.designs(all)),
        }
    }
}

/// Values that a call of the launch that rounds takes.
const CAST_TILE: u64 = 4096;

/// The launch that rounds `n` values to bf16.
fn cast(n: u64) -> Walk {
    Walk {
        entry: "store_bf16",
        numbers: vec![CAST_TILE],
        inputs: vec![CAST_TILE * 4],
        output: CAST_TILE * 2,
        constants: Vec::new(),
        calls: n / CAST_TILE,
        herd: (8, 1),
    }
}

/// Reads tables, given as name and text, and simulates all their rows that
/// `wanted` names by a part of table or label; an empty part names all. `array`
/// yields the array of a target's name.
///
/// # Errors
/// When a table cannot be read or a run has a fault.
pub fn validate(
    files: &[(String, String)],
    wanted: &str,
    array: &dyn Fn(&str) -> Result<Simulator>,
) -> Result<Validation> {
    let mut validation = Validation::default();
    let mut simulators: Vec<Simulator> = Vec::new();
    for (name, text) in files {
        for measured in tables::measurements(name, text)? {
            if !measured.table.contains(wanted) && !measured.label.contains(wanted) {
                continue;
            }
            let known = simulators.iter().position(|one| one.target().name == measured.target);
            let at = match known {
                Some(at) => at,
                None => {
                    simulators.push(array(measured.target)?);
                    simulators.len() - 1
                }
            };
            let micros = time(&mut simulators[at], &measured)
                .map_err(|error| error.of(format!("{} {}", measured.table, measured.label)))?;
            validation.outcomes.push(Outcome { measured, micros });
        }
    }
    Ok(validation)
}

/// Microseconds of a program that runs again and again: the second run finds
/// the array as the first has left it.
fn time(simulator: &mut Simulator, measured: &Measurement) -> Result<f64> {
    let schedule = measured.schedule();
    let mut run = |forget: bool| {
        if forget {
            simulator.forget();
        }
        simulator.run(&schedule, &[], &mut SimMemory::TimeOnly, &mut SimUnwatched, EventOrder::Earliest)
    };
    run(true).map_err(Error::from)?;
    let report = run(measured.elf).map_err(Error::from)?;
    Ok(simulator.target().seconds(report.cycles) * 1e6)
}

impl Outcome {
    /// The simulated time over the measured one, less one.
    pub fn error(&self) -> f64 {
        self.micros / self.measured.micros - 1.0
    }
}

impl Validation {
    /// Median and 90th percentile of the sizes of the errors of the outcomes
    /// that `keep` keeps, and how many they are.
    pub fn spread(&self, keep: impl Fn(&Outcome) -> bool) -> (f64, f64, usize) {
        let mut errors: Vec<f64> = self
            .outcomes
            .iter()
            .filter(|outcome| keep(outcome))
            .map(|outcome| outcome.error().abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        let at = |part: f64| errors.get(((errors.len() as f64 * part).ceil() as usize).max(1) - 1).copied();
        (at(0.5).unwrap_or(0.0), at(0.9).unwrap_or(0.0), errors.len())
    }
}

/// The array time of a whole pass through the model of the breakdown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassTime {
    /// `prefill` or `decode`.
    pub phase: &'static str,
    /// Simulated milliseconds.
    pub millis: f64,
    /// What was published, in milliseconds: from, to.
    pub published: (f64, f64),
}

impl Validation {
    /// The array time of whole passes, from the programs of the breakdown, if
    /// all of them are among the outcomes.
    pub fn pass_times(&self) -> Vec<PassTime> {
        let time = |pass: &Pass| {
            let millis = |&(name, times): &(&str, f64)| {
                let label = format!("{} {name}", pass.phase);
                let outcome = self.outcomes.iter().find(|outcome| outcome.measured.label == label)?;
                Some(outcome.micros * times * 1e-3)
            };
            let millis = pass.programs.iter().map(millis).sum::<Option<f64>>()?;
            Some(PassTime { phase: pass.phase, millis, published: pass.millis })
        };
        PASSES.iter().filter_map(time).collect()
    }
}

/// Published work of the host in a pass of the breakdown.
#[derive(Clone, Debug, PartialEq)]
pub struct HostTime {
    /// `prefill` or `decode`.
    pub phase: String,
    /// What it is.
    pub work: String,
    /// Milliseconds in the pass.
    pub millis: f64,
}

/// The rows of the breakdown that are none of the array: what processors
/// compute, and buffer objects written and read. Rows without a plain number
/// are left out.
pub fn host_times(breakdown: &str) -> Vec<HostTime> {
    let time = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        let (phase, work, millis) = (fields.first()?, fields.get(1)?, fields.get(5)?);
        let host = ["cpu ", "BO ", "python"].iter().any(|start| work.starts_with(start));
        let millis = millis.parse().ok().filter(|_| host)?;
        Some(HostTime { phase: (*phase).to_owned(), work: (*work).to_owned(), millis })
    };
    breakdown.lines().filter_map(time).collect()
}

/// Rows and layers of the model of the breakdown, and operations of the
/// products of one layer's prefill.
pub fn llama_layers() -> (u64, u64, u64) {
    const LAYERS: u64 = 16;
    let (rows, width, keys, inner) = tables::LLAMA;
    (rows, LAYERS, 2 * rows * width * (2 * width + 2 * keys + 3 * inner))
}

/// A pass through the model of the breakdown.
struct Pass {
    phase: &'static str,
    /// Its programs, and how often each runs.
    programs: &'static [(&'static str, f64)],
    /// What its array time was published to be, in milliseconds.
    millis: (f64, f64),
}

const PASSES: &[Pass] = &[
    Pass {
        phase: "prefill",
        programs: &[("o_ffn", 16.0), ("flash_attn", 16.0), ("rms_gemms_rope", 16.0), ("lm_head_gemv", 1.0)],
        millis: (1060.0, 1130.0),
    },
    Pass {
        phase: "decode",
        programs: &[("o_gemv_ffn", 16.0), ("rms_gemv_rope", 16.0), ("lm_head_gemv", 1.0)],
        millis: (82.0, 92.0),
    },
];

/// Published figures that contradict each other; no figure was bent to them.
pub const CONTRADICTIONS: &[&str] = &[
    "FlashAttention of 2048 rows takes 15.4-16.1 ms alone and 21.6 ms in the breakdown",
    "the head takes 8 x 2.19 ms by its own table and 13.5 ms in the breakdown",
    "the external product 2048x8192x2048 is published twice, 5 % apart",
];

/// Below this, the floor of a dispatch decides, in microseconds.
const FLOOR: f64 = 500.0;

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10} {:>10} {:>7}  row", "measured", "simulated", "error")?;
        let mut tables: Vec<&str> = Vec::new();
        for outcome in &self.outcomes {
            let Measurement { table, label, micros, target, .. } = &outcome.measured;
            if tables.last() != Some(&table.as_str()) {
                tables.push(table);
                writeln!(f, "# {table}, {target}")?;
            }
            let error = outcome.error() * 100.0;
            writeln!(f, "{micros:>8.0}us {:>8.0}us {error:>+6.1}%  {label}", outcome.micros)?;
        }
        let mut line = |name: &str, keep: &dyn Fn(&Outcome) -> bool| {
            let (median, high, count) = self.spread(keep);
            if count == 0 {
                return Ok(());
            }
            writeln!(f, "{:>6.1}% {:>6.1}% {count:>5}  {name}", median * 100.0, high * 100.0)
        };
        line("median, 90th percentile and number of all rows", &|_| true)?;
        line("rows of 0.5 ms or more", &|outcome| outcome.measured.micros >= FLOOR)?;
        line("GEMM and GEMV", &|outcome| {
            outcome.measured.table.contains("GEM") || outcome.measured.table.contains("gemm")
        })?;
        tables.iter().try_for_each(|table| line(table, &|outcome| outcome.measured.table == **table))?;
        for PassTime { phase, millis, published: (low, high) } in self.pass_times() {
            writeln!(f, "{phase} of the model: {millis:.1} ms of array time, published {low}-{high} ms")?;
        }
        CONTRADICTIONS.iter().try_for_each(|text| writeln!(f, "published figures contradict: {text}"))
    }
}
