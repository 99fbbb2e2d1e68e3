//! The array as a backend of the waist: groups and schedules for each rung of
//! the ladder, run on the simulated device.

use std::sync::{Mutex, MutexGuard};

use girih_graph::backend::{Backend, MemoryPlan, Refusal, Stretch, WeightSource};
use girih_graph::{Graph, Key, Step};
use girih_tensor::{Error, Result};

use crate::Target;
use crate::blob;
use crate::driver::{Compiled, Compiler, Device, Program, Tell, Weights};
use crate::form::groups::Groups;
use crate::host::Cache;
use crate::pass::{NoDump, Policy, partition};
use crate::sim::Order;

/// How the backend is to use the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How operations are grouped into programs.
    pub policy: Policy,
    /// In which order things happen that may happen in any.
    pub order: Order,
    /// Whether runs look for accesses that nothing orders.
    pub hazards: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { policy: Policy::MLIR_AIR, order: Order::Earliest, hazards: true }
    }
}

/// The backend that runs graphs on a simulated array.
#[derive(Debug)]
pub struct Npu {
    compiler: Compiler,
    device: Mutex<Device>,
}

impl Npu {
    /// The backend for the target of this name.
    ///
    /// # Errors
    /// When there is no such target.
    pub fn new(target: &str, options: Options) -> Result<Npu> {
        let target = Target::named(target)?;
        let mut device = Device::new(&target, options.order)?;
        device.look_for_hazards(options.hazards);
        let compiler = Compiler::new(target, options.policy, None);
        Ok(Npu { compiler, device: Mutex::new(device) })
    }

    /// The same with blobs on disk: what `cache` has is not compiled. `tell`
    /// hears why a blob was refused or could not be kept.
    #[must_use]
    pub fn with_blobs(self, cache: blob::Cache, tell: Tell) -> Npu {
        let (target, policy) = (self.target().clone(), self.compiler.policy());
        Npu { compiler: Compiler::new(target, policy, Some(cache)).telling(tell), ..self }
    }

    /// The target.
    pub fn target(&self) -> &Target {
        self.compiler.target()
    }

    /// The device, with what it has counted.
    pub fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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

    fn stretch(&self) -> Stretch {
        Stretch::Rigid
    }

    /// One program for a single row and one for the largest step.
    fn ladder(&self, most: Key) -> Vec<Key> {
        let single = Key { rows: 1, lanes: 1, wanted: 1, ..most };
        if most.rows == 1 { vec![most] } else { vec![single, most] }
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
                weights: Weights::plan(graph, &groups),
                state,
                scratch: Program::plan(graph, &groups),
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
        Program::new(graph, groups, schedules, weights, &mut self.device())
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
