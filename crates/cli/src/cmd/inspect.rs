//! `girih inspect`: a model's facts, weights and memory needs, without loading it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use girih::tools::{FreeMemory, device_room, memory_json};
use girih::{
    Conversation, DType, ErrorKind, MemoryPlan, Model, Plan, PoolBytes, Refusal, RunOptions, TowerPlan,
};
use girih_file::{ContainerKind, quote};
use girih_graph::{BLOCK_POSITIONS, StateGroup, StateKind};
use girih_measure::{Duplicates, RepeatedParts, duplicates};
use girih_model::arch::{schema, shipped_text};
use girih_model::{ModelFiles, ModelLimits};
use girih_words::TextProcessor;
use serde_json::{Map, Value, json};

use super::outcome::Outcome;
use super::template_digest::TemplateDigest;
use crate::adapter_args::AdapterArgs;
use crate::args::{ArchArgs, DeviceArgs};
use crate::error::{Error, Result};
use crate::images;
use crate::input::{DESCRIPTION_BYTES, text_file};
use crate::loading;
use crate::output::{bytes, counted, print, print_json, print_note};
use crate::pack_args::PackArgs;

/// The maximum number of values of a list that a line shows.
const LISTED: usize = 8;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// As for the other commands; without it, `--arch` names a description to print: one of girih's own, or a file.
    #[arg(required_unless_present = "arch")]
    model: Option<String>,
    #[command(flatten)]
    arch: ArchArgs,
    #[command(flatten)]
    adapters: AdapterArgs,
    #[command(flatten)]
    pack: PackArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// List every weight.
    #[arg(long)]
    tensors: bool,
    /// Read all weights and show how much of them repeats, by the size of the parts.
    #[arg(long, conflicts_with = "graph")]
    duplicates: bool,
    /// Print the graph of the largest step.
    #[arg(long)]
    graph: bool,
    /// Print a description for a model folder of an unknown architecture, with what girih could not decide.
    #[arg(long, requires = "model", conflicts_with_all = ["graph", "json", "tensors", "arch"])]
    suggest_arch: bool,
    /// Compare the chat template with that of this folder [default: the folder of a .gguf file].
    #[arg(long, value_name = "FOLDER", requires = "model", conflicts_with = "graph")]
    source: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, conflicts_with = "graph")]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let Some(model) = &args.model else { return print_descriptions(&args.arch) };
    if args.suggest_arch {
        return suggest_arch(Path::new(model));
    }
    let model = loading::open(model, &args.pack.applied(args.adapters.beside(&args.arch)))?;
    if model.files().facts.assistant.is_some() && !args.graph {
        return inspect_assistant(model.files(), args);
    }
    let plan = loading::plan(&model, &args.device, 1)?;
    if args.graph {
        print(plan.graph())?;
        return Ok(Outcome::Done);
    }
    let support = TextSupport::of(&model, args.source.as_deref())?;
    let ended = if support.is_usable() { Outcome::Done } else { Outcome::Failed };
    let has_tower = args.arch.mmproj.is_some() || images::has_tower(&model);
    let has_tower = has_tower && model.files().may_have_tower();
    let tower = has_tower.then(|| tower_sentence(&model, plan.options()));
    let model = model.files();
    let refusals = plan.refusals().into_iter().map(|Refusal { node, reason }| format!("{node}: {reason}"));
    let (backend, refusals) = (plan.description(), refusals.collect::<Vec<_>>());
    let (activations, machine_default) = (plan.numerics().name(), plan.machine_default());
    let needed = plan.memory();
    let free = FreeMemory::now();
    let repeated = args.duplicates.then(|| duplicates(model.weights.container())).transpose()?;
    if args.json {
        print_json(&json!({
            "facts": facts(model),
            "files": model.weights.container().paths().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "storage": storage(model),
            "tensors": args.tensors.then(|| tensors(model)),
            "duplicates": repeated.as_ref().map(duplicates_json),
            "key": plan.key().to_string(),
            "backend": backend,
            "activations": activations,
            "machine_default": machine_default,
            "refusals": refusals,
            "image_tower": tower,
            "ignored_keys": model.ignored_keys(),
            "state": state(&plan),
            "memory": memory_json(&needed, free),
            "tokenizer": support.tokenizer.json(),
            "chat_template": support.template.json(),
            "chat_template_digest": support.digest.as_ref().map(TemplateDigest::json),
        }))?;
        return Ok(ended);
    }
    print_facts(model)?;
    if let Some(sentence) = &tower {
        print_line!("{sentence}")?;
    }
    for key in model.ignored_keys() {
        print_line!("ignored key: {}", quote(key))?;
    }
    support.print()?;
    print_weights(model, args.tensors, repeated.as_ref())?;
    print_line!("largest step: {}", plan.key())?;
    print_line!("backend: {backend}")?;
    print_line!("activations: {activations}")?;
    if let Some(sentence) = &machine_default {
        print_line!("default on this machine: {sentence}")?;
    }
    for refusal in &refusals {
        print_line!("refused: {refusal}")?;
    }
    print_memory(&plan, &needed, free)?;
    Ok(ended)
}

