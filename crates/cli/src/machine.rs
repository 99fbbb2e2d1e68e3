//! Facts of this machine from `/proc` and `/sys`: memory, processor, load. What
//! they do not contain is `None`.

use std::fs;
use std::path::PathBuf;

use girih::tools::process_room;

use crate::error::{Error, Result};
use crate::output::bytes;

/// The bytes that any command needs: a small allocation that fails ends the program without a
/// sentence.
const ROOM_MIN: u64 = 64 << 20;

/// Checks that the limits of this process leave room for a command.
///
/// # Errors
/// When they do not.
pub fn check_process_room() -> Result<()> {
    match process_room().filter(|room| *room < ROOM_MIN) {
        None => Ok(()),
        Some(room) => Err(Error::work(format!(
            "the limit of this process (ulimit -v or -d) leaves {}; {} are needed: raise it",
            bytes(room),
            bytes(ROOM_MIN)
        ))),
    }
}

/// Resets the peak of resident memory to the current value (`proc(5)`,
/// `clear_refs`). Returns whether that worked.
pub fn reset_peak() -> bool {
    fs::write("/proc/self/clear_refs", "5").is_ok()
}

/// CPU time so far, in seconds, summed over all CPUs.
#[derive(Clone, Copy, Debug)]
pub struct CpuTime {
    /// Of all processes.
    all: f64,
    /// Of this process, with its threads.
    own: f64,
}

impl CpuTime {
    /// The sums now.
    pub fn now() -> Option<CpuTime> {
        let stat = fs::read_to_string("/proc/stat").ok()?;
        let own = fs::read_to_string("/proc/self/stat").ok()?;
        Some(CpuTime { all: all_ticks(&stat)? / TICKS_PER_SECOND, own: own_ticks(&own)? / TICKS_PER_SECOND })
    }

    /// The CPUs that other processes have used since `before`, on average over
    /// `seconds`.
    pub fn foreign_since(&self, before: &CpuTime, seconds: f64) -> f64 {
        let others = (self.all - before.all) - (self.own - before.own);
        (others / seconds.max(1e-9)).max(0.0)
    }
}

/// The unit of `/proc/stat`: `USER_HZ`, which is 100 on all present Linux systems.
const TICKS_PER_SECOND: f64 = 100.0;

/// The ticks in which CPUs were neither idle nor waiting for a disk.
fn all_ticks(stat: &str) -> Option<f64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<f64> = line.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user.
    let [user, nice, system, _, _, irq, softirq, ..] = fields[..] else { return None };
    Some(user + nice + system + irq + softirq)
}

/// The ticks of this process: fields 14 and 15. Field 2 is a name in
/// parentheses that may contain any characters.
fn own_ticks(stat: &str) -> Option<f64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some(ticks()? + ticks()?)
}

/// The processor's name and those of its features that kernels use.
pub fn processor() -> (Option<String>, Vec<String>) {
    const FEATURES: &[&str] = &[
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "avx_vnni",
        "amx_int8",
        "amx_bf16",
        "asimd",
        "asimddp",
        "i8mm",
    ];
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        text.lines().find(|line| line.starts_with(key))?.split_once(':').map(|(_, value)| value.trim())
    };
    // The name of the line for x86, and that for aarch64.
    let line = field("flags").or_else(|| field("Features"));
    let flags: Vec<&str> = line.map(|flags| flags.split_whitespace().collect()).unwrap_or_default();
    let found =
        FEATURES.iter().filter(|feature| flags.contains(feature)).map(|feature| (*feature).to_owned());
    (field("model name").map(str::to_owned), found.collect())
}

/// The number of CPUs that the system runs.
pub fn online() -> Option<usize> {
    count_listed(&fs::read_to_string("/sys/devices/system/cpu/online").ok()?)
}

/// The number of entries of a list such as `0-3,8`.
fn count_listed(list: &str) -> Option<usize> {
    list.trim().split(',').try_fold(0_usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// The number of runnable processes, averaged over the last minute.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

/// The files whose code this process runs, which a worker of the same program loads again: the program and its libraries.
pub fn own_code() -> Vec<PathBuf> {
    code_files(&fs::read_to_string("/proc/self/maps").unwrap_or_default())
}

/// The files that `maps` of `proc(5)` calls executable: addresses, rights, an offset, a device, an inode and a path.
fn code_files(maps: &str) -> Vec<PathBuf> {
    let executable = |line: &&str| line.split(' ').nth(1).is_some_and(|rights| rights.contains('x'));
    let paths = maps.lines().filter(executable).filter_map(|line| Some(line[line.find('/')?..].into()));
    paths.collect()
}

/// The chosen word of a file such as `always [madvise] never`.
pub fn huge_pages() -> Option<String> {
    let text = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    let start = text.find('[')? + 1;
    Some(text[start..].split(']').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_read_from_the_right_fields() {
        let stat = "cpu  10 20 30 400 50 6 7 8 9 0\ncpu0 1 2 3 4 5 6 7 8 9 0\n";
        assert_eq!(all_ticks(stat), Some(73.0));
        assert_eq!(own_ticks("12 (a) b) R 1 2 3 4 5 6 7 8 9 10 300 40 1 2"), Some(340.0));
        assert_eq!((all_ticks("intr 1"), own_ticks("12 (a")), (None, None));
        let before = CpuTime { all: 10.0, own: 4.0 };
        let foreign = CpuTime { all: 16.0, own: 8.0 }.foreign_since(&before, 4.0);
        assert!((foreign - 0.5).abs() < 1e-12);
    }

    #[test]
    fn code_is_in_the_files_that_are_mapped_as_executable() {
        let maps = "7f00-7f10 r--p 0000 fe:00 12 /usr/lib/a.so\n7f10-7f20 r-xp 0100 fe:00 12    /usr/lib/a b.so\n\
                    7ffc-7ffe r-xp 0000 00:00 0    [vdso]\nff00-ff10 --xp 0000 00:00 0\nnothing\n";
        assert_eq!(code_files(maps), [PathBuf::from("/usr/lib/a b.so")]);
        let own = std::env::current_exe().expect("the test's own program");
        assert!(own_code().contains(&own), "{:?} lacks {own:?}", own_code());
    }

    #[test]
    fn lists_of_the_system_are_read() {
        assert_eq!(
            [count_listed("0-3,8\n"), count_listed("5"), count_listed("0-"), count_listed("3-1")],
            [Some(5), Some(1), None, None]
        );
    }
}
