//! A graph that is being translated: its values as ports of the model, its parameters and its results.

use std::collections::{HashMap, HashSet};

use girih_graph::{Extent, Graph, GroupId, Pairing, Role, Span, Temperature, ValueId};
use girih_tensor::{DType, Error, Result};

use crate::ir::{Constants, LayerKind, ModelWriter, Port, Precision, layer};
use crate::kv_form::KvForm;
use crate::step_shape::{StepAxis, StepShape};
use crate::weights::PlaneLayout;

/// The heads of rows, `[n, heads, r, size]`, have the axes of rows and heads exchanged; so does the way back.
pub(super) const EXCHANGE_ROWS_AND_HEADS: [i64; 4] = [0, 2, 1, 3];

/// The attributes of a quotient.
pub(super) const DIVIDE: &str = "auto_broadcast=\"numpy\" m_pythondiv=\"true\"";

/// The attributes of operands that broadcast.
const NUMPY: &str = "auto_broadcast=\"numpy\"";

/// What a parameter of the model takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ParameterSource {
    /// An input of the graph, row for row.
    Input(ValueId),
    /// An input of given rows, with zeros for rows that are not given.
    Given(ValueId),
    /// 1 for each given row, else 0.
    IsGiven(ValueId),
    /// Cosines of a rotation.
    Cosines(usize),
    /// Sines of a rotation, with the signs of the pairs.
    Sines(usize),
    /// 0 where a row attends, else −∞.
    Mask(MaskRule),
    /// 0 where a row attends to a slot of a request, else −∞.
    SlotMask(Span),
    /// What each sequence carries.
    Carried(ValueId),
    /// Keys or values of earlier steps.
    Window(ValueId),
    /// The sequence of variables that each lane goes on with: a single 0.
    Beams,
    /// The indexes of output rows.
    Taken,
    /// A factor of each row, for rows with this number of inner extents.
    Factors(Temperature, usize),
}

/// A parameter of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelParameter {
    pub name: String,
    pub source: ParameterSource,
    /// Its extents; `None` for one that varies.
    pub extents: Vec<Option<usize>>,
}

/// What a result of the model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultMeaning {
    /// The output of the graph.
    Output,
    /// A value that is watched.
    Watched(ValueId),
    /// The rows that each sequence carried, then those of the step.
    Carried(ValueId),
    /// The new rows of a state value, heads first.
    Written(ValueId),
    /// The largest magnitude of each new row of a state value, which a variable holds.
    Largest(ValueId),
}

/// A result of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelResult {
    pub name: String,
    pub meaning: ResultMeaning,
}

/// A rotation by the positions of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct HostRotation {
    pub frequencies: ValueId,
    pub positions: Option<ValueId>,
    pub pairing: Pairing,
    pub factor: Option<f32>,
    /// The rotated components of a head: twice the number of pairs.
    pub rotated: usize,
}

/// Keys that a mask is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MaskedKeys {
    /// Those of earlier steps, in the windows of a group of state.
    Window(GroupId),
    /// Those of the step.
    Step,
}

/// Which keys the rows of a step attend to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MaskRule {
    pub of: MaskedKeys,
    pub span: Span,
}

/// A model and what it takes and returns.
#[derive(Clone, Debug)]
pub(crate) struct LoweredModel {
    pub text: String,
    /// The number of the first layer of each node.
    pub first_layers: Vec<u32>,
    pub parameters: Vec<ModelParameter>,
    pub results: Vec<ModelResult>,
    pub rotations: Vec<HostRotation>,
}

/// A value as the model has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forms {
    /// `[n, r, …]`.
    rows: Option<Port>,
    /// `[n, heads, r, size]`.
    heads: Option<Port>,
}

