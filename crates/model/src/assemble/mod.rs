//! Assembles a graph: a pure function of facts, stored types and shapes.
//!
//! The values that `verify` and `diagnose` watch have fixed names: `embed` (the
//! input of the first layer), `layers.{i}.out`, and `head.norm` (output rows only, and none
//! in encoders).

mod adapters;
mod assistant;
mod block;
mod delta_rule;
mod ffn;
mod indexer;
mod mixer;
mod spread;
mod ssm;
mod streams;
mod tower;

use std::collections::{BTreeMap, BTreeSet};

use girih_graph::{Act, Builder, Graph, InputSpec, Key, Op, OutputKind, ValueId, Weighed, faults};
use girih_tensor::{DType, Shape};

use crate::adapter_stack::lora_name;
use crate::arch::{
    Facts, Ffn, Head, HiddenState, LayerFacts, LayerInput, Mixer, NormFacts, NormKind, NormPosition,
};
use crate::tower_part::TowerPart;
use crate::weights::ModelWeights;
use girih_tensor::{Error, ErrorKind, Result};

/// The name of the output of layer `index`; the input of layer 0 is `embed`.
pub fn layer_output(index: usize) -> String {
    format!("layers.{index}.out")
}

/// The name of the value that holds these hidden states: of all rows in a graph with
/// [`GraphOptions::hidden_rows`].
pub(crate) fn hidden_name(facts: &Facts, state: HiddenState) -> String {
    match state {
        HiddenState::Normed => HEAD_NORM.to_owned(),
        HiddenState::LastLayer => layer_output(facts.layers.len().saturating_sub(1)),
    }
}

/// The name of the rows after the last norm.
const HEAD_NORM: &str = "head.norm";

/// What a graph depends on beside the model and its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphOptions {
    /// The type in which state is stored.
    pub state: DType,
    /// Whether a step may give rows that replace the embeddings of tokens.
    pub given_rows: bool,
    /// Whether the last norm is computed for all rows if it is watched, instead of output rows only.
    pub hidden_rows: bool,
}

impl From<DType> for GraphOptions {
    /// State of this type, and tokens only.
    fn from(state: DType) -> GraphOptions {
        GraphOptions { state, given_rows: false, hidden_rows: false }
    }
}

