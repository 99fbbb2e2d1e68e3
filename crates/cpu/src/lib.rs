//! The backend for the host's processor: kernels, threads, and the lowering of
//! graphs to lists of calls. It knows no models, text or requests.
//!
//! Results do not depend on the number of threads, on how many rows a step
//! brings, or on what other sequences do: every sum has one fixed order.
//!
//! ```
//! use girih_cpu::{Cpu, Options};
//! use girih_graph::Backend;
//!
//! let cpu = Cpu::new(Options::default())?;
//! assert_eq!(cpu.name(), "cpu");
//! # Ok::<(), girih_graph::Error>(())
//! ```
#![deny(unsafe_code)]

pub mod affinity;
mod amount;
mod arrange;
mod barrier;
mod coming;
mod fuse;
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
mod probe;
pub mod read_ahead;
pub mod replicate;
mod run;
pub mod scaling;
mod state;
pub mod topology;
mod weights;

use girih_graph::backend::{Backend, MemoryPlan, Refusal, Step, WeightSource};
use girih_graph::{Error, Graph, Key, Op};

pub use affinity::Affinity;
pub use arrange::Precision;
pub use lower::{activations, output_activations};
pub use os::run_last;
pub use packed_store::{PackKey, PackReader, PackWriter, PackedStore, Residence, Unkept};
pub use probe::{Machine, default_threads, huge_pages};
pub use replicate::Replicate;
pub use run::Program;
pub use state::Cache;
pub use weights::Weights;

use kernels::Table;
use pool::Pool;

/// How the backend is to use the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Threads that compute, the caller's included; results do not depend on it.
    pub threads: usize,
    /// What activations are rounded to before they meet weights; by default
    /// bytes where weights are quantized, and nothing where weights are floats.
    pub precision: Option<Precision>,
    /// Whether threads stay on processors. The caller is one of the threads: it
    /// is the thread that makes the backend, until the backend is dropped there.
    pub affinity: Affinity,
    /// Whether weights are copied into the memory of each socket.
    pub replicate: Replicate,
    /// Where weights that a store has kept are while they are used.
    pub residence: Residence,
}

impl Default for Options {
    /// What suits the machine: [`default_threads`], placed by themselves.
    fn default() -> Options {
        Options {
            threads: default_threads(),
            precision: None,
            affinity: Affinity::default(),
            replicate: Replicate::default(),
            residence: Residence::default(),
        }
    }
}

/// The backend that runs graphs on the host's processor.
#[derive(Debug)]
pub struct Cpu {
    table: Table,
    pool: Pool,
    precision: Option<Precision>,
    residence: Residence,
    store: Option<Box<dyn PackedStore>>,
}

impl Cpu {
    /// The backend with the best kernels that the machine can run.
    ///
    /// # Errors
    /// When no threads are asked for, the system gives fewer or does not let
    /// them stay where they are to, or copies of weights are asked for on a
    /// machine of several sockets.
    pub fn new(options: Options) -> Result<Cpu, Error> {
        Cpu::with_table(options, kernels::tables()[0])
    }

    /// The backend with kernels of the caller's choice.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub fn with_table(options: Options, table: Table) -> Result<Cpu, Error> {
        let topology = &Machine::here().topology;
        replicate::check(options.replicate, topology.sockets())?;
        let places = affinity::places(options.affinity, topology, options.threads)?;
        let pool = Pool::placed(options.threads, places)?;
        let Options { precision, residence, .. } = options;
        Ok(Cpu { table, pool, precision, residence, store: None })
    }

    /// The same, but packed weights are kept in `store` for the next start.
    pub fn with_store(self, store: Box<dyn PackedStore>) -> Cpu {
        Cpu { store: Some(store), ..self }
    }

    /// How many tasks its threads have shared so far: so often they had to meet.
    /// A single thread meets nobody.
    pub fn tasks(&self) -> u64 {
        self.pool.tasks()
    }

    /// The kernels in use.
    pub fn kernels(&self) -> &Table {
        &self.table
    }
}

impl Backend for Cpu {
    type Weights = Weights;
    type State = Cache;
    type Program = Program;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn ladder(&self, most: Key) -> Vec<Key> {
        vec![most]
    }

    fn knows(&self, op: Op) -> bool {
        lower::knows(op)
    }

    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        lower::objections(graph, self.precision)
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        MemoryPlan {
            weights: Weights::plan(graph),
            state: Cache::plan(graph, blocks),
            scratch: Program::plan(graph, self.pool.threads(), self.precision),
        }
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<Weights, Error> {
        let weights = Weights::load(graph, source, self.store.as_deref(), self.residence, &self.pool)?;
        read_ahead::choose(&self.table, &self.pool, &weights);
        Ok(weights)
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<Cache, Error> {
        Cache::new(graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &Weights) -> Result<Program, Error> {
        Program::new(graph, weights, self.pool.threads(), self.precision)
    }

    fn run(
        &self,
        program: &Program,
        weights: &Weights,
        state: &mut Cache,
        step: Step<'_>,
    ) -> Result<(), Error> {
        program.run(&self.table, &self.pool, weights, state, step);
        Ok(())
    }
}
