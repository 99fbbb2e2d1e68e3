//! Calls of a model: sequences of a step with the same number of rows, and what a call brings.

use girih_graph::backend::{GivenRows, Input, Range32};
use girih_graph::{
    AppliedOp, Extent, Graph, Key, Node, Op, Outputs, Pairing, Role, Sequence, Temperature, ValueId,
    rope_angle,
};
use girih_tensor::{Error, Result};

use crate::lower::HostRotation;
use crate::weights::OpenVinoWeights;

/// The sequences of one call, which have the same number of rows each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LaneCall {
    /// Indexes of sequences of the step.
    pub lanes: Vec<usize>,
    /// The rows of each.
    pub rows: usize,
}

/// The largest number of scores of attention to earlier positions in one call: 64 MiB, which are held three times.
const MOST_SCORES: usize = 1 << 24;

/// The bytes of the scores of a call with the graph's largest step. A model of fixed shapes always has that of its shape.
pub(crate) fn score_bytes(graph: &Graph, is_fixed: bool) -> u64 {
    let Key { rows, context, .. } = graph.key;
    let all = heads(graph).saturating_mul(rows as usize).saturating_mul((rows + context) as usize);
    let most = if is_fixed { all } else { all.min(MOST_SCORES) };
    (most as u64).saturating_mul(3 * size_of::<f32>() as u64)
}

/// The most heads of queries that attend to state.
fn heads(graph: &Graph) -> usize {
    let of = |node: &Node| match graph.applied_op(node) {
        Some(AppliedOp::Attend { q, keys, .. }) if matches!(keys.role, Role::State(_)) => {
            q.shape.extents()[1]
        }
        _ => 0,
    };
    graph.nodes.iter().map(of).max().unwrap_or(0)
}

/// Cuts sequences whose scores would take too much memory. Rows that attend to each other both ways, and rows that are
/// pooled, stay together.
pub(crate) fn parts<'a>(graph: &Graph, sequences: &[Sequence<'a>]) -> Vec<Sequence<'a>> {
    let heads = heads(graph);
    let is_pooled = graph.nodes.iter().any(|node| matches!(node.op, Op::Pool { .. }));
    let cut = |sequence: &Sequence<'a>| {
        let end = sequence.position as usize + sequence.rows.indexes().len();
        let most = (MOST_SCORES / (heads * end).max(1)).max(1);
        let whole = heads == 0 || is_pooled || !sequence.spans.is_empty();
        part_rows(sequence, if whole { usize::MAX } else { most })
    };
    sequences.iter().flat_map(cut).collect()
}

/// Parts of a sequence with at most this number of rows.
fn part_rows<'a>(sequence: &Sequence<'a>, most: usize) -> Vec<Sequence<'a>> {
    let (rows, outputs) = (sequence.rows.indexes(), sequence.output_rows());
    let part = |start: usize| {
        let end = rows.end.min(start.saturating_add(most));
        let count = end.saturating_sub(outputs.start.max(start)) as u32;
        Sequence {
            position: sequence.position + (start - rows.start) as u32,
            rows: Range32 { start: start as u32, end: end as u32 },
            outputs: Outputs::LastN(count),
            ..*sequence
        }
    };
    rows.clone().step_by(most).map(part).collect()
}

/// One call for each sequence.
pub(crate) fn single_calls(sequences: &[Sequence<'_>]) -> Vec<LaneCall> {
    let rows = sequences.iter().map(|sequence| sequence.rows.indexes().len());
    let calls = rows.enumerate().map(|(index, rows)| LaneCall { lanes: vec![index], rows });
    calls.filter(|call| call.rows > 0).collect()
}

/// All sequences of one row in one call, and one call for each other sequence.
pub(crate) fn calls(sequences: &[Sequence<'_>]) -> Vec<LaneCall> {
    let rows = |index: &usize| sequences[*index].rows.indexes().len();
    let (single, several): (Vec<usize>, Vec<usize>) =
        (0..sequences.len()).partition(|index| rows(index) == 1);
    let prompts = several.into_iter().map(|index| LaneCall { lanes: vec![index], rows: rows(&index) });
    let mut calls: Vec<LaneCall> = prompts.filter(|call| call.rows > 0).collect();
    if !single.is_empty() {
        calls.push(LaneCall { lanes: single, rows: 1 });
    }
    calls
}

/// A call of a step, to make what it brings.
#[derive(Clone, Copy)]
pub(crate) struct CallInputs<'a> {
    pub graph: &'a Graph,
    pub weights: &'a OpenVinoWeights,
    pub inputs: &'a [Input<'a>],
    pub sequences: &'a [Sequence<'a>],
    pub call: &'a LaneCall,
}

