//! A case of the suite: a small graph around one op, its weights, and what steps of it bring.

use std::collections::HashMap;
use std::ops::Range;

use girih_tensor::{Error, Result, View};

use crate::backend::{Step, Unwatched, Watch, WeightSource};
use crate::graph::{Graph, Key};
use crate::ops::Op;
use crate::runner::Runner;
use crate::sequence::{BLOCK_POSITIONS, Block, GivenRows, Input, Outputs, Range32, Sequence, step_count};
use crate::value::{Extent, GroupId};

/// A graph around one op, and its operands.
#[derive(Clone, Debug)]
pub struct Case {
    /// The op that the case is of, by its name in graphs; `block` for whole layers.
    pub of: &'static str,
    /// What was drawn, for people.
    pub name: String,
    /// The graph.
    pub graph: Graph,
    /// Its weights.
    pub weights: WeightTable,
    /// What steps bring for each input: the rows of all sequences, one sequence after another.
    pub inputs: Vec<CaseInput>,
    /// The sequences.
    pub sequences: Vec<CaseSequence>,
    /// The largest error allowed for each value of the result, beside one rounding to `f32`: the interpreter's.
    /// Empty if only bytes are compared.
    pub bounds: Vec<f64>,
}

/// Weights in memory, by name.
#[derive(Clone, Debug, Default)]
pub struct WeightTable(pub HashMap<String, Vec<u8>>);

/// What steps bring for an input.
#[derive(Clone, Debug)]
pub enum CaseInput {
    /// One id for each row.
    Ids(Vec<u32>),
    /// Rows of this width.
    Rows(usize, Vec<f32>),
    /// The first row of each run of given rows, and their values, in rows of this width.
    Given(usize, Vec<(usize, Vec<f32>)>),
}

/// A sequence of a case.
#[derive(Clone, Debug)]
pub struct CaseSequence {
    /// The position of its first row.
    pub position: u32,
    /// The number of its rows.
    pub rows: u32,
    /// Its output rows.
    pub outputs: Outputs,
    /// Its mutual spans.
    pub spans: Vec<Range32>,
}

/// Consecutive rows of one sequence that a step runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The index of the sequence.
    pub sequence: usize,
    /// Its rows.
    pub rows: Range<u32>,
}

/// The rows of each step, in which the sequences of a case run.
pub type StepCuts = Vec<Vec<Cut>>;

impl WeightSource for WeightTable {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<()> {
        let bytes = self.0.get(name).ok_or_else(|| Error::new(format!("there is no weight '{name}'")))?;
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
        Ok(())
    }
}

impl CaseInput {
    /// What a step brings that runs these rows, which are numbered over all sequences.
    fn part(&self, rows: &[Range<usize>]) -> CaseInput {
        match self {
            CaseInput::Ids(ids) => {
                CaseInput::Ids(rows.iter().flat_map(|rows| &ids[rows.clone()]).copied().collect())
            }
            CaseInput::Rows(width, values) => {
                let part = |rows: &Range<usize>| &values[rows.start * width..rows.end * width];
                CaseInput::Rows(*width, rows.iter().flat_map(part).copied().collect())
            }
            CaseInput::Given(width, runs) => CaseInput::Given(*width, given_part(*width, runs, rows)),
        }
    }

    /// The runs of given rows; none for other kinds of input.
    fn given(&self) -> Vec<GivenRows<'_>> {
        match self {
            CaseInput::Given(_, runs) => {
                runs.iter().map(|(first, values)| GivenRows { first_row: *first as u32, values }).collect()
            }
            CaseInput::Ids(_) | CaseInput::Rows(..) => Vec::new(),
        }
    }

    fn lent<'a>(&'a self, given: &'a [GivenRows<'a>]) -> Input<'a> {
        match self {
            CaseInput::Ids(ids) => Input::Ids(ids),
            CaseInput::Rows(_, values) => Input::Rows(values),
            CaseInput::Given(..) => Input::Given(given),
        }
    }
}

/// The runs of given rows of a step, whose rows are numbered from 0.
fn given_part(width: usize, runs: &[(usize, Vec<f32>)], rows: &[Range<usize>]) -> Vec<(usize, Vec<f32>)> {
    let (mut part, mut next) = (Vec::new(), 0);
    for rows in rows {
        for (first, values) in runs {
            let end = (first + values.len() / width).min(rows.end);
            let start = (*first).max(rows.start);
            if start < end {
                let values = &values[(start - first) * width..(end - first) * width];
                part.push((next + start - rows.start, values.to_vec()));
            }
        }
        next += rows.len();
    }
    part
}

