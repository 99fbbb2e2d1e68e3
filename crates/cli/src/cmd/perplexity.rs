//! `girih perplexity`: a model's perplexity on a text.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use girih::{BosEos, Engine, RunOptions, TextOrigin, Unwatched};
use serde_json::json;

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::input::text_of_file;
use crate::loading;
use crate::output::{counted, print_json};
use crate::pack_args::PackArgs;
use crate::progress::Unit;

/// The maximum number of output rows (rows of logits) per step.
const OUTPUT_ROWS: u32 = 64;

// The most accurate type, so that the result is that of the weights and kernels.
#[derive(Debug, clap::Args)]
#[command(mut_arg("kv", |kv| kv.default_value("f32").help("Type of the KV cache")))]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// File with the text; '-' is standard input [default: standard input].
    file: Option<PathBuf>,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// Tokens per window; windows overlap by half [default: the context, at most 512].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    window: Option<u32>,
    /// Write the logits of the first window to this file: little-endian f32, a row per token.
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// Print JSON, with the negative log-likelihood of each token.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let model = loading::open_packed(&args.model, args.pack)?;
    let (name, text) = text_of_file(args.file.as_deref(), "file")?;
    let tokens = model.text_processor()?.tokenizer.encode(&text, TextOrigin::User, BosEos::Add)?;
    if tokens.len() < 2 {
        let count = counted(tokens.len(), "token");
        return Err(Error::call(format!("{name}: has {count}; at least 2 are needed")));
    }
    let options = loading::options_for_measuring(&args.device)?;
    let plan = model.plan(RunOptions { output_rows: OUTPUT_ROWS, ..options })?;
    let (context, activations) = (plan.key().context, plan.numerics().name());
    let window = args.window.unwrap_or(512.min(context));
    if window > context {
        return Err(Error::call(format!(
            "a window of {window} tokens does not fit into a context of {context}"
        )));
    }
    let mut engine = loading::engine(plan, args.device.show.show())?;
    if let Some(path) = &args.logits {
        write_logits(&mut engine, &tokens[..tokens.len().min(window as usize)], path)?;
    }
    let bar = args.device.show.show().bar("scoring", 0, Unit::Things("tokens"));
    let result = girih_measure::perplexity(&mut engine, &tokens, window as usize, &mut bar.watcher())?;
    bar.finish_and_clear();
    if args.json {
        let mut line = json!(result);
        line["kv"] = json!(args.device.kv_name());
        line["activations"] = json!(activations);
        print_json(&line)?;
    } else {
        print_line!(
            "perplexity {:.4} (mean negative log-likelihood {:.6} nats over {}, windows of {window})",
            result.perplexity,
            result.nll,
            counted(result.scored, "token")
        )?;
    }
    Ok(Outcome::Done)
}

/// Writes the logits of each token, in order.
fn write_logits(engine: &mut Engine, tokens: &[u32], path: &Path) -> Result<()> {
    let fails = |error| Error::work(format!("{}: cannot be written: {error}", path.display()));
    let mut file = BufWriter::new(File::create(path).map_err(fails)?);
    let mut written = Ok(());
    engine.logits(tokens, &mut Unwatched, |_, logits| {
        let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
        if written.is_ok() {
            written = file.write_all(&bytes);
        }
    })?;
    written.and_then(|()| file.flush()).map_err(fails)
}
