//! Explains why one mapping is faster than another: the time of each launch, and
//! the mechanism behind each gain.

use std::fmt;

use girih_npu::Target;
use girih_npu::form::groups::{ArrayProgram, KernelLaunch};
use girih_npu::kernel::KernelTimes;
use girih_npu::pass;
use girih_npu::sim::{Cycle, SimReport};
use girih_tensor::Result;
use serde::Serialize;

use super::bound::LaunchBound;
use super::mechanism::Mechanism;
use super::timing::{MappedStep, TimedMapping};

/// A comparison of two mappings over the same steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MappingComparison {
    /// The names of both mappings.
    pub names: [String; 2],
    /// The steps.
    pub steps: Vec<StepComparison>,
}

/// A step with both mappings; times are in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepComparison {
    /// The graph's key.
    pub key: String,
    /// Times of the array, of the host, and of transfers between them.
    pub millis: [[f64; 3]; 2],
    /// Array time: dispatches, configurations, and the rest.
    pub array: [[f64; 3]; 2],
    /// Dispatches.
    pub submissions: [u64; 2],
    /// Launches by name, sorted by gain, largest first.
    pub launches: Vec<LaunchComparison>,
}

/// All launches of one name in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaunchComparison {
    /// The name.
    pub name: String,
    /// The launches with each mapping; none if a mapping runs them on the host.
    pub parts: [Option<MappedLaunches>; 2],
    /// The mechanisms that make the second mapping faster.
    pub mechanisms: Vec<Mechanism>,
}

/// The launches of one name with one mapping.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MappedLaunches {
    /// The number of launches.
    pub runs: u64,
    /// Milliseconds of all launches, without configuration.
    pub millis: f64,
    /// Milliseconds of configuring the array for them.
    pub configure_millis: f64,
    /// The tiling as the mapping states it, or the herd.
    pub tiling: String,
    /// Cores in use.
    pub cores: u32,
    /// The lower bound of one launch.
    pub bound: LaunchBound,
    /// Cycles of one launch.
    pub cycles: Cycle,
    /// The part that limits it.
    pub binds: &'static str,
    /// The share of its cores' time within calls.
    pub busy: f64,
    /// Multiply-accumulates per cycle of its busiest core, within calls.
    pub macs_per_cycle: f64,
    /// The mechanisms without a published row that it uses.
    pub unpublished: Vec<Mechanism>,
}

/// Compares two mappings of the same graphs.
///
/// # Errors
/// When a launch uses a kernel without times.
pub fn explain(keys: &[String], target: &Target, both: [&TimedMapping; 2]) -> Result<MappingComparison> {
    let table = KernelTimes::of(target)?;
    let mut steps = Vec::new();
    for (number, key) in keys.iter().enumerate() {
        let timed = both.map(|one| &one.steps[number]);
        let [from, to] = timed.map(|step| parts(step, target, &table));
        let (from, mut to) = (from?, to?);
        let mut launches = Vec::new();
        for (name, part) in from {
            let at = to.iter().position(|(other, _)| *other == name);
            launches.push(LaunchComparison::new(name, [Some(part), at.map(|at| to.remove(at).1)]));
        }
        launches.extend(to.into_iter().map(|(name, part)| LaunchComparison::new(name, [None, Some(part)])));
        launches.sort_by(|a, b| b.gain().total_cmp(&a.gain()));
        let millis = timed.map(|step| step.seconds(target).map(|seconds| seconds * 1e3));
        let array = timed.map(|step| array_millis(step, target));
        let submissions = timed.map(|step| step.estimate.ledger.submissions);
        steps.push(StepComparison { key: key.clone(), millis, array, submissions, launches });
    }
    Ok(MappingComparison { names: both.map(|one| one.mapping.name.clone()), steps })
}

/// Dispatches, configurations and the rest of a step, in milliseconds.
fn array_millis(step: &MappedStep, target: &Target) -> [f64; 3] {
    let of = |part: &dyn Fn(&SimReport) -> Cycle| -> f64 {
        let cycles = step.estimate.programs.iter().map(|timed| timed.runs * part(&timed.report)).sum();
        target.seconds(cycles) * 1e3
    };
    let configure = of(&|report| report.configure);
    let launches = of(&|report| report.cycles - report.dispatch) - configure;
    [step.seconds(target)[0] * 1e3 - configure - launches, configure, launches]
}

