//! The arguments that the commands of `girih npu` share: model, steps, target,
//! mapping and the cache of compiled programs.

use std::fmt::Display;
use std::path::Path;

use girih::Model;
use girih_file::shorten;
use girih_graph::{Graph, Key, OutputKind, faults};
use girih_model::ModelShape;
use girih_model::arch::Facts;
use girih_npu::driver::Compiler;
use girih_npu::pass::{ArrayMapping, ArrayWeights};
use girih_npu::{NpuOptions, Target};

use super::blobs::{self, BlobArgs};
use crate::args::{ArchArgs, KvType};
use crate::error::{Error, Result};
use crate::input::text_file;
use crate::loading;
use crate::progress::Show;

/// The maximum size of a graph file in bytes.
const GRAPH_BYTES: u64 = 64 << 20;

/// The default context, and the default maximum of rows per step.
const DEFAULT_CONTEXT: u32 = 2048;

/// The target if a call names none.
const DEFAULT_TARGET: &str = "xdna2-strix";

/// The help of an option that names a target.
pub fn target_help() -> String {
    format!("Array: {}", Target::names().join(", "))
}

/// What is compiled, and how.
#[derive(Debug, clap::Args)]
pub struct CompileModelArgs {
    /// Model, as for the other commands; a `config.json`, whose weights are not needed; or a file *.graph from
    /// `girih inspect --graph`.
    pub model: String,
    #[command(flatten)]
    pub compile: CompileArgs,
}

/// How a model is compiled, and where its programs are kept.
#[derive(Debug, clap::Args)]
pub struct CompileArgs {
    #[command(flatten)]
    layout: MappingArgs,
    #[command(flatten)]
    blobs: BlobArgs,
}

/// How a model is compiled.
#[derive(Debug, clap::Args)]
pub struct MappingArgs {
    #[command(flatten)]
    steps: StepArgs,
    /// Mapping of the model to the array: a file, or a name such as by-cost, mlir-air, mlir-air-tiles or unstitched.
    #[arg(long, value_name = "FILE|NAME", default_value = "by-cost")]
    pub mapping: String,
    /// Format in which the array holds the matrices of matrix products, instead of the mapping's: stored (as
    /// the model does if that is Q4NX, otherwise bf16), q4nx or bf16.
    #[arg(long, visible_alias = "npu-weights", value_name = "FORMAT")]
    weights: Option<ArrayWeights>,
}

/// Which steps of a model, on which array.
#[derive(Debug, clap::Args)]
pub struct StepArgs {
    #[command(flatten)]
    pub arch: ArchArgs,
    #[arg(long, value_name = "TARGET", help = format!("{} [default: {DEFAULT_TARGET}]", target_help()))]
    target: Option<String>,
    /// Rows of a prefill step [default: 2048, at most the context].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    rows: Option<u32>,
    /// Maximum number of positions of a sequence [default: 2048, at most the model's].
    #[arg(long, short = 'c', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
}

/// What is known of a model without reading its weights.
pub enum OpenedShape {
    /// A model with weights.
    Model(Model),
    /// A `config.json`.
    Config(Box<ModelShape>),
}

impl std::ops::Deref for CompileModelArgs {
    type Target = CompileArgs;

    fn deref(&self) -> &CompileArgs {
        &self.compile
    }
}

impl std::ops::Deref for CompileArgs {
    type Target = MappingArgs;

    fn deref(&self) -> &MappingArgs {
        &self.layout
    }
}

impl std::ops::Deref for MappingArgs {
    type Target = StepArgs;

    fn deref(&self) -> &StepArgs {
        &self.steps
    }
}

impl CompileModelArgs {
    /// The graphs of a prefill step and of a step of one token.
    ///
    /// # Errors
    /// As [`StepArgs::graphs_of`].
    pub fn graphs(&self) -> Result<Vec<Graph>> {
        self.graphs_of(&self.model)
    }

    /// The graph of a step of one token of each of several sequences: that of the fewest rows for which programs are
    /// compiled, at most `--rows`.
    ///
    /// # Errors
    /// When the model is a graph file or an encoder.
    pub fn token_graph(&self, sequences: u32) -> Result<Graph> {
        if self.model.ends_with(".graph") {
            return Err(Error::call(format!(
                "{}: a graph fixes its sequences; omit --sequences",
                self.model
            )));
        }
        let shape = self.shape(&self.model)?;
        if shape.facts().is_encoder() {
            return Err(Error::call(format!("{}: an encoder has no tokens; omit --sequences", self.model)));
        }
        let key = self.key_of(shape.max_context())?;
        let lengths = NpuOptions::default().lengths;
        let rows = lengths.into_iter().find(|rows| *rows >= sequences).unwrap_or(sequences);
        let rows = rows.min(key.rows).max(sequences);
        shape.graph(Key { rows, sequences, output_rows: sequences, ..key })
    }
}

impl StepArgs {
    /// The graphs of a prefill step and of a step of one token of the model or
    /// graph file `name`.
    ///
    /// # Errors
    /// When the file is malformed, or options contradict each other.
    pub fn graphs_of(&self, name: &str) -> Result<Vec<Graph>> {
        if name.ends_with(".graph") {
            if self.rows.is_some() || self.context.is_some() || !self.arch.is_empty() {
                let sentence =
                    "a graph fixes its rows and context; omit --rows, --context, --arch and --allow-key";
                return Err(Error::call(format!("{name}: {sentence}")));
            }
            return Ok(vec![read_graph(Path::new(name))?]);
        }
        let shape = self.shape(name)?;
        let key = self.key_of(shape.max_context())?;
        let single = Key { rows: 1, ..key };
        let keys = if key == single { vec![key] } else { vec![key, single] };
        keys.into_iter().map(|key| shape.graph(key)).collect()
    }

