//! The functions `ie_topology_…`: the sockets and NUMA nodes of this machine.
// The contract of each function is its comment, which the header repeats for C.
#![allow(unsafe_code, clippy::missing_safety_doc)]

use std::ffi::c_int;
use std::ptr;

use super::pointers::place;
use crate::calls::caught;
use crate::status::{Result, Status};
use crate::topology::{self, TOPOLOGIES};

/// What `ie_topology_init` returns when memory does not suffice: ENOMEM of Linux, negative.
const NO_MEMORY: c_int = -12;
/// What it returns for any other fault: EINVAL of Linux, negative.
const INVALID: c_int = -22;

/// The CPUs of this machine. A handle is a number: one that was destroyed is refused, never followed.
#[derive(Debug)]
pub struct TopologyHandle;

/// Reads the CPUs of this machine and stores a handle, or null. Returns 0, or a negative number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ie_topology_init(topo: *mut *mut TopologyHandle) -> c_int {
    let opened = caught(|| {
        // SAFETY: the place is null or the caller's.
        let out = unsafe { place("topo", topo) }?;
        *out = ptr::null_mut();
        *out = ptr::without_provenance_mut(topology::open()?);
        Ok(())
    });
    match opened {
        Ok(()) => 0,
        Err(fault) if fault.status == Status::OutOfMemory => NO_MEMORY,
        Err(_) => INVALID,
    }
}

/// Destroys a topology. Null is allowed, and a handle that was destroyed is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_destroy(topo: *mut TopologyHandle) {
    if !topo.is_null() {
        // A fault is kept for girih_last_error.
        let _ = caught(|| TOPOLOGIES.remove(topo.addr()).map(drop));
    }
}

/// Returns the number of CPUs that are online, or 0 for a handle that is none.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_cpus(topo: *const TopologyHandle) -> c_int {
    number(|| Ok(Some(TOPOLOGIES.get(topo.addr())?.processors().len()))).unwrap_or(0)
}

/// Returns the number of sockets, or 0 for a handle that is none.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_sockets(topo: *const TopologyHandle) -> c_int {
    number(|| Ok(Some(TOPOLOGIES.get(topo.addr())?.sockets()))).unwrap_or(0)
}

/// Returns the number of NUMA nodes with CPUs, or 0 for a handle that is none.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_nodes(topo: *const TopologyHandle) -> c_int {
    number(|| Ok(Some(TOPOLOGIES.get(topo.addr())?.nodes()))).unwrap_or(0)
}

/// Returns the socket of a CPU, from 0 in the order of the system's numbers, or -1 if there is no such CPU.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_cpu_to_socket(topo: *const TopologyHandle, cpu: c_int) -> c_int {
    number(|| Ok(topology::socket_of(&*TOPOLOGIES.get(topo.addr())?, cpu))).unwrap_or(-1)
}

/// Returns the NUMA node of a CPU, or -1 if there is no such CPU.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_cpu_to_node(topo: *const TopologyHandle, cpu: c_int) -> c_int {
    number(|| Ok(topology::node_of(&*TOPOLOGIES.get(topo.addr())?, cpu))).unwrap_or(-1)
}

/// Returns the lowest CPU of a socket, or -1 if there is no such socket.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_first_cpu_on_socket(topo: *const TopologyHandle, socket: c_int) -> c_int {
    number(|| Ok(topology::first_cpu_on(&*TOPOLOGIES.get(topo.addr())?, socket))).unwrap_or(-1)
}

/// Pins the calling thread to the CPUs of a socket; threads that it starts later inherit them. Returns 0, or a negative
/// number if there is no such handle or socket, or the system refuses.
#[unsafe(no_mangle)]
pub extern "C" fn ie_topology_bind_thread_to_socket(topo: *const TopologyHandle, socket: c_int) -> c_int {
    match caught(|| topology::bind_to(&*TOPOLOGIES.get(topo.addr())?, socket)) {
        Ok(()) => 0,
        Err(_) => INVALID,
    }
}

/// The number that the work finds, if there is one and it fits.
fn number(work: impl FnOnce() -> Result<Option<usize>>) -> Option<c_int> {
    c_int::try_from(caught(work).ok()??).ok()
}
