//! The source of each setting: a flag overrides the environment, which
//! overrides the configuration file, which overrides the default.
//!
//! Every flag `--some-flag` has one variable, `GIRIH_SOME_FLAG`, and one key in
//! the configuration file, `some-flag`, both derived from it. Variables and keys
//! that do not apply are ignored; on the command line they are errors.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::iter;
use std::path::PathBuf;

use clap::builder::{Resettable, Styles};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches, Id};
use girih::{BackendChoice, BackendInfo};
use girih_file::{fault_in_line, quote, shorten};

use crate::backend_args::{self, BACKEND};
use crate::cmd::Cli;
use crate::cmd::diagnose::REFERENCE;
use crate::error::{Error, Result};
use crate::input::{DESCRIPTION_BYTES, text_file};
use crate::visible::is_obeyed;

/// The maximum bytes of an argument that the parser's messages repeat as it is.
const REPEATED_BYTES: usize = 200;

/// The bytes of a message of the parser from which on it is shortened.
const MESSAGE_BYTES: usize = 600;

/// Flags that have no variable and no key.
const NO_SETTING: &[&str] = &["help", "version"];

/// Reads the command line, the environment and the configuration file.
///
/// # Errors
/// When the call or the configuration file is wrong.
pub fn read() -> Result<Cli> {
    let file = configuration()?;
    let command = Cli::command();
    let unknown = unknown_keys(&command, &file);
    if let Some(key) = unknown.first() {
        return Err(Error::call(format!(
            "unknown key {} in the configuration file: no command has such a flag",
            quote(key)
        )));
    }
    // Parses the command line alone first, to find the arguments that are typed; errors
    // are reported below.
    let typed = command.clone().ignore_errors(true).try_get_matches().ok();
    let command = all_with_sources(command, &file, typed.as_ref());
    let unprintable = has_unprintable_text(&file);
    let command = if unprintable { command.styles(Styles::plain()) } else { command };
    let matches = command.try_get_matches().map_err(|error| usage(error, unprintable))?;
    refuse_idle_options(innermost(&matches))?;
    Cli::from_arg_matches(&matches).map_err(|error| usage(error, unprintable))
}

/// Whether a text is long, or has characters that a terminal obeys.
fn is_unprintable(text: &OsStr) -> bool {
    text.len() > REPEATED_BYTES || text.to_string_lossy().contains(is_obeyed)
}

/// Whether an argument, a variable or a value of the configuration file cannot be repeated as it is:
/// it is long, or has characters that a terminal obeys.
fn has_unprintable_text(file: &BTreeMap<String, String>) -> bool {
    let of_girih = |name: &OsStr| name.to_string_lossy().starts_with("GIRIH_");
    std::env::args_os().any(|text| is_unprintable(&text))
        || std::env::vars_os().any(|(name, text)| of_girih(&name) && is_unprintable(&text))
        || file.values().any(|text| is_unprintable(text.as_ref()))
}

/// The parser's message. If it may repeat what cannot be printed, it becomes an error without colours:
/// then all escape codes in it are foreign, and are made visible.
fn usage(error: clap::Error, unprintable: bool) -> Error {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !unprintable || is_help || !error.use_stderr() {
        return Error::Usage(Box::new(error));
    }
    let text = error.render().ansi().to_string();
    let text = text.trim_start_matches("error: ").trim_end();
    if text.len() > MESSAGE_BYTES { Error::call(shorten(text)) } else { Error::call(text) }
}

/// The arguments of the innermost subcommand.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    iter::successors(Some(matches), |matches| Some(matches.subcommand()?.1)).last().unwrap_or(matches)
}

/// A command whose flags, and those of its subcommands, also read their
/// variables and keys, except those that conflict with what is `typed`.
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
        // A variable or key may be set without the flags that its flag requires.
        let arg = if is_typed(&arg) { arg } else { arg.requires(Resettable::Reset) };
        with_sources(arg, file)
    });
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        let typed = typed.and_then(|typed| typed.subcommand()).filter(|(chosen, _)| *chosen == name);
        command.mut_subcommand(name, |sub| all_with_sources(sub, file, typed.map(|(_, matches)| matches)))
    })
}