impl CaseSequence {
    /// A sequence from `position` on, whose rows are all output rows.
    pub fn new(position: u32, rows: u32) -> CaseSequence {
        CaseSequence { position, rows, outputs: Outputs::All, spans: Vec::new() }
    }

    /// The output rows among some of its rows.
    fn outputs_of(&self, rows: &Range<u32>) -> Outputs {
        if *rows == (0..self.rows) {
            return self.outputs;
        }
        let first = self.rows - self.outputs.count(self.rows);
        match rows.end.saturating_sub(rows.start.max(first)) {
            0 => Outputs::None,
            count if count == rows.end - rows.start => Outputs::All,
            count => Outputs::LastN(count),
        }
    }

    /// The mutual spans within some of its rows.
    fn spans_of(&self, rows: &Range<u32>) -> Vec<Range32> {
        let positions = self.position + rows.start..self.position + rows.end;
        let is_within = |span: &Range32| span.start >= positions.start && span.end <= positions.end;
        self.spans.iter().copied().filter(is_within).collect()
    }

    /// The end of a cut near `end` that divides no mutual span.
    pub fn end_of_cut(&self, end: u32) -> u32 {
        let position = self.position + end;
        let divided = self.spans.iter().find(|span| span.start < position && position < span.end);
        divided.map_or(end, |span| span.end - self.position)
    }
}

impl Case {
    /// All rows in one step.
    pub fn whole(&self) -> StepCuts {
        let cuts = self.sequences.iter().enumerate();
        vec![cuts.map(|(sequence, s)| Cut { sequence, rows: 0..s.rows }).collect()]
    }

    /// The graph for steps of another size.
    pub fn graph_at(&self, key: Key) -> Graph {
        let mut graph = self.graph.clone();
        graph.key = key;
        for value in &mut graph.values {
            let count = match value.outermost {
                Extent::Fixed => continue,
                Extent::Rows => key.rows,
                Extent::OutputRows => key.output_rows,
                Extent::Sequences => key.sequences,
                Extent::Context => key.context,
            };
            value.shape = value.shape.with_outermost(count as usize);
        }
        graph
    }

    /// The numbers of a weight.
    ///
    /// # Panics
    /// When the case has no such weight.
    pub fn weight(&self, name: &str) -> Vec<f32> {
        let value = self.graph.find(name).map(|id| self.graph.value(id)).expect("the case has the weight");
        let (rows, columns) = (value.shape.rows(), value.shape.columns());
        let view =
            View::new(value.dtype, rows, columns, &self.weights.0[name]).expect("the bytes have the shape");
        let mut numbers = vec![0.0; value.shape.elements()];
        view.unpack_rows(0..rows, &mut numbers);
        numbers
    }

    /// Whether a sequence may run in several steps.
    pub fn can_be_cut(&self) -> bool {
        self.graph.nodes.iter().all(|node| match node.op {
            Op::Attend { span, .. } => !span.is_of_step(),
            Op::Pool { .. } => false,
            _ => true,
        })
    }

    /// The blocks of each group that suffice.
    pub fn blocks(&self) -> Vec<u32> {
        vec![self.sequences.len() as u32 * self.blocks_each(); self.graph.groups.len()]
    }

    /// The blocks of the longest sequence.
    fn blocks_each(&self) -> u32 {
        let ends = self.sequences.iter().map(|s| (s.position + s.rows).div_ceil(BLOCK_POSITIONS as u32));
        ends.max().unwrap_or(0)
    }

    /// The blocks of a sequence in each group, in another order in each.
    fn blocks_of(&self, sequence: usize) -> Vec<Vec<Block>> {
        let each = self.blocks_each();
        let first = sequence as u32 * each;
        let of_group = |group: usize| {
            let order = |index: u32| if group.is_multiple_of(2) { index } else { each - 1 - index };
            (0..each).map(|index| Block(first + order(index))).collect()
        };
        (0..self.graph.groups.len()).map(of_group).collect()
    }

