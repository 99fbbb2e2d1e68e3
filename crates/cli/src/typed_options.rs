//! Which options were typed. A variable or a key of the configuration file is for many calls, so
//! one that does not apply is ignored; a typed option that does not apply is an error.

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, FromArgMatches};

/// The options of a command that are on the command line itself. It adds no option, and must be
/// the first field of a command's arguments, because later fields remove their values from the matches.
#[derive(Clone, Debug, Default)]
pub struct TypedOptions(Vec<String>);

impl TypedOptions {
    /// The first of `names` that was typed.
    pub fn first<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.has(name))
    }

    /// Whether an option was typed.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|typed| typed.replace('_', "-") == name)
    }
}

impl Args for TypedOptions {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for TypedOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<TypedOptions, clap::Error> {
        let is_typed = |id: &&clap::Id| is_on_command_line(matches, id.as_str());
        Ok(TypedOptions(matches.ids().filter(is_typed).map(|id| id.as_str().to_owned()).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = TypedOptions::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Whether an argument is on the command line itself.
pub fn is_on_command_line(matches: &ArgMatches, id: &str) -> bool {
    let known = matches.try_contains_id(id).is_ok();
    known && matches.value_source(id) == Some(ValueSource::CommandLine)
}
