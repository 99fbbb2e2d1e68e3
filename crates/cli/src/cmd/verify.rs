//! `girih verify`: a model against a golden file.

use std::path::{Path, PathBuf};

use girih_cpu::Precision;
use girih_engine::Engine;
use girih_measure::{Bound, Golden, Precision as Arithmetic, PromptVerdict, Sizes, verify as gate};
use girih_model::Model;
use serde_json::json;

use super::{Outcome, print_json};
use crate::args::{DeviceArgs, ModelArgs};
use crate::backends::Layout;
use crate::error::{Error, Result};
use crate::loading::{self, Place};
use crate::progress::Show;

/// The most rows of logits that one step hands out.
const WANTED: u32 = 64;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// A file of scripts/make_golden.py.
    #[arg(long, value_name = "FILE")]
    golden: PathBuf,
    /// The golden's arithmetic to compare with.
    #[arg(long, value_name = "PRECISION", value_enum, default_value = "f32")]
    against: Against,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The arithmetic of a golden.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Against {
    /// Weights and arithmetic in single precision.
    F32,
    /// Weights and arithmetic in brain float.
    Bf16,
}

impl Against {
    pub fn precision(self) -> Arithmetic {
        match self {
            Against::F32 => Arithmetic::F32,
            Against::Bf16 => Arithmetic::Bf16,
        }
    }
}

/// A model ready to be compared.
pub struct Case {
    pub model: Model,
    pub engine: Engine<'static>,
    pub golden: Golden,
    pub bound: Bound,
    /// What activations are rounded to.
    pub activations: String,
}

impl Case {
    /// Opens a model beside a golden of this arithmetic.
    ///
    /// # Errors
    /// When either cannot be read, or the model does not load.
    pub fn open(model: &ModelArgs, device: &DeviceArgs, golden: &Path, against: Against) -> Result<Case> {
        let model = Place::find(&model.model)?.model(&model.arch)?;
        let sizes = Sizes {
            layers: model.facts.layers.len(),
            width: model.facts.sizes.width,
            vocabulary: model.facts.sizes.vocabulary,
        };
        let golden = Golden::read(golden, against.precision(), &sizes);
        let golden = golden.map_err(|error| Error::call(error.to_string()))?;
        let layout = loading::layout(&model, device, WANTED)?;
        let engine = loading::start(&layout, Show::unless(device.quiet))?;
        let activations = layout.activations();
        let bound = bound(&model, device, against, &layout)?;
        Ok(Case { model, engine, golden, bound, activations })
    }
}

/// The bound for the precision in use: the longest sum, the golden's
/// arithmetic, the state's type, how coarsely weights are stored, and what
/// activations are rounded to, at the coarsest and before logits.
pub fn bound(model: &Model, device: &DeviceArgs, against: Against, layout: &Layout) -> Result<Bound> {
    let infos = model.weights.names().filter_map(|name| Some((name, model.weights.info(name)?)));
    let mut terms = 1;
    let mut quantized = 0.0f64;
    for (name, (dtype, shape)) in infos {
        terms = terms.max(shape.columns());
        if dtype.tile() != (1, 1) {
            let numbers = model.weights.numbers(name)?;
            quantized = quantized.max(Bound::relative_step(dtype, &shape, &numbers));
        }
    }
    let bound = Bound::new(against.precision(), terms, device.kv.dtype(), quantized);
    let bound = bound.storing(device.backend.activations());
    let coarsest = layout.precisions().first().copied().unwrap_or(Precision::F32);
    Ok(bound.meeting(coarsest.format(), layout.head_precision().format()))
}

pub fn verify(args: &Args) -> Result<Outcome> {
    let mut case = Case::open(&args.model, &args.device, &args.golden, args.against)?;
    let layers = case.model.facts.layers.len();
    let verdict = gate(&mut case.engine, &case.golden, layers, &case.bound)?;
    if args.json {
        print_json(&json!({
            "passed": verdict.passed,
            "against": args.against.precision().name(),
            "kv": args.device.kv.dtype().name(),
            "activations": case.activations,
            "prompts": verdict.prompts,
        }))?;
    } else {
        for prompt in &verdict.prompts {
            print_line!("{}", sentence(prompt))?;
        }
        print_line!("activations in {}", case.activations)?;
        print_line!("{}", if verdict.passed { "passed" } else { "failed" })?;
    }
    Ok(if verdict.passed { Outcome::Done } else { Outcome::Failed })
}

/// One prompt's outcome in words.
fn sentence(prompt: &PromptVerdict) -> String {
    let PromptVerdict { prompt: index, tokens, equal_tokens, greedy_tokens, logits_max_abs, .. } = prompt;
    let mut text = format!(
        "prompt {index}: {tokens} tokens; logits within {logits_max_abs:.2e}; {equal_tokens} of {greedy_tokens} greedy tokens equal"
    );
    if let Some(row) = &prompt.first_out_of_bound {
        text += &format!(
            "; {} is out of bound at token {}: {:.1} times what rounding explains",
            row.layer, row.worst_token, row.of_bound
        );
    }
    if let Some(parting) = &prompt.divergence {
        let word = if parting.tolerable() { "tolerable" } else { "not tolerable" };
        text += &format!(
            "; at step {} the model chose {} and the golden {}, {word}: the model's token is{} in the golden's top 5, the golden's is{} in the model's",
            parting.step,
            parting.ours,
            parting.golden,
            if parting.ours_in_golden_top5 { "" } else { " not" },
            if parting.golden_in_our_top5 { "" } else { " not" },
        );
    }
    text
}
