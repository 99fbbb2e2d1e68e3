//! From the arguments of a command to a model, its plan and an engine that runs it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

use girih::{
    BUILT_IN, BUILT_IN_TEMPLATE, DefaultRounding, Engine, Model, OpenOptions, Plan, Progress, RunOptions,
    SYNC_COMMAND, Session, SyncProcess, TemplateProcess,
};
use girih_hub::HubEnv;
use girih_model::arch::ArchOptions;
use girih_model::{GenerationConfig, ModelLimits, ModelShape};
use girih_words::TextProcessor;
use girih_words::template::WORKER_COMMAND;

use crate::args::{ArchArgs, DeviceArgs, KvType, ModelArgs, PromptCacheArgs};
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};
use crate::model_name;
use crate::pack_args::PackArgs;
use crate::progress::{Bar, Show, Unit};
use crate::template_args::TemplateArgs;
use crate::typed_options::TypedOptions;

/// The options from the environment: downloaded models, kept files; chat templates are
/// rendered, and the end of packed weights is awaited, by worker processes of this same program.
///
/// # Errors
/// When the path of this program is unknown.
pub fn open_options() -> Result<OpenOptions> {
    let worker = TemplateProcess::Worker { program: own_program()?, arguments: vec![WORKER_COMMAND.into()] };
    let sync = SyncProcess::Worker { program: own_program()?, arguments: vec![SYNC_COMMAND.into()] };
    Ok(OpenOptions { templates: worker, sync, ..OpenOptions::from_vars(|name| std::env::var(name).ok()) })
}

/// This program, also when its file has been replaced by another version since it was started: what the
/// kernel calls `/proc/self/exe`.
///
/// # Errors
/// When the kernel does not tell, and the path is unknown.
pub fn own_program() -> io::Result<PathBuf> {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { Ok(running) } else { std::env::current_exe() }
}

/// The hub's settings from the environment.
///
/// # Errors
/// When a variable has an invalid value.
pub fn environment() -> Result<HubEnv> {
    Ok(open_options()?.hub?)
}

/// Opens the model of this name. The architectures of `arch` come before girih's own.
///
/// # Errors
/// When it is an id that is not in the cache, or the files are malformed or not supported.
pub fn open(name: &str, arch: &ArchArgs) -> Result<Model> {
    open_with(name, arch, open_options()?)
}

/// Opens the model of this name for replies, with its own chat template or another one.
///
/// # Errors
/// As [`open`], and when the file of the template cannot be read.
pub fn open_for_replies(name: &str, arch: &ArchArgs, template: &TemplateArgs) -> Result<Model> {
    open_with(name, arch, with_template(template, open_options()?)?)
}

/// As [`open_for_replies`]. The built-in model, which has no chat template, gets one that continues
/// a story.
///
/// # Errors
/// As [`open_for_replies`].
pub fn open_for_chat(name: &str, arch: &ArchArgs, template: &TemplateArgs) -> Result<Model> {
    let model = open_for_replies(name, arch, template)?;
    if model.name() != BUILT_IN || template.has_template() {
        return Ok(model);
    }
    open_with(
        name,
        arch,
        OpenOptions { chat_template: built_in_template(), ..with_template(template, open_options()?)? },
    )
}

/// The options for a server's model from `source`, as [`open_for_chat`] opens it.
///
/// # Errors
/// When a description or the template cannot be read, or as [`open_options`].
pub fn open_options_for_chat(source: &str, arch: &ArchArgs, template: &TemplateArgs) -> Result<OpenOptions> {
    let mut options = with_template(template, open_options_with(arch)?)?;
    if source == BUILT_IN && !template.has_template() {
        options.chat_template = built_in_template();
    }
    Ok(options)
}

/// The template that continues a story.
fn built_in_template() -> Option<String> {
    Some(BUILT_IN_TEMPLATE.to_owned())
}

/// The options with the chat template and the style of replies that the user has chosen.
fn with_template(template: &TemplateArgs, options: OpenOptions) -> Result<OpenOptions> {
    Ok(OpenOptions { chat_template: template.source()?, reply_style: template.reply_style, ..options })
}

