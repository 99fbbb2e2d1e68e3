//! Loaded models: the one place where a backend's types vanish, and where the
//! steps of an engine are checked before a backend sees them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backend::{Backend, Inputs, MemoryPlan, Refusal, Sequence, State, Step, WeightSource};
use crate::{BLOCK_POSITIONS, Error, Graph, Group, InputKind, Key, Op, ValueId, Variant, faults};

/// A loaded model on some device: what the engine knows of it.
pub trait Runner {
    /// The device's name.
    fn backend(&self) -> &'static str;
    /// The largest step.
    fn most(&self) -> Key;
    /// The groups of state.
    fn groups(&self) -> &[Group];
    /// How many blocks each group has.
    fn blocks(&self) -> &[u32];
    /// The columns of the output.
    fn width(&self) -> usize;
    /// What the loaded programs take.
    fn plan(&self) -> MemoryPlan;
    /// How long loading took; zero where nothing was loaded.
    fn phases(&self) -> Phases {
        Phases::default()
    }
    /// Runs the smallest program that fits.
    ///
    /// # Errors
    /// When no program fits, the step contradicts itself, or the device fails.
    fn step(&mut self, step: Step<'_>) -> Result<(), Error>;
    /// The state, for copying and forgetting blocks.
    fn state(&mut self) -> &mut dyn State;
}

/// The phases of [`load`], by the clock on the wall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Building and checking the largest graph, and planning its memory.
    pub plan: Duration,
    /// Reading the weights and laying them out.
    pub weights: Duration,
    /// Making the state.
    pub state: Duration,
    /// Compiling the programs.
    pub compile: Duration,
}

/// A backend joined with its weights, its state and its programs.
struct Loaded<B: Backend> {
    backend: B,
    weights: B::Weights,
    state: B::State,
    programs: BTreeMap<Key, B::Program>,
    most: Key,
    groups: Vec<Group>,
    blocks: Vec<u32>,
    sizes: Sizes,
    plan: MemoryPlan,
    phases: Phases,
}

/// What the inputs and outputs of every program have in common.
struct Sizes {
    /// Values in a row of the input; one for tokens.
    input: usize,
    /// Values in a row of the output.
    output: usize,
    /// Rows of the smallest embedding table, which bound the tokens.
    vocabulary: usize,
}

/// Loads `source` on `backend`, with `blocks` blocks of state per group, and
/// compiles one program for each rung of its ladder.
///
/// # Errors
/// When a graph has faults or another key than was asked for, the backend
/// refuses a node, or loading fails.
pub fn load<B: Backend>(
    backend: B,
    source: &dyn WeightSource,
    most: Key,
    blocks: &[u32],
    build: impl Fn(Key) -> Result<Graph, Error>,
) -> Result<Box<dyn Runner>, Error> {
    let begun = Instant::now();
    let largest = build(most)?;
    accept(&backend, most, &largest)?;
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
    for key in backend.ladder(most) {
        let graph = build(key)?;
        accept(&backend, key, &graph)?;
        programs.insert(key, backend.compile(&graph, &weights)?);
    }
    let (sizes, groups, blocks) = (Sizes::of(&largest), largest.groups, blocks.to_vec());
    let phases = Phases {
        plan: planned - begun,
        weights: read - planned,
        state: made - read,
        compile: made.elapsed(),
    };
    Ok(Box::new(Loaded { backend, weights, state, programs, most, groups, blocks, sizes, plan, phases }))
}

/// Refuses a graph of another key, with faults, or with nodes that the backend
/// will not run.
fn accept<B: Backend>(backend: &B, key: Key, graph: &Graph) -> Result<(), Error> {
    if graph.key != key {
        let have = graph.key;
        return Err(Error::new(format!(
            "a graph for [{key}] has the key [{have}]; this is a fault of girih"
        )));
    }
    if let Some(fault) = faults(graph).first() {
        return Err(Error::new(format!("the graph is malformed at {fault}; this is a fault of girih")));
    }
    if let Some(refusal) = backend.refuses(graph).first() {
        let (name, Refusal { node, reason }) = (backend.name(), refusal);
        return Err(Error::new(format!("the {name} backend does not run '{node}': {reason}")));
    }
    Ok(())
}

impl Sizes {
    fn of(graph: &Graph) -> Sizes {
        let stride =
            |id: Option<ValueId>| graph.value(id.expect("a graph without faults has both")).shape.stride();
        let embeds = graph.nodes.iter().filter(|node| node.op == Op::Embed);
        let tables = embeds.map(|node| graph.value(node.inputs[1]).shape.extents()[0]);
        Sizes {
            input: stride(graph.input()),
            output: stride(graph.output()),
            vocabulary: tables.min().unwrap_or(usize::MAX),
        }
    }

    /// How many rows the inputs are, if the programs can take them.
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
                Err(Error::new(format!("{have} embedding values are no whole rows of {need}")))
            }
        }
    }
}

impl<B: Backend> Loaded<B> {
    /// The extents of a step, after checking that it does not contradict
    /// itself: backends rely on it.
    fn measure(&self, step: &Step<'_>) -> Result<Key, Error> {
        let variant = self.variant(step.inputs)?;
        let rows = self.sizes.rows(step.inputs)?;
        let mut next = 0;
        let (mut context, mut output_rows) = (0, 0);
        for sequence in step.sequences {
            let count = sequence.rows.end.saturating_sub(sequence.rows.start);
            if sequence.rows.start != next || count == 0 {
                return Err(Error::new(
                    "the sequences of a step follow each other and have at least one row each",
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

    /// The programs' variant, if the inputs are of its kind.
    fn variant(&self, inputs: Inputs<'_>) -> Result<Variant, Error> {
        let variant = self.most.variant;
        match (inputs, variant.input) {
            (Inputs::Tokens(_), InputKind::Tokens) | (Inputs::Embeddings(_), InputKind::Embeddings) => {
                Ok(variant)
            }
            (Inputs::Tokens(_), _) => Err(Error::new("a step brings tokens; the programs take embeddings")),
            (Inputs::Embeddings(_), _) => {
                Err(Error::new("a step brings embeddings; the programs take tokens"))
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

/// Refuses mutual spans that leave the sequence's rows, or are out of order.
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

    fn most(&self) -> Key {
        self.most
    }

    fn groups(&self) -> &[Group] {
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
        let key = self.measure(&step)?;
        let program = self.programs.iter().find(|(have, _)| have.holds(&key)).map(|(_, program)| program);
        let program = program.ok_or_else(|| {
            Error::new(format!("a step of [{key}] is larger than the largest program, [{}]", self.most))
        })?;
        self.backend.run(program, &self.weights, &mut self.state, step)
    }

    fn state(&mut self) -> &mut dyn State {
        &mut self.state
    }
}
