//! `girih run`: continues a prompt, streaming to standard output.

use girih_words::{Ends, Origin, Words};
use serde_json::json;

use super::{Outcome, print_json};
use crate::args::{ArchArgs, DeviceArgs, SamplingArgs};
use crate::builtin;
use crate::error::{Error, Result};
use crate::generate::{described, request, summary};
use crate::input::standard_input;
use crate::loading::{self, Place};
use crate::machine;
use crate::output::stream;
use crate::phases::Phases;
use crate::progress::Show;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder, a .gguf or .safetensors file, an id in the cache (org/name, org/name@revision, org/name:QUANT), or stories260k.
    model: Option<String>,
    /// The text to continue; '-' reads it from standard input.
    prompt: Option<String>,
    #[command(flatten)]
    arch: ArchArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// Let special tokens that the prompt spells be special tokens.
    #[arg(long)]
    special: bool,
    /// Say how long each phase of the start took, and what an array leaves to the host.
    #[arg(long, short)]
    verbose: bool,
    /// End with one line of JSON: amounts, times, token ids.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let name = args.model.as_deref().unwrap_or(builtin::STORIES.name);
    let prompt = prompt(args)?;
    let show = Show::unless(args.device.quiet);
    let mut phases = Phases::begin();
    let place = Place::find(name)?;
    let model = place.model(&args.arch)?;
    phases.end("open");
    if let Some(generation) = &model.generation {
        show.note(loading::described(generation));
    }
    let layout = loading::layout(&model, &args.device, 1)?;
    let overflow = args.sampling.overflow;
    let plan = layout.plan()?;
    // What is refused is refused before anything is printed.
    let prepare = || {
        let words = place.words_of(&model)?;
        let tokens = encode(&words, &prompt, args.special)?;
        let request = request(tokens.clone(), &args.sampling, &model, &words, layout.key.context);
        let first = overflow.first(request.clone(), layout.key.context);
        let check = first.check(&loading::bounds(&layout), model.facts.sizes.vocabulary);
        check.map_err(|error| Error::call(error.to_string()))?;
        Ok((words, tokens, request))
    };
    let ((words, tokens, request), mut engine) = loading::start_beside(&layout, show, &mut phases, prepare)?;
    stream(&prompt)?;
    let reply = overflow.generate(&mut engine, request, &words, || false, stream)?;
    print_line!("")?;
    phases.add("first token", reply.stats.prefill.time);
    if args.verbose {
        layout.host_work()?.into_iter().for_each(|sentence| show.note(sentence));
        show.note(phases.line());
    }
    show.note(summary(&reply));
    if args.json {
        let mut line = described(&tokens, &reply);
        line["model"] = json!(name);
        line["kv"] = json!(args.device.kv.dtype().name());
        line["activations"] = json!(layout.activations());
        line["start"] = phases.json();
        line["memory"] = json!({
            "planned": plan.total(),
            "weights": plan.weights,
            "state": plan.state,
            "scratch": plan.scratch,
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
            Err(Error::call("a model was given but no prompt; give a text, or '-' for standard input"))
        }
    }
}

/// The prompt's tokens; an empty prompt is the token that opens a text.
fn encode(words: &Words, prompt: &str, special: bool) -> Result<Vec<u32>> {
    let origin = if special { Origin::Template } else { Origin::User };
    let mut tokens = words.tokenizer.encode(prompt, origin, Ends::Add)?;
    if tokens.is_empty() {
        tokens.extend(words.tokenizer.named().bos);
    }
    Ok(tokens)
}
