//! The variable or key that sets an option which the command line leaves out.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::builder::{Resettable, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, Id};
use girih_file::quote;

use super::typed_only::has_setting;
use crate::config_file::{ConfigFile, variable_of};
use crate::typed_options::is_on_command_line;
use crate::visible::is_unprintable;

/// What sets an option.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SettingSource {
    /// A variable of the environment.
    Variable(String),
    /// A key of the configuration file.
    Key(String),
}

/// A variable or key whose value its option refuses.
#[derive(Debug)]
pub struct SettingFault {
    /// The variable or key.
    pub source: SettingSource,
    /// The place, the value and the reason.
    pub sentence: String,
}

/// The environment and the configuration file.
#[derive(Debug)]
pub struct SettingSources<'a> {
    /// The file.
    pub file: &'a ConfigFile,
    /// What must not set an option, as it is faulty.
    pub ignored: BTreeSet<SettingSource>,
}

impl SettingSources<'_> {
    /// What sets an option of a command.
    pub fn of(&self, command: &str, arg: &Arg) -> Option<SettingSource> {
        let long = arg.get_long().filter(|long| has_setting(command, long))?;
        let variable = variable_of(long);
        let is_set = std::env::var_os(&variable).is_some_and(|value| !is_off_switch(arg, &value));
        let short = arg.get_short().map(String::from);
        let key = [Some(long.to_owned()), short].into_iter().flatten().find(|key| self.file.has(key));
        let found = [is_set.then_some(SettingSource::Variable(variable)), key.map(SettingSource::Key)];
        found.into_iter().flatten().find(|source| !self.ignored.contains(source))
    }

    /// A setting with its place and its value.
    pub fn assignment(&self, source: &SettingSource) -> String {
        match source {
            SettingSource::Variable(name) => {
                let value = std::env::var_os(name).unwrap_or_default();
                format!("{name}={}", quote(&value.to_string_lossy()))
            }
            SettingSource::Key(key) => self.file.assignment_of(key),
        }
    }

    /// The command whose subcommands are named by `path`, with the sources of the last one's options,
    /// except of those that conflict with what is `typed`.
    ///
    /// # Errors
    /// When two keys set one option, or the value of a key is a list or a table.
    pub fn attach(
        &self,
        command: Command,
        path: &[String],
        typed: Option<&ArgMatches>,
    ) -> Result<Command, SettingFault> {
        let Some((name, path)) = path.split_first() else { return self.attach_here(command, typed) };
        let typed = typed.and_then(|typed| typed.subcommand_matches(name));
        let Some(sub) = command.find_subcommand(name).cloned() else { return Ok(command) };
        let sub = self.attach(sub, path, typed)?;
        Ok(command.mut_subcommand(name, |_| sub))
    }

    fn attach_here(&self, command: Command, typed: Option<&ArgMatches>) -> Result<Command, SettingFault> {
        let name = command.get_name().to_owned();
        let is_typed =
            |arg: &Arg| typed.is_some_and(|typed| is_on_command_line(typed, arg.get_id().as_str()));
        let has_variable = |arg: &Arg| matches!(self.of(&name, arg), Some(SettingSource::Variable(_)));
        let without_variable = excluded(&command, is_typed);
        let without_key = excluded(&command, |arg| {
            is_typed(arg) || (has_variable(arg) && !without_variable.contains(arg.get_id()))
        });
        let mut settings = Vec::new();
        for arg in command.get_arguments().filter(|arg| !is_typed(arg)) {
            let source = self.of(&name, arg).filter(|source| match source {
                SettingSource::Variable(_) => !without_variable.contains(arg.get_id()),
                SettingSource::Key(_) => !without_key.contains(arg.get_id()),
            });
            if let Some(source) = source {
                self.check(arg, &source)?;
                settings.push((arg.get_id().clone(), source));
            }
        }
        Ok(command.mut_args(|arg| {
            // A variable or key may be set without the options that its option requires.
            let arg = if is_typed(&arg) { arg } else { arg.requires(Resettable::Reset) };
            match settings.iter().find(|(id, _)| id == arg.get_id()) {
                Some((_, source)) => self.set(arg, source),
                None => arg,
            }
        }))
    }

    /// Refuses what cannot be the value of one option.
    fn check(&self, arg: &Arg, source: &SettingSource) -> Result<(), SettingFault> {
        let SettingSource::Key(key) = source else { return Ok(()) };
        let fault = |sentence: String| Err(SettingFault { source: source.clone(), sentence });
        let short = arg.get_short().map(String::from);
        if let Some(short) = short.filter(|short| short != key && self.file.has(short)) {
            let place = self.file.place_of(&short);
            return fault(format!("{place} sets the same option as {}; remove one of them", quote(key)));
        }
        match self.file.value(key) {
            Some(_) => Ok(()),
            None => {
                fault(format!("{} is a list or a table; a single value is needed", self.file.place_of(key)))
            }
        }
    }

    fn set(&self, arg: Arg, source: &SettingSource) -> Arg {
        let is_switch = is_switch(&arg);
        let arg = if is_switch { arg.value_parser(ValueParser::new(switch)) } else { arg };
        match source {
            SettingSource::Variable(name) => arg.env(name).hide_env(true),
            // clap does not count a default as given. Help hides a default with control characters.
            SettingSource::Key(key) => {
                let value = self.file.value(key).unwrap_or_default();
                let arg = arg.default_value(value.to_owned()).required(false);
                if is_unprintable(value.as_ref()) && !is_switch { arg.hide_default_value(true) } else { arg }
            }
        }
    }
}

/// Whether an option takes no value.
fn is_switch(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::SetTrue)
}

/// Whether the value leaves a switch off, as if it were not there.
fn is_off_switch(arg: &Arg, value: &OsString) -> bool {
    is_switch(arg) && value.to_str().and_then(|text| switch(text).ok()) == Some(false)
}

/// Parses the value of a switch.
fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" => Ok(true),
        "0" | "false" | "no" => Ok(false),
        _ => Err("use one of 1, 0, true, false, yes and no".to_owned()),
    }
}

/// The arguments that conflict with one that is set.
fn excluded(command: &Command, is_set: impl Fn(&Arg) -> bool) -> Vec<Id> {
    let exclude = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    let set: Vec<&Arg> = command.get_arguments().filter(|arg| is_set(arg)).collect();
    let all = command.get_arguments();
    let excluded = all.filter(|arg| set.iter().any(|set| exclude(set, arg) || exclude(arg, set)));
    excluded.map(|arg| arg.get_id().clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_has_six_values() {
        assert_eq!(["1", "true", "YES"].map(switch), [const { Ok(true) }; 3]);
        assert_eq!(["0", "False", "no"].map(switch), [const { Ok(false) }; 3]);
        for text in ["", "on", "2", "yess"] {
            assert!(switch(text).is_err(), "{text}");
        }
    }
}
