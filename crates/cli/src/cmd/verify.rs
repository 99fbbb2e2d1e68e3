//! `girih verify`: compares a model with a golden file, or a GGUF with its source.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use girih::engine::{Encoder, Tower};
use girih::graph::Pooling;
use girih::{Drafts, Engine, Model, Plan, RunOptions, TowerPlan};
use girih_file::ContainerKind;
use girih_measure::{
    BoundUse, Disagreement, Divergence, EncoderGolden, EncoderPromptVerdict, EncoderVerdict, ErrorBound,
    FailedStep, Golden, GoldenPrecision, GoldenPrompt, GoldenSizes, IMAGE_ROWS, ImageSizes, LayerRow,
    MtpGolden, MtpVerdict, PromptVerdict, TopChoices, TowerBound, diagnose_image, verify as gate,
    verify_encoder, verify_mtp,
};
use girih_model::{AssistantFiles, ModelLimits, TowerFiles};
use serde_json::json;

use super::outcome::Outcome;
use super::verify_source;
use crate::adapter_args::AdapterArgs;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::loading;
use crate::output::{counted, print_json};
use crate::pack_args::PackArgs;
use crate::progress::{Bar, Unit};

/// The maximum number of output rows (rows of logits) per step.
const OUTPUT_ROWS: u32 = 64;

// The most accurate type, so that the result is that of the weights and kernels.
#[derive(Debug, clap::Args)]
#[command(mut_arg("kv", |kv| kv.default_value("f32").help("Type of the KV cache")))]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Reference outputs: a file from scripts/make_golden.py; refused if it contradicts itself.
    #[arg(long, value_name = "FILE")]
    golden: Option<PathBuf>,
    /// Compare a .gguf file with the folder that it was made from: weights, facts, tokenizer and chat template, instead of outputs.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["golden", "adapters"])]
    source: Option<String>,
    /// Precision of the reference outputs to compare with.
    #[arg(long, value_name = "PRECISION", value_enum, default_value = "f32", conflicts_with = "source")]
    against: Against,
    /// Also count the greedy steps whose token is among the other side's best K, from 1 to 5. For weights that were
    /// quantized after the golden was made, it decides these steps instead of the bound.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u8).range(1..=5),
          conflicts_with_all = ["source", "mtp", "assistant"])]
    top_k: Option<u8>,
    /// Compare the layer for multi-token prediction instead of the model: a golden file from scripts/mtp_golden.py.
    #[arg(long, conflicts_with_all = ["source", "adapters"])]
    mtp: bool,
    /// Compare the assistant in this folder, which drafts for the model, instead of the model: a golden file from
    /// scripts/assistant_golden.py.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["source", "mtp", "adapters"])]
    assistant: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The values of `--against`: the arithmetic of a golden file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Against {
    /// Weights and arithmetic in f32.
    F32,
    /// Weights and arithmetic in bf16.
    Bf16,
}

impl Against {
    pub fn precision(self) -> GoldenPrecision {
        match self {
            Against::F32 => GoldenPrecision::F32,
            Against::Bf16 => GoldenPrecision::Bf16,
        }
    }
}

/// A loaded model with the golden file to compare it with.
pub struct GoldenRun {
    pub model: Model,
    pub engine: Engine,
    pub golden: Golden,
    pub bound: ErrorBound,
    /// The precision of activations in matmuls.
    pub activations: String,
    /// The image tower, if the golden has images.
    pub tower: Option<TowerRun>,
}

/// A loaded image tower.
pub struct TowerRun {
    tower: Tower,
    files: Arc<TowerFiles>,
    bound: TowerBound,
}

