//! What the machine offers to this process.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use crate::affinity;
use crate::memory::Aligned;
use crate::os::{self, HUGE_PAGE};
use crate::topology::{self, Topology};

/// The part of the machine that this process may use.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The processors that the process may run on.
    pub topology: Topology,
    /// Processors' worth of time that its control group grants, if it bounds it.
    pub quota: Option<f64>,
}

impl Machine {
    /// The machine that this process runs on. It is asked about once, by the
    /// first thread that calls: threads that are later kept on a few processors
    /// would see no others.
    pub fn here() -> &'static Machine {
        static HERE: OnceLock<Machine> = OnceLock::new();
        HERE.get_or_init(|| {
            let root = Path::new("/");
            let listed = Topology::read(root).unwrap_or_default();
            let usable = match os::allowed_cpus() {
                Some(allowed) => listed.restricted(&allowed),
                None => listed,
            };
            let count = thread::available_parallelism().map_or(1, NonZero::get);
            let is_known = !usable.processors().is_empty();
            let topology = if is_known { usable } else { Topology::uniform(count) };
            Machine { topology, quota: topology::quota(root) }
        })
    }
}

/// The threads that compute unless another number is asked for: one for each
/// core that this process may use, within its control group's grant.
pub fn default_threads() -> usize {
    let machine = Machine::here();
    affinity::default_threads(&machine.topology, machine.quota)
}

/// How much of memory that asks for huge pages lies in such: bytes that did,
/// of bytes that were touched for the trial. Nothing where the system does not say.
pub fn huge_pages() -> Option<(u64, u64)> {
    const TRIAL: usize = 4 * HUGE_PAGE;
    let mut memory = Aligned::<u8>::zeroed(TRIAL, "a trial of huge pages").ok()?;
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let maps = fs::read_to_string("/proc/self/smaps").ok()?;
    Some((huge_bytes(&maps, memory.as_ptr().addr())?, TRIAL as u64))
}

/// The `AnonHugePages` of the mapping that holds an address, of `/proc/self/smaps`.
fn huge_bytes(maps: &str, address: usize) -> Option<u64> {
    let holds = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?
            ..usize::from_str_radix(rest.split(' ').next()?, 16).ok()?;
        Some(range.contains(&address))
    };
    let mut lines = maps.lines().skip_while(|line| holds(line) != Some(true));
    let kib = lines.find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    kib.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_huge_pages_of_a_mapping_are_found() {
        let maps = "1000-2000 rw-p 00000000 00:00 0 \nSize: 4 kB\nAnonHugePages:      4 kB\nVmFlags: rd wr\n\
                    00002000-0000ff00 rw-p 00000000 00:00 0  [heap]\nAnonHugePages:   2048 kB\n";
        assert_eq!(huge_bytes(maps, 0x1fff), Some(4096));
        assert_eq!(huge_bytes(maps, 0x2000), Some(2 << 20));
        assert_eq!(huge_bytes(maps, 0xff00), None);
        assert_eq!(huge_bytes("", 0), None);
    }

    #[test]
    fn this_machine_has_threads() {
        let machine = Machine::here();
        assert!((1..=machine.topology.processors().len()).contains(&default_threads()), "{machine:?}");
    }

    #[test]
    fn a_trial_of_huge_pages_counts_no_more_than_it_touched() {
        if let Some((huge, touched)) = huge_pages() {
            assert!(huge <= touched, "{huge} of {touched}");
        }
    }
}
