//! `--draft`: the same replies with prompt lookup and with a draft model.

use serde_json::Value;

use crate::program::{Folder, fixture, girih, name, read};

const PROMPT: &str = "Lily had a red ball. Tim had a red ball. Lily had a red ball. Tim had";

/// The built-in model in four bits.
fn small(folder: &Folder) -> String {
    let out = folder.file("small-q4_0.gguf");
    girih(&["quantize", "stories260k", name(&out), "--type", "q4_0", "-q"]).done();
    name(&out).to_owned()
}

fn count(reply: &Value, name: &str) -> u64 {
    reply[name].as_u64().unwrap_or_else(|| panic!("{name} is not a count in {reply}"))
}

#[test]
fn run_has_the_same_reply_with_and_without_drafts() {
    let folder = Folder::new();
    let small = small(&folder);
    for temperature in ["0", "1"] {
        let run = |more: &[&str]| {
            let call =
                girih(&["run", "stories260k", PROMPT, "-n", "120", "--seed", "7", "--temp", temperature]);
            call.with(&["--json", "-q"]).with(more).done().json()
        };
        let plain = run(&[]);
        assert_eq!((count(&plain, "drafted_tokens"), count(&plain, "accepted_tokens")), (0, 0));
        for draft in ["lookup", &small] {
            let drafted = run(&["--draft", draft]);
            assert_eq!((&drafted["ids"], &drafted["text"]), (&plain["ids"], &plain["text"]), "{draft}");
            let (drafted, accepted) = (count(&drafted, "drafted_tokens"), count(&drafted, "accepted_tokens"));
            // How many are drafted depends on the time of drafts.
            assert!(accepted <= drafted && (draft == "lookup" || drafted > 0), "{accepted} of {drafted}");
            let one = run(&["--model-draft", draft, "--draft-max", "1"]);
            assert_eq!(one["ids"], plain["ids"], "{draft}");
        }
    }
}

#[test]
fn a_chat_tells_how_many_drafted_tokens_were_accepted() {
    let chat = girih(&["chat", "stories260k", "-n", "60", "--draft", "stories260k", "--quiet"]);
    let stdout = chat.stdin("Once upon a time\n/stats\n").done().stdout;
    let stats = stdout.lines().last().expect("there are lines");
    assert!(stats.contains("; drafts: ") && stats.ends_with(" accepted"), "{stats}");
}

#[test]
fn bench_times_drafts_and_counts_them() {
    let folder = Folder::new();
    let small = small(&folder);
    for parallel in ["1", "3"] {
        let bench =
            girih(&["bench", "stories260k", "-p", "0", "-n", "120", "-r", "2", "--parallel", parallel]);
        let rows = bench.with(&["--draft", &small, "--json", "--no-limits", "-q"]).done().json();
        let row = &rows["rows"][0];
        assert!(row["test"].as_str().is_some_and(|test| test.ends_with(", draft small-q4_0.gguf")), "{row}");
        assert!(0 < count(row, "accepted_tokens"), "{row}");
        assert!(count(row, "accepted_tokens") <= count(row, "drafted_tokens"), "{row}");
    }
}

#[test]
fn drafts_that_cannot_work_are_refused() {
    let folder = Folder::new();
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let other = Folder::of(&fixture("llama32_tied"), &files);
    let draft = || girih(&["run", "stories260k", "Lily", "-n", "9", "-q", "--draft", other.name()]);
    // It has the same tokens, but fewer.
    draft().done();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let text = read(&other.file(file));
        other.write(file, &text.replace("</s>", "<end>"));
    }
    let words = "cannot draft for stories260k: token 2 is '<end>' instead of '</s>'; choose";
    draft().fails(2, words);
    // A variable is for many calls, so it applies only where it can.
    let plain = girih(&["run", "stories260k", "Lily", "-n", "9", "--json", "-q"]);
    let plain = plain.env("GIRIH_DRAFT", other.name()).done().json();
    assert_eq!(count(&plain, "drafted_tokens"), 0);
    let noted = girih(&["run", "stories260k", "Lily", "-n", "9"]).env("GIRIH_DRAFT", other.name()).done();
    assert!(noted.stderr.contains("drafts are off: "), "{}", noted.stderr);
    let record = folder.file("record");
    let bench = girih(&["bench", "stories260k", "-p", "4", "-n", "0", "-r", "1", "--no-limits", "-q"]);
    let bench = bench.with(&["--json", "--record", name(&record)]).env("GIRIH_DRAFT", "lookup");
    assert_eq!(bench.done().json()["rows"][0]["draft"], Value::Null);
    girih(&["run", "stories260k", "Hi", "--draft", "./none.gguf"]).fails(2, "none.gguf");
    girih(&["run", "stories260k", "Hi", "--draft-max", "3"]).fails(2, "--draft is off");
    girih(&["run", "stories260k", "Hi", "--draft", "lookup", "--draft-max", "0"]).fails(2, "0");
    girih(&["bench", "stories260k", "--draft", "lookup", "--record"]).fails(2, "no columns for drafts");
}
