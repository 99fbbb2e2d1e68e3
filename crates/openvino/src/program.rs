//! Runs steps: one or more calls of a compiled model.

use std::cell::RefCell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use girih_graph::backend::{Input, Outputs, Range32, Sequence, Step, Watch, step_count};
use girih_graph::{Graph, HostRows, Role, SunkGather, ValueId, sink_gather};
use girih_tensor::{Error, ErrorKind, Result};

use crate::call::{CallInputs, LaneCall, calls, parts, single_calls};
use crate::ffi::{InferRequest, ModelArgument, TensorData};
use crate::kv_form::KvForm;
use crate::lower::{LoweredModel, ParameterSource, ResultMeaning, lower};
use crate::node_times::{LayerClock, RequestNodeTimes};
use crate::requests::{Continued, HeldRequest, RequestPool};
use crate::slots::{RequestSlots, most_slots};
use crate::state::OpenVinoState;
use crate::step_shape::{FixedStep, StepShape, smallest};
use crate::weights::OpenVinoWeights;
use crate::windows::{WindowCall, WindowShape};

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
    requests: RequestPool,
    clock: LayerClock,
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
        let lowered = lower(graph, &weights.layout, weights.form, &mut constants, watched, shape)?;
        if constants.bytes().len() != weights.constants.bytes().len() {
            return Err(Error::new("a model has constants that were not loaded; this is a bug in girih"));
        }
        let mut properties = weights.form.properties(graph);
        if is_timed {
            properties.push(("PERF_COUNT".to_owned(), "YES".to_owned()));
        }
        // A model that tells times is of one run, so it is not kept.
        let identity = weights.identity.filter(|_| !is_timed);
        let compiled = weights.device.compile(&lowered.text, &weights.bytes, &properties, identity)?;
        let requests = RequestPool::new(compiled, graph.key.sequences as usize);
        let clock = LayerClock::new(weights.device.tells_means());
        Ok(GraphModel { shape, lowered, requests, clock })
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

/// What the calls of a step made, beside state.
struct StepResults<'a> {
    /// The rows of the output.
    rows: &'a mut [f32],
    watched: BTreeMap<ValueId, Vec<f32>>,
    times: RequestNodeTimes,
}

/// What a call knows of earlier steps.
#[derive(Clone, Copy)]
struct Earlier<'a> {
    window: WindowCall<'a>,
    slots: Option<&'a RequestSlots>,
}

