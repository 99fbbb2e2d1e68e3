//! The flags of the backends, made from the backends' descriptions of themselves.

use clap::builder::{PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};
use girih::{AllowedValues, BackendChoice, BackendOption, SWITCH};

use crate::error::Result;

/// The argument that chooses the backend.
pub const BACKEND: &str = "backend";

/// A backend and the options of all backends that were set.
#[derive(Clone, Debug)]
pub struct BackendArgs {
    backend: BackendChoice,
    /// Each option with its value, in order.
    options: Vec<(&'static str, String)>,
}

impl BackendArgs {
    /// The chosen backend with its options.
    ///
    /// # Errors
    /// When an option is not valid.
    pub fn choice(&self) -> Result<BackendChoice> {
        self.with_options_for(self.backend.clone())
    }

    /// `backend` with those of the options that it has, if this machine has its device.
    ///
    /// # Errors
    /// As [`BackendArgs::choice`].
    pub fn with_options_for(&self, backend: BackendChoice) -> Result<BackendChoice> {
        let choice = self.added_to(backend)?;
        choice.device()?;
        Ok(choice)
    }

    /// `backend` with those of the options that it has.
    ///
    /// # Errors
    /// When an option is not valid.
    pub fn added_to(&self, backend: BackendChoice) -> std::result::Result<BackendChoice, girih::Error> {
        let info = backend.info();
        let has = |name: &str| info.options.iter().any(|spec| spec.name == name);
        let mut own = self.options.iter().filter(|(name, _)| has(name));
        own.try_fold(backend, |choice, (name, value)| choice.with(name, value))
    }
}

/// The options of all backends, each name once, with the names of the backends that have it.
pub fn options() -> Vec<(&'static BackendOption, Vec<&'static str>)> {
    let mut all: Vec<(&BackendOption, Vec<&str>)> = Vec::new();
    for info in girih::backends() {
        for spec in info.options {
            match all.iter_mut().find(|(known, _)| known.name == spec.name) {
                Some((_, owners)) => owners.push(info.name),
                None => all.push((spec, vec![info.name])),
            }
        }
    }
    all
}

impl clap::Args for BackendArgs {
    fn augment_args(command: Command) -> Command {
        let about = girih::backends().iter().map(|info| format!("{} ({})", info.name, info.about));
        let about = about.collect::<Vec<_>>().join("; ");
        let help = format!("Backend, or BACKEND:DEVICE: {about}; 'girih doctor' lists the devices");
        let backend = Arg::new(BACKEND)
            .long(BACKEND)
            .value_name("BACKEND")
            .help(help)
            .default_value(girih::backends()[0].name)
            .value_parser(parse_backend);
        options().into_iter().fold(command.arg(backend), |command, (spec, owners)| {
            let heading = format!("Options of the {} backend", owners.join(" and "));
            let action = if spec.repeats { ArgAction::Append } else { ArgAction::Set };
            let arg = Arg::new(spec.name).long(spec.name).value_name(spec.placeholder).help(spec.help);
            let arg = match spec.values {
                AllowedValues::Switch => {
                    arg.num_args(0..=1).require_equals(true).default_missing_value(SWITCH[0])
                }
                AllowedValues::OneOf(_) | AllowedValues::Checked(_) => arg,
            };
            command.arg(arg.action(action).value_parser(parser(spec)).help_heading(heading))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        BackendArgs::augment_args(command)
    }
}

impl FromArgMatches for BackendArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<BackendArgs, clap::Error> {
        let backend = matches.get_one::<BackendChoice>(BACKEND).expect("it has a default").clone();
        let values = options().into_iter().flat_map(|(spec, _)| {
            let values = matches.get_many::<String>(spec.name).unwrap_or_default();
            values.map(|value| (spec.name, value.clone()))
        });
        Ok(BackendArgs { backend, options: values.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = BackendArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Parses the name of a backend.
pub fn parse_backend(text: &str) -> std::result::Result<BackendChoice, String> {
    girih::backend(text).map_err(|error| error.to_string())
}

fn parser(spec: &BackendOption) -> ValueParser {
    match spec.values {
        AllowedValues::OneOf(names) => PossibleValuesParser::new(names()).into(),
        AllowedValues::Switch => PossibleValuesParser::new(SWITCH).into(),
        AllowedValues::Checked(check) => {
            ValueParser::new(move |text: &str| check(text).map(|()| text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backends_that_share_an_option_describe_it_alike() {
        for info in girih::backends() {
            for spec in info.options {
                let (first, _) = options().into_iter().find(|(known, _)| known.name == spec.name).unwrap();
                let described = |spec: &BackendOption| (spec.placeholder, spec.help, spec.repeats);
                assert_eq!(described(first), described(spec), "--{}", spec.name);
            }
        }
    }
}
