//! `girih inspect`: a model's facts, weights and memory needs, without loading it.

use std::collections::BTreeMap;
use std::fmt;

use girih::tools::FreeMemory;
use girih::{Conversation, DType, ErrorKind, MemoryPlan, Model, Plan, PoolBytes, Refusal};
use girih_file::{ContainerKind, quote};
use girih_graph::{BLOCK_POSITIONS, StateGroup, StateKind};
use girih_model::ModelFiles;
use girih_model::arch::{AttentionFacts, Facts, LayerFacts, Mixer};
use girih_words::TextProcessor;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs};
use crate::error::Result;
use crate::loading;
use crate::output::{bytes, counted, print, print_json};
use crate::report;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    /// List every weight.
    #[arg(long)]
    tensors: bool,
    /// Print the graph of the largest step.
    #[arg(long)]
    graph: bool,
    /// Print JSON.
    #[arg(long, conflicts_with = "graph")]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let model = loading::open_model(&args.model)?;
    let plan = loading::plan(&model, &args.device, 1)?;
    if args.graph {
        print(plan.graph())?;
        return Ok(Outcome::Done);
    }
    let support = TextSupport::of(&model);
    let ended = if support.is_usable() { Outcome::Done } else { Outcome::Failed };
    let model = model.files();
    let refusals = plan.refusals().into_iter().map(|Refusal { node, reason }| format!("{node}: {reason}"));
    let (backend, refusals) = (plan.description(), refusals.collect::<Vec<_>>());
    let (activations, machine_default) = (plan.numerics().name(), plan.machine_default());
    let needed = plan.memory();
    let free = FreeMemory::now();
    if args.json {
        print_json(&json!({
            "facts": facts(model),
            "files": model.weights.container().paths().map(|path| path.display().to_string()).collect::<Vec<_>>(),
            "storage": storage(model),
            "tensors": args.tensors.then(|| tensors(model)),
            "key": plan.key().to_string(),
            "backend": backend,
            "activations": activations,
            "machine_default": machine_default,
            "refusals": refusals,
            "ignored_keys": model.ignored_keys(),
            "state": state(&plan),
            "memory": report::memory_json(&needed, free),
            "tokenizer": support.tokenizer.json(),
            "chat_template": support.template.json(),
        }))?;
        return Ok(ended);
    }
    print_facts(model)?;
    for key in model.ignored_keys() {
        print_line!("ignored key: {}", quote(key))?;
    }
    print_line!("tokenizer: {}", support.tokenizer)?;
    print_line!("chat template: {}", support.template)?;
    for (dtype, (count, size)) in storage(model) {
        print_line!("{count:>6} tensors {dtype:<6} {}", bytes(size))?;
    }
    if args.tensors {
        for row in tensors(model) {
            print_line!("{:<40} {:<6} {}", json_text(&row["name"]), json_text(&row["dtype"]), row["shape"])?;
        }
    }
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
    let device = needed.device.map(|device| ("device memory", device.bytes, Some(device.free)));
    let host = ("memory", needed.host, free.map(|free| free.room()));
    for (name, pool, free) in [host].into_iter().chain(device) {
        print_line!("{name}: {} = {}", pool_sum(&pool, plan.kv()), bytes(pool.total()))?;
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
    fn of(model: &Model) -> TextSupport {
        let (tokenizer, template) = match model.text_processor() {
            Ok(text) => {
                let tokens = counted(text.tokenizer.vocab_size(), "token");
                (Support::Works(tokens), template(model, text))
            }
            Err(error) if has_tokenizer(model.files()) => {
                (Support::Broken(error.to_string()), Support::Absent)
            }
            Err(_) => (Support::Absent, Support::Absent),
        };
        TextSupport { tokenizer, template }
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
        ContainerKind::Safetensors => model.folder().join("tokenizer.json").symlink_metadata().is_ok(),
        ContainerKind::Gguf => container.metadata().iter().any(|(key, _)| key.starts_with("tokenizer.ggml.")),
    }
}

