//! Commands and options of llama.cpp, Ollama, vLLM and IE-Core: girih's name for the same thing, or a sentence that
//! says why there is none.

use std::ffi::OsString;

use clap::{Arg, Command};

use super::words::{innermost, path};
use crate::error::{Error, Result};

/// What girih has for a word of another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counterpart {
    /// The same under this name.
    Name(&'static str),
    /// Nothing; the clause says what to do.
    Clause(&'static str),
}

use Counterpart::{Clause, Name};

/// The reason against options for parts of GPUs.
const NO_GPU: Counterpart =
    Clause("girih uses one GPU (--backend gpu, in builds with the feature gpu); remove");

/// Spellings of an option with their counterpart. A clause ends with what to do with the option, which
/// follows as it was typed.
const OPTIONS: &[(&[&str], Counterpart)] = &[
    (&["-hf", "-hfr", "--hf-repo"], Name("--model")),
    (&["-hff", "--hf-file"], Clause("a GGUF file is chosen as org/name:QUANT; remove")),
    (&["-hft", "--hf-token"], Clause("the variable HF_TOKEN is the token; set it and remove")),
    (
        &["-cnv", "--conversation", "-i", "--interactive", "-if"],
        Clause("`girih chat MODEL` converses; remove"),
    ),
    (&["-no-cnv", "--no-conversation"], Name("--raw")),
    (&["-st", "--single-turn"], Clause("`girih run` answers one prompt and ends; remove")),
    (&["-sys", "--system-prompt"], Name("--system")),
    (
        &["-sysf", "--system-prompt-file"],
        Clause("--system takes the text, as in --system \"$(cat FILE)\"; replace"),
    ),
    (&["-np", "--max-num-seqs"], Name("--parallel")),
    (&["-fa", "--flash-attn"], Clause("girih has one form of attention; remove")),
    (&["-s"], Name("--seed")),
    (&["-r", "--reverse-prompt"], Name("--stop")),
    (&["-j", "--json-schema"], Name("--schema")),
    (&["-jf", "--json-schema-file"], Name("--schema")),
    (&["-md", "--model-draft"], Name("--draft")),
    (&["--temperature"], Name("--temp")),
    (&["--typical"], Name("--typical-p")),
    (&["--top-nsigma"], Name("--top-n-sigma")),
    (&["--mirostat-ent"], Name("--mirostat-tau")),
    (&["--mirostat-lr"], Name("--mirostat-eta")),
    (&["--mirostat"], Clause("--mirostat-tau BITS switches Mirostat 2 on; replace")),
    (&["--dynatemp-exp"], Name("--dynatemp-exponent")),
    (&["--dry-penalty-last-n"], Name("--dry-range")),
    (&["--dry-sequence-breaker"], Name("--dry-breaker")),
    (&["--log-disable", "--no-display-prompt"], Name("--quiet")),
    (
        &["-ctk", "-ctv", "--cache-type-k", "--cache-type-v"],
        Clause("--kv TYPE sets the type of both; replace"),
    ),
    (
        &["-b", "-ub", "--batch-size", "--ubatch-size", "--max-num-batched-tokens"],
        Clause("--chunk N sets the tokens of a prefill step; replace"),
    ),
    (&["-tb", "--threads-batch"], Clause("--threads counts for prefill and decode; remove")),
    (&["--mlock"], Clause("girih does not lock memory; remove")),
    (&["--mmap"], Clause("--weights mmap maps the packed weights; replace")),
    (&["--no-mmap"], Clause("girih reads weights into memory unless --weights mmap is set; remove")),
    (&["--numa"], Clause("--affinity places the threads; replace")),
    (&["--no-warmup"], Clause("girih has no warm-up; remove")),
    (&["--jinja"], Clause("girih always applies the model's chat template; remove")),
    (&["--lora"], Clause("--adapter adds an adapter; replace")),
    (&["--lora-scaled"], Clause("--adapter has no scale; change the adapter's lora_alpha, and replace")),
    (&["--model-dir"], Name("--model")),
    (&["--max-new"], Name("--max-tokens")),
    (
        &["--precision"],
        Clause(
            "the model's files decide the type of weights, and --act-precision that of activations; remove",
        ),
    ),
    (&["--pretranspose"], Clause("girih always packs weights; remove")),
    (&["--prefetch"], Clause("girih measures the distance of prefetches at each load; remove")),
    (&["--image"], Clause("only run takes images so; in chat, use /image FILE; remove")),
    (&["--api-key-file"], Name("--api-keys")),
    (&["-a", "--alias"], Name("--served-name")),
    (&["--ssl-key-file", "--ssl-keyfile"], Name("--tls-key")),
    (&["--ssl-cert-file", "--ssl-certfile"], Name("--tls-cert")),
    (
        &["--allowed-origins", "--cors-origins"],
        Clause("--allowed-origin URL allows pages of one origin, and may be repeated; replace"),
    ),
    (&["--trust-remote-code"], Clause("girih runs no code of a model; remove")),
    (&["--dtype", "--quantization"], Clause("`girih quantize` converts a model to another type; remove")),
    (
        &["-cmoe", "-ncmoe", "--cpu-moe", "--n-cpu-moe"],
        Clause(
            "--cpu-experts keeps the experts of all layers on the CPU, in builds with the feature gpu; replace",
        ),
    ),
    (&["--format"], Clause("`girih run` has --json-object and --schema; replace")),
    (&["--think"], Clause("models think unless --no-think is set; remove")),
    (&["--keepalive"], Clause("`girih serve --unload-idle SECONDS` unloads models; remove")),
    (
        &[
            "-sm",
            "-mg",
            "-ts",
            "-dev",
            "-nkvo",
            "-ot",
            "--split-mode",
            "--main-gpu",
            "--tensor-split",
            "--device",
            "--no-kv-offload",
            "--override-tensor",
            "--tensor-parallel-size",
            "-tp",
            "--gpu-memory-utilization",
            "--enforce-eager",
        ],
        NO_GPU,
    ),
];

/// Commands of Ollama with their counterparts.
const COMMANDS: &[(&str, Counterpart)] = &[
    ("ls", Name("list")),
    ("show", Name("inspect")),
    ("remove", Name("rm")),
    ("download", Name("pull")),
    ("generate", Name("run")),
    ("server", Name("serve")),
    ("ps", Clause("a command loads its model for itself; a server lists its models at /v1/models")),
    ("stop", Clause("Ctrl-C ends a server, and `girih serve --unload-idle SECONDS` unloads models")),
    ("create", Clause("`girih alias NAME MODEL` names a model, and `girih quantize` converts one")),
    ("cp", Clause("`girih alias NAME MODEL` gives a model another name")),
    ("push", Clause("girih uploads no models")),
];

/// Spellings of the option for the length of a reply, which other programs set to -1 for no limit.
const LENGTHS: [&str; 5] = ["-n", "--max-tokens", "--n-predict", "--predict", "--max-new-tokens"];

/// girih's name of an option of another program, without dashes.
pub fn name_of(long: &str) -> Option<&'static str> {
    let spelled = format!("--{long}");
    match OPTIONS.iter().find(|(spellings, _)| spellings.contains(&spelled.as_str()))?.1 {
        Name(name) => Some(name.trim_start_matches('-')),
        Clause(_) => None,
    }
}

