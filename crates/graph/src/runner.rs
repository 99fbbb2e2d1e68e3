//! Loaded models: hides a backend's types, and checks the engine's steps before
//! the backend runs them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use girih_tensor::{Error, ErrorKind};

use crate::backend::{BLOCK_POSITIONS, Backend, Refusal, Sequence, State, Step, WeightSource, WeightTouch};
use crate::check::faults;
use crate::constant::Span;
use crate::graph::{Graph, Key, StateGroup};
use crate::input::InputSpec;
use crate::memory_plan::MemoryPlan;
use crate::ops::Op;
use crate::output::Output;

/// A model that is loaded on a device.
pub trait Runner: Send {
    /// The backend's name.
    fn backend(&self) -> &'static str;
    /// The largest step that the runner can run.
    fn max_key(&self) -> Key;
    /// The groups of state.
    fn groups(&self) -> &[StateGroup];
    /// The number of blocks of each group.
    fn blocks(&self) -> &[u32];
    /// The inputs of a step, in the order in which a step has them.
    fn inputs(&self) -> &[InputSpec];
    /// The number of values in a result row.
    fn width(&self) -> usize;
    /// The memory of the loaded programs.
    fn plan(&self) -> MemoryPlan;
    /// The durations of loading; zero if nothing was loaded.
    fn phases(&self) -> Phases {
        Phases::default()
    }
    /// What loading chose for this machine by measurement, for people; no result depends on it.
    fn tuning(&self) -> Option<String> {
        None
    }
    /// The weights that are held without blocks of zeros, with the share of their blocks that is held and multiplied.
    fn densities(&self) -> Vec<(String, f64)> {
        Vec::new()
    }
    /// Reads some bytes of the weights, and returns their exclusive or; `None` if they lie where they cannot be read.
    fn touch(&self, _touch: WeightTouch) -> Option<u8> {
        None
    }
    /// Runs a step on the smallest program that holds it. Keys and values that the state cannot hold
    /// are no error of the step: [`State::take_range_faults`] returns those of this step.
    ///
    /// # Errors
    /// When no program holds it, its parts contradict each other, or the device fails.
    fn step(&mut self, step: Step<'_>) -> Result<(), Error>;
    /// Runs one node of a step, by the name of its result; see [`Backend::run_node`].
    ///
    /// # Errors
    /// As [`Runner::step`], and when the runner runs whole steps only.
    fn step_node(&mut self, _: Step<'_>, node: &str) -> Result<(), Error> {
        let name = self.backend();
        Err(Error::new(format!("{name} does not run '{node}' by itself; this is a bug in girih")))
    }
    /// The results of the last step.
    fn output(&mut self) -> &mut dyn Output;
    /// The state, for operations on its blocks.
    fn state(&mut self) -> &mut dyn State;
}

/// The wall-clock times of the phases of [`load`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Building and checking the largest graph, and planning its memory.
    pub plan: Duration,
    /// Reading the weights and converting them to the device's layout.
    pub weights: Duration,
    /// Making the state.
    pub state: Duration,
    /// Compiling the programs.
    pub compile: Duration,
}

impl Phases {
    /// The phases of two loads together.
    #[must_use]
    pub fn plus(self, other: Phases) -> Phases {
        Phases {
            plan: self.plan + other.plan,
            weights: self.weights + other.weights,
            state: self.state + other.state,
            compile: self.compile + other.compile,
        }
    }
}

/// A backend with its weights, its state and its programs.
struct Loaded<B: Backend> {
    backend: B,
    weights: B::Weights,
    state: B::State,
    output: B::Output,
    programs: BTreeMap<Key, B::Program>,
    max_key: Key,
    groups: Vec<StateGroup>,
    blocks: Vec<u32>,
    inputs: Vec<InputSpec>,
    /// Values in a result row.
    width: usize,
    wholeness: Wholeness,
    plan: MemoryPlan,
    phases: Phases,
}

/// Whether the rows of a sequence may be divided among steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wholeness {
    /// They may.
    Divisible,
    /// They may not: rows attend to other rows of their step without state, or are pooled.
    Whole,
    /// In the same way, some attend within their mutual spans only.
    InSpans,
}

/// Loads `source` on `backend`, with `blocks` blocks of state per group, and
/// compiles one program for each rung of its ladder.
///
/// # Errors
/// When a graph has faults or another key than its rung, the backend refuses a
/// node, or loading fails.
pub fn load<B: Backend>(
    backend: B,
    source: &dyn WeightSource,
    max_key: Key,
    blocks: &[u32],
    build: impl Fn(Key) -> Result<Graph, Error>,
) -> Result<Box<dyn Runner>, Error> {
    let rungs = backend.ladder(max_key);
    load_rungs(backend, source, (max_key, &rungs), blocks, build)
}

