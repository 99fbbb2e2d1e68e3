//! The backend for the host's CPU: kernels, threads, and the lowering of graphs to lists of
//! instructions. It knows no models, text or requests.
//!
//! Results do not depend on the number of threads, on the number of rows in a step, or on other
//! sequences: every sum has one fixed order.
//!
//! ```
//! use girih_cpu::{Cpu, CpuOptions};
//! use girih_graph::Backend;
//!
//! let cpu = Cpu::new(CpuOptions::default())?;
//! assert_eq!(cpu.name(), "cpu");
//! # Ok::<(), girih_graph::Error>(())
//! ```
#![deny(unsafe_code)]

mod activations;
pub mod affinity;
mod amount;
mod barrier;
mod fuse;
mod instruction;
pub mod kernels;
pub mod limits;
mod lower;
mod memory;
mod ops;
mod os;
mod pack;
mod packed_store;
mod pool;
#[cfg(test)]
mod pool_timing;
mod prefetch;
pub mod prefetch_distance;
mod probe;
mod run;
mod state;
pub mod topology;
mod weights;

use girih_graph::backend::{Backend, MemoryPlan, Refusal, Step, WeightSource};
use girih_graph::{Error, Graph, Key, Numerics, Op};

pub use activations::ActivationPrecision;
pub use affinity::Affinity;
pub use os::set_lowest_priority;
pub use packed_store::{PackKey, PackReader, PackWriter, PackedStore, Residence, UnsavedPack};
pub use probe::{HostMachine, default_threads, huge_pages};
pub use run::CpuProgram;
pub use state::CpuState;
pub use weights::CpuWeights;

use kernels::Table;
use pool::ThreadPool;

/// How the backend uses the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// The number of threads, the caller included (does not affect results).
    pub threads: usize,
    /// The precision to which activations are rounded before matmuls; by default int8 for quantized
    /// weights and f32 for float weights.
    pub precision: Option<ActivationPrecision>,
    /// Whether threads are pinned to CPUs. The thread that creates the backend is one of them
    /// until it drops the backend.
    pub affinity: Affinity,
    /// Where cached packed weights reside.
    pub residence: Residence,
}

impl Default for CpuOptions {
    /// The defaults for this machine: [`default_threads`] and automatic affinity.
    fn default() -> CpuOptions {
        CpuOptions {
            threads: default_threads(),
            precision: None,
            affinity: Affinity::default(),
            residence: Residence::default(),
        }
    }
}

/// The backend that runs graphs on the host's CPU.
#[derive(Debug)]
pub struct Cpu {
    table: Table,
    pool: ThreadPool,
    precision: Option<ActivationPrecision>,
    residence: Residence,
    store: Option<Box<dyn PackedStore>>,
}

impl Cpu {
    /// Creates a backend with the best kernels that the machine can run.
    ///
    /// # Errors
    /// If `threads` is 0, or the system starts fewer threads or does not pin them.
    pub fn new(options: CpuOptions) -> Result<Cpu, Error> {
        Cpu::with_table(options, kernels::tables()[0])
    }

    /// Creates a backend with these kernels.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub fn with_table(options: CpuOptions, table: Table) -> Result<Cpu, Error> {
        let topology = &HostMachine::here().topology;
        let cpus = affinity::thread_cpus(options.affinity, topology, options.threads)?;
        let pool = ThreadPool::pinned(options.threads, cpus)?;
        let CpuOptions { precision, residence, .. } = options;
        Ok(Cpu { table, pool, precision, residence, store: None })
    }

    /// Caches packed weights in `store` for the next run.
    pub fn with_store(self, store: Box<dyn PackedStore>) -> Cpu {
        Cpu { store: Some(store), ..self }
    }

    /// The number of tasks that the threads have shared so far; a single thread shares none.
    pub fn tasks(&self) -> u64 {
        self.pool.tasks()
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Table {
        &self.table
    }
}

impl Backend for Cpu {
    type Weights = CpuWeights;
    type State = CpuState;
    type Program = CpuProgram;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn kernels(&self) -> String {
        self.table.name.to_owned()
    }

    fn numerics(&self, graph: &Graph) -> Numerics {
        lower::numerics(graph, self.precision, &self.table)
    }

    fn ladder(&self, max: Key) -> Vec<Key> {
        vec![max]
    }

    fn knows(&self, op: Op) -> bool {
        lower::knows(op)
    }

    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        lower::objections(graph, self.precision)
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        MemoryPlan {
            weights: CpuWeights::plan(graph),
            state: CpuState::plan(graph, blocks),
            scratch: CpuProgram::plan(graph, self.pool.threads(), self.precision),
        }
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<CpuWeights, Error> {
        let weights = CpuWeights::load(graph, source, self.store.as_deref(), self.residence, &self.pool)?;
        prefetch_distance::choose(&self.table, &self.pool, &weights);
        Ok(weights)
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<CpuState, Error> {
        CpuState::new(graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &CpuWeights) -> Result<CpuProgram, Error> {
        CpuProgram::new(graph, weights, self.pool.threads(), self.precision)
    }

    fn run(
        &self,
        program: &CpuProgram,
        weights: &CpuWeights,
        state: &mut CpuState,
        step: Step<'_>,
    ) -> Result<(), Error> {
        program.run(&self.table, &self.pool, weights, state, step);
        Ok(())
    }
}
