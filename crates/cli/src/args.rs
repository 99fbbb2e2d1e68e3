//! Argument groups that several commands share, and the types of their values.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use girih::{AdapterSource, DType, Grammar, Overflow, PromptCache};
use girih_graph::description::byte_count;

use crate::backend_args::BackendArgs;
use crate::error::Error;
use crate::input::{DESCRIPTION_BYTES, json_text, text_file};
use crate::progress::Show;

/// Which model.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Folder, .gguf or .safetensors file, id in the cache (org/name, org/name@revision, org/name:QUANT), URL on the hub, alias, or stories260k.
    pub model: String,
    #[command(flatten)]
    pub arch: ArchArgs,
}

/// Which architectures besides girih's own, and which keys may be ignored.
#[derive(Clone, Debug, Args)]
pub struct ArchArgs {
    /// Description (TOML) of an architecture that girih does not include; can be repeated.
    #[arg(long, value_name = "FILE")]
    pub arch: Vec<PathBuf>,
    /// Ignore an unsupported key of the model (may change results); can be repeated.
    #[arg(long, value_name = "NAME")]
    pub allow_key: Vec<String>,
    /// Projector file with the image tower of a .gguf model [default: the mmproj-*.gguf beside it].
    #[arg(long, value_name = "FILE")]
    pub mmproj: Option<PathBuf>,
    /// The adapters beside the model, of commands that have [`AdapterArgs`](crate::adapter_args::AdapterArgs).
    #[arg(skip)]
    pub adapters: Vec<AdapterSource>,
    /// The format as which weights are packed, of commands that have [`PackArgs`](crate::pack_args::PackArgs).
    #[arg(skip)]
    pub pack: Option<DType>,
}

impl ArchArgs {
    /// Whether none is given.
    pub fn is_empty(&self) -> bool {
        self.arch.is_empty() && self.allow_key.is_empty() && self.mmproj.is_none()
    }
}

/// How much a command tells beside its result.
#[derive(Debug, Clone, Copy, Args)]
pub struct ShowArgs {
    /// Hide progress and notes.
    #[arg(long, short)]
    quiet: bool,
    /// Show routine notes: settings, times, choices.
    #[arg(long, short, conflicts_with = "quiet")]
    verbose: bool,
}

impl ShowArgs {
    /// What is shown.
    pub fn show(self) -> Show {
        match self {
            ShowArgs { quiet: true, .. } => Show::Nothing,
            ShowArgs { verbose: true, .. } => Show::Details,
            _ => Show::Notes,
        }
    }
}

/// Where and how a model runs.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// Number of threads (does not affect results) [default: the cores this process may use].
    #[arg(long, short = 't', value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    /// Type of the KV cache [default: f16].
    #[arg(long, value_name = "TYPE", value_enum)]
    pub kv: Option<KvType>,
    /// Maximum number of tokens of a sequence [default: the model's maximum, at most 4096].
    #[arg(long, short = 'c', value_name = "N", aliases = ["ctx-size", "max-model-len"], value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Maximum number of tokens of a prefill step (does not affect results).
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub chunk: u32,
    #[command(flatten)]
    pub show: ShowArgs,
    #[command(flatten)]
    pub backend: BackendArgs,
}

/// Where the state of prompts is kept between calls.
#[derive(Debug, Clone, Args)]
pub struct PromptCacheArgs {
    /// Keep the state of prompts and replies in this folder, so that later calls compute only what is new.
    #[arg(long, value_name = "DIR")]
    pub prompt_cache: Option<PathBuf>,
    /// Maximum size of the prompt cache; the prompts used least recently are removed first.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = byte_count)]
    pub prompt_cache_limit: u64,
}

impl PromptCacheArgs {
    /// The prompt cache, if one is asked for.
    pub fn cache(&self) -> Option<PromptCache> {
        let limit = self.prompt_cache_limit;
        self.prompt_cache.clone().map(|folder| PromptCache { folder, limit })
    }
}

impl DeviceArgs {
    /// The name of the type of the KV cache, if one is set.
    pub fn kv_name(&self) -> Option<&'static str> {
        self.kv.map(|kv| kv.dtype().name())
    }

    /// The number of threads on this machine.
    pub fn thread_count(&self) -> usize {
        self.threads.map_or_else(girih::default_threads, usize::from)
    }
}

/// The values of `--kv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, non_camel_case_types)] // self-explanatory; block formats are spelled as in GGUF
pub enum KvType {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}

impl KvType {
    /// The type of the graph's state.
    pub fn dtype(self) -> DType {
        match self {
            KvType::F32 => DType::F32,
            KvType::F16 => DType::F16,
            KvType::Bf16 => DType::BF16,
            KvType::Q8_0 => DType::Q8_0,
            KvType::Q4_0 => DType::Q4_0,
        }
    }
}

