//! The caches of the machine, as Linux lists them under `/sys`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::topology::Topology;

/// A data or unified cache.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CpuCache {
    level: u32,
    /// The list of CPUs that share it.
    cpus: String,
    bytes: usize,
}

/// The number of `index` folders of a CPU that are read: processors have one for each of up to five caches.
const MAX_INDEXES: usize = 8;

/// The sizes of the caches of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caches(BTreeSet<CpuCache>);

impl Caches {
    /// Reads the caches of the CPUs of `topology` that the system below `root` lists. `root` is `/`
    /// except in tests.
    pub fn read(root: &Path, topology: &Topology) -> Caches {
        let numbers = topology.processors().iter().map(|processor| processor.number);
        Caches(numbers.flat_map(|number| caches_of(root, number)).collect())
    }

    /// The bytes of one cache of this level; `None` if there is none.
    pub fn one(&self, level: u32) -> Option<usize> {
        self.0.iter().find(|cache| cache.level == level).map(|cache| cache.bytes)
    }

    /// The bytes that all caches of this level and above hold together; 0 if they are unknown.
    pub fn all_from(&self, level: u32) -> usize {
        let bytes = self.0.iter().filter(|cache| cache.level >= level).map(|cache| cache.bytes);
        bytes.fold(0, usize::saturating_add)
    }
}

/// The caches of a CPU.
fn caches_of(root: &Path, cpu: usize) -> impl Iterator<Item = CpuCache> {
    let folder = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cache"));
    (0..MAX_INDEXES).filter_map(move |index| {
        let read = |name: &str| fs::read_to_string(folder.join(format!("index{index}/{name}"))).ok();
        let level = read("level")?.trim().parse().ok()?;
        let is_data = read("type")?.trim() != "Instruction";
        let (cpus, bytes) = (read("shared_cpu_list")?.trim().to_owned(), size(read("size")?.trim())?);
        is_data.then_some(CpuCache { level, cpus, bytes })
    })
}

/// A size such as `1024K`, in bytes.
fn size(text: &str) -> Option<usize> {
    let digits = text.trim_end_matches(['K', 'M', 'G']);
    let unit: usize = match &text[digits.len()..] {
        "" => 1,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::FakeSystem;

    #[test]
    fn a_cache_that_cpus_share_counts_once() {
        let cache = |cpu: usize, index: usize, level, kind, shared, size| {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}");
            [("level", level), ("type", kind), ("shared_cpu_list", shared), ("size", size)]
                .map(|(name, text)| (format!("{folder}/{name}"), text))
        };
        let files = [
            cache(0, 1, "1", "Instruction", "0", "32K"),
            cache(0, 2, "2", "Unified", "0", "1024K"),
            cache(1, 2, "2", "Unified", "1", "1024K"),
            cache(0, 3, "3", "Unified", "0-1", "32M"),
            cache(1, 3, "3", "Unified", "0-1", "32M"),
            cache(1, 4, "4", "Unified", "0-1", "7Q"),
        ];
        let files: Vec<(&str, &str)> = files.iter().flatten().map(|(path, text)| (&**path, *text)).collect();
        let system = FakeSystem::new(&files);
        let caches = Caches::read(system.root(), &Topology::uniform(2));
        assert_eq!([1, 2, 3, 4].map(|level| caches.one(level)), [None, Some(1 << 20), Some(32 << 20), None]);
        assert_eq!([2, 3, 4].map(|level| caches.all_from(level)), [34 << 20, 32 << 20, 0]);
        assert_eq!([size("7"), size("1G"), size("K"), size("")], [Some(7), Some(1 << 30), None, None]);
    }
}