/// The parts of a pool as a sum.
fn pool_sum(pool: &PoolBytes, kv: Option<DType>) -> String {
    let PoolBytes { weights, state, scratch, output, staging } = *pool;
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

/// The facts of a layer's mixer.
fn mixer(mixer: &Mixer) -> Value {
    match mixer {
        Mixer::ShortConv(conv) => json!({"taps": conv.taps}),
        Mixer::Attend(attend) => {
            let rope = attend.rope.as_ref().map(
                |rope| json!({"base": rope.base, "pairing": rope.pairing.name(), "factors": rope.factors}),
            );
            json!({
                "heads": attend.heads,
                "kv_heads": attend.kv_heads,
                "head_size": attend.head_size,
                "span": attend.span.to_string(),
                "scale": attend.scale,
                "softcap": attend.softcap,
                "qk_norm": attend.qk_norm.is_some(),
                "attention_biases": [attend.biases.q, attend.biases.k, attend.biases.v, attend.biases.o],
                "rope": rope,
            })
        }
    }
}

fn facts(model: &ModelFiles) -> Value {
    let facts = &model.facts;
    let layers: Vec<Value> = facts
        .layers
        .iter()
        .map(|layer| {
            let mut entry = mixer(&layer.mixer);
            entry["ffn"] = json!(layer.ffn.size());
            entry["act"] = json!(layer.ffn.act().name());
            entry["ffn_biases"] = json!(layer.ffn.biases());
            let norms: Vec<&str> = layer.norms.positions.iter().map(|position| position.name()).collect();
            entry["norms"] = json!(norms);
            entry["norm"] = json!(layer.norms.norm.kind);
            entry["epsilon"] = json!(layer.norms.norm.epsilon);
            entry
        })
        .collect();
    json!({
        "architecture": facts.name,
        "width": facts.sizes.width,
        "vocabulary": facts.sizes.vocabulary,
        "context": facts.sizes.context,
        "embed_scale": facts.embed.scale,
        "token_types": facts.embed.token_types,
        "learned_positions": facts.embed.positions,
        "encoder": facts.is_encoder(),
        "pooling": facts.pooling.map(|pooling| json!({"how": pooling.how.name(), "normalized": pooling.normalized})),
        "tied": facts.head.map(|head| head.tied),
        "logit_softcap": facts.head.and_then(|head| head.softcap),
        "layers": layers,
        "generation": model.generation,
    })
}

/// Prints the facts, with a line for each run of equal layers.
fn print_facts(model: &ModelFiles) -> Result<()> {
    let facts = &model.facts;
    print_line!("architecture: {}", facts.name)?;
    let sizes = facts.sizes;
    print_line!("width {}, vocabulary {}, context {}", sizes.width, sizes.vocabulary, sizes.context)?;
    print_line!("{}", output_line(facts))?;
    let lines: Vec<String> = facts.layers.iter().map(layer_line).collect();
    let mut first = 0;
    for run in lines.chunk_by(|a, b| a == b) {
        let last = first + run.len() - 1;
        let range = if first == last { format!("layer {first}") } else { format!("layers {first}-{last}") };
        print_line!("{range}: {}", run[0])?;
        first = last + 1;
    }
    Ok(())
}

/// What the model computes from its last layer.
fn output_line(facts: &Facts) -> String {
    let pooled = facts.pooling.map(|pooling| {
        let normalized = if pooling.normalized { ", normalized" } else { "" };
        format!("pooling: {}{normalized}", pooling.how.name())
    });
    match facts.head {
        Some(head) if head.tied => "head: tied to the embedding".to_owned(),
        Some(_) => "head: separate".to_owned(),
        None => format!("encoder; {}", pooled.unwrap_or_else(|| "no pooling".to_owned())),
    }
}

/// A layer in a line.
fn layer_line(layer: &LayerFacts) -> String {
    let (act, size) = (layer.ffn.act().name(), layer.ffn.size());
    let AttentionFacts { heads, kv_heads, head_size, span, rope, qk_norm, .. } = match &layer.mixer {
        Mixer::Attend(attend) => attend,
        Mixer::ShortConv(conv) => return format!("short convolution of {} taps; {act} {size}", conv.taps),
    };
    let normed = if qk_norm.is_some() { ", q/k norm" } else { "" };
    let rotated = rope.as_ref().map_or(", no rope".to_owned(), |rope| {
        format!(", rope base {}{}", rope.base, if rope.factors.is_empty() { "" } else { ", scaled" })
    });
    format!("{heads} heads of {head_size}, {kv_heads} KV heads, span {span}{normed}{rotated}; {act} {size}")
}
