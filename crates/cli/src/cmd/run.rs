//! `girih run`: answers or continues a prompt, streaming to standard output.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Instant;

use girih::tools::{memory_json, message_json, peak_resident};
use girih::{
    BUILT_IN, BUILT_IN_PROMPT, Conversation, DType, Grammar, ImagePatches, MemoryPlan, Model, TextOrigin,
    Tool, ToolChoice,
};
use girih_file::shorten;
use serde_json::{Value, json};

use super::chat;
use super::outcome::Outcome;
use crate::adapter_args::AdapterArgs;
use crate::args::{ArchArgs, DeviceArgs, GrammarArgs, ModelArgs, PromptCacheArgs, SamplingArgs};
use crate::conversation_args::ConversationArgs;
use crate::draft_args::DraftArgs;
use crate::error::{Error, Result};
use crate::images;
use crate::input::{
    is_json_text, json_text, missing, piped_text, standard_input, text_of_file, without_line_end,
};
use crate::loading;
use crate::output::print_json;
use crate::pack_args::{PackArgs, packing_json};
use crate::phases::StartPhases;
use crate::progress::Show;
use crate::reply_stream::{ReplyStream, joined, print_event};
use crate::report::{self, ReplyTotals, reply_json, summary};
use crate::request::{TokenizedPrompt, check_sampling, request, user_message};
use crate::typed_options::TypedOptions;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    typed: TypedOptions,
    /// Folder, .gguf or .safetensors file, id in the cache (org/name, org/name@revision, org/name:QUANT), URL on the hub, alias, or stories260k.
    model: Option<String>,
    /// Message to answer; without a chat template, text to continue; '-' is standard input [default:
    /// standard input; on a terminal, a chat; without MODEL, a story].
    prompt: Option<String>,
    /// Read the prompt from a file.
    #[arg(long, short = 'f', value_name = "FILE", conflicts_with = "prompt")]
    file: Option<PathBuf>,
    /// Answer each line of a file as a prompt, without the empty ones: a line of JSON for each, then their totals.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "file", "image", "frames", "jsonl"])]
    prompts_file: Option<PathBuf>,
    /// Number of times to answer the prompts of the file.
    #[arg(long, value_name = "N", requires = "prompts_file", conflicts_with_all = ["prompt", "file"], default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Image that the message is about; repeat for several.
    #[arg(long, value_name = "FILE", conflicts_with = "raw")]
    image: Vec<PathBuf>,
    /// Folder with the frames of a video that the message is about: images of one size, in the order of their names.
    #[arg(long, value_name = "DIR", conflicts_with = "raw", requires = "fps")]
    frames: Option<PathBuf>,
    /// Number of those frames in a second.
    #[arg(long, value_name = "N", requires = "frames", allow_negative_numbers = true)]
    fps: Option<f64>,
    /// Continue the prompt as it is, without the model's chat template.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    conversation: ConversationArgs,
    /// JSON list of tools, as in OpenAI's API, that the model may call: a file, or the list itself; the reply
    /// shows its calls.
    #[arg(long, value_name = "FILE|JSON")]
    tools: Option<PathBuf>,
    /// Whether the reply must be a call: auto (the model decides), required (of any tool), or a tool's name.
    #[arg(long, value_name = "CHOICE", requires = "tools", conflicts_with_all = ["schema", "json_object", "regex", "grammar"])]
    tool_choice: Option<String>,
    #[command(flatten)]
    arch: ArchArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    prompts: PromptCacheArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
    /// Parse special tokens in a prompt that is continued as it is.
    #[arg(long)]
    special: bool,
    /// Print one JSON object: text, counts, times, token ids.
    #[arg(long, conflicts_with = "jsonl")]
    json: bool,
    /// Print one JSON object per line: the start, each token, and the end.
    #[arg(long)]
    jsonl: bool,
    /// Print one JSON object with the keys of IE-Core's inference-engine, for scripts that read it.
    #[arg(long, conflicts_with_all = ["json", "jsonl"])]
    compat_ie: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let name = args.model.as_deref().unwrap_or(BUILT_IN);
    let show = args.device.show.show();
    let mut phases = StartPhases::begin();
    let arch = args.pack.applied(args.adapters.one_beside(&args.arch)?);
    let model = loading::open_for_replies(name, &arch, &args.conversation.template)?;
    check_sampling(&args.sampling, &args.typed)?;
    let grammar = args.grammar.grammar()?;
    phases.end("open");
    if let Some(file) = &args.prompts_file {
        return answer_prompts(args, file, &model, grammar.as_ref(), phases);
    }
    let Some(prompt) = prompt(args)? else { return chat::run(&chat_args(args, name)) };
    phases.restart();
    if let Some(generation) = &model.files().generation {
        show.detail(loading::generation_note(generation));
    }
    let options = loading::options_with_prompts(&model, &args.device, &args.prompts, &args.typed)?;
    let patches = given_images(args, &model, show)?;
    let options = if patches.is_empty() { options } else { images::options(&model, options, show)? };
    let plan = args.draft.plan(&model, options, &args.arch, &args.typed, show)?;
    let (memory, kv, context) = (plan.memory(), plan.kv(), plan.key().context);
    let arithmetic = json!({"activations": plan.numerics().name(), "arithmetic": plan.arithmetic()});
    let host_work = if show == Show::Details { loading::host_work(&plan)? } else { Vec::new() };
    plan.machine_default().into_iter().for_each(|sentence| show.note(sentence));
    let (bar, watch) = loading::watch(show);
    let session = plan.start_in_background(watch)?;
    // The prompt is converted and checked while the weights are read.
    let begun = Instant::now();
    let is_chat = !args.raw && model.text_processor()?.template.is_some();
    let ready = tokenized(args, &model, &prompt, is_chat, patches)?;
    let choice = args.tool_choice.as_deref().map_or(ToolChoice::Auto, ToolChoice::from);
    let request = request(ready.clone(), &args.sampling, &model, context).tool_choice(choice);
    let request = args.adapters.of_request(request);
    let is_constrained = grammar.is_some();
    let reply = session.generate(match grammar {
        Some(grammar) => request.grammar(grammar),
        None => request,
    })?;
    let prepared = begun.elapsed();
    phases.end_load(&session.wait_until_ready()?);
    // The rows of images are made before the request is submitted.
    phases.end_parallel(
        if args.image.is_empty() && args.frames.is_none() { "tokenizer" } else { "images" },
        prepared,
    );
    bar.finish_and_clear();
    let mut output = stream_of(args, is_chat);
    // In a pipe, with a constraint or with --quiet, what is printed is the reply alone.
    let repeats_prompt = !is_chat && !is_constrained && show != Show::Nothing && io::stdout().is_terminal();
    let facts = json!({"model": name, "chat_template": is_chat, "prompt_tokens": ready.tokens.len()});
    match output {
        ReplyStream::Events { .. } => print_event("start", &[&facts])?,
        ReplyStream::Text(_) if repeats_prompt => output.repeat_prompt(&prompt)?,
        _ => {}
    }
    let reply = report::read(reply, &mut output, !args.conversation.no_think, || false)?;
    phases.add("first token", reply.stats.prefill.time);
    host_work.into_iter().for_each(|sentence| show.detail(sentence));
    show.detail(phases.line());
    show.detail(summary(&reply, args.device.backend.choice()?.info().is_simulated));
    if args.compat_ie {
        return compat_line(&ReplyTotals::of(&ready.tokens, &reply));
    }
    let loaded = end_fields(&model, kv, &phases, &memory);
    let parts = if is_chat { message_json(&reply.message) } else { Value::Null };
    let end = joined(&[&reply_json(&ready.tokens, &reply), &parts, &facts, &arithmetic, &loaded]);
    match output {
        ReplyStream::Silent => print_json(&end)?,
        ReplyStream::Events { .. } => print_event("end", &[&end])?,
        ReplyStream::Text(_) => {}
    }
    Ok(Outcome::Done)
}

