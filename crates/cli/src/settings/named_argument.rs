//! Arguments that are also options, as in llama.cpp: `-m MODEL` and `-p PROMPT`.

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::typed_options::is_on_command_line;

/// The ids of arguments with the names of their options.
const NAMES: [(&str, char, &str); 3] =
    [("model", 'm', "model"), ("models", 'm', "model"), ("prompt", 'p', "prompt")];

/// The id of the option that stands for an argument.
fn option_id(argument: &str) -> String {
    format!("{argument}-option")
}

/// The arguments of a command that are also options.
fn named(command: &Command) -> Vec<(&'static str, char, &'static str)> {
    let is_free = |short: char| !command.get_arguments().any(|arg| arg.get_short() == Some(short));
    let has = |id: &str| command.get_positionals().any(|arg| arg.get_id() == id);
    NAMES.into_iter().filter(|(id, short, _)| has(id) && is_free(*short)).collect()
}

/// The command and its subcommands with an option beside each such argument.
pub fn offered(command: Command) -> Command {
    let command = named(&command).into_iter().fold(command, |command, (id, short, long)| {
        let value = long.to_uppercase();
        let help = format!("The same as the argument {value}");
        let repeats = id == "models";
        let action = if repeats { ArgAction::Append } else { ArgAction::Set };
        let option = Arg::new(option_id(id)).short(short).long(long).value_name(value).help(help);
        command.arg(option.action(action))
    });
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, offered))
}

/// The command in which each argument that is `typed` as an option is this option, so that the other
/// arguments move up. `typed` comes from a command that [`offered`] returned.
pub fn chosen(command: Command, path: &[String], typed: &ArgMatches) -> Command {
    let Some((name, path)) = path.split_first() else { return chosen_here(command, typed) };
    match typed.subcommand_matches(name) {
        Some(typed) => command.mut_subcommand(name, |sub| chosen(sub, path, typed)),
        None => command,
    }
}

fn chosen_here(command: Command, typed: &ArgMatches) -> Command {
    let options = names_of_typed(&command, typed);
    options.into_iter().fold(command, |command, (id, short, long)| {
        command.mut_arg(id, |arg| {
            // An option takes one value at a time; an argument may take all that follow.
            arg.short(short).long(long).num_args(1).value_name(long.to_uppercase())
        })
    })
}

fn names_of_typed(command: &Command, typed: &ArgMatches) -> Vec<(&'static str, char, &'static str)> {
    named(command).into_iter().filter(|(id, ..)| is_on_command_line(typed, &option_id(id))).collect()
}

/// The sentence for an argument that is left over because another one was typed as an option.
pub fn left_over(error: &clap::Error, typed: &ArgMatches) -> Option<String> {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidArg) else { return None };
    if error.kind() != ErrorKind::UnknownArgument || word.starts_with('-') {
        return None;
    }
    let (_, short, long) = NAMES.into_iter().find(|(id, ..)| is_on_command_line(typed, &option_id(id)))?;
    let (word, value) = (girih_file::quote(word), long.to_uppercase());
    Some(format!("unexpected argument {word}: -{short} gives the {value}; remove one of the two"))
}
