//! Loaded models: hides a backend's types, and checks the engine's steps before
//! the backend runs them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use girih_tensor::{Error, ErrorKind};

use crate::backend::{
    BLOCK_POSITIONS, Backend, Inputs, MemoryPlan, Refusal, Sequence, State, Step, WeightSource,
};
use crate::check::faults;
use crate::graph::{Graph, InputKind, Key, StateGroup, Variant};
use crate::op::Op;
use crate::value::ValueId;

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
    /// The number of values in an output row.
    fn width(&self) -> usize;
    /// The memory of the loaded programs.
    fn plan(&self) -> MemoryPlan;
    /// The durations of loading; zero if nothing was loaded.
    fn phases(&self) -> Phases {
        Phases::default()
    }
    /// Runs a step on the smallest program that holds it.
    ///
    /// # Errors
    /// When no program holds it, its parts contradict each other, or the device fails.
    fn step(&mut self, step: Step<'_>) -> Result<(), Error>;
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

/// A backend with its weights, its state and its programs.
struct Loaded<B: Backend> {
    backend: B,
    weights: B::Weights,
    state: B::State,
    programs: BTreeMap<Key, B::Program>,
    max_key: Key,
    groups: Vec<StateGroup>,
    blocks: Vec<u32>,
    sizes: RowSizes,
    plan: MemoryPlan,
    phases: Phases,
}

/// The sizes of input and output rows, which are the same for all programs.
struct RowSizes {
    /// Values in a row of the input; 1 for tokens.
    input: usize,
    /// Values in a row of the output.
    output: usize,
    /// Rows of the smallest embedding table: token ids are below it.
    vocabulary: usize,
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
    let begun = Instant::now();
    let largest = build(max_key)?;
    accept(&backend, max_key, &largest)?;
    if blocks.len() != largest.groups.len() {
        let (have, need) = (blocks.len(), largest.groups.len());
        return Err(Error::new(format!("block counts for {have} groups were given; the graph has {need}")));
    }
    let plan = backend.plan(&largest, blocks);
    let planned = Instant::now();
    let weights = backend.load(&largest, source)?;
    let read = Instant::now();
    let state = backend.state(&largest, blocks)?;
    let made = Instant::now();
    let mut programs = BTreeMap::new();
    for key in backend.ladder(max_key) {
        let graph = build(key)?;
        accept(&backend, key, &graph)?;
        programs.insert(key, backend.compile(&graph, &weights)?);
    }
    let (sizes, groups, blocks) = (RowSizes::of(&largest), largest.groups, blocks.to_vec());
    let phases = Phases {
        plan: planned - begun,
        weights: read - planned,
        state: made - read,
        compile: made.elapsed(),
    };
    Ok(Box::new(Loaded { backend, weights, state, programs, max_key, groups, blocks, sizes, plan, phases }))
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

impl RowSizes {
    fn of(graph: &Graph) -> RowSizes {
        let stride =
            |id: Option<ValueId>| graph.value(id.expect("a graph without faults has both")).shape.stride();
        let embeds = graph.nodes.iter().filter(|node| node.op == Op::Embed);
        let tables = embeds.map(|node| graph.value(node.inputs[1]).shape.extents()[0]);
        RowSizes {
            input: stride(graph.input()),
            output: stride(graph.output()),
            vocabulary: tables.min().unwrap_or(usize::MAX),
        }
    }

    /// The number of input rows, if the inputs are valid.
    fn rows(&self, inputs: Inputs<'_>) -> Result<usize, Error> {
        match inputs {
            Inputs::Tokens(tokens) => {
                let outside = tokens.iter().find(|&&token| token as usize >= self.vocabulary);
                outside.map_or(Ok(tokens.len()), |token| {
                    let size = self.vocabulary;
                    Err(Error::new(format!("token {token} is outside the vocabulary of {size}")))
                })
            }
            Inputs::Embeddings(values) if values.len() % self.input == 0 => Ok(values.len() / self.input),
            Inputs::Embeddings(values) => {
                let (have, need) = (values.len(), self.input);
                Err(Error::new(format!("{have} embedding values are not whole rows of {need}")))
            }
        }
    }
}

impl<B: Backend> Loaded<B> {
    /// The key of a step. Checks that its parts do not contradict each other; backends rely on
    /// that.
    fn checked_key(&self, step: &Step<'_>) -> Result<Key, Error> {
        let variant = self.variant(step.inputs)?;
        let rows = self.sizes.rows(step.inputs)?;
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
        }
        if rows == 0 {
            return Err(Error::new("a step has no rows; at least one is needed"));
        }
        if next as usize != rows {
            return Err(Error::new(format!("a step of {rows} rows has sequences for {next}")));
        }
        if step.output.len() != output_rows as usize * self.sizes.output {
            let (have, need) = (step.output.len(), output_rows as usize * self.sizes.output);
            return Err(Error::new(format!(
                "the output of a step has room for {have} values; it needs {need}"
            )));
        }
        Ok(Key { rows: next, sequences: step.sequences.len() as u32, context, output_rows, variant })
    }

    /// The programs' variant, if it has inputs of this kind.
    fn variant(&self, inputs: Inputs<'_>) -> Result<Variant, Error> {
        let variant = self.max_key.variant;
        match (inputs, variant.input) {
            (Inputs::Tokens(_), InputKind::Tokens) | (Inputs::Embeddings(_), InputKind::Embeddings) => {
                Ok(variant)
            }
            (Inputs::Tokens(_), _) => Err(Error::new("the step has tokens; the programs need embeddings")),
            (Inputs::Embeddings(_), _) => {
                Err(Error::new("the step has embeddings; the programs need tokens"))
            }
        }
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

    fn width(&self) -> usize {
        self.sizes.output
    }

    fn plan(&self) -> MemoryPlan {
        self.plan
    }

    fn phases(&self) -> Phases {
        self.phases
    }

    fn step(&mut self, step: Step<'_>) -> Result<(), Error> {
        let key = self.checked_key(&step)?;
        let program = self.programs.iter().find(|(have, _)| have.holds(&key)).map(|(_, program)| program);
        let program = program.ok_or_else(|| {
            Error::new(format!("a step of [{key}] is larger than the largest program, [{}]", self.max_key))
        })?;
        self.backend.run(program, &self.weights, &mut self.state, step)
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.state
    }
}
