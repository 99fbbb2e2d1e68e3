//! The array as a backend of the waist: groups and schedules for each rung of
//! the ladder, run on the simulated device.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use girih_graph::backend::{Backend, HostWork, Refusal, WeightSource};
use girih_graph::state::PositionMajor;
use girih_graph::{
    AppliedOp, Graph, HostRows, InputSpec, Key, MemoryPlan, Numerics, PoolBytes, Rounding, Step, Value,
};
use girih_tensor::{DType, Error, Result};

use crate::blob::BlobFolder;
use crate::driver::{CompiledGraph, Compiler, Device, NpuProgram, NpuWeights, Runtime, WarningSink};
use crate::form::groups::Groups;
use crate::pass::{self, ArrayMapping, AttentionPlacement, NoDump, Policy};
use crate::sim::EventOrder;
use crate::target::Target;

/// A note for users: why results may differ between steps of one row and steps
/// of several. The matrix unit adds the terms of each sum in order; the kernel
/// for single rows of bf16 adds them in 64 vector lanes, because its vectors are
/// loaded along the rows of the weights. That for Q4NX weights keeps the order of
/// the matrix unit.
pub const ONE_ROW_NOTE: &str = "steps of one row add in another order than steps of several rows, in matmuls with \
    bf16 weights and in attention: results may differ for a prompt whose last chunk or uncached \
    rest is one row, and for sequences that decode together, with bf16 weights or if the attention of one of them \
    alone, but not of several, runs on the host";

/// Options of the backend. They affect results only through the place where
/// attention runs and the rounding of the programs that are chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NpuOptions {
    /// How operations are grouped into programs.
    pub policy: Policy,
    /// The order of events that have no fixed order.
    pub order: EventOrder,
    /// Whether runs check for unordered accesses.
    pub hazards: bool,
    /// How buffer objects, lists and completion are used.
    pub runtime: Runtime,
    /// Row counts to compile programs for, besides one and the largest step; a
    /// step runs, padded, on the smallest program that holds it.
    pub lengths: Vec<u32>,
    /// Context lengths to compile programs with attention on the array for,
    /// besides the longest sequence; a step runs on the smallest that holds it.
    /// All programs read keys and values from the same location, so a sequence
    /// that outgrows one program continues in the next at no cost.
    pub contexts: Vec<u32>,
    /// Whether a node for which the array has no program is refused. Otherwise the interpreter computes it on the
    /// host.
    pub is_strict: bool,
}

impl Default for NpuOptions {
    fn default() -> NpuOptions {
        NpuOptions {
            policy: Policy::BY_COST,
            order: EventOrder::Earliest,
            hazards: true,
            runtime: Runtime::default(),
            lengths: vec![64, 256, 1024],
            contexts: vec![256, 1024, 4096, 16384],
            is_strict: false,
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
    is_strict: bool,
    blobs: Option<BlobFolder>,
}

impl Npu {
    /// Creates the backend for the target of this name.
    ///
    /// # Errors
    /// When the target does not exist.
    pub fn new(target: &str, options: NpuOptions) -> Result<Npu> {
        let target = Target::named(target)?;
        let NpuOptions { policy, order, hazards, runtime, lengths, contexts, is_strict } = options;
        let mut device = Device::new(&target, order)?.with_runtime(runtime);
        device.look_for_hazards(hazards);
        let compiler = Compiler::new(target, policy, None);
        let device = Mutex::new(device);
        Ok(Npu { compiler, device, runtime, lengths, contexts, is_strict, blobs: None })
    }

    /// Replaces the mapping of models onto the array.
    #[must_use]
    pub fn with_mapping(self, mapping: ArrayMapping) -> Npu {
        Npu { compiler: Compiler::new(self.target().clone(), mapping, None), ..self }
    }

    /// Sets the receiver of warnings: about blobs that were refused or could not be stored, and about ops
    /// for which the array has no program.
    #[must_use]
    pub fn with_warnings(self, warnings: WarningSink) -> Npu {
        Npu { compiler: self.compiler.with_warnings(warnings), ..self }
    }

    /// Adds a blob cache on disk: cached programs are not compiled again. The
    /// folder is created when weights are loaded; until then, one that exists tells what earlier starts chose.
    #[must_use]
    pub fn with_blobs(self, folder: BlobFolder) -> Npu {
        // A folder that cannot be used is reported when weights are loaded.
        if folder.path.is_dir()
            && let Ok(Some(cache)) = folder.open(|_| ())
        {
            self.compiler.use_cache(cache);
        }
        Npu { blobs: Some(folder), ..self }
    }

    /// Opens the blob cache, if there is one.
    ///
    /// # Errors
    /// As [`BlobFolder::open`].
    fn open_blobs(&self) -> Result<()> {
        if let Some(folder) = &self.blobs
            && let Some(cache) = folder.open(|sentence| self.compiler.warn(sentence))?
        {
            self.compiler.use_cache(cache);
        }
        Ok(())
    }

    /// The target.
    pub fn target(&self) -> &Target {
        self.compiler.target()
    }

    /// Locks the device, which contains the ledger.
    pub fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether the array may compute attention in steps of this key.
    fn attends(&self, key: Key) -> bool {
        match self.compiler.policy().attention {
            AttentionPlacement::Host | AttentionPlacement::HostCheaper | AttentionPlacement::HostOnly => {
                false
            }
            AttentionPlacement::Prefill => key.rows > 1 && key.sequences == 1,
            AttentionPlacement::Array | AttentionPlacement::ByCost => true,
        }
    }

    /// The nodes for which the array has no program, and why.
    fn without_program(&self, graph: &Graph) -> Vec<(usize, String)> {
        pass::without_program(graph, self.compiler.policy_for(graph))
    }

    /// Warns of the nodes that the interpreter computes because the array has no program for them.
    fn warn_of_missing_programs(&self, graph: &Graph) {
        let mut missing: Vec<(String, u32)> = Vec::new();
        for (_, reason) in self.without_program(graph) {
            match missing.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, count)) => *count += 1,
                None => missing.push((reason, 1)),
            }
        }
        for (reason, count) in missing {
            let nodes = if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") };
            self.compiler.warn(&format!("{reason}: the interpreter computes {nodes} of a step on the host"));
        }
    }

    fn groups(&self, graph: &Graph) -> Result<Groups> {
        self.compiler.groups(graph, &mut NoDump)
    }
}

