//! Image towers: the patches of an image become rows of a text model.

use girih_graph::backend::{NodeTime, Range32, Unwatched};
use girih_graph::{OutputKind, Outputs, Runner, Sequence, Step, Watch};
use girih_tensor::Shape;

use crate::cached_runner::failed;
use crate::step_inputs::{InputSource, InputValues, TowerInputs};
use crate::{Error, ErrorKind, Result};

/// A loaded tower: programs without state. An image is one step of each, so its rows depend on nothing else.
pub struct Tower {
    patches: TowerProgram,
    cells: TowerProgram,
    taps: Vec<(String, TowerProgram)>,
}

/// One of its programs.
struct TowerProgram {
    runner: Box<dyn Runner>,
    sources: Vec<InputSource>,
}

/// What a tower makes of an image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TowerRows {
    /// The rows in place of embeddings, one after another.
    pub rows: Vec<f32>,
    /// As many values for the output of each of the text model's first layers that take some.
    pub added: Vec<Vec<f32>>,
}

/// Keeps hidden states after tapped layers, and passes values on.
struct TapWatch<'a> {
    inner: &'a mut dyn Watch,
    taps: Vec<(&'a str, Vec<f32>)>,
}

impl Watch for TapWatch<'_> {
    fn wants(&self, name: &str) -> bool {
        self.taps.iter().any(|(tap, _)| *tap == name) || self.inner.wants(name)
    }

    fn value(&mut self, name: &str, shape: &Shape, data: &[f32]) {
        if let Some((_, kept)) = self.taps.iter_mut().find(|(tap, _)| *tap == name) {
            *kept = data.to_vec();
        }
        if self.inner.wants(name) {
            self.inner.value(name, shape, data);
        }
    }

    fn clocks(&self) -> bool {
        self.inner.clocks()
    }

    fn took(&mut self, time: &NodeTime<'_>) {
        self.inner.took(time);
    }
}

impl Tower {
    /// Returns a tower of its loaded programs: one that makes a hidden state of each patch, one that makes a row of
    /// each cell of hidden states, and for each tapped layer the name of its output and one that makes further rows of it.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the programs are others, or have an input that is not known.
    pub fn new(
        patches: Box<dyn Runner>,
        cells: Box<dyn Runner>,
        taps: Vec<(String, Box<dyn Runner>)>,
    ) -> Result<Tower> {
        let program = |runner: Box<dyn Runner>| {
            if runner.max_key().output == OutputKind::Logits || !runner.groups().is_empty() {
                let sentence = "the loaded programs are not those of an image tower; load a tower";
                return Err(Error::with_kind(ErrorKind::Refused, sentence));
            }
            let sources = InputSource::of(runner.inputs())?;
            Ok(TowerProgram { runner, sources })
        };
        let (patches, cells) = (program(patches)?, program(cells)?);
        let taps =
            taps.into_iter().map(|(name, runner)| Ok((name, program(runner)?))).collect::<Result<_>>()?;
        Ok(Tower { patches, cells, taps })
    }

    /// The largest number of patches of an image.
    pub fn patches(&self) -> usize {
        self.patches.runner.max_key().rows as usize
    }

    /// The largest number of rows that an image becomes.
    pub fn rows(&self) -> usize {
        self.cells.runner.max_key().output_rows as usize
    }

    /// The number of values of such a row.
    pub fn width(&self) -> usize {
        self.cells.runner.width()
    }

    /// Returns what becomes of an image with `patches` patches and `rows` rows. Its patches come cell after cell, and so do the
    /// rows. The watches receive the values of the programs, in the order of [`Tower::new`]; those that are missing watch
    /// nothing.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when the patches are not those of an image of this tower,
    /// [`ErrorKind::NotANumber`] when a row is not finite, and [`ErrorKind::DeviceFailed`] when the device fails.
    pub fn rows_of(
        &mut self,
        image: TowerInputs<'_>,
        [patches, rows]: [usize; 2],
        watches: Vec<&mut dyn Watch>,
    ) -> Result<TowerRows> {
        let (max_patches, max_rows) = (self.patches(), self.rows());
        if patches == 0
            || rows == 0
            || !patches.is_multiple_of(rows)
            || patches > max_patches
            || rows > max_rows
        {
            let sentence = format!(
                "an image has {patches} patches and {rows} rows; the tower takes at most {max_patches} and {max_rows}, \
                 whole cells"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let (mut unwatched, mut watches) = (Unwatched, watches.into_iter());
        let inner: &mut dyn Watch = match watches.next() {
            Some(watch) => watch,
            None => &mut unwatched,
        };
        let taps = self.taps.iter().map(|(name, _)| (name.as_str(), Vec::new())).collect();
        let mut tapped = TapWatch { inner, taps };
        let hidden = self.patches.run(image, [1, patches], &mut tapped)?;
        let kept: Vec<Vec<f32>> = tapped.taps.into_iter().map(|(_, kept)| kept).collect();
        let mut made = |program: &mut TowerProgram, hidden: &[f32]| {
            let mut unwatched = Unwatched;
            let watch: &mut dyn Watch = match watches.next() {
                Some(watch) => watch,
                None => &mut unwatched,
            };
            let sequences = match program.runner.max_key().output {
                OutputKind::Pooled => [rows, patches / rows],
                // A row has the patches of a cell one after the other.
                OutputKind::Hidden | OutputKind::Logits => [1, rows],
            };
            program.run(TowerInputs { patches: hidden, ..TowerInputs::default() }, sequences, watch)
        };
        let rows = made(&mut self.cells, &hidden)?;
        let programs = self.taps.iter_mut().map(|(_, program)| program).zip(&kept);
        let added = programs.map(|(program, hidden)| made(program, hidden)).collect::<Result<_>>()?;
        Ok(TowerRows { rows, added })
    }
}

impl TowerProgram {
    /// Runs `sequences` sequences of `length` rows each, and returns all rows of the output.
    fn run(
        &mut self,
        image: TowerInputs<'_>,
        [sequences, length]: [usize; 2],
        watch: &mut dyn Watch,
    ) -> Result<Vec<f32>> {
        let mut values = InputValues::default();
        values.push_patches(image);
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
                Sequence { blocks: &[], position: 0, rows, outputs, spans: image.windows }
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
