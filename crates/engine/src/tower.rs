//! Image towers: the patches of an image become rows of a text model.

use girih_graph::backend::Range32;
use girih_graph::{OutputKind, Outputs, Runner, Sequence, Step, Watch};

use crate::cached_runner::failed;
use crate::step_inputs::{InputSource, InputValues};
use crate::{Error, ErrorKind, Result};

/// A loaded tower: two programs without state. An image is one step of each, so its rows depend on nothing else.
pub struct Tower {
    patches: TowerProgram,
    cells: TowerProgram,
}

/// One of its programs.
struct TowerProgram {
    runner: Box<dyn Runner>,
    sources: Vec<InputSource>,
}

impl Tower {
    /// Returns a tower of its loaded programs: one that makes a hidden state of each patch, and one that makes a row of
    /// each cell of hidden states. A cell is a sequence if the second program pools, else one row of its input.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the programs are others, or have an input that is not known.
    pub fn new(patches: Box<dyn Runner>, cells: Box<dyn Runner>) -> Result<Tower> {
        let is_tower = patches.max_key().output == OutputKind::Hidden
            && matches!(cells.max_key().output, OutputKind::Pooled | OutputKind::Hidden);
        if !is_tower || [&patches, &cells].iter().any(|runner| !runner.groups().is_empty()) {
            let sentence = "the loaded programs are not those of an image tower; load a tower";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let program = |runner: Box<dyn Runner>| {
            let sources = InputSource::of(runner.inputs())?;
            Ok(TowerProgram { runner, sources })
        };
        Ok(Tower { patches: program(patches)?, cells: program(cells)? })
    }

    /// The number of patches of an image.
    pub fn patches(&self) -> usize {
        self.patches.runner.max_key().rows as usize
    }

    /// The number of rows that an image becomes.
    pub fn rows(&self) -> usize {
        let key = self.cells.runner.max_key();
        match key.output {
            OutputKind::Pooled => key.sequences as usize,
            OutputKind::Hidden | OutputKind::Logits => key.rows as usize,
        }
    }

    /// The number of values of such a row.
    pub fn width(&self) -> usize {
        self.cells.runner.width()
    }

    /// Returns the rows of an image, one after another. Its patches come cell after cell, each with its position. `watch`
    /// receives the values of both programs.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the patches are not those of an image of this tower,
    /// [`ErrorKind::NotANumber`] when a row is not finite, and [`ErrorKind::DeviceFailed`] when the device fails.
    pub fn rows_of(
        &mut self,
        patches: &[f32],
        positions: &[u32],
        watch: [&mut dyn Watch; 2],
    ) -> Result<Vec<f32>> {
        let count = self.patches();
        let [of_patches, of_cells] = watch;
        let hidden = self.patches.run(patches, positions, [1, count], of_patches)?;
        let key = self.cells.runner.max_key();
        let sequences = key.sequences.max(1);
        let cells = [sequences, key.rows / sequences].map(|number| number as usize);
        self.cells.run(&hidden, &[], cells, of_cells)
    }
}

impl TowerProgram {
    /// Runs `sequences` sequences of `length` rows each, and returns all rows of the output.
    fn run(
        &mut self,
        rows: &[f32],
        positions: &[u32],
        [sequences, length]: [usize; 2],
        watch: &mut dyn Watch,
    ) -> Result<Vec<f32>> {
        let mut values = InputValues::default();
        values.push_patches(rows, positions);
        let inputs = values.inputs(&self.sources);
        for (input, spec) in inputs.iter().zip(self.runner.inputs()) {
            spec.check(input, sequences * length)
                .map_err(|error| Error::with_kind(ErrorKind::Refused, error.to_string()))?;
        }
        let outputs = match self.runner.max_key().output {
            OutputKind::Pooled => Outputs::None,
            OutputKind::Hidden | OutputKind::Logits => Outputs::All,
        };
        let sequences: Vec<Sequence<'_>> = (0..sequences as u32)
            .map(|index| {
                let rows = Range32 { start: index * length as u32, end: (index + 1) * length as u32 };
                Sequence { blocks: &[], position: 0, rows, outputs, spans: &[] }
            })
            .collect();
        let step = Step { inputs: &inputs, sequences: &sequences, watch };
        self.runner.step(step).and_then(|()| self.runner.output().wait()).map_err(failed)?;
        let count = match outputs {
            Outputs::None => sequences.len(),
            Outputs::All | Outputs::Last | Outputs::LastN(_) => sequences.len() * length,
        };
        let made = self.runner.output().rows(0..count).map_err(failed)?;
        if made.iter().any(|value| !value.is_finite()) {
            let sentence = "the image tower produced a row with NaN or infinity; \
                 its weights are damaged, or its values overflow";
            return Err(Error::with_kind(ErrorKind::NotANumber, sentence));
        }
        Ok(made.to_vec())
    }
}
