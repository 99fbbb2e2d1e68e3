//! The prompts of a file, answered one after another, in rounds: a line of JSON for each, then their totals.

use std::path::Path;

use girih::tools::message_json;
use girih::{Grammar, Model, ToolChoice};
use serde_json::{Value, json};

use super::{Args, compat_line, end_fields, tokenized};
use crate::cmd::outcome::Outcome;
use crate::error::{Error, Result};
use crate::input::text_of_file;
use crate::loading;
use crate::output::print_json;
use crate::phases::StartPhases;
use crate::reply_stream::{ReplyStream, joined};
use crate::report::{self, ReplyTotals, reply_json};
use crate::request::request;

/// The prompts of a file: its lines, without those that are empty.
///
/// # Errors
/// When the file cannot be read, or has only empty lines.
fn prompts(file: &Path) -> Result<Vec<String>> {
    let (place, text) = text_of_file(Some(file), "prompts")?;
    let prompts: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if prompts.is_empty() {
        return Err(Error::call(format!("{place}: has no prompt; write one on each line")));
    }
    Ok(prompts)
}

/// Answers the prompts of a file as often as `--rounds` says.
///
/// # Errors
/// When the file has no prompts, the model cannot be loaded, or a prompt cannot be answered.
pub fn answer(
    args: &Args,
    file: &Path,
    model: &Model,
    grammar: Option<&Grammar>,
    mut phases: StartPhases,
) -> Result<Outcome> {
    let prompts = prompts(file)?;
    phases.restart();
    let options = loading::options_with_prompts(model, &args.device, &args.prompts, &args.typed)?;
    let plan = args.draft.plan(model, options, &args.arch, &args.typed, args.device.show.show())?;
    let context = plan.key().context;
    let (memory, kv) = (plan.memory(), plan.kv());
    let is_chat = !args.raw && model.text_processor()?.template.is_some();
    let session = loading::session(plan, args.device.show.show())?;
    phases.end_load(&session.wait_until_ready()?);
    let choice = args.tool_choice.as_deref().map_or(ToolChoice::Auto, ToolChoice::from);
    let mut totals = ReplyTotals::default();
    for (round, (index, prompt)) in rounds(args.rounds, &prompts) {
        let ready = tokenized(args, model, prompt, is_chat, Vec::new())?;
        let request = request(ready.clone(), &args.sampling, model, context).tool_choice(choice.clone());
        let request = args.adapters.of_request(request);
        let request = match grammar {
            Some(grammar) => request.grammar(grammar.clone()),
            None => request,
        };
        let reply = session.generate(request)?;
        let reply = report::read(reply, &mut ReplyStream::Silent, !args.conversation.no_think, || false)?;
        totals.add(&ready.tokens, &reply);
        if !args.compat_ie {
            let place = json!({"prompt": index, "round": round});
            let parts = if is_chat { message_json(&reply.message) } else { Value::Null };
            print_json(&joined(&[&place, &reply_json(&ready.tokens, &reply), &parts]))?;
        }
    }
    if args.compat_ie {
        return compat_line(&totals);
    }
    let counts = json!({"prompts": prompts.len(), "rounds": args.rounds});
    let totals = joined(&[&counts, &totals.json(), &end_fields(kv, &phases, &memory)]);
    print_json(&json!({"totals": totals}))?;
    Ok(Outcome::Done)
}

/// Every prompt of every round, with the numbers of both, which begin at 0.
fn rounds(rounds: u32, prompts: &[String]) -> impl Iterator<Item = (u32, (usize, &String))> {
    (0..rounds).flat_map(move |round| prompts.iter().enumerate().map(move |prompt| (round, prompt)))
}
