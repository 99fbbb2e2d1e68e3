//! Runs steps: one or more calls of a compiled model.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use girih_graph::backend::{Sequence, Step, Watch, step_count};
use girih_graph::{Graph, HostRows, Role, SunkGather, ValueId, sink_gather};
use girih_tensor::{Error, Result};

use crate::call::{CallInputs, calls, parts, single_calls};
use crate::ffi::{CompiledModel, ModelArgument, TensorData};
use crate::lower::{LoweredModel, ParameterSource, ResultMeaning, lower};
use crate::node_times::NodeTimes;
use crate::state::{OpenVinoState, WindowCall, WindowShape};
use crate::step_shape::{FixedStep, StepShape, smallest};
use crate::weights::OpenVinoWeights;

/// A compiled graph.
#[derive(Debug)]
pub struct OpenVinoProgram {
    /// Computes all rows of every value.
    all_rows: Graph,
    /// Computes only the output rows of the values of some names, unless one of them is watched.
    sunk: Option<SunkGather>,
    /// The extents of the models that are made when the graph is compiled; none if one model is elastic.
    ladder: Vec<FixedStep>,
    /// The models for steps without watched values.
    models: RefCell<ShapedModels>,
    /// The models for the values that were watched last.
    watched: RefCell<Option<ShapedModels>>,
}

/// Models of a graph for steps of several extents, which return the same values.
#[derive(Debug)]
struct ShapedModels {
    watched: HashSet<ValueId>,
    /// Whether they tell the times of their layers.
    are_timed: bool,
    models: HashMap<StepShape, GraphModel>,
}

impl ShapedModels {
    /// No models yet.
    fn new(watched: HashSet<ValueId>, are_timed: bool) -> ShapedModels {
        ShapedModels { watched, are_timed, models: HashMap::new() }
    }

    /// The model for steps of these extents, which is compiled when it is first needed.
    fn model(
        &mut self,
        graph: &Graph,
        weights: &OpenVinoWeights,
        shape: StepShape,
    ) -> Result<&mut GraphModel> {
        let ShapedModels { watched, are_timed, models } = self;
        Ok(match models.entry(shape) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                place.insert(GraphModel::new(graph, weights, watched, shape, *are_timed)?)
            }
        })
    }
}

/// A compiled model of one of the graphs.
#[derive(Debug)]
struct GraphModel {
    shape: StepShape,
    lowered: LoweredModel,
    compiled: CompiledModel,
}

impl GraphModel {
    fn new(
        graph: &Graph,
        weights: &OpenVinoWeights,
        watched: &HashSet<ValueId>,
        shape: StepShape,
        is_timed: bool,
    ) -> Result<GraphModel> {
        let mut constants = weights.constants.clone();
        let lowered = lower(graph, &weights.layout, &mut constants, watched, shape)?;
        if constants.bytes().len() != weights.constants.bytes().len() {
            return Err(Error::new("a model has constants that were not loaded; this is a bug in girih"));
        }
        let compiled = weights.device.compile(&lowered.text, &weights.bytes, weights.identity, is_timed)?;
        Ok(GraphModel { shape, lowered, compiled })
    }
}

impl OpenVinoProgram {
    /// Compiles a graph for steps of the extents that the device needs.
    ///
    /// # Errors
    /// When OpenVINO refuses it.
    pub(crate) fn new(graph: &Graph, weights: &OpenVinoWeights) -> Result<OpenVinoProgram> {
        let sunk = sink_gather(graph);
        let smaller = sunk.as_ref().map_or(graph, |sunk| &sunk.graph);
        let ladder = weights.device.shapes.ladder(graph.key);
        let mut models = ShapedModels::new(HashSet::new(), false);
        for shape in weights.device.shapes.made(graph.key) {
            models.model(smaller, weights, shape)?;
        }
        Ok(OpenVinoProgram {
            all_rows: graph.clone(),
            sunk,
            ladder,
            models: RefCell::new(models),
            watched: RefCell::default(),
        })
    }

    /// The graph of a step: one with fewer rows, unless a value whose rows it lacks is watched.
    fn graph(&self, watch: &dyn Watch) -> &Graph {
        match &self.sunk {
            Some(sunk) if !sunk.names.iter().any(|name| watch.wants(name)) => &sunk.graph,
            _ => &self.all_rows,
        }
    }

