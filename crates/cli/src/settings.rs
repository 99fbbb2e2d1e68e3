//! The source of each setting: a flag overrides the environment, which
//! overrides the configuration file, which overrides the default.
//!
//! Every flag `--some-flag` has one variable, `GIRIH_SOME_FLAG`, and one key in
//! the configuration file, `some-flag`, both derived from it; a short flag is a key, too.
//! Flags that delete or name an output have neither. Variables and keys
//! that do not apply are ignored; on the command line they are errors.

mod foreign;
mod named_argument;
mod source;
mod suggestion;
mod typed_only;
mod usage;
mod value_fault;
mod warning;
mod words;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::iter;

use clap::builder::Styles;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use girih::{BackendChoice, BackendInfo};

use crate::backend_args::{self, BACKEND};
use crate::cmd::Cli;
use crate::cmd::diagnose::REFERENCE;
use crate::config_file::{ConfigFile, variable_of};
use crate::error::{Error, Result};
use crate::help;
use crate::output::print_note;
use crate::typed_options::is_on_command_line;
use source::{SettingFault, SettingSources};
use usage::{has_unprintable_text, usage};

/// The command that reports faulty settings and goes on.
const REPORTER: &str = "doctor";

/// The command that writes the configuration file.
const WRITER: &str = "alias";

/// What is to be done.
#[derive(Debug)]
pub struct Invocation {
    /// The command with its options.
    pub cli: Cli,
    /// The faults of the environment and the configuration file; empty unless the command reports them.
    pub faults: Vec<String>,
}

/// The whole command line, as pages and completions describe it.
pub fn command_line() -> Command {
    help::arranged(named_argument::offered(Cli::command()), None)
}

/// Reads the command line, the environment and the configuration file.
///
/// # Errors
/// When the call, a variable or the configuration file is wrong.
pub fn read() -> Result<Invocation> {
    let command = named_argument::offered(Cli::command());
    let call = Call::of(foreign::translated(&command, words::read(&command)?)?);
    // An alias may be the first thing in a new file.
    let is_writer = call.path.first().is_some_and(|name| name == WRITER);
    let file = if is_writer { ConfigFile::read_if_present() } else { ConfigFile::read() };
    if call.is_about_girih() || call.reports() {
        let (file, fault) = match file {
            Ok(file) => (file, None),
            Err(Error::Call(sentence)) => (ConfigFile::default(), Some(sentence)),
            Err(error) => return Err(error),
        };
        let mut sources = SettingSources { file: &file, ignored: BTreeSet::new() };
        let faults = fault.into_iter().chain(call.all_faults(&mut sources)).collect();
        return call.parse(&sources).map(|cli| Invocation { cli, faults });
    }
    let sources = SettingSources { file: &file?, ignored: BTreeSet::new() };
    let cli = call.parse(&sources)?;
    if let Some(sentence) = warning::refused_key(command_line, sources.file) {
        return Err(Error::call(sentence));
    }
    Ok(Invocation { cli, faults: Vec::new() })
}

/// Reads the same command line with `more` options, which override those that are typed.
///
/// # Errors
/// As [`read`].
pub fn read_again(more: &[OsString]) -> Result<Cli> {
    let command = named_argument::offered(Cli::command());
    let mut words = foreign::translated(&command, words::read(&command)?)?;
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words.splice(end..end, more.iter().cloned());
    let file = ConfigFile::read()?;
    let sources = SettingSources { file: &file, ignored: BTreeSet::new() };
    let again = Call { warns: false, ..Call::from(Cli::command().args_override_self(true), words) };
    again.parse(&sources)
}

/// A call of the program.
struct Call {
    /// The command line, without sources.
    command: Command,
    words: Vec<OsString>,
    /// The names of the chosen command and its subcommands.
    path: Vec<String>,
    /// What is typed, unless the call asks for help.
    typed: Option<ArgMatches>,
    /// Whether it warns of variables and keys that set nothing.
    warns: bool,
}

impl Call {
    /// The call that these words make; their errors are reported when it is parsed.
    fn of(words: Vec<OsString>) -> Call {
        Call::from(Cli::command(), words)
    }