    /// Opens the model `name`, or reads a `config.json`: programs need no weights.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn shape(&self, name: &str) -> Result<OpenedShape> {
        Ok(if name.ends_with(".json") {
            OpenedShape::Config(Box::new(loading::open_shape(Path::new(name), &self.arch)?))
        } else {
            OpenedShape::Model(loading::open(name, &self.arch)?)
        })
    }

    /// The key of a prefill step of a model of at most `max` positions.
    ///
    /// # Errors
    /// When it has more positions than the model, or more rows than positions.
    pub fn key_of(&self, max: u32) -> Result<Key> {
        if let Some(context) = self.context.filter(|context| *context > max) {
            return Err(Error::call(format!("--context is {context}: the model supports at most {max}")));
        }
        let context = self.context.unwrap_or(DEFAULT_CONTEXT.min(max));
        let rows = self.rows.unwrap_or(DEFAULT_CONTEXT.min(context));
        if rows > context {
            return Err(Error::call(format!("--rows is {rows}: it must be at most --context, {context}")));
        }
        Ok(Key { rows, sequences: 1, context, output_rows: 1, output: OutputKind::Logits })
    }

    /// The positions of the sequence that a token ends, of a model of at most `max` positions: those
    /// of `--context`, otherwise at most `default`.
    pub fn token_context(&self, default: u32, max: u32) -> u32 {
        self.context.unwrap_or(default.min(max))
    }

    /// The array.
    ///
    /// # Errors
    /// When its name is unknown.
    pub fn array(&self) -> Result<Target> {
        named(self.target.as_deref().unwrap_or(DEFAULT_TARGET))
    }

    /// The array, if the call names one.
    ///
    /// # Errors
    /// When its name is unknown.
    pub fn named_array(&self) -> Result<Option<Target>> {
        self.target.as_deref().map(named).transpose()
    }
}

impl OpenedShape {
    fn facts(&self) -> &Facts {
        match self {
            OpenedShape::Model(model) => &model.files().facts,
            OpenedShape::Config(shape) => &shape.facts,
        }
    }

    /// The maximum number of positions of a sequence.
    pub fn max_context(&self) -> u32 {
        let context = match self {
            OpenedShape::Model(model) => return model.max_context(),
            OpenedShape::Config(shape) => shape.facts.sizes.context,
        };
        u32::try_from(context).unwrap_or(u32::MAX)
    }

    /// The graph for steps up to `key`; that of an encoder gives hidden rows, of all rows.
    ///
    /// # Errors
    /// When a parameter is invalid.
    pub fn graph(&self, key: Key) -> Result<Graph> {
        let state = KvType::Bf16.dtype();
        let key = match self.facts().is_encoder() {
            true => Key { output: OutputKind::Hidden, output_rows: key.rows, ..key },
            false => key,
        };
        Ok(match self {
            OpenedShape::Model(model) => model.files().graph(key, state)?,
            OpenedShape::Config(shape) => shape.graph(key, state)?,
        })
    }
}

impl CompileArgs {
    /// A compiler that uses and fills the cache of blobs.
    ///
    /// # Errors
    /// When the array, the mapping or the cache cannot be opened.
    pub fn compiler(&self) -> Result<Compiler> {
        self.compiler_for(self.mapping()?)
    }

    /// The same compiler with another mapping.
    ///
    /// # Errors
    /// As [`CompileArgs::compiler`].
    pub fn compiler_for(&self, mapping: ArrayMapping) -> Result<Compiler> {
        let cache = self.blobs.cache(Show::Notes)?;
        Ok(Compiler::new(self.array()?, mapping, cache).with_warnings(blobs::tell(Show::Notes)))
    }
}

impl MappingArgs {
    /// The mapping of the model to the array.
    ///
    /// # Errors
    /// As [`blobs::mapping`].
    pub fn mapping(&self) -> Result<ArrayMapping> {
        let mapping = blobs::mapping(&self.mapping)?;
        let weights = self.weights.unwrap_or(mapping.weights);
        Ok(ArrayMapping { weights, ..mapping })
    }

    /// A compiler without a cache, which makes every form of every program.
    ///
    /// # Errors
    /// When the array or the mapping cannot be opened.
    pub fn fresh_compiler(&self) -> Result<Compiler> {
        Ok(Compiler::new(self.array()?, self.mapping()?, None))
    }
}

/// The target of this name.
///
/// # Errors
/// When it is unknown; the error lists all targets.
pub fn named(target: &str) -> Result<Target> {
    Target::named(target).map_err(|error| Error::call(error.to_string()))
}

/// Reads a graph from a file of its text form.
fn read_graph(path: &Path) -> Result<Graph> {
    let failed = |error: &dyn Display| Error::call(format!("{}: {}", path.display(), shorten(error)));
    let text = text_file(path, GRAPH_BYTES)?;
    let graph: Graph = text.parse().map_err(|error| failed(&error))?;
    if let Some(fault) = faults(&graph).first() {
        return Err(failed(fault));
    }
    let Key { rows, sequences, context, .. } = graph.key;
    if sequences == 1 && rows > context {
        return Err(failed(&format!("it has {rows} rows of a sequence, and {context} positions for them")));
    }
    Ok(graph)
}
