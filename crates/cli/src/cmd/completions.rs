//! `girih completions`: what a shell needs to complete this command line.

use std::path::PathBuf;

use clap::{Command, ValueEnum};
use clap_complete::{Generator, Shell, generate};
use girih_file::replace_file;

use super::outcome::Outcome;
use crate::error::Result;
use crate::output::{make_folder, print};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell.
    #[arg(value_enum, required_unless_present = "output_folder")]
    shell: Option<Shell>,
    /// Write the completions of all shells into this folder instead.
    #[arg(long, value_name = "DIR", conflicts_with = "shell")]
    output_folder: Option<PathBuf>,
}

/// Prints or writes the completions of `command`.
pub fn run(args: &Args, mut command: Command) -> Result<Outcome> {
    let name = command.get_name().to_owned();
    let mut text = |shell: Shell| {
        let mut text = Vec::new();
        generate(shell, &mut command, &name, &mut text);
        text
    };
    if let Some(shell) = args.shell {
        print(String::from_utf8_lossy(&text(shell)))?;
    }
    if let Some(folder) = &args.output_folder {
        make_folder(folder)?;
        for shell in Shell::value_variants() {
            replace_file(&folder.join(shell.file_name(&name)), &text(*shell))?;
        }
    }
    Ok(Outcome::Done)
}
