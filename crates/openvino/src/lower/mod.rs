//! Translates a graph into a model of OpenVINO: one file for each group of ops.
//!
//! The model computes `n` sequences with `r` rows each, so rows `[R, …]` become `[n, r, …]`, output rows `[1, o, …]` and pooled
//! rows `[n, 1, …]`. What depends on positions comes from the host: rotations, masks, the indexes of output rows, and
//! windows of keys and values. New keys and values are results, which the host stores.

mod attend;
mod elements;
mod heads;
mod matmul;
mod norms;
mod rope;
mod rows;

use std::collections::{HashMap, HashSet};

use girih_graph::{AppliedOp, Extent, Graph, GroupId, Node, Pairing, Role, Span, Temperature, ValueId};
use girih_tensor::{Error, Result};

use crate::ir::{Constants, LayerKind, ModelWriter, Port, Precision, layer};
use crate::weights::WeightLayout;

/// The heads of rows, `[n, heads, r, size]`, have the axes of rows and heads exchanged; so does the way back.
const EXCHANGE_ROWS_AND_HEADS: [i64; 4] = [0, 2, 1, 3];

/// The attributes of a quotient.
const DIVIDE: &str = "auto_broadcast=\"numpy\" m_pythondiv=\"true\"";

/// What a parameter of the model takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Source {
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
    Mask(usize),
    /// Keys or values of earlier steps.
    Window(ValueId),
    /// The indexes of output rows.
    Taken,
    /// A factor of each row, for rows with this number of inner extents.
    Factors(Temperature, usize),
}

/// A parameter of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelParameter {
    pub name: String,
    pub source: Source,
}

/// What a result of the model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The output of the graph.
    Output,
    /// A value that is watched.
    Watched(ValueId),
    /// The new rows of a state value, heads first.
    Written(ValueId),
}

/// A result of the model.
#[derive(Clone, Debug)]
pub(crate) struct ModelResult {
    pub name: String,
    pub meaning: Meaning,
}

/// A rotation by the positions of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotation {
    pub frequencies: ValueId,
    pub positions: Option<ValueId>,
    pub pairing: Pairing,
    pub factor: Option<f32>,
    /// The rotated components of a head: twice the number of pairs.
    pub rotated: usize,
}

/// Which positions the rows of a step attend to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MaskRule {
    /// The state that they attend to, before the rows of the step; `None` if to the rows of the step only.
    pub group: Option<GroupId>,
    pub span: Span,
}

/// A model and what it takes and returns.
#[derive(Clone, Debug)]
pub(crate) struct LoweredModel {
    pub text: String,
    pub parameters: Vec<ModelParameter>,
    pub results: Vec<ModelResult>,
    pub rotations: Vec<Rotation>,
    pub masks: Vec<MaskRule>,
}

/// A value as the model has it.
#[derive(Clone, Copy, Debug, Default)]
struct Forms {
    /// `[n, r, …]`.
    rows: Option<Port>,
    /// `[n, heads, r, size]`.
    heads: Option<Port>,
}

/// A graph that is being translated.
struct Lowering<'a> {
    graph: &'a Graph,
    layout: &'a WeightLayout,
    model: ModelWriter<'a>,
    values: Vec<Forms>,
    /// The new rows of state values, `[n, heads, r, size]`.
    written: HashMap<ValueId, Port>,
    /// The rows of state values, old and new.
    held: HashMap<ValueId, Port>,
    parameters: Vec<(ModelParameter, Port)>,
    results: Vec<ModelResult>,
    result_names: HashMap<Port, String>,
    rotations: Vec<Rotation>,
    masks: Vec<MaskRule>,
}

/// Translates a graph without faults whose nodes the backend does not refuse. Values of `watched` become results.
///
/// # Errors
/// When the graph has what the backend refuses.
pub(crate) fn lower(
    graph: &Graph,
    layout: &WeightLayout,
    constants: &mut Constants,
    watched: &HashSet<ValueId>,
) -> Result<LoweredModel> {
    let mut lowering = Lowering {
        graph,
        layout,
        model: ModelWriter::new(constants),
        values: vec![Forms::default(); graph.values.len()],
        written: HashMap::new(),
        held: HashMap::new(),
        parameters: Vec::new(),
        results: Vec::new(),
        result_names: HashMap::new(),
        rotations: Vec::new(),
        masks: Vec::new(),
    };
    for node in &graph.nodes {
        lowering.node(node)?;
    }
    lowering.results(watched)?;
    let Lowering { model, parameters, results, rotations, masks, .. } = lowering;
    let parameters = parameters.into_iter().map(|(parameter, _)| parameter).collect();
    Ok(LoweredModel { text: model.finish(), parameters, results, rotations, masks })
}

