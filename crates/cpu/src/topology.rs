//! Sockets, cores, hyperthreads and NUMA nodes, as Linux lists them under `/sys`, and the quota of a
//! cgroup. `affinity` decides where threads run.
//!
//! Files with invalid contents are treated as missing. A machine without these files counts as one
//! NUMA node of cores without hyperthreads.

use std::fs;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// The maximum number of CPUs for which Linux can be built (`CONFIG_NR_CPUS` of x86-64).
const MAX_CPUS: usize = 8192;

/// A logical CPU: the unit on which the system schedules a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Its number in the system.
    pub number: usize,
    /// The core that it belongs to, identified by the lowest number among the core's CPUs.
    pub core: usize,
    /// The package that contains the core.
    pub socket: usize,
    /// The NUMA node that it belongs to.
    pub node: usize,
}

/// The CPUs that are online, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    processors: Vec<Processor>,
}

impl Topology {
    /// Reads the CPUs that the system below `root` lists; `None` if it lists none. `root` is `/`
    /// except in tests.
    pub fn read(root: &Path) -> Option<Topology> {
        let cpus = root.join("sys/devices/system/cpu");
        let online = numbers_of(&cpus.join("online")).filter(|online| !online.is_empty())?;
        let nodes = nodes(&root.join("sys/devices/system/node"));
        let processor = |number: usize| {
            let folder = cpus.join(format!("cpu{number}/topology"));
            let siblings = ["core_cpus_list", "thread_siblings_list"]
                .iter()
                .find_map(|name| numbers_of(&folder.join(name)).filter(|list| list.contains(&number)));
            let is_near = |(_, list): &&(usize, Vec<usize>)| list.contains(&number);
            Processor {
                number,
                core: siblings.and_then(|list| list.into_iter().min()).unwrap_or(number),
                socket: number_of(&folder.join("physical_package_id")).unwrap_or(0),
                node: nodes.iter().find(is_near).map_or(0, |(node, _)| *node),
            }
        };
        Some(Topology { processors: online.into_iter().map(processor).collect() })
    }

    /// A machine of `cores` cores without hyperthreads, all in one socket and node.
    pub fn uniform(cores: usize) -> Topology {
        let processor = |number| Processor { number, core: number, socket: 0, node: 0 };
        Topology { processors: (0..cores).map(processor).collect() }
    }

    /// Keeps only the CPUs that are in `allowed`.
    pub fn restricted(mut self, allowed: &[usize]) -> Topology {
        self.processors.retain(|processor| allowed.contains(&processor.number));
        self
    }

    /// The CPUs, by number.
    pub fn processors(&self) -> &[Processor] {
        &self.processors
    }

    /// The number of cores.
    pub fn cores(&self) -> usize {
        self.distinct(|processor| processor.core)
    }

    /// The number of sockets.
    pub fn sockets(&self) -> usize {
        self.distinct(|processor| processor.socket)
    }

    /// The number of NUMA nodes that have CPUs.
    pub fn nodes(&self) -> usize {
        self.distinct(|processor| processor.node)
    }

    fn distinct(&self, part: impl Fn(&Processor) -> usize) -> usize {
        let mut parts: Vec<usize> = self.processors.iter().map(part).collect();
        parts.sort_unstable();
        parts.dedup();
        parts.len()
    }
}

/// The CPUs of each NUMA node.
fn nodes(folder: &Path) -> Vec<(usize, Vec<usize>)> {
    let online = numbers_of(&folder.join("online")).unwrap_or_default();
    let node = |node| Some((node, numbers_of(&folder.join(format!("node{node}/cpulist")))?));
    online.into_iter().filter_map(node).collect()
}

/// The numbers of the NUMA nodes with memory, in order; node 0 alone if the system below `root` does not list them.
/// `root` is `/` except in tests.
pub fn memory_nodes(root: &Path) -> Vec<usize> {
    let folder = root.join("sys/devices/system/node");
    let listed = ["has_memory", "online"].iter().find_map(|name| numbers_of(&folder.join(name)));
    listed.filter(|nodes| !nodes.is_empty()).unwrap_or_else(|| vec![0])
}

