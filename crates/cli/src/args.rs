//! Argument groups that several commands share, and the types of their values.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use girih_cpu::{Affinity, Residence};
use girih_engine::Overflow;
use girih_tensor::DType;

use crate::array::ArrayArgs;

/// Which model.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Folder, .gguf or .safetensors file, id in the cache (org/name, org/name@revision, org/name:QUANT), or stories260k.
    pub model: String,
    #[command(flatten)]
    pub arch: ArchArgs,
}

/// Which architectures besides girih's own.
#[derive(Debug, Args)]
pub struct ArchArgs {
    /// Description (TOML) of an architecture that girih does not include; can be repeated.
    #[arg(long, value_name = "FILE")]
    pub arch: Vec<PathBuf>,
}

/// Where and how a model runs.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// Backend: cpu, interpreter, or npu:TARGET, a simulated array such as npu:toy.
    #[arg(long, value_name = "BACKEND", default_value = "cpu", value_parser = parse_backend)]
    pub backend: BackendChoice,
    /// Number of threads (does not affect results) [default: the cores this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Instruction set of the cpu backend's kernels [default: the best that this processor has].
    #[arg(long, value_name = "ISA", value_parser = PossibleValuesParser::new(girih_cpu::kernels::names()))]
    pub isa: Option<String>,
    /// Precision to which the cpu backend rounds activations before matmuls; with int8 and int8x2,
    /// float weights still use f32 activations; int8x2 is the sum of two int8 terms, about 15 bits
    /// [default: int8 for quantized weights].
    #[arg(long, value_name = "PRECISION", value_enum)]
    pub act_precision: Option<ActPrecision>,
    /// Type of the KV cache.
    #[arg(long, value_name = "TYPE", value_enum, default_value = "f32")]
    pub kv: KvType,
    /// Maximum number of tokens of a sequence [default: the model's maximum, at most 4096].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Maximum number of tokens of a prefill step (does not affect results).
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub chunk: u32,
    /// Hide progress and notes.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Where the cpu backend's threads and weights are placed.
#[derive(Debug, Clone, Default, Args)]
pub struct PlacementArgs {
    /// Pin threads to cores: compact fills one NUMA node after another, scatter spreads them over
    /// all nodes, none does not pin, auto is compact if there are several nodes, else none
    /// [default: auto].
    #[arg(long, value_name = "POLICY", value_enum)]
    pub affinity: Option<AffinityArg>,
    /// Keep packed weights in $XDG_CACHE_HOME/girih/packed for the next start: on reads and writes
    /// them, read-only only reads them, off does neither [default: on].
    #[arg(long, value_name = "MODE", value_enum)]
    pub packed_cache: Option<PackedCache>,
    /// Maximum size of all packed weights on disk; least recently used are evicted first
    /// [default: a fifth of the free space, at most 32 GiB].
    #[arg(long, value_name = "BYTES")]
    pub packed_cache_limit: Option<u64>,
    /// Read packed weights into memory and check them, or map their file, which starts sooner,
    /// checks less and computes more slowly [default: read].
    #[arg(long, value_name = "MODE", value_enum)]
    pub weights: Option<KeptWeights>,
}

/// The values of `--weights`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // self-explanatory
pub enum KeptWeights {
    #[default]
    Read,
    Mmap,
}

impl KeptWeights {
    /// The backend's name for it.
    pub fn residence(self) -> Residence {
        match self {
            KeptWeights::Read => Residence::Memory,
            KeptWeights::Mmap => Residence::File,
        }
    }
}

/// The values of `--packed-cache`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // self-explanatory
pub enum PackedCache {
    #[default]
    On,
    ReadOnly,
    Off,
}

/// The values of `--affinity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // self-explanatory
pub enum AffinityArg {
    Auto,
    Compact,
    Scatter,
    None,
}

