//! Two backends that run a model together: the host its routed experts, the device the rest. The device asks for the results of experts
//! in the middle of its steps.

use girih_tensor::{Error, Result, Shape};

use crate::backend::{
    ExpertsCall, HostWork, Input, NodeTime, Outputs, Range32, Refusal, Sequence, State, Step, Watch,
    WeightSource,
};
use crate::description::AnyBackend;
use crate::graph::{Graph, Key, StateGroup};
use crate::input::InputSpec;
use crate::memory_plan::{MemoryPlan, PoolBytes};
use crate::numerics::Numerics;
use crate::output::Output;
use crate::routed_experts::{ExpertsGraph, ExpertsNode};
use crate::runner::{Phases, Runner};
use crate::staged::only;

/// A device that leaves routed experts, and the host that computes them. Each compiles one program for a model, that of its
/// largest step; the host runs its program node by node.
pub struct HostExpertsBackend {
    device: Box<dyn AnyBackend>,
    host: Box<dyn AnyBackend>,
}

impl HostExpertsBackend {
    /// `host` computes experts, `device` the rest.
    ///
    /// # Errors
    /// When the device computes experts itself.
    pub fn new(mut device: Box<dyn AnyBackend>, host: Box<dyn AnyBackend>) -> Result<HostExpertsBackend> {
        device.leave_experts()?;
        Ok(HostExpertsBackend { device, host })
    }

    /// What `of` says of the experts of a graph; `otherwise` if it has none, which [`AnyBackend::refuses`] reports.
    fn experts<T>(&self, graph: &Graph, otherwise: T, of: impl FnOnce(&ExpertsGraph) -> T) -> T {
        ExpertsGraph::of(graph).map_or(otherwise, |experts| of(&experts))
    }
}

impl AnyBackend for HostExpertsBackend {
    fn kernels(&self) -> String {
        format!("{}-with-experts-on-{}", self.device.kernels(), self.host.kernels())
    }

    fn describe(&self, graph: &Graph) -> String {
        self.experts(graph, String::new(), |experts| {
            let (device, host) = (self.device.describe(graph), self.host.describe(&experts.graph));
            format!("routed experts of {} layers on {host}; the rest on {device}", experts.nodes.len())
        })
    }

    fn refuses(&self, graph: &Graph) -> Vec<Refusal> {
        match ExpertsGraph::of(graph) {
            Ok(experts) => {
                let device = self.device.refuses(graph);
                device.into_iter().chain(self.host.refuses(&experts.graph)).collect()
            }
            Err(clause) => {
                let reason = format!("cpu-experts does not suit this model, because {clause}: remove it");
                vec![Refusal { node: "experts".to_owned(), reason }]
            }
        }
    }

    fn host_work(&self, graph: &Graph) -> Vec<HostWork> {
        self.device.host_work(graph)
    }

    /// The roundings of both; the head is the device's.
    fn numerics(&self, graph: &Graph) -> Numerics {
        let device = self.device.numerics(graph);
        self.experts(graph, device.clone(), |experts| self.host.numerics(&experts.graph).followed_by(device))
    }

    fn machine_default(&self, graph: &Graph) -> Option<String> {
        let host = self.experts(graph, None, |experts| self.host.machine_default(&experts.graph));
        self.device.machine_default(graph).or(host)
    }

    fn ladder(&self, largest: Key) -> Vec<Key> {
        vec![largest]
    }

    fn leave_experts(&mut self) -> Result<()> {
        Err(Error::new("experts are left twice; this is a bug in girih"))
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let device = self.device.plan(graph, blocks);
        self.experts(graph, device, |experts| {
            let between = PoolBytes { staging: experts.crossing_bytes(), ..PoolBytes::default() };
            device.plus(self.host.plan(&experts.graph, &[])).plus(MemoryPlan::on_host(between))
        })
    }

    fn load(
        self: Box<Self>,
        source: &dyn WeightSource,
        max_key: Key,
        blocks: &[u32],
        build: &dyn Fn(Key) -> Result<Graph>,
    ) -> Result<Box<dyn Runner>> {
        let largest = build(max_key)?;
        let plan = self.plan(&largest, blocks);
        let refused = |clause| Error::new(format!("the model cannot keep experts on the host: {clause}"));
        let experts = ExpertsGraph::of(&largest).map_err(refused)?;
        let HostExpertsBackend { device, host } = *self;
        let device = device.load(source, max_key, blocks, &only(&largest))?;
        let host = HostExperts::load(host, source, experts)?;
        Ok(Box::new(HostExpertsRunner { device, host, plan }))
    }
}