/// The number of CPUs that the cgroups of this process allow, such as 1.5; `None` without a limit.
/// `root` is `/` except in tests.
pub fn quota(root: &Path) -> Option<f64> {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = root.join("sys/fs/cgroup");
    let quotas = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.is_empty() {
            return smallest_quota(&mounts, path, quota_of_v2);
        }
        let has_cpu = controllers.split(',').any(|controller| controller == "cpu");
        let mount = [controllers, "cpu"].map(|name| mounts.join(name)).into_iter().find(|path| path.is_dir());
        smallest_quota(&mount.filter(|_| has_cpu)?, path, quota_of_v1)
    });
    quotas.reduce(f64::min)
}

/// The smallest quota of a group and of the groups that contain it.
fn smallest_quota(mount: &Path, path: &str, quota: impl Fn(&Path) -> Option<f64>) -> Option<f64> {
    let mut folder = mount.to_owned();
    let below = Path::new(path).components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        _ => None,
    });
    let folders: Vec<PathBuf> = std::iter::once(folder.clone())
        .chain(below.map(|name| {
            folder.push(name);
            folder.clone()
        }))
        .collect();
    folders.iter().filter_map(|folder| quota(folder)).reduce(f64::min)
}

/// Parses `cpu.max` of version 2: microseconds, or `max`, in each period of microseconds.
fn quota_of_v2(folder: &Path) -> Option<f64> {
    let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
    let (time, period) = text.trim().split_once(' ')?;
    ratio(time.parse().ok()?, period.parse().ok()?)
}