/// The graph of a model for steps up to `key`.
///
/// # Errors
/// When a weight is missing or its shape contradicts the facts, when a parameter
/// is invalid, or when the model has no output of the key's kind.
pub(crate) fn graph(
    facts: &Facts,
    weights: &dyn WeightTypes,
    key: Key,
    options: GraphOptions,
) -> Result<Graph> {
    if facts.assistant.is_some() {
        let name = &facts.name;
        let sentence =
            format!("a model of architecture {name} only drafts for another one; give it with --draft");
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut assembly = Assembly::new(facts, weights, key, options);
    let rows = assembly.input_rows(options.given_rows)?;
    assembly.layers_and_output(rows, key.output)
}

/// The graph of a layer that predicts the token after the next one, as a model of one layer, for steps up to `key`.
///
/// # Errors
/// As [`graph`].
pub(crate) fn draft_graph(
    facts: &Facts,
    weights: &dyn WeightTypes,
    key: Key,
    options: GraphOptions,
) -> Result<Graph> {
    let mut assembly = Assembly::new(facts, weights, key, options);
    let rows = assembly.drafting_rows()?;
    assembly.layers_and_output(rows, key.output)
}

/// The graph of an assistant of the model `target`, for steps up to `key`.
///
/// # Errors
/// As [`graph`].
pub(crate) fn assistant_graph(
    [facts, target]: [&Facts; 2],
    weights: &dyn WeightTypes,
    key: Key,
    options: GraphOptions,
) -> Result<Graph> {
    let mut assembly = Assembly::new(facts, weights, key, options);
    let rows = assembly.assistant_rows(target)?;
    assembly.layers_and_output(rows, key.output)
}

/// The name of the output of the first graph.
pub const TOWER_HIDDEN: &str = "tower.hidden";

/// The name of the output of the second graph.
pub const TOWER_ROWS: &str = "projector";

/// The graph of a part of a tower, for one image.
///
/// # Errors
/// When a weight is missing or its shape contradicts the facts, or when the model is no tower.
pub(crate) fn tower_graph(facts: &Facts, weights: &dyn WeightTypes, part: TowerPart) -> Result<Graph> {
    let Some(tower) = &facts.tower else {
        return Err(Error::new(format!("architecture {} is no image tower", facts.name)));
    };
    let options = GraphOptions::from(DType::F32);
    let mut assembly = Assembly::new(facts, weights, part.key(tower), options);
    match part {
        TowerPart::Patches => {
            let rows = assembly.patch_rows(tower)?;
            assembly.layers_and_output(rows, OutputKind::Hidden)
        }
        TowerPart::Cells | TowerPart::Tap(_) => {
            let out = assembly.projected_cells(tower, part)?;
            assembly.finish(out)
        }
    }
}

/// The formats in which weights are read.
pub(crate) trait WeightTypes {
    /// The format of a weight of the shape `need`.
    ///
    /// # Errors
    /// When there is no such weight, or its stored shape differs.
    fn stored_type(&self, name: &str, need: &[usize]) -> Result<DType>;

    /// The number of adapters beside the model.
    fn adapters(&self) -> usize {
        0
    }

    /// The format of the matrices that adapters add to a weight, and their rank; `None` if no adapter changes it.
    fn adapted(&self, _weight: &str) -> Option<(DType, usize)> {
        None
    }

    /// The weights that adapters change.
    fn adapted_weights(&self) -> Vec<String> {
        Vec::new()
    }

    /// The name of the weight that this name stands for, if it is another layer's that this one shares.
    fn shared_name(&self, name: &str) -> Option<String>;
}

impl WeightTypes for ModelWeights {
    fn stored_type(&self, name: &str, need: &[usize]) -> Result<DType> {
        let info = self.info(name);
        let (dtype, shape) = info.ok_or_else(|| Error::new(format!("the model has no weight '{name}'")))?;
        // A matrix is also a stack of one, and a vector a matrix of one row or one column.
        let without_ones =
            |extents: &[usize]| extents.iter().copied().filter(|extent| *extent != 1).collect::<Vec<_>>();
        if without_ones(shape.extents()) != without_ones(need) {
            return Err(Error::new(format!(
                "weight '{name}' has the shape {shape}; the model needs {need:?}"
            )));
        }
        Ok(dtype)
    }

    fn adapters(&self) -> usize {
        self.adapter_count()
    }

    fn adapted(&self, weight: &str) -> Option<(DType, usize)> {
        let (dtype, shape) = self.info(&lora_name(weight, "a"))?;
        Some((dtype, shape.extents()[1]))
    }

    fn adapted_weights(&self) -> Vec<String> {
        let of = |name: &str| name.strip_suffix(".lora_a").map(str::to_owned);
        self.names().filter_map(of).collect()
    }

    fn shared_name(&self, name: &str) -> Option<String> {
        self.shared(name).map(str::to_owned)
    }
}

/// The state of assembling a graph.
struct Assembly<'a> {
    facts: &'a Facts,
    weights: &'a dyn WeightTypes,
    state: DType,
    graph: Builder,
    /// The keys and values of each layer that has its own, which later layers may read, too.
    keys_and_values: BTreeMap<usize, [ValueId; 2]>,
    /// The positions of a sequence.
    context: usize,
    /// The last choice of positions.
    selection: Option<ValueId>,
    /// The tokens and their embeddings, unless a step may bring rows in place of these.
    embedded: Option<[ValueId; 2]>,
    /// The rows that the first layer reads.
    first_rows: Option<ValueId>,
    /// Whether the last norm comes before the gather of output rows.
    hidden_rows: bool,
    /// The input of adapters, if there are some.
    adapters: Option<ValueId>,
    /// The input of positions along several axes, if rotations read it.
    axes: Option<ValueId>,
    /// The inputs of rows that are added to the outputs of the first layers.
    added: Vec<ValueId>,
    /// The linear parts that adapters change.
    adapted: BTreeSet<String>,
}

