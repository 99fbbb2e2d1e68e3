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
        let own = fs::read_to_string("/proc/self/cgroup").ok();
        let cgroup = own.and_then(|own| cgroup_room(Path::new("/sys/fs/cgroup"), &own));
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

/// What limits a process. The C library reserves 64 MiB of addresses for each of the first threads that allocate, unless
/// that variable says otherwise.
const PROCESS_LIMIT: &str =
    "the limit of this process (ulimit -v or -d; under it, MALLOC_ARENA_MAX=1 saves addresses)";

/// Checks that a plan fits into free memory, and into the limits of this process.
///
/// # Errors
/// When it needs more; the error has the arithmetic.
pub(crate) fn check(plan: &MemoryPlan) -> Result<()> {
    if let Some(room) = process_room() {
        let room = room.saturating_sub(BESIDE_PLAN);
        plan.host.check(PROCESS_LIMIT, room)?;
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

/// The peak of this process's resident memory, in bytes; `None` if the system does not tell.
///
/// ```
/// assert!(girih::tools::peak_resident().is_none_or(|bytes| bytes > 0));
/// ```
pub fn peak_resident() -> Option<u64> {
    kib(&fs::read_to_string("/proc/self/status").ok()?, "VmHWM")
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

/// The names of a cgroup's files, of one version.
struct CgroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// The page cache, in `memory.stat`.
    cache: [&'static str; 2],
}

const VERSION_1: CgroupFiles = CgroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};

const VERSION_2: CgroupFiles =
    CgroupFiles { limit: "memory.max", usage: "memory.current", cache: ["inactive_file", "active_file"] };

/// The bytes that the limit of this process's cgroup leaves, or that of a parent cgroup if they are fewer. `own` is
/// `/proc/self/cgroup`, and `root` where cgroups are mounted.
fn cgroup_room(root: &Path, own: &str) -> Option<u64> {
    // Lines such as `0::/path` of version 2, and `4:memory:/path` of version 1.
    let of_line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = path.trim_start_matches('/');
        match (number, controllers) {
            ("0", "") => room_within(root, path, &VERSION_2),
            _ if controllers.split(',').any(|name| name == "memory") => {
                room_within(&root.join("memory"), path, &VERSION_1)
            }
            _ => None,
        }
    };
    own.lines().filter_map(of_line).min()
}

/// The least room of a cgroup and its parents.
fn room_within(root: &Path, path: &str, files: &CgroupFiles) -> Option<u64> {
    let mut folder = root.join(path);
    let mut least = None;
    loop {
        if let Some(room) = room_of(&folder, files) {
            least = Some(least.map_or(room, |least: u64| least.min(room)));
        }
        if folder == root || !folder.pop() {
            return least;
        }
    }
}

/// The limit minus what is used of it. Page cache is not used: the system gives it up before it refuses memory.
fn room_of(folder: &Path, files: &CgroupFiles) -> Option<u64> {
    let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let (limit, usage) = (number(files.limit)?, number(files.usage)?);
    let stat = text("memory.stat").unwrap_or_default();
    let of_key = |key: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.and_then(|value| value.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let cache = files.cache.iter().fold(0, |sum: u64, key| sum.saturating_add(of_key(key)));
    Some(limit.saturating_sub(usage.saturating_sub(cache)))
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
    fn page_cache_is_free_in_cgroups_of_both_versions() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("pod/a/memory.max", "1000\n");
        write("pod/a/memory.current", "900\n");
        write("pod/a/memory.stat", "anon 200\nfile 700\ninactive_file 500\nactive_file 200\n");
        assert_eq!(cgroup_room(root, "0::/pod/a\n"), Some(800));
        // A parent has less room.
        write("pod/memory.max", "1200\n");
        write("pod/memory.current", "1100\n");
        assert_eq!(cgroup_room(root, "0::/pod/a\n"), Some(100));
        write("pod/b/memory.max", "max\n");
        write("pod/b/memory.current", "5\n");
        assert_eq!(cgroup_room(root, "0::/pod/b\n"), Some(100));
        write("memory/job/memory.limit_in_bytes", "1000\n");
        write("memory/job/memory.usage_in_bytes", "600\n");
        write("memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 100\n");
        let first = "12:cpu,cpuacct:/job\n4:memory:/job\n1:name=systemd:/job\n";
        assert_eq!(cgroup_room(root, first), Some(800));
        assert_eq!(cgroup_room(root, "12:cpu,cpuacct:/job\n0::/none\n"), None);
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
