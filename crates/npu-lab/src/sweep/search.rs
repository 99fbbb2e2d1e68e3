//! Searches the tilings of each kernel separately, in timing mode, on several
//! threads. The result does not depend on their number.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use girih_npu::Target;
use girih_npu::form::groups::{ArrayProgram, Groups, Kernel, KernelLaunch, StepAction};
use girih_npu::form::schedule::{Argument, ArgumentRole};
use girih_npu::form::tiling::{AttendTiling, GemvTiling, Tiling};
use girih_npu::kernel::KernelTimes;
use girih_npu::memory::SimMemory;
use girih_npu::pass::{self, NoDump, TileRule, tile};
use girih_npu::sim::{Cycle, EventOrder, SimUnwatched, Simulator};
use girih_tensor::{Error, Result};

use super::bound::LaunchBound;
use super::mechanism::Mechanism;

/// A kernel of a model, and how often it is launched.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelUse {
    /// The kernel. Parts of one matmul count as one kernel.
    pub kernel: Kernel,
    /// The number of launches over all steps of the search.
    pub launches: u64,
    /// The number of launches for which the array has to be configured.
    pub configures: u64,
}

/// The best tiling of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct BestTiling {
    /// The kernel and its launches.
    pub of: KernelUse,
    /// The best tiling.
    pub tiling: Tiling,
    /// Cycles of a launch with it.
    pub cycles: Cycle,
    /// Cycles of configuring the array for it.
    pub configure: Cycle,
    /// The lower bound of a launch with it.
    pub bound: LaunchBound,
    /// The number of tilings that divide the kernel and fit a core.
    pub space: usize,
    /// The number of tilings that needed no simulation, because their lower bound
    /// is not below the best time.
    pub hopeless: usize,
}

/// The kernels of several graphs, each partitioned in several ways. A kernel
/// that occurs in several partitions of one graph counts in the first of them
/// only.
pub(super) fn kernel_uses(cuts: &[Vec<Groups>]) -> Vec<KernelUse> {
    let mut all: Vec<KernelUse> = Vec::new();
    let mut index: BTreeMap<String, usize> = BTreeMap::new();
    for groups in cuts {
        let mut counted: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for cut in groups {
            let before: Vec<String> = counted.keys().cloned().collect();
            for (task, count) in tasks(cut) {
                let (kernel, name) = named(task.kernel);
                if before.contains(&name) {
                    continue;
                }
                index.entry(name.clone()).or_insert_with(|| {
                    all.push(KernelUse { kernel, launches: 0, configures: 0 });
                    all.len() - 1
                });
                let [launches, configures] = counted.entry(name).or_default();
                *launches += count[0];
                *configures += count[1];
            }
        }
        for (name, [launches, configures]) in counted {
            let known = &mut all[index[&name]];
            known.launches += launches;
            known.configures += configures;
        }
    }
    all
}

/// A kernel without the number that distinguishes parts of one matmul, and its
/// name.
fn named(kernel: Kernel) -> (Kernel, String) {
    let kernel = match kernel {
        Kernel::Gemv { n, k, weights, .. } => Kernel::Gemv { first: 0, n, k, weights },
        other => other,
    };
    (kernel, TileRule::words(&kernel).join(" "))
}

/// Every launch of a step, with its numbers of runs and configurations.
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

/// Which tilings a search tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SearchSpace {
    /// All that fit.
    All,
    /// Those whose mechanisms published rows exercise.
    Published,
}

impl SearchSpace {
    /// Whether it contains a tiling of a kernel.
    pub fn contains(self, kernel: &Kernel, tiling: &Tiling) -> bool {
        self == SearchSpace::All || Mechanism::unpublished(kernel, Some(tiling)).is_empty()
    }

    /// Its tilings of a kernel.
    fn tilings(self, kernel: &Kernel, target: &Target) -> Vec<Tiling> {
        let all = tile::space(kernel, target).into_iter();
        if self == SearchSpace::All {
            return all.collect();
        }
        // The tile pass tries only buffered weights; published ones arrive call by call.
        let unbuffered = all.flat_map(|tiling| match tiling {
            Tiling::Gemv(tiling) => {
                [true, false].map(|staged| Tiling::Gemv(GemvTiling { depth: 1, staged, ..tiling })).to_vec()
            }
            // FlashAttention is published with all chunks (`causal_skip=False`).
            Tiling::Attend(tiling) => vec![Tiling::Attend(AttendTiling { skip: false, ..tiling })],
            other => vec![other],
        });
        unbuffered.filter(|tiling| self.contains(kernel, tiling)).collect()
    }
}

/// A tiling to be tried.
struct TilingTrial {
    /// The index of its kernel.
    of: usize,
    tiling: Tiling,
    bound: LaunchBound,
    /// The lower bound of all launches of the kernel, in cycles.
    min_cycles: u64,
}

/// Cycles of a trial: all launches and configurations, one launch, and one
/// configuration.
type TrialTime = (u64, Cycle, Cycle);