impl TowerRun {
    fn of(model: &Model, options: &RunOptions, device: &DeviceArgs, against: Against) -> Result<TowerRun> {
        let plan = TowerPlan::new(model, options)?;
        let weights = &plan.files().weights;
        let same_weights = weights.container().kind() == ContainerKind::Safetensors;
        let numbers = |name: &str| weights.numbers(name);
        let bounds = plan.graphs().into_iter().zip(plan.numerics()).map(|(graph, numerics)| {
            Ok::<_, Error>(ErrorBound::new(against.precision(), graph, &numerics, same_weights, numbers)?)
        });
        let mut bounds = bounds.collect::<Result<Vec<_>>>()?.into_iter();
        let first = bounds.next().expect("a tower has a program of patches");
        let bound = TowerBound::new(first, bounds.collect(), &plan.facts().taps);
        let files = Arc::clone(model.tower_files()?);
        let (bar, watch) = loading::watch(device.show.show());
        let tower = plan.load(watch)?;
        bar.finish_and_clear();
        Ok(TowerRun { tower, files, bound })
    }

    /// Compares the images of a prompt. Adds to `used` how the bound was found.
    ///
    /// # Errors
    /// When a step fails.
    pub fn diagnose(&mut self, prompt: &GoldenPrompt, used: &mut BoundUse) -> Result<Vec<LayerRow>> {
        let mut rows = Vec::new();
        for image in &prompt.images {
            rows.extend(diagnose_image(&mut self.tower, image, &self.files, &self.bound, used)?);
        }
        Ok(rows)
    }
}

impl GoldenRun {
    /// Loads an opened model and a golden file of this arithmetic.
    ///
    /// # Errors
    /// When the golden cannot be read, or the model does not load.
    pub fn of(model: Model, device: &DeviceArgs, golden: &Path, against: Against) -> Result<GoldenRun> {
        let golden = Golden::read(golden, against.precision(), &sizes(&model));
        let golden = golden.map_err(|error| {
            // Why images cannot be read.
            let tower = model.files().may_have_tower().then(|| model.tower_files().err()).flatten();
            let tower = tower.map_or_else(String::new, |tower| format!("; the image tower: {tower}"));
            Error::call(format!("{error}{tower}"))
        })?;
        let options = loading::options_for_measuring(device)?;
        let tower = match golden.image_rows() {
            None => None,
            Some(_) => Some(TowerRun::of(&model, &options, device, against)?),
        };
        // A step has the rows of an image, which read each other.
        let output_rows = golden.image_rows().map_or(OUTPUT_ROWS, |rows| rows.max(OUTPUT_ROWS));
        let given_rows = tower.is_some();
        let plan = model.plan(RunOptions { output_rows, given_rows, ..options })?;
        let activations = plan.numerics().name();
        let bound = bound(&model, against, &plan)?;
        let engine = loading::engine(plan, device.show.show())?;
        Ok(GoldenRun { model, engine, golden, bound, activations, tower })
    }
}

/// A loaded encoder with the golden file to compare it with.
pub struct EncoderGoldenRun {
    pub encoder: Encoder,
    pub golden: EncoderGolden,
    pub bound: ErrorBound,
    pub layers: usize,
    pub pooling: Pooling,
    /// The precision of activations in matmuls.
    pub activations: String,
}

impl EncoderGoldenRun {
    /// Loads an encoder and a golden file of this arithmetic.
    ///
    /// # Errors
    /// When the golden cannot be read, or the model does not load or pool.
    pub fn of(
        model: &Model,
        device: &DeviceArgs,
        golden: &Path,
        against: Against,
    ) -> Result<EncoderGoldenRun> {
        let golden = EncoderGolden::read(golden, against.precision(), &sizes(model));
        let golden = golden.map_err(|error| Error::call(error.to_string()))?;
        // The texts of the batch run in one step, if its rows hold them.
        let sequences = golden.batch.len().max(1) as u32;
        let plan = model.plan(RunOptions { sequences, ..loading::options_for_measuring(device)? })?;
        let facts = &model.files().facts;
        let pooling = facts.pooling.ok_or_else(|| {
            Error::call("the model states no pooling, which verify compares; add its modules.json")
        })?;
        let (activations, bound) = (plan.numerics().name(), bound(model, against, &plan)?);
        let (bar, watch) = loading::watch(device.show.show());
        let encoder = plan.load_encoder(watch)?;
        bar.finish_and_clear();
        Ok(EncoderGoldenRun {
            encoder,
            golden,
            bound,
            layers: facts.layers.len(),
            pooling: pooling.how,
            activations,
        })
    }
}