impl<'a> CallInputs<'a> {
    /// The sequences of the call.
    pub fn lanes(self) -> impl Iterator<Item = &'a Sequence<'a>> {
        self.call.lanes.iter().map(move |index| &self.sequences[*index])
    }

    /// The extents of the lanes and of their rows.
    pub fn extents(self) -> [usize; 2] {
        [self.call.lanes.len(), self.call.rows]
    }

    /// What the step brings for an input.
    fn input(self, id: ValueId) -> Result<Input<'a>> {
        let found = self.graph.inputs().zip(self.inputs).find(|((known, _), _)| *known == id);
        found.map(|(_, input)| *input).ok_or_else(|| self.wrong(id))
    }

    fn wrong(self, id: ValueId) -> Error {
        let name = &self.graph.value(id).name;
        Error::new(format!("the step brings something else for '{name}'; this is a bug in girih"))
    }

    /// Ids of the rows of the call.
    pub fn ids(self, id: ValueId) -> Result<Vec<i32>> {
        let Input::Ids(ids) = self.input(id)? else { return Err(self.wrong(id)) };
        // Ids are below the number of rows of a table, as the runner has checked.
        Ok(self.lanes().flat_map(|lane| ids[lane.rows.indexes()].iter().map(|id| *id as i32)).collect())
    }

    /// Rows of an input.
    pub fn rows(self, id: ValueId) -> Result<Vec<f32>> {
        let Input::Rows(values) = self.input(id)? else { return Err(self.wrong(id)) };
        let width = self.graph.value(id).shape.stride();
        let of = |lane: &Sequence<'_>| {
            let rows = lane.rows.indexes();
            values[rows.start * width..rows.end * width].to_vec()
        };
        Ok(self.lanes().flat_map(of).collect())
    }

    /// Given rows, and zeros for others; and 1 for each given row.
    pub fn given(self, id: ValueId) -> Result<(Vec<f32>, Vec<i32>)> {
        let Input::Given(runs) = self.input(id)? else { return Err(self.wrong(id)) };
        let width = self.graph.value(id).shape.stride();
        let [lanes, rows] = self.extents();
        let (mut values, mut is_given) = (vec![0.0; lanes * rows * width], vec![0; lanes * rows]);
        let own: Vec<usize> = self.lanes().flat_map(|lane| lane.rows.indexes()).collect();
        for (at, row) in own.into_iter().enumerate() {
            if let Some(numbers) = given_row(runs, row, width) {
                values[at * width..(at + 1) * width].copy_from_slice(numbers);
                is_given[at] = 1;
            }
        }
        Ok((values, is_given))
    }

    /// Cosines and sines of a rotation, `[n, 1, r, rotated]`. The angle is rounded to `f32` first, as in the definition.
    pub fn tables(self, rotation: &HostRotation) -> Result<[Vec<f32>; 2]> {
        let frequencies = self.weights.on_host(self.graph.value(rotation.frequencies))?;
        let given = rotation.positions.map(|id| match self.input(id)? {
            Input::Rows(values) => Ok((values, self.graph.value(id).shape.stride())),
            Input::Ids(_) | Input::Given(_) => Err(self.wrong(id)),
        });
        let given = given.transpose()?;
        let [lanes, rows] = self.extents();
        let mut tables = [(); 2].map(|()| Vec::with_capacity(lanes * rows * rotation.rotated));
        for lane in self.lanes() {
            for (row, position) in lane.rows.indexes().zip(lane.position..) {
                let own = [position as f32];
                let positions =
                    given.map_or(&own[..], |(values, streams)| &values[row * streams..(row + 1) * streams]);
                rotate(rotation, frequencies, positions, &mut tables);
            }
        }
        Ok(tables)
    }

    /// The factor of each row of the call.
    pub fn factors(self, temperature: Temperature) -> Vec<f32> {
        let of = |lane: &Sequence<'_>| -> Vec<f32> {
            let positions = (lane.position..).take(lane.rows.indexes().len());
            positions.map(|position| temperature.at(position) as f32).collect()
        };
        self.lanes().flat_map(of).collect()
    }

    /// The indexes of output rows among the rows of the call, and their number; at least one index, as no device is
    /// asked for nothing.
    pub fn taken(self) -> (Vec<i32>, usize) {
        let each = self.lanes().enumerate().flat_map(|(lane, sequence)| {
            let first = lane * self.call.rows;
            let start = sequence.rows.indexes().start;
            sequence.output_rows().map(move |row| (first + row - start) as i32)
        });
        let mut taken: Vec<i32> = each.collect();
        let count = taken.len();
        if count == 0 {
            taken.push(0);
        }
        (taken, count)
    }

    /// For each lane: the first row of a value of this extent among those of the step, and the number of its rows.
    pub fn rows_of_step(self, extent: Extent) -> Vec<(usize, usize)> {
        let outputs = |index: usize| -> usize {
            self.sequences[..index].iter().map(|sequence| sequence.output_rows().len()).sum()
        };
        let place = |index: &usize| {
            let sequence = &self.sequences[*index];
            match extent {
                Extent::OutputRows => (outputs(*index), sequence.output_rows().len()),
                Extent::Sequences => (*index, 1),
                Extent::Rows | Extent::Fixed | Extent::Context => {
                    (sequence.rows.indexes().start, sequence.rows.indexes().len())
                }
            }
        };
        self.call.lanes.iter().map(place).collect()
    }
}

