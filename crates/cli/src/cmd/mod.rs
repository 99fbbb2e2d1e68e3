//! The commands, one module each.

pub mod bench;
pub mod chat;
pub mod diagnose;
pub mod doctor;
pub mod hub;
pub mod inspect;
pub mod npu;
pub mod perplexity;
pub mod profile;
pub mod quantize;
pub mod render;
pub mod run;
pub mod tokenize;
pub mod verify;

use serde::Serialize;

use crate::args::{Cli, Command};
use crate::error::Result;

/// How a command ended that could do its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Exit code 0.
    Done,
    /// The answer is no: exit code 1.
    Failed,
}

/// Does what the command line says.
///
/// # Errors
/// When the call is wrong or the work cannot be done.
pub fn dispatch(cli: Cli) -> Result<Outcome> {
    match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Chat(args) => chat::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Render(args) => render::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Verify(args) => verify::verify(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Pull(args) => hub::pull(&args),
        Command::List(args) => hub::list(&args),
        Command::Rm(args) => hub::rm(&args),
        Command::Repair(args) => hub::repair(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Npu(args) => npu::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    }
}

/// Prints one line of JSON.
fn print_json(value: &impl Serialize) -> Result<()> {
    print_line!("{}", serde_json::to_string(value)?)
}

/// A number of bytes for people: `1.50 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| count >= *size) {
        Some((unit, size)) => format!("{:.2} {unit}", count as f64 / *size as f64),
        None => format!("{count} B"),
    }
}