/// A bar over the tokens of a comparison.
pub fn bar(device: &DeviceArgs) -> Bar {
    device.show.show().bar("comparing", 0, Unit::Things("tokens"))
}

/// The sizes that a golden of this model has.
fn sizes(model: &Model) -> GoldenSizes {
    let facts = &model.files().facts;
    let image = model.files().may_have_tower().then(|| model.tower_files().ok()).flatten();
    let image = image.map(|files| ImageSizes {
        tower: files.tower.clone(),
        layers: files.facts.layers.len(),
        width: files.facts.sizes.width,
    });
    GoldenSizes {
        layers: facts.layers.len(),
        width: facts.sizes.width,
        vocabulary: facts.sizes.vocabulary,
        image,
    }
}

/// The error bound of a model as it is planned.
///
/// # Errors
/// When a weight cannot be read.
pub fn bound(model: &Model, against: Against, plan: &Plan) -> Result<ErrorBound> {
    let weights = &model.files().weights;
    let numbers = |name: &str| weights.numbers(name);
    // A folder has the numbers from which its golden was made, in MXFP4 too; other formats come from a quantized copy.
    let same_weights = weights.container().kind() == ContainerKind::Safetensors;
    Ok(ErrorBound::new(against.precision(), plan.graph(), &plan.numerics(), same_weights, numbers)?)
}

pub fn run(args: &Args) -> Result<Outcome> {
    if let Some(source) = &args.source {
        return verify_source::run(&args.model, source, &args.device, args.json);
    }
    let Some(golden) = &args.golden else {
        return Err(Error::call(
            "verify compares with a reference: add --golden FILE, or --source FOLDER for a .gguf file",
        ));
    };
    let arch = args.pack.applied(args.adapters.one_beside(&args.model.arch)?);
    let model = loading::open(&args.model.model, &arch)?;
    if model.files().facts.is_encoder() {
        if args.top_k.is_some() {
            return Err(Error::call("an encoder has no greedy steps to rank; omit --top-k"));
        }
        return run_encoder(args, &model, golden);
    }
    if args.mtp || args.assistant.is_some() {
        return run_mtp(args, &model, golden);
    }
    let mut run = GoldenRun::of(model, &args.device, golden, args.against)?;
    let layers = run.model.files().facts.layers.len();
    let bar = bar(&args.device);
    let mut verdict = gate(&mut run.engine, &run.golden, layers, &run.bound, &mut bar.watcher())?;
    bar.finish_and_clear();
    let top = args.top_k.map(usize::from);
    let decides = top.filter(|_| run.bound.has_quantized_weights());
    decides.iter().for_each(|k| verdict.decide_by_top(*k));
    let mut images = Vec::new();
    for (index, prompt) in run.golden.prompts.iter().enumerate() {
        let Some(tower) = &mut run.tower else { break };
        let rows = tower.diagnose(prompt, &mut verdict.bound)?;
        verdict.passed &= rows.iter().all(LayerRow::within);
        images.push((index, rows));
    }
    if args.json {
        print_json(&json!({
            "passed": verdict.passed,
            "against": args.against.precision().name(),
            "kv": args.device.kv_name(),
            "activations": run.activations,
            "bound": verdict.bound,
            "prompts": verdict.prompts,
            "top_k": top,
            "top_k_decides": decides.is_some(),
            "top_choices": top.map(|k| verdict.prompts.iter().map(|one| one.top_choices(k)).collect::<Vec<_>>()),
            "images": images,
        }))?;
    } else {
        for prompt in &verdict.prompts {
            print_line!("{}{}", sentence(prompt, decides.is_some()), top_sentence(prompt, top))?;
        }
        for (index, rows) in &images {
            let first = rows.iter().find(|row| !row.within());
            let worst =
                rows.iter().filter(|row| row.layer == IMAGE_ROWS).map(|row| row.max_abs).fold(0.0, f64::max);
            print_line!("images of prompt {index}: rows within {worst:.2e}{}", out_of_bound(first))?;
        }
        print_line!("bound: {}", verdict.bound)?;
        if let Some(k) = decides {
            print_line!("weights are quantized, so inclusion in the best {k} decides greedy steps")?;
        }
        print_line!("activations in {}", run.activations)?;
        print_line!("{}", if verdict.passed { "passed" } else { "failed" })?;
    }
    Ok(if verdict.passed { Outcome::Done } else { Outcome::Failed })
}