/// Parses the two files of version 1; a time of -1 is no limit.
fn quota_of_v1(folder: &Path) -> Option<f64> {
    let number = |name: &str| number_of(&folder.join(name));
    ratio(number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
}

fn ratio(time: u64, period: u64) -> Option<f64> {
    (time > 0 && period > 0).then(|| time as f64 / period as f64)
}

fn number_of<N: FromStr>(path: &Path) -> Option<N> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn numbers_of(path: &Path) -> Option<Vec<usize>> {
    numbers(&fs::read_to_string(path).ok()?)
}

/// Parses a list such as `0-3,8,10-11` in ascending order; `None` if it is invalid.
pub(crate) fn numbers(list: &str) -> Option<Vec<usize>> {
    let mut numbers = Vec::new();
    for part in list.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX_CPUS {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

#[cfg(test)]
pub(crate) mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A folder with the files of a system, removed at the end of the test.
    pub struct FakeSystem(TempDir);

    impl FakeSystem {
        pub fn new(files: &[(&str, &str)]) -> FakeSystem {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, format!("{text}\n")).unwrap();
            }
            FakeSystem(root)
        }

        pub fn root(&self) -> &Path {
            self.0.path()
        }
    }

    const CPU: &str = "sys/devices/system/cpu";

    /// Two sockets of two nodes, each of two cores with two hyperthreads, numbered as on servers:
    /// first all cores, then their second hyperthreads. CPUs 3 and 15 are offline.
    fn server() -> Vec<(String, String)> {
        let mut files = vec![(format!("{CPU}/online"), "0-2,4-14".to_owned())];
        for number in (0..16).filter(|number| ![3, 15].contains(number)) {
            let core = number % 8;
            let siblings = match core {
                3 => "11".to_owned(),
                7 => "7".to_owned(),
                core => format!("{core},{}", core + 8),
            };
            let folder = format!("{CPU}/cpu{number}/topology");
            files.push((format!("{folder}/core_cpus_list"), siblings));
            files.push((format!("{folder}/physical_package_id"), (core / 4).to_string()));
        }
        files.push(("sys/devices/system/node/online".to_owned(), "0-3".to_owned()));
        for (node, list) in ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"].iter().enumerate() {
            files.push((format!("sys/devices/system/node/node{node}/cpulist"), (*list).to_owned()));
        }
        files
    }

    pub fn server_topology() -> Topology {
        let files = server();
        let files: Vec<_> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        Topology::read(FakeSystem::new(&files).root()).unwrap()
    }

    #[test]
    fn lists_are_ranges_and_numbers() {
        assert_eq!(numbers("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(numbers("5,1-2,2"), Some(vec![1, 2, 5]));
        assert_eq!(numbers("\n"), Some(vec![]));
        for bad in ["a", "1-", "-1", "0-99999999999", "0-8192", "1;2"] {
            assert_eq!(numbers(bad), None, "{bad}");
        }
    }

    #[test]
    fn sockets_nodes_and_hyperthreads_are_distinguished() {
        let topology = server_topology();
        let numbers: Vec<usize> = topology.processors().iter().map(|processor| processor.number).collect();
        assert_eq!(numbers, [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]);
        assert_eq!((topology.sockets(), topology.nodes(), topology.cores()), (2, 4, 8));
        let of = |number| *topology.processors().iter().find(|processor| processor.number == number).unwrap();
        assert_eq!(of(9), Processor { number: 9, core: 1, socket: 0, node: 0 });
        assert_eq!(of(11), Processor { number: 11, core: 11, socket: 0, node: 1 });
        assert_eq!(of(14), Processor { number: 14, core: 6, socket: 1, node: 3 });
        let part = topology.restricted(&[1, 9, 14, 15]);
        assert_eq!((part.processors().len(), part.sockets(), part.cores()), (3, 2, 2));
    }

    #[test]
    fn missing_files_make_one_node_of_cores() {
        let bare = FakeSystem::new(&[(&format!("{CPU}/online"), "0-3")]);
        assert_eq!(Topology::read(bare.root()), Some(Topology::uniform(4)));
        for nothing in [vec![], vec![(format!("{CPU}/online"), "")], vec![(format!("{CPU}/online"), "x")]] {
            let files: Vec<_> = nothing.iter().map(|(path, text)| (path.as_str(), *text)).collect();
            assert_eq!(Topology::read(FakeSystem::new(&files).root()), None, "{files:?}");
        }
    }

    /// Some virtual machines list invalid values: siblings without the CPU itself, a socket of -1, a
    /// node without a list.
    #[test]
    fn invalid_files_are_treated_as_missing() {
        let system = FakeSystem::new(&[
            (&format!("{CPU}/online"), "0-1"),
            (&format!("{CPU}/cpu0/topology/core_cpus_list"), "7"),
            (&format!("{CPU}/cpu1/topology/core_cpus_list"), "0-99999999"),
            (&format!("{CPU}/cpu0/topology/physical_package_id"), "-1"),
            ("sys/devices/system/node/online", "0-1"),
        ]);
        assert_eq!(Topology::read(system.root()), Some(Topology::uniform(2)));
    }

    #[test]
    fn nodes_with_memory_are_listed() {
        let of = |files: &[(&str, &str)]| memory_nodes(FakeSystem::new(files).root());
        let online = ("sys/devices/system/node/online", "0-1");
        assert_eq!(of(&[online, ("sys/devices/system/node/has_memory", "1")]), [1]);
        assert_eq!(of(&[online]), [0, 1]);
        assert_eq!(of(&[("sys/devices/system/node/online", "x")]), [0]);
    }

    #[test]
    fn the_smallest_quota_of_all_groups_counts() {
        let of = |files: &[(&str, &str)]| quota(FakeSystem::new(files).root());
        assert_eq!(of(&[]), None);
        let own = ("proc/self/cgroup", "0::/a/b");
        assert_eq!(of(&[own, ("sys/fs/cgroup/a/b/cpu.max", "max 100000")]), None);
        let (outer, inner) = ("sys/fs/cgroup/a/cpu.max", "sys/fs/cgroup/a/b/cpu.max");
        assert_eq!(of(&[own, (outer, "150000 100000"), (inner, "400000 100000")]), Some(1.5));
        assert_eq!(of(&[own, (outer, "max 100000"), (inner, "50000 100000")]), Some(0.5));
        for bad in ["", "100000", "x 100000", "100000 0", "-1 100000"] {
            assert_eq!(of(&[own, (inner, bad)]), None, "{bad}");
        }
        // A container sees its group as the root, or by a path of the host.
        let escaping = ("proc/self/cgroup", "0::/../../x");
        assert_eq!(of(&[escaping, ("sys/fs/cgroup/cpu.max", "200000 100000")]), Some(2.0));
    }

    #[test]
    fn quotas_of_cgroup_version_1_are_read() {
        let own = ("proc/self/cgroup", "5:memory:/m\n4:cpu,cpuacct:/a\n0::/");
        let mount = "sys/fs/cgroup/cpu,cpuacct";
        let of = |time: &str| {
            let (quota_file, period_file) =
                (format!("{mount}/a/cpu.cfs_quota_us"), format!("{mount}/a/cpu.cfs_period_us"));
            quota(FakeSystem::new(&[own, (&quota_file, time), (&period_file, "100000")]).root())
        };
        assert_eq!((of("250000"), of("-1")), (Some(2.5), None));
    }
}
