//! The backend: its options, and the parts of the crate that each call uses.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use girih_graph::backend::{Backend, Refusal, Step, WeightSource, WeightTouch};
use girih_graph::description::Services;
use girih_graph::store::Store;
use girih_graph::{
    AppliedOp, Error, ErrorKind, Graph, HostRows, Key, MemoryPlan, Numerics, PoolBytes, Value,
};
use girih_tensor::DType;

use crate::activations::{ActivationKind, ActivationPrecision, PrecisionRule};
use crate::affinity::{self, Affinity};
use crate::equal_weights::EqualWeights;
use crate::kernels::packed::Layout;
use crate::kernels::prefetch::PrefetchChoice;
use crate::kernels::{self, Table};
use crate::memory_policy::{MemoryPolicy, PagePlacement};
use crate::packed_store::Residence;
use crate::pool::{ThreadPool, check_threads};
use crate::present::ZeroBlocks;
use crate::probe::{HostMachine, default_threads};
use crate::replicate::{self, HotWeights};
use crate::row_table::TablesInFile;
use crate::run::CpuProgram;
use crate::socket::ThreadSockets;
use crate::state::CpuState;
use crate::topology::Topology;
use crate::weights::{AwaitPacked, CpuWeights, PackingRule};
use crate::{lower, prefetch_distance};

/// How the backend uses the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuOptions {
    /// The number of threads, the caller included (does not affect results).
    pub threads: usize,
    /// The precision to which activations are rounded before matmuls. [`INFO`](crate::INFO) opens a backend
    /// whose processor may decide it.
    pub precision: PrecisionRule,
    /// Whether threads are pinned to CPUs. The thread that loads the weights is one of them, and
    /// stays pinned until it drops the backend.
    pub affinity: Affinity,
    /// Where cached packed weights reside.
    pub residence: Residence,
    /// Whether blocks of zeros are skipped (does not affect results).
    pub zero_blocks: ZeroBlocks,
    /// The most bytes that copies of hot weights for all sockets take; without it nothing is copied (does not affect
    /// results). Machines with one socket copy nothing.
    pub hot_replicate: Option<u64>,
    /// Where the pages of packed weights lie, unless the system decides (does not affect results).
    pub memory_policy: Option<MemoryPolicy>,
    /// Whether equal weights share memory (does not affect results).
    pub equal_weights: EqualWeights,
    /// Which newly packed weights the store waits for until they are written (does not affect results).
    pub await_packed: AwaitPacked,
}

impl Default for CpuOptions {
    /// The defaults for this machine: [`default_threads`] and automatic affinity. The rule of precision is the same
    /// on every machine.
    fn default() -> CpuOptions {
        CpuOptions {
            threads: default_threads(),
            precision: PrecisionRule::default(),
            affinity: Affinity::default(),
            residence: Residence::default(),
            zero_blocks: ZeroBlocks::default(),
            hot_replicate: None,
            memory_policy: None,
            equal_weights: EqualWeights::default(),
            await_packed: AwaitPacked::default(),
        }
    }
}

/// The backend that runs graphs on the host's CPU. Its threads start when it loads weights.
#[derive(Debug)]
pub struct Cpu {
    table: Table,
    threads: usize,
    /// The CPUs of each thread, if threads are pinned.
    cpus: Option<Vec<Vec<usize>>>,
    pool: OnceCell<ThreadPool>,
    precision: PrecisionRule,
    residence: Residence,
    zero_blocks: ZeroBlocks,
    hot_replicate: Option<u64>,
    sockets: ThreadSockets,
    placement: Option<PagePlacement>,
    equal_weights: EqualWeights,
    await_packed: AwaitPacked,
    store: Option<Box<dyn Store>>,
    services: Option<RowServices>,
}

/// The program, which knows the tables that may stay in their file.
struct RowServices(Arc<dyn Services>);

impl fmt::Debug for RowServices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RowServices")
    }
}

impl Cpu {
    /// Creates a backend with the best kernels that the machine can run.
    ///
    /// # Errors
    /// If `threads` is 0, threads are to be pinned and no CPUs are known, hot weights are to be copied for threads that
    /// are not pinned, or the memory policy names a node without memory or weights in a file.
    pub fn new(options: CpuOptions) -> Result<Cpu, Error> {
        Cpu::with_table(options, kernels::tables()[0])
    }