/// Prints how the weights are stored, perhaps each of them, and what repeats if that was counted.
fn print_weights(model: &ModelFiles, lists: bool, repeated: Option<&Duplicates>) -> Result<()> {
    for (dtype, (count, size)) in storage(model) {
        print_line!("{count:>6} tensors {dtype:<6} {}", bytes(size))?;
    }
    if lists {
        print_tensors(model)?;
    }
    repeated.map_or(Ok(()), print_duplicates)
}

fn duplicates_json(found: &Duplicates) -> Value {
    let parts = found.parts.iter().map(|RepeatedParts { part, count, repeated }| {
        json!({"part": part, "count": count, "repeated_bytes": repeated})
    });
    json!({"bytes": found.bytes, "parts": parts.collect::<Vec<_>>(), "pairs": found.pairs})
}

fn print_duplicates(found: &Duplicates) -> Result<()> {
    for RepeatedParts { part, count, repeated } in &found.parts {
        let parts = counted(*count, "part");
        match repeated {
            Some(repeated) => {
                let share = 100.0 * *repeated as f64 / found.bytes.max(1) as f64;
                print_line!("repeated by {part:<15} {share:>6.2} % of {}, {parts}", bytes(found.bytes))?;
            }
            None => print_line!("repeated by {part:<15} not compared: {parts} are too many")?,
        }
    }
    for (name, first) in &found.pairs {
        print_line!("{} equals {}", quote(name), quote(first))?;
    }
    Ok(())
}

/// What the image tower of a model reads and takes, or why it cannot run.
fn tower_sentence(model: &Model, options: &RunOptions) -> String {
    let plan = match TowerPlan::new(model, options) {
        Ok(plan) => plan,
        Err(error) => return format!("image tower: {error}"),
    };
    let (facts, layers) = (plan.facts(), plan.files().facts.layers.len());
    let (patch, rows) = (facts.patch, facts.max_rows());
    let size = match facts.image {
        Some(side) => format!("{side} x {side} pixels"),
        None => "images of any size".to_owned(),
    };
    let most = if facts.image.is_none() { "at most " } else { "" };
    let image = match facts.tiled_edge {
        None => "an image".to_owned(),
        Some(edge) => format!(
            "a tile (of pictures with {edge} pixels at the longer side, unless the model's files say another size)"
        ),
    };
    let memory = bytes(plan.memory().total());
    format!(
        "image tower: {size} in patches of {patch}, {layers} layers, {most}{rows} tokens {image}; memory {memory} \
         with the first image"
    )
}

/// Prints what an assistant is: how it runs depends on the model that it drafts for.
fn inspect_assistant(model: &ModelFiles, args: &Args) -> Result<Outcome> {
    if args.source.is_some() {
        return Err(Error::call(
            "--source compares chat templates, and the model is an assistant, which has none: omit it",
        ));
    }
    if args.json {
        print_json(&json!({
            "facts": facts(model),
            "files": model.weights.container().paths().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "storage": storage(model),
            "tensors": args.tensors.then(|| tensors(model)),
            "refusals": [],
            "ignored_keys": model.ignored_keys(),
        }))?;
        return Ok(Outcome::Done);
    }
    print_facts(model)?;
    for (dtype, (count, size)) in storage(model) {
        print_line!("{count:>6} tensors {dtype:<6} {}", bytes(size))?;
    }
    if args.tensors {
        print_tensors(model)?;
    }
    print_line!("it drafts for another model, with --draft, and has no plan of its own")?;
    Ok(Outcome::Done)
}

/// Prints each weight with its format and shape.
fn print_tensors(model: &ModelFiles) -> Result<()> {
    for row in tensors(model) {
        print_line!("{:<40} {:<6} {}", json_text(&row["name"]), json_text(&row["dtype"]), row["shape"])?;
    }
    Ok(())
}

/// Prints a description for the model in a folder, and what girih says of the model with it.
fn suggest_arch(folder: &Path) -> Result<Outcome> {
    let limits = ModelLimits::DEFAULT;
    let suggestion = ModelFiles::suggest_arch(folder, &limits)?;
    print(&suggestion.text)?;
    let opened =
        schema::parse(&suggestion.text).and_then(|arch| ModelFiles::open(folder, vec![arch], &limits));
    match opened {
        Ok(_) => {
            print_note(format_args!("the model opens with this description: check it with 'girih verify'"))
        }
        Err(error) => print_note(format_args!("the model does not open with this description: {error}")),
    }
    Ok(Outcome::Done)
}

