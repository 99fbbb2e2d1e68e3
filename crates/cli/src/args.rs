//! The command line, as the parser sees it.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use girih_cpu::{Affinity, Replicate, Residence};
use girih_tensor::DType;

use crate::array::ArrayArgs;
use crate::cmd;
use crate::overflow::Overflow;

/// Runs open-weights language models, and says how right and how fast.
#[derive(Debug, Parser)]
#[command(name = "girih", version, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What girih does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue a prompt; without a model, the small one that ships with girih.
    Run(cmd::run::Args),
    /// Hold a conversation.
    Chat(cmd::chat::Args),
    /// Show the tokens of a text.
    Tokenize(cmd::tokenize::Args),
    /// Apply the model's chat template.
    Render(cmd::render::Args),
    /// Show what a model is and what it needs.
    Inspect(cmd::inspect::Args),
    /// Hold a model against a golden file; exit code 1 if it disagrees.
    Verify(cmd::verify::Args),
    /// Compare a model with a golden file or another backend, layer by layer.
    Diagnose(cmd::diagnose::Args),
    /// Measure how surprised a model is by a text.
    Perplexity(cmd::perplexity::Args),
    /// Measure how fast a model runs, in the rows of llama-bench.
    Bench(cmd::bench::Args),
    /// Show where the time goes, operator by operator.
    Profile(cmd::profile::Args),
    /// Download a model into the Hugging Face cache.
    Pull(cmd::hub::PullArgs),
    /// List the models in the Hugging Face cache.
    List(cmd::hub::ListArgs),
    /// Remove a model from the Hugging Face cache, or the packed weights that girih keeps.
    Rm(cmd::hub::RmArgs),
    /// Check every file in the Hugging Face cache, and remove what is broken.
    Repair(cmd::hub::RepairArgs),
    /// Write a model in another container or storage format.
    Quantize(cmd::quantize::Args),
    /// Compile for a simulated array, and simulate.
    Npu(cmd::npu::Args),
    /// Say what this machine is, and what holds girih back on it.
    Doctor(cmd::doctor::Args),
}

/// Which model.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// A folder, a .gguf or .safetensors file, an id in the cache (org/name, org/name@revision, org/name:QUANT), or stories260k.
    pub model: String,
    #[command(flatten)]
    pub arch: ArchArgs,
}

/// Which architectures besides girih's own.
#[derive(Debug, Args)]
pub struct ArchArgs {
    /// A description of an architecture that girih does not ship; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub arch: Vec<PathBuf>,
}

/// Where and how a model runs.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// What runs the model: cpu, interpreter, or npu:TARGET, a simulated array such as npu:toy.
    #[arg(long, value_name = "BACKEND", default_value = "cpu", value_parser = backend)]
    pub backend: Backend,
    /// Threads; results do not depend on it [default: the cores this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
    #[command(flatten)]
    pub placement: PlacementArgs,
    #[command(flatten)]
    pub array: ArrayArgs,
    /// The instruction set of the cpu backend's kernels [default: the best that this processor has].
    #[arg(long, value_name = "ISA", value_parser = PossibleValuesParser::new(girih_cpu::kernels::names()))]
    pub isa: Option<String>,
    /// What the cpu backend rounds activations to before they meet weights; float weights
    /// meet none in int8 or int8x2, but f32 [default: int8 where weights are quantized;
    /// int8x2 is the sum of two such terms, about 15 bits].
    #[arg(long, value_name = "PRECISION", value_enum)]
    pub act_precision: Option<ActPrecision>,
    /// The type of the KV cache.
    #[arg(long, value_name = "TYPE", value_enum, default_value = "f32")]
    pub kv: KvType,
    /// Tokens of the longest sequence [default: the model's, at most 4096].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub context: Option<u32>,
    /// Tokens of one step of prefill; results do not depend on it.
    #[arg(long, value_name = "N", default_value = "512", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub chunk: u32,
    /// Show no progress and no notes.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Where threads and weights of the cpu backend lie.
#[derive(Debug, Clone, Default, Args)]
pub struct PlacementArgs {
    /// Which cores threads stay on: those of one memory node after another, of all nodes alike, or
    /// any; auto is compact where memory has several nodes, else none [default: auto].
    #[arg(long, value_name = "PLACES", value_enum)]
    pub affinity: Option<AffinityArg>,
    /// Bytes in each socket's memory for copies of the weights that all sockets read most, or off;
    /// on one socket it changes nothing, on several it is not built yet [default: off].
    #[arg(long, value_name = "BYTES", value_parser = replicate)]
    pub hot_replicate: Option<Replicate>,
    /// Whether packed weights are kept on disk, in $XDG_CACHE_HOME/girih/packed, so that the next
    /// start reads them: also written, only read, or neither [default: on].
    #[arg(long, value_name = "USE", value_enum)]
    pub packed_cache: Option<PackedCache>,
    /// The most bytes of kept packed weights; those that were used longest ago go first
    /// [default: a fifth of the free space, at most 32 GiB].
    #[arg(long, value_name = "BYTES")]
    pub packed_cache_limit: Option<u64>,
    /// How kept packed weights are used: read into memory and checked, or mapped, which starts
    /// sooner, checks less and computes more slowly [default: read].
    #[arg(long, value_name = "HOW", value_enum)]
    pub weights: Option<KeptWeights>,
}

