//! The backend: the parts of the crate that each call uses.

use std::collections::HashSet;
use std::sync::Arc;

use girih_graph::backend::{Backend, Refusal, Step, WeightSource};
use girih_graph::{
    AppliedOp, Graph, HostRows, Key, MemoryPlan, Numerics, PoolBytes, ScratchPlan, Value, sink_gather,
};
use girih_tensor::Result;

use crate::call::score_bytes;
use crate::device::OpenVinoDevice;
use crate::ir::Constants;
use crate::kv_form::{KvForm, hidden_objection};
use crate::lower::{expert_bytes, lower};
use crate::product_type::ProductType;
use crate::program::OpenVinoProgram;
use crate::refuse;
use crate::state::OpenVinoState;
use crate::weights::{OpenVinoWeights, PlaneLayout};

/// The backend that runs graphs on a device of OpenVINO.
#[derive(Debug)]
pub struct OpenVinoBackend {
    device: Arc<OpenVinoDevice>,
    products: ProductType,
    /// The form of keys and values, if one was chosen.
    kv: Option<KvForm>,
}

impl OpenVinoBackend {
    pub(crate) fn new(
        device: Arc<OpenVinoDevice>,
        products: ProductType,
        kv: Option<KvForm>,
    ) -> OpenVinoBackend {
        OpenVinoBackend { device, products, kv }
    }
}

impl Backend for OpenVinoBackend {
    type Weights = OpenVinoWeights;
    type State = OpenVinoState;
    type Program = OpenVinoProgram;
    type Output = HostRows;

    fn name(&self) -> &'static str {
        "openvino"
    }

    fn kernels(&self) -> String {
        self.device.product.clone()
    }

    fn describe(&self, graph: &Graph) -> String {
        let (device, kv) = (&self.device, KvForm::of(graph, self.kv).name());
        format!("openvino:{}, {}, OpenVINO {}, KV cache {kv}", device.name, device.product, device.version())
    }

    /// Weights have the numbers of their format, and everything but activations of integer products is `f32`.
    fn numerics(&self, graph: &Graph) -> Numerics {
        self.device.numerics(self.products, graph)
    }

    fn ladder(&self, largest: Key) -> Vec<Key> {
        vec![largest]
    }

    fn knows(&self, call: &AppliedOp<&Value>) -> bool {
        refuse::knows(call)
    }

    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        let mut refusals = refuse::objections(graph, self.device.shapes.are_fixed());
        if self.device.has_npuw() {
            refusals.extend(refuse::npuw_objections(graph));
        }
        if self.kv == Some(KvForm::Hidden) {
            refusals.extend(hidden_objection(graph));
        }
        refusals
    }

    /// OpenVINO packs the weights of products for its kernels, so they are counted twice.
    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let bytes = PlaneLayout::of(graph).bytes() as u64;
        MemoryPlan::on_host(PoolBytes {
            weights: bytes.saturating_mul(2),
            in_file: 0,
            state: OpenVinoState::plan(KvForm::of(graph, self.kv), graph, blocks),
            scratch: (ScratchPlan::of(graph).bytes as u64)
                .saturating_add(score_bytes(graph, self.device.shapes.are_fixed()))
                .saturating_add(expert_bytes(graph)),
            output: HostRows::plan(graph),
            staging: 0,
        })
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<OpenVinoWeights> {
        let layout = PlaneLayout::of(graph);
        let form = KvForm::of(graph, self.kv);
        let mut constants = Constants::behind(layout.bytes());
        // The models that the graph will need have all of their constants behind the weights.
        let sunk = sink_gather(graph);
        for shape in self.device.shapes.made(graph.key) {
            for graph in [graph].into_iter().chain(sunk.as_ref().map(|sunk| &sunk.graph)) {
                lower(graph, &layout, form, &mut constants, &HashSet::new(), shape)?;
            }
        }
        OpenVinoWeights::load(&self.device, graph, (layout, form), constants, source)
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<OpenVinoState> {
        OpenVinoState::new(KvForm::of(graph, self.kv), graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &OpenVinoWeights) -> Result<OpenVinoProgram> {
        OpenVinoProgram::new(graph, weights)
    }

    fn output(&self, graph: &Graph) -> Result<HostRows> {
        HostRows::new(graph)
    }

    fn run(
        &self,
        program: &OpenVinoProgram,
        weights: &OpenVinoWeights,
        state: &mut OpenVinoState,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<()> {
        program.run(weights, state, output, step)
    }
}
