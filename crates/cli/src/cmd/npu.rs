//! `girih npu`: compiles a model or a graph for a simulated array, and reports
//! the programs and their time. Each command has a file.

mod args;
mod bench;
mod blobs;
mod compare;
mod compile;
mod emit_folder;
mod inspect;
mod report;
mod runtime;
mod sim;
mod sweep;
mod trace;

use super::outcome::Outcome;
use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: NpuCommand,
}

#[derive(Debug, clap::Subcommand)]
enum NpuCommand {
    /// Compile every program and keep the blobs.
    Compile(compile::Args),
    /// Print a blob, or how a model's work is divided between array and host.
    Inspect(inspect::Args),
    /// Simulate the time of a step, without values.
    Sim(sim::Args),
    /// Compare the runtime's settings and the lengths for which programs are compiled.
    Runtime(runtime::Args),
    /// Compile several models and print their times in one table.
    Compare(compare::Args),
    /// Search for the fastest mapping and explain the result.
    Sweep(sweep::Args),
    /// Report a model's work on the array, with pictures; compare simulated times with published
    /// ones; or print the figures behind them.
    Report(report::Args),
    /// Measure the time of compiling and simulating on this machine.
    Bench(bench::Args),
}

pub fn run(args: &Args) -> Result<Outcome> {
    match &args.command {
        NpuCommand::Compile(args) => compile::run(args),
        NpuCommand::Inspect(args) => inspect::run(args),
        NpuCommand::Sim(args) => sim::run(args),
        NpuCommand::Runtime(args) => runtime::run(args),
        NpuCommand::Compare(args) => compare::run(args),
        NpuCommand::Sweep(args) => sweep::run(args),
        NpuCommand::Report(args) => report::run(args),
        NpuCommand::Bench(args) => bench::run(args),
    }
}
