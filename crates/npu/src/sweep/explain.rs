//! Why one mapping is faster than another: launch by launch where the time
//! goes, and which measured mechanism each gain rests on.

use std::fmt;

use girih_tensor::Result;
use serde::Serialize;

use super::{Bound, Timed, Weighed};
use crate::Target;
use crate::form::groups::{ArrayProgram, KernelLaunch};
use crate::kernel::Table;
use crate::pass;
use crate::sim::{Cycle, Report};

/// Two mappings over the same steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The names of both.
    pub names: [String; 2],
    /// Each step.
    pub steps: Vec<StepRow>,
}

/// A step by both mappings; times in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepRow {
    /// The graph's key.
    pub key: String,
    /// Array, host, and passing bytes between them.
    pub millis: [[f64; 3]; 2],
    /// Of the array: dispatches, configurations, and the rest.
    pub array: [[f64; 3]; 2],
    /// Dispatches.
    pub submissions: [u64; 2],
    /// Launches by name, the largest gain first.
    pub launches: Vec<LaunchRow>,
}

/// All launches of one name in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchRow {
    /// The name.
    pub name: String,
    /// By both mappings; none where a mapping leaves it to the host.
    pub parts: [Option<LaunchPart>; 2],
    /// What makes the second faster.
    pub mechanisms: Vec<Mechanism>,
}

/// The launches of a name by one mapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchPart {
    /// How many.
    pub runs: u64,
    /// Milliseconds of all of them, without configuring.
    pub millis: f64,
    /// Milliseconds of configuring for them.
    pub configure_millis: f64,
    /// The tiling as the mapping says it, or the herd.
    pub tiling: String,
    /// Cores.
    pub cores: u32,
    /// What one of them cannot be faster than.
    pub bound: Bound,
    /// Cycles of one of them.
    pub cycles: Cycle,
    /// What holds it.
    pub binds: &'static str,
    /// The share of its cores' time that is within calls.
    pub busy: f64,
    /// Multiplications of its busiest core for each cycle within calls.
    pub macs_per_cycle: f64,
}

/// Something that makes a launch faster, and which published rows hold the
/// simulator to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mechanism {
    /// Operands come from DRAM less often.
    FewerBytes,
    /// Longer contiguous runs.
    LongerRuns,
    /// More cores share the work.
    MoreCores,
    /// Fewer cores, which take less to configure.
    SmallerDesign,
    /// Longer inner loops in a call.
    DeeperCalls,
    /// Transfers run beside calls.
    Overlap,
}

impl Mechanism {
    /// What it is, and the rows that exercise it.
    pub fn grounds(self) -> &'static str {
        match self {
            Mechanism::FewerBytes => {
                "fewer bytes from DRAM: GEMM rows of the same shape with 64 and 128 columns in a tile, GEMV rows"
            }
            Mechanism::LongerRuns => {
                "longer runs in DRAM: drained GEMM rows, and the rows k_mt = k_ct of arXiv 2512.13282"
            }
            Mechanism::MoreCores => {
                "more cores: add on 1, 2, 4 and 8 columns, RMSNorm, RoPE and GELU on several herds; all of a \
                 column receive the same words, as in every GEMM and FlashAttention row"
            }
            Mechanism::SmallerDesign => {
                "less to configure: FlashAttention and fused-cast GEMM against small designs, decode's programs"
            }
            Mechanism::DeeperCalls => {
                "longer inner loops: tiles of tables 1 and 3 of arXiv 2512.13282, GEMV rows of 2 and 8 rows a call"
            }
            Mechanism::Overlap => {
                "transfers beside calls: add, SiLU and RMSNorm rows, whose buffers take turns, against GEMV rows, \
                 whose do not"
            }
        }
    }
}