/// As [`load`], for a model whose graph has only one key, such as an image tower: one program runs all steps.
///
/// # Errors
/// As [`load`].
pub fn load_fixed<B: Backend>(
    backend: B,
    source: &dyn WeightSource,
    graph: &Graph,
) -> Result<Box<dyn Runner>, Error> {
    load_rungs(backend, source, (graph.key, &[graph.key]), &[], |_| Ok(graph.clone()))
}

/// Loads `source`, and compiles a program for each of these rungs.
fn load_rungs<B: Backend>(
    backend: B,
    source: &dyn WeightSource,
    (max_key, rungs): (Key, &[Key]),
    blocks: &[u32],
    build: impl Fn(Key) -> Result<Graph, Error>,
) -> Result<Box<dyn Runner>, Error> {
    let begun = Instant::now();
    let largest = build(max_key)?;
    accept(&backend, max_key, &largest)?;
    if blocks.len() != largest.groups.len() {
        let (have, need) = (blocks.len(), largest.groups.len());
        return Err(Error::new(format!("block counts for {have} groups were given; the graph has {need}")));
    }
    let plan = backend.plan(&largest, blocks);
    plan.check_device()?;
    let planned = Instant::now();
    let weights = backend.load(&largest, source)?;
    let read = Instant::now();
    let state = backend.state(&largest, blocks)?;
    let output = backend.output(&largest)?;
    let made = Instant::now();
    let mut programs = BTreeMap::new();
    for &key in rungs {
        let graph = build(key)?;
        accept(&backend, key, &graph)?;
        programs.insert(key, backend.compile(&graph, &weights)?);
    }
    let inputs = InputSpec::of(&largest);
    let result = largest.output().expect("a graph without faults has an output");
    let width = largest.value(result).shape.stride();
    let wholeness = wholeness(&largest);
    let (groups, blocks) = (largest.groups, blocks.to_vec());
    let phases = Phases {
        plan: planned - begun,
        weights: read - planned,
        state: made - read,
        compile: made.elapsed(),
    };
    Ok(Box::new(Loaded {
        backend,
        weights,
        state,
        output,
        programs,
        max_key,
        groups,
        blocks,
        inputs,
        width,
        wholeness,
        plan,
        phases,
    }))
}

/// Whether the sequences of the graph must be whole in one step.
fn wholeness(graph: &Graph) -> Wholeness {
    let has = |is_so: fn(Op) -> bool| graph.nodes.iter().any(|node| is_so(node.op));
    if has(|op| matches!(op, Op::Attend { span: Span::Mutual, .. })) {
        Wholeness::InSpans
    } else if has(|op| matches!(op, Op::Attend { span: Span::All, .. } | Op::Pool { .. })) {
        Wholeness::Whole
    } else {
        Wholeness::Divisible
    }
}