/// Sampling parameters. Those that are not set come from the model's
/// generation_config.json; without one, sampling is greedy.
#[derive(Debug, Clone, Args)]
pub struct SamplingArgs {
    /// Maximum number of tokens to generate; 0 sets no maximum [default: 0: the reply may fill the context].
    #[arg(long, short = 'n', value_name = "N", aliases = ["n-predict", "predict", "max-new-tokens"])]
    pub max_tokens: Option<u32>,
    /// Temperature; 0 always picks the most likely token.
    #[arg(long, value_name = "T", alias = "temperature", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all.
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Keep the most likely tokens up to this cumulative probability.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Keep tokens whose probability is at least this fraction of the most likely token's.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    #[command(flatten)]
    pub shape: ShapeArgs,
    /// Divide the logits of tokens that have occurred by this; 1 is off.
    #[arg(long, value_name = "X", alias = "repeat-penalty")]
    pub repetition_penalty: Option<f32>,
    /// Subtract this from the logits of tokens that occur in the reply.
    #[arg(long, value_name = "X", default_value = "0", allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtract this from a token's logit once for each time it occurs in the reply.
    #[arg(long, value_name = "X", default_value = "0", allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Add X to a token's logit; inf forces the token, -inf forbids it; can be repeated.
    #[arg(long, value_name = "ID=X", value_parser = bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the random numbers; the same seed gives the same text.
    #[arg(long, default_value = "0")]
    pub seed: u64,
    /// What to do if prompt and reply exceed the context; after truncation, penalties count only
    /// the tokens that were kept.
    #[arg(long, value_name = "MODE", value_enum, default_value = "error")]
    pub overflow: OverflowMode,
    /// End the reply before this text; can be repeated.
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
}

/// Sampling parameters that few models ask for; all are off by default.
#[derive(Debug, Clone, Args)]
pub struct ShapeArgs {
    /// Locally typical sampling: keep the tokens whose information is closest to the entropy, up to this
    /// cumulative probability; 1 is off.
    #[arg(long, value_name = "P", default_value = "1")]
    pub typical_p: f32,
    /// Keep tokens at most this number of standard deviations below the highest logit; 0 is off.
    #[arg(long, value_name = "N", default_value = "0")]
    pub top_n_sigma: f32,
    /// XTC: probability that all tokens above the threshold except the least likely one are excluded; 0 is
    /// off.
    #[arg(long, value_name = "P", default_value = "0")]
    pub xtc_probability: f32,
    /// XTC: minimum probability of the tokens that may be excluded.
    #[arg(long, value_name = "P", default_value = "0.1")]
    pub xtc_threshold: f32,
    /// Dynamic temperature: it varies with the entropy within --temp ± this range; 0 is off.
    #[arg(long, value_name = "X", default_value = "0")]
    pub dynatemp_range: f32,
    /// Dynamic temperature: exponent of the normalized entropy.
    #[arg(long, value_name = "X", default_value = "1")]
    pub dynatemp_exponent: f32,
    /// Mirostat 2: target surprise in bits; 0 is off.
    #[arg(long, value_name = "BITS", default_value = "0")]
    pub mirostat_tau: f32,
    /// Learning rate of Mirostat 2.
    #[arg(long, value_name = "X", default_value = "0.1")]
    pub mirostat_eta: f32,
    /// Penalty on tokens that would continue a repeated sequence (DRY); 0 is off.
    #[arg(long, value_name = "X", default_value = "0")]
    pub dry_multiplier: f32,
    /// Factor of the DRY penalty for each further token of the repetition.
    #[arg(long, value_name = "X", default_value = "1.75")]
    pub dry_base: f32,
    /// DRY: minimum length of a repeated sequence that is penalized.
    #[arg(long, value_name = "N", default_value = "2")]
    pub dry_allowed_length: u32,
    /// Number of last tokens in which DRY looks for repetitions; 0 is all.
    #[arg(long, value_name = "N", default_value = "0")]
    pub dry_range: u32,
    /// Text that ends a repetition for DRY; can be repeated [default: line end, ':', '"' and '*'].
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub dry_breaker: Vec<String>,
}

/// What the reply must be.
#[derive(Debug, Default, Clone, Args)]
pub struct GrammarArgs {
    /// Make the reply JSON that this JSON Schema (draft 7 or 2020-12) accepts: a file, or the schema itself.
    #[arg(long, value_name = "FILE|JSON", group = "structured_output")]
    pub schema: Option<PathBuf>,
    /// Make the reply a JSON object.
    #[arg(long, group = "structured_output")]
    pub json_object: bool,
    /// Make the reply a text that this regular expression matches as a whole.
    #[arg(long, value_name = "PATTERN", group = "structured_output", allow_hyphen_values = true)]
    pub regex: Option<String>,
    /// Make the reply a text of this context-free grammar, in the syntax of Lark or of llama.cpp (GBNF).
    #[arg(long, value_name = "FILE", group = "structured_output")]
    pub grammar: Option<PathBuf>,
}

impl GrammarArgs {
    /// The grammar, if one is given.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn grammar(&self) -> Result<Option<Grammar>, Error> {
        let text = |path: &PathBuf| text_file(path, DESCRIPTION_BYTES);
        Ok(match self {
            GrammarArgs { schema: Some(path), .. } => Some(Grammar::JsonSchema(json_text(path)?)),
            GrammarArgs { grammar: Some(path), .. } => Some(Grammar::of_text(text(path)?)),
            GrammarArgs { regex: Some(pattern), .. } => Some(Grammar::Regex(pattern.clone())),
            GrammarArgs { json_object: true, .. } => Some(Grammar::JsonObject),
            _ => None,
        })
    }
}

/// The values of `--overflow`: what to do with a sequence that fills the context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OverflowMode {
    /// Refuse requests that exceed the context.
    #[default]
    Error,
    /// Keep the first token, drop the oldest others, and prefill the rest again.
    Truncate,
}

impl OverflowMode {
    /// The engine's name for it.
    pub fn overflow(self) -> Overflow {
        match self {
            OverflowMode::Error => Overflow::Error,
            OverflowMode::Truncate => Overflow::Truncate,
        }
    }
}

/// Parses `ID=X`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parts.ok_or_else(|| format!("'{text}' is not ID=X, such as 15=-2.5"))
}
