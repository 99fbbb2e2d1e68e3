//! The default number of threads, and the CPUs to which threads are pinned.

use std::thread::{self, ThreadId};

use girih_graph::Error;

use crate::os;
use crate::topology::{Processor, Topology};

/// Whether threads are pinned to CPUs, and to which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// [`Affinity::Compact`] if the machine has several NUMA nodes and a core for every thread,
    /// otherwise [`Affinity::None`].
    ///
    /// With several nodes, a thread must stay near the weights that it touched first. With one node,
    /// all memory is equally near, and the system can move threads away from CPUs that other processes
    /// use.
    #[default]
    Auto,
    /// Each thread on a core of its own, one NUMA node after another.
    Compact,
    /// Each thread on a core of its own, spread evenly over all NUMA nodes.
    Scatter,
    /// Threads run on any CPU.
    None,
}

/// The default number of threads: one for each core, because the hyperthreads of a core share its
/// arithmetic units and its path to memory; but no more than the cgroup quota.
///
/// On a machine with a single core it is the number of hyperthreads, at most 2: virtual machines often
/// list separate cores as hyperthreads of one core.
pub fn default_threads(topology: &Topology, quota: Option<f64>) -> usize {
    let count = match topology.cores() {
        0 | 1 => topology.processors().len().clamp(1, 2),
        cores => cores,
    };
    quota.map_or(count, |quota| count.min(quota as usize)).max(1)
}

/// The CPUs to which each of `threads` threads is pinned; `None` if threads are not pinned. Threads of
/// one node have neighbouring indexes.
///
/// # Errors
/// If threads are to be pinned and no CPUs are known.
pub fn thread_cpus(
    affinity: Affinity,
    topology: &Topology,
    threads: usize,
) -> Result<Option<Vec<Vec<usize>>>, Error> {
    let compact = match affinity {
        Affinity::None => return Ok(None),
        Affinity::Auto if topology.nodes() < 2 || threads > topology.cores() => return Ok(None),
        Affinity::Auto | Affinity::Compact => true,
        Affinity::Scatter => false,
    };
    let mut order = ranked(topology, compact);
    if order.is_empty() {
        return Err(Error::new(
            "cannot pin threads: this system does not list its CPUs; use the affinity 'none'",
        ));
    }
    let alone = threads <= topology.cores();
    order = order.into_iter().cycle().take(threads).collect();
    order.sort_by_key(|processor| (processor.socket, processor.node, processor.core, processor.number));
    let siblings = |chosen: Processor| {
        let all = topology.processors().iter();
        all.filter(|processor| processor.core == chosen.core).map(|processor| processor.number).collect()
    };
    let cpus = |chosen: Processor| if alone { siblings(chosen) } else { vec![chosen.number] };
    Ok(Some(order.into_iter().map(cpus).collect()))
}

/// The CPUs in the order in which threads get them: the first hyperthread of each core before the
/// second of any, then node by node or alternating between nodes.
fn ranked(topology: &Topology, compact: bool) -> Vec<Processor> {
    let mut order: Vec<Processor> = topology.processors().to_vec();
    order.sort_by_key(|processor| (processor.socket, processor.node, processor.core, processor.number));
    let mut keys: Vec<(usize, usize, usize)> = (0..order.len())
        .map(|index| {
            let (own, before) = (order[index], &order[..index]);
            let hyperthread = before.iter().filter(|other| other.core == own.core).count();
            let in_node = before.iter().filter(|other| other.node == own.node).count();
            (hyperthread, if compact { 0 } else { in_node }, index)
        })
        .collect();
    keys.sort_unstable();
    keys.into_iter().map(|(_, _, index)| order[index]).collect()
}

/// The CPUs of a thread before it was pinned; dropping this in that thread restores them.
#[derive(Debug)]
pub(crate) struct FormerAffinity {
    thread: ThreadId,
    allowed: Vec<usize>,
    /// The CPUs to which the thread is pinned.
    pinned: Vec<usize>,
}

/// While it lives, a thread has its former CPUs; dropping it pins the thread again.
pub(crate) struct LentAffinity<'a>(&'a FormerAffinity);