/// The arguments that conflict with one that is typed.
fn excluded(command: &Command, is_typed: impl Fn(&Arg) -> bool) -> Vec<Id> {
    let exclude = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let typed: Vec<&Arg> = command.get_arguments().filter(|arg| is_typed(arg)).collect();
    let all = command.get_arguments();
    let excluded = all.filter(|arg| typed.iter().any(|typed| exclude(typed, arg) || exclude(arg, typed)));
    excluded.map(|arg| arg.get_id().clone()).collect()
}

/// Whether an argument is on the command line itself.
fn is_on_command_line(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// A flag that also reads its variable and key.
fn with_sources(arg: Arg, file: &BTreeMap<String, String>) -> Arg {
    let Some(long) = arg.get_long().filter(|long| !NO_SETTING.contains(long)).map(str::to_owned) else {
        return arg;
    };
    let variable = format!("GIRIH_{}", long.to_uppercase().replace('-', "_"));
    let arg = arg.env(variable).hide_env_values(true);
    match file.get(&long) {
        // A default does not satisfy clap's `required`.
        // Help must not send what a terminal obeys.
        Some(value) => arg
            .default_value(value.clone())
            .required(false)
            .hide_default_value(is_unprintable(value.as_ref())),
        None => arg,
    }
}

fn unknown_keys(command: &Command, file: &BTreeMap<String, String>) -> Vec<String> {
    file.keys().filter(|key| !is_flag(command, key)).cloned().collect()
}

/// Whether a command or one of its subcommands has a flag of this name.
fn is_flag(command: &Command, name: &str) -> bool {
    let has_it = command.get_arguments().any(|arg| arg.get_long() == Some(name));
    has_it || command.get_subcommands().any(|sub| is_flag(sub, name))
}

/// The values in `$GIRIH_CONFIG`, else `$XDG_CONFIG_HOME/girih/config.toml`,
/// else `~/.config/girih/config.toml`; empty if there is no file.
fn configuration() -> Result<BTreeMap<String, String>> {
    let named = std::env::var_os("GIRIH_CONFIG").map(PathBuf::from);
    let Some(path) = named.clone().or_else(default_path) else { return Ok(BTreeMap::new()) };
    if named.is_none() && matches!(path.try_exists(), Ok(false)) {
        return Ok(BTreeMap::new());
    }
    let text = text_file(&path, DESCRIPTION_BYTES)?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let fault = fault_in_line(&text, error.span().map(|span| span.start), error.message());
        Error::call(format!("{}: is not valid TOML: {fault}", path.display()))
    })?;
    table.into_iter().map(|(key, value)| Ok((key.clone(), single_value(&path, &key, value)?))).collect()
}

fn default_path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| Some(set("HOME")?.join(".config")))?;
    Some(config.join("girih/config.toml"))
}

fn single_value(path: &std::path::Path, key: &str, value: toml::Value) -> Result<String> {
    match value {
        toml::Value::String(text) => Ok(text),
        toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => Ok(value.to_string()),
        _ => Err(Error::call(format!(
            "{}: {} is a list or a table; a single value is needed",
            path.display(),
            quote(key)
        ))),
    }
}

/// Refuses options on the command line that have no effect on the backends of
/// this call. Variables and the configuration file apply to many calls, so
/// theirs are ignored.
fn refuse_idle_options(matches: &ArgMatches) -> Result<()> {
    // Not every command has a backend, and few a second one.
    let named = |id| matches.try_get_one::<BackendChoice>(id).ok().flatten();
    let Some(backend) = named(BACKEND) else { return Ok(()) };
    // A reference keeps its options only if none of them makes it more exact.
    let reference = named(REFERENCE).map(BackendChoice::info).filter(|info| info.exact.is_empty());
    for (spec, owners) in backend_args::options() {
        let has = |info: &BackendInfo| owners.contains(&info.name);
        let applies = has(backend.info()) || reference.is_some_and(has);
        if !applies && is_on_command_line(matches, spec.name) {
            let (name, owner) = (spec.name, owners.join(" and "));
            return Err(Error::call(format!(
                "--{name} applies only to the {owner} backend; omit it for others"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_key_without_a_flag_is_found() {
        // Only subcommands of `npu` have the last flag.
        let keys = ["threads", "thread", "trace-events"];
        let file = keys.map(|key| (key.to_owned(), "2".to_owned())).into();
        assert_eq!(unknown_keys(&Cli::command(), &file), ["thread"]);
    }
}
