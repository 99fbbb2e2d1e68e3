//! What a terminal and a pipe receive of text that contains control characters.

use serde_json::Value;

use crate::program::{Ended, Folder, fixture, girih};

/// Text that writes the clipboard of many terminals (OSC 52), erases a line (CSI in C1), and reverses text.
const ATTACK: &str = "a\u{1b}]52;c;eHh4\u{7}b\u{9b}2Kc\u{202e}e\tf";

/// The same on a terminal.
const SHOWN: &str = "a\\u{1b}]52;c;eHh4\\u{7}b\\u{9b}2Kc\\u{202e}e\tf";

/// The id of the byte 0x1B in stories260k.
const ESCAPE_ID: &str = "30";

/// Tokenizer and template of a model.
fn template_folder(template: &str) -> Folder {
    let folder = Folder::of(&fixture("llama32_tied"), &["tokenizer.json", "tokenizer_config.json"]);
    folder.write("chat_template.jinja", template);
    folder
}

/// Whether only line feeds and tabs are control characters.
fn is_harmless(text: &str) -> bool {
    !text.contains(|c: char| c.is_control() && !matches!(c, '\n' | '\t'))
}

#[test]
fn a_prompt_is_escaped_on_a_terminal_and_left_out_of_a_pipe() {
    let call = || girih(&["run", "stories260k", ATTACK, "-n", "2"]);
    let (shown, piped) = (call().stdout_on_terminal(), call().done());
    assert_eq!(shown.code, 0, "{}", shown.stderr);
    assert!(shown.stdout.starts_with(SHOWN) && is_harmless(&shown.stdout), "{:?}", shown.stdout);
    // A pipe gets the reply alone, and so does a terminal with --quiet.
    let reply = shown.stdout.strip_prefix(SHOWN).expect("the prompt comes first");
    assert_eq!(piped.stdout, reply);
    assert_eq!(call().with(&["--quiet"]).stdout_on_terminal().stdout, reply);
}

#[test]
fn a_reply_is_escaped_on_a_terminal_and_unchanged_in_a_pipe() {
    let forced = format!("{ESCAPE_ID}=inf");
    let call = || girih(&["run", "stories260k", "Once", "-n", "3", "--quiet", "--logit-bias", &forced]);
    let shown = call().stdout_on_terminal().stdout;
    assert_eq!(shown, "\\u{1b}\\u{1b}\\u{1b}\n");
    assert_eq!(call().done().stdout, "\u{1b}\u{1b}\u{1b}\n");
    let json = call().with(&["--json"]).stdout_on_terminal();
    assert!(is_harmless(&json.stdout), "{:?}", json.stdout);
    assert_eq!(json.json()["text"], call().with(&["--json"]).done().json()["text"]);
}

#[test]
fn a_template_is_escaped_on_a_terminal_and_unchanged_in_a_pipe() {
    let folder = template_folder(&format!("{ATTACK}{{{{ messages[0].content }}}}"));
    let call = |more: &[&str]| girih(&["render", folder.name(), ATTACK]).with(more);
    let shown = call(&[]).stdout_on_terminal().stdout;
    assert_eq!(shown, format!("{SHOWN}{SHOWN}"));
    assert_eq!(call(&[]).done().stdout, format!("{ATTACK}{ATTACK}"));
    // JSON stays JSON, with the same value.
    let spans = |ended: Ended| -> Value { ended.json()["spans"].clone() };
    let json = call(&["--json"]).stdout_on_terminal();
    assert!(is_harmless(&json.stdout) && !json.stdout.contains('\u{202e}'), "{:?}", json.stdout);
    assert_eq!(spans(json), spans(call(&["--json"]).done()));
}

#[test]
fn the_help_does_not_print_a_configured_value_that_a_terminal_obeys() {
    let help = |text: &str| girih(&["run", "--help"]).home_file(".config/girih/config.toml", text);
    let shown = help("temp = \"0.125\"").stdout_on_terminal().stdout;
    assert!(shown.contains("0.125"), "{shown:?}");
    let shown = help("temp = \"\\u001b]52;c;eA==\\u0007\"").stdout_on_terminal().stdout;
    assert!(shown.contains("--temp") && !shown.contains("]52;c"), "{shown:?}");
}

#[test]
fn errors_and_wrong_calls_have_no_control_characters() {
    let folder = template_folder(&format!("{{{{ raise_exception('{ATTACK}') }}}}"));
    let calls = [
        girih(&["render", folder.name(), "Hi"]),
        girih(&["run", ATTACK, "Hi"]),
        girih(&["run", "stories260k", "Hi", "--temp", ATTACK]),
        girih(&[ATTACK]),
        girih(&["run", "stories260k", "Hi"]).env("GIRIH_TEMP", ATTACK),
        // An unknown key is a warning, and the missing model an error.
        girih(&["rm"]).home_file(".config/girih/config.toml", &format!("\"{}\" = 1", "a\\u001b]52;")),
    ];
    for call in calls {
        let ended = call.stderr_on_terminal();
        assert_ne!(ended.code, 0);
        assert!(ended.stderr.contains("\\u{1b}"), "{:?}", ended.stderr);
        assert!(is_harmless(&ended.stderr) && !ended.stderr.contains('\u{202e}'), "{:?}", ended.stderr);
    }
}

/// The words of a text, and the length of its longest line.
fn words_and_width(text: &str) -> (Vec<&str>, usize) {
    let width = text.lines().map(|line| line.chars().count()).max();
    (text.split_whitespace().collect(), width.unwrap_or(0))
}

#[test]
fn lines_are_broken_between_words_on_a_terminal_and_nowhere_else() {
    let call = || girih(&["run", "stories260k", "Once upon a time", "-n", "60", "--temp", "0", "-q"]);
    let (piped, shown) = (call().done().stdout, call().on_terminals_of(24).stdout);
    let (words, width) = words_and_width(&shown);
    assert_eq!(words, words_and_width(&piped).0);
    assert!(width <= 24 && shown.lines().count() > piped.lines().count() + 3, "{shown}");
    // The prompt and the reply are one text.
    let whole = girih(&["run", "stories260k", "Once upon a time", "-n", "60", "--temp", "0"]);
    let whole = whole.on_terminals_of(24).stdout;
    assert!(whole.starts_with("Once upon a time, there\nwas a "), "{whole}");
    // A note and an error.
    let unknown = || girih(&["pull", "qwen3:0.5b"]);
    let (piped, shown) = (unknown().end().stderr, unknown().on_terminals_of(30).stderr);
    // The cache of each call has a path of its own.
    let words =
        |text| words_and_width(text).0.into_iter().filter(|word| !word.contains('/')).collect::<Vec<_>>();
    assert_eq!(words(&shown), words(&piped));
    assert!(words_and_width(&shown).1 <= 30 && words_and_width(&piped).1 > 60, "{shown}");
    // The list of commands in the help; clap breaks the rest.
    let (piped, shown) = (girih(&["--help"]).done().stdout, girih(&["--help"]).on_terminals_of(60).stdout);
    assert_eq!(words_and_width(&shown).0, words_and_width(&piped).0);
    let list: Vec<&str> = shown.lines().take_while(|line| !line.starts_with("Common options")).collect();
    assert!(list.iter().all(|line| line.chars().count() <= 60), "{list:#?}");
    assert!(list.iter().any(|line| line.starts_with("               ")), "{list:#?}");
}
