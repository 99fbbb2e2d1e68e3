//! The search over tilings: every launch on its own, in timing mode, on all
//! threads. What is found does not depend on their number.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use girih_tensor::{Error, Result};

use super::Bound;
use crate::Target;
use crate::form::groups::{ArrayProgram, Groups, Kernel, KernelLaunch, StepAction};
use crate::form::schedule::{Argument, ArgumentRole};
use crate::form::tiling::Tiling;
use crate::kernel::Table;
use crate::memory::Memory;
use crate::pass::{self, NoDump, TileRule, tile};
use crate::sim::{Cycle, Order, Simulator, Unwatched};

/// A kernel that a model launches, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// The kernel; parts of one product are one kernel.
    pub kernel: Kernel,
    /// Its launches in all steps that are searched for together.
    pub launches: u64,
    /// How many of them find the array configured for another launch.
    pub configures: u64,
}

/// What was found for a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Searched {
    /// What it was found for.
    pub of: Use,
    /// The best tiling.
    pub tiling: Tiling,
    /// Cycles of a launch with it.
    pub cycles: Cycle,
    /// Cycles of configuring the array for it.
    pub configure: Cycle,
    /// What it cannot be faster than.
    pub bound: Bound,
    /// Tilings that divide the kernel and fit a core.
    pub space: usize,
    /// How many of them cannot be faster than the best by their bound alone:
    /// so many need no simulation.
    pub hopeless: usize,
}

/// The kernels of several graphs as they are cut. What an earlier cut of the
/// same graph has is not counted again.
pub(super) fn uses(cuts: &[Vec<Groups>]) -> Vec<Use> {
    let mut all: Vec<Use> = Vec::new();
    let mut place: BTreeMap<String, usize> = BTreeMap::new();
    for groups in cuts {
        let mut counted: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for cut in groups {
            let before: Vec<String> = counted.keys().cloned().collect();
            for (task, count) in tasks(cut) {
                let (kernel, name) = named(task.kernel);
                if before.contains(&name) {
                    continue;
                }
                place.entry(name.clone()).or_insert_with(|| {
                    all.push(Use { kernel, launches: 0, configures: 0 });
                    all.len() - 1
                });
                let [launches, configures] = counted.entry(name).or_default();
                *launches += count[0];
                *configures += count[1];
            }
        }
        for (name, [launches, configures]) in counted {
            let known = &mut all[place[&name]];
            known.launches += launches;
            known.configures += configures;
        }
    }
    all
}

/// A kernel without what tells parts of one product apart, and its name.
fn named(kernel: Kernel) -> (Kernel, String) {
    let kernel = match kernel {
        Kernel::Gemv { n, k, .. } => Kernel::Gemv { first: 0, n, k },
        other => other,
    };
    (kernel, TileRule::words(&kernel).join(" "))
}

/// Every launch of a step, with how often it runs and is configured for.
fn tasks(groups: &Groups) -> Vec<(&KernelLaunch, [u64; 2])> {
    let mut all = Vec::new();
    for (number, program) in groups.programs.iter().enumerate() {
        let runs = |step: &&StepAction| matches!(step, StepAction::Array { program, .. } if *program as usize == number);
        let runs = groups.steps.iter().filter(runs).count() as u64;
        let mut held: Option<String> = None;
        for task in &program.launches {
            let name = named(task.kernel).1;
            let again = held.replace(name.clone()) == Some(name);
            all.push((task, [runs, if again { 0 } else { runs }]));
        }
    }
    all
}

/// A tiling to be tried, the least that it takes, and where it stands.
struct Job {
    of: usize,
    tiling: Tiling,
    bound: Bound,
    least: u64,
}

/// What a run took: all launches and configurations, and one of each.
type Time = (u64, Cycle, Cycle);

