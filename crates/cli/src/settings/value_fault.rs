//! Errors of the parser about a value that a variable or a key has set.

use std::error::Error as _;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use girih_file::nearest;

use super::source::{SettingFault, SettingSource, SettingSources};

/// The variable or key whose value is the reason of an error of `command`, if one is.
pub fn value_fault(
    error: &clap::Error,
    command: &Command,
    sources: &SettingSources<'_>,
) -> Option<SettingFault> {
    let source_of = |kind| {
        let ContextValue::String(shown) = error.get(kind)? else { return None };
        let is_it = |long: &str| long_name(shown) == Some(long);
        let arg = command.get_arguments().find(|arg| arg.get_long().is_some_and(is_it))?;
        sources.of(command.get_name(), arg)
    };
    let source = source_of(ContextKind::InvalidArg)?;
    let sentence = match (error.kind(), source_of(ContextKind::PriorArg)) {
        (ErrorKind::ArgumentConflict, Some(prior)) => {
            let (one, other) = (sources.assignment(&source), sources.assignment(&prior));
            format!("{one} and {other} contradict each other; remove one of them")
        }
        _ => format!("{}: {}", sources.assignment(&source), reason(error)),
    };
    Some(SettingFault { source, sentence })
}

/// The first variable in use that is not UTF-8: the parser does not say which value is not.
pub fn not_unicode(command: &Command, sources: &SettingSources<'_>) -> Option<SettingFault> {
    let name = command.get_name();
    let mut variables = command.get_arguments().filter_map(|arg| match sources.of(name, arg)? {
        SettingSource::Variable(variable) => Some(variable),
        SettingSource::Key(_) => None,
    });
    let variable =
        variables.find(|name| matches!(std::env::var(name), Err(std::env::VarError::NotUnicode(_))))?;
    let source = SettingSource::Variable(variable);
    Some(SettingFault { sentence: format!("{}: is not valid UTF-8", sources.assignment(&source)), source })
}

/// The long name in `--name <VALUE>` or `-n, --name`.
fn long_name(shown: &str) -> Option<&str> {
    let (_, name) = shown.split_once("--")?;
    name.split([' ', '=', '[', '<']).next()
}

/// Why a value is wrong.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(names)) if !names.is_empty() => {
            let value = text(ContextKind::InvalidValue).unwrap_or_default();
            let meant = nearest(value, names.iter().map(String::as_str));
            let meant = meant.map(|name| format!("; did you mean '{name}'?")).unwrap_or_default();
            format!("use one of {}{meant}", names.join(", "))
        }
        _ => {
            let text = error.render().to_string();
            text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_found_in_what_the_parser_shows() {
        assert_eq!(long_name("--threads <N>"), Some("threads"));
        assert_eq!(long_name("--record[=<FOLDER>]"), Some("record"));
        assert_eq!(long_name("--quiet"), Some("quiet"));
        assert_eq!(long_name("<MODEL>"), None);
    }
}
