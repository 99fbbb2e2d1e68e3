//! `girih run`: continues a prompt, streaming to standard output.

use girih_words::{BosEos, TextOrigin, TextProcessor};
use serde_json::json;

use super::outcome::Outcome;
use crate::args::{ArchArgs, DeviceArgs, SamplingArgs};
use crate::builtin;
use crate::error::{Error, Result};
use crate::generate::{generate, reply_json, summary};
use crate::input::standard_input;
use crate::loading::{self, ModelLocation};
use crate::machine;
use crate::output::{print_json, stream};
use crate::phases::StartPhases;
use crate::progress::Show;
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
    /// Print the time of each phase of the start, and an array's host fallbacks.
    #[arg(long, short)]
    verbose: bool,
    /// Print a line of JSON at the end: counts, times, token ids.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let name = args.model.as_deref().unwrap_or(builtin::STORIES.name);
    let prompt = prompt(args)?;
    let show = Show::unless(args.device.quiet);
    let mut phases = StartPhases::begin();
    let location = ModelLocation::find(name)?;
    let model = location.model(&args.arch)?;
    phases.end("open");
    if let Some(generation) = &model.generation {
        show.note(loading::generation_note(generation));
    }
    let plan = loading::plan(&model, &args.device, 1)?;
    let memory = plan.memory()?;
    // Checks the request before anything is printed.
    let prepare = || {
        let processor = location.text_processor_of(&model)?;
        let tokens = encode(&processor, &prompt, args.special)?;
        let request = request(tokens.clone(), &args.sampling, &model, &processor, plan.key.context);
        let check = request.check(&loading::bounds(&plan), model.facts.sizes.vocabulary);
        check.map_err(|error| Error::call(error.to_string()))?;
        Ok((processor, tokens, request))
    };
    let ((processor, tokens, request), mut engine) =
        loading::start_parallel(&plan, show, &mut phases, prepare)?;
    stream(&prompt)?;
    let reply = generate(&mut engine, request, &processor, || false, stream)?;
    print_line!("")?;
    phases.add("first token", reply.stats.prefill.time);
    if args.verbose {
        plan.host_work()?.into_iter().for_each(|sentence| show.note(sentence));
        show.note(phases.line());
    }
    show.note(summary(&reply));
    if args.json {
        let mut line = reply_json(&tokens, &reply);
        line["model"] = json!(name);
        line["kv"] = json!(args.device.kv.dtype().name());
        line["activations"] = json!(plan.activations()?);
        line["start"] = phases.json();
        line["memory"] = json!({
            "planned": memory.total(),
            "weights": memory.weights,
            "state": memory.state,
            "scratch": memory.scratch,
            "peak_resident": machine::status("VmHWM"),
        });
        print_json(&line)?;
    }
    Ok(Outcome::Done)
}

/// The text to continue.
fn prompt(args: &Args) -> Result<String> {
    match (&args.prompt, &args.model) {
        (Some(text), _) if text != "-" => Ok(text.clone()),
        (Some(_), _) => standard_input(),
        (None, None) => Ok(builtin::STORIES_PROMPT.to_owned()),
        (None, Some(_)) => {
            Err(Error::call("no prompt was given for the model; add a text, or '-' for standard input"))
        }
    }
}

/// The prompt's tokens; an empty prompt is the beginning-of-text token.
fn encode(processor: &TextProcessor, prompt: &str, special: bool) -> Result<Vec<u32>> {
    let origin = if special { TextOrigin::Template } else { TextOrigin::User };
    let mut tokens = processor.tokenizer.encode(prompt, origin, BosEos::Add)?;
    if tokens.is_empty() {
        tokens.extend(processor.tokenizer.named().bos);
    }
    Ok(tokens)
}