/// Where the reply goes.
fn stream_of(args: &Args, is_chat: bool) -> ReplyStream {
    match (args.json || args.compat_ie, args.jsonl) {
        (true, _) => ReplyStream::Silent,
        (_, true) => ReplyStream::events(json!({}), is_chat),
        _ => ReplyStream::text(),
    }
}

/// The prompts of a file: its lines, without those that are empty.
///
/// # Errors
/// When the file cannot be read, or has only empty lines.
fn prompts_of(file: &Path) -> Result<Vec<String>> {
    let (place, text) = text_of_file(Some(file), "prompts")?;
    let prompts: Vec<String> = text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect();
    if prompts.is_empty() {
        return Err(Error::call(format!("{place}: has no prompt; write one on each line")));
    }
    Ok(prompts)
}

/// Answers the prompts of a file as often as `--rounds` says: a line of JSON for each, then their totals.
///
/// # Errors
/// When the file has no prompts, the model cannot be loaded, or a prompt cannot be answered.
fn answer_prompts(
    args: &Args,
    file: &Path,
    model: &Model,
    grammar: Option<&Grammar>,
    mut phases: StartPhases,
) -> Result<Outcome> {
    let prompts = prompts_of(file)?;
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
    let totals = joined(&[&counts, &totals.json(), &end_fields(model, kv, &phases, &memory)]);
    print_json(&json!({"totals": totals}))?;
    Ok(Outcome::Done)
}

/// Every prompt of every round, with the numbers of both, which begin at 0.
fn rounds(rounds: u32, prompts: &[String]) -> impl Iterator<Item = (u32, (usize, &String))> {
    (0..rounds).flat_map(move |round| prompts.iter().enumerate().map(move |prompt| (round, prompt)))
}

/// Prints the line of `--compat-ie`. The peak of memory is read after all replies, so reading it costs them no time.
fn compat_line(totals: &ReplyTotals) -> Result<Outcome> {
    print_json(&totals.compat_json(peak_resident()))?;
    Ok(Outcome::Done)
}

