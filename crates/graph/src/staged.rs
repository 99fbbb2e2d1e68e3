//! Two backends that run a model one after the other: the first one its first layers, the last one the rest.

use girih_tensor::{Error, ErrorKind, Result};

use crate::backend::{
    Block, HostWork, Input, Outputs, Refusal, Sequence, State, Step, WeightSource, step_count,
};
use crate::description::AnyBackend;
use crate::graph::{Graph, Key, StateGroup};
use crate::input::InputSpec;
use crate::memory_plan::{MemoryPlan, PoolBytes};
use crate::numerics::Numerics;
use crate::output::Output;
use crate::range_fault::RangeFault;
use crate::runner::{Phases, Runner};
use crate::stages::{CrossingValue, GraphStages, layer_count};
use crate::value::{Extent, GroupId};

/// Two backends and the layer before which graphs are cut. Both compile one program for a model, that of its largest step.
pub struct StagedBackend {
    first: Box<dyn AnyBackend>,
    last: Box<dyn AnyBackend>,
    layer: usize,
}

impl StagedBackend {
    /// `first` runs the nodes before a layer, `last` the others.
    pub fn new(first: Box<dyn AnyBackend>, last: Box<dyn AnyBackend>, layer: usize) -> StagedBackend {
        StagedBackend { first, last, layer }
    }

    /// What `of` says of the stages of a graph; `otherwise` if it cannot be cut, which [`AnyBackend::refuses`] reports.
    fn stages<T>(&self, graph: &Graph, otherwise: T, of: impl FnOnce(&GraphStages) -> T) -> T {
        GraphStages::of(graph, self.layer).map_or(otherwise, |stages| of(&stages))
    }
}

impl AnyBackend for StagedBackend {
    fn kernels(&self) -> String {
        format!("{}-before-layer-{}-{}", self.first.kernels(), self.layer, self.last.kernels())
    }

    fn describe(&self, graph: &Graph) -> String {
        let (layer, layers) = (self.layer, layer_count(graph));
        self.stages(graph, String::new(), |stages| {
            let (first, last) = (self.first.describe(&stages.first), self.last.describe(&stages.last));
            let before = match layer {
                0 => "the embedding".to_owned(),
                1 => "layer 0".to_owned(),
                _ => format!("layers 0 to {}", layer - 1),
            };
            format!(
                "{before} on {first}; layers {layer} to {} and the head on {last}",
                layers.saturating_sub(1)
            )
        })
    }

    fn refuses(&self, graph: &Graph) -> Vec<Refusal> {
        match GraphStages::of(graph, self.layer) {
            Ok(stages) => {
                let first = self.first.refuses(&stages.first);
                first.into_iter().chain(self.last.refuses(&stages.last)).collect()
            }
            Err(error) => vec![Refusal { node: format!("layers.{}", self.layer), reason: error.to_string() }],
        }
    }

    fn host_work(&self, graph: &Graph) -> Vec<HostWork> {
        self.stages(graph, Vec::new(), |stages| {
            let first = self.first.host_work(&stages.first);
            first.into_iter().chain(self.last.host_work(&stages.last)).collect()
        })
    }

    /// The roundings of both; those of the first are not that of the head.
    fn numerics(&self, graph: &Graph) -> Numerics {
        self.stages(graph, Numerics::single(), |stages| {
            let (first, last) = (self.first.numerics(&stages.first), self.last.numerics(&stages.last));
            first.followed_by(last)
        })
    }

    fn machine_default(&self, graph: &Graph) -> Option<String> {
        self.stages(graph, None, |stages| {
            self.first.machine_default(&stages.first).or_else(|| self.last.machine_default(&stages.last))
        })
    }

    fn ladder(&self, largest: Key) -> Vec<Key> {
        vec![largest]
    }

    fn leave_experts(&mut self) -> Result<()> {
        let sentence = "a model in two stages computes experts where their layers are: remove cpu-experts";
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        self.stages(graph, MemoryPlan::default(), |stages| {
            let between = PoolBytes { staging: crossing_bytes(stages), ..PoolBytes::default() };
            let both = self.first.plan(&stages.first, blocks).plus(self.last.plan(&stages.last, blocks));
            both.plus(MemoryPlan::on_host(between))
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
        let StagedBackend { first, last, layer } = *self;
        let (inputs, groups) = (InputSpec::of(&largest), largest.groups.clone());
        let GraphStages { first: first_graph, last: last_graph, crossing } =
            GraphStages::of(&largest, layer)?;
        let first = first.load(source, first_graph.key, blocks, &only(&first_graph))?;
        let last = last.load(source, last_graph.key, blocks, &only(&last_graph))?;
        let places = |runner: &dyn Runner| -> Result<Vec<InputPlace>> {
            runner.inputs().iter().map(|spec| InputPlace::of(spec, &inputs, &crossing)).collect()
        };
        let places = [places(&*first)?, places(&*last)?];
        let crossed = vec![Vec::new(); crossing.len()];
        let stages = StageState { first, last };
        Ok(Box::new(StagedRunner { stages, inputs, groups, places, crossing, crossed, max_key, plan }))
    }
}

/// Builds one graph for its key.
pub(crate) fn only(graph: &Graph) -> impl Fn(Key) -> Result<Graph> + '_ {
    |_| Ok(graph.clone())
}

/// The bytes of the values that cross, at the graph's key.
fn crossing_bytes(stages: &GraphStages) -> u64 {
    let row = (stages.width() as u64).saturating_mul(size_of::<f32>() as u64);
    row.saturating_mul(u64::from(stages.first.key.rows))
}

/// Where a stage takes an input from.
#[derive(Clone, Copy, Debug)]
enum InputPlace {
    /// The input of this number of the step.
    Step(usize),
    /// The crossing value of this number.
    Crossing(usize),
}

impl InputPlace {
    fn of(spec: &InputSpec, inputs: &[InputSpec], crossing: &[CrossingValue]) -> Result<InputPlace> {
        let of_step = inputs.iter().position(|input| input.name == spec.name).map(InputPlace::Step);
        let crossed = || crossing.iter().position(|value| value.name == spec.name).map(InputPlace::Crossing);
        let unknown =
            || Error::new(format!("a stage has the unknown input '{}'; this is a bug in girih", spec.name));
        of_step.or_else(crossed).ok_or_else(unknown)
    }
}

/// A model that is loaded in two stages.
struct StagedRunner {
    stages: StageState,
    inputs: Vec<InputSpec>,
    groups: Vec<StateGroup>,
    /// Of each stage, where its inputs come from.
    places: [Vec<InputPlace>; 2],
    crossing: Vec<CrossingValue>,
    /// The rows of the crossing values of a step.
    crossed: Vec<Vec<f32>>,
    max_key: Key,
    plan: MemoryPlan,
}

impl StagedRunner {
    /// Refuses a step with another number of inputs than the whole graph has; the stages check the rest.
    fn check_inputs(&self, step: &Step<'_>) -> Result<()> {
        let (have, need) = (step.inputs.len(), self.inputs.len());
        if have == need {
            return Ok(());
        }
        Err(Error::new(format!("a step has {have} inputs; the programs need {need}")))
    }

