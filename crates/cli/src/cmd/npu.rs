//! `girih npu`: a model or a graph compiled for a simulated array, what became
//! of it, and how long it takes. Each command has a file; here is what names
//! the work: model, target and policy.

mod compile;
mod inspect;
mod report;
mod sim;

use std::fmt::Display;
use std::path::Path;

use girih_graph::{Graph, faults};
use girih_npu::Target;
use girih_npu::blob::Cache;
use girih_npu::driver::Compiler;
use girih_npu::pass::Policy;

use super::{Outcome, print_json};
use crate::args::{ArchArgs, KvType};
use crate::error::{Error, Result};
use crate::loading::Place;
use crate::output::print;

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
    /// Print what a blob holds.
    Inspect(inspect::Args),
    /// Simulate the time of a step, without values.
    Sim(sim::Args),
    /// Compare simulated times with published ones, or print the figures behind them.
    Report(report::Args),
}

/// What is compiled, and how.
#[derive(Debug, clap::Args)]
struct Source {
    /// A model, as for the other commands, or a file *.graph as `girih inspect --graph` prints it.
    model: String,
    #[command(flatten)]
    arch: ArchArgs,
    /// The array, such as toy or xdna2-strix; another name lists those that there are.
    #[arg(long, value_name = "TARGET", default_value = "xdna2-strix")]
    target: String,
    /// What shares a program and where attention runs.
    #[arg(long, value_name = "POLICY", default_value = "mlir-air", value_parser = policy)]
    policy: Policy,
    /// Rows of a step of prefill.
    #[arg(long, value_name = "N", default_value = "2048", value_parser = clap::value_parser!(u32).range(1..=65536))]
    rows: u32,
    /// Positions of the longest sequence.
    #[arg(long, value_name = "N", default_value = "2048", value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,
}

/// Reads the name of a policy.
fn policy(text: &str) -> Result<Policy, String> {
    let found = Policy::ALL.iter().find(|(name, _)| *name == text);
    found.map(|(_, policy)| *policy).ok_or_else(|| {
        let known: Vec<&str> = Policy::ALL.iter().map(|(name, _)| *name).collect();
        format!("no policy is called '{text}': known are {}", known.join(", "))
    })
}

pub fn run(args: &Args) -> Result<Outcome> {
    match &args.command {
        Command::Compile(args) => compile::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Sim(args) => sim::run(args),
        Command::Report(args) => report::run(args),
    }
}

impl Source {
    /// The graphs of a step of prefill and of a step of one token.
    fn graphs(&self) -> Result<Vec<Graph>> {
        if self.model.ends_with(".graph") {
            return Ok(vec![read_graph(Path::new(&self.model))?]);
        }
        let model = Place::find(&self.model)?.model(&self.arch)?;
        let key = girih_graph::Key {
            rows: self.rows.min(self.context),
            lanes: 1,
            context: self.context,
            wanted: 1,
            variant: girih_graph::Variant::GENERATE,
        };
        let single = girih_graph::Key { rows: 1, ..key };
        let keys = if key == single { vec![key] } else { vec![key, single] };
        keys.into_iter().map(|key| Ok(model.graph(key, KvType::Bf16.dtype())?)).collect()
    }

    fn compiler(&self, blobs: Option<&Path>) -> Result<Compiler> {
        let target = Target::named(&self.target).map_err(|error| Error::call(error.to_string()))?;
        let cache = blobs.map(Cache::open).transpose()?;
        Ok(Compiler::new(target, self.policy, cache))
    }
}

/// A graph from a file of its text form.
fn read_graph(path: &Path) -> Result<Graph> {
    let failed = |error: &dyn Display| Error::call(format!("{}: {error}", path.display()));
    if std::fs::metadata(path).map_err(|error| failed(&error))?.len() > GRAPH_BYTES {
        return Err(failed(&format!("a graph has at most {GRAPH_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(&error))?;
    let graph: Graph = text.parse().map_err(|error| failed(&error))?;
    match faults(&graph).first() {
        None => Ok(graph),
        Some(fault) => Err(failed(fault)),
    }
}