/// The values of `--weights`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum KeptWeights {
    #[default]
    Read,
    Mmap,
}

impl KeptWeights {
    /// Where the backend has them.
    pub fn residence(self) -> Residence {
        match self {
            KeptWeights::Read => Residence::Memory,
            KeptWeights::Mmap => Residence::File,
        }
    }
}

/// The values of `--packed-cache`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum PackedCache {
    #[default]
    On,
    ReadOnly,
    Off,
}

/// The values of `--affinity`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum AffinityArg {
    Auto,
    Compact,
    Scatter,
    None,
}

impl AffinityArg {
    /// What the backend calls it.
    pub fn affinity(self) -> Affinity {
        match self {
            AffinityArg::Auto => Affinity::Auto,
            AffinityArg::Compact => Affinity::Compact,
            AffinityArg::Scatter => Affinity::Scatter,
            AffinityArg::None => Affinity::None,
        }
    }
}

/// Reads a number of bytes or `off`.
fn replicate(text: &str) -> Result<Replicate, String> {
    match text {
        "off" => Ok(Replicate::Off),
        _ => text
            .parse()
            .map(Replicate::UpTo)
            .map_err(|_| format!("'{text}' is neither 'off' nor a number of bytes such as 1073741824")),
    }
}

/// The backends; the only list of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backend {
    /// The host's processor.
    Cpu,
    /// The definition of every operator: slow, exact, for comparison.
    Interpreter,
    /// The simulated array of this target.
    Npu(String),
}

impl Backend {
    /// Whether it is a simulated array.
    pub fn is_array(&self) -> bool {
        matches!(self, Backend::Npu(_))
    }

    /// The type in which it stores what operators yield.
    pub fn activations(&self) -> DType {
        match self {
            Backend::Cpu | Backend::Interpreter => DType::F32,
            Backend::Npu(_) => DType::BF16,
        }
    }
}

impl std::fmt::Display for Backend {
    /// As the command line names it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Backend::Cpu => f.write_str("cpu"),
            Backend::Interpreter => f.write_str("interpreter"),
            Backend::Npu(target) => write!(f, "npu:{target}"),
        }
    }
}

/// Reads the name of a backend.
pub fn backend(text: &str) -> Result<Backend, String> {
    match text.split_once(':') {
        None if text == "cpu" => Ok(Backend::Cpu),
        None if text == "interpreter" => Ok(Backend::Interpreter),
        Some(("npu", target)) => {
            let known = girih_npu::Target::names();
            if known.iter().any(|name| name == target) {
                return Ok(Backend::Npu(target.to_owned()));
            }
            Err(format!("no NPU target is called '{target}': known are {}", known.join(", ")))
        }
        _ => Err(format!("'{text}' is no backend: known are cpu, interpreter and npu:TARGET")),
    }
}

/// What activations can be rounded to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum ActPrecision {
    F32,
    Int8x2,
    Bf16,
    Int8,
}

impl ActPrecision {
    /// As the backend names it.
    pub fn precision(self) -> girih_cpu::Precision {
        match self {
            ActPrecision::F32 => girih_cpu::Precision::F32,
            ActPrecision::Int8x2 => girih_cpu::Precision::Int8x2,
            ActPrecision::Bf16 => girih_cpu::Precision::Bf16,
            ActPrecision::Int8 => girih_cpu::Precision::Int8,
        }
    }
}

/// The types that a KV cache can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs, non_camel_case_types)] // the names say it; Q8_0 as the format is written
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

/// How tokens are chosen. What is not set here is as the model's
/// generation_config.json says, else greedy.
#[derive(Debug, Clone, Args)]
pub struct SamplingArgs {
    /// The most tokens to generate; 0 for as many as the context holds [default: 256, or what the context leaves].
    #[arg(long, short = 'n', value_name = "N")]
    pub max_tokens: Option<u32>,
    /// 0 always takes the likeliest token.
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temp: Option<f32>,
    /// Keep this many likeliest tokens; 0 keeps all.
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Keep the likeliest tokens of together this probability.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Keep tokens at least this fraction as likely as the likeliest.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that have occurred; 1 is off.
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logits of tokens that the reply has.
    #[arg(long, value_name = "X", default_value = "0", allow_negative_numbers = true)]
    pub presence_penalty: f32,
    /// Subtracted once for each time that the reply has the token.
    #[arg(long, value_name = "X", default_value = "0", allow_negative_numbers = true)]
    pub frequency_penalty: f32,
    /// Added to the logit of a token; inf forces it, -inf rules it out; may be given several times.
    #[arg(long, value_name = "ID=X", value_parser = bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// Where the random numbers start; the same seed gives the same text.
    #[arg(long, default_value = "0")]
    pub seed: u64,
    /// What becomes of a prompt and reply that are more than the context holds: an error, or the
    /// oldest tokens but the first are left out and the rest is read anew; penalties then count
    /// what was kept.
    #[arg(long, value_name = "WAY", value_enum, default_value = "error")]
    pub overflow: Overflow,
    /// Ends the reply where this text would come; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

/// Reads `ID=X`.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parts.ok_or_else(|| format!("'{text}' is not ID=X, such as 15=-2.5"))
}
