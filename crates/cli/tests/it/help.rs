//! Help, completions and manual pages; the options of llama.cpp.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::program::{Folder, girih, name};

const GROUPS: [&str; 7] = [
    "Common options",
    "Sampling options",
    "Structured output options",
    "Memory options",
    "Device options",
    "Server options",
    "Expert options",
];

/// The names of all commands, from the first help; those of `npu` as `npu sim`.
fn commands() -> Vec<Vec<String>> {
    let listed = |call: &[&str]| {
        let help = girih(call).done().stdout;
        let indented = help.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        let names: Vec<String> =
            indented.map(|line| line.split_whitespace().next().unwrap_or_default().to_owned()).collect();
        names.into_iter().take_while(|name| !name.starts_with('-')).collect::<Vec<_>>()
    };
    let mut all: Vec<Vec<String>> = listed(&["--help"]).into_iter().map(|name| vec![name]).collect();
    all.extend(listed(&["npu", "--help"]).into_iter().map(|name| vec!["npu".to_owned(), name]));
    all
}

/// The help of a command.
fn help(command: &[String], flag: &str) -> String {
    girih(command).with(&[flag]).done().stdout
}

/// The long names of the options that a help lists, each with its heading.
fn options(help: &str) -> Vec<(String, String)> {
    let (mut heading, mut found) = (String::new(), Vec::new());
    for line in help.lines() {
        if line.ends_with(':') && !line.starts_with(' ') {
            heading = line.trim_end_matches(':').to_owned();
        }
        let bare = line.trim_start();
        let is_option = line.len() - bare.len() <= 6 && (bare.starts_with("--") || is_short(bare));
        if let Some(at) = bare.find("--").filter(|_| is_option) {
            let name = bare[at + 2..].split(|c: char| !c.is_alphanumeric() && c != '-').next();
            found.push((name.unwrap_or_default().to_owned(), heading.clone()));
        }
    }
    found
}

/// Whether a line of help begins with a short name, such as `-n, --max-tokens`.
fn is_short(line: &str) -> bool {
    let letters: Vec<char> = line.chars().take(3).collect();
    matches!(letters[..], ['-', letter, ','] if letter.is_alphabetic())
}

#[test]
fn the_help_of_run_is_short_and_the_whole_help_has_every_option() {
    let short = girih(&["run", "--help"]).done().stdout;
    assert!(short.lines().count() <= 95, "{} lines", short.lines().count());
    assert!(short.lines().all(|line| line.chars().count() <= 100), "{short}");
    let whole = girih(&["run", "--help-all"]).done().stdout;
    let names = |text: &str| options(text).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let (short_names, whole_names) = (names(&short), names(&whole));
    for name in
        ["max-tokens", "context", "threads", "temp", "top-k", "kv", "backend", "packed-cache", "model"]
    {
        assert!(short_names.iter().any(|shown| shown == name), "{name} is not in {short}");
    }
    for name in
        short_names.iter().map(String::as_str).chain(["arch", "npu-runtime", "blobs-limit", "allow-key"])
    {
        assert!(whole_names.iter().any(|shown| shown == name), "{name} is not in {whole}");
    }
    for name in ["npu-mapping", "blobs-limit", "arch", "chunk", "isa"] {
        assert!(!short_names.iter().any(|shown| shown == name), "{name} is in {short}");
    }
    assert_eq!(girih(&["run", "-h"]).done().stdout, short);
    assert_eq!(girih(&["help", "run"]).done().stdout, short);
    // The most used options come first.
    let first = ["model", "prompt", "max-tokens", "context", "threads", "temp"];
    let place = |name| short_names.iter().position(|shown| shown == name).expect("it is shown");
    assert!(first.iter().all(|name| place(name) < 10), "{short_names:?}");
}

#[test]
fn help_shows_the_options_of_the_chosen_backend() {
    let of_npu = girih(&["run", "--help", "--backend", "npu"]).done().stdout;
    assert!(of_npu.contains("--npu-mapping") && !of_npu.contains("--act-precision"), "{of_npu}");
    let set = girih(&["run", "--help"]).env("GIRIH_BACKEND", "npu:toy").done().stdout;
    assert!(set.contains("--npu-mapping") && !set.contains("--act-precision"), "{set}");
    assert!(girih(&["run", "--help", "--backend=cpu"]).done().stdout.contains("--act-precision"));
    // A command without a choice of backends shows its own options of these names.
    assert!(girih(&["npu", "sim", "--help"]).done().stdout.contains("--blobs-limit"));
}

