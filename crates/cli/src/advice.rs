//! What holds girih back on this machine right now, and what to do about it.

use std::thread;
use std::time::{Duration, Instant};

use crate::limits::Measured;
use crate::machine::{self, Busy};

/// How long the machine is watched for what others do.
const WATCHED: Duration = Duration::from_millis(300);

/// What the system says of how girih may run.
#[derive(Clone, Debug)]
pub struct State {
    /// The kernels that commands use unless told otherwise.
    pub kernels: &'static str,
    /// The best kernels that there are for any machine of the kind.
    pub best_kernels: &'static str,
    /// The threads that commands use.
    pub threads: usize,
    /// Processors that the system runs.
    pub online: Option<usize>,
    /// Processors that this process may use.
    pub allowed: usize,
    /// The cores that these belong to.
    pub cores: usize,
    /// Processors' worth of time that the control group allows.
    pub quota: Option<f64>,
    /// Processors that others keep busy.
    pub foreign: Option<f64>,
    /// Processes that wanted to run during the last minute, on average.
    pub load: Option<f64>,
    /// The setting of transparent huge pages.
    pub huge_pages: Option<String>,
    /// Bytes in huge pages, of bytes that asked for them.
    pub huge_pages_trial: Option<(u64, u64)>,
}

impl State {
    /// What there is now, with so many threads; this takes a moment.
    pub fn now(threads: usize) -> State {
        let girih_cpu::Machine { topology, quota } = girih_cpu::Machine::here();
        State {
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

    /// What makes girih slower than it could be, given what was measured.
    pub fn advice(&self, limits: &[Measured]) -> Vec<String> {
        let mut lines = Vec::new();
        let State { kernels, best_kernels, threads, .. } = self;
        if kernels != best_kernels {
            lines.push(format!(
                "the kernels are '{kernels}': this processor lacks instructions that the faster \
                 '{best_kernels}' are made of"
            ));
        }
        lines.extend(self.thread_advice());
        if let Some(foreign) = self.foreign.filter(|&foreign| foreign > 0.1) {
            lines.push(format!(
                "others keep {foreign:.1} processors busy right now; they slow every step down: stop them, or \
                 leave them a processor with --threads"
            ));
        } else if let Some(load) = self.load.filter(|&load| load > 0.5 * *threads as f64) {
            lines.push(format!(
                "{load:.1} processes wanted to run during the last minute; they slow every step down"
            ));
        }
        if self.huge_pages.as_deref() == Some("never") {
            lines.push(
                "transparent huge pages are off; 'madvise' takes up to a third off the time of reading weights"
                    .to_owned(),
            );
        } else if let Some((0, _)) = self.huge_pages_trial {
            lines.push("memory that asks for huge pages gets none; it may be fragmented".to_owned());
        }
        // Of the best instruction; that of memory may well be one thread's.
        let peak = limits.iter().find(|row| row.unit == "operations");
        if let Some(gain) = peak.map(|row| row.all / row.one)
            && gain < 0.7 * *threads as f64
        {
            lines.push(format!(
                "{threads} threads compute only {gain:.2} times as much as one: they share a core, the clock \
                 drops, or others use the machine"
            ));
        }
        lines
    }

    /// What is wrong with the number of threads.
    fn thread_advice(&self) -> Option<String> {
        let State { threads, online, allowed, cores, quota, .. } = self;
        if let Some(quota) = quota.filter(|&quota| quota < *threads as f64) {
            return Some(format!(
                "the control group allows the time of {quota:.1} processors, and {threads} threads want it: \
                 they will be stopped together, time and again; use fewer, or raise cpu.max"
            ));
        }
        if threads > allowed {
            return Some(format!(
                "{threads} threads share {allowed} processors and wait for each other; use --threads {cores}"
            ));
        }
        if threads < cores && quota.is_none_or(|quota| quota > *threads as f64) {
            return Some(format!("{threads} threads leave {} of {cores} cores idle", cores - threads));
        }
        let online = online.filter(|online| online > allowed)?;
        Some(format!(
            "this process may use {allowed} of {online} processors; its affinity withholds the others"
        ))
    }
}

/// Processors that others keep busy, over a moment in which this process
/// sleeps.
fn foreign() -> Option<f64> {
    let (before, begun) = (Busy::now()?, Instant::now());
    thread::sleep(WATCHED);
    Some(Busy::now()?.foreign_since(&before, begun.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quiet() -> State {
        State {
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
        let row = Measured { what: String::new(), unit: "operations", one: 1.0, all: 3.9 };
        assert_eq!(quiet().advice(&[row]), Vec::<String>::new());
    }

    #[test]
    fn what_holds_girih_back_is_said() {
        let cases = [
            (State { kernels: "avx2", ..quiet() }, "lacks instructions"),
            (State { threads: 6, ..quiet() }, "6 threads share 4"),
            (State { threads: 3, ..quiet() }, "leave 1 of 4 cores idle"),
            (State { online: Some(8), ..quiet() }, "4 of 8 processors"),
            (State { quota: Some(1.5), ..quiet() }, "the time of 1.5 processors"),
            (State { foreign: Some(1.0), ..quiet() }, "others keep 1.0 processors busy"),
            (State { load: Some(3.0), ..quiet() }, "3.0 processes"),
            (State { huge_pages: Some("never".to_owned()), ..quiet() }, "huge pages are off"),
            (State { huge_pages_trial: Some((0, 8)), ..quiet() }, "gets none"),
        ];
        for (state, words) in cases {
            let advice = state.advice(&[]);
            assert!(advice.len() == 1 && advice[0].contains(words), "{words}: {advice:?}");
        }
        let row = Measured { what: String::new(), unit: "operations", one: 1.0, all: 1.1 };
        assert!(quiet().advice(&[row])[0].contains("1.10 times"));
    }
}
