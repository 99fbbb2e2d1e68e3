//! The values of a step: where each lies, and how one is written while others are read.

use girih_graph::backend::Input;

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
    pub inputs: &'a [Input<'a>],
    pub scratch: &'a mut [f32],
    pub output: &'a mut [f32],
    pub rows: usize,
    pub output_rows: usize,
    pub sequences: usize,
}

impl StepValues<'_> {
    /// The number of rows of a value in this step.
    pub fn count(&self, location: ValueLocation) -> usize {
        self.rows_of(location.count)
    }

    pub fn rows_of(&self, count: RowCount) -> usize {
        match count {
            RowCount::Rows => self.rows,
            RowCount::OutputRows => self.output_rows,
            RowCount::Sequences => self.sequences,
        }
    }

    fn len(&self, location: ValueLocation) -> usize {
        self.count(location) * location.stride
    }

    /// The values at a location.
    pub fn get(&self, location: ValueLocation) -> &[f32] {
        let len = self.len(location);
        match location.buffer {
            StepBuffer::Input(index) => input_rows(self.inputs, index),
            StepBuffer::Output => self.output,
            StepBuffer::Scratch(start) => &self.scratch[start..start + len],
        }
    }

    /// Borrows the values at one location mutably, and those at other locations for reading.
    ///
    /// # Panics
    /// If the location to be written overlaps another, which a correct plan rules out.
    pub fn split<const N: usize>(
        &mut self,
        output: ValueLocation,
        operands: [ValueLocation; N],
    ) -> (&mut [f32], [&[f32]; N]) {
        let len = self.len(output);
        let operands = operands.map(|operand| (operand.buffer, self.len(operand)));
        let (before, result, after, end): (&[f32], _, &[f32], _) = match output.buffer {
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

    /// Borrows the values at some locations mutably; empty where there is no location.
    ///
    /// # Panics
    /// If two locations overlap, which a correct plan rules out.
    pub fn outputs<const N: usize>(&mut self, locations: [Option<ValueLocation>; N]) -> [&mut [f32]; N] {
        let scratch = locations.map(|location| match location {
            Some(ValueLocation { buffer: StepBuffer::Scratch(start), stride, count }) => {
                start..start + self.rows_of(count) * stride
            }
            _ => 0..0,
        });
        let mut outputs = self.scratch.get_disjoint_mut(scratch).expect("a plan keeps results apart");
        let is_output = |location: &Option<ValueLocation>| {
            location.is_some_and(|location| location.buffer == StepBuffer::Output)
        };
        if let Some(index) = locations.iter().position(is_output) {
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