#[test]
fn every_command_has_an_example_and_every_option_one_group() {
    let commands = commands();
    assert!(commands.len() > 25, "{commands:?}");
    for command in &commands {
        for flag in ["--help", "--help-all"] {
            let help = help(command, flag);
            assert!(help.contains("Example:\n  girih ") || help.contains("Examples:\n  girih "), "{help}");
            let mut names: Vec<String> = options(&help).into_iter().map(|(name, _)| name).collect();
            for (name, heading) in options(&help) {
                assert!(GROUPS.contains(&heading.as_str()), "{command:?} --{name} is under {heading:?}");
            }
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count, "{command:?} lists an option twice: {names:?}");
            assert!(names.iter().any(|name| name == "help-all"), "{help}");
        }
    }
    let first = girih(&["--help"]).done().stdout;
    assert!(first.contains("Run and chat:\n  run ") && first.contains("GIRIH_SOME_NAME"), "{first}");
    assert!(!first.contains("Other commands"), "every command has a group: {first}");
}

#[test]
fn embed_offers_no_kv_cache() {
    assert!(!girih(&["embed", "--help-all"]).done().stdout.contains("--kv"));
}

#[test]
fn options_are_named_as_in_llama_cpp() {
    let story = |call: &[&str]| girih(call).with(&["-n", "6", "--temp", "0"]).done().stdout;
    let plain = story(&["run", "stories260k", "Tom saw a"]);
    for call in [
        &["run", "-m", "stories260k", "-p", "Tom saw a", "-c", "64", "-t", "1"][..],
        &["run", "-p", "Tom saw a", "--model", "stories260k"],
        &["run", "-m", "stories260k", "Tom saw a"],
        &["run", "stories260k", "--prompt=Tom saw a"],
        &["run", "-mstories260k", "Tom saw a"],
        &["run", "-qm", "stories260k", "Tom saw a"],
    ] {
        assert_eq!(story(call), plain, "{call:?}");
    }
    let ids = girih(&["tokenize", "stories260k", "a cat"]).done().stdout;
    assert_eq!(girih(&["tokenize", "-m", "stories260k", "a cat"]).done().stdout, ids);
    let shown = girih(&["inspect", "-m", "stories260k", "-c", "64"]).done().stdout;
    assert!(shown.contains("architecture: llama"), "{shown}");
    girih(&["inspect", "-m", "stories260k", "other"])
        .fails(2, "unexpected argument 'other': -m gives the MODEL; remove one of the two");
    girih(&["npu", "sim", "-m", "stories260k", "--target", "toy", "-c", "16"]).done();
    let bench =
        ["bench", "-m", "stories260k", "-p", "4", "-n", "2", "-d", "0", "-t", "1", "-r", "1", "-o", "json"];
    let rows = girih(&bench).with(&["--no-limits", "-q"]).done().json();
    assert_eq!(rows.as_array().map(Vec::len), Some(2));
}

#[test]
fn layers_on_a_gpu_are_refused_by_name() {
    for call in [
        &["run", "-ngl", "99"][..],
        &["run", "-ngl99"],
        &["chat", "a", "--n-gpu-layers=1"],
        &["bench", "a", "--gpu-layers", "9"],
    ] {
        girih(call).fails(
            2,
            "this girih was built without the feature gpu: build it with `--features gpu`, or remove -",
        );
    }
    // After two dashes it is text.
    let text = girih(&["run", "stories260k", "-n", "1", "--", "-ngl"]).stdout_on_terminal().stdout;
    assert!(text.starts_with("-ngl"), "{text}");
}

#[test]
fn misspelled_commands_options_and_values_are_explained() {
    girih(&["rnu"])
        .fails(2, "girih: unknown command 'rnu'; did you mean 'run'? `girih --help` lists what it takes");
    girih(&["npu", "sims"]).fails(2, "did you mean 'sim'? `girih npu --help`");
    girih(&["help", "rnu"]).fails(2, "did you mean 'run'?");
    girih(&["run", "--max-token", "3"])
        .fails(2, "unexpected argument '--max-token' found; did you mean '--max-tokens'?");
    girih(&["run", "--tmep", "3"]).fails(2, "did you mean '--temp'? `girih run --help`");
    girih(&["run", "--kv", "q80"]).fails(2, "did you mean 'q8_0'?");
}

