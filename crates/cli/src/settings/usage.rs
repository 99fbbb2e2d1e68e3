//! The parser's messages in girih's own voice: one sentence, without what a terminal obeys.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use girih_file::shorten;

use crate::config_file::ConfigFile;
use crate::error::Error;
use crate::visible::is_unprintable;

/// The bytes of a message of the parser from which on it is shortened.
const MESSAGE_BYTES: usize = 600;

/// Whether an argument, a variable or a value of the configuration file cannot be repeated as it is:
/// it is long, or has characters that a terminal obeys.
pub fn has_unprintable_text(file: &ConfigFile) -> bool {
    let of_girih = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("GIRIH_");
    std::env::args_os().any(|text| is_unprintable(&text))
        || std::env::vars_os().any(|(name, text)| of_girih(&name) && is_unprintable(&text))
        || file.values().any(|text| is_unprintable(text.as_ref()))
}

/// Help as the parser writes it, and an error about the command at `path` as one sentence: what is wrong,
/// what was probably meant, and where the options are listed. The parser's usage line and its advice are
/// left out: it says `-- --mlock` of each option that it does not know, which would become a prompt.
/// If the error may repeat what cannot be printed, the command has no colours: then all escape codes in it
/// are foreign, and are made visible.
pub fn usage(error: clap::Error, path: &[String], unprintable: bool) -> Error {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if is_help || !error.use_stderr() {
        return Error::Usage(Box::new(error));
    }
    let text = error.render();
    let text = if unprintable { text.ansi().to_string() } else { text.to_string() };
    let first = text.trim_start_matches("error: ").split("\n\n").next().unwrap_or_default();
    let lines: Vec<&str> = first.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let fault = lines.join(" ").replace("unrecognized subcommand", "unknown command");
    let fault = if fault.len() > MESSAGE_BYTES { shorten(&fault) } else { fault };
    let meant = meant(&error).map(|name| format!("; did you mean '{name}'?")).unwrap_or_default();
    let call: String = path.iter().map(|name| format!(" {name}")).collect();
    let join = if meant.is_empty() { ";" } else { "" };
    Error::call(format!("{fault}{meant}{join} `girih{call} --help` lists what it takes"))
}

/// The name that a misspelled command, option or value was probably meant to be.
fn meant(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(name) => Some(name.as_str()),
        // The best one comes last.
        ContextValue::Strings(names) => names.last().map(String::as_str),
        _ => None,
    })
}