/// Finds the best tiling of each kernel; `progress` is told how many of how
/// many tilings are done.
///
/// # Errors
/// When a kernel has no tiling that fits, or a run has a fault.
pub(super) fn search(
    uses: &[Use],
    target: &Target,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Searched>> {
    let table = Table::of(target)?;
    let mut jobs = Vec::new();
    for (of, one) in uses.iter().enumerate() {
        jobs.extend(jobs_of(of, one, target, &table)?);
    }
    let times = run_all(&jobs, uses, target, threads, progress)?;
    let mut found = Vec::new();
    for (of, one) in uses.iter().enumerate() {
        let own = || jobs.iter().zip(&times).filter(|(job, _)| job.of == of);
        let best = own().filter_map(|(job, time)| Some((job, (*time)?))).min_by_key(|(_, time)| time.0);
        let Some((job, (total, cycles, configure))) = best else {
            return Err(Error::new(format!("no tiling of {} fits {}", one.kernel, target.name)));
        };
        let (space, hopeless) = (own().count(), own().filter(|(job, _)| job.least >= total).count());
        let (of, tiling, bound) = (one.clone(), job.tiling, job.bound);
        found.push(Searched { of, tiling, cycles, configure, bound, space, hopeless });
    }
    Ok(found)
}

/// The tilings of a kernel, those with the lowest bound first.
fn jobs_of(of: usize, one: &Use, target: &Target, table: &Table) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for tiling in tile::space(&one.kernel, target) {
        if let Some(launch) = tile::build(&program(one.kernel, tiling).launches[0], tiling, target) {
            let bound = Bound::of(&launch, target, table)?;
            jobs.push(Job { of, tiling, bound, least: bound.cycles() * one.launches });
        }
    }
    jobs.sort_by_key(|job| job.least);
    Ok(jobs)
}

/// A program of one launch of this kernel.
pub(super) fn program(kernel: Kernel, tiling: Tiling) -> ArrayProgram {
    let roles = [ArgumentRole::Input, ArgumentRole::Input, ArgumentRole::Output];
    let arguments = kernel.operand_bytes().into_iter().zip(roles).enumerate();
    let arguments = arguments.map(|(i, (bytes, role))| Argument { name: format!("a{i}"), role, bytes });
    let name = kernel.name().to_owned();
    let launches =
        vec![KernelLaunch { name: name.clone(), kernel, arguments: vec![0, 1, 2], tiling: Some(tiling) }];
    ArrayProgram { name, arguments: arguments.collect(), launches }
}

/// Times every job that may still win; the others have no time. A job is left
/// out only if its bound is above a time that was reached, so what wins, the
/// first of the shortest times, is always among those that ran.
fn run_all(
    jobs: &[Job],
    uses: &[Use],
    target: &Target,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Option<Time>>> {
    let best: Vec<AtomicU64> = uses.iter().map(|_| AtomicU64::new(u64::MAX)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let times = Mutex::new(vec![None; jobs.len()]);
    let work = || -> Result<()> {
        let mut simulator = Simulator::new(target)?;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(job) = jobs.get(at) else { return Ok(()) };
            if job.least <= best[job.of].load(Ordering::Relaxed) {
                let time = time(job, &uses[job.of], &mut simulator)?;
                if let Some((total, ..)) = time {
                    best[job.of].fetch_min(total, Ordering::Relaxed);
                }
                times.lock().unwrap_or_else(PoisonError::into_inner)[at] = time;
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, jobs.len());
        }
    };
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let lost = || Err(Error::new("a thread of the search ended early"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| lost())).collect()
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    Ok(times.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Compiles and times one tiling; none if a tile runs out of something.
fn time(job: &Job, one: &Use, simulator: &mut Simulator) -> Result<Option<Time>> {
    let program = program(one.kernel, job.tiling);
    let Ok(schedule) = pass::compile(&program, simulator.target(), &mut NoDump) else { return Ok(None) };
    simulator.forget();
    let report = simulator.run(&schedule, &[], &mut Memory::TimeOnly, &mut Unwatched, Order::Earliest);
    let report = report.map_err(|fault| Error::from(fault).of(format!("{} {}", one.kernel, job.tiling)))?;
    let cycles = report.launches.iter().map(|launch| launch.cycles).sum::<Cycle>();
    let total = one.launches * cycles + one.configures * report.configure;
    Ok(Some((total, cycles, report.configure)))
}