impl<'a> Assembly<'a> {
    fn new(facts: &'a Facts, weights: &'a dyn WeightTypes, key: Key, options: GraphOptions) -> Assembly<'a> {
        Assembly {
            facts,
            weights,
            state: options.state,
            graph: Builder::new(key),
            keys_and_values: BTreeMap::new(),
            context: key.context as usize,
            selection: None,
            embedded: None,
            first_rows: None,
            hidden_rows: options.hidden_rows,
            adapters: None,
            axes: None,
            added: Vec::new(),
            adapted: BTreeSet::new(),
        }
    }

    /// The graph whose layers read these rows.
    fn layers_and_output(mut self, mut x: ValueId, output: OutputKind) -> Result<Graph> {
        self.first_rows = Some(x);
        match self.facts.streams {
            Some(streams) => x = self.streamed(streams, x)?,
            None => {
                for (index, layer) in self.facts.layers.iter().enumerate() {
                    x = self.layer(index, layer, x)?;
                    if let Some(added) = self.added.get(index) {
                        x = self.graph.same(&format!("layers.{index}.with_image"), Op::Add, &[x, *added]);
                    }
                }
            }
        }
        let out = match &self.facts.tower {
            Some(tower) => self.tower_hidden(x, tower)?,
            None => self.output(x, output)?,
        };
        self.check_adapted(output)?;
        self.finish(out)
    }

    /// Checks that every weight that an adapter changes is that of a linear part of the graph.
    fn check_adapted(&self, output: OutputKind) -> Result<()> {
        let head = (output == OutputKind::Hidden).then_some("head");
        // A graph may have the first layers only.
        let layer = |name: &str| name.strip_prefix("layers.")?.split('.').next()?.parse::<usize>().ok();
        let is_here = |name: &str| layer(name).is_none_or(|layer| layer < self.facts.layers.len());
        let is_left =
            |name: &String| !self.adapted.contains(name) && Some(name.as_str()) != head && is_here(name);
        if let Some(name) = self.weights.adapted_weights().into_iter().find(is_left) {
            let name = &name;
            let sentence =
                format!("an adapter changes '{name}.weight', which girih cannot adapt in this architecture");
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        Ok(())
    }

    /// The graph with this output.
    fn finish(self, out: ValueId) -> Result<Graph> {
        let graph = self.graph.finish(out);
        // Shapes were compared above; the remaining faults are parameters, such as a negative epsilon.
        match faults(&graph).first() {
            None => Ok(graph),
            Some(fault) => Err(Error::new(format!("a parameter of the model is invalid: {fault}"))),
        }
    }
}

