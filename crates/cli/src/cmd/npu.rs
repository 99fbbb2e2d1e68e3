//! `girih npu`: a model or a graph compiled for a simulated array, what became
//! of it, and how long it takes. Each command has a file; here is what names
//! the work: model, target and mapping.

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
use girih_npu::pass::Mapping;

use super::{Outcome, print_json};
use crate::args::{ArchArgs, KvType};
use crate::array::{self, BlobArgs};
use crate::error::{Error, Result};
use crate::loading::Place;
use crate::output::print;
use crate::progress::Show;

/// The longest graph, in bytes, that is read from a file.
const GRAPH_BYTES: u64 = 64 << 20;

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

/// How a model is compiled.
#[derive(Debug, clap::Args)]
struct Choice {
    #[command(flatten)]
    arch: ArchArgs,
    /// The array, such as toy or xdna2-strix; another name lists those that there are.
    #[arg(long, value_name = "TARGET", default_value = "xdna2-strix")]
    target: String,
    /// How the model is laid onto the array: a file, or a name, such as mlir-air, seed-000 or unstitched.
    #[arg(long, value_name = "FILE|NAME", default_value = "mlir-air")]
    mapping: String,
    /// Rows of a step of prefill.
    #[arg(long, value_name = "N", default_value = "2048", value_parser = clap::value_parser!(u32).range(1..=65536))]
    rows: u32,
    /// Positions of the longest sequence.
    #[arg(long, value_name = "N", default_value = "2048", value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,
    #[command(flatten)]
    blobs: BlobArgs,
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

impl Source {
    /// The graphs of a step of prefill and of a step of one token.
    fn graphs(&self) -> Result<Vec<Graph>> {
        self.graphs_of(&self.model)
    }
}

impl Choice {
    /// The graphs of a step of prefill and of a step of one token.
    fn graphs_of(&self, name: &str) -> Result<Vec<Graph>> {
        if name.ends_with(".graph") {
            return Ok(vec![read_graph(Path::new(name))?]);
        }
        let model = Place::find(name)?.model(&self.arch)?;
        let key = self.key();
        let single = Key { rows: 1, ..key };
        let keys = if key == single { vec![key] } else { vec![key, single] };
        keys.into_iter().map(|key| Ok(model.graph(key, KvType::Bf16.dtype())?)).collect()
    }

    /// The key of a step of prefill.
    fn key(&self) -> Key {
        let rows = self.rows.min(self.context);
        Key { rows, lanes: 1, context: self.context, wanted: 1, variant: Variant::GENERATE }
    }

    /// A compiler that takes what it can from kept blobs, and keeps the rest.
    fn compiler(&self) -> Result<Compiler> {
        self.compiler_for(self.mapping()?)
    }

    /// How the model is laid onto the array.
    fn mapping(&self) -> Result<Mapping> {
        array::mapping(&self.mapping)
    }

    /// The same by another mapping.
    fn compiler_for(&self, mapping: Mapping) -> Result<Compiler> {
        let target = Target::named(&self.target).map_err(|error| Error::call(error.to_string()))?;
        let cache = self.blobs.cache(Show::All)?;
        Ok(Compiler::new(target, mapping, cache).telling(array::tell(Show::All)))
    }

    /// A compiler that compiles everything, so that each form is seen.
    fn fresh_compiler(&self) -> Result<Compiler> {
        let target = Target::named(&self.target).map_err(|error| Error::call(error.to_string()))?;
        Ok(Compiler::new(target, self.mapping()?, None))
    }
}

/// A graph from a file of its text form.
fn read_graph(path: &Path) -> Result<Graph> {
    let failed = |error: &dyn Display| Error::call(format!("{}: {error}", path.display()));
    let text = array::read_text(path, GRAPH_BYTES)?;
    let graph: Graph = text.parse().map_err(|error| failed(&error))?;
    match faults(&graph).first() {
        None => Ok(graph),
        Some(fault) => Err(failed(fault)),
    }
}
