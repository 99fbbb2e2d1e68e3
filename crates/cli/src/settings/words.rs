//! The words of the command line before they are parsed.

use std::ffi::OsString;

use clap::Command;

use crate::backend_args;
use crate::error::{Error, Result};

/// The options of llama.cpp for layers on a GPU that girih does not have.
const GPU_LAYERS: [&str; 2] = ["-ngl", "--n-gpu-layers"];

/// The options for a part of a model that a build with the backend `gpu` has.
const OWN_GPU_PARTS: [&str; 2] = ["gpu-layers", "cpu-experts"];

/// The words, with `help COMMAND` as `COMMAND --help`.
///
/// # Errors
/// When they ask for layers on a GPU by an option of llama.cpp, or this build has no GPUs.
pub fn read(command: &Command) -> Result<Vec<OsString>> {
    let words: Vec<OsString> = std::env::args_os().collect();
    refuse_gpu_layers(&words)?;
    Ok(with_help_last(command, words))
}

/// The parser would take `-ngl 99` for `-n gl`.
fn refuse_gpu_layers(words: &[OsString]) -> Result<()> {
    let options = words.iter().skip(1).map_while(|word| word.to_str().filter(|word| *word != "--"));
    let has_gpus = backend_args::options().iter().any(|(spec, _)| spec.name == OWN_GPU_PARTS[0]);
    for word in options {
        let name = word.split('=').next().unwrap_or_default();
        if name.strip_prefix("--").is_some_and(|name| OWN_GPU_PARTS.contains(&name)) {
            if !has_gpus {
                return Err(without_gpus(name));
            }
            continue;
        }
        if let Some(known) = GPU_LAYERS.into_iter().find(|known| name == *known || word.starts_with("-ngl")) {
            return Err(match has_gpus {
                true => Error::call(format!("girih has no option {known}: use --backend gpu --gpu-layers N")),
                false => without_gpus(known),
            });
        }
    }
    Ok(())
}

/// The error of an option for GPUs in a build without them.
fn without_gpus(option: &str) -> Error {
    Error::call(format!(
        "{option} needs a GPU, and this girih was built without the feature gpu: build it with `--features gpu`, or \
         remove {option}"
    ))
}

fn with_help_last(command: &Command, mut words: Vec<OsString>) -> Vec<OsString> {
    let at = 1 + path(command, &words).len();
    if words.get(at).is_some_and(|word| word == "help") {
        words.remove(at);
        words.push("--help".into());
    }
    words
}

/// The names of the command and its subcommands that the words choose.
pub fn path(command: &Command, words: &[OsString]) -> Vec<String> {
    let mut path = Vec::new();
    let mut command = command;
    for word in words.iter().skip(1).map_while(|word| word.to_str()) {
        let Some(sub) = command.find_subcommand(word) else { break };
        path.push(sub.get_name().to_owned());
        command = sub;
    }
    path
}

/// The command that a path leads to.
pub fn innermost<'a>(command: &'a Command, path: &[String]) -> &'a Command {
    path.iter().fold(command, |command, name| command.find_subcommand(name).unwrap_or(command))
}

/// The last value of an option among the words, such as that of `--backend`.
pub fn value_of<'a>(words: &'a [OsString], option: &str) -> Option<&'a str> {
    let words: Vec<&str> = words.iter().skip(1).map_while(|word| word.to_str()).collect();
    let next = words.windows(2).rev().find(|pair| pair[0] == option).map(|pair| pair[1]);
    let joined = words.iter().rev().find_map(|word| word.strip_prefix(option)?.strip_prefix('='));
    joined.or(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn command() -> Command {
        Command::new("girih").subcommand(Command::new("npu").subcommand(Command::new("sim")))
    }

    #[test]
    fn help_of_a_command_is_that_commands_option() {
        let rewritten = |line: &str| with_help_last(&command(), words(line));
        assert_eq!(rewritten("girih help npu sim"), words("girih npu sim --help"));
        assert_eq!(rewritten("girih npu help sim"), words("girih npu sim --help"));
        assert_eq!(rewritten("girih help"), words("girih --help"));
        assert_eq!(rewritten("girih npu sim help"), words("girih npu sim --help"));
        assert_eq!(rewritten("girih npu sim a help"), words("girih npu sim a help"));
    }

    #[test]
    fn layers_on_a_gpu_are_refused_in_every_spelling() {
        for line in ["run -ngl 99", "run -ngl99", "run --n-gpu-layers 1"] {
            assert!(refuse_gpu_layers(&words(&format!("girih {line}"))).is_err(), "{line}");
        }
        // A build with GPUs has these options.
        for line in ["girih run --gpu-layers=1", "girih run --cpu-experts"] {
            assert_eq!(refuse_gpu_layers(&words(line)).is_ok(), cfg!(feature = "gpu"), "{line}");
        }
        for line in ["run -n 9", "run -- -ngl", "run --no-gl"] {
            assert!(refuse_gpu_layers(&words(&format!("girih {line}"))).is_ok(), "{line}");
        }
    }

    #[test]
    fn the_last_value_of_an_option_is_found() {
        let value = |line: &str| value_of(&words(line), "--backend").map(str::to_owned);
        assert_eq!(value("girih run --backend npu:toy"), Some("npu:toy".to_owned()));
        assert_eq!(value("girih run --backend=cpu --help"), Some("cpu".to_owned()));
        assert_eq!(value("girih run --backend"), None);
    }
}
