//! `girih completions`: what a shell needs to complete this command line.

use std::path::PathBuf;

use clap::{Command, ValueEnum};
use clap_complete::{Generator, Shell, generate};
use girih_file::replace_file;

use super::outcome::Outcome;
use crate::config_file::ConfigFile;
use crate::error::Result;
use crate::loading::environment;
use crate::output::{make_folder, print};
use crate::short_name;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Shell.
    #[arg(value_enum, required_unless_present_any = ["output_folder", "models"])]
    shell: Option<Shell>,
    /// Write the completions of all shells into this folder instead.
    #[arg(long, value_name = "DIR", conflicts_with = "shell")]
    output_folder: Option<PathBuf>,
    /// Print the names of models, as the completions of bash, fish and zsh offer them: the built-in one,
    /// aliases, short names, and the models in the Hugging Face cache.
    #[arg(long, conflicts_with_all = ["shell", "output_folder"])]
    models: bool,
}

/// The ids of arguments that name models.
const MODEL_ARGUMENTS: [&str; 3] = ["model", "models", "id"];

/// Prints or writes the completions of `command`, or the names of models.
pub fn run(args: &Args, mut command: Command) -> Result<Outcome> {
    if args.models {
        print_models()?;
    }
    let name = command.get_name().to_owned();
    let takers = takers_of_models(&command);
    let mut text = |shell: Shell| {
        let mut text = Vec::new();
        generate(shell, &mut command, &name, &mut text);
        with_models(shell, &String::from_utf8_lossy(&text), &name, &takers)
    };
    if let Some(shell) = args.shell {
        print(text(shell))?;
    }
    if let Some(folder) = &args.output_folder {
        make_folder(folder)?;
        for shell in Shell::value_variants() {
            replace_file(&folder.join(shell.file_name(&name)), text(*shell).as_bytes())?;
        }
    }
    Ok(Outcome::Done)
}

/// Prints the names of models, one in a line; those of the cache last, as only they can fail.
fn print_models() -> Result<()> {
    let file = ConfigFile::read_if_present()?;
    let known = [girih::BUILT_IN].into_iter().chain(file.aliases().map(|(alias, _)| alias));
    known.chain(short_name::all()).try_for_each(|name| print_line!("{name}"))?;
    girih_hub::list(&environment()?)?.iter().try_for_each(|model| print_line!("{}", model.repo))
}

/// The names of the commands with an argument that names a model.
fn takers_of_models(command: &Command) -> String {
    let takes =
        |sub: &&Command| sub.get_positionals().any(|arg| MODEL_ARGUMENTS.contains(&arg.get_id().as_str()));
    command.get_subcommands().filter(takes).map(Command::get_name).collect::<Vec<_>>().join(" ")
}

/// The completions of a shell with the names of models, which the program prints when a shell asks: clap's
/// own completions know only what is fixed. Those of elvish and PowerShell stay as they are.
fn with_models(shell: Shell, text: &str, name: &str, takers: &str) -> String {
    match shell {
        Shell::Bash => {
            let text =
                text.replace(&format!("complete -F _{name} "), &format!("complete -F _{name}_with_models "));
            BASH.replace("NAME", name).replace("TAKERS", takers) + &text
        }
        Shell::Fish => {
            let offered = format!("({name} completions --models 2>/dev/null)");
            let condition = format!("__fish_{name}_using_subcommand {takers}");
            format!("{text}complete -c {name} -n \"{condition}\" -a \"{offered}\"\n")
        }
        Shell::Zsh => {
            // The function stands behind the first line, which makes the file a completion.
            let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
            let lines: String = rest.split_inclusive('\n').map(zsh_line).collect();
            format!("{first}\n{}{lines}", ZSH.replace("NAME", name))
        }
        _ => text.to_owned(),
    }
}

/// A line of zsh's completions, with names of models if it is about an argument that names one.
fn zsh_line(line: &str) -> String {
    let of_model = |id: &&str| {
        let starts = [format!("':{id} -- "), format!("'::{id} -- "), format!("'*::{id} -- ")];
        starts.iter().any(|start| line.starts_with(start))
    };
    let is_option = line.starts_with("'-m+[") || line.starts_with("'--model=[");
    let names_model = is_option || MODEL_ARGUMENTS.iter().any(of_model);
    if names_model { line.replace(":_default'", ":_girih_models'") } else { line.to_owned() }
}

/// What precedes the completions of bash. Bash splits words at colons, so it completes what follows the last
/// one.
const BASH: &str = r#"_NAME_with_models() {
    _NAME "$@"
    [[ $COMP_CWORD -ge 2 && " TAKERS " == *" ${COMP_WORDS[1]} "* && $2 != -* ]] || return 0
    case "$3" in
        -m | --model | [!-]*) ;;
        *) return 0 ;;
    esac
    local name typed="${COMP_LINE:0:COMP_POINT}"
    typed="${typed##*[[:space:]]}"
    [[ -z $typed ]] || COMPREPLY=()
    while IFS= read -r name; do
        [[ $name == "$typed"* ]] && COMPREPLY+=("${name#"${typed%"$2"}"}")
    done < <("$1" completions --models 2>/dev/null)
    return 0
}

"#;

/// What precedes the completions of zsh.
const ZSH: &str = r#"
_NAME_models() {
    local -a names
    names=(${(f)"$(NAME completions --models 2>/dev/null)"})
    compadd -a names
    _default
}
"#;