/// What the end of a reply says about how the model was loaded.
fn end_fields(model: &Model, kv: Option<DType>, phases: &StartPhases, memory: &MemoryPlan) -> Value {
    let mut memory = memory_json(memory, None);
    memory["peak_resident"] = json!(peak_resident());
    json!({
        "kv": kv.map(DType::name),
        "start": phases.json(),
        "memory": memory,
        "packing": packing_json(model),
    })
}

/// The prompt; `None` if a chat is to be opened.
fn prompt(args: &Args) -> Result<Option<String>> {
    if let Some(file) = &args.file {
        let (_, text) = text_of_file(Some(file), "prompt")?;
        return Ok(Some(without_line_end(text)));
    }
    match (args.prompt.as_deref(), &args.model) {
        (Some("-"), _) => standard_input().map(Some),
        (Some(text), _) => Ok(Some(text.to_owned())),
        // Without a model, standard input is not read: the demonstration must not wait for a pipe.
        (None, None) => Ok(Some(BUILT_IN_PROMPT.to_owned())),
        (None, Some(_)) => match piped_text()? {
            Some(text) => Ok(Some(text)),
            None if opens_chat(args) => Ok(None),
            None => Err(missing("prompt")),
        },
    }
}

/// Whether a call without a prompt opens a chat: a person is there, and no option is about one
/// reply alone.
fn opens_chat(args: &Args) -> bool {
    let GrammarArgs { schema, json_object, regex, grammar } = &args.grammar;
    let has_grammar = schema.is_some() || *json_object || regex.is_some() || grammar.is_some();
    let is_for_one_reply = args.raw
        || args.special
        || args.json
        || args.jsonl
        || args.compat_ie
        || args.tools.is_some()
        || has_grammar
        || !args.image.is_empty()
        || args.frames.is_some();
    io::stdin().is_terminal() && io::stdout().is_terminal() && !is_for_one_reply
}

/// The call of a chat with the options of this one.
fn chat_args(args: &Args, name: &str) -> chat::Args {
    chat::Args {
        typed: args.typed.clone(),
        model: ModelArgs { model: name.to_owned(), arch: args.arch.clone() },
        adapters: args.adapters.clone(),
        pack: args.pack,
        conversation: args.conversation.clone(),
        device: args.device.clone(),
        draft: args.draft.clone(),
        prompts: args.prompts.clone(),
        sampling: args.sampling.clone(),
        no_images: false,
        jsonl: false,
    }
}

/// The images and then the video that the message is about.
fn given_images(args: &Args, model: &Model, show: Show) -> Result<Vec<ImagePatches>> {
    let images = args.image.iter().map(|path| images::patches(model, path, show));
    let video = args.frames.iter().zip(args.fps).map(|(folder, fps)| images::video(model, folder, fps, show));
    images.chain(video).collect()
}

/// The tokens of the prompt: as a message in the model's chat template, or as it is.
fn tokenized(
    args: &Args,
    model: &Model,
    prompt: &str,
    is_chat: bool,
    images: Vec<ImagePatches>,
) -> Result<TokenizedPrompt> {
    if !is_chat {
        if !images.is_empty() {
            return Err(Error::call(
                "images need a chat template, and the model has none; add --chat-template FILE",
            ));
        }
        if let Some(option) = args.typed.first(&ConversationArgs::OF_TEMPLATES) {
            let reason = if args.raw { "--raw uses none" } else { "the model has none" };
            return Err(Error::call(format!(
                "--{option} needs a chat template, and {reason}; omit --{option}"
            )));
        }
        let origin = if args.special { TextOrigin::Template } else { TextOrigin::User };
        return TokenizedPrompt::of_text(model, prompt, origin);
    }
    if args.typed.has("special") {
        let sentence =
            "--special applies to a prompt that is continued as it is; add --raw, or omit --special";
        return Err(Error::call(sentence));
    }
    let variables = args.conversation.variables(model, &args.typed)?;
    let tools = args.tools.as_deref().map(tools).transpose()?;
    let conversation = Conversation { variables, tools, ..Conversation::new() };
    let conversation = match &args.conversation.system {
        Some(text) => conversation.system(text),
        None => conversation,
    };
    let mut conversation = conversation;
    conversation.messages.push(user_message(prompt, &images));
    TokenizedPrompt::of_conversation(model, &conversation, images)
}

/// The tools of a list in a file, or of the list itself.
fn tools(given: &Path) -> Result<Vec<Value>> {
    let text = json_text(given)?;
    let place = if is_json_text(given) { "--tools".into() } else { given.display().to_string() };
    let named = |fault: String| Error::call(format!("{place}: {fault}"));
    let tools: Vec<Value> = serde_json::from_str(&text)
        .map_err(|error| named(format!("is not a JSON list of tools: {}", shorten(error))))?;
    Tool::list(&tools).map_err(|error| named(error.to_string()))?;
    Ok(tools)
}
