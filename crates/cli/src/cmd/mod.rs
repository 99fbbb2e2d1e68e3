//! The command line and its commands, one module each. No command imports from
//! this file.

pub mod alias;
pub mod bench;
pub mod chat;
pub mod completions;
pub mod diagnose;
pub mod doctor;
pub mod embed;
pub mod health;
pub mod hub;
pub mod inspect;
pub mod launch;
pub mod man;
pub mod merge;
pub mod npu;
pub mod outcome;
pub mod perplexity;
pub mod profile;
pub mod quantize;
pub mod render;
pub mod run;
pub mod serve;
mod template_digest;
pub mod tokenize;
pub mod verify;
mod verify_source;

use std::ffi::OsString;

use clap::{Command, Parser, Subcommand};

use crate::error::{Error, Result};
use outcome::Outcome;

/// Run open-weight language models, with verified accuracy and measured speed.
#[derive(Debug, Parser)]
#[command(name = "girih", version, subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

/// The commands, in the order in which the help lists them.
#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Answer a prompt; without a model, tell a story with the small built-in one.
    Run(run::Args),
    /// Chat with a model.
    Chat(chat::Args),
    /// Serve models over HTTP, for clients of OpenAI's, Anthropic's and Ollama's APIs.
    Serve(serve::Args),
    /// Print what an agent such as Claude Code needs to use a server of girih, or start it so.
    Launch(launch::Args),
    /// Ask a server whether it answers; exit code 1 if it is not ready.
    Health(health::Args),
    /// Print one vector for each text.
    Embed(embed::Args),
    /// Show the tokens of a text.
    Tokenize(tokenize::Args),
    /// Apply the model's chat template.
    Render(render::Args),
    /// Show a model's architecture, weights and memory needs; exit code 1 if its tokenizer or chat template is broken.
    Inspect(inspect::Args),
    /// Check a model against reference outputs, or a .gguf file against the folder it was made from; exit code 1 if they disagree.
    Verify(verify::Args),
    /// Compare a model with reference outputs or another backend, layer by layer.
    Diagnose(diagnose::Args),
    /// Measure a model's perplexity on a text.
    Perplexity(perplexity::Args),
    /// Measure a model's speed, with the tests of llama-bench.
    Bench(bench::Args),
    /// Measure the time of each operator.
    Profile(profile::Args),
    /// Download a model into the Hugging Face cache.
    Pull(hub::PullArgs),
    /// List the models in the Hugging Face cache.
    List(hub::ListArgs),
    /// Remove a model from the Hugging Face cache, or girih's packed weights.
    Rm(hub::RmArgs),
    /// Check every file in the Hugging Face cache and remove broken ones.
    Repair(hub::RepairArgs),
    /// Convert a model to another container or storage format.
    Quantize(quantize::Args),
    /// Write a model with an adapter (LoRA) in its weights.
    Merge(merge::Args),
    /// List the aliases of models, add one, or remove one.
    Alias(alias::Args),
    /// Compile models for a simulated NPU, and simulate their execution.
    Npu(npu::Args),
    /// Report this machine's capabilities, devices and bottlenecks.
    Doctor(doctor::Args),
    /// Print a shell's completions of this command line.
    Completions(completions::Args),
    /// Print the manual page of girih or of a command.
    Man(man::Args),
}

/// Runs the command of the command line. `faults` are those of the environment and the configuration
/// file, for the command that reports them; `command_line` describes all commands, and `again` reads the command line
/// with further options.
///
/// # Errors
/// When the call is wrong or the work fails.
pub fn dispatch(
    cli: Cli,
    faults: Vec<String>,
    command_line: fn() -> Command,
    again: fn(&[OsString]) -> Result<Cli>,
) -> Result<Outcome> {
    match cli.command {
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Chat(args) => chat::run(&args),
        CliCommand::Serve(args) => serve::run(args, move |more| match again(more)?.command {
            CliCommand::Serve(args) => Ok(args),
            _ => Err(Error::work("further options have changed the command")),
        }),
        CliCommand::Launch(args) => launch::run(&args),
        CliCommand::Health(args) => health::run(&args),
        CliCommand::Embed(args) => embed::run(&args),
        CliCommand::Tokenize(args) => tokenize::run(&args),
        CliCommand::Render(args) => render::run(&args),
        CliCommand::Inspect(args) => inspect::run(&args),
        CliCommand::Verify(args) => verify::run(&args),
        CliCommand::Diagnose(args) => diagnose::run(&args),
        CliCommand::Perplexity(args) => perplexity::run(&args),
        CliCommand::Bench(args) => bench::run(&args),
        CliCommand::Profile(args) => profile::run(&args),
        CliCommand::Pull(args) => hub::pull(&args),
        CliCommand::List(args) => hub::list(&args),
        CliCommand::Rm(args) => hub::rm(&args),
        CliCommand::Repair(args) => hub::repair(&args),
        CliCommand::Quantize(args) => quantize::run(&args),
        CliCommand::Merge(args) => merge::run(&args),
        CliCommand::Alias(args) => alias::run(&args),
        CliCommand::Npu(args) => npu::run(&args),
        CliCommand::Doctor(args) => doctor::run(&args, faults),
        CliCommand::Completions(args) => completions::run(&args, command_line()),
        CliCommand::Man(args) => man::run(&args, command_line()),
    }
}