/// The experts of a loaded model.
pub(crate) struct HostExperts {
    runner: Box<dyn Runner>,
    nodes: Vec<ExpertsNode>,
    /// The width of each input.
    widths: Vec<usize>,
    /// Zeros for inputs that a node does not read.
    unread: Vec<f32>,
    /// The rows of the last result.
    result: Vec<f32>,
}

impl HostExperts {
    /// Loads the weights of experts.
    ///
    /// # Errors
    /// When the backend refuses a node, or the source fails.
    pub fn load(
        host: Box<dyn AnyBackend>,
        source: &dyn WeightSource,
        ExpertsGraph { graph, nodes }: ExpertsGraph,
    ) -> Result<HostExperts> {
        let runner = host.load(source, graph.key, &[], &only(&graph))?;
        let widths = graph.inputs().map(|(_, input)| input.shape.stride()).collect();
        Ok(HostExperts { runner, nodes, widths, unread: Vec::new(), result: Vec::new() })
    }

    /// Computes one node. The rows of its result are kept until the next call.
    ///
    /// # Errors
    /// When there is no such node, or the host fails.
    pub fn run(&mut self, call: &ExpertsCall<'_>) -> Result<&[f32]> {
        let HostExperts { runner, nodes, widths, unread, result } = self;
        let ExpertsCall { name, rows, x, weights } = *call;
        let node = nodes
            .iter()
            .find(|node| node.name == name)
            .ok_or_else(|| Error::new(format!("the host has no experts '{name}'; this is a bug in girih")))?;
        let widest = widths.iter().copied().max().unwrap_or(0);
        unread.resize(unread.len().max(rows * widest), 0.0);
        let input = |(index, width): (usize, &usize)| match node.inputs {
            [of_x, _] if of_x == index => Input::Rows(x),
            [_, of_weights] if of_weights == index => Input::Rows(weights),
            _ => Input::Rows(&unread[..rows * width]),
        };
        let inputs: Vec<Input<'_>> = widths.iter().enumerate().map(input).collect();
        let sequence = Sequence {
            rows: Range32 { start: 0, end: rows as u32 },
            position: 0,
            blocks: &[],
            outputs: Outputs::None,
            spans: &[],
        };
        result.clear();
        let mut watch = ResultWatch { name, result };
        runner.step_node(Step { inputs: &inputs, sequences: &[sequence], watch: &mut watch }, name)?;
        Ok(&self.result)
    }
}

/// Keeps the rows of one value.
struct ResultWatch<'a> {
    name: &'a str,
    result: &'a mut Vec<f32>,
}

impl Watch for ResultWatch<'_> {
    fn wants(&self, name: &str) -> bool {
        name == self.name
    }

    fn value(&mut self, _: &str, _: &Shape, data: &[f32]) {
        self.result.extend_from_slice(data);
    }
}

/// The watch of the caller, and the host that computes experts.
struct ExpertsWatch<'a> {
    caller: &'a mut dyn Watch,
    host: &'a mut HostExperts,
}

impl Watch for ExpertsWatch<'_> {
    fn wants(&self, name: &str) -> bool {
        self.caller.wants(name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        self.caller.value(name, shape, data);
    }

    fn clocks(&self) -> bool {
        self.caller.clocks()
    }

    fn took(&mut self, time: &NodeTime<'_>) {
        self.caller.took(time);
    }

    fn experts(&mut self, call: &ExpertsCall<'_>) -> Result<&[f32]> {
        self.host.run(call)
    }
}

/// A model whose experts are on the host.
struct HostExpertsRunner {
    device: Box<dyn Runner>,
    host: HostExperts,
    plan: MemoryPlan,
}

impl Runner for HostExpertsRunner {
    fn backend(&self) -> &'static str {
        self.device.backend()
    }

    fn max_key(&self) -> Key {
        self.device.max_key()
    }

    fn groups(&self) -> &[StateGroup] {
        self.device.groups()
    }

    fn blocks(&self) -> &[u32] {
        self.device.blocks()
    }

    fn inputs(&self) -> &[InputSpec] {
        self.device.inputs()
    }

    fn width(&self) -> usize {
        self.device.width()
    }

    fn plan(&self) -> MemoryPlan {
        self.plan
    }

    fn phases(&self) -> Phases {
        self.device.phases().plus(self.host.runner.phases())
    }

    fn tuning(&self) -> Option<String> {
        self.device.tuning().or_else(|| self.host.runner.tuning())
    }

    fn step(&mut self, step: Step<'_>) -> Result<()> {
        let Step { inputs, sequences, watch } = step;
        let mut watch = ExpertsWatch { caller: watch, host: &mut self.host };
        self.device.step(Step { inputs, sequences, watch: &mut watch })
    }

    fn output(&mut self) -> &mut dyn Output {
        self.device.output()
    }

    fn state(&mut self) -> &mut dyn State {
        self.device.state()
    }
}
