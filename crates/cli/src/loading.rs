//! From what a user calls a model to an engine that runs it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use girih_engine::{Engine, Limits as Bounds};
use girih_graph::{Key, Variant};
use girih_model::arch::{Arch, schema};
use girih_model::file::Kind;
use girih_model::hub::{self, HubEnv, Reference};
use girih_model::words::{Tokenizer, Words};
use girih_model::{Generation, Limits, Model};

use crate::args::{ArchArgs, DeviceArgs};
use crate::backends::Layout;
use crate::builtin;
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};
use crate::phases::Phases;
use crate::progress::Show;

/// The longest context that is set up without being asked for.
const CONTEXT: u32 = 4096;

/// Where a model's files are.
pub enum Place {
    /// In the program.
    Builtin,
    /// On disk.
    Path(PathBuf),
}

impl Place {
    /// Where the model is that a user calls `name`.
    ///
    /// # Errors
    /// When it is an id that is not in the cache.
    pub fn find(name: &str) -> Result<Place> {
        match Reference::parse(name, builtin::NAMES)? {
            Reference::BuiltIn(_) => Ok(Place::Builtin),
            Reference::Path(path) => Ok(Place::Path(path)),
            Reference::Id(id) => Ok(Place::Path(hub::find(&id, &environment()?)?.path().to_owned())),
        }
    }

    /// Opens the model, with the architectures of `arch` before girih's own.
    ///
    /// # Errors
    /// When the files are not well formed or not supported.
    pub fn model(&self, arch: &ArchArgs) -> Result<Model> {
        // Read even where they are not needed: a wrong option is never ignored.
        let given = architectures(&arch.arch)?;
        match self {
            Place::Builtin => Ok(Model::embedded(&builtin::STORIES, &Limits::DEFAULT)?),
            Place::Path(path) => Ok(Model::open(path, given, &Limits::DEFAULT)?),
        }
    }

    /// Opens the model's words.
    ///
    /// # Errors
    /// When there are none, or they are not well formed.
    pub fn words(&self) -> Result<Words> {
        match self {
            Place::Builtin => {
                let tokenizer =
                    Tokenizer::from_json(builtin::STORIES.tokenizer.as_bytes(), &Limits::DEFAULT)?;
                Ok(Words::new(tokenizer, None))
            }
            Place::Path(path) => Ok(Words::open(path, &Limits::DEFAULT)?),
        }
    }

    /// The words of `model`, which was opened here: a header that holds both
    /// is not read a second time.
    ///
    /// # Errors
    /// As [`Place::words`].
    pub fn words_of(&self, model: &Model) -> Result<Words> {
        let container = model.weights.container();
        let has_folder = model.folder().join("tokenizer.json").exists();
        match (self, container.kind()) {
            (Place::Path(path), Kind::Gguf) if !(path.is_dir() && has_folder) => {
                Ok(Words::of_gguf(container.metadata(), &Limits::DEFAULT)?)
            }
            _ => self.words(),
        }
    }
}

/// What the environment says of the hub.
///
/// # Errors
/// When a variable is not what it must be.
pub fn environment() -> Result<HubEnv> {
    Ok(HubEnv::from_vars(|name| std::env::var(name).ok())?)
}

/// Reads descriptions of architectures.
fn architectures(paths: &[PathBuf]) -> Result<Vec<Arch>> {
    paths.iter().map(|path| architecture(path)).collect()
}

fn architecture(path: &Path) -> Result<Arch> {
    let text = text_file(path, DESCRIPTION_BYTES)?;
    Ok(schema::parse(&text).map_err(|error| error.of(path.display()))?)
}

/// How many tokens a sequence of `model` may have.
///
/// # Errors
/// When more are asked for than the model was made for.
pub fn context(model: &Model, device: &DeviceArgs) -> Result<u32> {
    let made_for = u32::try_from(model.facts.sizes.context).unwrap_or(u32::MAX);
    match device.context {
        None => Ok(made_for.min(CONTEXT)),
        Some(asked) if asked <= made_for => Ok(asked),
        Some(asked) => Err(Error::call(format!(
            "--context {asked} was asked for; the model was made for {made_for} tokens"
        ))),
    }
}

