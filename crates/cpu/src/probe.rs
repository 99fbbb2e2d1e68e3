//! The resources that the machine offers to this process.

use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use crate::affinity;
use crate::caches::Caches;
use crate::memory::Aligned;
use crate::os::{self, HUGE_PAGE};
use crate::topology::{self, Topology};

/// The part of the machine that this process may use.
#[derive(Clone, Debug)]
pub struct HostMachine {
    /// The CPUs that the process may run on.
    pub topology: Topology,
    /// The number of CPUs that its cgroup allows, if it has a limit.
    pub quota: Option<f64>,
    /// The caches of these CPUs.
    pub caches: Caches,
    /// The numbers of the NUMA nodes with memory; node 0 if the system does not list them.
    pub memory_nodes: Vec<usize>,
}

impl HostMachine {
    /// The machine of this process. It is probed once, by the first thread that calls this: a thread that
    /// is pinned later would see only a few CPUs.
    pub fn here() -> &'static HostMachine {
        static HERE: OnceLock<HostMachine> = OnceLock::new();
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
            let caches = Caches::read(root, &topology);
            let memory_nodes = topology::memory_nodes(root);
            HostMachine { topology, quota: topology::quota(root), caches, memory_nodes }
        })
    }
}

/// The default number of threads: one for each core that this process may use, within its cgroup
/// quota.
pub fn default_threads() -> usize {
    let machine = HostMachine::here();
    affinity::default_threads(&machine.topology, machine.quota)
}

/// How much of a trial allocation lies in huge pages: the bytes in huge pages and the bytes touched.
/// `None` if the system does not report it.
pub fn huge_pages() -> Option<(u64, u64)> {
    const TRIAL: usize = 4 * HUGE_PAGE;
    let mut memory = Aligned::<u8>::zeroed(TRIAL, "measuring huge pages").ok()?;
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let maps = fs::read_to_string("/proc/self/smaps").ok()?;
    Some((huge_bytes(&maps, memory.as_ptr().addr())?, TRIAL as u64))
}

/// The `AnonHugePages` of the mapping that contains an address, from `/proc/self/smaps`.
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
    fn the_default_number_of_threads_is_within_the_machine() {
        let machine = HostMachine::here();
        assert!((1..=machine.topology.processors().len()).contains(&default_threads()), "{machine:?}");
    }

    #[test]
    fn huge_bytes_are_at_most_the_bytes_touched() {
        if let Some((huge, touched)) = huge_pages() {
            assert!(huge <= touched, "{huge} of {touched}");
        }
    }
}
