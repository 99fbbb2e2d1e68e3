//! What a step brings for each input of the loaded programs, by the names that graphs give them.

use girih_graph::backend::{GivenRows, Input, Range32};
use girih_graph::{InputKind, InputSpec};

use crate::prompt_content::StepContent;
use crate::{Error, ErrorKind, Result};

/// What a program of a tower reads of an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct TowerInputs<'a> {
    /// Patches, or what a program made of them, row after row.
    pub patches: &'a [f32],
    /// The position of each patch among those of the image, row by row.
    pub positions: &'a [u32],
    /// The rows of learned positions, if the caller makes them.
    pub position_rows: &'a [f32],
    /// The line and the column of each patch, if queries and keys turn by them.
    pub axes: &'a [f32],
    /// The patches of each window, within which patches of some layers attend; none without windows.
    pub windows: &'a [Range32],
}

/// Where the values of an input come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputSource {
    /// The tokens.
    Tokens,
    /// The token types.
    TokenTypes,
    /// The positions of the rows within their sequences.
    Positions,
    /// Rows that replace the embeddings of tokens.
    Given,
    /// The adapters of the rows.
    Adapters {
        /// The number of adapters beside the model.
        count: usize,
    },
    /// Patches of an image, or what a program made of them.
    Patches,
    /// Rows of the learned positions of patches.
    PositionRows,
    /// The positions of the rows along this number of axes.
    Axes {
        /// The number of axes.
        count: usize,
    },
    /// Rows that are added to the output of a layer.
    Added {
        /// The index of the layer.
        layer: usize,
        /// The number of columns.
        width: usize,
    },
    /// Hidden states of another program: these columns of its rows.
    Hidden {
        /// The first column.
        first: usize,
        /// The number of columns.
        width: usize,
    },
}

impl InputSource {
    /// The sources of the inputs, in the order of the graph.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] for an input of another name or kind.
    pub fn of(inputs: &[InputSpec]) -> Result<Vec<InputSource>> {
        let mut columns = 0;
        let source = |input: &InputSpec| match (input.name.as_str(), input.kind) {
            (InputSpec::TOKENS, InputKind::Ids { .. }) => Ok(InputSource::Tokens),
            (InputSpec::TOKEN_TYPES, InputKind::Ids { .. }) => Ok(InputSource::TokenTypes),
            (InputSpec::POSITIONS, InputKind::Ids { .. }) => Ok(InputSource::Positions),
            (InputSpec::GIVEN, InputKind::Given { .. }) => Ok(InputSource::Given),
            (InputSpec::ADAPTERS, InputKind::Rows { width }) => Ok(InputSource::Adapters { count: width }),
            (InputSpec::PATCHES, InputKind::Rows { .. }) => Ok(InputSource::Patches),
            (InputSpec::POSITION_ROWS, InputKind::Rows { .. }) => Ok(InputSource::PositionRows),
            (InputSpec::AXES, InputKind::Rows { width }) if (1..=MAX_AXES).contains(&width) => {
                Ok(InputSource::Axes { count: width })
            }
            (name, _) => {
                if let Some((layer, width)) = input.added() {
                    return Ok(InputSource::Added { layer, width });
                }
                if let Some(width) = input.hidden_width() {
                    let first = columns;
                    columns += width;
                    return Ok(InputSource::Hidden { first, width });
                }
                let sentence = format!(
                    "the loaded programs have the input '{name}', which the engine cannot fill; \
                     it fills tokens, token types, positions, axes, given and added rows, patches, adapters and hidden states"
                );
                Err(Error::with_kind(ErrorKind::Refused, sentence))
            }
        };
        inputs.iter().map(source).collect()
    }
}

/// The largest number of axes of positions: time, line and column.
const MAX_AXES: usize = 3;

/// The values of a step's inputs, sequence after sequence.
#[derive(Debug, Default)]
pub(crate) struct InputValues<'a> {
    tokens: Vec<u32>,
    token_types: Vec<u32>,
    positions: Vec<u32>,
    given: Vec<GivenRows<'a>>,
    patches: &'a [f32],
    position_rows: &'a [f32],
    /// The positions of each row along the axes that the programs have.
    axes: Vec<f32>,
    /// What is added to the outputs of layers, by layer.
    added: Vec<Vec<f32>>,
    hidden: Vec<f32>,
    /// The columns of each input of hidden states, if there are several.
    hidden_parts: Vec<Vec<f32>>,
    /// The adapter of each row.
    adapters: Vec<Option<u32>>,
    /// For each row a number of each adapter.
    chosen: Vec<f32>,
}

impl<'a> InputValues<'a> {
    /// Appends a sequence's rows and returns the index of the first one, whose position is
    /// `position`. `token_types` may be empty for type 0; the rows of `given` are counted from the
    /// first row of the sequence.
    pub fn push(
        &mut self,
        tokens: &[u32],
        token_types: &[u32],
        position: u32,
        given: impl IntoIterator<Item = GivenRows<'a>>,
    ) -> u32 {
        let first = self.tokens.len() as u32;
        self.tokens.extend(tokens);
        self.token_types.extend(token_types);
        self.token_types.resize(self.tokens.len(), 0);
        self.positions.extend((position..).take(tokens.len()));
        let given = given.into_iter().map(|rows| GivenRows { first_row: first + rows.first_row, ..rows });
        self.given.extend(given);
        first
    }

