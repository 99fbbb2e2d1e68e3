//! Simulates steps of published models: graphs of their shapes, without weights, compiled by girih.

use std::collections::BTreeMap;

use girih_graph::{Graph, Key, OutputKind};
use girih_model::arch::ArchOptions;
use girih_model::{ModelLimits, ModelShape};
use girih_npu::Target;
use girih_npu::driver::{Compiler, estimate, host_spread};
use girih_npu::pass::{ArrayMapping, ArrayWeights, NoDump};
use girih_tensor::{DType, Error, Result};

use super::measurement::{ModelSteps, StepKind};
use super::tower;
use crate::energy::EnergyEstimate;

/// The models of the tables, with their `config.json`.
const MODELS: &[(&str, &str)] = &[
    ("gemma3-1b", include_str!("../../shapes/gemma-3-1b.json")),
    ("gemma3-4b", include_str!("../../shapes/gemma-3-4b.json")),
];

/// The mapping that the models are compiled with: the published one, as far as girih supports it.
const MAPPING: &str = "seed-001";

/// The maximum number of rows of a step; longer prompts take several.
const STEP_ROWS: u32 = 2048;

/// The maximum number of steps of a prefill.
const MAX_STEPS: u32 = 64;

/// The simulated cost of one or more steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct StepCost {
    /// Seconds of the array.
    pub array: f64,
    /// Seconds of the host, and of transfers between both; of a token their mean, as published times
    /// are those of many tokens.
    pub host: f64,
    /// Energy of the NPU's rail.
    pub joules: f64,
}

/// Simulates steps, each once.
#[derive(Default)]
pub(super) struct StepTimer {
    shapes: BTreeMap<&'static str, ModelShape>,
    known: BTreeMap<(String, &'static str, Key), StepCost>,
}

/// What is missing to simulate a model with as many positions: its shape, positions, or a limit.
pub(super) fn missing(model: &str, needed: u32) -> Option<String> {
    let Some((_, text)) = MODELS.iter().find(|(name, _)| *name == model) else {
        let known: Vec<&str> = MODELS.iter().map(|(name, _)| *name).collect();
        return Some(format!("the shape of {model} is unknown: known are {}", known.join(", ")));
    };
    let positions = shape(text).map(|shape| shape.facts.sizes.context).unwrap_or_default();
    if needed as usize > positions {
        return Some(format!("{model} has at most {positions} positions"));
    }
    let steps = needed.div_ceil(STEP_ROWS);
    (steps > MAX_STEPS).then(|| format!("it takes {steps} steps, more than {MAX_STEPS}"))
}

fn shape(text: &str) -> Result<ModelShape> {
    ModelShape::parse(text.as_bytes(), ArchOptions::default(), &ModelLimits::DEFAULT)
}

/// The cost of a step of all rows of a graph, at the end of its context.
fn graph_cost(graph: &Graph, mapping: ArrayMapping, target: &Target) -> Result<StepCost> {
    let compiler = Compiler::new(target.clone(), mapping, None);
    let compiled = compiler.compile(graph, &mut NoDump)?;
    let position = graph.key.context - graph.key.rows;
    let timed = estimate(graph, &compiled, target, position)?;
    let host = host_spread(graph, &compiled, target, position).mean;
    let ledger = &timed.ledger;
    let array = ledger.array_seconds(target);
    Ok(StepCost {
        array,
        host: host.total() + ledger.copy_seconds(target),
        joules: EnergyEstimate::of(target, graph, array).joules(),
    })
}

/// The cost of the image tower, whose weights are not quantized (section 2.2.2 of the paper).
fn image_cost(target: &Target) -> Result<StepCost> {
    let mapping = ArrayMapping { weights: ArrayWeights::Bf16, ..ArrayMapping::named(MAPPING)? };
    graph_cost(&tower::graph()?, mapping, target)
}

impl StepTimer {
    /// The simulated microseconds that stand beside the published time, array and host together, and
    /// the cost.
    ///
    /// # Errors
    /// When the shape is unknown, or a program does not fit the target.
    pub fn micros(&mut self, steps: &ModelSteps, target: &Target) -> Result<(f64, StepCost)> {
        let key =
            |rows, context| Key { rows, sequences: 1, context, output_rows: 1, output: OutputKind::Logits };
        let cost = match steps.kind {
            StepKind::Prefill { tokens } => {
                let rows = tokens.min(STEP_ROWS);
                let mut sum = StepCost::default();
                for step in 1..=tokens.div_ceil(rows) {
                    let cost = self.cost(&steps.model, key(rows, rows * step), target)?;
                    sum.array += cost.array;
                    sum.host += cost.host;
                    sum.joules += cost.joules;
                }
                sum
            }
            StepKind::Token { context } => self.cost(&steps.model, key(1, context), target)?,
            StepKind::Image => image_cost(target)?,
        };
        Ok(((cost.array + cost.host) * 1e6, cost))
    }

    /// The cost of the last step that fills a key's context.
    fn cost(&mut self, model: &str, key: Key, target: &Target) -> Result<StepCost> {
        let Some((name, text)) = MODELS.iter().find(|(name, _)| *name == model) else {
            return Err(Error::new(format!("the shape of {model} is unknown")));
        };
        if let Some(cost) = self.known.get(&(target.name.clone(), *name, key)) {
            return Ok(*cost);
        }
        let graph = self.graph(name, text, key)?;
        let cost = graph_cost(&graph, ArrayMapping::named(MAPPING)?, target)?;
        self.known.insert((target.name.clone(), *name, key), cost);
        Ok(cost)
    }

    fn graph(&mut self, name: &'static str, text: &str, key: Key) -> Result<Graph> {
        if !self.shapes.contains_key(name) {
            self.shapes.insert(name, shape(text)?);
        }
        self.shapes[name].graph(key, DType::BF16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper calls its time one to the first token, and does not say what else it includes.
    #[test]
    #[ignore = "simulates all layers of a tower, which takes seconds"]
    fn the_image_tower_takes_less_than_the_published_time_of_an_image() {
        let target = Target::named("xdna2-kraken@cap-2025").unwrap();
        let cost = image_cost(&target).unwrap();
        println!("array {} s, host {} s", cost.array, cost.host);
        assert!(cost.array + cost.host < 4.41, "{cost:?}");
    }
}