/// A graph that is being translated.
pub(super) struct GraphLowering<'a> {
    pub(super) graph: &'a Graph,
    pub(super) layout: &'a PlaneLayout,
    pub(super) form: KvForm,
    /// The steps that the model is made for.
    pub(super) shape: StepShape,
    pub(super) model: ModelWriter<'a>,
    pub(super) first_layers: Vec<u32>,
    pub(super) values: Vec<Forms>,
    /// The new rows of state values, `[n, heads, r, size]`; in variables, those of earlier steps are before them.
    pub(super) written: HashMap<ValueId, Port>,
    /// The largest magnitude of each new row of state values in variables.
    pub(super) largest: Vec<(ValueId, Port)>,
    pub(super) parameters: Vec<(ModelParameter, Port)>,
    pub(super) results: Vec<ModelResult>,
    pub(super) result_names: HashMap<Port, String>,
    pub(super) rotations: Vec<HostRotation>,
}

impl<'a> GraphLowering<'a> {
    /// Nothing of a graph yet.
    pub(super) fn new(
        graph: &'a Graph,
        layout: &'a PlaneLayout,
        form: KvForm,
        constants: &'a mut Constants,
        shape: StepShape,
    ) -> GraphLowering<'a> {
        GraphLowering {
            graph,
            layout,
            form,
            shape,
            model: ModelWriter::new(constants),
            first_layers: Vec::with_capacity(graph.nodes.len()),
            values: vec![Forms::default(); graph.values.len()],
            written: HashMap::new(),
            largest: Vec::new(),
            parameters: Vec::new(),
            results: Vec::new(),
            result_names: HashMap::new(),
            rotations: Vec::new(),
        }
    }

    /// The model.
    pub(super) fn finish(self) -> LoweredModel {
        let GraphLowering { model, first_layers, parameters, results, rotations, .. } = self;
        let parameters = parameters.into_iter().map(|(parameter, _)| parameter).collect();
        LoweredModel { text: model.finish(), first_layers, parameters, results, rotations }
    }
}

