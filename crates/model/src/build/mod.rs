//! Builds a graph: a pure function of facts, stored types and shapes.
//!
//! The values that `verify` and `diagnose` watch have fixed names: `embed` (the
//! input of the first layer), `layers.{i}.out`, and `head.norm` (output rows only).

mod ffn;
mod mixer;

use girih_graph::{Builder, Graph, InputSpec, Key, Op, OutputKind, ValueId, faults};
use girih_tensor::{DType, Shape};

use crate::arch::{Facts, Ffn, LayerFacts, Mixer, NormPosition};
use crate::weights::ModelWeights;
use girih_tensor::{Error, Result};

/// The name of the output of layer `index`; the input of layer 0 is `embed`.
pub fn layer_output(index: usize) -> String {
    format!("layers.{index}.out")
}

/// What a graph depends on beside the model and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// The type in which state is stored.
    pub state: DType,
    /// Whether a step may give rows that replace the embeddings of tokens.
    pub given_rows: bool,
}

impl From<DType> for GraphOptions {
    /// State of this type, and tokens only.
    fn from(state: DType) -> GraphOptions {
        GraphOptions { state, given_rows: false }
    }
}

/// The graph of a model for steps up to `key`.
///
/// # Errors
/// When a weight is missing or its shape contradicts the facts, when a parameter
/// is invalid, or when the model has no output of the key's kind.
pub fn graph(facts: &Facts, weights: &ModelWeights, key: Key, options: GraphOptions) -> Result<Graph> {
    let mut build = Build { facts, weights, state: options.state, graph: Builder::new(key) };
    let mut x = build.input_rows(options.given_rows)?;
    for (index, layer) in facts.layers.iter().enumerate() {
        x = build.layer(index, layer, x)?;
    }
    let out = build.head(x, key.output)?;
    let graph = build.graph.finish(out);
    // Shapes were compared above; the remaining faults are parameters, such as a negative epsilon.
    match faults(&graph).first() {
        None => Ok(graph),
        Some(fault) => Err(Error::new(format!("a parameter of the model is invalid: {fault}"))),
    }
}

/// The state of building a graph.
struct Build<'a> {
    facts: &'a Facts,
    weights: &'a ModelWeights,
    state: DType,
    graph: Builder,
}

impl Build<'_> {
    /// Adds a weight, and checks its stored shape against `need`.
    fn weight(&mut self, name: &str, need: &[usize]) -> Result<ValueId> {
        let info = self.weights.info(name);
        let (dtype, shape) = info.ok_or_else(|| Error::new(format!("the model has no weight '{name}'")))?;
        if shape.extents() != need {
            return Err(Error::new(format!(
                "weight '{name}' has the shape {shape}; the model needs {need:?}"
            )));
        }
        Ok(self.graph.weight(name, Shape::new(need)?, dtype))
    }

    /// `x · weightᵀ`, plus the bias if there is one.
    fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        [inputs, outputs]: [usize; 2],
        bias: bool,
    ) -> Result<ValueId> {
        let mut operands = vec![x, self.weight(&format!("{name}.weight"), &[outputs, inputs])?];
        if bias {
            operands.push(self.weight(&format!("{name}.bias"), &[outputs])?);
        }
        Ok(self.graph.shaped(name, Op::Linear, &operands, &[outputs]))
    }

    /// A norm over the innermost `size` values.
    fn norm(&mut self, name: &str, weight: &str, x: ValueId, size: usize, epsilon: f32) -> Result<ValueId> {
        let weight = self.weight(weight, &[size])?;
        Ok(self.graph.same(name, Op::Norm { epsilon }, &[x, weight]))
    }

    /// The rows that the first layer reads: embeddings, some of which the step may replace.
    fn input_rows(&mut self, given_rows: bool) -> Result<ValueId> {
        if !given_rows {
            return self.embed("embed");
        }
        let width = self.facts.sizes.width;
        let rows = self.embed("embed.tokens")?;
        let given = self.graph.input(InputSpec::GIVEN, &[width], DType::F32);
        Ok(self.graph.same("embed", Op::Splice, &[rows, given]))
    }

    /// The embeddings of the tokens, as a value of this name.
    fn embed(&mut self, name: &str) -> Result<ValueId> {
        let sizes = self.facts.sizes;
        let tokens = self.graph.input("tokens", &[], DType::I32);
        let table = self.weight("embed.table", &[sizes.vocabulary, sizes.width])?;
        let Some(factor) = self.facts.embed.scale else {
            return Ok(self.graph.shaped(name, Op::Embed, &[tokens, table], &[sizes.width]));
        };
        let rows = self.graph.shaped("embed.rows", Op::Embed, &[tokens, table], &[sizes.width]);
        Ok(self.graph.same(name, Op::Scale { factor }, &[rows]))
    }

    /// `x + mixer(x)`, then `x + ffn(x)`, with the layer's norms.
    fn layer(&mut self, index: usize, layer: &LayerFacts, x: ValueId) -> Result<ValueId> {
        let at = format!("layers.{index}");
        let read = self.norm_at(&at, layer, NormPosition::BeforeMixer, x)?;
        let Mixer::Attend(attend) = &layer.mixer;
        let mixed = self.attend(&format!("{at}.mixer"), attend, read)?;
        let mixed = self.norm_at(&at, layer, NormPosition::AfterMixer, mixed)?;
        let x = self.graph.same(&format!("{at}.mixed"), Op::Add, &[x, mixed]);
        let read = self.norm_at(&at, layer, NormPosition::BeforeFfn, x)?;
        let Ffn::Gated { size, act, biases } = layer.ffn;
        let fed = self.gated(&format!("{at}.ffn"), size, act, biases, read)?;
        let fed = self.norm_at(&at, layer, NormPosition::AfterFfn, fed)?;
        Ok(self.graph.same(&layer_output(index), Op::Add, &[x, fed]))
    }

    /// The norm at `position`, if the layer has one there; else `x`.
    fn norm_at(
        &mut self,
        at: &str,
        layer: &LayerFacts,
        position: NormPosition,
        x: ValueId,
    ) -> Result<ValueId> {
        if !layer.norms.positions.contains(&position) {
            return Ok(x);
        }
        let name = position.name();
        let (weight, width) = (format!("{at}.norms.{name}"), self.facts.sizes.width);
        self.norm(&format!("{at}.{name}"), &weight, x, width, layer.norms.epsilon)
    }

    fn head(&mut self, x: ValueId, output: OutputKind) -> Result<ValueId> {
        let (head, sizes) = (self.facts.head, self.facts.sizes);
        if output == OutputKind::Pooled {
            let name = &self.facts.name;
            return Err(Error::new(format!(
                "architecture {name} has no pooled output; it has logits and hidden"
            )));
        }
        let output_rows = self.graph.gather("head.rows", x);
        let normed = self.norm("head.norm", "head.norm.weight", output_rows, sizes.width, head.epsilon)?;
        if output == OutputKind::Hidden {
            return Ok(normed);
        }
        let table = if head.tied { "embed.table" } else { "head.weight" };
        let table = self.weight(table, &[sizes.vocabulary, sizes.width])?;
        let inner = [sizes.vocabulary];
        let Some(cap) = head.softcap else {
            return Ok(self.graph.shaped("logits", Op::Linear, &[normed, table], &inner));
        };
        let logits = self.graph.shaped("logits.raw", Op::Linear, &[normed, table], &inner);
        Ok(self.graph.same("logits", Op::Softcap { cap }, &[logits]))
    }
}
