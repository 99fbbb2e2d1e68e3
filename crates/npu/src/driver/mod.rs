//! The runtime: buffer objects, weights that stay on the device, programs and
//! their bindings, and what a step costs.

mod compiler;
mod estimate;
mod program;
mod run;
mod weights;

use girih_tensor::{Error, Result};

use crate::Target;
use crate::form::schedule::Schedule;
use crate::host::Work;
use crate::memory::{Binding, Memory, ObjectId, Objects};
use crate::sim::{Order, Simulator, Unwatched};

<<<<<<< HEAD
pub use compiler::{Compiled, Compiler};
pub use estimate::{Costs, Estimate, Timed, costs, estimate};
=======
pub use compiler::{Compiled, Compiler, Tell};
pub use estimate::{Estimate, Timed, estimate};
>>>>>>> 1413c95 (npu: the backend keeps compiled programs on disk, within a limit; what is refused is told of and replaced)
pub use program::Program;
pub use weights::Weights;

/// The array with its memory.
#[derive(Debug)]
pub struct Device {
    simulator: Simulator,
    objects: Objects,
    order: Order,
    /// What has been done so far.
    pub ledger: Ledger,
}

/// What steps have cost: counted by the runtime, timed by the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Programs submitted.
    pub submissions: u64,
    /// Launches in them.
    pub launches: u64,
    /// Cycles from each dispatch to its end, added up.
    pub array_cycles: u64,
    /// Of these, configuring the array.
    pub configure_cycles: u64,
    /// Bytes that the host wrote for the array, in weights.
    pub preloaded_bytes: u64,
    /// Bytes that the host wrote for the array, in steps.
    pub written_bytes: u64,
    /// Bytes that the host read of what the array wrote.
    pub read_bytes: u64,
    /// What the host computed.
    pub host: Work,
}

impl Device {
    /// An array of this target, simulated, with no memory yet.
    ///
    /// # Errors
    /// When no kernel times are known for its cores.
    pub fn new(target: &Target, order: Order) -> Result<Device> {
        let (simulator, objects) = (Simulator::new(target)?, Objects::new());
        Ok(Device { simulator, objects, order, ledger: Ledger::default() })
    }

    /// The target.
    pub fn target(&self) -> &Target {
        self.simulator.target()
    }

    /// Whether runs look for accesses that nothing orders.
    pub fn look_for_hazards(&mut self, look: bool) {
        self.simulator.look_for_hazards(look);
    }

    /// A new buffer object of zeros.
    ///
    /// # Errors
    /// When memory is short.
    pub fn allocate(&mut self, bytes: u64) -> Result<ObjectId> {
        self.objects.add(bytes)
    }

    /// Bytes of a buffer object as the host sees them after a sync.
    pub fn map(&self, object: ObjectId) -> &[u8] {
        self.objects.bytes(object)
    }

    /// Bytes of a buffer object, for the host to write.
    pub fn map_mut(&mut self, object: ObjectId) -> &mut [u8] {
        self.objects.bytes_mut(object)
    }

    /// Bytes of all buffer objects.
    pub fn bytes(&self) -> u64 {
        self.objects.total()
    }

    /// Runs a program.
    ///
    /// # Errors
    /// With the fault that the simulator found.
    pub fn submit(&mut self, schedule: &Schedule, bindings: &[Binding]) -> Result<()> {
        if bindings.len() != schedule.arguments.len() {
            let (have, need) = (bindings.len(), schedule.arguments.len());
            return Err(Error::new(format!("{}: {have} bindings; {need} are needed", schedule.name)));
        }
        let mut memory = Memory::Values(&mut self.objects);
        let report = self.simulator.run(schedule, bindings, &mut memory, &mut Unwatched, self.order);
        let report = report.map_err(|fault| Error::from(fault).of(&schedule.name))?;
        self.ledger.submissions += 1;
        self.ledger.launches += schedule.launches.len() as u64;
        self.ledger.array_cycles += report.cycles;
        self.ledger.configure_cycles += report.configure;
        Ok(())
    }
}

impl Ledger {
    /// Adds a piece of the host's work.
    fn add(&mut self, work: Work) {
        self.host.flops += work.flops;
        self.host.bytes += work.bytes;
    }

    /// Seconds that the array took.
    pub fn array_seconds(&self, target: &Target) -> f64 {
        target.seconds(self.array_cycles)
    }

    /// Seconds that the host takes for its own work, by the figures of the
    /// target: the slower of computing and moving bytes.
    pub fn host_seconds(&self, target: &Target) -> f64 {
        let flops = self.host.flops as f64 / target.host.flops;
        let bytes = self.host.bytes as f64 / target.host.bytes_per_second;
        flops.max(bytes)
    }

    /// Seconds that making bytes visible to the other side takes.
    pub fn sync_seconds(&self, target: &Target) -> f64 {
        (self.written_bytes + self.read_bytes) as f64 / target.host.sync_bytes_per_second
    }
}