    /// Sets what a program of a tower reads; such a step has no tokens.
    pub fn push_patches(&mut self, image: TowerInputs<'a>) {
        // Windows belong to the sequence.
        let TowerInputs { patches, positions, position_rows, axes, windows: _ } = image;
        self.patches = patches;
        self.position_rows = position_rows;
        self.positions.extend(positions);
        self.axes.extend(axes);
    }

    /// Appends the positions of a sequence's rows along the axes that the programs have, and what is added to the outputs
    /// of layers in these rows, and replaces the tokens of given rows that have another one. The first row has the index
    /// `first` and the position `position`.
    pub fn push_content(
        &mut self,
        sources: &[InputSource],
        content: &StepContent<'_>,
        [first, position, count]: [u32; 3],
    ) {
        for (rows, token) in content.replaced(position, count) {
            let rows = (first + rows.start) as usize..(first + rows.end) as usize;
            self.tokens[rows].fill(token);
        }
        for source in sources {
            match *source {
                InputSource::Axes { count: axes } => {
                    let rows = content.axes(position, count as usize);
                    self.axes.extend(rows.iter().flat_map(|row| &row[..axes]).map(|at| *at as f32));
                }
                InputSource::Added { layer, width } => {
                    self.added.resize(self.added.len().max(layer + 1), Vec::new());
                    let rows = &mut self.added[layer];
                    rows.resize((first + count) as usize * width, 0.0);
                    for (row, values) in content.added(layer, position, count as usize) {
                        let start = (first as usize + row) * width;
                        rows[start..start + values.len()].copy_from_slice(values);
                    }
                }
                _ => {}
            }
        }
    }

    /// Appends the hidden states of a sequence's rows. A row has the columns of all inputs that take them.
    pub fn push_hidden(&mut self, rows: &[f32]) {
        self.hidden.extend(rows);
    }

    /// Appends the adapter of a sequence's rows.
    pub fn push_adapter(&mut self, adapter: Option<u32>, rows: usize) {
        self.adapters.extend(std::iter::repeat_n(adapter, rows));
    }

    /// The inputs that these sources name.
    pub fn inputs(&mut self, sources: &[InputSource]) -> Vec<Input<'_>> {
        self.split_hidden(sources);
        self.choose_adapters(sources);
        let mut parts = self.hidden_parts.iter();
        let input = |source: &InputSource| match source {
            InputSource::Tokens => Input::Ids(&self.tokens),
            InputSource::TokenTypes => Input::Ids(&self.token_types),
            InputSource::Positions => Input::Ids(&self.positions),
            InputSource::Given => Input::Given(&self.given),
            InputSource::Adapters { .. } => Input::Rows(&self.chosen),
            InputSource::Patches => Input::Rows(self.patches),
            InputSource::PositionRows => Input::Rows(self.position_rows),
            InputSource::Axes { .. } => Input::Rows(&self.axes),
            InputSource::Added { layer, .. } => {
                Input::Rows(self.added.get(*layer).map_or(&[], Vec::as_slice))
            }
            InputSource::Hidden { .. } => Input::Rows(parts.next().unwrap_or(&self.hidden)),
        };
        sources.iter().map(input).collect()
    }

    /// Makes the numbers of each row's adapter.
    fn choose_adapters(&mut self, sources: &[InputSource]) {
        let count = sources.iter().find_map(|source| match source {
            InputSource::Adapters { count } => Some(*count as u32),
            _ => None,
        });
        let Some(count) = count else { return };
        // Rows that name no adapter use none.
        self.adapters.resize(self.tokens.len(), None);
        let row = |own: &Option<u32>| {
            let own = *own;
            (0..count).map(move |index| if own == Some(index) { 1.0 } else { 0.0 })
        };
        self.chosen = self.adapters.iter().flat_map(row).collect();
    }

    /// Splits rows of hidden states for several inputs.
    fn split_hidden(&mut self, sources: &[InputSource]) {
        let parts = sources.iter().filter_map(|source| match *source {
            InputSource::Hidden { first, width } => Some(first..first + width),
            InputSource::Tokens
            | InputSource::TokenTypes
            | InputSource::Positions
            | InputSource::Given
            | InputSource::Patches
            | InputSource::PositionRows
            | InputSource::Axes { .. }
            | InputSource::Added { .. }
            | InputSource::Adapters { .. } => None,
        });
        let parts: Vec<_> = parts.collect();
        let all = parts.last().map_or(0, |last| last.end);
        if parts.len() > 1 {
            let rows = || self.hidden.chunks_exact(all.max(1));
            let part = |columns: std::ops::Range<usize>| {
                rows().flat_map(|row| &row[columns.clone()]).copied().collect()
            };
            self.hidden_parts = parts.into_iter().map(part).collect();
        }
    }
}