impl Lowering<'_> {
    fn node(&mut self, node: &Node) -> Result<()> {
        let call = node.op.applied_to(&node.inputs).expect("the checker refuses other numbers of operands");
        let y = node.output;
        match call {
            AppliedOp::Embed { ids, table } => self.embed(ids, table, y),
            AppliedOp::Norm { epsilon, x, weight } => self.norm(epsilon, x, weight, y),
            AppliedOp::LayerNorm { epsilon, x, weight, bias } => {
                self.layer_norm(epsilon, x, [weight, bias], y)
            }
            AppliedOp::Linear { x, weight, bias } => self.linear(x, weight, bias, y),
            AppliedOp::Reshape { x } => self.reshape(x, y),
            AppliedOp::Rope { pairing, factor, x, frequencies, positions } => {
                self.rope(pairing, factor, x, [Some(frequencies), positions], y)
            }
            AppliedOp::Write { x } => self.write(x, y),
            AppliedOp::Attend { scale, span, softcap, q, keys, values, sinks } => {
                self.attend(attend::ScoreRule { scale, span, softcap, sinks }, [q, keys, values], y)
            }
            AppliedOp::MatchRms { least, x, like } => self.match_rms(least, x, like, y),
            AppliedOp::Sparsify { deviations, x } => self.sparsify(deviations, x, y),
            AppliedOp::LinearHeads { x, weight } => self.linear_heads(x, weight, y),
            AppliedOp::Concat { a, b } => self.concat(a, b, y),
            AppliedOp::Temper { beta, every, offset, x } => {
                self.temper(Temperature { beta, every, offset }, x, y)
            }
            AppliedOp::GateHeads { act, gate, x } => self.gate_heads(act, gate, x, y),
            AppliedOp::MixHeads { weights, x } => self.mix_heads(weights, x, y),
            AppliedOp::ScaleColumns { x, weight } => self.by_column("Multiply", x, weight, y),
            AppliedOp::ShiftColumns { x, shift } => self.by_column("Subtract", x, shift, y),
            AppliedOp::Gate { act, limit, offset, gate, up } => self.gate(act, limit, offset, [gate, up], y),
            AppliedOp::Activate { act, x } => self.activate(act, x, y),
            AppliedOp::Add { a, b } => self.add(a, b, y),
            AppliedOp::Scale { factor, x } => self.scale(factor, x, y),
            AppliedOp::Softcap { cap, x } => self.softcap(cap, x, y),
            AppliedOp::Clamp { low, high, x } => self.clamp(low, high, x, y),
            AppliedOp::Gather { x } => self.gather(x, y),
            AppliedOp::Pool { how, x } => self.pool(how, x, y),
            AppliedOp::Splice { x, given } => self.splice(x, given, y),
            AppliedOp::Route { .. }
            | AppliedOp::Experts { .. }
            | AppliedOp::SelectKeys { .. }
            | AppliedOp::AttendLatent { .. }
            | AppliedOp::ShortConv { .. }
            | AppliedOp::SsmScan { .. }
            | AppliedOp::DeltaRule { .. }
            | AppliedOp::Xielu { .. } => {
                let name = node.op.name();
                Err(Error::new(format!("the op '{name}' was not refused; this is a bug in girih")))
            }
        }
    }

    /// Adds the results: the output, new rows of state and what is watched.
    fn results(&mut self, watched: &HashSet<ValueId>) -> Result<()> {
        let output = self.graph.output().ok_or_else(|| Error::new("the program has no output"))?;
        self.result(Meaning::Output, output)?;
        let mut written: Vec<(ValueId, Port)> = self.written.iter().map(|(id, port)| (*id, *port)).collect();
        written.sort_unstable_by_key(|(id, _)| *id);
        for (id, port) in written {
            self.named_result(Meaning::Written(id), port);
        }
        let made = |id: &ValueId| {
            self.values[id.0 as usize].rows.is_some() || self.values[id.0 as usize].heads.is_some()
        };
        let mut watched: Vec<ValueId> = watched.iter().copied().filter(made).collect();
        watched.sort_unstable();
        watched.into_iter().try_for_each(|id| self.result(Meaning::Watched(id), id))
    }

    fn result(&mut self, meaning: Meaning, id: ValueId) -> Result<()> {
        let port = self.rows(id)?;
        self.named_result(meaning, port);
        Ok(())
    }

    /// A port has one name, so results of one port share a name, and a parameter is copied.
    fn named_result(&mut self, meaning: Meaning, mut port: Port) {
        if self.parameters.iter().any(|(_, parameter)| *parameter == port) {
            port = self.layer(layer("Convert", 1), "destination_type=\"f32\"", &[port]);
        }
        let known = self.result_names.get(&port).cloned();
        let name = known.unwrap_or_else(|| {
            let name = format!("o{}", self.results.len());
            self.model.result(&name, port);
            self.result_names.insert(port, name.clone());
            name
        });
        self.results.push(ModelResult { name, meaning });
    }

    /// The parameter of this source; the first call adds it. `None` is an extent that varies.
    fn parameter(&mut self, source: Source, precision: Precision, shape: &[Option<usize>]) -> Port {
        if let Some((_, port)) = self.parameters.iter().find(|(known, _)| known.source == source) {
            return *port;
        }
        let name = format!("i{}", self.parameters.len());
        let port = self.model.parameter(&name, precision, shape);
        self.parameters.push((ModelParameter { name, source }, port));
        port
    }

    /// The extents of one row of a value.
    fn inner(&self, id: ValueId) -> Vec<usize> {
        self.graph.value(id).shape.extents()[1..].to_vec()
    }

    /// A value as rows.
    fn rows(&mut self, id: ValueId) -> Result<Port> {
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
    fn heads(&mut self, id: ValueId) -> Result<Port> {
        if let Some(port) = self.values[id.0 as usize].heads {
            return Ok(port);
        }
        let rows = self.rows(id)?;
        let port = self.exchanged(rows);
        self.values[id.0 as usize].heads = Some(port);
        Ok(port)
    }

    /// An input of the graph.
    fn input(&mut self, id: ValueId) -> Result<Port> {
        let value = self.graph.value(id);
        if value.role != Role::Input || value.outermost != Extent::Rows {
            return Err(Error::new(format!(
                "'{}' is read before it is computed; this is a bug in girih",
                value.name
            )));
        }
        let precision = if value.dtype == girih_tensor::DType::I32 { Precision::I32 } else { Precision::F32 };
        let shape: Vec<Option<usize>> =
            [None, None].into_iter().chain(self.inner(id).into_iter().map(Some)).collect();
        Ok(self.parameter(Source::Input(id), precision, &shape))
    }

    fn set_rows(&mut self, id: ValueId, port: Port) {
        self.values[id.0 as usize].rows = Some(port);
    }

    fn set_heads(&mut self, id: ValueId, port: Port) {
        self.values[id.0 as usize].heads = Some(port);
    }

    fn exchanged(&mut self, x: Port) -> Port {
        let order = self.model.integers(&EXCHANGE_ROWS_AND_HEADS);
        self.layer(layer("Transpose", 1), "", &[x, order])
    }

    /// A layer of floats without attributes or with some.
    fn layer(&mut self, kind: LayerKind, attributes: &str, inputs: &[Port]) -> Port {
        self.model.layer(kind, attributes, inputs, Precision::F32)
    }

    /// A layer of two operands, which are of one shape or broadcast.
    fn binary(&mut self, name: &'static str, a: Port, b: Port) -> Port {
        self.layer(layer(name, 1), "auto_broadcast=\"numpy\"", &[a, b])
    }

    /// Another shape of the same numbers; 0 keeps an extent.
    fn shaped(&mut self, x: Port, shape: &[i64]) -> Port {
        let shape = self.model.integers(shape);
        self.layer(layer("Reshape", 1), "special_zero=\"true\"", &[x, shape])
    }
}