/// The numbers that are given for a row.
fn given_row<'a>(runs: &[GivenRows<'a>], row: usize, width: usize) -> Option<&'a [f32]> {
    runs.iter().find_map(|run| {
        let at = row.checked_sub(run.first_row as usize)? * width;
        run.values.get(at..at + width)
    })
}

/// Adds the cosines and the sines of a row.
fn rotate(
    rotation: &HostRotation,
    frequencies: &[f32],
    positions: &[f32],
    [cosines, sines]: &mut [Vec<f32>; 2],
) {
    let factor = f64::from(rotation.factor.unwrap_or(1.0));
    let turns = frequencies.chunks_exact(positions.len()).map(|own| {
        let (sin, cos) = f64::from(rope_angle(positions, own)).sin_cos();
        [(factor * cos) as f32, (factor * sin) as f32]
    });
    match rotation.pairing {
        Pairing::Halves => {
            let turns: Vec<[f32; 2]> = turns.collect();
            for _ in 0..2 {
                cosines.extend(turns.iter().map(|[cos, _]| cos));
                sines.extend(turns.iter().map(|[_, sin]| sin));
            }
        }
        Pairing::Neighbours => turns.for_each(|[cos, sin]| {
            cosines.extend([cos, cos]);
            sines.extend([-sin, sin]);
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_sequence_have_its_rows_and_its_outputs() {
        let rows = Range32 { start: 10, end: 20 };
        let sequence = Sequence { blocks: &[], position: 5, rows, outputs: Outputs::LastN(5), spans: &[] };
        let found: Vec<(u32, u32, u32, usize)> = part_rows(&sequence, 4)
            .iter()
            .map(|part| (part.position, part.rows.start, part.rows.end, part.output_rows().len()))
            .collect();
        assert_eq!(found, [(5, 10, 14, 0), (9, 14, 18, 3), (13, 18, 20, 2)]);
        assert_eq!(part_rows(&sequence, usize::MAX).len(), 1);
    }
}
