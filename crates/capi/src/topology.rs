//! The CPUs of this machine, with sockets numbered from 0.

use std::path::Path;
use std::sync::Arc;

use girih::tools::{Topology, pin_to};

use crate::handles::Handles;
use crate::status::{Fault, Result};

/// The topologies that callers have read.
pub static TOPOLOGIES: Handles<Topology> = Handles::new("topology", 4);

/// Reads this machine's CPUs and returns a handle. A machine whose system does not list them has one socket.
///
/// # Errors
/// When the table of handles is full.
pub fn open() -> Result<usize> {
    let cores = girih::default_threads();
    TOPOLOGIES.insert(Arc::new(Topology::read(Path::new("/")).unwrap_or_else(|| Topology::uniform(cores))))
}

/// The index of a CPU's socket among those of the machine.
pub fn socket_of(topology: &Topology, cpu: i32) -> Option<usize> {
    let processors = topology.processors();
    let own = processors.iter().find(|processor| usize::try_from(cpu) == Ok(processor.number))?.socket;
    sockets(topology).iter().position(|socket| *socket == own)
}

/// The NUMA node of a CPU.
pub fn node_of(topology: &Topology, cpu: i32) -> Option<usize> {
    let is_it = |number| usize::try_from(cpu) == Ok(number);
    topology.processors().iter().find(|processor| is_it(processor.number)).map(|processor| processor.node)
}

/// The lowest CPU of the socket with this index.
pub fn first_cpu_on(topology: &Topology, socket: i32) -> Option<usize> {
    cpus_on(topology, socket)?.into_iter().min()
}

/// Pins the calling thread to all CPUs of the socket with this index.
///
/// # Errors
/// When there is no such socket, or the system refuses.
pub fn bind_to(topology: &Topology, socket: i32) -> Result<()> {
    let count = topology.sockets();
    let missing =
        || Fault::argument(format!("there is no socket {socket}; this machine has {count}, numbered from 0"));
    Ok(pin_to(&cpus_on(topology, socket).ok_or_else(missing)?)?)
}

/// The CPUs of the socket with this index.
fn cpus_on(topology: &Topology, socket: i32) -> Option<Vec<usize>> {
    let socket = *sockets(topology).get(usize::try_from(socket).ok()?)?;
    let on_it = topology.processors().iter().filter(|processor| processor.socket == socket);
    Some(on_it.map(|processor| processor.number).collect())
}

/// The system's numbers of the sockets, in order.
fn sockets(topology: &Topology) -> Vec<usize> {
    let mut sockets: Vec<usize> = topology.processors().iter().map(|processor| processor.socket).collect();
    sockets.sort_unstable();
    sockets.dedup();
    sockets
}