impl AffinityArg {
    /// The backend's name for it.
    pub fn affinity(self) -> Affinity {
        match self {
            AffinityArg::Auto => Affinity::Auto,
            AffinityArg::Compact => Affinity::Compact,
            AffinityArg::Scatter => Affinity::Scatter,
            AffinityArg::None => Affinity::None,
        }
    }
}

/// The backends; the only list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendChoice {
    /// The host's processor.
    Cpu,
    /// The definition of every operator: slow, exact, for comparison.
    Interpreter,
    /// The simulated array of this target.
    Npu(String),
}

impl BackendChoice {
    /// Whether it is a simulated array.
    pub fn is_array(&self) -> bool {
        matches!(self, BackendChoice::Npu(_))
    }
}

impl std::fmt::Display for BackendChoice {
    /// Its name on the command line.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            BackendChoice::Cpu => f.write_str("cpu"),
            BackendChoice::Interpreter => f.write_str("interpreter"),
            BackendChoice::Npu(target) => write!(f, "npu:{target}"),
        }
    }
}

/// Parses the name of a backend.
pub fn parse_backend(text: &str) -> Result<BackendChoice, String> {
    match text.split_once(':') {
        None if text == "cpu" => Ok(BackendChoice::Cpu),
        None if text == "interpreter" => Ok(BackendChoice::Interpreter),
        Some(("npu", target)) => {
            let known = girih_npu::Target::names();
            if known.iter().any(|name| name == target) {
                return Ok(BackendChoice::Npu(target.to_owned()));
            }
            Err(format!("unknown NPU target '{target}': use one of {}", known.join(", ")))
        }
        _ => Err(format!("unknown backend '{text}': use cpu, interpreter or npu:TARGET")),
    }
}

/// The values of `--act-precision`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // self-explanatory
pub enum ActPrecision {
    F32,
    Int8x2,
    Bf16,
    Int8,
}

impl ActPrecision {
    /// The backend's name for it.
    pub fn precision(self) -> girih_cpu::ActivationPrecision {
        match self {
            ActPrecision::F32 => girih_cpu::ActivationPrecision::F32,
            ActPrecision::Int8x2 => girih_cpu::ActivationPrecision::Int8x2,
            ActPrecision::Bf16 => girih_cpu::ActivationPrecision::Bf16,
            ActPrecision::Int8 => girih_cpu::ActivationPrecision::Int8,
        }
    }
}

/// The values of `--kv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, non_camel_case_types)] // self-explanatory; Q8_0 is spelled as in GGUF
pub enum KvType {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8_0,
}

impl KvType {
    /// The type of the graph's state.
    pub fn dtype(self) -> DType {
        match self {
            KvType::F32 => DType::F32,
            KvType::F16 => DType::F16,
            KvType::Bf16 => DType::BF16,
            KvType::Q8_0 => DType::Q8_0,
        }
    }
}

/// Sampling parameters. Those that are not set come from the model's
/// generation_config.json; without one, sampling is greedy.
#[derive(Debug, Clone, Args)]
pub struct SamplingArgs {
    /// Maximum number of tokens to generate; 0 fills the context [default: 256, or what the context leaves].
    #[arg(long, short = 'n', value_name = "N")]
    pub max_tokens: Option<u32>,
    /// Temperature; 0 always picks the most likely token.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
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
    /// Divide the logits of tokens that have occurred by this; 1 is off.
    #[arg(long, value_name = "X")]
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
    pub overflow: OverflowChoice,
    /// End the reply before this text; can be repeated.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

/// The values of `--overflow`: what to do with a sequence that fills the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OverflowChoice {
    /// Refuse calls that exceed the context.
    Error,
    /// Keep the first token, drop the oldest others, and prefill the rest again.
    Truncate,
}

impl OverflowChoice {
    /// The engine's rule.
    pub fn rule(self) -> Overflow {
        match self {
            OverflowChoice::Error => Overflow::Error,
            OverflowChoice::Truncate => Overflow::Truncate,
        }
    }
}

/// Parses `ID=X`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parts.ok_or_else(|| format!("'{text}' is not ID=X, such as 15=-2.5"))
}