/// Compares the layer for multi-token prediction, or an assistant.
fn run_mtp(args: &Args, model: &Model, golden: &Path) -> Result<Outcome> {
    let golden = MtpGolden::read(golden, args.against.precision(), &sizes(model));
    let golden = golden.map_err(|error| Error::call(error.to_string()))?;
    let options = loading::options_for_measuring(&args.device)?;
    let assistant = args.assistant.as_ref().map(|name| loading::open(name, &args.model.arch)).transpose()?;
    let drafts = assistant.clone().map_or(Drafts::Mtp, Drafts::Model);
    let options = RunOptions { output_rows: OUTPUT_ROWS, drafts, ..options };
    let (bar, watch) = loading::watch(args.device.show.show());
    let (mut runner, graph, numerics) = model.plan(options)?.load_mtp_layer(watch)?;
    bar.finish_and_clear();
    let bound = match &assistant {
        None => {
            let files = model.files().draft(&ModelLimits::DEFAULT)?;
            let numbers = |name: &str| files.weights.numbers(name);
            ErrorBound::new(args.against.precision(), &graph, &numerics, true, numbers)?
        }
        Some(own) => {
            let files = AssistantFiles::new(own.files(), model.files())?;
            let numbers = |name: &str| files.numbers(name);
            ErrorBound::new(args.against.precision(), &graph, &numerics, true, numbers)?
        }
    };
    let MtpVerdict { passed, bound, prompts } = verify_mtp(&mut *runner, &golden, &bound)?;
    if args.json {
        print_json(&json!({
            "passed": passed,
            "against": args.against.precision().name(),
            "kv": args.device.kv_name(),
            "activations": numerics.name(),
            "bound": bound,
            "prompts": prompts,
        }))?;
    } else {
        for (index, row) in prompts.iter().enumerate() {
            let share = 100.0 * row.of_bound;
            let text =
                format!("prompt {index}: logits within {:.2e}, {share:.0} % of the bound", row.max_abs);
            print_line!("{text}{}", out_of_bound(Some(row).filter(|row| !row.within())))?;
        }
        print_line!("bound: {bound}")?;
        print_line!("activations in {}", numerics.name())?;
        print_line!("{}", if passed { "passed" } else { "failed" })?;
    }
    Ok(if passed { Outcome::Done } else { Outcome::Failed })
}