    /// Runs one step.
    ///
    /// # Errors
    /// When the device fails.
    pub(crate) fn run(
        &self,
        weights: &OpenVinoWeights,
        state: &mut OpenVinoState,
        output: &mut HostRows,
        step: Step<'_>,
    ) -> Result<()> {
        let graph = self.graph(step.watch);
        let is_made = |role: Role| matches!(role, Role::Scratch | Role::Output);
        let wanted = graph.ids().filter(|(_, value)| is_made(value.role) && step.watch.wants(&value.name));
        let watched: HashSet<ValueId> = wanted.map(|(id, _)| id).collect();
        let is_timed = step.watch.clocks();
        if watched.is_empty()
            && !is_timed
            && (self.sunk.is_none() || !std::ptr::eq(graph, &raw const self.all_rows))
        {
            let running = ModelStep { graph, weights, state, ladder: &self.ladder };
            return running.run(&mut self.models.borrow_mut(), output, step);
        }
        let mut kept = self.watched.borrow_mut();
        let known = kept.take_if(|known| known.watched == watched && known.are_timed == is_timed);
        let models = kept.insert(known.unwrap_or_else(|| ShapedModels::new(watched, is_timed)));
        ModelStep { graph, weights, state, ladder: &self.ladder }.run(models, output, step)
    }
}

/// A running step.
struct ModelStep<'a> {
    graph: &'a Graph,
    weights: &'a OpenVinoWeights,
    state: &'a mut OpenVinoState,
    ladder: &'a [FixedStep],
}

/// What a call brings for one parameter.
enum Brought {
    Numbers(Vec<f32>, Vec<usize>),
    Ids(Vec<i32>, Vec<usize>),
    Window(ValueId, WindowShape),
}

impl Brought {
    /// Fills up what a model of fixed extents takes with zeros. It has one sequence, so rows are the outermost extent of more
    /// than one.
    fn fill_up(&mut self, extents: &[Option<usize>]) {
        let Some(fixed) = extents.iter().copied().collect::<Option<Vec<usize>>>() else { return };
        let count = fixed.iter().product();
        match self {
            Brought::Numbers(numbers, shape) => {
                numbers.resize(count, 0.0);
                *shape = fixed;
            }
            Brought::Ids(ids, shape) => {
                ids.resize(count, 0);
                *shape = fixed;
            }
            Brought::Window(..) => {}
        }
    }
}

