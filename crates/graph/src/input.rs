//! What the inputs of a graph take, and the check of a step's inputs against it.

use std::fmt;

use girih_tensor::{DType, Error, Result};

use crate::backend::{GivenRows, Input};
use crate::graph::{Graph, Node};
use crate::ops::Op;
use crate::value::ValueId;

/// An input of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// The name, such as `tokens`.
    pub name: String,
    /// What a step brings for it.
    pub kind: InputKind,
}

/// What a step brings for an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputKind {
    /// One id per row.
    Ids {
        /// The ids are below this: the number of rows of the smallest table that embeds them.
        bound: usize,
    },
    /// One row of values per row.
    Rows {
        /// Values in a row.
        width: usize,
    },
    /// Rows of values for some rows.
    Given {
        /// Values in a row.
        width: usize,
    },
}

impl fmt::Display for InputKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputKind::Ids { bound } => write!(f, "ids below {bound}"),
            InputKind::Rows { width } => write!(f, "rows of {width} values"),
            InputKind::Given { width } => write!(f, "some rows of {width} values"),
        }
    }
}

impl InputSpec {
    /// The name of the input of token ids.
    pub const TOKENS: &'static str = "tokens";
    /// The name of the input of token types, as BERT's segments.
    pub const TOKEN_TYPES: &'static str = "token_types";
    /// The name of the input of the rows' positions within their sequences, for models that
    /// embed them.
    pub const POSITIONS: &'static str = "positions";
    /// The name of the input of rows that replace the embeddings of tokens.
    pub const GIVEN: &'static str = "given";
    /// The name of the input of patches of images, or of what a program made of them.
    pub const PATCHES: &'static str = "patches";
    /// The name of the input of hidden states of another program, one row for each token.
    pub const HIDDEN: &'static str = "hidden";
    /// The name of the input of the program's own hidden states, for one that makes its next row from these. Such a row
    /// takes the place of the last one.
    pub const OWN_HIDDEN: &'static str = "hidden.own";

    /// The name of the input of adapters: for each row one number of each adapter, 1 for the one that the row uses and 0
    /// for others.
    pub const ADAPTERS: &'static str = "adapters";

    /// How the names of inputs of experts' weights begin. The most experts of a row follow; the others have the weight 0.
    pub const CHOSEN: &'static str = "chosen.";

    /// The name of the input of the rows' positions along several axes, for rotations by them.
    pub const AXES: &'static str = "axes";

    /// How the names of the inputs of rows that are added to the outputs of the first layers begin. The index of the layer
    /// follows.
    pub const ADDED: &'static str = "added.";

    /// The name of the input of rows of learned positions, which the caller has made.
    pub const POSITION_ROWS: &'static str = "position_rows";

    /// The most numbers of a row that are not 0, of an input of this name that chooses adapters or experts.
    pub fn most_chosen(name: &str) -> Option<usize> {
        match name.strip_prefix(InputSpec::CHOSEN) {
            Some(rest) => rest.split('.').next()?.parse().ok(),
            None => (name == InputSpec::ADAPTERS).then_some(1),
        }
    }

    /// The index of the layer to whose output the input is added, and its width.
    pub fn added(&self) -> Option<(usize, usize)> {
        let layer = self.name.strip_prefix(InputSpec::ADDED)?.parse().ok()?;
        match self.kind {
            InputKind::Rows { width } => Some((layer, width)),
            InputKind::Ids { .. } | InputKind::Given { .. } => None,
        }
    }

    /// The width of the input if it takes hidden states: that of this name, or one whose name begins with it and a dot.
    pub fn hidden_width(&self) -> Option<usize> {
        let rest = self.name.strip_prefix(InputSpec::HIDDEN)?;
        match self.kind {
            InputKind::Rows { width } if rest.is_empty() || rest.starts_with('.') => Some(width),
            _ => None,
        }
    }

    /// The inputs of a graph without faults, in its order.
    pub fn of(graph: &Graph) -> Vec<InputSpec> {
        let readers = |id: ValueId, index: usize| {
            graph.nodes.iter().filter(move |node: &&Node| node.inputs.get(index) == Some(&id))
        };
        let kind = |id: ValueId| {
            let value = graph.value(id);
            let width = value.shape.stride();
            if value.dtype == DType::I32 {
                let tables = readers(id, 0).filter(|node| node.op == Op::Embed);
                let sizes = tables.map(|node| graph.value(node.inputs[1]).shape.extents()[0]);
                InputKind::Ids { bound: sizes.min().unwrap_or(usize::MAX) }
            } else if readers(id, 1).any(|node| node.op == Op::Splice) {
                InputKind::Given { width }
            } else {
                InputKind::Rows { width }
            }
        };
        graph.inputs().map(|(id, value)| InputSpec { name: value.name.clone(), kind: kind(id) }).collect()
    }

    /// Checks what a step of `rows` rows brings.
    ///
    /// # Errors
    /// When it is of another kind, has another number of rows, or an id out of bounds.
    pub fn check(&self, input: &Input<'_>, rows: usize) -> Result<()> {
        let name = &self.name;
        match (self.kind, input) {
            (InputKind::Ids { bound }, Input::Ids(ids)) => {
                self.count("ids", ids.len(), rows)?;
                match ids.iter().find(|id| **id as usize >= bound) {
                    Some(id) => {
                        Err(Error::new(format!("id {id} of '{name}' is outside its table of {bound} rows")))
                    }
                    None => Ok(()),
                }
            }
            (InputKind::Rows { width }, Input::Rows(values)) => {
                self.count("values", values.len(), rows.saturating_mul(width))?;
                let most = InputSpec::most_chosen(name).unwrap_or(width);
                let has_more = |row: &[f32]| row.iter().filter(|value| **value != 0.0).count() > most;
                if most < width && values.chunks(width.max(1)).any(has_more) {
                    return Err(Error::new(format!("a row of '{name}' chooses more than {most}")));
                }
                Ok(())
            }
            (InputKind::Given { width }, Input::Given(given)) => self.check_given(given, width, rows),
            (need, found) => {
                let found = match found {
                    Input::Ids(_) => "ids",
                    Input::Rows(_) => "rows of values",
                    Input::Given(_) => "values of some rows",
                };
                Err(Error::new(format!("input '{name}' takes {need}, but the step brings {found}")))
            }
        }
    }

    /// Checks that given rows are whole, in order and within the step.
    fn check_given(&self, given: &[GivenRows<'_>], width: usize, rows: usize) -> Result<()> {
        let mut next = 0;
        for GivenRows { first_row, values } in given {
            let first = *first_row as usize;
            let count = values.len() / width;
            if values.len() % width != 0 || count == 0 {
                let have = values.len();
                return Err(Error::new(format!(
                    "{have} values given for '{}' are not rows of {width}",
                    self.name
                )));
            }
            if first < next || first + count > rows {
                let (name, end) = (&self.name, first + count);
                return Err(Error::new(format!(
                    "the rows {first}..{end} given for '{name}' overlap others or leave the {rows} rows of the step"
                )));
            }
            next = first + count;
        }
        Ok(())
    }

    fn count(&self, what: &str, have: usize, need: usize) -> Result<()> {
        if have == need {
            return Ok(());
        }
        Err(Error::new(format!("the step has {have} {what} for '{}'; its sequences need {need}", self.name)))
    }
}
