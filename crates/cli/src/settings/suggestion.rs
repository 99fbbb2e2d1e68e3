//! The nearest name for a misspelled command or option, in place of the parser's.

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use girih_file::nearest;

/// An error about a word that `command` does not know, with the nearest name that it knows. The
/// parser's own suggestions compare beginnings, so that 'rn' would be 'render' instead of 'run'.
pub fn with_nearest(mut error: clap::Error, command: &Command) -> clap::Error {
    let (unknown, suggested) = match error.kind() {
        ErrorKind::InvalidSubcommand => (ContextKind::InvalidSubcommand, ContextKind::SuggestedSubcommand),
        ErrorKind::UnknownArgument => (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        // Other errors name an option that exists.
        _ => return error,
    };
    let Some(ContextValue::String(word)) = error.get(unknown).cloned() else { return error };
    let options = command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?)));
    let names: Vec<String> = match error.kind() {
        ErrorKind::InvalidSubcommand => {
            command.get_subcommands().map(|command| command.get_name().to_owned()).collect()
        }
        _ if word.starts_with("--") => options.collect(),
        _ => return error,
    };
    let name = nearest(&word, names.iter().map(String::as_str)).map(str::to_owned);
    error.remove(suggested);
    if let Some(name) = name {
        let value = match suggested {
            ContextKind::SuggestedArg => ContextValue::String(name),
            _ => ContextValue::Strings(vec![name]),
        };
        error.insert(suggested, value);
    }
    error
}
