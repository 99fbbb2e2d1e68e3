//! The present bottlenecks of this machine, and advice against them.

use std::thread;
use std::time::{Duration, Instant};

use crate::limits::MeasuredLimit;
use crate::machine::{self, CpuTime};

/// The time over which the load of other processes is measured.
const LOAD_WINDOW: Duration = Duration::from_millis(300);

/// The state of the machine that affects girih's speed.
#[derive(Clone, Debug)]
pub struct MachineState {
    /// The kernels that commands use by default.
    pub kernels: &'static str,
    /// The best kernels for any processor of this architecture.
    pub best_kernels: &'static str,
    /// The number of threads that commands use.
    pub threads: usize,
    /// CPUs that the system runs.
    pub online: Option<usize>,
    /// CPUs that this process may use.
    pub allowed: usize,
    /// Cores that these CPUs belong to.
    pub cores: usize,
    /// The cgroup's limit in CPUs.
    pub quota: Option<f64>,
    /// CPUs that other processes use.
    pub foreign: Option<f64>,
    /// Runnable processes, averaged over the last minute.
    pub load: Option<f64>,
    /// The setting of transparent huge pages.
    pub huge_pages: Option<String>,
    /// Bytes of a trial allocation that are in huge pages, and its size.
    pub huge_pages_trial: Option<(u64, u64)>,
}

impl MachineState {
    /// The present state, for this number of threads. Sleeps for 0.3 s.
    pub fn now(threads: usize) -> MachineState {
        let girih_cpu::HostMachine { topology, quota, .. } = girih_cpu::HostMachine::here();
        MachineState {
            kernels: girih_cpu::kernels::tables()[0].name,
            best_kernels: girih_cpu::kernels::names()[0],
            threads,
            online: machine::online(),
            allowed: topology.processors().len(),
            cores: topology.cores(),
            quota: *quota,
            foreign: foreign(),
            load: machine::load(),
            huge_pages: machine::huge_pages(),
            huge_pages_trial: girih_cpu::huge_pages(),
        }
    }

    /// Advice against everything that slows girih down, given the measured limits.
    pub fn advice(&self, limits: &[MeasuredLimit]) -> Vec<String> {
        let mut lines = Vec::new();
        let MachineState { kernels, best_kernels, threads, .. } = self;
        if kernels != best_kernels {
            lines.push(format!(
                "the kernels are '{kernels}': this processor lacks instructions of the faster \
                 '{best_kernels}' kernels"
            ));
        }
        lines.extend(self.thread_advice());
        if let Some(foreign) = self.foreign.filter(|&foreign| foreign > 0.1) {
            lines.push(format!(
                "other processes use {foreign:.1} CPUs, which slows every step down: stop them, or leave them \
                 a CPU with --threads"
            ));
        } else if let Some(load) = self.load.filter(|&load| load > 0.5 * *threads as f64) {
            lines.push(format!(
                "{load:.1} processes were runnable during the last minute, which slows every step down"
            ));
        }
        if self.huge_pages.as_deref() == Some("never") {
            lines.push(
                "transparent huge pages are off: 'madvise' cuts the time of reading weights by up to a third"
                    .to_owned(),
            );
        } else if let Some((0, _)) = self.huge_pages_trial {
            lines.push("the system grants no huge pages; memory may be fragmented".to_owned());
        }
        // The rate of the best instruction. Memory is left out, because one
        // thread may reach its limit.
        let peak = limits.iter().find(|row| row.unit == "operations");
        if let Some(gain) = peak.map(|row| row.all / row.one)
            && gain < 0.7 * *threads as f64
        {
            lines.push(format!(
                "{threads} threads compute only {gain:.2} times as fast as one: they share a core, the clock \
                 drops, or other processes use CPUs"
            ));
        }
        lines
    }

    /// Advice on the number of threads.
    fn thread_advice(&self) -> Option<String> {
        let MachineState { threads, online, allowed, cores, quota, .. } = self;
        if let Some(quota) = quota.filter(|&quota| quota < *threads as f64) {
            return Some(format!(
                "the cgroup allows {quota:.1} CPUs for {threads} threads, so the kernel will throttle them: \
                 use fewer, or raise cpu.max"
            ));
        }
        if threads > allowed {
            return Some(format!(
                "{threads} threads share {allowed} CPUs and wait for each other; use --threads {cores}"
            ));
        }
        if threads < cores && quota.is_none_or(|quota| quota > *threads as f64) {
            return Some(format!("{threads} threads leave {} of {cores} cores idle", cores - threads));
        }
        let online = online.filter(|online| online > allowed)?;
        Some(format!("this process may use {allowed} of {online} CPUs; its affinity excludes the others"))
    }
}

/// CPUs that other processes use, measured while this process sleeps.
fn foreign() -> Option<f64> {
    let (before, begun) = (CpuTime::now()?, Instant::now());
    thread::sleep(LOAD_WINDOW);
    Some(CpuTime::now()?.foreign_since(&before, begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> MachineState {
        MachineState {
            kernels: "avx512",
            best_kernels: "avx512",
            threads: 4,
            online: Some(4),
            allowed: 4,
            cores: 4,
            quota: None,
            foreign: Some(0.02),
            load: Some(0.1),
            huge_pages: Some("madvise".to_owned()),
            huge_pages_trial: Some((8, 8)),
        }
    }

    #[test]
    fn a_quiet_machine_needs_no_advice() {
        let row = MeasuredLimit { what: String::new(), unit: "operations", one: 1.0, all: 3.9 };
        assert_eq!(quiet().advice(&[row]), Vec::<String>::new());
    }

    #[test]
    fn each_bottleneck_gets_one_line_of_advice() {
        let cases = [
            (MachineState { kernels: "avx2", ..quiet() }, "lacks instructions"),
            (MachineState { threads: 6, ..quiet() }, "6 threads share 4"),
            (MachineState { threads: 3, ..quiet() }, "leave 1 of 4 cores idle"),
            (MachineState { online: Some(8), ..quiet() }, "4 of 8 CPUs"),
            (MachineState { quota: Some(1.5), ..quiet() }, "allows 1.5 CPUs"),
            (MachineState { foreign: Some(1.0), ..quiet() }, "other processes use 1.0 CPUs"),
            (MachineState { load: Some(3.0), ..quiet() }, "3.0 processes"),
            (MachineState { huge_pages: Some("never".to_owned()), ..quiet() }, "huge pages are off"),
            (MachineState { huge_pages_trial: Some((0, 8)), ..quiet() }, "no huge pages"),
        ];
        for (state, words) in cases {
            let advice = state.advice(&[]);
            assert!(advice.len() == 1 && advice[0].contains(words), "{words}: {advice:?}");
        }
        let row = MeasuredLimit { what: String::new(), unit: "operations", one: 1.0, all: 1.1 };
        assert!(quiet().advice(&[row])[0].contains("1.10 times"));
    }
}
