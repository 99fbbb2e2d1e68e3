//! `girih diagnose`: compares a model with a golden file, or with another backend
//! on the same tokens, layer by layer.

use std::path::{Path, PathBuf};

use girih::{BackendChoice, Model, RunOptions};
use girih_measure::{BoundUse, LayerRow, diagnose, diagnose_against, diagnose_encoder, random_tokens};
use girih_tensor::Random;
use serde_json::{Value, json};

use super::outcome::Outcome;
use super::verify::{Against, EncoderGoldenRun, GoldenRun, bar, bound};
use crate::args::{DeviceArgs, ModelArgs};
use crate::backend_args::parse_backend;
use crate::error::{Error, Result};
use crate::loading;
use crate::output::print_json;
use crate::pack_args::PackArgs;

/// The argument that names a second backend.
pub const REFERENCE: &str = "reference";

// The most accurate type, so that the result is that of the weights and kernels.
#[derive(Debug, clap::Args)]
#[command(mut_arg("kv", |kv| kv.default_value("f32").help("Type of the KV cache")))]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    pack: PackArgs,
    /// Reference outputs: a file from scripts/make_golden.py; refused if it contradicts itself.
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,
    /// Precision of the reference outputs to compare with.
    #[arg(long, value_name = "PRECISION", value_enum, default_value = "f32", conflicts_with = "reference")]
    against: Against,
    /// Compare with this backend on the same tokens instead of a golden file; logits are compared only after the last token.
    #[arg(long, value_name = "BACKEND", value_parser = parse_backend, conflicts_with = "golden")]
    reference: Option<BackendChoice>,
    /// Number of random tokens that both backends run.
    #[arg(long, value_name = "N", default_value = "64", conflicts_with = "golden",
          value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// Seed of the random tokens for --reference.
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
        (None, None) => Err(Error::call(
            "diagnose compares with a reference: add --reference interpreter (or another backend), or --golden FILE",
        )),
    }
}

fn against_golden(args: &Args, golden: &Path) -> Result<Outcome> {
    let model = loading::open_packed(&args.model, args.pack)?;
    if model.files().facts.is_encoder() {
        return encoder_against_golden(args, &model, golden);
    }
    let mut run = GoldenRun::of(model, &args.device, golden, args.against)?;
    let layers = run.model.files().facts.layers.len();
    let total = run.golden.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum();
    let (bar, mut done, mut prompts) = (bar(&args.device), 0, Vec::new());
    let mut used = run.bound.all_followed();
    for prompt in &run.golden.prompts {
        let mut rows = match &mut run.tower {
            None => Vec::new(),
            Some(tower) => tower.diagnose(prompt, &mut used)?,
        };
        rows.extend(diagnose(&mut run.engine, prompt, layers, &run.bound, &mut used)?);
        prompts.push(rows);
        done += prompt.tokens.len() as u64;
        bar.set(done, total);
    }
    bar.finish_and_clear();
    report(args, &run.activations, &Value::Null, Some(&used), &prompts)
}

fn encoder_against_golden(args: &Args, model: &Model, golden: &Path) -> Result<Outcome> {
    let mut run = EncoderGoldenRun::of(model, &args.device, golden, args.against)?;
    let total = run.golden.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum();
    let (bar, mut done, mut prompts) = (bar(&args.device), 0, Vec::new());
    let mut used = run.bound.all_followed();
    for prompt in &run.golden.prompts {
        prompts.push(diagnose_encoder(
            &mut run.encoder,
            prompt,
            run.layers,
            run.pooling,
            &run.bound,
            &mut used,
        )?);
        done += prompt.tokens.len() as u64;
        bar.set(done, total);
    }
    bar.finish_and_clear();
    report(args, &run.activations, &Value::Null, Some(&used), &prompts)
}

fn against_backend(args: &Args, reference: &BackendChoice) -> Result<Outcome> {
    let model = loading::open_packed(&args.model, args.pack)?;
    let show = args.device.show.show();
    let options = loading::options_for_measuring(&args.device)?;
    let plan = model.plan(options.clone())?;
    let context = plan.key().context;
    if args.tokens > context {
        return Err(Error::call(format!(
            "--tokens {} do not fit into a context of {context}; use fewer",
            args.tokens
        )));
    }
    let (bound, activations) = (bound(&model, Against::F32, &plan)?, plan.numerics().name());
    let mut engine = loading::engine(plan, show)?;
    // The same steps, with the most exact options that the reference has.
    let backend = args.device.backend.with_options_for(reference.clone())?.reference()?;
    let backend = backend.with_threads(args.device.threads.map(usize::from));
    let mut other = loading::engine(model.plan(RunOptions { backend, ..options })?, show)?;
    let facts = &model.files().facts;
    let tokens = random_tokens(&mut Random(args.seed), args.tokens as usize, facts.sizes.vocabulary);
    let (layers, bar) = (facts.layers.len(), bar(&args.device));
    let rows = diagnose_against(&mut engine, &mut other, &tokens, layers, &bound, &mut bar.watcher())?;
    bar.finish_and_clear();
    report(args, &activations, &json!(reference.to_string()), None, &[rows])
}

/// Prints the rows of all prompts, and how their bound was found; between two backends, it is counted.
fn report(
    args: &Args,
    activations: &str,
    reference: &Value,
    bound: Option<&BoundUse>,
    prompts: &[Vec<LayerRow>],
) -> Result<Outcome> {
    let within = prompts.iter().flatten().all(LayerRow::within);
    if args.json {
        print_json(&json!({
            "within": within,
            "kv": args.device.kv_name(),
            "activations": activations,
            "reference": reference,
            "bound": bound,
            "prompts": prompts,
        }))?;
    } else {
        for (index, rows) in prompts.iter().enumerate() {
            table(index, rows)?;
        }
        match bound {
            Some(bound) => print_line!("bound: {bound}")?,
            None => print_line!("bound: all errors counted")?,
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
