//! The parser's messages, without what a terminal obeys.

use clap::error::ErrorKind;
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

/// The parser's message. If it may repeat what cannot be printed, it becomes an error without colours:
/// then all escape codes in it are foreign, and are made visible.
pub fn usage(error: clap::Error, unprintable: bool) -> Error {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !unprintable || is_help || !error.use_stderr() {
        return Error::Usage(Box::new(error));
    }
    let text = error.render().ansi().to_string();
    let text = text.trim_start_matches("error: ").trim_end();
    if text.len() > MESSAGE_BYTES { Error::call(shorten(text)) } else { Error::call(text) }
}