    /// Creates a backend with these kernels.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub fn with_table(options: CpuOptions, table: Table) -> Result<Cpu, Error> {
        Cpu::on_machine(options, table, HostMachine::here())
    }

    /// Creates a backend for a machine of this shape, such as a made-up one in tests. Its CPUs must exist if threads are
    /// pinned.
    ///
    /// # Errors
    /// As [`Cpu::new`].
    pub fn on_machine(options: CpuOptions, table: Table, machine: &HostMachine) -> Result<Cpu, Error> {
        let topology = &machine.topology;
        let CpuOptions { threads, precision, affinity, residence, zero_blocks, equal_weights, .. } = options;
        check_threads(threads)?;
        let cpus = affinity::thread_cpus(affinity, topology, threads)?;
        check_replication(options, topology, cpus.is_some())?;
        let placement = placement(options, &machine.memory_nodes)?;
        let sockets = ThreadSockets::of(topology, cpus.as_deref());
        Ok(Cpu {
            table,
            threads,
            cpus,
            pool: OnceCell::new(),
            precision: precision.for_table(&table),
            residence,
            zero_blocks,
            hot_replicate: options.hot_replicate,
            sockets,
            placement,
            equal_weights,
            await_packed: options.await_packed,
            store: None,
            services: None,
        })
    }

    /// Caches packed weights in `store` for the next run.
    pub fn with_store(self, store: Box<dyn Store>) -> Cpu {
        Cpu { store: Some(store), ..self }
    }

    /// Reads the rows of tables that `services` lets stay in their file in each step.
    pub fn with_rows(self, services: Arc<dyn Services>) -> Cpu {
        Cpu { services: Some(RowServices(services)), ..self }
    }

    /// The tables of a graph that stay in their file.
    fn in_file(&self, graph: &Graph) -> TablesInFile {
        TablesInFile::of(graph, self.services.as_ref().map(|services| &*services.0))
    }

    /// The weights of a graph that each socket has a copy of.
    fn hot(&self, graph: &Graph, in_file: &TablesInFile) -> HotWeights {
        let of = |limit| HotWeights::of(graph, in_file, limit, self.sockets.count());
        self.hot_replicate.map(of).unwrap_or_default()
    }

    /// What `tuning` says of copies of hot weights, if they were asked for.
    fn replication(&self, weights: &CpuWeights) -> Option<String> {
        let limit = self.hot_replicate?;
        let sockets = self.sockets.count();
        Some(match weights.copied() {
            _ if sockets < 2 => "no copies of hot weights, as all threads run on one socket".to_owned(),
            (0, _) => {
                format!("no copies of hot weights, as none fits into {limit} bytes for {sockets} sockets")
            }
            (count, bytes) => {
                format!("{count} hot matrices copied to each of {sockets} sockets, {bytes} bytes in all")
            }
        })
    }

    /// The number of tasks that the threads have shared so far; a single thread shares none.
    pub fn tasks(&self) -> u64 {
        self.pool.get().map_or(0, ThreadPool::tasks)
    }

    /// The threads. The first call starts them, and its thread becomes one of them: pinning is
    /// inherited and concerns the thread that runs the steps.
    ///
    /// # Errors
    /// If the system starts fewer threads or does not pin them.
    fn pool(&self) -> Result<&ThreadPool, Error> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        let pool = ThreadPool::on_sockets(self.threads, self.cpus.clone(), &self.sockets.of_threads)?;
        Ok(self.pool.get_or_init(|| pool))
    }
}

/// Refuses copies for threads that may run on any socket.
fn check_replication(options: CpuOptions, topology: &Topology, is_pinned: bool) -> Result<(), Error> {
    if options.hot_replicate.is_none() || is_pinned || topology.sockets() < 2 {
        return Ok(());
    }
    let sentence = format!(
        "hot-replicate needs pinned threads, but {} threads run on any of {} cores; \
         choose affinity compact or scatter",
        options.threads,
        topology.cores()
    );
    Err(Error::with_kind(ErrorKind::Refused, sentence))
}

