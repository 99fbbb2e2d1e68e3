//! `girih npu`: a model or a graph compiled for a simulated array, what became
//! of it, and how long it takes. Each command has a file; here is what names
//! the work: model, steps, target and mapping.

mod bench;
mod compile;
mod inspect;
mod report;
mod runtime;
mod sim;
mod sweep;
mod trace;

use std::fmt::Display;
use std::path::Path;

use girih_graph::{Graph, Key, Variant, faults};
use girih_npu::Target;
use girih_npu::driver::Compiler;
use girih_npu::pass::ArrayMapping;

use super::{Outcome, print_json};
use crate::args::{ArchArgs, KvType};
use crate::array::{self, BlobArgs};
use crate::error::{Error, Result};
use crate::input::text_file;
use crate::loading::Place;
use crate::output::print;
use crate::progress::Show;

/// The longest graph, in bytes, that is read from a file.
const GRAPH_BYTES: u64 = 64 << 20;

/// Positions of the longest sequence, and the most rows of a step, where nobody
/// says how many.
const USUAL: u32 = 2048;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Compile every program, and keep the blobs.
    Compile(compile::Args),
    /// Print what a blob holds, or what of a model the array does and what the host, and why.
    Inspect(inspect::Args),
    /// Simulate the time of a step, without values.
    Sim(sim::Args),
    /// Compare the ways in which the runtime can work, and the lengths that programs are compiled for.
    Runtime(runtime::Args),
    /// Search for the mapping that takes the least time, and say why it does.
    Sweep(sweep::Args),
    /// Report what a model does on the array, with pictures; compare simulated times with published
    /// ones; or print the figures behind them.
    Report(report::Args),
    /// Measure how long compiling and simulating take on this machine.
    Bench(bench::Args),
}

/// What is compiled, and how.
#[derive(Debug, clap::Args)]
struct Source {
    /// A model, as for the other commands, or a file *.graph as `girih inspect --graph` prints it.
    model: String,
    #[command(flatten)]
    choice: Choice,
}

/// How a model is compiled, and where its programs are kept.
#[derive(Debug, clap::Args)]
struct Choice {
    #[command(flatten)]
    layout: Layout,
    #[command(flatten)]
    blobs: BlobArgs,
}

/// How a model is compiled.
#[derive(Debug, clap::Args)]
struct Layout {
    #[command(flatten)]
    steps: Steps,
    /// How the model is laid onto the array: a file, or a name, such as mlir-air, seed-000 or unstitched.
    #[arg(long, value_name = "FILE|NAME", default_value = "mlir-air")]
    mapping: String,
}

/// Which steps of a model, on which array.
#[derive(Debug, clap::Args)]
struct Steps {
    #[command(flatten)]
    arch: ArchArgs,
    /// The array, such as toy or xdna2-strix; another name lists those that there are.
    #[arg(long, value_name = "TARGET", default_value = "xdna2-strix")]
    target: String,
    /// Rows of a step of prefill [default: 2048, or as many as the context has].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    rows: Option<u32>,
    /// Positions of the longest sequence [default: 2048].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
}

pub fn run(args: &Args) -> Result<Outcome> {
    match &args.command {
        Command::Compile(args) => compile::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Runtime(args) => runtime::run(args),
        Command::Sweep(args) => sweep::run(args),
        Command::Report(args) => report::run(args),
        Command::Bench(args) => bench::run(args),
    }
}

impl std::ops::Deref for Source {
    type Target = Choice;

    fn deref(&self) -> &Choice {
        &self.choice
    }
}

impl std::ops::Deref for Choice {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        &self.layout
    }
}

impl std::ops::Deref for Layout {
    type Target = Steps;

    fn deref(&self) -> &Steps {
        &self.steps
    }
}

impl Source {
    /// The graphs of a step of prefill and of a step of one token.
    fn graphs(&self) -> Result<Vec<Graph>> {
        self.graphs_of(&self.model)
    }
}

impl Steps {
    /// The graphs of a step of prefill and of a step of one token.
    fn graphs_of(&self, name: &str) -> Result<Vec<Graph>> {
        if name.ends_with(".graph") {
            if self.rows.is_some() || self.context.is_some() || !self.arch.arch.is_empty() {
                let sentence =
                    "a graph says its own rows and context; --rows, --context and --arch are of models";
                return Err(Error::call(format!("{name}: {sentence}")));
            }
            return Ok(vec![read_graph(Path::new(name))?]);
        }
        let model = Place::find(name)?.model(&self.arch)?;
        let key = self.key()?;
        let single = Key { rows: 1, ..key };
        let keys = if key == single { vec![key] } else { vec![key, single] };
        keys.into_iter().map(|key| Ok(model.graph(key, KvType::Bf16.dtype())?)).collect()
    }

    /// The key of a step of prefill.
    fn key(&self) -> Result<Key> {
        let context = self.context.unwrap_or(USUAL);
        let rows = self.rows.unwrap_or(USUAL.min(context));
        if rows > context {
            return Err(Error::call(format!("--rows is {rows}: it must be at most --context, {context}")));
        }
        Ok(Key { rows, sequences: 1, context, output_rows: 1, variant: Variant::GENERATE })
    }

    /// The array.
    fn array(&self) -> Result<Target> {
        Target::named(&self.target).map_err(|error| Error::call(error.to_string()))
    }
}

impl Choice {
    /// A compiler that takes what it can from kept blobs, and keeps the rest.
    fn compiler(&self) -> Result<Compiler> {
        self.compiler_for(self.mapping()?)
    }

    /// The same by another mapping.
    fn compiler_for(&self, mapping: ArrayMapping) -> Result<Compiler> {
        let cache = self.blobs.cache(Show::All)?;
        Ok(Compiler::new(self.array()?, mapping, cache).telling(array::tell(Show::All)))
    }
}

impl Layout {
    /// How the model is laid onto the array.
    fn mapping(&self) -> Result<ArrayMapping> {
        array::mapping(&self.mapping)
    }

    /// A compiler that compiles everything, so that each form is seen.
    fn fresh_compiler(&self) -> Result<Compiler> {
        Ok(Compiler::new(self.array()?, self.mapping()?, None))
    }
}

/// A graph from a file of its text form.
fn read_graph(path: &Path) -> Result<Graph> {
    let failed = |error: &dyn Display| Error::call(format!("{}: {error}", path.display()));
    let text = text_file(path, GRAPH_BYTES)?;
    let graph: Graph = text.parse().map_err(|error| failed(&error))?;
    match faults(&graph).first() {
        None => Ok(graph),
        Some(fault) => Err(failed(fault)),
    }
}
