//! `girih run`: continues a prompt, streaming to standard output.

use std::time::Instant;

use girih::{BUILT_IN, BUILT_IN_PROMPT, TextOrigin};
use serde_json::json;

use super::outcome::Outcome;
use crate::args::{ArchArgs, DeviceArgs, SamplingArgs};
use crate::error::{Error, Result};
use crate::input::standard_input;
use crate::loading;
use crate::machine;
use crate::output::{print_json, stream};
use crate::phases::StartPhases;
use crate::progress::Show;
use crate::report::{self, memory_json, reply_json, summary};
use crate::request::request;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder, .gguf or .safetensors file, id in the cache (org/name, org/name@revision, org/name:QUANT), or stories260k.
    model: Option<String>,
    /// Text to continue; '-' reads it from standard input.
    prompt: Option<String>,
    #[command(flatten)]
    arch: ArchArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Parse special tokens in the prompt.
    #[arg(long)]
    special: bool,
    /// Print a line of JSON at the end: counts, times, token ids.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let name = args.model.as_deref().unwrap_or(BUILT_IN);
    let prompt = prompt(args)?;
    let show = args.device.show.show();
    let mut phases = StartPhases::begin();
    let model = loading::open(name, &args.arch)?;
    phases.end("open");
    if let Some(generation) = &model.files().generation {
        show.detail(loading::generation_note(generation));
    }
    let plan = loading::plan(&model, &args.device, 1)?;
    let (memory, activations) = (plan.memory(), plan.numerics().name());
    let host_work = if show == Show::Details { loading::host_work(&plan)? } else { Vec::new() };
    let (bar, watch) = loading::watch(show);
    let session = plan.start_in_background(watch)?;
    // The prompt is converted and checked while the weights are read.
    let begun = Instant::now();
    let origin = if args.special { TextOrigin::Template } else { TextOrigin::User };
    let tokens = model.tokenize_as(&prompt, origin)?;
    let reply = session.generate(request(tokens.clone(), &args.sampling, &model))?;
    let prepared = begun.elapsed();
    phases.end_load(&session.wait_until_ready()?);
    phases.end_parallel("tokenizer", prepared);
    bar.finish_and_clear();
    stream(&prompt)?;
    let reply = report::read(reply, stream)?;
    print_line!("")?;
    phases.add("first token", reply.stats.prefill.time);
    host_work.into_iter().for_each(|sentence| show.detail(sentence));
    show.detail(phases.line());
    show.detail(summary(&reply));
    if args.json {
        let mut line = reply_json(&tokens, &reply);
        line["model"] = json!(name);
        line["kv"] = json!(args.device.kv.dtype().name());
        line["activations"] = json!(activations);
        line["start"] = phases.json();
        line["memory"] = memory_json(&memory, None);
        line["memory"]["peak_resident"] = json!(machine::status("VmHWM"));
        print_json(&line)?;
    }
    Ok(Outcome::Done)
}

/// The text to continue.
fn prompt(args: &Args) -> Result<String> {
    match (&args.prompt, &args.model) {
        (Some(text), _) if text != "-" => Ok(text.clone()),
        (Some(_), _) => standard_input(),
        (None, None) => Ok(BUILT_IN_PROMPT.to_owned()),
        (None, Some(_)) => {
            Err(Error::call("no prompt was given for the model; add a text, or '-' for standard input"))
        }
    }
}