/// Refuses a graph of another key, with faults, or with nodes that the backend
/// does not run.
fn accept<B: Backend>(backend: &B, key: Key, graph: &Graph) -> Result<(), Error> {
    if graph.key != key {
        let have = graph.key;
        return Err(Error::new(format!("a graph for [{key}] has the key [{have}]; this is a bug in girih")));
    }
    if let Some(fault) = faults(graph).first() {
        return Err(Error::new(format!("the graph is malformed at {fault}; this is a bug in girih")));
    }
    if let Some(refusal) = backend.refuses(graph).first() {
        let (name, Refusal { node, reason }) = (backend.name(), refusal);
        let sentence = format!("the {name} backend does not run '{node}': {reason}");
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    Ok(())
}

impl<B: Backend> Loaded<B> {
    /// The key of a step. Checks that its parts do not contradict each other; backends rely on
    /// that.
    fn checked_key(&self, step: &Step<'_>) -> Result<Key, Error> {
        let mut next = 0;
        let (mut context, mut output_rows) = (0, 0);
        for sequence in step.sequences {
            let count = sequence.rows.end.saturating_sub(sequence.rows.start);
            if sequence.rows.start != next || count == 0 {
                return Err(Error::new(
                    "the sequences of a step must cover its rows in order, with at least one row each",
                ));
            }
            next = sequence.rows.end;
            let end = sequence.position.saturating_add(count);
            context = context.max(end);
            output_rows += sequence.outputs.count(count);
            self.check_blocks(sequence, end)?;
            check_spans(sequence, end)?;
            self.wholeness.check_spans(sequence)?;
            if self.wholeness != Wholeness::Divisible && sequence.position != 0 {
                let position = sequence.position;
                return Err(Error::new(format!(
                    "a sequence begins at position {position}, but its programs keep no state: \
                     run the whole sequence in one step"
                )));
            }
        }
        if next == 0 {
            return Err(Error::new("a step has no rows; at least one is needed"));
        }
        if step.inputs.len() != self.inputs.len() {
            let (have, need) = (step.inputs.len(), self.inputs.len());
            return Err(Error::new(format!("a step has {have} inputs; the programs need {need}")));
        }
        for (spec, input) in self.inputs.iter().zip(step.inputs) {
            spec.check(input, next as usize)?;
        }
        let (sequences, output) = (step.sequences.len() as u32, self.max_key.output);
        Ok(Key { rows: next, sequences, context, output_rows, output })
    }

    /// Refuses a sequence whose blocks do not cover its positions up to `end`.
    fn check_blocks(&self, sequence: &Sequence<'_>, end: u32) -> Result<(), Error> {
        let (have, need) = (sequence.blocks.len(), self.blocks.len());
        if have != need {
            return Err(Error::new(format!(
                "a sequence has blocks of {have} groups of state; the programs have {need}"
            )));
        }
        let need = (end as usize).div_ceil(BLOCK_POSITIONS);
        for (list, &count) in sequence.blocks.iter().zip(&self.blocks) {
            if list.len() < need {
                let have = list.len();
                return Err(Error::new(format!(
                    "a sequence up to position {end} has {have} blocks of state; {need} are needed"
                )));
            }
            if let Some(block) = list.iter().find(|block| block.0 >= count) {
                let index = block.0;
                return Err(Error::new(format!("a sequence has the block {index}; its group has {count}")));
            }
        }
        Ok(())
    }
}

impl Wholeness {
    /// Refuses mutual spans where rows see the whole sequence, and missing ones where rows see only these.
    fn check_spans(self, sequence: &Sequence<'_>) -> Result<(), Error> {
        match self {
            Wholeness::Whole if !sequence.spans.is_empty() => Err(Error::new(
                "a sequence has mutual spans, but the rows of its programs see the whole sequence: leave them out",
            )),
            Wholeness::InSpans => {
                let rows = sequence.rows.indexes().len();
                let covered: usize = sequence.spans.iter().map(|span| span.indexes().len()).sum();
                if covered == rows {
                    return Ok(());
                }
                Err(Error::new(format!(
                    "the mutual spans of a sequence have {covered} of its {rows} rows, but rows of its programs attend within \
                     them: cover all rows"
                )))
            }
            Wholeness::Divisible | Wholeness::Whole => Ok(()),
        }
    }
}

/// Refuses mutual spans that are outside the sequence's rows, or out of order.
fn check_spans(sequence: &Sequence<'_>, end: u32) -> Result<(), Error> {
    let mut next = sequence.position;
    for span in sequence.spans {
        if span.start < next || span.end <= span.start || span.end > end {
            let (from, to, first) = (span.start, span.end, sequence.position);
            return Err(Error::new(format!(
                "the mutual span {from}..{to} is empty, overlaps another, or leaves the positions \
                 {first}..{end} of its sequence"
            )));
        }
        next = span.end;
    }
    Ok(())
}

/// The smallest program that holds a step of this key.
fn program<P>(programs: &BTreeMap<Key, P>, key: Key, largest: Key) -> Result<&P, Error> {
    let program = programs.iter().find(|(have, _)| have.holds(&key)).map(|(_, program)| program);
    program.ok_or_else(|| {
        Error::new(format!("a step of [{key}] is larger than the largest program, [{largest}]"))
    })
}

impl<B: Backend> Runner for Loaded<B> {
    fn backend(&self) -> &'static str {
        self.backend.name()
    }

    fn max_key(&self) -> Key {
        self.max_key
    }

    fn groups(&self) -> &[StateGroup] {
        &self.groups
    }

    fn blocks(&self) -> &[u32] {
        &self.blocks
    }

    fn inputs(&self) -> &[InputSpec] {
        &self.inputs
    }

    fn width(&self) -> usize {
        self.width
    }

    fn plan(&self) -> MemoryPlan {
        self.plan
    }

    fn phases(&self) -> Phases {
        self.phases
    }

    fn tuning(&self) -> Option<String> {
        self.backend.tuning(&self.weights)
    }

    fn densities(&self) -> Vec<(String, f64)> {
        self.backend.densities(&self.weights)
    }

    fn touch(&self, touch: WeightTouch) -> Option<u8> {
        self.backend.touch(&self.weights, touch)
    }

    fn step(&mut self, step: Step<'_>) -> Result<(), Error> {
        let program = program(&self.programs, self.checked_key(&step)?, self.max_key)?;
        // Those of a step that failed.
        self.state.take_range_faults();
        self.backend.run(program, &self.weights, &mut self.state, &mut self.output, step)
    }

    fn step_node(&mut self, step: Step<'_>, node: &str) -> Result<(), Error> {
        let program = program(&self.programs, self.checked_key(&step)?, self.max_key)?;
        self.backend.run_node(program, &self.weights, &mut self.state, &mut self.output, step, node)
    }

    fn output(&mut self) -> &mut dyn Output {
        &mut self.output
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.state
    }
}