/// Prints descriptions of architectures with what they have from those that they are based on.
fn print_descriptions(args: &ArchArgs) -> Result<Outcome> {
    for path in &args.arch {
        let whole = match path.to_str().and_then(shipped_text) {
            Some(text) => schema::whole(text),
            None => schema::whole(&text_file(path, DESCRIPTION_BYTES)?),
        };
        print(whole.map_err(|error| error.of(path.display()))?)?;
    }
    Ok(Outcome::Done)
}

/// Prints the blocks of state, and the memory that the model needs and finds.
fn print_memory(plan: &Plan, needed: &MemoryPlan, free: Option<FreeMemory>) -> Result<()> {
    for (group, blocks) in plan.state() {
        let (blocks, positions) = (counted(blocks, "block"), u64::from(blocks) * BLOCK_POSITIONS as u64);
        match group.kind {
            StateKind::Positions { span } => {
                print_line!("KV cache of layers with span {span}: {blocks}, {positions} positions")?;
            }
            StateKind::Carried => print_line!("carried values of sequences: {blocks}, one value each")?,
        }
    }
    let device = needed.device.map(|device| ("device memory", device.bytes, device_room(&device)));
    let host = ("memory", needed.host, free.map(|free| free.room()));
    for (name, pool, free) in [host].into_iter().chain(device) {
        print_line!("{name}: {} = {}", pool_sum(&pool, plan.kv()), bytes(pool.total()))?;
        if pool.in_file > 0 {
            print_line!("tables in their file, read by row: {}", bytes(pool.in_file))?;
        }
        if let Some(free) = free {
            let fits = if pool.total() <= free { "fits" } else { "does not fit" };
            print_line!("available: {}; the model {fits}", bytes(free))?;
        }
    }
    Ok(())
}

/// Whether a model accepts text and conversations.
struct TextSupport {
    tokenizer: Support,
    template: Support,
    /// The digest of the template, if there is one.
    digest: Option<TemplateDigest>,
}

/// The state of the tokenizer or the chat template, as `girih run` and `girih chat` find it.
enum Support {
    /// The model has none.
    Absent,
    /// It works; the text describes it.
    Works(String),
    /// It cannot be used, for this reason.
    Broken(String),
}

impl TextSupport {
    /// That of a model, whose template is compared with that of `source`.
    fn of(model: &Model, source: Option<&Path>) -> Result<TextSupport> {
        let (tokenizer, template, digest) = match model.text_processor() {
            Ok(text) => {
                let tokens = counted(text.tokenizer.vocab_size(), "token");
                let digest = TemplateDigest::of(model.files(), text, source)?;
                (Support::Works(tokens), template(model, text), digest)
            }
            Err(error) if has_tokenizer(model.files()) => {
                (Support::Broken(error.to_string()), Support::Absent, None)
            }
            Err(_) => (Support::Absent, Support::Absent, None),
        };
        Ok(TextSupport { tokenizer, template, digest })
    }

    fn print(&self) -> Result<()> {
        print_line!("tokenizer: {}", self.tokenizer)?;
        print_line!("chat template: {}", self.template)?;
        match &self.digest {
            Some(digest) => print_line!("chat template's digest: {}", digest.sentence()),
            None => Ok(()),
        }
    }

    fn is_usable(&self) -> bool {
        ![&self.tokenizer, &self.template].iter().any(|support| matches!(support, Support::Broken(_)))
    }
}

impl Support {
    fn json(&self) -> Value {
        match self {
            Support::Absent => Value::Null,
            Support::Works(what) => json!(what),
            Support::Broken(why) => json!({"error": why}),
        }
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Support::Absent => f.write_str("none"),
            Support::Works(what) => f.write_str(what),
            Support::Broken(why) => write!(f, "cannot be used: {why}"),
        }
    }
}

/// Renders a short conversation.
fn template(model: &Model, text: &TextProcessor) -> Support {
    if text.template.is_none() {
        return Support::Absent;
    }
    match model.render(&Conversation::new().user("?")) {
        Ok(_) => Support::Works("works".to_owned()),
        // A template may demand another conversation.
        Err(error) if error.kind() == ErrorKind::Refused => Support::Works(error.to_string()),
        Err(error) => Support::Broken(error.to_string()),
    }
}