/// The launches of a step, added up by name.
fn parts(step: &MappedStep, target: &Target, table: &KernelTimes) -> Result<Vec<(String, MappedLaunches)>> {
    let mut parts: Vec<(String, MappedLaunches)> = Vec::new();
    for (program, timed) in step.compiled.groups.programs.iter().zip(&step.estimate.programs) {
        let mut before = timed.report.dispatch;
        for (task, launch) in program.launches.iter().zip(&timed.report.launches) {
            let configure = launch.begin - before;
            before = launch.begin + launch.cycles;
            let millis = |cycles: Cycle| target.seconds(cycles * timed.runs) * 1e3;
            // Parts of one matmul differ by a number after the name.
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

/// The tiling and bound of a launch; its times are still zero.
fn part(
    program: &ArrayProgram,
    task: &KernelLaunch,
    target: &Target,
    table: &KernelTimes,
) -> Result<MappedLaunches> {
    let (tiled, _) = pass::fit(program, task, target)?;
    let tiling = task.tiling.map_or_else(|| format!("herd={}", tiled.herd), |tiling| tiling.to_string());
    let cores = u32::from(tiled.herd.columns) * u32::from(tiled.herd.rows);
    let bound = LaunchBound::of(&tiled, target, table)?;
    let (runs, millis, configure_millis, cycles, busy, macs_per_cycle) = (0, 0.0, 0.0, 0, 0.0, 0.0);
    let (binds, unpublished) = ("", Mechanism::unpublished(&task.kernel, task.tiling.as_ref()));
    Ok(MappedLaunches {
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
        unpublished,
    })
}

impl MappedLaunches {
    /// Milliseconds including configuration.
    pub fn total_millis(&self) -> f64 {
        self.millis + self.configure_millis
    }

    /// Its cycles relative to its lower bound.
    fn slack(&self) -> f64 {
        self.cycles as f64 / self.bound.cycles().max(1) as f64
    }
}

impl LaunchComparison {
    fn new(name: String, parts: [Option<MappedLaunches>; 2]) -> LaunchComparison {
        let mechanisms = match &parts {
            [Some(from), Some(to)] if to.total_millis() < from.total_millis() * 0.99 => mechanisms(from, to),
            [None, Some(to)] => to.unpublished.clone(),
            _ => Vec::new(),
        };
        LaunchComparison { name, parts, mechanisms }
    }

    /// Milliseconds that the second mapping saves.
    pub fn gain(&self) -> f64 {
        let [from, to] = [0, 1].map(|at| self.parts[at].as_ref().map_or(0.0, MappedLaunches::total_millis));
        from - to
    }
}

/// The mechanisms that favour the second of two tilings of a launch.
fn mechanisms(from: &MappedLaunches, to: &MappedLaunches) -> Vec<Mechanism> {
    let checks = [
        (to.bound.dram_bytes * 100 < from.bound.dram_bytes * 95, Mechanism::FewerBytes),
        (to.bound.run_bytes > from.bound.run_bytes * 1.2 && from.binds == "DRAM", Mechanism::LongerRuns),
        (to.cores > from.cores && to.millis < from.millis, Mechanism::MoreCores),
        (to.cores < from.cores && to.configure_millis < from.configure_millis, Mechanism::SmallerDesign),
        (to.macs_per_cycle > from.macs_per_cycle * 1.05, Mechanism::DeeperCalls),
        (to.slack() < from.slack() * 0.9, Mechanism::Overlap),
    ];
    let seen = checks.into_iter().filter(|(holds, _)| *holds).map(|(_, mechanism)| mechanism);
    seen.chain(to.unpublished.iter().copied().filter(|one| !from.unpublished.contains(one))).collect()
}

impl fmt::Display for MappingComparison {
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
        for mechanism in Mechanism::ALL.into_iter().filter(|mechanism| seen.contains(mechanism)) {
            write!(f, "({}) {}: ", mechanism.letter(), mechanism.words())?;
            match mechanism.published_rows() {
                Some(rows) => writeln!(f, "{rows}")?,
                None => writeln!(f, "no published row")?,
            }
        }
        Ok(())
    }
}

impl StepComparison {
    /// What limits launches, and the milliseconds of those that it limits with each mapping. The same
    /// launch may have different limits with the two mappings.
    pub fn limits(&self) -> Vec<(&'static str, [f64; 2])> {
        let limited_by = |limit: &str, at: usize| -> f64 {
            let parts = self.launches.iter().filter_map(|row| row.parts[at].as_ref());
            parts.filter(|part| part.binds == limit).map(|part| part.millis).sum()
        };
        let all = LaunchBound::LIMITS.map(|limit| (limit, [0, 1].map(|at| limited_by(limit, at))));
        all.into_iter().filter(|(_, millis)| *millis != [0.0, 0.0]).collect()
    }

    fn totals(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, [from, to]: [f64; 2]| {
            write!(f, "  {name:<28} {from:>9.2} ms {to:>9.2} ms")?;
            if from > 0.0 && to > 0.0 { writeln!(f, " {:>6.2}x", from / to) } else { writeln!(f) }
        };
        line("array", [0, 1].map(|at| self.millis[at][0]))?;
        for (part, name) in ["  dispatches", "  configurations", "  launches"].into_iter().enumerate() {
            line(name, [0, 1].map(|at| self.array[at][part]))?;
        }
        for (limit, millis) in self.limits() {
            line(&format!("    limited by {limit}"), millis)?;
        }
        line("host, counted", [0, 1].map(|at| self.millis[at][1]))?;
        line("sync and copies", [0, 1].map(|at| self.millis[at][2]))?;
        writeln!(f, "  {:<28} {:>9}    {:>9}", "submissions", self.submissions[0], self.submissions[1])
    }
}

impl LaunchComparison {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters: String = self.mechanisms.iter().map(|mechanism| mechanism.letter()).collect();
        writeln!(f, "  {:<28} saves {:>8.2} ms {letters}", self.name, self.gain())?;
        for part in self.parts.iter().flatten() {
            let MappedLaunches { runs, millis, configure_millis, tiling, bound, binds, busy, .. } = part;
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
