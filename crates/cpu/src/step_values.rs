//! The values of a step: where each lies, and how one is written while others are read.

use girih_graph::ValueId;
use girih_graph::backend::{GivenRows, Input};

/// Where a value of a graph lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueStore {
    /// Among the values of the step.
    Step(ValueLocation),
    /// In the loaded weights, with this index.
    Weight(usize),
    /// In state, with this index among the values of its kind.
    State(usize),
}

/// Where the rows of a value lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueLocation {
    pub buffer: StepBuffer,
    /// Values in a row.
    pub stride: usize,
    pub count: RowCount,
}

/// A buffer that a step reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepBuffer {
    /// The input of this index.
    Input(usize),
    /// The step's output.
    Output,
    /// Scratch memory, from this index on.
    Scratch(usize),
}

/// How many rows a value has in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowCount {
    Rows,
    OutputRows,
    /// One row for each sequence.
    Sequences,
}

/// The inputs, intermediate values and outputs of a step.
pub(crate) struct StepValues<'a> {
    /// Where each value of the graph lies.
    pub stores: &'a [ValueStore],
    pub inputs: &'a [Input<'a>],
    pub scratch: &'a mut [f32],
    pub output: &'a mut [f32],
    pub rows: usize,
    pub output_rows: usize,
    pub sequences: usize,
}

impl<'a> StepValues<'a> {
    fn location(&self, id: ValueId) -> ValueLocation {
        match self.stores[id.0 as usize] {
            ValueStore::Step(location) => location,
            ValueStore::Weight(_) | ValueStore::State(_) => unreachable!("checked: it is a value of rows"),
        }
    }

    /// The buffer of a value, and its length in this step.
    fn place(&self, id: ValueId) -> (StepBuffer, usize) {
        (self.location(id).buffer, self.count(id) * self.stride(id))
    }

    /// The number of rows of a value in this step.
    pub fn count(&self, id: ValueId) -> usize {
        match self.location(id).count {
            RowCount::Rows => self.rows,
            RowCount::OutputRows => self.output_rows,
            RowCount::Sequences => self.sequences,
        }
    }

    /// The number of values in a row of a value.
    pub fn stride(&self, id: ValueId) -> usize {
        self.location(id).stride
    }

    /// Whether two values are the same memory.
    pub fn is_alias(&self, a: ValueId, b: ValueId) -> bool {
        self.location(a).buffer == self.location(b).buffer
    }

    /// The index of a value of state.
    pub fn state(&self, id: ValueId) -> usize {
        match self.stores[id.0 as usize] {
            ValueStore::State(index) => index,
            ValueStore::Step(_) | ValueStore::Weight(_) => unreachable!("checked: the operand is state"),
        }
    }

    fn input(&self, id: ValueId) -> &'a Input<'a> {
        match self.location(id).buffer {
            StepBuffer::Input(index) => &self.inputs[index],
            StepBuffer::Output | StepBuffer::Scratch(_) => unreachable!("checked: the operand is an input"),
        }
    }

    /// The ids of an input.
    pub fn ids(&self, id: ValueId) -> &'a [u32] {
        match self.input(id) {
            Input::Ids(ids) => ids,
            Input::Rows(_) | Input::Given(_) => unreachable!("checked: the input has ids"),
        }
    }

    /// The rows that are given for an input.
    pub fn given(&self, id: ValueId) -> &'a [GivenRows<'a>] {
        match self.input(id) {
            Input::Given(given) => given,
            Input::Rows(_) | Input::Ids(_) => unreachable!("checked: the input has given rows"),
        }
    }

    /// The rows of a value.
    pub fn get(&self, id: ValueId) -> &[f32] {
        match self.place(id) {
            (StepBuffer::Input(index), _) => input_rows(self.inputs, index),
            (StepBuffer::Output, _) => self.output,
            (StepBuffer::Scratch(start), len) => &self.scratch[start..start + len],
        }
    }

    /// Borrows the rows of one value mutably, and those of others for reading.
    ///
    /// # Panics
    /// If the value to be written overlaps another, which a correct plan rules out.
    pub fn split<const N: usize>(
        &mut self,
        output: ValueId,
        operands: [ValueId; N],
    ) -> (&mut [f32], [&[f32]; N]) {
        let (output, len) = self.place(output);
        let operands = operands.map(|operand| self.place(operand));
        let (before, result, after, end): (&[f32], _, &[f32], _) = match output {
            StepBuffer::Scratch(start) => {
                let (before, rest) = self.scratch.split_at_mut(start);
                let (result, after) = rest.split_at_mut(len);
                (before, result, after, start + len)
            }
            StepBuffer::Output => (self.scratch, &mut *self.output, &[], 0),
            StepBuffer::Input(_) => unreachable!("checked: nothing writes an input"),
        };
        let operands = operands.map(|(buffer, len)| match buffer {
            StepBuffer::Input(index) => input_rows(self.inputs, index),
            StepBuffer::Scratch(start) if start + len <= before.len() => &before[start..start + len],
            StepBuffer::Scratch(start) => {
                let start = start.checked_sub(end).expect("a plan keeps operands apart from results");
                &after[start..start + len]
            }
            StepBuffer::Output => unreachable!("checked: the last node writes the output, so none reads it"),
        });
        (result, operands)
    }

    /// Borrows the rows of some values mutably; empty where there is no value.
    ///
    /// # Panics
    /// If two of them overlap, which a correct plan rules out.
    pub fn outputs<const N: usize>(&mut self, ids: [Option<ValueId>; N]) -> [&mut [f32]; N] {
        let places = ids.map(|id| id.map(|id| self.place(id)));
        let scratch = places.map(|place| match place {
            Some((StepBuffer::Scratch(start), len)) => start..start + len,
            _ => 0..0,
        });
        let mut outputs = self.scratch.get_disjoint_mut(scratch).expect("a plan keeps results apart");
        if let Some(index) = places.iter().position(|place| matches!(place, Some((StepBuffer::Output, _)))) {
            outputs[index] = self.output;
        }
        outputs
    }
}

/// The rows of values that a step brings for an input.
fn input_rows<'a>(inputs: &'a [Input<'a>], index: usize) -> &'a [f32] {
    match inputs[index] {
        Input::Rows(values) => values,
        Input::Ids(_) | Input::Given(_) => unreachable!("checked: the input has rows of values"),
    }
}