    /// Fills all blocks with bytes that are NaN in every type of state, if the device lets it: what no row has
    /// written must not change a result.
    ///
    /// # Errors
    /// When the device fails.
    pub fn poison(&self, runner: &mut dyn Runner) -> Result<()> {
        for (group, count) in self.blocks().into_iter().enumerate() {
            let group = GroupId(group as u32);
            let bytes = vec![0xff; runner.state().export(group, Block(0))?.len()];
            (0..count).try_for_each(|block| runner.state().import(group, Block(block), &bytes))?;
        }
        Ok(())
    }

    /// Runs the steps, and returns the result rows, one sequence after another.
    ///
    /// # Errors
    /// When the runner refuses a step or fails.
    pub fn run(&self, runner: &mut dyn Runner, steps: &StepCuts) -> Result<Vec<f32>> {
        self.run_watched(runner, steps, &mut Unwatched)
    }

    /// As [`Case::run`], with a watch.
    ///
    /// # Errors
    /// When the runner refuses a step or fails.
    pub fn run_watched(
        &self,
        runner: &mut dyn Runner,
        steps: &StepCuts,
        watch: &mut dyn Watch,
    ) -> Result<Vec<f32>> {
        let mut results = vec![Vec::new(); self.sequences.len()];
        for cuts in steps {
            let rows = self.step(runner, cuts, watch)?;
            let mut rest = rows.as_slice();
            for (cut, count) in cuts.iter().zip(self.result_counts(runner, cuts)) {
                let (own, others) = rest.split_at(count);
                results[cut.sequence].extend_from_slice(own);
                rest = others;
            }
        }
        Ok(results.concat())
    }

    /// The number of values in the result of each cut.
    fn result_counts(&self, runner: &dyn Runner, cuts: &[Cut]) -> Vec<usize> {
        let of_cut = |cut: &Cut| {
            let outputs = self.sequences[cut.sequence].outputs_of(&cut.rows);
            let range = Range32 { start: 0, end: cut.rows.end - cut.rows.start };
            let sequence = Sequence { blocks: &[], position: 0, rows: range, outputs, spans: &[] };
            step_count(&[sequence], self.graph.key.output.extent()) * runner.width()
        };
        cuts.iter().map(of_cut).collect()
    }

    /// Runs one step and returns its result rows.
    fn step(&self, runner: &mut dyn Runner, cuts: &[Cut], watch: &mut dyn Watch) -> Result<Vec<f32>> {
        let firsts: Vec<usize> = self
            .sequences
            .iter()
            .scan(0, |next, s| Some(std::mem::replace(next, *next + s.rows as usize)))
            .collect();
        let rows_of = |cut: &Cut| {
            let first = firsts[cut.sequence];
            first + cut.rows.start as usize..first + cut.rows.end as usize
        };
        let rows: Vec<Range<usize>> = cuts.iter().map(rows_of).collect();
        let parts: Vec<CaseInput> = self.inputs.iter().map(|input| input.part(&rows)).collect();
        let given: Vec<Vec<GivenRows<'_>>> = parts.iter().map(CaseInput::given).collect();
        let inputs: Vec<Input<'_>> = parts.iter().zip(&given).map(|(part, given)| part.lent(given)).collect();
        let blocks: Vec<Vec<Vec<Block>>> = cuts.iter().map(|cut| self.blocks_of(cut.sequence)).collect();
        let blocks: Vec<Vec<&[Block]>> =
            blocks.iter().map(|groups| groups.iter().map(Vec::as_slice).collect()).collect();
        let spans: Vec<Vec<Range32>> =
            cuts.iter().map(|cut| self.sequences[cut.sequence].spans_of(&cut.rows)).collect();
        let mut next = 0;
        let mut sequences = Vec::new();
        for ((cut, blocks), spans) in cuts.iter().zip(&blocks).zip(&spans) {
            let (sequence, count) = (&self.sequences[cut.sequence], cut.rows.end - cut.rows.start);
            let rows = Range32 { start: next, end: next + count };
            next = rows.end;
            let position = sequence.position + cut.rows.start;
            let outputs = sequence.outputs_of(&cut.rows);
            sequences.push(Sequence { blocks, position, rows, outputs, spans });
        }
        runner.step(Step { inputs: &inputs, sequences: &sequences, watch })?;
        let count = step_count(&sequences, self.graph.key.output.extent());
        Ok(runner.output().rows(0..count)?.to_vec())
    }
}