fn run_encoder(args: &Args, model: &Model, golden: &Path) -> Result<Outcome> {
    let run = EncoderGoldenRun::of(model, &args.device, golden, args.against)?;
    let EncoderGoldenRun { mut encoder, golden, bound, layers, pooling, activations } = run;
    let bar = bar(&args.device);
    let EncoderVerdict { passed, bound, prompts, batch } =
        verify_encoder(&mut encoder, &golden, layers, pooling, &bound, &mut bar.watcher())?;
    bar.finish_and_clear();
    if args.json {
        print_json(&json!({
            "passed": passed,
            "against": args.against.precision().name(),
            "activations": activations,
            "bound": bound,
            "prompts": prompts,
            "batch": batch,
        }))?;
    } else {
        for EncoderPromptVerdict { prompt, tokens, pooled_max_abs, first_out_of_bound, .. } in &prompts {
            let tokens = counted(*tokens, "token");
            let text = format!("prompt {prompt}: {tokens}; pooled row within {pooled_max_abs:.2e}");
            print_line!("{text}{}", out_of_bound(first_out_of_bound.as_ref()))?;
        }
        if let Some(row) = &batch {
            let text = format!("batch: hidden states within {:.2e}", row.max_abs);
            print_line!("{text}{}", out_of_bound(Some(row).filter(|row| !row.within())))?;
        }
        print_line!("bound: {bound}")?;
        print_line!("activations in {activations}")?;
        print_line!("{}", if passed { "passed" } else { "failed" })?;
    }
    Ok(if passed { Outcome::Done } else { Outcome::Failed })
}

/// The first layer out of bound, as the end of a sentence.
fn out_of_bound(first: Option<&LayerRow>) -> String {
    first.map_or_else(String::new, |row| {
        format!(
            "; {} is out of bound at token {}: {:.1} times the rounding bound",
            row.layer, row.worst_token, row.of_bound
        )
    })
}

/// The result of one prompt, for people. If ranks decide about steps, the allowance of a step counts for nothing.
fn sentence(prompt: &PromptVerdict, ranks_decide: bool) -> String {
    let PromptVerdict { prompt: index, tokens, equal_tokens, greedy_tokens, logits_max_abs, .. } = prompt;
    let tokens = counted(*tokens, "token");
    let mut text = format!(
        "prompt {index}: {tokens}; logits within {logits_max_abs:.2e}; {equal_tokens} of {greedy_tokens} greedy tokens equal"
    );
    text += &out_of_bound(prompt.first_out_of_bound.as_ref());
    if let Some(Divergence { step, ours, golden, margin, allowance, tolerated, .. }) = &prompt.divergence {
        text += &format!("; at step {step} the model chose {ours} and the golden {golden} by {margin:.2e}");
        if !ranks_decide {
            let rating = if *tolerated { "tolerated" } else { "not tolerated" };
            text += &format!(", {rating}: {allowance:.2e} is allowed");
        }
    }
    if let Some(failed) = &prompt.failed_step {
        text += &format!("; step {} fails: {}", failed.step, disagreement(failed));
    }
    text
}

/// The counts of steps whose tokens are among the other side's best, as the end of a sentence.
fn top_sentence(prompt: &PromptVerdict, top: Option<usize>) -> String {
    let Some(k) = top else { return String::new() };
    let TopChoices { golden_in_model, model_in_golden, first_outside } = prompt.top_choices(k);
    let all = prompt.greedy_tokens;
    let first = first_outside.map_or_else(String::new, |step| format!(", first outside at step {step}"));
    format!(
        "; best {k}: the golden's token in the model's {golden_in_model} of {all}, the model's in the golden's \
         {model_in_golden} of {all}{first}"
    )
}

/// Why a step fails, as the end of a sentence.
fn disagreement(FailedStep { disagreement, allowance, .. }: &FailedStep) -> String {
    match disagreement {
        Disagreement::Lead { token, lead, margin } => format!(
            "token {token} leads by {margin:.2e} in the golden and by {lead:.2e} in the model; {allowance:.2e} is allowed"
        ),
        Disagreement::Rank { above, below, excess } => format!(
            "the golden ranks token {below} before {above}, which exceeds it by {excess:.2e} in the model; {allowance:.2e} is allowed"
        ),
        Disagreement::Choice { ours, golden, margin } => format!(
            "the model chooses {ours}, but token {golden} leads by {margin:.2e} in the golden; {allowance:.2e} is allowed"
        ),
    }
}