/// Compares two mappings of the same graphs.
///
/// # Errors
/// When a launch has a kernel without times.
pub fn explain(keys: &[String], target: &Target, both: [&Weighed; 2]) -> Result<Comparison> {
    let table = Table::of(target)?;
    let mut steps = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let timed = both.map(|weighed| &weighed.steps[number]);
        let [from, to] = timed.map(|step| parts(step, target, &table));
        let (from, mut to) = (from?, to?);
        let mut launches = Vec::new();
        for (name, part) in from {
            let at = to.iter().position(|(other, _)| *other == name);
            launches.push(LaunchRow::new(name, [Some(part), at.map(|at| to.remove(at).1)]));
        }
        launches.extend(to.into_iter().map(|(name, part)| LaunchRow::new(name, [None, Some(part)])));
        launches.sort_by(|a, b| b.gain().total_cmp(&a.gain()));
        let millis = timed.map(|step| step.seconds(target).map(|seconds| seconds * 1e3));
        let array = timed.map(|step| array_millis(step, target));
        let submissions = timed.map(|step| step.estimate.ledger.submissions);
        steps.push(StepRow { key: key.clone(), millis, array, submissions, launches });
    }
    Ok(Comparison { names: both.map(|weighed| weighed.mapping.name.clone()), steps })
}

/// Dispatches, configurations and the rest of a step, in milliseconds.
fn array_millis(step: &Timed, target: &Target) -> [f64; 3] {
    let of = |part: &dyn Fn(&Report) -> Cycle| -> f64 {
        let cycles = step.estimate.programs.iter().map(|timed| timed.runs * part(&timed.report)).sum();
        target.seconds(cycles) * 1e3
    };
    let configure = of(&|report| report.configure);
    let launches = of(&|report| report.cycles - report.dispatch) - configure;
    [step.seconds(target)[0] * 1e3 - configure - launches, configure, launches]
}

/// The launches of a step, those of one name together.
fn parts(step: &Timed, target: &Target, table: &Table) -> Result<Vec<(String, LaunchPart)>> {
    let mut parts: Vec<(String, LaunchPart)> = Vec::new();
    for (program, timed) in step.compiled.groups.programs.iter().zip(&step.estimate.programs) {
        let mut before = timed.report.dispatch;
        for (task, launch) in program.launches.iter().zip(&timed.report.launches) {
            let configure = launch.begin - before;
            before = launch.begin + launch.cycles;
            let millis = |cycles: Cycle| target.seconds(cycles * timed.runs) * 1e3;
            // Parts of one product have a number behind their name.
            let name = task.name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('.');
            match parts.iter_mut().find(|(known, _)| known == name) {
                Some((_, part)) => {
                    part.runs += timed.runs;
                    part.millis += millis(launch.cycles);
                    part.configure_millis += millis(configure);
                }
                None => {
                    let mut part = part(program, task, target, table)?;
                    let busiest = launch.cores.iter().max_by_key(|core| core.busy);
                    part.macs_per_cycle =
                        busiest.map_or(0.0, |core| core.macs as f64 / core.busy.max(1) as f64);
                    let busy: u64 = launch.cores.iter().map(|core| core.busy).sum();
                    part.busy = busy as f64 / (launch.cycles.max(1) * launch.cores.len() as u64) as f64;
                    part.runs = timed.runs;
                    part.cycles = launch.cycles;
                    part.binds = part.bound.binds(launch.cycles);
                    part.millis = millis(launch.cycles);
                    part.configure_millis = millis(configure);
                    parts.push((name.to_owned(), part));
                }
            }
        }
    }
    Ok(parts)
}

/// What is known of a launch before it runs.
fn part(program: &ArrayProgram, task: &KernelLaunch, target: &Target, table: &Table) -> Result<LaunchPart> {
    let (tiled, _) = pass::fit(program, task, target)?;
    let tiling = task.tiling.map_or_else(|| format!("herd={}", tiled.herd), |tiling| tiling.to_string());
    let cores = u32::from(tiled.herd.columns) * u32::from(tiled.herd.rows);
    let bound = Bound::of(&tiled, target, table)?;
    let (runs, millis, configure_millis, cycles, busy, macs_per_cycle) = (0, 0.0, 0.0, 0, 0.0, 0.0);
    let binds = "";
    Ok(LaunchPart {
        runs,
        millis,
        configure_millis,
        tiling,
        cores,
        bound,
        cycles,
        binds,
        busy,
        macs_per_cycle,
    })
}

impl LaunchPart {
    /// Milliseconds with configuring.
    pub fn total_millis(&self) -> f64 {
        self.millis + self.configure_millis
    }

    /// How much longer it takes than if its busiest part never waited.
    fn slack(&self) -> f64 {
        self.cycles as f64 / self.bound.cycles().max(1) as f64
    }
}