/// Finds the best tiling of each kernel in `space`. Calls `progress` with the numbers of
/// finished and of all tilings.
///
/// # Errors
/// When a kernel has no tiling that fits, or a run has a fault.
pub(super) fn search(
    uses: &[KernelUse],
    space: SearchSpace,
    target: &Target,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<BestTiling>> {
    let table = KernelTimes::of(target)?;
    let mut trials = Vec::new();
    for (of, one) in uses.iter().enumerate() {
        trials.extend(kernel_trials(of, one, space, target, &table)?);
    }
    let times = run_all(&trials, uses, target, threads, progress)?;
    let (mut found, mut checked) = (Vec::new(), Simulator::new(target)?);
    for (of, one) in uses.iter().enumerate() {
        let own = || trials.iter().zip(&times).filter(|(trial, _)| trial.of == of);
        let best = own().filter_map(|(trial, time)| Some((trial, (*time)?))).min_by_key(|(_, time)| time.0);
        let Some((trial, (total, cycles, configure))) = best else {
            return Err(Error::new(format!("no tiling of {} fits {}", one.kernel, target.name)));
        };
        trial_time(trial, one, &mut checked)?;
        let (space, hopeless) = (own().count(), own().filter(|(trial, _)| trial.min_cycles >= total).count());
        let (of, tiling, bound) = (one.clone(), trial.tiling, trial.bound);
        found.push(BestTiling { of, tiling, cycles, configure, bound, space, hopeless });
    }
    Ok(found)
}

/// The tilings of a kernel, sorted by lower bound, smallest first.
fn kernel_trials(
    of: usize,
    one: &KernelUse,
    space: SearchSpace,
    target: &Target,
    table: &KernelTimes,
) -> Result<Vec<TilingTrial>> {
    let mut trials = Vec::new();
    for tiling in space.tilings(&one.kernel, target) {
        if let Some(launch) = tile::build(&program(one.kernel, tiling).launches[0], tiling, target) {
            let bound = LaunchBound::of(&launch, target, table)?;
            trials.push(TilingTrial { of, tiling, bound, min_cycles: bound.cycles() * one.launches });
        }
    }
    trials.sort_by_key(|trial| trial.min_cycles);
    Ok(trials)
}

/// A program of one launch of this kernel.
fn program(kernel: Kernel, tiling: Tiling) -> ArrayProgram {
    let bytes = kernel.operand_bytes();
    let last = bytes.len() - 1;
    let role = |i| if i == last { ArgumentRole::Output } else { ArgumentRole::Input };
    let numbers = (0..bytes.len() as u32).collect();
    let arguments = bytes.into_iter().enumerate();
    let arguments = arguments.map(|(i, bytes)| Argument { name: format!("a{i}"), role: role(i), bytes });
    let name = kernel.name().to_owned();
    let launches = vec![KernelLaunch {
        name: name.clone(),
        kernel,
        arguments: numbers,
        tiling: Some(tiling),
        resident: false,
    }];
    ArrayProgram { name, arguments: arguments.collect(), launches }
}

/// Times every trial that may still be the best; the others have no time. A trial
/// is skipped only if its lower bound exceeds a time that another has reached, so
/// the first of the fastest trials is never skipped.
fn run_all(
    trials: &[TilingTrial],
    uses: &[KernelUse],
    target: &Target,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<Option<TrialTime>>> {
    let best: Vec<AtomicU64> = uses.iter().map(|_| AtomicU64::new(u64::MAX)).collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let times = Mutex::new(vec![None; trials.len()]);
    let work = || -> Result<()> {
        let mut simulator = Simulator::new(target)?;
        // Only the best tilings are checked, which takes as long again.
        simulator.look_for_hazards(false);
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(trial) = trials.get(at) else { return Ok(()) };
            if trial.min_cycles <= best[trial.of].load(Ordering::Relaxed) {
                let time = trial_time(trial, &uses[trial.of], &mut simulator)?;
                if let Some((total, ..)) = time {
                    best[trial.of].fetch_min(total, Ordering::Relaxed);
                }
                times.lock().unwrap_or_else(PoisonError::into_inner)[at] = time;
            }
            progress(done.fetch_add(1, Ordering::Relaxed) + 1, trials.len());
        }
    };
    let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        let lost = || Err(Error::new("a thread of the search panicked"));
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| lost())).collect()
    });
    outcomes.into_iter().collect::<Result<()>>()?;
    Ok(times.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Compiles and times one tiling; none if it does not fit the target.
///
/// # Errors
/// When a form breaks a rule of the target, or the run has a fault.
fn trial_time(trial: &TilingTrial, one: &KernelUse, simulator: &mut Simulator) -> Result<Option<TrialTime>> {
    let program = program(one.kernel, trial.tiling);
    let schedule = match pass::compile(&program, simulator.target(), &mut NoDump) {
        Ok(schedule) => schedule,
        Err(error) if pass::is_broken_rule(&error) => {
            return Err(error.of(format!("{} {}", one.kernel, trial.tiling)));
        }
        Err(_) => return Ok(None),
    };
    simulator.forget();
    let report =
        simulator.run(&schedule, &[], &mut SimMemory::TimeOnly, &mut SimUnwatched, EventOrder::Earliest);
    let report = report.map_err(|fault| Error::from(fault).of(format!("{} {}", one.kernel, trial.tiling)))?;
    let cycles = report.launches.iter().map(|launch| launch.cycles).sum::<Cycle>();
    let total = one.launches * cycles + one.configures * report.configure;
    Ok(Some((total, cycles, report.configure)))
}