/// Whatever is wrong with a call, it is said in one line, in the voice of all other errors.
#[test]
fn an_error_about_the_call_is_one_sentence() {
    for call in [
        &["rnu"][..],
        &["run", "stories260k", "--tmep", "3"],
        &["run", "stories260k", "--mlock-it"],
        &["run", "--threads", "x"],
        &["run", "--kv", "f61"],
        &["run", "--json", "--jsonl"],
        &["inspect"],
        &["completions"],
        &["serve", "--port", "99999", "stories260k"],
    ] {
        let refused = girih(call).fails(2, "girih: ").stderr;
        assert!(refused.starts_with("girih: ") && refused.lines().count() == 1, "{call:?}: {refused}");
        assert!(refused.contains(" --help` lists") && !refused.contains("tip:"), "{call:?}: {refused}");
    }
}

#[test]
fn options_of_other_programs_have_the_same_effect_or_one_sentence() {
    let call = |more: &[&str]| girih(&["run"]).with(more).with(&["--json", "-q"]).done().json();
    let plain = call(&["stories260k", "Once", "-n", "4", "--temp", "1", "--seed", "7"]);
    let other = call(&["-hf", "stories260k", "Once", "--n-predict", "4", "--temperature", "1", "-s", "7"]);
    assert_eq!(plain["ids"], other["ids"]);
    let endless = call(&["stories260k", "Once", "-n", "-1", "-c", "40"]);
    assert_eq!(endless["ids"].as_array().map(Vec::len), Some(40));
    girih(&["run", "-hf", "org/name", "hi"]).fails(2, "girih pull org/name");
    for (call, words) in [
        (&["run", "stories260k", "-cnv"][..], "`girih chat MODEL` converses; remove -cnv"),
        (&["run", "stories260k", "Hi", "-fa", "on"], "remove -fa"),
        (&["run", "stories260k", "Hi", "--mlock"], "girih does not lock memory; remove --mlock"),
        (&["run", "stories260k", "Hi", "--chat-template", "chatml"], "there is no file 'chatml'"),
        (
            &["serve", "stories260k", "--allowed-origins", "*"],
            "--allowed-origin URL allows pages of one origin",
        ),
        (&["ps"], "girih has no command 'ps'"),
        (&["create", "mine"], "`girih alias NAME MODEL`"),
    ] {
        let refused = girih(call).fails(2, words);
        assert_eq!((refused.stderr.lines().count(), refused.stdout.as_str()), (1, ""), "{}", refused.stderr);
    }
    let listed = girih(&["ls"]).done().stdout;
    assert_eq!(listed, girih(&["list"]).done().stdout);
    assert_eq!(girih(&["show", "--help"]).done().stdout, girih(&["inspect", "--help"]).done().stdout);
    let warned = girih(&["list"]).env("GIRIH_TEMPERATURE", "1").done().stderr;
    assert!(warned.contains("did you mean GIRIH_TEMP?"), "{warned}");
}

