//! From the name of a model to an engine that runs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use girih_engine::{Engine, EngineLimits};
use girih_file::ContainerKind;
use girih_graph::{Key, Variant};
use girih_hub::{HubEnv, ModelReference};
use girih_model::arch::{Arch, schema};
use girih_model::{Generation, Model};
use girih_words::{TextProcessor, Tokenizer};

use crate::args::{ArchArgs, DeviceArgs};
use crate::backends::LoadPlan;
use crate::builtin;
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};
use crate::phases::StartPhases;
use crate::progress::Show;

/// The maximum context if the user sets none.
const MAX_DEFAULT_CONTEXT: u32 = 4096;

/// The location of a model's files.
pub enum ModelLocation {
    /// In the binary.
    Builtin,
    /// On disk.
    Path(PathBuf),
}

impl ModelLocation {
    /// Finds a model by the name that the user gives.
    ///
    /// # Errors
    /// When it is an id that is not in the cache.
    pub fn find(name: &str) -> Result<ModelLocation> {
        match ModelReference::parse(name, builtin::NAMES)? {
            ModelReference::BuiltIn(_) => Ok(ModelLocation::Builtin),
            ModelReference::Path(path) => Ok(ModelLocation::Path(path)),
            ModelReference::Id(id) => {
                Ok(ModelLocation::Path(girih_hub::find(&id, &environment()?)?.path().to_owned()))
            }
        }
    }

    /// Opens the model. The architectures of `arch` come before girih's own.
    ///
    /// # Errors
    /// When the files are malformed or not supported.
    pub fn model(&self, arch: &ArchArgs) -> Result<Model> {
        // Parsed even if not needed, so that a wrong option is not ignored.
        let given = architectures(&arch.arch)?;
        match self {
            ModelLocation::Builtin => {
                Ok(Model::embedded(&builtin::STORIES, &girih_model::ModelLimits::DEFAULT)?)
            }
            ModelLocation::Path(path) => Ok(Model::open(path, given, &girih_model::ModelLimits::DEFAULT)?),
        }
    }

    /// Opens the model's tokenizer and chat template.
    ///
    /// # Errors
    /// When there is no tokenizer, or the files are malformed.
    pub fn text_processor(&self) -> Result<TextProcessor> {
        match self {
            ModelLocation::Builtin => {
                let tokenizer = Tokenizer::from_json(
                    builtin::STORIES.tokenizer.as_bytes(),
                    &girih_words::TextLimits::DEFAULT,
                )?;
                Ok(TextProcessor::new(tokenizer, None))
            }
            ModelLocation::Path(path) => Ok(TextProcessor::open(path, &girih_words::TextLimits::DEFAULT)?),
        }
    }

    /// Opens the tokenizer and chat template of `model`, which was opened from
    /// here. Reuses the header of a GGUF file.
    ///
    /// # Errors
    /// As [`ModelLocation::text_processor`].
    pub fn text_processor_of(&self, model: &Model) -> Result<TextProcessor> {
        let container = model.weights.container();
        let has_folder = model.folder().join("tokenizer.json").exists();
        match (self, container.kind()) {
            (ModelLocation::Path(path), ContainerKind::Gguf) if !(path.is_dir() && has_folder) => {
                Ok(TextProcessor::of_gguf(container.metadata(), &girih_words::TextLimits::DEFAULT)?)
            }
            _ => self.text_processor(),
        }
    }
}

/// The hub's settings from the environment.
///
/// # Errors
/// When a variable has an invalid value.
pub fn environment() -> Result<HubEnv> {
    Ok(HubEnv::from_vars(|name| std::env::var(name).ok())?)
}

fn architectures(paths: &[PathBuf]) -> Result<Vec<Arch>> {
    paths.iter().map(|path| architecture(path)).collect()
}

fn architecture(path: &Path) -> Result<Arch> {
    let text = text_file(path, DESCRIPTION_BYTES)?;
    Ok(schema::parse(&text).map_err(|error| error.of(path.display()))?)
}

/// The maximum number of tokens of a sequence of `model`.
///
/// # Errors
/// When `--context` exceeds the model's maximum.
pub fn context(model: &Model, device: &DeviceArgs) -> Result<u32> {
    let max = u32::try_from(model.facts.sizes.context).unwrap_or(u32::MAX);
    match device.context {
        None => Ok(max.min(MAX_DEFAULT_CONTEXT)),
        Some(context) if context <= max => Ok(context),
        Some(context) => {
            Err(Error::call(format!("--context {context} is too large: the model supports {max} tokens")))
        }
    }
}

/// Plans a model that runs one sequence at a time. A step yields at most
/// `output_rows` rows of logits.
///
/// # Errors
/// As [`context`] and [`LoadPlan::new`].
pub fn plan<'a>(model: &'a Model, device: &'a DeviceArgs, output_rows: u32) -> Result<LoadPlan<'a>> {
    plan_parallel(model, device, 1, output_rows)
}

/// As [`plan`], for `sequences` in parallel, each with at least one output row.
///
/// # Errors
/// As [`context`] and [`LoadPlan::new`].
pub fn plan_parallel<'a>(
    model: &'a Model,
    device: &'a DeviceArgs,
    sequences: u32,
    output_rows: u32,
) -> Result<LoadPlan<'a>> {
    let context = context(model, device)?;
    let rows = device.chunk.min(context);
    let output_rows = output_rows.max(sequences).min(rows);
    let key = Key { rows, sequences, context, output_rows, variant: Variant::GENERATE };
    LoadPlan::new(model, device, key)
}

/// Plans and loads a model.
///
/// # Errors
/// As [`plan`] and [`LoadPlan::load`].
pub fn engine(model: &Model, device: &DeviceArgs, output_rows: u32) -> Result<Engine> {
    start(&plan(model, device, output_rows)?, Show::unless(device.quiet))
}

/// Loads a planned model.
///
/// # Errors
/// As [`LoadPlan::load`].
pub fn start(plan: &LoadPlan<'_>, show: Show) -> Result<Engine> {
    Ok(Engine::new(plan.load(show)?, bounds(plan))?)
}

/// Loads a planned model while another thread runs `prepare`, which needs no
/// weights. If `prepare` fails, loading is cancelled. Records the phases of
/// loading, then `tokenizer`: the time spent waiting for `prepare`.
///
/// # Errors
/// As `prepare`, else as [`LoadPlan::load`].
pub fn start_parallel<T: Send>(
    plan: &LoadPlan<'_>,
    show: Show,
    phases: &mut StartPhases,
    prepare: impl FnOnce() -> Result<T> + Send,
) -> Result<(T, Engine)> {
    let cancelled = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let preparing = scope.spawn(|| {
            let begun = Instant::now();
            let prepared = prepare();
            cancelled.store(prepared.is_err(), Ordering::Relaxed);
            (prepared, begun.elapsed())
        });
        let runner = plan.load_unless(&cancelled, show);
        if let Ok(runner) = &runner {
            phases.end_load(&**runner);
        }
        let (prepared, time) = preparing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        phases.end_parallel("tokenizer", time);
        // The error of `prepare` is the reason why loading was cancelled.
        let prepared = prepared?;
        Ok((prepared, Engine::new(runner?, bounds(plan))?))
    })
}

/// The limits of the engine that `plan` loads.
pub fn bounds(plan: &LoadPlan<'_>) -> EngineLimits {
    let Key { rows, sequences, context, .. } = plan.key;
    EngineLimits { sequences, ..EngineLimits::new(context, rows) }
}

/// A note with the generation settings that sampling uses.
pub fn generation_note(generation: &Generation) -> String {
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
