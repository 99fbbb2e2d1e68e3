//! `girih diagnose`: a model against a golden file, or against what another
//! backend makes of the same tokens, layer by layer.

use std::path::{Path, PathBuf};

use girih_measure::{LayerRow, diagnose, diagnose_against, random_tokens};
use girih_tensor::Random;
use serde_json::{Value, json};

use super::verify::{Against, Case, bound};
use super::{Outcome, print_json};
use crate::args::{ActPrecision, Backend, DeviceArgs, ModelArgs, PlacementArgs, backend};
use crate::array::ArrayArgs;
use crate::error::{Error, Result};
use crate::loading::{self, Place};
use crate::progress::Show;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// A file of scripts/make_golden.py.
    #[arg(long, value_name = "FILE", required_unless_present = "reference")]
    golden: Option<PathBuf>,
    /// The golden's arithmetic to compare with.
    #[arg(long, value_name = "PRECISION", value_enum, default_value = "f32", conflicts_with = "reference")]
    against: Against,
    /// In place of a golden, a backend that runs the same tokens; of logits, those after the last.
    #[arg(long, value_name = "BACKEND", value_parser = backend, conflicts_with = "golden")]
    reference: Option<Backend>,
    /// Random tokens that both backends run.
    #[arg(long, value_name = "N", default_value = "64", conflicts_with = "golden",
          value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// What the tokens of --reference are drawn with.
    #[arg(long, value_name = "SEED", default_value = "42")]
    seed: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    match (&args.golden, &args.reference) {
        (Some(golden), _) => against_golden(args, golden),
        (None, Some(reference)) => against_backend(args, reference),
        (None, None) => unreachable!("the parser asks for one of the two"),
    }
}

fn against_golden(args: &Args, golden: &Path) -> Result<Outcome> {
    let mut case = Case::open(&args.model, &args.device, golden, args.against)?;
    let layers = case.model.facts.layers.len();
    let mut prompts = Vec::new();
    for prompt in &case.golden.prompts {
        prompts.push(diagnose(&mut case.engine, prompt, layers, &case.bound)?);
    }
    report(args, &case.activations, &Value::Null, &prompts)
}

fn against_backend(args: &Args, reference: &Backend) -> Result<Outcome> {
    let model = Place::find(&args.model.model)?.model(&args.model.arch)?;
    let show = Show::unless(args.device.quiet);
    let context = loading::context(&model, &args.device)?;
    if args.tokens > context {
        let asked = args.tokens;
        return Err(Error::call(format!(
            "--tokens {asked} do not fit into a context of {context}; take fewer"
        )));
    }
    let layout = loading::layout(&model, &args.device, 1)?;
    let mut engine = loading::start(&layout, show)?;
    let other = exactly(reference, &args.device);
    let other = loading::layout(&model, &other, 1)?;
    let mut other = loading::start(&other, show)?;
    let tokens = random_tokens(&mut Random(args.seed), args.tokens as usize, model.facts.sizes.vocabulary);
    let bound = bound(&model, &args.device, Against::F32, &layout)?;
    let rows = diagnose_against(&mut engine, &mut other, &tokens, model.facts.layers.len(), &bound)?;
    report(args, &layout.activations(), &json!(reference.to_string()), &[rows])
}

/// The reference runs the same steps, with activations as exact as it has them.
fn exactly(reference: &Backend, device: &DeviceArgs) -> DeviceArgs {
    let array = match reference {
        Backend::Npu(_) => device.array.clone(),
        Backend::Cpu | Backend::Interpreter => ArrayArgs::default(),
    };
    DeviceArgs {
        backend: reference.clone(),
        array,
        isa: None,
        placement: PlacementArgs::default(),
        act_precision: (*reference == Backend::Cpu).then_some(ActPrecision::F32),
        ..device.clone()
    }
}

fn report(args: &Args, activations: &str, reference: &Value, prompts: &[Vec<LayerRow>]) -> Result<Outcome> {
    let within = prompts.iter().flatten().all(LayerRow::within);
    if args.json {
        print_json(&json!({
            "within": within,
            "kv": args.device.kv.dtype().name(),
            "activations": activations,
            "reference": reference,
            "prompts": prompts,
        }))?;
    } else {
        for (index, rows) in prompts.iter().enumerate() {
            table(index, rows)?;
        }
    }
    Ok(if within { Outcome::Done } else { Outcome::Failed })
}

fn table(prompt: usize, rows: &[LayerRow]) -> Result<()> {
    print_line!("prompt {prompt}")?;
    print_line!("{:>16} {:>12} {:>11} {:>11} {:>9}", "layer", "cosine", "max abs", "rms", "of bound")?;
    for row in rows {
        let LayerRow { layer, cosine, max_abs, rms, of_bound, .. } = row;
        print_line!("{layer:>16} {cosine:>12.9} {max_abs:>11.3e} {rms:>11.3e} {of_bound:>9.4}")?;
    }
    match rows.iter().find(|row| !row.within()) {
        Some(row) => print_line!("first out of bound: {}, at token {}", row.layer, row.worst_token),
        None => print_line!("every layer is within its bound"),
    }
}