impl FormerAffinity {
    /// The affinity of this thread, which is then pinned to `pinned`.
    ///
    /// # Errors
    /// If the system does not report it.
    pub fn of_this_thread(pinned: &[usize]) -> Result<FormerAffinity, Error> {
        let allowed = os::allowed_cpus()
            .ok_or_else(|| Error::new("this system cannot pin threads to CPUs; use the affinity 'none'"))?;
        Ok(FormerAffinity { thread: thread::current().id(), allowed, pinned: pinned.to_vec() })
    }

    /// Gives the thread its former CPUs until the result is dropped, if it is this thread.
    pub fn lend(&self) -> LentAffinity<'_> {
        self.set(&self.allowed);
        LentAffinity(self)
    }

    /// Lets the thread run on `cpus`, if it is this one.
    fn set(&self, cpus: &[usize]) {
        if thread::current().id() == self.thread {
            // If the system refuses, the thread stays where it is, and only its speed changes.
            os::pin_to(cpus).ok();
        }
    }
}

impl Drop for FormerAffinity {
    fn drop(&mut self) {
        self.set(&self.allowed);
    }
}

impl Drop for LentAffinity<'_> {
    fn drop(&mut self) {
        self.0.set(&self.0.pinned);
    }
}

/// Pins the calling thread to `cpus`.
///
/// # Errors
/// If the system refuses.
pub fn pin_to(cpus: &[usize]) -> Result<(), Error> {
    os::pin_to(cpus).map_err(|error| Error::new(format!("cannot pin a thread to the CPUs {cpus:?}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::server_topology;

    #[test]
    fn the_default_counts_cores_and_not_hyperthreads() {
        assert_eq!(default_threads(&server_topology(), None), 8);
        assert_eq!(default_threads(&Topology::uniform(6), None), 6);
        let (one_core, other) = (server_topology().restricted(&[1, 9]), server_topology().restricted(&[4]));
        assert_eq!((default_threads(&one_core, None), default_threads(&other, None)), (2, 1));
        assert_eq!(default_threads(&Topology::default(), None), 1);
    }

    #[test]
    fn the_default_is_within_the_cgroup_quota() {
        let of = |quota| default_threads(&Topology::uniform(8), Some(quota));
        assert_eq!([0.2, 1.0, 2.9, 8.0, 100.0].map(of), [1, 1, 2, 8, 8]);
    }

    #[test]
    fn compact_fills_node_after_node() {
        let of = |threads| thread_cpus(Affinity::Compact, &server_topology(), threads).unwrap().unwrap();
        assert_eq!(of(3), [vec![0, 8], vec![1, 9], vec![2, 10]]);
        assert_eq!(of(8).len(), 8);
        // More threads than cores: hyperthreads, then each CPU once more.
        let all = of(14);
        assert_eq!(all[..4], [vec![0], vec![8], vec![1], vec![9]]);
        assert_eq!(of(15).iter().filter(|cpus| **cpus == vec![0]).count(), 2);
    }

    #[test]
    fn scatter_uses_all_nodes_evenly() {
        let of = |threads| thread_cpus(Affinity::Scatter, &server_topology(), threads).unwrap().unwrap();
        assert_eq!(of(4), [vec![0, 8], vec![2, 10], vec![4, 12], vec![6, 14]]);
        assert_eq!(of(5), [vec![0, 8], vec![1, 9], vec![2, 10], vec![4, 12], vec![6, 14]]);
    }

    #[test]
    fn auto_pins_threads_only_if_there_are_several_nodes() {
        let auto = |topology: &Topology, threads| thread_cpus(Affinity::Auto, topology, threads).unwrap();
        assert_eq!(auto(&Topology::uniform(8), 8), None);
        assert_eq!(auto(&server_topology(), 9), None);
        let compact = thread_cpus(Affinity::Compact, &server_topology(), 8).unwrap();
        assert_eq!(auto(&server_topology(), 8), compact);
        assert_eq!(thread_cpus(Affinity::None, &server_topology(), 8).unwrap(), None);
    }

    #[test]
    fn pinning_on_an_unknown_machine_is_an_error() {
        for affinity in [Affinity::Compact, Affinity::Scatter] {
            let error = thread_cpus(affinity, &Topology::default(), 2).unwrap_err();
            assert!(error.to_string().contains("use the affinity 'none'"), "{error}");
        }
    }
}
