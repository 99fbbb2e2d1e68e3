//! `/set NAME VALUE`: changes an option of the samplers during a chat, under the names of the command line.

use std::iter;

use clap::error::ErrorKind;
use clap::{Arg, Args as _, Command, FromArgMatches as _};
use girih::Sampling;
use girih_file::{nearest, quote};

use crate::args::{OverflowMode, SamplingArgs};
use crate::error::{Error, Result};

/// A command with the options of the samplers. None is set.
fn command() -> Command {
    // A default would replace what was set before.
    SamplingArgs::augment_args_for_update(Command::new("/set"))
        .mut_args(|arg| arg.default_value(None::<&str>))
}

/// The names of settings that begin with a text.
pub fn names_beginning_with(text: &str) -> impl Iterator<Item = String> {
    let names: Vec<String> = command().get_arguments().filter_map(Arg::get_long).map(str::to_owned).collect();
    let text = text.to_owned();
    names.into_iter().filter(move |name| name.starts_with(&text))
}

/// The settings with the one that `text` changes: a name and a value, also as in Ollama, `parameter NAME
/// VALUE`, with other names of the option, or with `_` for `-`.
///
/// # Errors
/// When the name is unknown, or the value is missing or wrong.
pub fn changed(settings: &SamplingArgs, text: &str) -> Result<SamplingArgs> {
    let text = text.strip_prefix("parameter ").unwrap_or(text).trim_start();
    let (typed, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let name = typed.trim_start_matches('-').replace('_', "-").to_lowercase();
    let command = command();
    let is_it = |arg: &&Arg| {
        let short = arg.get_short().map(String::from);
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(&name) || short.as_deref() == Some(&name) || aliases.contains(&name.as_str())
    };
    let Some(long) = command.get_arguments().find(is_it).and_then(Arg::get_long) else {
        let meant = nearest(&name, command.get_arguments().filter_map(Arg::get_long));
        let meant = meant.map(|name| format!("; did you mean {name}?")).unwrap_or_default();
        return Err(Error::call(format!("there is no setting {}{meant}", quote(typed))));
    };
    if value.trim().is_empty() {
        return Err(Error::call(format!("/set {long} needs a value: /set {long} VALUE")));
    }
    let endless = long == "max-tokens" && value.trim().starts_with('-');
    let word = format!("--{long}={}", if endless { "0" } else { value.trim() });
    let parsed = command.clone().try_get_matches_from(iter::once("/set".to_owned()).chain([word]));
    let mut changed = settings.clone();
    let updated = parsed.and_then(|matches| changed.update_from_arg_matches(&matches));
    updated.map_err(|error| refused(long, value, &error))?;
    Ok(changed)
}

/// The parser's reason, without what it says of a command line.
fn refused(name: &str, value: &str, error: &clap::Error) -> Error {
    use clap::error::{ContextKind, ContextValue};
    use std::error::Error as _;
    let reason = match (error.kind(), error.get(ContextKind::ValidValue), error.source()) {
        (ErrorKind::InvalidValue, Some(ContextValue::Strings(names)), _) => {
            format!("use one of {}", names.join(", "))
        }
        (_, _, Some(source)) => source.to_string(),
        _ => "is not a value of this setting".to_owned(),
    };
    Error::call(format!("/set {name} {}: {reason}", quote(value)))
}

/// The settings as they apply, by the names of `/set`.
pub fn described(settings: &SamplingArgs, sampling: &Sampling) -> String {
    let length = settings.max_tokens.unwrap_or_default();
    let length = if length == 0 { "n 0 (no maximum)".to_owned() } else { format!("n {length}") };
    let overflow = match settings.overflow {
        OverflowMode::Error => "error",
        OverflowMode::Truncate => "truncate",
    };
    let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, seed, .. } = sampling;
    format!(
        "temp {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}, repetition-penalty \
         {repetition_penalty}, seed {seed}, {length}, overflow {overflow}"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sampling: SamplingArgs,
    }

    fn settings(words: &[&str]) -> SamplingArgs {
        Line::try_parse_from(iter::once("chat").chain(words.iter().copied()))
            .expect("they are options")
            .sampling
    }

    #[test]
    fn one_setting_changes_and_all_others_stay() {
        let begun = settings(&["--temp", "1", "--presence-penalty", "0.5", "--stop", "a", "--seed", "3"]);
        let changed = |text| changed(&begun, text).expect(text);
        for text in ["temp 0.25", "temperature 0.25", "parameter temperature 0.25", "--temp 0.25"] {
            let after = changed(text);
            assert_eq!((after.temp, after.presence_penalty, after.seed), (Some(0.25), 0.5, 3), "{text}");
            assert_eq!(after.stop, ["a"]);
        }
        assert_eq!(changed("n 7").max_tokens, Some(7));
        assert_eq!(changed("max_tokens -1").max_tokens, Some(0));
        assert_eq!(changed("stop the end").stop, ["the end"]);
        assert_eq!(changed("overflow truncate").overflow, OverflowMode::Truncate);
    }

    #[test]
    fn a_wrong_name_or_value_is_refused() {
        let refused = |text| match changed(&settings(&[]), text) {
            Err(Error::Call(sentence)) => sentence,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(refused("tmep 1"), "there is no setting 'tmep'; did you mean temp?");
        assert_eq!(refused("temp"), "/set temp needs a value: /set temp VALUE");
        assert_eq!(refused("seed soon"), "/set seed 'soon': invalid digit found in string");
        assert_eq!(refused("overflow drop"), "/set overflow 'drop': use one of error, truncate");
    }

    #[test]
    fn names_are_completed() {
        assert!(names_beginning_with("top").eq(["top-k", "top-p", "top-n-sigma"].map(str::to_owned)));
    }
}
