//! The memory that this process may still allocate, from `/proc` and `/sys`.

use std::fs;
use std::path::Path;

use girih_graph::{MemoryPlan, Result};

/// The memory that this process may still allocate.
///
/// ```
/// if let Some(memory) = girih::tools::FreeMemory::now() {
///     assert!(memory.room() <= memory.available && memory.available <= memory.total);
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct FreeMemory {
    /// The bytes of the machine's memory.
    pub total: u64,
    /// The bytes that the machine has available.
    pub available: u64,
    /// The bytes that the cgroup limit leaves.
    pub cgroup: Option<u64>,
}

impl FreeMemory {
    /// The present values; `None` where the system does not tell them.
    ///
    /// ```
    /// let memory = girih::tools::FreeMemory::now();
    /// ```
    pub fn now() -> Option<FreeMemory> {
        let cgroup = cgroup_room(Path::new("/sys/fs/cgroup"));
        Some(FreeMemory { total: meminfo("MemTotal")?, available: meminfo("MemAvailable")?, cgroup })
    }

    /// The bytes that may be allocated: what is available, within the cgroup's limit.
    ///
    /// ```
    /// # use girih::tools::FreeMemory;
    /// let memory = FreeMemory { total: 1000, available: 600, cgroup: Some(400) };
    /// assert_eq!(memory.room(), 400);
    /// ```
    pub fn room(&self) -> u64 {
        self.cgroup.map_or(self.available, |cgroup| cgroup.min(self.available))
    }
}

/// The bytes that a process needs beside a plan: stacks of threads, buffers, and the lists of an
/// engine. A small allocation that fails ends a Rust program, so a limit must leave room for them.
const BESIDE_PLAN: u64 = 64 << 20;

/// Checks that a plan fits into free memory, and into the limits of this process.
///
/// # Errors
/// When it needs more; the error has the arithmetic.
pub(crate) fn check(plan: &MemoryPlan) -> Result<()> {
    if let Some(room) = process_room() {
        let room = room.saturating_sub(BESIDE_PLAN);
        plan.host.check("the limit of this process (ulimit -v or -d)", room)?;
    }
    let Some(memory) = FreeMemory::now() else { return Ok(()) };
    fits(plan, &memory)
}

/// The bytes that the limits of this process (`ulimit -v` and `ulimit -d`) leave; `None` if there
/// are none.
///
/// ```
/// assert!(girih::tools::process_room().is_none_or(|bytes| bytes > 0));
/// ```
pub fn process_room() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let room = |name: &str, used: &str| Some(soft_limit(&limits, name)?.saturating_sub(kib(&status, used)?));
    let rooms = [room("Max address space", "VmSize"), room("Max data size", "VmData")];
    rooms.into_iter().flatten().min()
}

/// The soft limit of a line of `/proc/self/limits`, in bytes; `None` if it is unlimited.
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

fn fits(plan: &MemoryPlan, memory: &FreeMemory) -> Result<()> {
    let pool = match memory.cgroup {
        Some(room) if room < memory.available => "the cgroup of this process",
        _ => "the machine",
    };
    plan.host.check(pool, memory.room())?;
    plan.check_device()
}

/// The limit minus the usage of this process's cgroup (version 2), or that of a
/// parent cgroup if it is smaller.
fn cgroup_room(root: &Path) -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut folder = root.join(path);
    let mut least = None;
    loop {
        if let Some(room) = room_of(&folder) {
            least = Some(least.map_or(room, |least: u64| least.min(room)));
        }
        if folder == root || !folder.pop() {
            return least;
        }
    }
}

fn room_of(folder: &Path) -> Option<u64> {
    let number = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

/// The value of a line of `/proc/meminfo`, in bytes.
fn meminfo(key: &str) -> Option<u64> {
    kib(&fs::read_to_string("/proc/meminfo").ok()?, key)
}

/// The value of a line such as `VmSize:  100 kB`, in bytes.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use girih_graph::{ErrorKind, PoolBytes};

    use super::*;

    #[test]
    fn the_limits_of_a_process_are_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max data size             unlimited            unlimited            bytes     \n\
                      Max address space         50331648             unlimited            bytes     \n";
        assert_eq!(soft_limit(limits, "Max address space"), Some(50_331_648));
        assert_eq!(soft_limit(limits, "Max data size"), None);
        assert_eq!(kib("VmPeak:\t  10 kB\nVmSize:\t  48 kB\n", "VmSize"), Some(48 << 10));
    }

    #[test]
    fn a_plan_that_does_not_fit_is_refused_with_the_arithmetic() {
        let bytes = PoolBytes { weights: 100, state: 20, scratch: 3, ..PoolBytes::default() };
        let plan = MemoryPlan::on_host(bytes);
        let memory = FreeMemory { total: 2000, available: 1000, cgroup: Some(122) };
        let error = fits(&plan, &memory).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        let sentence = error.to_string();
        assert!(sentence.contains("123 bytes (weights 100 + KV cache 20 + scratch 3)"), "{sentence}");
        assert!(sentence.contains("but the cgroup of this process has 122 free"), "{sentence}");
        assert!(fits(&plan, &FreeMemory { total: 2000, available: 123, cgroup: None }).is_ok());
    }
}