/// What bash offers for the word `at` of a line whose words these are, as bash divides it.
fn offered_by_bash(script: &Path, words: &[&str], at: usize, line: &str) -> Vec<String> {
    let call = r#"source "$1"; line="$2"; at="$3"; shift 3; COMP_WORDS=("$@"); COMP_CWORD="$at"
        COMP_LINE="$line"; COMP_POINT="${#line}"; before=$((at - 1))
        _girih_with_models "$1" "${COMP_WORDS[at]}" "${COMP_WORDS[before]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let home = Folder::new();
    std::fs::create_dir_all(home.file(".config/girih")).expect("the home is writable");
    home.write(".config/girih/config.toml", "[aliases]\nmine = \"stories260k\"\n");
    std::fs::create_dir_all(home.file(".cache/huggingface/hub/models--org--name/blobs"))
        .expect("the home is writable");
    home.write(".cache/huggingface/hub/models--org--name/blobs/0", "");
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", call, "bash", name(script), line, &at.to_string()]);
    bash.arg(env!("CARGO_BIN_EXE_girih")).args(&words[1..]);
    bash.env_clear().env("HOME", home.path()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let output = bash.output().expect("the system has bash");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn bash_offers_names_of_models_where_a_model_is_named() {
    let folder = Folder::new();
    let script = folder.write("girih.bash", &girih(&["completions", "bash"]).done().stdout);
    let offered = |words: &[&str], line| offered_by_bash(&script, words, words.len() - 1, line);
    assert_eq!(offered(&["girih", "run", "stor"], "girih run stor"), ["stories260k"]);
    assert_eq!(offered(&["girih", "chat", "mi"], "girih chat mi"), ["mine", "mistral", "mistral:7b"]);
    assert_eq!(offered(&["girih", "run", "-m", "org"], "girih run -m org"), ["org/name"]);
    assert_eq!(offered(&["girih", "pull", "qwen3", ":", "0"], "girih pull qwen3:0"), ["0.6b"]);
    assert_eq!(
        offered(&["girih", "serve", "mine", "smollm2", ":", "3"], "girih serve mine smollm2:3"),
        ["360m"]
    );
    // Neither an option, nor the value of one, nor an argument of another command.
    assert!(offered(&["girih", "run", "--te"], "girih run --te").contains(&"--temp".to_owned()));
    assert!(!offered(&["girih", "run", "--kv", "mi"], "girih run --kv mi").contains(&"mine".to_owned()));
    assert!(!offered(&["girih", "man", "mi"], "girih man mi").contains(&"mine".to_owned()));
}

#[test]
fn fish_and_zsh_ask_for_names_of_models_where_a_model_is_named() {
    let fish = girih(&["completions", "fish"]).done().stdout;
    let last = fish.lines().last().expect("there are lines");
    assert!(
        last.contains("_using_subcommand run chat serve ") && last.contains("completions --models"),
        "{last}"
    );
    assert!(!last.contains("doctor"), "{last}");
    let zsh = girih(&["completions", "zsh"]).done().stdout;
    assert!(zsh.starts_with("#compdef girih\n\n_girih_models() {"), "{}", &zsh[..60]);
    let of_models = |line: &&str| line.contains(":model -- ") || line.contains("::models -- ");
    let lines: Vec<&str> = zsh.lines().filter(of_models).collect();
    assert!(lines.len() > 10 && lines.iter().all(|line| line.contains(":_girih_models'")), "{lines:#?}");
    girih(&["completions", "--models", "bash"]).fails(2, "--models");
}

#[test]
fn completions_are_made_for_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = girih(&["completions", shell]).done().stdout;
        assert!(text.contains("max-tokens") && text.contains("perplexity"), "{shell}");
    }
    girih(&["completions"]).fails(2, "required");
    girih(&["completions", "tcsh"]).fails(2, "bash, elvish, fish, powershell, zsh");
    let folder = Folder::new();
    girih(&["completions", "--output-folder", folder.name()]).done();
    let mut names: Vec<_> = folder
        .path()
        .read_dir()
        .expect("it exists")
        .map(|entry| entry.expect("it reads").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["_girih", "_girih.ps1", "girih.bash", "girih.elv", "girih.fish"]);
    let bash = crate::program::read(&folder.file("girih.bash"));
    assert_eq!(bash, girih(&["completions", "bash"]).done().stdout);
}

#[test]
fn a_manual_page_is_made_for_every_command() {
    let folder = Folder::new();
    girih(&["man", "--output-folder", folder.name()]).done();
    for command in commands() {
        let page = crate::program::read(&folder.file(&format!("girih-{}.1", command.join("-"))));
        assert!(
            page.starts_with(".ie") && page.contains(".TH girih-") && page.contains("Example"),
            "{command:?}"
        );
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        assert_eq!(girih(&["man"]).with(&words).done().stdout, page, "{command:?}");
    }
    let page = girih(&["man"]).done().stdout;
    assert!(page.contains(".TH girih 1") && page.contains("girih\\-run(1)"), "{page}");
    // On a terminal `man` formats it, if there is such a program.
    let folder = Folder::new();
    let program = folder.write("man", "#!/bin/sh\nread first\necho formatted: $1 $2 \"$first\"\n");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let path = format!("{}:/usr/bin:/bin", folder.name());
    let shown = girih(&["man", "run"]).env("PATH", path).stdout_on_terminal().stdout;
    assert!(shown.starts_with("formatted: -l - .ie"), "{shown}");
    let without = girih(&["man", "run"]).env("PATH", "/nowhere").stdout_on_terminal();
    assert!(
        without.stdout.contains(".TH girih-run") && without.stderr.contains("`man`"),
        "{}",
        without.stderr
    );
    girih(&["man", "rnu"]).fails(2, "girih has no command 'rnu'; did you mean 'run'?");
    girih(&["man", "npu", "walk"]).fails(2, "girih npu has no command 'walk'");
}