    /// As [`Call::of`], of this command line.
    fn from(plain: Command, words: Vec<OsString>) -> Call {
        let path = words::path(&plain, &words);
        let offered = named_argument::offered(plain.clone());
        let typed =
            help::arranged(offered.clone(), None).ignore_errors(true).try_get_matches_from(&words).ok();
        let command = match &typed {
            Some(typed) => named_argument::offered(named_argument::chosen(plain, &path, typed)),
            None => offered,
        };
        Call { command, words, path, typed, warns: true }
    }

    /// Whether the call asks for help or the version, which a faulty configuration must not prevent.
    fn is_about_girih(&self) -> bool {
        self.typed.is_none()
    }

    /// Whether the command reports faulty settings.
    fn reports(&self) -> bool {
        self.path.first().is_some_and(|name| name == REPORTER)
    }

    /// Parses the call with its sources.
    fn parse(&self, sources: &SettingSources<'_>) -> Result<Cli> {
        let unprintable = has_unprintable_text(sources.file);
        let fail = |error| usage(error, &self.path, unprintable);
        let styled = |command: Command| if unprintable { command.styles(Styles::plain()) } else { command };
        // The command line is parsed alone first: later errors then come from a variable or key.
        let backend = self.shown_backend(sources);
        let arranged = help::arranged(styled(self.command.clone()), Some(&backend));
        let mut plain_help = None;
        if let Err(error) = arranged.clone().try_get_matches_from(&self.words) {
            let sentence = self.typed.as_ref().and_then(|typed| {
                let typed = words_matches(typed, &self.path);
                named_argument::left_over(&error, typed)
            });
            if let Some(sentence) = sentence {
                return Err(Error::call(sentence));
            }
            // A source may set what is missing, and help shows what a source sets.
            let is_final =
                !matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::DisplayHelp);
            if is_final {
                let chosen = words::innermost(&arranged, &self.path);
                return Err(fail(suggestion::with_nearest(error, chosen)));
            }
            plain_help = Some(error).filter(|error| error.kind() == ErrorKind::DisplayHelp);
        }
        let parsed = parse_with(arranged, &self.words, &self.path, self.typed.as_ref(), sources);
        let matches = match parsed {
            Ok(matches) => matches,
            Err(ParseFault::Setting(fault)) => {
                return Err(plain_help.map_or_else(|| Error::call(fault.sentence), fail));
            }
            Err(ParseFault::Usage(error)) => {
                if error.use_stderr() && self.warns {
                    warn(sources.file);
                }
                return Err(fail(error));
            }
        };
        let chosen = innermost(&matches);
        if self.warns && !is_quiet(chosen) && !self.reports() {
            warn(sources.file);
        }
        refuse_idle_options(chosen)?;
        Cli::from_arg_matches(&matches).map_err(fail)
    }

    /// The backend whose options help shows: that of the call, or the default.
    fn shown_backend(&self, sources: &SettingSources<'_>) -> String {
        let typed = words::value_of(&self.words, "--backend").map(str::to_owned);
        let variable = || std::env::var(variable_of(BACKEND)).ok();
        let key = || sources.file.value(BACKEND).map(str::to_owned);
        let name = typed.or_else(variable).or_else(key).unwrap_or_default();
        let name = name.split(':').next().unwrap_or_default();
        let known = girih::backends().iter().find(|info| info.name == name);
        known.unwrap_or(&girih::backends()[0]).name.to_owned()
    }

    /// The faults of all variables and keys in any command; they are ignored from then on.
    fn all_faults(&self, sources: &mut SettingSources<'_>) -> Vec<String> {
        if self.is_about_girih() {
            return Vec::new();
        }
        let mut faults = warning::warnings(command_line, sources.file);
        faults.extend(warning::refused_key(command_line, sources.file));
        let mut paths = Vec::new();
        leaves(&self.command, &mut Vec::new(), &mut paths);
        for path in paths {
            let words: Vec<OsString> =
                iter::once("girih").chain(path.iter().map(String::as_str)).map(OsString::from).collect();
            // Each round ignores another source, so the loop ends.
            while let Err(ParseFault::Setting(fault)) =
                parse_with(self.command.clone(), &words, &path, None, sources)
            {
                let is_new = sources.ignored.insert(fault.source);
                faults.push(fault.sentence);
                if !is_new {
                    break;
                }
            }
        }
        faults
    }
}