impl Assembly<'_> {
    /// Adds a weight, and checks its stored shape against `need`.
    fn weight(&mut self, name: &str, need: &[usize]) -> Result<ValueId> {
        let shared = self.weights.shared_name(name);
        let name = shared.as_deref().unwrap_or(name);
        let dtype = self.weights.stored_type(name, need)?;
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
        let bounds = self.facts.tower.as_ref().and_then(|tower| tower.bounds.get(name).copied());
        let x = self.clamped(&format!("{name}.bounded"), bounds.and_then(|bounds| bounds.input), x);
        let mut operands = vec![x, self.weight(&format!("{name}.weight"), &[outputs, inputs])?];
        if bias {
            operands.push(self.weight(&format!("{name}.bias"), &[outputs])?);
        }
        let made = self.adapted_linear((name, name), &operands, [inputs, outputs], self.adapters)?;
        Ok(self.clamped(&format!("{name}.within"), bounds.and_then(|bounds| bounds.output), made))
    }

    /// `x` within these bounds, if there are some.
    fn clamped(&mut self, name: &str, bounds: Option<[f32; 2]>, x: ValueId) -> ValueId {
        match bounds {
            None => x,
            Some([low, high]) => self.graph.same(name, Op::Clamp { low, high }, &[x]),
        }
    }

    /// The linear part `part`, named `name`, and what the adapters add to it: a product with two narrow matrices, which is an
    /// expert that its row has chosen.
    fn adapted_linear(
        &mut self,
        (part, name): (&str, &str),
        operands: &[ValueId],
        [inputs, outputs]: [usize; 2],
        adapters: Option<ValueId>,
    ) -> Result<ValueId> {
        let found = adapters.zip(self.weights.adapted(part));
        let Some((adapters, (dtype, rank))) = found else {
            return Ok(self.graph.shaped(name, Op::Linear, operands, &[outputs]));
        };
        let count = self.weights.adapters();
        let mut stack = |side: &str, shape: [usize; 3]| -> Result<ValueId> {
            Ok(self.graph.weight(&lora_name(part, side), Shape::new(&shape)?, dtype))
        };
        let (a, b) = (stack("a", [count, rank, inputs])?, stack("b", [count, outputs, rank])?);
        let base = self.graph.shaped(&format!("{name}.base"), Op::Linear, operands, &[outputs]);
        let op =
            Op::Experts { used: 1, act: Act::Identity, limit: None, offset: None, weighed: Weighed::Results };
        let change =
            self.graph.shaped(&format!("{name}.change"), op, &[operands[0], adapters, a, b], &[outputs]);
        self.adapted.insert(part.to_owned());
        Ok(self.graph.same(name, Op::Add, &[base, change]))
    }

    /// Root-mean-square norm over the innermost `size` values.
    fn rms_norm(
        &mut self,
        name: &str,
        weight: &str,
        x: ValueId,
        size: usize,
        epsilon: f32,
    ) -> Result<ValueId> {
        let weight = self.weight(weight, &[size])?;
        Ok(self.graph.same(name, Op::Norm { epsilon }, &[x, weight]))
    }

    /// A norm over hidden states, with the weights of these names.
    fn norm(
        &mut self,
        name: &str,
        [weight, bias]: [&str; 2],
        x: ValueId,
        norm: NormFacts,
    ) -> Result<ValueId> {
        self.norm_of(name, [weight, bias], x, norm, self.facts.sizes.width)
    }

    /// The norm of rows of `width` numbers.
    fn norm_of(
        &mut self,
        name: &str,
        [weight, bias]: [&str; 2],
        x: ValueId,
        norm: NormFacts,
        width: usize,
    ) -> Result<ValueId> {
        let epsilon = norm.epsilon;
        match norm.kind {
            NormKind::Rms if norm.weight => self.rms_norm(name, weight, x, width, epsilon),
            NormKind::Rms => Ok(self.graph.same(name, Op::Norm { epsilon }, &[x])),
            NormKind::Layer => {
                let vectors = [(norm.weight, weight), (norm.bias, bias)];
                let mut operands = vec![x];
                for (_, vector) in vectors.into_iter().filter(|(is_there, _)| *is_there) {
                    operands.push(self.weight(vector, &[width])?);
                }
                Ok(self.graph.same(name, Op::LayerNorm { epsilon }, &operands))
            }
        }
    }

    /// The rows that the first layer reads: embeddings. With `given_rows`, the step may replace
    /// some of them.
    fn input_rows(&mut self, given_rows: bool) -> Result<ValueId> {
        if !given_rows {
            let rows = self.embed("embed")?;
            self.embedded = self.embedded.map(|[tokens, _]| [tokens, rows]);
            return Ok(rows);
        }
        let width = self.facts.sizes.width;
        let rows = self.embed("embed.tokens")?;
        let tokens = self.embedded.take().map(|[tokens, _]| tokens);
        let given = self.graph.input(InputSpec::GIVEN, &[width], DType::F32);
        let ropes = self.facts.layers.iter().filter_map(|layer| layer.mixer.attention()?.rope.as_ref());
        if let Some(axes) = ropes.into_iter().find_map(|rope| rope.axes) {
            self.axes = Some(self.graph.input(InputSpec::AXES, &[axes.count()], DType::F32));
        }
        for layer in 0..self.facts.image_layers {
            let name = format!("{}{layer}", InputSpec::ADDED);
            self.added.push(self.graph.input(&name, &[width], DType::F32));
        }
        let rows = self.graph.same("embed", Op::Splice, &[rows, given]);
        self.embedded = tokens.map(|tokens| [tokens, rows]);
        Ok(rows)
    }

    /// The rows that a layer reads that predicts the token after the next one: the sum of a projection of the embedding
    /// of the next token and of one of the model's hidden states, each after a norm. The published matrix multiplies
    /// both, one after the other, so its columns are those of two matrices.
    fn drafting_rows(&mut self) -> Result<ValueId> {
        let (facts, width) = (self.facts, self.facts.sizes.width);
        let layer = facts.layers.first().ok_or_else(|| Error::new("a drafting model has no layer"))?;
        let norm = NormFacts { weight: true, bias: false, ..layer.norms.norm };
        let tokens = self.embed("draft.tokens.rows")?;
        self.embedded = None;
        let hidden = self.graph.input(InputSpec::HIDDEN, &[width], DType::F32);
        let mut projected = |part: &str, x: ValueId| {
            let name = format!("draft.{part}");
            let x = self.norm(&format!("{name}.normed"), [&format!("{name}.norm"), ""], x, norm)?;
            self.linear(&name, x, [width, width], false)
        };
        let parts = [projected("tokens", tokens)?, projected("hidden", hidden)?];
        Ok(self.graph.same("embed", Op::Add, &parts))
    }

    /// The sum of a row of each table, then the norm; whatever comes last has this name.
    fn embed(&mut self, last: &str) -> Result<ValueId> {
        let (sizes, embed) = (self.facts.sizes, self.facts.embed);
        let tokens = self.graph.input("tokens", &[], DType::I32);
        self.embedded = Some([tokens, tokens]);
        let further = [("token_types", embed.token_types), ("positions", embed.positions)];
        let further = further.into_iter().filter_map(|(name, rows)| Some((name, rows?)));
        if self.weights.adapters() > 0 {
            self.adapters =
                Some(self.graph.input(InputSpec::ADAPTERS, &[self.weights.adapters()], DType::F32));
        }
        // All inputs come before other values, as steps have them.
        let further: Vec<(ValueId, &str, usize)> =
            further.map(|(name, rows)| (self.graph.input(name, &[], DType::I32), name, rows)).collect();
        let mut left = further.len() + usize::from(embed.norm.is_some());
        let named = |is_last, part: String| if is_last { last.to_owned() } else { format!("embed.{part}") };
        let name = named(left == 0 && embed.scale.is_none(), "rows".to_owned());
        let mut sum = self.table_rows(&name, tokens, "embed.table", sizes.vocabulary)?;
        if let Some(factor) = embed.scale {
            let name = named(left == 0, "scaled".to_owned());
            sum = self.graph.same(&name, Op::Scale { factor }, &[sum]);
        }
        for (input, name, rows) in further {
            left -= 1;
            let row =
                self.table_rows(&format!("embed.{name}.rows"), input, &format!("embed.{name}"), rows)?;
            sum = self.graph.same(&named(left == 0, format!("{name}.added")), Op::Add, &[sum, row]);
        }
        match embed.norm {
            None => Ok(sum),
            Some(norm) => self.norm(last, ["embed.norm.weight", "embed.norm.bias"], sum, norm),
        }
    }

    /// The rows of a table of `rows` rows that `ids` names.
    fn table_rows(&mut self, name: &str, ids: ValueId, table: &str, rows: usize) -> Result<ValueId> {
        let width = self.facts.sizes.width;
        let table = self.weight(table, &[rows, width])?;
        Ok(self.graph.shaped(name, Op::Embed, &[ids, table], &[width]))
    }

    /// A layer: what its mixer and its feed-forward part add, then what it makes of its own embedding, and its factor.
    fn layer(&mut self, index: usize, layer: &LayerFacts, x: ValueId) -> Result<ValueId> {
        let at = format!("layers.{index}");
        let out = layer_output(index);
        let steps = [true, layer.input.is_some(), layer.scale.is_some()];
        // The last value is the layer's output.
        let last = steps.iter().rposition(|is_there| *is_there);
        let name = |step: usize, name: &str| match last == Some(step) {
            true => out.clone(),
            false => format!("{at}.{name}"),
        };
        let mut x = self.mixed_and_fed(index, &name(0, "fed"), layer, x)?;
        if let Some(input) = &layer.input {
            let out = self.layer_input(&at, layer, input, x)?;
            x = self.graph.same(&name(1, "joined"), Op::Add, &[x, out]);
        }
        match layer.scale {
            None => Ok(x),
            Some(factor) => Ok(self.graph.same(&out, Op::Scale { factor }, &[x])),
        }
    }

    /// `x + mixer(x)`, then `x + ffn(x)`, or `x + mixer(x) + ffn(x)`, with the layer's norms, as a value of this name.
    /// A layer may lack one of both.
    fn mixed_and_fed(&mut self, index: usize, name: &str, layer: &LayerFacts, x: ValueId) -> Result<ValueId> {
        if layer.block.is_some() {
            return self.with_block(index, name, layer, x);
        }
        let at = format!("layers.{index}");
        let given = x;
        if layer.mixer == Mixer::None {
            let read = self.norm_at(&at, layer, NormPosition::BeforeFfn, x)?;
            return self.fed(&at, name, layer, [x, read]);
        }
        let read = self.norm_at(&at, layer, NormPosition::BeforeMixer, x)?;
        let mixer = format!("{at}.mixer");
        let mixed = match &layer.mixer {
            Mixer::Attend(attend) => self.attend(index, &mixer, attend, self.attention_rows(read))?,
            Mixer::ShortConv(conv) => self.short_conv(&mixer, conv, read)?,
            Mixer::Ssm(ssm) => self.ssm(&mixer, ssm, read)?,
            Mixer::AttendAndSsm { attend, ssm } => {
                let attended = self.attend(index, &mixer, attend, self.attention_rows(read))?;
                let scanned = self.ssm(&mixer, ssm, read)?;
                self.graph.same(&format!("{mixer}.joined"), Op::Add, &[scanned, attended])
            }
            Mixer::None => unreachable!("such a layer has returned"),
            Mixer::DeltaRule(delta) => self.delta_rule(&mixer, delta, read)?,
        };
        let mixed = self.norm_at(&at, layer, NormPosition::AfterMixer, mixed)?;
        let has_ffn = layer.ffn != Ffn::None;
        let sum = if has_ffn { format!("{at}.mixed") } else { name.to_owned() };
        let x = self.residual(&at, &sum, layer, NormPosition::AfterMixerResidual, [x, mixed])?;
        if !has_ffn {
            return Ok(x);
        }
        let read = match layer.residual.parallel {
            true if !layer.norms.positions.contains(&NormPosition::BeforeFfn) => read,
            true => self.norm_at(&at, layer, NormPosition::BeforeFfn, given)?,
            false => self.norm_at(&at, layer, NormPosition::BeforeFfn, x)?,
        };
        self.fed(&at, name, layer, [x, read])
    }

    /// `x + ffn(read)` as a value of this name, with the norms behind the feed-forward part.
    fn fed(&mut self, at: &str, name: &str, layer: &LayerFacts, [x, read]: [ValueId; 2]) -> Result<ValueId> {
        let fed = self.feed_forward(&format!("{at}.ffn"), &layer.ffn, read)?;
        let fed = self.with_experts(at, layer, [x, fed])?;
        let fed = self.norm_at(at, layer, NormPosition::AfterFfn, fed)?;
        self.residual(at, name, layer, NormPosition::AfterFfnResidual, [x, fed])
    }

    /// What a layer makes of its own embedding: the mean, times √2, of a row of a table and of a projection of the
    /// model's embedding is gated by `x` and projected.
    fn layer_input(
        &mut self,
        at: &str,
        layer: &LayerFacts,
        input: &LayerInput,
        x: ValueId,
    ) -> Result<ValueId> {
        let LayerInput { size, vocabulary, act } = *input;
        let (width, epsilon) = (self.facts.sizes.width, layer.norms.norm.epsilon);
        let at = format!("{at}.input");
        let [tokens, embedded] = self.embedded.ok_or_else(|| {
            Error::new(format!("'{at}' needs tokens; a step of this model cannot bring rows in their place"))
        })?;
        let table = self.weight(&format!("{at}.table"), &[vocabulary, size])?;
        let rows = self.graph.shaped(&format!("{at}.rows"), Op::Embed, &[tokens, table], &[size]);
        let factor = (size as f32).sqrt();
        let rows = self.graph.same(&format!("{at}.scaled"), Op::Scale { factor }, &[rows]);
        let context = self.linear(&format!("{at}.context"), embedded, [width, size], false)?;
        let factor = 1.0 / (width as f32).sqrt();
        let context = self.graph.same(&format!("{at}.context.scaled"), Op::Scale { factor }, &[context]);
        let context =
            self.rms_norm(&format!("{at}.context.normed"), "embed.per_layer.norm", context, size, epsilon)?;
        let sum = self.graph.same(&format!("{at}.sum"), Op::Add, &[context, rows]);
        let factor = std::f32::consts::FRAC_1_SQRT_2;
        let mean = self.graph.same(&format!("{at}.mean"), Op::Scale { factor }, &[sum]);
        let gate = self.linear(&format!("{at}.gate"), x, [width, size], false)?;
        let gated = self.graph.same(&format!("{at}.gated"), Op::gate(act), &[gate, mean]);
        let out = self.linear(&format!("{at}.out"), gated, [size, width], false)?;
        self.rms_norm(&format!("{at}.normed"), &format!("{at}.norm"), out, width, epsilon)
    }

    /// The sum of the residual and a part's result, as a value of this name, with the norm at `position` if the layer has
    /// one there.
    fn residual(
        &mut self,
        at: &str,
        name: &str,
        layer: &LayerFacts,
        position: NormPosition,
        parts: [ValueId; 2],
    ) -> Result<ValueId> {
        let [x, result] = parts;
        let parts = match layer.residual.scale {
            None => parts,
            Some(factor) => [x, self.graph.same(&format!("{name}.scaled"), Op::Scale { factor }, &[result])],
        };
        if !layer.norms.positions.contains(&position) {
            return Ok(self.graph.same(name, Op::Add, &parts));
        }
        let sum = self.graph.same(&format!("{name}.sum"), Op::Add, &parts);
        self.layer_norm_at(name, at, layer, position, sum)
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
        self.layer_norm_at(&format!("{at}.{}", position.name()), at, layer, position, x)
    }

    /// The norm of a layer at `position`, as a value of this name.
    fn layer_norm_at(
        &mut self,
        name: &str,
        at: &str,
        layer: &LayerFacts,
        position: NormPosition,
        x: ValueId,
    ) -> Result<ValueId> {
        let weight = format!("{at}.norms.{}", position.name());
        self.norm(name, [&weight, &format!("{weight}.bias")], x, layer.norms.at(position))
    }

    /// The output of this kind, from the last layer's.
    fn output(&mut self, x: ValueId, output: OutputKind) -> Result<ValueId> {
        match (output, self.facts.head, self.facts.pooling) {
            (OutputKind::Pooled, head, Some(pooling)) => {
                let rows = match head {
                    None => x,
                    Some(head) => self.head_norm(x, head.norm)?,
                };
                Ok(self.graph.pool("pooled", pooling.how, rows))
            }
            (OutputKind::Hidden, None, _) => Ok(self.graph.gather("hidden", x)),
            (OutputKind::Hidden, Some(head), _) => {
                let rows = self.graph.gather("head.rows", x);
                self.head_norm(rows, head.norm)
            }
            (OutputKind::Logits, Some(head), _) => {
                let normed = match self.hidden_rows {
                    true => {
                        let normed = self.head_norm(x, head.norm)?;
                        self.graph.gather("head.rows", normed)
                    }
                    false => {
                        let rows = self.graph.gather("head.rows", x);
                        self.head_norm(rows, head.norm)?
                    }
                };
                self.logits(normed, head)
            }
            (OutputKind::Logits, None, _) => Err(self.no_output("logits")),
            (OutputKind::Pooled, _, None) => Err(self.no_output("pooled output")),
        }
    }

    /// The error for an output that the model does not have.
    fn no_output(&self, what: &str) -> Error {
        let has: Vec<&str> = [
            (self.facts.head.is_some(), "logits"),
            (true, "hidden states"),
            (self.facts.pooling.is_some(), "a pooled output"),
        ]
        .into_iter()
        .filter_map(|(has, what)| has.then_some(what))
        .collect();
        let (name, has) = (&self.facts.name, has.join(" and "));
        Error::with_kind(
            ErrorKind::Refused,
            format!("this model of architecture {name} has no {what}; it has {has}"),
        )
    }

    fn head_norm(&mut self, x: ValueId, norm: NormFacts) -> Result<ValueId> {
        self.norm(HEAD_NORM, ["head.norm.weight", "head.norm.bias"], x, norm)
    }

    fn logits(&mut self, normed: ValueId, head: Head) -> Result<ValueId> {
        let sizes = self.facts.sizes;
        let table = if head.tied { "embed.table" } else { "head.weight" };
        let table = self.weight(table, &[sizes.vocabulary, sizes.width])?;
        let mut operands = vec![normed, table];
        if head.bias {
            operands.push(self.weight("head.bias", &[sizes.vocabulary])?);
        }
        let factor = match (head.scale, head.divisor) {
            (None, None) => None,
            (scale, divisor) => Some(scale.unwrap_or(1.0) / divisor.unwrap_or(1.0)),
        };
        let steps = [factor.map(|factor| Op::Scale { factor }), head.softcap.map(|cap| Op::Softcap { cap })];
        // The last value is named `logits`.
        let names = match steps.iter().flatten().count() {
            0 => &["logits"][..],
            1 => &["logits.raw", "logits"],
            _ => &["logits.raw", "logits.scaled", "logits"],
        };
        let adapters = match (self.adapters, head.tied) {
            (Some(adapters), false) if self.weights.adapted("head").is_some() => {
                Some(self.graph.gather("head.adapters", adapters))
            }
            _ => None,
        };
        let sizes = [sizes.width, sizes.vocabulary];
        let logits = self.adapted_linear(("head", names[0]), &operands, sizes, adapters)?;
        let apply = |logits, (op, name): (Op, &&str)| self.graph.same(name, op, &[logits]);
        Ok(steps.into_iter().flatten().zip(&names[1..]).fold(logits, apply))
    }
}
