//! The help of all commands: options in groups, examples, and the commands in groups.

mod examples;
mod group;

use std::fmt::Write;
use std::io;

use clap::{Arg, ArgAction, Command};

use crate::backend_args;
use crate::output::columns;
use crate::word_wrap::wrapped;
use group::{OptionGroup, in_order};

/// The commands in groups, in the order in which help lists them. Others follow.
const COMMAND_GROUPS: &[(&str, &[&str])] = &[
    ("Run and chat", &["run", "chat", "serve", "launch", "health", "embed", "tokenize", "render"]),
    ("Models", &["pull", "list", "rm", "repair", "quantize", "merge", "alias", "inspect"]),
    ("Accuracy and speed", &["verify", "diagnose", "perplexity", "bench", "profile"]),
    ("NPU", &["npu"]),
    ("Setup", &["doctor", "completions", "man"]),
];

/// The heading of commands that are in no group.
const OTHER_COMMANDS: &str = "Other commands";

const SETTINGS: &str = "A variable GIRIH_SOME_NAME or a key some-name in ~/.config/girih/config.toml sets the \
    option --some-name.\nA switch is set by 1, true or yes, and left off by 0, false or no.";

/// The command line with its help. `--help` leaves out the expert options and those of backends other
/// than `backend`, if one is given.
pub fn arranged(command: Command, backend: Option<&str>) -> Command {
    let list = commands_in_groups(&command);
    let (header, common) = (command.get_styles().get_header(), OptionGroup::Common.heading());
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{list}\n{header}{common}:{header:#}\n\
         {{options}}{{after-help}}"
    );
    let version = Arg::new("version").short('V').long("version").help("Print the version");
    let command = command.disable_version_flag(true).arg(version.action(ArgAction::Version));
    arranged_at(command, &mut Vec::new(), backend).help_template(template)
}

fn arranged_at(command: Command, path: &mut Vec<String>, backend: Option<&str>) -> Command {
    let command = command.disable_help_flag(true).disable_help_subcommand(true).args(help_options());
    // A command without a choice of backends has options of the same names for what it does itself.
    let chooses = command.get_arguments().any(|arg| arg.get_id() == backend_args::BACKEND);
    let idle = backend.filter(|_| chooses).map(options_of_others).unwrap_or_default();
    let order = in_order(&command);
    // A changed argument becomes the last one, so this also sorts the headings.
    let command = order.into_iter().enumerate().fold(command, |command, (at, (id, group))| {
        let is_rare = group == OptionGroup::Expert || idle.contains(&id.as_str());
        let is_rare = backend.is_some() && is_rare;
        command
            .mut_arg(id, |arg| arg.help_heading(group.heading()).display_order(at).hide_short_help(is_rare))
    });
    let command = command.after_help(footer(path));
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        path.push(name.clone());
        let command = command.mut_subcommand(name, |sub| arranged_at(sub, path, backend));
        path.pop();
        command
    })
}

fn help_options() -> [Arg; 2] {
    let help = Arg::new("help").short('h').long("help").help("Print help");
    let all = Arg::new("help-all").long("help-all").help("Print help with all options, and more on each");
    [help.action(ArgAction::HelpShort), all.action(ArgAction::HelpLong)]
}

/// The options that `backend` does not have.
fn options_of_others(backend: &str) -> Vec<&'static str> {
    let others = backend_args::options().into_iter().filter(|(_, owners)| !owners.contains(&backend));
    others.map(|(spec, _)| spec.name).collect()
}

/// What follows the options of a command.
fn footer(path: &[String]) -> String {
    let lines = examples::of(path).unwrap_or_default().iter().map(|line| format!("  {line}\n"));
    let title = if lines.len() == 1 { "Example" } else { "Examples" };
    let examples: String = lines.collect();
    if path.is_empty() {
        return format!(
            "{title}:\n{examples}\n'girih COMMAND --help' lists the options of a command.\n{SETTINGS}"
        );
    }
    format!(
        "{title}:\n{examples}\n'--help-all' lists all options; 'girih --help' explains their variables and keys."
    )
}

/// The list of commands with their first lines of help.
fn commands_in_groups(command: &Command) -> String {
    let styles = command.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let is_grouped = |name: &str| COMMAND_GROUPS.iter().any(|(_, names)| names.contains(&name));
    let visible = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let others: Vec<&str> = visible().map(|sub| sub.get_name()).filter(|name| !is_grouped(name)).collect();
    let groups = COMMAND_GROUPS.iter().map(|(title, names)| (*title, *names));
    let mut text = String::new();
    for (title, names) in groups.chain([(OTHER_COMMANDS, others.as_slice())]) {
        let subs: Vec<&Command> = names.iter().filter_map(|name| command.find_subcommand(name)).collect();
        if subs.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{header}{title}:{header:#}");
        for sub in subs {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let line = format!("  {:<12} {about}", sub.get_name());
            let line = columns(io::stdout()).map_or_else(|| line.clone(), |columns| wrapped(&line, columns));
            let _ = writeln!(
                text,
                "  {literal}{}{literal:#}{}",
                sub.get_name(),
                &line[2 + sub.get_name().len()..]
            );
        }
        text.push('\n');
    }
    text.trim_end_matches('\n').to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_another_backend_is_one_that_the_backend_lacks() {
        let idle = options_of_others("cpu");
        assert!(idle.contains(&"npu-mapping") && !idle.contains(&"isa"), "{idle:?}");
        assert!(options_of_others("interpreter").contains(&"isa"));
    }
}