impl LaunchRow {
    fn new(name: String, parts: [Option<LaunchPart>; 2]) -> LaunchRow {
        let mechanisms = match &parts {
            [Some(from), Some(to)] if to.total_millis() < from.total_millis() * 0.99 => mechanisms(from, to),
            _ => Vec::new(),
        };
        LaunchRow { name, parts, mechanisms }
    }

    /// Milliseconds that the second mapping saves.
    pub fn gain(&self) -> f64 {
        let [from, to] = [0, 1].map(|at| self.parts[at].as_ref().map_or(0.0, LaunchPart::total_millis));
        from - to
    }
}

/// What differs between two tilings of a launch, in the second one's favour.
fn mechanisms(from: &LaunchPart, to: &LaunchPart) -> Vec<Mechanism> {
    let checks = [
        (to.bound.dram_bytes * 100 < from.bound.dram_bytes * 95, Mechanism::FewerBytes),
        (to.bound.run_bytes > from.bound.run_bytes * 1.2 && from.binds == "DRAM", Mechanism::LongerRuns),
        (to.cores > from.cores && to.millis < from.millis, Mechanism::MoreCores),
        (to.cores < from.cores && to.configure_millis < from.configure_millis, Mechanism::SmallerDesign),
        (to.macs_per_cycle > from.macs_per_cycle * 1.05, Mechanism::DeeperCalls),
        (to.slack() < from.slack() * 0.9, Mechanism::Overlap),
    ];
    checks.into_iter().filter(|(holds, _)| *holds).map(|(_, mechanism)| mechanism).collect()
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = Vec::new();
        for step in &self.steps {
            writeln!(f, "{}: {} against {}", step.key, self.names[1], self.names[0])?;
            step.totals(f)?;
            for row in &step.launches {
                row.print(f)?;
                seen.extend(row.mechanisms.iter().copied());
            }
        }
        for mechanism in ALL.into_iter().filter(|mechanism| seen.contains(mechanism)) {
            writeln!(f, "({}) {}", mechanism.letter(), mechanism.grounds())?;
        }
        Ok(())
    }
}

const ALL: [Mechanism; 6] = [
    Mechanism::FewerBytes,
    Mechanism::LongerRuns,
    Mechanism::MoreCores,
    Mechanism::SmallerDesign,
    Mechanism::DeeperCalls,
    Mechanism::Overlap,
];

impl Mechanism {
    /// The letter of its footnote.
    fn letter(self) -> char {
        let at = ALL.iter().position(|known| *known == self).unwrap_or(0);
        char::from(b'a' + at as u8)
    }
}

impl StepRow {
    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, [from, to]: [f64; 2]| {
            let ratio = if to > 0.0 { from / to } else { 1.0 };
            writeln!(f, "  {name:<28} {from:>9.2} ms {to:>9.2} ms {ratio:>6.2}x")
        };
        line("array", [0, 1].map(|at| self.millis[at][0]))?;
        for (part, name) in ["  dispatches", "  configurations", "  launches"].into_iter().enumerate() {
            line(name, [0, 1].map(|at| self.array[at][part]))?;
        }
        line("host, counted", [0, 1].map(|at| self.millis[at][1]))?;
        line("sync and copies", [0, 1].map(|at| self.millis[at][2]))?;
        writeln!(f, "  {:<28} {:>9}    {:>9}", "submissions", self.submissions[0], self.submissions[1])
    }
}

impl LaunchRow {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters: String = self.mechanisms.iter().map(|mechanism| mechanism.letter()).collect();
        writeln!(f, "  {:<28} saves {:>8.2} ms {letters}", self.name, self.gain())?;
        for part in self.parts.iter().flatten() {
            let LaunchPart { runs, millis, configure_millis, tiling, bound, binds, busy, .. } = part;
            let megabytes = bound.dram_bytes as f64 / 1e6;
            writeln!(
                f,
                "    {millis:>8.2} ms + {configure_millis:>6.2} for {runs} of {tiling}: {binds}, cores busy {:.0} %, \
                 {:.1} MAC/cycle, DRAM {megabytes:.1} MB in runs of {:.0} B",
                busy * 100.0,
                part.macs_per_cycle,
                bound.run_bytes
            )?;
        }
        Ok(())
    }
}