/// As [`open_options`], with the architectures of `arch` before girih's own.
///
/// # Errors
/// When a description cannot be read, or as [`open_options`].
pub fn open_options_with(arch: &ArchArgs) -> Result<OpenOptions> {
    with_architectures(arch, open_options()?)
}

/// Reads what a model's `config.json` alone determines, without its weights.
///
/// # Errors
/// When the file is malformed, or needs more than it states.
pub fn open_shape(path: &Path, arch: &ArchArgs) -> Result<ModelShape> {
    let OpenOptions { architectures, allow_key, .. } = with_architectures(arch, open_options()?)?;
    let options = ArchOptions { architectures, allow_keys: allow_key };
    Ok(ModelShape::open(path, options, &ModelLimits::DEFAULT)?)
}

/// The options with the architectures that the user has described.
fn with_architectures(arch: &ArchArgs, options: OpenOptions) -> Result<OpenOptions> {
    let (allow_key, adapters) = (arch.allow_key.clone(), arch.adapters.clone());
    let (projector, pack) = (arch.mmproj.clone(), arch.pack);
    let mut options = OpenOptions { allow_key, adapters, projector, pack, ..options };
    for path in &arch.arch {
        let text = text_file(path, DESCRIPTION_BYTES)?;
        options = options.architecture(&text).map_err(|error| error.of(path.display()))?;
    }
    Ok(options)
}

fn open_with(name: &str, arch: &ArchArgs, options: OpenOptions) -> Result<Model> {
    let options = with_architectures(arch, options)?;
    let name = &model_name::resolved(name)?;
    Model::open_with(name, &options).map_err(|error| model_name::with_nearest(error, name, &options).into())
}

/// Opens only the tokenizer and the chat template of the model of this name.
///
/// # Errors
/// As [`open`], and when there is no tokenizer.
pub fn open_text_processor(name: &str, options: &OpenOptions) -> Result<TextProcessor> {
    let name = &model_name::resolved(name)?;
    let opened = Model::text_processor_of(name, options);
    opened.map_err(|error| model_name::with_nearest(error, name, options).into())
}

/// Opens the model of a command.
///
/// # Errors
/// As [`open`].
pub fn open_model(args: &ModelArgs) -> Result<Model> {
    open(&args.model, &args.arch)
}

/// Opens the model of `args` with weights packed as `pack` says.
///
/// # Errors
/// As [`open`].
pub fn open_packed(args: &ModelArgs, pack: PackArgs) -> Result<Model> {
    open(&args.model, &pack.applied(args.arch.clone()))
}

/// The options of a model that runs one sequence at a time.
///
/// # Errors
/// When an option of the backend is not valid.
pub fn options(device: &DeviceArgs) -> Result<RunOptions> {
    Ok(RunOptions {
        backend: device.backend.choice()?.with_threads(device.threads.map(usize::from)),
        kv: device.kv.map(KvType::dtype),
        context: device.context,
        chunk: device.chunk,
        ..RunOptions::default()
    })
}

/// As [`options`], for commands that measure a model: the processor does not decide the rounding.
///
/// # Errors
/// As [`options`].
pub fn options_for_measuring(device: &DeviceArgs) -> Result<RunOptions> {
    let options = options(device)?;
    let backend = options.backend.with_default_rounding(DefaultRounding::Fixed);
    Ok(RunOptions { backend, ..options })
}

/// Plans a model that runs one sequence at a time. A step yields at most
/// `output_rows` rows of logits.
///
/// # Errors
/// As [`options`] and [`Model::plan`].
pub fn plan(model: &Model, device: &DeviceArgs, output_rows: u32) -> Result<Plan> {
    Ok(model.plan(RunOptions { output_rows, ..options(device)? })?)
}

/// As [`options`], with a prompt cache. The built-in model has none: that is an error only if
/// --prompt-cache is `typed`.
///
/// # Errors
/// As [`options`].
pub fn options_with_prompts(
    model: &Model,
    device: &DeviceArgs,
    prompts: &PromptCacheArgs,
    typed: &TypedOptions,
) -> Result<RunOptions> {
    if prompts.prompt_cache.is_none() && typed.has("prompt-cache-limit") {
        return Err(Error::call(
            "--prompt-cache-limit limits the prompt cache, but there is none; add --prompt-cache DIR, or omit it",
        ));
    }
    let applies = model.name() != BUILT_IN || typed.has("prompt-cache");
    let prompt_cache = if applies { prompts.cache() } else { None };
    Ok(RunOptions { prompt_cache, ..options(device)? })
}

