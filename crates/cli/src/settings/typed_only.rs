//! The options that only the command line sets, and the names of the others' variables.

use clap::{Arg, Command};

/// Options of one command, or of all (`*`), that have no variable and no key: those that name an output or
/// delete something, and those that say what a call is about.
const TYPED_ONLY: &[(&str, &str)] = &[
    ("*", "help"),
    ("*", "help-all"),
    ("*", "version"),
    ("*", "model"),
    ("*", "prompt"),
    ("*", "file"),
    ("alias", "remove"),
    ("bench", "record"),
    ("compile", "dump"),
    ("compile", "emit"),
    ("completions", "output-folder"),
    ("man", "output-folder"),
    ("perplexity", "logits"),
    ("render", "jsonl"),
    ("repair", "yes"),
    ("report", "html"),
    ("rm", "packed"),
    ("run", "grammar"),
    ("run", "json-object"),
    ("run", "regex"),
    ("run", "schema"),
    ("run", "tool-choice"),
    ("run", "tools"),
    ("sim", "trace"),
    ("sweep", "output"),
    ("tokenize", "jsonl"),
];

/// Whether a variable and a key set this option of a command.
pub fn has_setting(command: &str, long: &str) -> bool {
    !TYPED_ONLY.iter().any(|(of, name)| *name == long && (*of == "*" || *of == command))
}

/// Calls `visit` with each option of a command and of its subcommands, and the name of its command.
pub fn each_option<'a>(command: &'a Command, visit: &mut impl FnMut(&'a str, &'a Arg)) {
    for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
        visit(command.get_name(), arg);
    }
    command.get_subcommands().for_each(|sub| each_option(sub, visit));
}