impl Backend for Npu {
    type Weights = NpuWeights;
    type State = PositionMajor;
    type Program = NpuProgram;
    type Output = HostRows;

    fn name(&self) -> &'static str {
        "npu"
    }

    fn kernels(&self) -> String {
        self.target().name.clone()
    }

    fn describe(&self, _: &Graph) -> String {
        format!("npu, target {}, simulated", self.target().name)
    }

    fn host_work(&self, graph: &Graph) -> Vec<HostWork> {
        pass::array_split(graph, self.compiler.policy_for(graph)).host_work()
    }

    /// Results are stored in bf16; operands of matmuls are not rounded beyond that.
    fn numerics(&self, _: &Graph) -> Numerics {
        Numerics { stores: DType::BF16, activations: Vec::new(), head: Rounding::NONE }
    }

    /// One program for a single row, one for each length, and one for the
    /// largest step; if attention runs on the array, one of each for every
    /// context.
    fn ladder(&self, largest: Key) -> Vec<Key> {
        let shorter = |lengths: &[u32], least: u32, largest: u32| {
            let within = lengths.iter().copied().filter(move |&length| length >= least && length < largest);
            within.chain([largest]).collect::<BTreeSet<u32>>()
        };
        let mut keys = BTreeSet::new();
        for rows in shorter(&self.lengths, 2, largest.rows).into_iter().chain([1]) {
            let sequences = largest.sequences.min(rows);
            let key = Key { rows, sequences, output_rows: largest.output_rows.min(rows), ..largest };
            let contexts = if self.attends(key) { &self.contexts[..] } else { &[] };
            let contexts = shorter(contexts, rows, largest.context).into_iter();
            keys.extend(contexts.map(|context| Key { context, ..key }));
        }
        keys.into_iter().collect()
    }

    /// Every op: the interpreter computes those for which the array has no program.
    fn knows(&self, _: &AppliedOp<&Value>) -> bool {
        true
    }

    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        if graph.inputs().any(|(_, input)| input.name == InputSpec::ADAPTERS) {
            // Hidden states were seen at 1.2 times the derived bound.
            let reason =
                "the array runs no adapters; write a model with the adapter by 'girih merge'".to_owned();
            return vec![Refusal { node: InputSpec::ADAPTERS.to_owned(), reason }];
        }
        if !self.is_strict {
            return Vec::new();
        }
        let refusal = |(index, reason): (usize, String)| Refusal {
            node: graph.value(graph.nodes[index].output).name.clone(),
            reason,
        };
        self.without_program(graph).into_iter().map(refusal).collect()
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        // The array's buffer objects lie in the host's memory.
        let (state, output) = (PositionMajor::plan(graph, blocks), HostRows::plan(graph));
        let host = PoolBytes { state, output, ..PoolBytes::default() };
        MemoryPlan::on_host(match self.groups(graph) {
            Ok(groups) => PoolBytes {
                weights: NpuWeights::plan(graph, &groups, self.runtime),
                scratch: NpuProgram::plan(graph, &groups, self.runtime),
                ..host
            },
            // A graph that cannot be partitioned is refused when it is compiled.
            Err(_) => host,
        })
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<NpuWeights> {
        self.open_blobs()?;
        self.warn_of_missing_programs(graph);
        NpuWeights::load(graph, &self.groups(graph)?, source, &mut self.device())
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<PositionMajor> {
        PositionMajor::new(graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &NpuWeights) -> Result<NpuProgram> {
        let CompiledGraph { groups, schedules, .. } = self.compiler.compile(graph, &mut NoDump)?;
        NpuProgram::new(graph, groups, &schedules, weights, &mut self.device())
    }

    fn output(&self, graph: &Graph) -> Result<HostRows> {
        HostRows::new(graph)
    }

    fn run(
        &self,
        program: &NpuProgram,
        weights: &NpuWeights,
        state: &mut PositionMajor,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<(), Error> {
        program.run(&mut self.device(), weights, state, output, step)
    }
}
