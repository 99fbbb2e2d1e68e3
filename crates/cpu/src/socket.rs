//! The socket on which a thread of a pool runs. A thread tells it once, and code with memory for each socket asks.

use std::cell::Cell;

use crate::topology::Topology;

thread_local! {
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// The socket of this thread, among those of its pool. It is 0 in threads that have told none, such as a pool's caller.
pub(crate) fn of_this_thread() -> usize {
    OWN.get()
}

/// Sets the socket of this thread.
pub(crate) fn set_of_this_thread(socket: usize) {
    OWN.set(socket);
}

/// The threads of a pool, by socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ThreadSockets {
    /// The socket of each thread, numbered from 0 in the order of threads; none if threads are not pinned.
    pub of_threads: Vec<usize>,
    /// The CPUs on which threads of each socket run; none if threads are not pinned.
    pub cpus: Vec<Vec<usize>>,
}

impl ThreadSockets {
    /// The sockets of threads that are pinned to these CPUs; one socket if they are not pinned.
    ///
    /// # Panics
    /// If a thread has no CPU, or one that the topology does not list.
    pub fn of(topology: &Topology, cpus: Option<&[Vec<usize>]>) -> ThreadSockets {
        let Some(cpus) = cpus else {
            return ThreadSockets { of_threads: Vec::new(), cpus: vec![Vec::new()] };
        };
        let socket = |number| {
            let own = topology.processors().iter().find(|processor| processor.number == number);
            own.expect("threads are pinned to CPUs of the topology").socket
        };
        let (mut seen, mut of_threads, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for own in cpus {
            let socket = socket(*own.first().expect("a pinned thread has at least one CPU"));
            let index = seen.iter().position(|other| *other == socket).unwrap_or_else(|| {
                seen.push(socket);
                all.push(Vec::new());
                seen.len() - 1
            });
            of_threads.push(index);
            all[index].extend_from_slice(own);
        }
        ThreadSockets { of_threads, cpus: all }
    }

    /// The number of sockets.
    pub fn count(&self) -> usize {
        self.cpus.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::{Affinity, thread_cpus};
    use crate::topology::tests::server_topology;

    #[test]
    fn sockets_are_numbered_in_the_order_of_threads() {
        let topology = server_topology();
        let of = |affinity, threads: usize| {
            let cpus = thread_cpus(affinity, &topology, threads).unwrap();
            ThreadSockets::of(&topology, cpus.as_deref())
        };
        let two = of(Affinity::Compact, 8);
        assert_eq!(two.of_threads, [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(two.cpus, [vec![0, 8, 1, 9, 2, 10, 11], vec![4, 12, 5, 13, 6, 14, 7]]);
        assert_eq!(of(Affinity::Scatter, 2).count(), 1, "the nodes 0 and 1 are on one socket");
        assert_eq!(of(Affinity::Compact, 3).count(), 1, "a socket suffices");
        assert_eq!(of(Affinity::None, 8), ThreadSockets { of_threads: vec![], cpus: vec![vec![]] });
    }
}
