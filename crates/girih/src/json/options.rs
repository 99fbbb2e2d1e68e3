//! How a model is opened and run, from JSON.

use std::path::PathBuf;

use girih_graph::description::BackendChoice;
use girih_graph::{Result, STATE_TYPES};
use girih_tensor::DType;
use girih_words::reply::ReplyStyle;
use serde_json::Value;

use super::fields::{JsonFields, refused};
use crate::backends::backend;
use crate::drafts::Drafts;
use crate::model::Model;
use crate::open_options::{AdapterSource, OpenOptions, SyncProcess, TemplateProcess};
use crate::run_options::{PromptCache, RunOptions};

/// Returns the value of a variable.
type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The options for opening a model: `variables` (those of the environment that girih may read), `program` (a girih that
/// renders chat templates and waits for the disk in a process of its own), `cache` (the folder of packed weights),
/// `chat_template`, `reply_style`, `adapters` (names and paths), `projector`, `allow_key`, `pack` (`q8_0`) and `architectures`
/// (descriptions in TOML).
///
/// ```
/// let options = girih::json::open_options(&serde_json::json!({ "chat_template": "{{ messages[0].content }}" }))?;
/// assert!(options.chat_template.is_some());
/// assert!(girih::json::open_options(&serde_json::json!({ "chat_templat": "" })).is_err());
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// When a field is unknown or has a wrong value.
pub fn open_options(value: &Value) -> Result<OpenOptions> {
    let mut fields = JsonFields::new("options of opening", value)?;
    let options = taken_open(&mut fields, None)?;
    fields.finish()?;
    Ok(options)
}

/// The options of [`open_options`] and of [`run_options`] in one object, and `environment`: whether variables are those of
/// `environment` and not the field `variables`.
///
/// ```
/// let value = serde_json::json!({ "cache": "packed", "threads": 2 });
/// let (open, run) = girih::json::options(&value, &|_| None)?;
/// assert_eq!((open.cache, run.backend.settings().threads), (Some("packed".into()), Some(2)));
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// As these, and when there are variables and an environment.
pub fn options(
    value: &Value,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<(OpenOptions, RunOptions)> {
    let mut fields = JsonFields::new("options", value)?;
    let reads_environment = fields.flag("environment")?;
    if reads_environment && value.get("variables").is_some_and(|variables| !variables.is_null()) {
        return Err(refused("options: environment and variables exclude each other; give one".to_owned()));
    }
    let open = taken_open(&mut fields, reads_environment.then_some(environment))?;
    let run = taken_run(&mut fields, &open)?;
    fields.finish()?;
    Ok((open, run))
}

/// The options for opening among these fields, with the variables of an environment or of a field.
fn taken_open(fields: &mut JsonFields, environment: Option<Variables<'_>>) -> Result<OpenOptions> {
    let text = |key: &str, value: &Value| Some((key.to_owned(), value.as_str()?.to_owned()));
    let variables = fields.entries("variables", "an object of texts", text)?;
    let given = |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let options = OpenOptions::from_vars(environment.unwrap_or(&given));
    let program = fields.text("program")?.map(PathBuf::from);
    let worker = |program: PathBuf, command: &str| (program, vec![command.into()]);
    let templates = program.clone().map_or(TemplateProcess::Own, |program| {
        let (program, arguments) = worker(program, girih_words::template::WORKER_COMMAND);
        TemplateProcess::Worker { program, arguments }
    });
    let sync = program.map_or(SyncProcess::Own, |program| {
        let (program, arguments) = worker(program, crate::sync_worker::SYNC_COMMAND);
        SyncProcess::Worker { program, arguments }
    });
    let style = fields.text("reply_style")?;
    let adapters = fields.entries("adapters", "an object of names and paths", |name, path| {
        Some(AdapterSource { name: name.to_owned(), path: path.as_str()?.into() })
    })?;
    let options = OpenOptions {
        templates,
        sync,
        chat_template: fields.text("chat_template")?,
        reply_style: style.map(|name| ReplyStyle::named(&name)).transpose()?,
        projector: fields.text("projector")?.map(PathBuf::from),
        adapters,
        allow_key: fields.texts("allow_key")?,
        pack: named_type(fields, "pack", &[DType::Q8_0])?,
        cache: fields.text("cache")?.map(PathBuf::from).or(options.cache.clone()),
        ..options
    };
    let descriptions = fields.texts("architectures")?;
    descriptions.iter().try_fold(options, |options, description| options.architecture(description))
}

/// How a model is run: the fields of [`RunOptions`] but `images`, `given_rows` and `cache_observer`, which no request in JSON has, with `backend` as `name` or `name:device`, its `backend_options` and
/// `threads` beside it, `max_wait` and `step_time` in seconds, and `drafts` as `off`, `prompt-lookup`, `mtp` or `{"model": NAME}`, which is opened
/// with `open`.
///
/// ```
/// use girih::OpenOptions;
///
/// let options = serde_json::json!({ "sequences": 4, "context": 2048, "kv": "f32" });
/// let options = girih::json::run_options(&options, &OpenOptions::default())?;
/// assert_eq!((options.sequences, options.context), (4, Some(2048)));
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// When a field is unknown or has a wrong value, or the drafting model cannot be opened.
pub fn run_options(value: &Value, open: &OpenOptions) -> Result<RunOptions> {
    let mut fields = JsonFields::new("options of running", value)?;
    let options = taken_run(&mut fields, open)?;
    fields.finish()?;
    Ok(options)
}

/// The options for running among these fields.
fn taken_run(fields: &mut JsonFields, open: &OpenOptions) -> Result<RunOptions> {
    let default = RunOptions::default();
    Ok(RunOptions {
        backend: choice(fields)?,
        kv: named_type(fields, "kv", &STATE_TYPES)?,
        context: fields.count("context")?,
        chunk: fields.count("chunk")?.unwrap_or(default.chunk),
        sequences: fields.count("sequences")?.unwrap_or(default.sequences),
        waiting: fields.u32("waiting")?.unwrap_or(default.waiting),
        max_wait: fields.seconds("max_wait")?,
        step_time: fields.seconds("step_time")?,
        tenant_waiting: fields.u32("tenant_waiting")?.unwrap_or(default.tenant_waiting),
        tenant_requests: fields.u32("tenant_requests")?.unwrap_or(default.tenant_requests),
        output_rows: fields.u32("output_rows")?.unwrap_or(default.output_rows),
        drafts: drafts(fields, open)?,
        draft_max: fields.u32("draft_max")?.unwrap_or(default.draft_max),
        prompt_cache: prompt_cache(fields)?,
        unread_events: fields.u32("unread_events")?.unwrap_or(default.unread_events),
        given_rows: false,
        images: false,
        cache_observer: None,
    })
}

fn choice(fields: &mut JsonFields) -> Result<BackendChoice> {
    let named = fields.text("backend")?.map(|name| backend(&name)).transpose()?;
    let mut choice = named.unwrap_or_else(|| RunOptions::default().backend);
    let text = |name: &str, value: &Value| Some((name.to_owned(), value.as_str()?.to_owned()));
    for (name, value) in fields.entries("backend_options", "an object of texts", text)? {
        choice = choice.with(&name, &value)?;
    }
    match fields.u32("threads")? {
        Some(0) => Err(refused("0 threads were requested; request at least 1".to_owned())),
        threads => Ok(choice.with_threads(threads.map(|threads| threads as usize))),
    }
}

/// A field that names one of these types.
fn named_type(fields: &mut JsonFields, field: &'static str, types: &[DType]) -> Result<Option<DType>> {
    let names: Vec<&str> = types.iter().map(|kind| kind.name()).collect();
    let named = |value: &Value| types.iter().copied().find(|kind| Some(kind.name()) == value.as_str());
    fields.read(field, &format!("one of {}", names.join(", ")), named)
}

fn drafts(fields: &mut JsonFields, open: &OpenOptions) -> Result<Drafts> {
    let Some(value) = fields.take("drafts") else { return Ok(Drafts::Off) };
    match value.as_str() {
        Some("off") => Ok(Drafts::Off),
        Some("prompt-lookup") => Ok(Drafts::PromptLookup),
        Some("mtp") => Ok(Drafts::Mtp),
        None if value.is_object() => {
            let mut model = JsonFields::new("drafts", &value)?;
            let name = model.text("model")?.unwrap_or_default();
            model.finish()?;
            // Adapters, templates, packing and the projector are those of the model that is drafted for.
            let own = OpenOptions {
                chat_template: None,
                reply_style: None,
                projector: None,
                adapters: Vec::new(),
                pack: None,
                ..open.clone()
            };
            Ok(Drafts::Model(Model::open_with(&name, &own)?))
        }
        _ => Err(fields.wrong("drafts", &value, "off, prompt-lookup, mtp, or {\"model\": NAME}")),
    }
}

fn prompt_cache(fields: &mut JsonFields) -> Result<Option<PromptCache>> {
    let Some(value) = fields.take("prompt_cache") else { return Ok(None) };
    let mut cache = JsonFields::new("prompt_cache", &value)?;
    let (folder, limit) = (cache.text("folder")?, cache.u64("limit")?);
    cache.finish()?;
    match (folder, limit) {
        (Some(folder), Some(limit)) => Ok(Some(PromptCache { folder: folder.into(), limit })),
        _ => Err(refused("prompt_cache: it needs a folder and a limit in bytes".to_owned())),
    }
}
