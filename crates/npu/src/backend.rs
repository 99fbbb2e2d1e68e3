//! The array as a backend of the waist: groups and schedules for each rung of
//! the ladder, run on the simulated device.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use girih_graph::backend::{Backend, MemoryPlan, Refusal, WeightSource};
use girih_graph::{Graph, Key, Step};
use girih_tensor::{Error, Result};

use crate::Target;
use crate::blob;
use crate::driver::{Compiled, Compiler, Device, Program, Runtime, Tell, Weights};
use crate::form::groups::Groups;
use crate::host::Cache;
use crate::pass::{self, Attention, Mapping, NoDump, Policy, Stays, partition};
use crate::sim::Order;

/// Why bytes may differ where a step has one row in one run and several in
/// another. The matrix unit sums each product's terms in order; the kernel of
/// single rows sums them in 64 sequences, since a row of weights is a row of its
/// vectors. The matrix kernel would have the order of steps of several rows, but
/// only at the times of another kernel, for which no figure is published.
pub const ONE_ROW: &str = "steps of one row sum products, and unless the mapping says otherwise attend, in \
    another order than steps of several rows: a prompt whose last chunk or whose uncached rest is one row, \
    and sequences that decode together, may get other bytes than without";

/// How the backend is to use the array. Nothing here changes a value but where
/// attention runs and, by their rounding, other programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How operations are grouped into programs.
    pub policy: Policy,
    /// In which order things happen that may happen in any.
    pub order: Order,
    /// Whether runs look for accesses that nothing orders.
    pub hazards: bool,
    /// How buffer objects, lists and completion are used.
    pub runtime: Runtime,
    /// Rows for which programs are compiled besides one and the largest step;
    /// a step runs on the least of them that holds it, padded.
    pub lengths: Vec<u32>,
    /// Positions for which programs are compiled in which the array attends,
    /// besides the longest sequence; a step runs on the least that holds it. No
    /// room is reserved ahead: keys and values are where the next program looks
    /// for them, too, so a sequence that outgrows one goes on at no cost.
    pub contexts: Vec<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::MLIR_AIR,
            order: Order::Earliest,
            hazards: true,
            runtime: Runtime::default(),
            lengths: vec![64, 256, 1024],
            contexts: vec![256, 1024],
        }
    }
}

/// The backend that runs graphs on a simulated array.
#[derive(Debug)]
pub struct Npu {
    compiler: Compiler,
    device: Mutex<Device>,
    runtime: Runtime,
    lengths: Vec<u32>,
    contexts: Vec<u32>,
}

impl Npu {
    /// The backend for the target of this name.
    ///
    /// # Errors
    /// When there is no such target.
    pub fn new(target: &str, options: Options) -> Result<Npu> {
        let target = Target::named(target)?;
        let Options { policy, order, hazards, runtime, lengths, contexts } = options;
        let mut device = Device::new(&target, order)?.with_runtime(runtime);
        device.look_for_hazards(hazards);
        let compiler = Compiler::new(target, policy, None);
        Ok(Npu { compiler, device: Mutex::new(device), runtime, lengths, contexts })
    }

    /// The same, but models are laid onto the array by this mapping.
    #[must_use]
    pub fn with_mapping(self, mapping: Mapping) -> Npu {
        Npu { compiler: Compiler::new(self.target().clone(), mapping, None), ..self }
    }

    /// The same with blobs on disk: what `cache` has is not compiled. `tell`
    /// hears why a blob was refused or could not be kept.
    #[must_use]
    pub fn with_blobs(self, cache: blob::Cache, tell: Tell) -> Npu {
        Npu { compiler: self.compiler.with_cache(cache).telling(tell), ..self }
    }

    /// The target.
    pub fn target(&self) -> &Target {
        self.compiler.target()
    }

    /// The device, with what it has counted.
    pub fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether the array may attend in steps of this key.
    fn attends(&self, key: Key) -> bool {
        let single = key.rows == 1;
        key.sequences == 1
            && match self.compiler.policy().attention {
                Attention::Host => false,
                Attention::Prefill => !single,
                Attention::Array => true,
            }
    }

    /// What of a graph the host computes, and why.
    pub fn stays(&self, graph: &Graph) -> Vec<Stays> {
        pass::stays(graph, self.target(), self.compiler.policy())
    }

    fn groups(&self, graph: &Graph) -> Result<Groups> {
        self.compiler.groups(graph, &mut NoDump)
    }
}

impl Backend for Npu {
    type Weights = Weights;
    type State = Cache;
    type Program = Program;

    fn name(&self) -> &'static str {
        "npu"
    }

    /// A program for a single row, for each length, and for the largest step;
    /// where the array attends, each for every context.
    fn ladder(&self, most: Key) -> Vec<Key> {
        let shorter = |lengths: &[u32], least: u32, most: u32| {
            let within = lengths.iter().copied().filter(move |&length| length >= least && length < most);
            within.chain([most]).collect::<BTreeSet<u32>>()
        };
        let mut keys = BTreeSet::new();
        for rows in shorter(&self.lengths, 2, most.rows).into_iter().chain([1]) {
            let sequences = most.sequences.min(rows);
            let key = Key { rows, sequences, output_rows: most.output_rows.min(rows), ..most };
            let contexts = if self.attends(key) { &self.contexts[..] } else { &[] };
            let contexts = shorter(contexts, rows, most.context).into_iter();
            keys.extend(contexts.map(|context| Key { context, ..key }));
        }
        keys.into_iter().collect()
    }

    fn refuses(&self, graph: &Graph) -> Vec<Refusal> {
        let nodes = graph.nodes.iter().enumerate();
        let refusals = nodes.filter_map(|(index, node)| {
            let reason = partition::refusal(graph, self.target(), self.compiler.policy(), index)?;
            Some(Refusal { node: graph.value(node.output).name.clone(), reason })
        });
        refusals.collect()
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let state = Cache::plan(graph, blocks);
        match self.groups(graph) {
            Ok(groups) => MemoryPlan {
                weights: Weights::plan(graph, &groups, self.runtime),
                state,
                scratch: Program::plan(graph, &groups, self.runtime),
            },
            // What cannot be cut is refused when it is compiled.
            Err(_) => MemoryPlan { weights: 0, state, scratch: 0 },
        }
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<Weights> {
        Weights::load(graph, &self.groups(graph)?, source, &mut self.device())
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<Cache> {
        Cache::new(graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &Weights) -> Result<Program> {
        let Compiled { groups, schedules, .. } = self.compiler.compile(graph, &mut NoDump)?;
        Program::new(graph, groups, &schedules, weights, &mut self.device())
    }

    fn run(
        &self,
        program: &Program,
        weights: &Weights,
        state: &mut Cache,
        step: Step<'_>,
    ) -> Result<(), Error> {
        program.run(&mut self.device(), weights, state, step)
    }
}