impl ModelStep<'_> {
    fn run(mut self, models: &mut ShapedModels, output: &mut HostRows, step: Step<'_>) -> Result<()> {
        let result = self.graph.output().expect("programs are compiled from graphs without faults");
        let value = self.graph.value(result);
        let rows = output.begin(step_count(step.sequences, value.outermost))?;
        let mut watched: BTreeMap<ValueId, Vec<f32>> = BTreeMap::new();
        let mut times = NodeTimes::default();
        let sequences = parts(self.graph, step.sequences);
        let calls = if self.ladder.is_empty() { calls(&sequences) } else { single_calls(&sequences) };
        for call in calls {
            let inputs = CallInputs {
                graph: self.graph,
                weights: self.weights,
                inputs: step.inputs,
                sequences: &sequences,
                call: &call,
            };
            let are_timed = models.are_timed;
            let model = models.model(self.graph, self.weights, self.shape(inputs)?)?;
            self.call(model, inputs)?;
            if are_timed {
                times.add(&model.lowered.first_layers, &model.compiled.times()?);
            }
            for named in &model.lowered.results {
                match named.meaning {
                    ResultMeaning::Output => {
                        model.compiled.read(&named.name, |numbers| inputs.place(result, numbers, rows))?
                    }
                    ResultMeaning::Watched(id) => {
                        let value = self.graph.value(id);
                        let count = step_count(step.sequences, value.outermost) * value.shape.stride();
                        let into = watched.entry(id).or_insert_with(|| vec![0.0; count]);
                        model.compiled.read(&named.name, |numbers| inputs.place(id, numbers, into))?;
                    }
                    ResultMeaning::Written(id) => {
                        self.store(model, &named.name, inputs, |state, call, rows| {
                            state.write(id, call, rows)
                        })?;
                    }
                    ResultMeaning::Carried(id) => {
                        self.store(model, &named.name, inputs, |state, call, rows| {
                            state.carry(id, call, rows)
                        })?;
                    }
                }
            }
        }
        times.report(self.graph, &self.weights.layout, step.sequences, step.watch);
        for (id, numbers) in &watched {
            let value = self.graph.value(*id);
            let count = step_count(step.sequences, value.outermost);
            step.watch.value(&value.name, &value.shape.with_outermost(count), numbers);
        }
        Ok(())
    }

    /// The extents of the model that runs a call.
    fn shape(&self, inputs: CallInputs<'_>) -> Result<StepShape> {
        if self.ladder.is_empty() {
            return Ok(StepShape::Any);
        }
        let context = inputs.lanes().map(|lane| lane.position as usize).max().unwrap_or(0);
        let call = FixedStep { rows: inputs.call.rows, context, outputs: inputs.taken().1 };
        smallest(self.ladder, call).map(StepShape::Fixed).ok_or_else(|| {
            Error::new(format!("no model of fixed extents holds the call {call:?}; this is a bug in girih"))
        })
    }

    /// Runs the model for the sequences of a call.
    fn call(&mut self, model: &mut GraphModel, inputs: CallInputs<'_>) -> Result<()> {
        let lanes: Vec<&Sequence<'_>> = inputs.lanes().collect();
        let window = WindowCall { graph: self.graph, lanes: &lanes, shape: model.shape };
        let mut tables: HashMap<usize, [Vec<f32>; 2]> = HashMap::new();
        let mut brought = Vec::with_capacity(model.lowered.parameters.len());
        for parameter in &model.lowered.parameters {
            let mut own = self.bring(parameter.source, &model.lowered, inputs, window, &mut tables)?;
            own.fill_up(&parameter.extents);
            brought.push(own);
        }
        let mut arguments = Vec::with_capacity(brought.len());
        for (parameter, brought) in model.lowered.parameters.iter().zip(&brought) {
            let (shape, data) = match brought {
                Brought::Numbers(numbers, shape) => (shape.clone(), TensorData::F32(numbers)),
                Brought::Ids(ids, shape) => (shape.clone(), TensorData::I32(ids)),
                Brought::Window(id, shape) => {
                    (shape.extents(lanes.len()), TensorData::F32(self.state.window(*id, lanes.len())?))
                }
            };
            arguments.push(ModelArgument { name: &parameter.name, shape, data });
        }
        model.compiled.run(&arguments)
    }

    fn bring(
        &mut self,
        source: ParameterSource,
        lowered: &LoweredModel,
        inputs: CallInputs<'_>,
        window: WindowCall<'_>,
        tables: &mut HashMap<usize, [Vec<f32>; 2]>,
    ) -> Result<Brought> {
        let [lanes, rows] = inputs.extents();
        let mut table = |index: usize, part: usize| -> Result<Brought> {
            let rotation = &lowered.rotations[index];
            let both = match tables.entry(index) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(inputs.tables(rotation)?),
            };
            Ok(Brought::Numbers(std::mem::take(&mut both[part]), vec![lanes, 1, rows, rotation.rotated]))
        };
        Ok(match source {
            ParameterSource::Input(id) => {
                let value = self.graph.value(id);
                let shape =
                    [lanes, rows].into_iter().chain(value.shape.extents()[1..].iter().copied()).collect();
                match value.dtype {
                    girih_tensor::DType::I32 => Brought::Ids(inputs.ids(id)?, shape),
                    _ => Brought::Numbers(inputs.rows(id)?, shape),
                }
            }
            ParameterSource::Given(id) => {
                let width = self.graph.value(id).shape.stride();
                Brought::Numbers(inputs.given(id)?.0, vec![lanes, rows, width])
            }
            ParameterSource::IsGiven(id) => Brought::Ids(inputs.given(id)?.1, vec![lanes, rows, 1]),
            ParameterSource::Cosines(index) => table(index, 0)?,
            ParameterSource::Sines(index) => table(index, 1)?,
            ParameterSource::Mask(rule) => {
                let (mask, shape) = window.mask(rule);
                Brought::Numbers(mask, shape.to_vec())
            }
            ParameterSource::Carried(id) => {
                let shape = [lanes].into_iter().chain(self.graph.value(id).shape.extents().iter().copied());
                Brought::Numbers(self.state.carried(id, window)?, shape.collect())
            }
            ParameterSource::Window(id) => Brought::Window(id, self.state.prepare(id, window)?),
            ParameterSource::Factors(temperature, extents) => {
                let shape = [lanes, rows].into_iter().chain(vec![1; extents]).collect();
                Brought::Numbers(inputs.factors(temperature), shape)
            }
            ParameterSource::Taken => {
                let (taken, _) = inputs.taken();
                let count = taken.len();
                Brought::Ids(taken, vec![count])
            }
        })
    }

    /// Stores what a call made of state.
    fn store(
        &mut self,
        model: &GraphModel,
        name: &str,
        inputs: CallInputs<'_>,
        store: impl FnOnce(&mut OpenVinoState, WindowCall<'_>, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let lanes: Vec<&Sequence<'_>> = inputs.lanes().collect();
        let call = WindowCall { graph: self.graph, lanes: &lanes, shape: model.shape };
        model.compiled.read(name, |rows| store(self.state, call, rows))?
    }
}

impl CallInputs<'_> {
    /// Puts the rows of a call's value among those of the step.
    fn place(self, id: ValueId, numbers: &[f32], into: &mut [f32]) {
        let value = self.graph.value(id);
        let width = value.shape.stride();
        let mut from = 0;
        for (first, count) in self.rows_of_step(value.outermost) {
            into[first * width..(first + count) * width]
                .copy_from_slice(&numbers[from..from + count * width]);
            from += count * width;
        }
    }
}