/// The words with girih's names; words after `--` and values stay as they are. `command` is that of the
/// program, with its named arguments.
///
/// # Errors
/// When girih has nothing for a word.
pub fn translated(command: &Command, mut words: Vec<OsString>) -> Result<Vec<OsString>> {
    translate_command(command, &mut words)?;
    let path = path(command, &words);
    let chosen = innermost(command, &path);
    let (begun, rest) = words.split_at((1 + path.len()).min(words.len()));
    let mut translated = begun.to_vec();
    let (mut is_text, mut before) = (false, String::new());
    for word in rest {
        let text = word.to_str().unwrap_or_default();
        is_text |= text == "--";
        let is_value = takes_any_value(chosen, &before);
        translated.extend(match text {
            _ if is_text || is_value => Some(word.clone()),
            _ if is_endless(chosen, &before, text) => Some("0".into()),
            _ => option(chosen, text)?.map_or_else(|| Some(word.clone()), |name| name.map(OsString::from)),
        });
        text.clone_into(&mut before);
    }
    Ok(translated)
}

fn translate_command(command: &Command, words: &mut [OsString]) -> Result<()> {
    let Some(word) = words.get_mut(1) else { return Ok(()) };
    let Some((name, counterpart)) = COMMANDS.iter().find(|(name, _)| word == name) else { return Ok(()) };
    match counterpart {
        _ if command.find_subcommand(name).is_some() => {}
        Name(name) => *word = OsString::from(name),
        Clause(clause) => return Err(Error::call(format!("girih has no command '{name}': {clause}"))),
    }
    Ok(())
}