/// Why a call with sources is refused.
enum ParseFault {
    Setting(SettingFault),
    Usage(clap::Error),
}

/// Parses words with the sources of the command at `path`.
fn parse_with(
    command: Command,
    words: &[OsString],
    path: &[String],
    typed: Option<&ArgMatches>,
    sources: &SettingSources<'_>,
) -> Result<ArgMatches, ParseFault> {
    let command = sources.attach(command, path, typed).map_err(ParseFault::Setting)?;
    command.clone().try_get_matches_from(words).map_err(|error| {
        let chosen = words::innermost(&command, path);
        let fault = match error.kind() {
            ErrorKind::InvalidUtf8 => value_fault::not_unicode(chosen, sources),
            _ => value_fault::value_fault(&error, chosen, sources),
        };
        fault.map_or(ParseFault::Usage(error), ParseFault::Setting)
    })
}

/// Prints a warning for each variable and key that sets no option.
fn warn(file: &ConfigFile) {
    warning::warnings(command_line, file)
        .iter()
        .for_each(|line| print_note(format_args!("girih: warning: {line}")));
}

/// The paths of all commands that have no subcommands.
fn leaves(command: &Command, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    if !command.has_subcommands() {
        found.push(path.clone());
    }
    for sub in command.get_subcommands() {
        path.push(sub.get_name().to_owned());
        leaves(sub, path, found);
        path.pop();
    }
}

/// Whether a call hides notes.
fn is_quiet(matches: &ArgMatches) -> bool {
    matches.try_get_one::<bool>("quiet").ok().flatten() == Some(&true)
}

/// The arguments of the innermost subcommand.
fn innermost(matches: &ArgMatches) -> &ArgMatches {
    iter::successors(Some(matches), |matches| Some(matches.subcommand()?.1)).last().unwrap_or(matches)
}

/// The arguments of the subcommand at `path`.
fn words_matches<'a>(matches: &'a ArgMatches, path: &[String]) -> &'a ArgMatches {
    path.iter().fold(matches, |matches, name| matches.subcommand_matches(name).unwrap_or(matches))
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
        command_line().debug_assert();
    }

    /// The words of a line of a shell, up to a pipe or a redirection.
    fn words_of(line: &str) -> Vec<OsString> {
        let line = line.split(['|', '>']).next().unwrap_or_default();
        let parts = line.split('"').enumerate();
        let words = parts.flat_map(|(at, part)| {
            let is_quoted = at % 2 == 1;
            if is_quoted { vec![part] } else { part.split_whitespace().collect() }
        });
        words.map(OsString::from).collect()
    }

    #[test]
    fn the_examples_of_help_are_calls() {
        let command = command_line();
        let mut paths = vec![Vec::new()];
        leaves(&command, &mut Vec::new(), &mut paths);
        let mut count = 0;
        for path in paths {
            let help =
                words::innermost(&command, &path).get_after_help().expect("it has examples").to_string();
            for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
                let call = Call::of(words_of(line));
                assert!(call.path.starts_with(&path), "{line}");
                let parsed = help::arranged(call.command, None).try_get_matches_from(&call.words);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                count += 1;
            }
        }
        assert!(count > 30, "{count} examples");
    }

    /// Nothing outside the command line makes girih delete or write what the user did not name.
    #[test]
    fn flags_that_delete_or_write_are_only_typed() {
        let command = command_line();
        typed_only::each_option(&command, &mut |name, arg| {
            let (Some(long), Some(help)) = (arg.get_long(), arg.get_help()) else { return };
            let help = help.to_string();
            let verb = help.split(' ').next().unwrap_or_default();
            if ["Write", "Append", "Remove", "Delete", "Save"].contains(&verb) {
                assert!(!typed_only::has_setting(name, long), "{name} --{long}: {help}");
            }
        });
    }
}