/// Where the pages of weights lie, on a machine whose nodes with memory these are.
fn placement(options: CpuOptions, nodes: &[usize]) -> Result<Option<PagePlacement>, Error> {
    let Some(policy) = options.memory_policy else { return Ok(None) };
    if options.residence == Residence::File {
        let sentence = format!(
            "memory-policy {} places weights in memory, but weights are mapped from their file; \
             choose weights read",
            policy.name()
        );
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    policy.on(nodes).map(Some)
}

impl Backend for Cpu {
    type Weights = CpuWeights;
    type State = CpuState;
    type Program = CpuProgram;
    type Output = HostRows;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn kernels(&self) -> String {
        self.table.name.to_owned()
    }

    /// The kernels, and the formats for which they have no fast path.
    fn describe(&self, graph: &Graph) -> String {
        let is_slow = |dtype: DType| {
            matches!(Layout::of(dtype), Layout::Stored(_))
                && graph.weights().any(|(_, value)| value.dtype == dtype)
        };
        let slow = DType::ALL.iter().filter(|&&dtype| is_slow(dtype)).map(|dtype| dtype.name());
        let slow: Vec<_> = slow.collect();
        let rest = if slow.is_empty() {
            String::new()
        } else {
            format!(", {} decoded by portable code and multiplied as floats", slow.join(", "))
        };
        format!("cpu, {} kernels{rest}", self.table.name)
    }

    fn numerics(&self, graph: &Graph) -> Numerics {
        lower::numerics(graph, self.precision, &self.table)
    }

    fn machine_default(&self, graph: &Graph) -> Option<String> {
        let PrecisionRule::Bf16Products { processor } = self.precision else { return None };
        let mut used = ActivationKind::of_graph(graph, self.precision);
        used.any(|kind| kind.precision() == ActivationPrecision::Bf16).then(|| {
            format!(
                "BF16 weights are multiplied by bf16 activations, the default on {processor}; \
                 act-precision f32 keeps f32"
            )
        })
    }

    fn ladder(&self, max: Key) -> Vec<Key> {
        vec![max]
    }

    /// `Binder::bind` has an arm for every op; its refusals are objections.
    fn knows(&self, _: &AppliedOp<&Value>) -> bool {
        true
    }

    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        lower::objections(graph, self.precision)
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let in_file = self.in_file(graph);
        MemoryPlan::on_host(PoolBytes {
            weights: CpuWeights::plan(graph, &in_file)
                .saturating_add(self.hot(graph, &in_file).bytes(self.sockets.count())),
            in_file: in_file.bytes(graph),
            state: CpuState::plan(graph, blocks),
            scratch: CpuProgram::plan(graph, self.threads, self.precision),
            output: HostRows::plan(graph),
            staging: 0,
        })
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<CpuWeights, Error> {
        let pool = self.pool()?;
        let in_file = &self.in_file(graph);
        let rule = PackingRule {
            in_file,
            zero_blocks: self.zero_blocks,
            equal_weights: self.equal_weights,
            placement: self.placement.as_ref(),
            awaited: self.await_packed,
        };
        let kept = (self.store.as_deref(), self.residence);
        let mut weights = CpuWeights::load(graph, source, kept, rule, (&self.table, pool))?;
        if self.precision == PrecisionRule::Fp16Products {
            weights.check_fp16_sums(graph)?;
        }
        let hot = self.hot(graph, in_file);
        if !hot.names.is_empty() {
            weights.replicate(&hot.names, |bytes| replicate::copies(bytes, &self.sockets.cpus))?;
        }
        weights.set_prefetch(prefetch_distance::choose(&self.table, pool, &weights));
        Ok(weights)
    }

    fn tuning(&self, weights: &CpuWeights) -> Option<String> {
        let PrefetchChoice { few, many, .. } = weights.matrices().next()?.prefetch();
        let [present, all] = weights.sparse_bytes();
        let zeros = if all > 0 {
            let (count, percent) = (weights.densities().len(), 100.0 * present as f64 / all as f64);
            format!("; {count} weights without their blocks of zeros, {percent:.0} % of their bytes")
        } else {
            String::new()
        };
        let equal = match weights.shared() {
            (0, _) => String::new(),
            (count, bytes) => {
                format!("; {count} weights share the memory of earlier equal ones, which saves {bytes} bytes")
            }
        };
        let copies = self.replication(weights).map_or(String::new(), |copies| format!("; {copies}"));
        let (few, many) = (few.name(), many.name());
        let prefetch = format!("prefetch distance {few} for one row per step, {many} for several");
        Some(format!("{prefetch}{zeros}{equal}{copies}"))
    }

    fn densities(&self, weights: &CpuWeights) -> Vec<(String, f64)> {
        weights.densities()
    }

    fn touch(&self, weights: &CpuWeights, touch: WeightTouch) -> Option<u8> {
        weights.touch(touch)
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<CpuState, Error> {
        CpuState::new(graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &CpuWeights) -> Result<CpuProgram, Error> {
        CpuProgram::new(graph, weights, self.threads, self.precision)
    }

    fn output(&self, graph: &Graph) -> Result<HostRows, Error> {
        HostRows::new(graph)
    }

    fn run(
        &self,
        program: &CpuProgram,
        weights: &CpuWeights,
        state: &mut CpuState,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<(), Error> {
        program.run((&self.table, self.pool()?), weights, (state, output), step, None)
    }

    fn run_node(
        &self,
        program: &CpuProgram,
        weights: &CpuWeights,
        state: &mut CpuState,
        output: &mut HostRows,
        step: Step<'_>,
        node: &str,
    ) -> Result<(), Error> {
        program.run((&self.table, self.pool()?), weights, (state, output), step, Some(node))
    }
}