    /// Copies the crossing values of the first stage's output apart.
    fn take_crossed(&mut self, rows: usize) -> Result<()> {
        let mut values = self.stages.first.output().rows(0..rows)?;
        self.crossed.iter_mut().for_each(Vec::clear);
        while !values.is_empty() {
            for (value, crossed) in self.crossing.iter().zip(&mut self.crossed) {
                let (own, rest) = values.split_at(value.width);
                crossed.extend_from_slice(own);
                values = rest;
            }
        }
        Ok(())
    }
}

impl Runner for StagedRunner {
    fn backend(&self) -> &'static str {
        self.stages.last.backend()
    }

    fn max_key(&self) -> Key {
        self.max_key
    }

    fn groups(&self) -> &[StateGroup] {
        &self.groups
    }

    fn blocks(&self) -> &[u32] {
        self.stages.last.blocks()
    }

    fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    fn width(&self) -> usize {
        self.stages.last.width()
    }

    fn plan(&self) -> MemoryPlan {
        self.plan
    }

    fn phases(&self) -> Phases {
        self.stages.first.phases().plus(self.stages.last.phases())
    }

    fn tuning(&self) -> Option<String> {
        let found: Vec<String> =
            [&self.stages.first, &self.stages.last].iter().filter_map(|stage| stage.tuning()).collect();
        (!found.is_empty()).then(|| found.join("; "))
    }

    fn densities(&self) -> Vec<(String, f64)> {
        [self.stages.first.densities(), self.stages.last.densities()].concat()
    }

    fn step(&mut self, step: Step<'_>) -> Result<()> {
        self.check_inputs(&step)?;
        let Step { inputs, sequences, watch } = step;
        let all: Vec<Sequence<'_>> =
            sequences.iter().map(|sequence| Sequence { outputs: Outputs::All, ..*sequence }).collect();
        let given = inputs_of(&self.places[0], inputs, &[]);
        self.stages.first.step(Step { inputs: &given, sequences: &all, watch: &mut *watch })?;
        self.take_crossed(step_count(sequences, Extent::Rows))?;
        let given = inputs_of(&self.places[1], inputs, &self.crossed);
        self.stages.last.step(Step { inputs: &given, sequences, watch })
    }

    fn output(&mut self) -> &mut dyn Output {
        self.stages.last.output()
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.stages
    }
}

/// The inputs of a stage.
fn inputs_of<'a>(places: &[InputPlace], inputs: &[Input<'a>], crossed: &'a [Vec<f32>]) -> Vec<Input<'a>> {
    let input = |place: &InputPlace| match place {
        InputPlace::Step(index) => inputs[*index],
        InputPlace::Crossing(index) => Input::Rows(&crossed[*index]),
    };
    places.iter().map(input).collect()
}

/// The state of both stages. A block of a group is the block of this number in each.
struct StageState {
    first: Box<dyn Runner>,
    last: Box<dyn Runner>,
}

impl State for StageState {
    fn copy(&mut self, group: GroupId, from: Block, to: Block) -> Result<()> {
        self.first.state().copy(group, from, to)?;
        self.last.state().copy(group, from, to)
    }

    fn zero(&mut self, group: GroupId, block: Block) -> Result<()> {
        self.first.state().zero(group, block)?;
        self.last.state().zero(group, block)
    }

    /// The number of bytes of the first stage in eight bytes, these bytes, and those of the last stage.
    fn export(&mut self, group: GroupId, block: Block) -> Result<Vec<u8>> {
        let first = self.first.state().export(group, block)?;
        let last = self.last.state().export(group, block)?;
        Ok([&(first.len() as u64).to_le_bytes()[..], &first, &last].concat())
    }

    fn import(&mut self, group: GroupId, block: Block, bytes: &[u8]) -> Result<()> {
        let split = bytes.split_first_chunk::<8>().and_then(|(length, rest)| {
            rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
        });
        let Some((first, last)) = split else {
            let have = bytes.len();
            return Err(Error::new(format!("{have} bytes are no block of the state of two stages")));
        };
        self.first.state().import(group, block, first)?;
        self.last.state().import(group, block, last)
    }

    fn take_range_faults(&mut self) -> Vec<RangeFault> {
        let mut faults = self.first.state().take_range_faults();
        faults.extend(self.last.state().take_range_faults());
        faults
    }
}