impl GraphLowering<'_> {
    /// Adds the results: the output, new rows of state and what is watched.
    pub(super) fn results(&mut self, watched: &HashSet<ValueId>) -> Result<()> {
        let output = self.graph.output().ok_or_else(|| Error::new("the program has no output"))?;
        self.result(ResultMeaning::Output, output)?;
        let mut written: Vec<(ValueId, Port)> = self.written.iter().map(|(id, port)| (*id, *port)).collect();
        written.sort_unstable_by_key(|(id, _)| *id);
        match self.form {
            KvForm::Windows => {
                for (id, port) in written {
                    self.named_result(ResultMeaning::Written(id), port);
                }
            }
            KvForm::Hidden => {
                for (id, port) in std::mem::take(&mut self.largest) {
                    self.named_result(ResultMeaning::Largest(id), port);
                }
            }
        }
        let made = |id: &ValueId| {
            self.values[id.0 as usize].rows.is_some() || self.values[id.0 as usize].heads.is_some()
        };
        let mut watched: Vec<ValueId> = watched.iter().copied().filter(made).collect();
        watched.sort_unstable();
        watched.into_iter().try_for_each(|id| self.result(ResultMeaning::Watched(id), id))
    }

    pub(super) fn result(&mut self, meaning: ResultMeaning, id: ValueId) -> Result<()> {
        let port = self.rows(id)?;
        self.named_result(meaning, port);
        Ok(())
    }

    /// A port has one name, so results of one port share a name, and a parameter is copied.
    pub(super) fn named_result(&mut self, meaning: ResultMeaning, mut port: Port) {
        if self.parameters.iter().any(|(_, parameter)| *parameter == port) {
            port = self.layer(layer("Convert", 1), "destination_type=\"f32\"", &[port]);
        }
        let known = self.result_names.get(&port).cloned();
        let name = known.unwrap_or_else(|| {
            let name = format!("o{}", self.results.len());
            let from = self.result_layer(port);
            self.model.result(&name, from);
            self.result_names.insert(port, name.clone());
            name
        });
        self.results.push(ModelResult { name, meaning });
    }

    /// What a result is read from. NPUW cuts models into parts, and a result that other layers read, too, has other numbers if a
    /// cut lies there; so it has a layer of its own, which no pass removes, as its shape differs.
    fn result_layer(&mut self, port: Port) -> Port {
        if !self.shape.is_fixed() {
            return port;
        }
        let axis = self.model.integers(&[0]);
        self.layer(layer("Unsqueeze", 1), "", &[port, axis])
    }

    /// The parameter of this source; the first call adds it.
    pub(super) fn parameter(
        &mut self,
        source: ParameterSource,
        precision: Precision,
        shape: &[StepAxis],
    ) -> Port {
        if let Some((_, port)) = self.parameters.iter().find(|(known, _)| known.source == source) {
            return *port;
        }
        let name = format!("i{}", self.parameters.len());
        let shape: Vec<Option<usize>> = shape.iter().map(|axis| self.shape.extent(*axis)).collect();
        let port = self.model.parameter(&name, precision, &shape);
        self.parameters.push((ModelParameter { name, source, extents: shape }, port));
        port
    }

    /// The extents of one row of a value.
    pub(super) fn inner(&self, id: ValueId) -> Vec<usize> {
        self.graph.value(id).shape.extents()[1..].to_vec()
    }

    /// A value as rows.
    pub(super) fn rows(&mut self, id: ValueId) -> Result<Port> {
        if let Some(port) = self.values[id.0 as usize].rows {
            return Ok(port);
        }
        let port = match self.values[id.0 as usize].heads {
            Some(heads) => self.exchanged(heads),
            None => self.input(id)?,
        };
        self.values[id.0 as usize].rows = Some(port);
        Ok(port)
    }

    /// A value of heads, heads first.
    pub(super) fn heads(&mut self, id: ValueId) -> Result<Port> {
        if let Some(port) = self.values[id.0 as usize].heads {
            return Ok(port);
        }
        let rows = self.rows(id)?;
        let port = self.exchanged(rows);
        self.values[id.0 as usize].heads = Some(port);
        Ok(port)
    }

    /// An input of the graph.
    pub(super) fn input(&mut self, id: ValueId) -> Result<Port> {
        let value = self.graph.value(id);
        if value.role != Role::Input || value.outermost != Extent::Rows {
            return Err(Error::new(format!(
                "'{}' is read before it is computed; this is a bug in girih",
                value.name
            )));
        }
        let precision = if value.dtype == DType::I32 { Precision::I32 } else { Precision::F32 };
        let shape: Vec<StepAxis> = [StepAxis::Lanes, StepAxis::Rows]
            .into_iter()
            .chain(self.inner(id).into_iter().map(StepAxis::Of))
            .collect();
        Ok(self.parameter(ParameterSource::Input(id), precision, &shape))
    }

    pub(super) fn set_rows(&mut self, id: ValueId, port: Port) {
        self.values[id.0 as usize].rows = Some(port);
    }

    pub(super) fn set_heads(&mut self, id: ValueId, port: Port) {
        self.values[id.0 as usize].heads = Some(port);
    }

    pub(super) fn exchanged(&mut self, x: Port) -> Port {
        let order = self.model.integers(&EXCHANGE_ROWS_AND_HEADS);
        self.layer(layer("Transpose", 1), "", &[x, order])
    }

    /// A layer of floats without attributes or with some.
    pub(super) fn layer(&mut self, kind: LayerKind, attributes: &str, inputs: &[Port]) -> Port {
        self.model.layer(kind, attributes, inputs, Precision::F32)
    }

    /// A layer of two operands, which are of one shape or broadcast.
    pub(super) fn binary(&mut self, name: &'static str, a: Port, b: Port) -> Port {
        self.layer(layer(name, 1), NUMPY, &[a, b])
    }

    /// Whether pairs of numbers compare as a layer of this name says.
    pub(super) fn compared(&mut self, name: &'static str, a: Port, b: Port) -> Port {
        self.model.layer(layer(name, 1), NUMPY, &[a, b], Precision::Boolean)
    }

    /// Numbers of one value where a condition holds, and of another elsewhere.
    pub(super) fn chosen_where(&mut self, condition: Port, chosen: Port, other: Port) -> Port {
        self.layer(layer("Select", 1), NUMPY, &[condition, chosen, other])
    }

    /// Another shape of the same numbers; 0 keeps an extent.
    pub(super) fn shaped(&mut self, x: Port, shape: &[i64]) -> Port {
        let shape = self.model.integers(shape);
        self.layer(layer("Reshape", 1), "special_zero=\"true\"", &[x, shape])
    }
}
