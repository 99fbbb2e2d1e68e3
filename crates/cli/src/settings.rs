//! Where a setting comes from: a flag beats the environment, which beats the
//! configuration file, which beats the default.
//!
//! Every flag `--some-flag` has one variable, `GIRIH_SOME_FLAG`, and one key in
//! the configuration file, `some-flag`; neither is written down a second time.
//! They are set for many calls: where a flag cannot be used with what stands on
//! the command line, they do not count.

use std::collections::BTreeMap;
use std::iter;
use std::path::PathBuf;

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Id};

use crate::args::Cli;
use crate::backends::refuse_idle_options;
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};

/// Flags that say what a call is, not how girih is set up.
const NO_SETTING: &[&str] = &["help", "version"];

/// The command line with everything that stands behind it.
///
/// # Errors
/// When the call or the configuration file is wrong.
pub fn read() -> Result<Cli> {
    let file = configuration()?;
    let command = Cli::command();
    let unknown = unknown_keys(&command, &file);
    if let Some(key) = unknown.first() {
        return Err(Error::call(format!(
            "the configuration file sets '{key}', which is no flag of any command"
        )));
    }
    // Read first without what stands behind it, whatever else is wrong with it.
    let typed = command.clone().ignore_errors(true).try_get_matches().ok();
    let command = all_with_sources(command, &file, typed.as_ref());
    let matches = command.try_get_matches().map_err(|error| Error::Usage(Box::new(error)))?;
    refuse_idle_options(innermost(&matches))?;
    Cli::from_arg_matches(&matches).map_err(|error| Error::Usage(Box::new(error)))
}

/// What was said to the command that does the work.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    iter::successors(Some(matches), |matches| Some(matches.subcommand()?.1)).last().unwrap_or(matches)
}

/// A command whose flags, and those of the commands below it, also read their
/// variables and keys, beside what is `typed`.
fn all_with_sources(
    command: Command,
    file: &BTreeMap<String, String>,
    typed: Option<&ArgMatches>,
) -> Command {
    let is_typed = |arg: &Arg| typed.is_some_and(|typed| is_on_command_line(typed, arg.get_id().as_str()));
    let excluded = excluded(&command, is_typed);
    let command = command.mut_args(|arg| {
        if excluded.contains(arg.get_id()) {
            return arg;
        }
        // What is set for many calls need not have an effect in each.
        let arg = if is_typed(&arg) { arg } else { arg.requires(Resettable::Reset) };
        with_sources(arg, file)
    });
    let below: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    below.into_iter().fold(command, |command, name| {
        let typed = typed.and_then(|typed| typed.subcommand()).filter(|(chosen, _)| *chosen == name);
        command.mut_subcommand(name, |sub| all_with_sources(sub, file, typed.map(|(_, below)| below)))
    })
}

/// The arguments that cannot be used with one that is typed.
fn excluded(command: &Command, is_typed: impl Fn(&Arg) -> bool) -> Vec<Id> {
    let exclude = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let typed: Vec<&Arg> = command.get_arguments().filter(|arg| is_typed(arg)).collect();
    let all = command.get_arguments();
    let excluded = all.filter(|arg| typed.iter().any(|typed| exclude(typed, arg) || exclude(arg, typed)));
    excluded.map(|arg| arg.get_id().clone()).collect()
}

/// Whether an argument stands on the command line itself.
pub fn is_on_command_line(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// A flag that also reads its variable and its key.
fn with_sources(arg: Arg, file: &BTreeMap<String, String>) -> Arg {
    let Some(long) = arg.get_long().filter(|long| !NO_SETTING.contains(long)).map(str::to_owned) else {
        return arg;
    };
    let variable = format!("GIRIH_{}", long.to_uppercase().replace('-', "_"));
    let arg = arg.env(variable).hide_env_values(true);
    match file.get(&long) {
        // The parser takes no default for an answer to what it requires.
        Some(value) => arg.default_value(value.clone()).required(false),
        None => arg,
    }
}

fn unknown_keys(command: &Command, file: &BTreeMap<String, String>) -> Vec<String> {
    file.keys().filter(|key| !is_flag(command, key)).cloned().collect()
}

/// Whether a command, or one below it, has a flag of this name.
fn is_flag(command: &Command, name: &str) -> bool {
    let has_it = command.get_arguments().any(|arg| arg.get_long() == Some(name));
    has_it || command.get_subcommands().any(|sub| is_flag(sub, name))
}

/// The values in `$GIRIH_CONFIG`, else `$XDG_CONFIG_HOME/girih/config.toml`,
/// else `~/.config/girih/config.toml`; none where there is no file.
fn configuration() -> Result<BTreeMap<String, String>> {
    let named = std::env::var_os("GIRIH_CONFIG").map(PathBuf::from);
    let Some(path) = named.clone().or_else(usual_place) else { return Ok(BTreeMap::new()) };
    if named.is_none() && matches!(path.try_exists(), Ok(false)) {
        return Ok(BTreeMap::new());
    }
    let text = text_file(&path, DESCRIPTION_BYTES)?;
    let table: toml::Table =
        text.parse().map_err(|error| Error::call(format!("{}: is no TOML: {error}", path.display())))?;
    table.into_iter().map(|(key, value)| Ok((key.clone(), plain(&path, &key, value)?))).collect()
}

fn usual_place() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("girih/config.toml"))
}

fn plain(path: &std::path::Path, key: &str, value: toml::Value) -> Result<String> {
    match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok(value.to_string()),
        _ => {
            Err(Error::call(format!("{}: '{key}' is a list or a table; one value is needed", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_key_of_no_flag_is_found() {
        // The last is a flag of commands below `npu` only.
        let keys = ["threads", "thread", "trace-events"];
        let file = keys.map(|key| (key.to_owned(), "2".to_owned())).into();
        assert_eq!(unknown_keys(&Cli::command(), &file), ["thread"]);
    }
}