/// What stands for a word: nothing known, or another word, or none.
fn option(command: &Command, word: &str) -> Result<Option<Option<String>>> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, format!("={value}")),
        None => (word, String::new()),
    };
    let known = OPTIONS.iter().find(|(spellings, _)| spellings.contains(&name));
    // girih's own names come first.
    let Some((_, counterpart)) = known.filter(|_| !has(command, name)) else { return Ok(None) };
    match counterpart {
        Name(own) if has(command, own) => Ok(Some(Some(format!("{own}{value}")))),
        // `pull` takes an id alone.
        Name("--model") if command.get_positionals().next().is_some() && value.is_empty() => Ok(Some(None)),
        Name(_) => Ok(None),
        Clause(clause) => Err(Error::call(format!("{clause} {name}"))),
    }
}

/// Whether a command has an option of this spelling.
fn has(command: &Command, spelled: &str) -> bool {
    command.get_arguments().any(|arg| is_spelled(arg, spelled))
}

fn is_spelled(arg: &Arg, spelled: &str) -> bool {
    match spelled.strip_prefix("--") {
        Some(long) => {
            arg.get_long() == Some(long) || arg.get_all_aliases().is_some_and(|names| names.contains(&long))
        }
        None => arg.get_short().is_some_and(|short| spelled == format!("-{short}")),
    }
}

/// Whether the word before is an option whose value may begin with a dash.
fn takes_any_value(command: &Command, before: &str) -> bool {
    command.get_arguments().any(|arg| arg.is_allow_hyphen_values_set() && is_spelled(arg, before))
}

/// Whether a word is the value of a reply's length for no limit: -1, or llama.cpp's -2 for the context.
fn is_endless(command: &Command, before: &str, word: &str) -> bool {
    let has_length = command.get_arguments().any(|arg| arg.get_id() == "max_tokens");
    has_length && LENGTHS.contains(&before) && ["-1", "-2"].contains(&word)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cmd::Cli;
    use crate::settings::named_argument;

    fn translation(line: &str) -> Result<String, String> {
        let command = named_argument::offered(Cli::command());
        let words = line.split(' ').map(OsString::from).collect();
        match translated(&command, words) {
            Ok(words) => Ok(words.join(std::ffi::OsStr::new(" ")).into_string().expect("UTF-8")),
            Err(Error::Call(sentence)) => Err(sentence),
            Err(error) => panic!("{error:?}"),
        }
    }

    #[test]
    fn words_of_other_programs_become_those_of_girih() {
        for (line, want) in [
            ("girih run -hf a/b Hi", "girih run --model a/b Hi"),
            ("girih pull -hf a/b", "girih pull a/b"),
            ("girih run a/b -n -1 -sys Be", "girih run a/b -n 0 --system Be"),
            ("girih run a/b --n-predict -2 -s 4", "girih run a/b --n-predict 0 --seed 4"),
            ("girih run a/b -no-cnv Hi", "girih run a/b --raw Hi"),
            ("girih serve a/b -np 4", "girih serve a/b --parallel 4"),
            ("girih serve a/b --alias c --api-key-file d", "girih serve a/b --served-name c --api-keys d"),
            ("girih chat a/b --system-prompt=Be", "girih chat a/b --system=Be"),
            ("girih ls", "girih list"),
            ("girih show a/b", "girih inspect a/b"),
            // What girih has under the same name, values and texts stay.
            ("girih bench a/b -r 3 --parallel 2", "girih bench a/b -r 3 --parallel 2"),
            ("girih run a/b --stop -hf", "girih run a/b --stop -hf"),
            ("girih run a/b -- -hf", "girih run a/b -- -hf"),
            ("girih run a/b ps", "girih run a/b ps"),
        ] {
            assert_eq!(translation(line).as_deref(), Ok(want), "{line}");
        }
    }

    #[test]
    fn words_without_a_counterpart_are_refused_in_one_sentence() {
        for (line, want) in [
            ("girih run a/b -cnv", "`girih chat MODEL` converses; remove -cnv"),
            ("girih run a/b -fa on", "girih has one form of attention; remove -fa"),
            ("girih run a/b --mlock", "girih does not lock memory; remove --mlock"),
            (
                "girih serve a/b --tensor-parallel-size=2",
                "girih uses one GPU (--backend gpu, in builds with the feature gpu); remove --tensor-",
            ),
            ("girih ps", "girih has no command 'ps': a command loads its model for itself"),
        ] {
            let refused = translation(line).expect_err(line);
            assert!(refused.starts_with(want) && refused.len() < 160, "{line}: {refused}");
        }
    }

    #[test]
    fn a_counterpart_is_an_option_of_some_command() {
        let command = named_argument::offered(Cli::command());
        for (spellings, counterpart) in OPTIONS {
            if let Name(own) = counterpart {
                assert!(command.get_subcommands().any(|sub| has(sub, own)), "{spellings:?}: {own}");
            }
        }
    }
}