/// Whether the files have a tokenizer, in whatever state.
fn has_tokenizer(model: &ModelFiles) -> bool {
    let container = model.weights.container();
    match container.kind() {
        ContainerKind::Safetensors | ContainerKind::Iebin | ContainerKind::Q4nx => {
            model.folder().join("tokenizer.json").symlink_metadata().is_ok()
        }
        ContainerKind::Gguf => container.metadata().iter().any(|(key, _)| key.starts_with("tokenizer.ggml.")),
    }
}

/// The parts of a pool as a sum.
fn pool_sum(pool: &PoolBytes, kv: Option<DType>) -> String {
    let PoolBytes { weights, in_file: _, state, scratch, output, staging } = *pool;
    let mut parts = format!("weights {}", bytes(weights));
    if let Some(kv) = kv {
        parts += &format!(" + KV cache {} ({kv})", bytes(state));
    }
    parts += &format!(" + scratch {} + output {}", bytes(scratch), bytes(output));
    if staging > 0 {
        parts += &format!(" + staging {}", bytes(staging));
    }
    parts
}

fn json_text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The number of tensors of each storage type, and their bytes.
fn storage(model: &ModelFiles) -> BTreeMap<&'static str, (usize, u64)> {
    let mut types = BTreeMap::new();
    for info in model.weights.container().tensors().values() {
        let entry = types.entry(info.dtype.name()).or_insert((0, 0u64));
        *entry = (entry.0 + 1, entry.1 + info.bytes);
    }
    types
}

/// All weights, with girih's names.
fn tensors(model: &ModelFiles) -> Vec<Value> {
    let infos = model.weights.names().filter_map(|name| Some((name, model.weights.info(name)?)));
    infos
        .map(|(name, (dtype, shape))| json!({"name": name, "dtype": dtype.name(), "shape": shape.extents()}))
        .collect()
}

/// The blocks of each group of state.
fn state(plan: &Plan) -> Vec<Value> {
    let entry = |(group, blocks): (&StateGroup, u32)| match group.kind {
        StateKind::Positions { span } => json!({"span": span.to_string(), "blocks": blocks}),
        StateKind::Carried => json!({"carried": true, "blocks": blocks}),
    };
    plan.state().map(entry).collect()
}

/// All facts, under the names of their fields, and the settings of generation.
fn facts(model: &ModelFiles) -> Value {
    let mut facts = json!(model.facts);
    facts["encoder"] = model.facts.is_encoder().into();
    facts["generation"] = json!(model.generation);
    facts
}

/// Prints the facts, with a line for each run of equal layers.
fn print_facts(model: &ModelFiles) -> Result<()> {
    let Value::Object(mut facts) = facts(model) else { return Ok(()) };
    facts.shift_remove("generation");
    let layers =
        facts.shift_remove("layers").and_then(|layers| layers.as_array().cloned()).unwrap_or_default();
    let name = facts.shift_remove("architecture");
    print_line!("architecture: {}", name.as_ref().map(json_text).unwrap_or_default())?;
    print_line!("{}", line_of(&facts))?;
    let lines: Vec<String> = layers.iter().filter_map(|layer| layer.as_object().map(line_of)).collect();
    let mut first = 0;
    for run in lines.chunk_by(|a, b| a == b) {
        let last = first + run.len() - 1;
        let range = if first == last { format!("layer {first}") } else { format!("layers {first}-{last}") };
        print_line!("{range}: {}", run[0])?;
        first = last + 1;
    }
    Ok(())
}

/// Facts in a line: each with its name, without those that are absent or false.
fn line_of(facts: &Map<String, Value>) -> String {
    let shown =
        facts.iter().filter_map(|(name, value)| Some(format!("{}{}", words(name), fact_text(value)?)));
    shown.collect::<Vec<_>>().join(", ")
}

/// The name of a fact in words.
fn words(name: &str) -> String {
    name.replace('_', " ")
}

/// A fact after its name; `None` if it is absent or false.
fn fact_text(value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Bool(true) => Some(String::new()),
        // Facts are single precision, so their shortest digits are those of an `f32`.
        Value::Number(number) if number.is_f64() => {
            Some(format!(" {}", format!("{:?}", number.as_f64()? as f32).trim_end_matches(".0")))
        }
        Value::Number(number) => Some(format!(" {number}")),
        Value::String(text) => Some(format!(" {text}")),
        Value::Array(list) if list.iter().all(|one| matches!(one, Value::Null | Value::Bool(false))) => None,
        Value::Array(list) if list.len() > LISTED => Some(format!(" ({} values)", list.len())),
        Value::Array(list) => {
            let list = list.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), words));
            Some(format!(" ({})", list.collect::<Vec<_>>().join(", ")))
        }
        Value::Object(facts) => Some(format!(" ({})", line_of(facts))),
    }
}