impl ModelStep<'_> {
    fn run(mut self, models: &mut ShapedModels, output: &mut HostRows, step: Step<'_>) -> Result<()> {
        let result = self.graph.output().expect("programs are compiled from graphs without faults");
        let value = self.graph.value(result);
        let rows = output.begin(step_count(step.sequences, value.outermost))?;
        let mut made = StepResults { rows, watched: BTreeMap::new(), times: RequestNodeTimes::default() };
        match self.weights.form {
            KvForm::Windows => self.windows(models, &step, &mut made)?,
            KvForm::Hidden => self.hidden(models, &step, &mut made)?,
        }
        made.times.report(self.graph, &self.weights.layout, step.sequences, step.watch);
        for (id, numbers) in &made.watched {
            let value = self.graph.value(*id);
            let count = step_count(step.sequences, value.outermost);
            step.watch.value(&value.name, &value.shape.with_outermost(count), numbers);
        }
        Ok(())
    }

    /// Runs the calls of a step with windows.
    fn windows(
        &mut self,
        models: &mut ShapedModels,
        step: &Step<'_>,
        made: &mut StepResults<'_>,
    ) -> Result<()> {
        // A part of a sequence would be filled up to the same rows as the whole.
        let (sequences, calls) = if self.ladder.is_empty() {
            let parts = parts(self.graph, step.sequences);
            let calls = calls(&parts);
            (parts, calls)
        } else {
            (step.sequences.to_vec(), single_calls(step.sequences))
        };
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
            let lowered = (&model.lowered, model.shape);
            let request = model.requests.only()?;
            self.call(lowered, request, inputs, None)?;
            if are_timed {
                made.times.add(&model.lowered.first_layers, &model.clock.since(request)?);
            }
            self.results(lowered, request, inputs, made)?;
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

    /// Runs each sequence of a step on the request that continues it.
    fn hidden(
        &mut self,
        models: &mut ShapedModels,
        step: &Step<'_>,
        made: &mut StepResults<'_>,
    ) -> Result<()> {
        let are_timed = models.are_timed;
        let model = models.model(self.graph, self.weights, StepShape::Any)?;
        let &[Input::Ids(ids)] = step.inputs else {
            return Err(Error::new("a hidden KV cache has one input of tokens; this is a bug in girih"));
        };
        if step.sequences.iter().any(|sequence| !sequence.spans.is_empty()) {
            let sentence =
                "a hidden KV cache has no positions that attend both ways: use --openvino-kv windows";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let tokens = self.state.tokens()?;
        let sequences: Vec<Continued<'_>> = step.sequences.iter().map(|own| tokens.continued(own)).collect();
        let chosen = model.requests.assign(&sequences)?;
        for (lane, (index, sequence)) in chosen.into_iter().zip(&sequences).enumerate() {
            if sequence.rows == 0 {
                continue;
            }
            let inputs = CallInputs {
                graph: self.graph,
                weights: self.weights,
                inputs: step.inputs,
                sequences: step.sequences,
                call: &LaneCall { lanes: vec![lane], rows: sequence.rows },
            };
            let own = &step.sequences[lane];
            let new = &ids[own.rows.indexes()];
            self.continue_with(model, index, (&sequence.history, new), inputs)?;
            let held = model.requests.at(index);
            if are_timed {
                made.times.add(&model.lowered.first_layers, &model.clock.since(&held.request)?);
            }
            self.results((&model.lowered, StepShape::Any), &mut held.request, inputs, made)?;
            self.state.tokens()?.write(own, new);
        }
        Ok(())
    }

    /// Runs the new rows of a sequence on a request. A masked slot is multiplied by 0, so one with NaN or an infinity would make
    /// every result NaN: after NaN, what the request holds is made again without dead slots.
    fn continue_with(
        &mut self,
        model: &mut GraphModel,
        index: usize,
        (history, new): (&[u32], &[u32]),
        inputs: CallInputs<'_>,
    ) -> Result<()> {
        self.go_on(model, index, history, inputs)?;
        let held = model.requests.at(index);
        self.hidden_call(&model.lowered, held, new, inputs)?;
        if held.slots.len() > held.slots.live() && has_nan(&model.lowered, &held.request)? {
            model.requests.restart(index)?;
            self.go_on(model, index, history, inputs)?;
            self.hidden_call(&model.lowered, model.requests.at(index), new, inputs)?;
        }
        Ok(())
    }

    /// Makes a request hold the tokens before the rows of a call, and no others.
    fn go_on(
        &mut self,
        model: &mut GraphModel,
        index: usize,
        history: &[u32],
        inputs: CallInputs<'_>,
    ) -> Result<()> {
        let slots = &mut model.requests.at(index).slots;
        slots.take_back(slots.common(history));
        let lacking = history.len() - slots.live() + inputs.call.rows;
        if slots.live() == 0 && slots.len() > 0 || slots.len() + lacking > most_slots(self.graph) {
            model.requests.restart(index)?;
        }
        let held = model.requests.at(index);
        let most = self.graph.key.rows.max(1) as usize;
        for start in (held.slots.live()..history.len()).step_by(most) {
            let end = history.len().min(start + most);
            let again = Sequence {
                position: start as u32,
                rows: Range32 { start: start as u32, end: end as u32 },
                outputs: Outputs::None,
                ..*inputs.lanes().next().expect("the call has one lane")
            };
            let inputs = CallInputs {
                inputs: &[Input::Ids(history)],
                sequences: &[again],
                call: &LaneCall { lanes: vec![0], rows: end - start },
                ..inputs
            };
            self.hidden_call(&model.lowered, held, &history[start..end], inputs)?;
        }
        Ok(())
    }

    /// Runs rows on a request that holds what is before them. After an error, it holds nothing that counts.
    fn hidden_call(
        &mut self,
        lowered: &LoweredModel,
        held: &mut HeldRequest,
        tokens: &[u32],
        inputs: CallInputs<'_>,
    ) -> Result<()> {
        held.slots.extend(tokens);
        let done = self.call((lowered, StepShape::Any), &mut held.request, inputs, Some(&held.slots));
        if done.is_err() {
            held.slots.take_back(0);
        }
        done
    }

    /// Reads the results of a call.
    fn results(
        &mut self,
        (lowered, shape): (&LoweredModel, StepShape),
        request: &mut InferRequest,
        inputs: CallInputs<'_>,
        made: &mut StepResults<'_>,
    ) -> Result<()> {
        let lanes: Vec<&Sequence<'_>> = inputs.lanes().collect();
        let window = WindowCall { graph: self.graph, lanes: &lanes, shape };
        for named in &lowered.results {
            request.read(&named.name, |numbers| -> Result<()> {
                match named.meaning {
                    ResultMeaning::Output => {
                        let result = self.graph.output().expect("the model was made of it");
                        inputs.place(result, numbers, made.rows);
                    }
                    ResultMeaning::Watched(id) => {
                        let value = self.graph.value(id);
                        let all = step_count(inputs.sequences, value.outermost) * value.shape.stride();
                        let into = made.watched.entry(id).or_insert_with(|| vec![0.0; all]);
                        inputs.place(id, numbers, into);
                    }
                    ResultMeaning::Written(id) => self.state.windows()?.write(id, window, numbers)?,
                    ResultMeaning::Carried(id) => self.state.windows()?.carry(id, window, numbers)?,
                    ResultMeaning::Largest(id) => {
                        self.state.tokens()?.check(self.graph, id, lanes[0], numbers)
                    }
                }
                Ok(())
            })??;
        }
        Ok(())
    }

    /// Runs the model for the sequences of a call. `slots` are those of a request with variables, with the new ones.
    fn call(
        &mut self,
        (lowered, shape): (&LoweredModel, StepShape),
        request: &mut InferRequest,
        inputs: CallInputs<'_>,
        slots: Option<&RequestSlots>,
    ) -> Result<()> {
        let lanes: Vec<&Sequence<'_>> = inputs.lanes().collect();
        let window = WindowCall { graph: self.graph, lanes: &lanes, shape };
        let mut tables: HashMap<usize, [Vec<f32>; 2]> = HashMap::new();
        let mut brought = Vec::with_capacity(lowered.parameters.len());
        for parameter in &lowered.parameters {
            let earlier = Earlier { window, slots };
            let mut own = self.bring(parameter.source, lowered, inputs, earlier, &mut tables)?;
            own.fill_up(&parameter.extents);
            brought.push(own);
        }
        let mut arguments = Vec::with_capacity(brought.len());
        for (parameter, brought) in lowered.parameters.iter().zip(&brought) {
            let (shape, data) = match brought {
                Brought::Numbers(numbers, shape) => (shape.clone(), TensorData::F32(numbers)),
                Brought::Ids(ids, shape) => (shape.clone(), TensorData::I32(ids)),
                Brought::Window(id, shape) => {
                    let numbers = self.state.window(*id, lanes.len())?;
                    (shape.extents(lanes.len()), TensorData::F32(numbers))
                }
            };
            arguments.push(ModelArgument { name: &parameter.name, shape, data });
        }
        request.run(&arguments)
    }

    fn bring(
        &mut self,
        source: ParameterSource,
        lowered: &LoweredModel,
        inputs: CallInputs<'_>,
        Earlier { window, slots }: Earlier<'_>,
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
            ParameterSource::SlotMask(span) => {
                let slots = slots.ok_or_else(|| Error::new("a call has no slots; this is a bug in girih"))?;
                let (mask, shape) = slots.mask(window.lanes[0], span);
                Brought::Numbers(mask, shape.to_vec())
            }
            ParameterSource::Beams => Brought::Ids(vec![0], vec![1]),
            ParameterSource::Carried(id) => {
                let shape = [lanes].into_iter().chain(self.graph.value(id).shape.extents().iter().copied());
                Brought::Numbers(self.state.windows()?.carried(id, window)?, shape.collect())
            }
            ParameterSource::Window(id) => Brought::Window(id, self.state.windows()?.prepare(id, window)?),
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
}

/// Whether the output of the last call has NaN.
fn has_nan(lowered: &LoweredModel, request: &InferRequest) -> Result<bool> {
    let output = lowered.results.iter().find(|named| named.meaning == ResultMeaning::Output);
    let output = output.ok_or_else(|| Error::new("a model has no output; this is a bug in girih"))?;
    request.read(&output.name, |numbers| numbers.iter().any(|number| number.is_nan()))
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
