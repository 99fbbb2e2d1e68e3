//! The nearest name for a misspelled command or option for which the parser knows none.

use clap::Command;
use clap::error::{ContextKind, ContextValue};
use girih_file::nearest;

/// An error about a word that `command` does not know, with the nearest name that it knows.
pub fn with_nearest(mut error: clap::Error, command: &Command) -> clap::Error {
    let word = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word.clone()),
        _ => None,
    };
    if let Some(word) = word(ContextKind::InvalidSubcommand) {
        let names = command.get_subcommands().map(Command::get_name);
        if let Some(name) =
            nearest(&word, names).filter(|_| error.get(ContextKind::SuggestedSubcommand).is_none())
        {
            let names = ContextValue::Strings(vec![name.to_owned()]);
            error.insert(ContextKind::SuggestedSubcommand, names);
        }
    } else if let Some(word) = word(ContextKind::InvalidArg).filter(|word| word.starts_with("--")) {
        let names: Vec<String> =
            command.get_arguments().filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect();
        let known = error.get(ContextKind::SuggestedArg).is_some() || names.contains(&word);
        if let Some(name) = nearest(&word, names.iter().map(String::as_str)).filter(|_| !known) {
            error.insert(ContextKind::SuggestedArg, ContextValue::String(name.to_owned()));
        }
    }
    error
}