/// How a model will run, one sequence at a time, that hands out at most
/// `output_rows` rows of logits a step.
///
/// # Errors
/// As [`context`] and [`Layout::new`].
pub fn layout<'a>(model: &'a Model, device: &'a DeviceArgs, output_rows: u32) -> Result<Layout<'a>> {
    layout_together(model, device, 1, output_rows)
}

/// As [`layout`], for so many sequences together; each wants a row of logits.
///
/// # Errors
/// As [`context`] and [`Layout::new`].
pub fn layout_together<'a>(
    model: &'a Model,
    device: &'a DeviceArgs,
    sequences: u32,
    output_rows: u32,
) -> Result<Layout<'a>> {
    let context = context(model, device)?;
    let rows = device.chunk.min(context);
    let key = Key {
        rows,
        sequences,
        context,
        output_rows: output_rows.max(sequences).min(rows),
        variant: Variant::GENERATE,
    };
    Layout::new(model, device, key)
}

/// A loaded engine.
///
/// # Errors
/// As [`layout`] and [`Layout::load`].
pub fn engine<'w>(model: &Model, device: &DeviceArgs, output_rows: u32) -> Result<Engine<'w>> {
    start(&layout(model, device, output_rows)?, Show::unless(device.quiet))
}

/// Loads what was laid out.
///
/// # Errors
/// As [`Layout::load`].
pub fn start<'w>(layout: &Layout<'_>, show: Show) -> Result<Engine<'w>> {
    Ok(Engine::new(layout.load(show)?, bounds(layout))?)
}

/// Loads what was laid out while another thread does what needs no weights:
/// `prepare`, whose failure ends the loading. The phases of loading end, and
/// then one called `tokenizer`, which is what was still to be waited for.
///
/// # Errors
/// As `prepare`, else as [`Layout::load`].
pub fn start_beside<'w, T: Send>(
    layout: &Layout<'_>,
    show: Show,
    phases: &mut Phases,
    prepare: impl FnOnce() -> Result<T> + Send,
) -> Result<(T, Engine<'w>)> {
    let abandoned = Arc::new(AtomicBool::new(false));
    thread::scope(|scope| {
        let preparing = scope.spawn(|| {
            let begun = Instant::now();
            let prepared = prepare();
            abandoned.store(prepared.is_err(), Ordering::Relaxed);
            (prepared, begun.elapsed())
        });
        let runner = layout.load_unless(&abandoned, show);
        if let Ok(runner) = &runner {
            phases.end_load(&**runner);
        }
        let (prepared, time) = preparing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        phases.end_beside("tokenizer", time);
        // What was prepared explains why loading ended.
        let prepared = prepared?;
        Ok((prepared, Engine::new(runner?, bounds(layout))?))
    })
}

/// What a request may ask of the engine that `layout` leads to.
pub fn bounds(layout: &Layout<'_>) -> Bounds {
    let Key { rows, sequences, context, .. } = layout.key;
    Bounds { sequences, ..Bounds::new(context, rows) }
}

/// The tokens that end a text: those of generation_config.json, and the
/// tokenizer's own.
pub fn stop_tokens(model: &Model, words: &Words) -> Vec<u32> {
    let listed = model.generation.as_ref().map(|generation| generation.eos_token_id.list().to_vec());
    let metadata = model.weights.container().metadata();
    let turn = metadata.get::<u32>("tokenizer.ggml.eot_token_id").ok().flatten();
    let mut tokens: Vec<u32> = listed.unwrap_or_default();
    tokens.extend(words.tokenizer.named().eos.into_iter().chain(turn));
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// The part of a model's generation settings that sampling uses, for a note.
pub fn described(generation: &Generation) -> String {
    let mut parts = Vec::new();
    let mut say =
        |name: &str, value: Option<String>| parts.extend(value.map(|value| format!("{name} {value}")));
    say("do_sample", generation.do_sample.map(|value| value.to_string()));
    say("temperature", generation.temperature.map(|value| value.to_string()));
    say("top_k", generation.top_k.map(|value| value.to_string()));
    say("top_p", generation.top_p.map(|value| value.to_string()));
    say("min_p", generation.min_p.map(|value| value.to_string()));
    say("repetition_penalty", generation.repetition_penalty.map(|value| value.to_string()));
    say("eos", Some(format!("{:?}", generation.eos_token_id.list())));
    format!("generation_config.json: {}", parts.join(", "))
}
