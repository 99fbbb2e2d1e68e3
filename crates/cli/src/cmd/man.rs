//! `girih man`: manual pages, made from the same description as the help.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};

use clap::Command;
use clap_mangen::Man;
use girih_file::{nearest, quote, replace_file};

use super::outcome::Outcome;
use crate::error::{Error, Result};
use crate::output::{make_folder, print, print_note};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Command, such as run, or npu sim [default: girih itself].
    command: Vec<String>,
    /// Write the pages of all commands into this folder instead.
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    output_folder: Option<PathBuf>,
}

/// Prints or writes the pages of `command`.
pub fn run(args: &Args, mut command: Command) -> Result<Outcome> {
    // Gives each subcommand its whole name, such as girih-npu-sim.
    command.build();
    match &args.output_folder {
        Some(folder) => {
            make_folder(folder)?;
            write_pages(&command, folder)?;
        }
        None => {
            let chosen = args.command.iter().try_fold(&command, subcommand)?;
            show(&page(chosen)?)?;
        }
    }
    Ok(Outcome::Done)
}

/// Shows a page: formatted by `man` on a terminal, and as it is elsewhere, or without `man`.
fn show(page: &[u8]) -> Result<()> {
    let text = || print(String::from_utf8_lossy(page));
    if !io::stdout().is_terminal() {
        return text();
    }
    let Ok(mut man) = Process::new("man").args(["-l", "-"]).stdin(Stdio::piped()).spawn() else {
        print_note("the program `man`, which would format this page, was not found");
        return text();
    };
    // A reader that leaves early closes the pipe.
    let _ = man.stdin.take().map(|mut pipe| pipe.write_all(page));
    man.wait()?;
    Ok(())
}

fn subcommand<'a>(command: &'a Command, name: &String) -> Result<&'a Command> {
    command.find_subcommand(name).ok_or_else(|| {
        let meant = nearest(name, command.get_subcommands().map(Command::get_name));
        let meant = meant.map(|name| format!("; did you mean {}?", quote(name))).unwrap_or_default();
        Error::call(format!("{} has no command {}{meant}", title(command).replace('-', " "), quote(name)))
    })
}

/// The name of a page, such as `girih-run`.
fn title(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn page(command: &Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page)?;
    Ok(page)
}

fn write_pages(command: &Command, folder: &std::path::Path) -> Result<()> {
    replace_file(&folder.join(format!("{}.1", title(command))), &page(command)?)?;
    command.get_subcommands().try_for_each(|sub| write_pages(sub, folder))
}