/// Loads a planned model on this thread. It runs with its first adapter, if it has some.
///
/// # Errors
/// As [`Plan::load`].
pub fn engine(plan: Plan, show: Show) -> Result<Engine> {
    let (bar, watch) = watch(show);
    let engine = with_first_adapter(plan.load(watch)?)?;
    bar.finish_and_clear();
    Ok(engine)
}

/// As [`engine`], with the notes in place of printing them. Some may come until the engine is
/// dropped.
///
/// # Errors
/// As [`Plan::load`].
pub fn engine_with_notes(plan: Plan, show: Show) -> Result<(Engine, Receiver<String>)> {
    let (sender, notes) = channel();
    let (bar, watch) = watch_with(show, move |note| {
        // Without a receiver, the command has failed.
        let _ = sender.send(note);
    });
    let engine = with_first_adapter(plan.load(watch)?)?;
    bar.finish_and_clear();
    Ok((engine, notes))
}

fn with_first_adapter(mut engine: Engine) -> Result<Engine> {
    let first = (engine.adapters() > 0).then_some(0);
    engine.set_adapter(first)?;
    Ok(engine)
}

/// Loads a planned model on a thread of its own.
///
/// # Errors
/// As [`Plan::start`].
pub fn session(plan: Plan, show: Show) -> Result<Session> {
    let (bar, watch) = watch(show);
    let session = plan.start(watch)?;
    bar.finish_and_clear();
    Ok(session)
}

/// A bar, and a function that moves it and shows notes.
pub fn watch(show: Show) -> (Bar, impl Fn(Progress) + Send + Sync + 'static) {
    watch_with(show, move |note| show.note(note))
}

/// As [`watch`], with a function that gets the notes.
fn watch_with(
    show: Show,
    note: impl Fn(String) + Send + Sync + 'static,
) -> (Bar, impl Fn(Progress) + Send + Sync + 'static) {
    let bar = show.bar("loading", 0, Unit::Bytes);
    let (moved, furthest) = (bar.clone(), AtomicU64::new(0));
    let watch = move |progress| match progress {
        Progress::Weights { done, total } => {
            moved.set(furthest.fetch_max(done, Ordering::Relaxed).max(done), total);
        }
        Progress::Note(sentence) => moved.pause(|| note(sentence)),
        Progress::Detail(sentence) => moved.pause(|| show.detail(sentence)),
        _ => {}
    };
    (bar, watch)
}

/// Sentences about the work that falls back to the host, with reasons, and about the backend.
///
/// # Errors
/// When a graph cannot be made.
pub fn host_work(plan: &Plan) -> Result<Vec<String>> {
    let sentence = |(work, rows): (girih::HostWork, Vec<u32>)| {
        let girih::HostWork { name, op, count, reason } = work;
        let rows = rows.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        format!("the host computes {count} x {name} ({op}) in steps of {rows} rows: {reason}")
    };
    let notes = plan.backend().info().notes.iter().map(|note| (*note).to_owned());
    Ok(plan.host_work()?.into_iter().map(sentence).chain(notes).collect())
}

/// A note with the generation settings that sampling uses.
pub fn generation_note(generation: &GenerationConfig) -> String {
    let mut parts = Vec::new();
    let mut add =
        |name: &str, value: Option<String>| parts.extend(value.map(|value| format!("{name} {value}")));
    add("do_sample", generation.do_sample.map(|value| value.to_string()));
    add("temperature", generation.temperature.map(|value| value.to_string()));
    add("top_k", generation.top_k.map(|value| value.to_string()));
    add("top_p", generation.top_p.map(|value| value.to_string()));
    add("min_p", generation.min_p.map(|value| value.to_string()));
    add("repetition_penalty", generation.repetition_penalty.map(|value| value.to_string()));
    add("eos", Some(format!("{:?}", generation.eos_token_id.list())));
    format!("generation_config.json: {}", parts.join(", "))
}
