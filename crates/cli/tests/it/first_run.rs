//! `girih run`: where its prompt comes from, when a chat template is applied, and its JSON.

use serde_json::{Value, json};

use crate::console::{CTRL_D, Console};
use crate::program::{Folder, fixture, girih, name};

/// A model with this chat template.
pub fn model_with_template(template: &str) -> Folder {
    let model = Folder::of(&fixture("llama32_tied"), &["config.json", "model.safetensors"]);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        model.copy(&fixture("llama32_tied").join(file), file);
    }
    model.write("chat_template.jinja", template);
    model
}

/// A template that names the roles.
pub const TEMPLATE: &str = "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
     {% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/// What every reply of these tests has.
const SHORT: [&str; 3] = ["-n", "6", "--quiet"];

#[test]
fn the_chat_template_of_a_model_is_applied() {
    let model = model_with_template(TEMPLATE);
    let run =
        |prompt: &str, more: &[&str]| girih(&["run", model.name(), prompt]).with(&SHORT).with(more).done();
    let written = "user: Tom saw\nassistant:";
    let raw = run(written, &["--raw"]).stdout;
    assert_eq!(run("Tom saw", &[]).stdout, raw, "only the reply is printed");
    let with_system = run("Tom saw", &["--system", "Be kind", "--json"]).json();
    let raw = run("system: Be kind\nuser: Tom saw\nassistant:", &["--raw", "--json"]).json();
    assert_eq!((&with_system["ids"], &with_system["text"]), (&raw["ids"], &raw["text"]));
    assert_eq!((&with_system["chat_template"], &raw["chat_template"]), (&json!(true), &json!(false)));
    girih(&["run", model.name(), "Hi", "--raw", "--system", "Be"]).fails(2, "--raw uses none; omit --system");
    girih(&["run", "stories260k", "Hi", "--system", "Be"]).fails(2, "the model has none; omit --system");
    girih(&["run", model.name(), "Hi", "--special"]).fails(2, "add --raw");
    // A variable is for many calls.
    girih(&["run", "stories260k", "Hi"]).with(&SHORT).env("GIRIH_SYSTEM", "Be").done();
}

#[test]
fn thinking_is_switched_off_where_the_template_can() {
    let thinks = format!("{TEMPLATE}{{% if enable_thinking is false %}}<think></think>{{% endif %}}");
    let (thinks, plain) = (model_with_template(&thinks), model_with_template(TEMPLATE));
    let ids = |model: &Folder, prompt: &str, more: &[&str]| -> Value {
        girih(&["run", model.name(), prompt, "--json"]).with(&SHORT).with(more).done().json()["ids"].clone()
    };
    let without = ids(&thinks, "Hi", &["--no-think"]);
    assert_ne!(without, ids(&thinks, "Hi", &[]));
    assert_eq!(without, ids(&plain, "user: Hi\nassistant:<think></think>", &["--raw"]));
    let call = || girih(&["run", plain.name(), "Hi"]);
    call().with(&["--no-think"]).fails(2, "does not read enable_thinking");
    call().with(&SHORT).env("GIRIH_NO_THINK", "true").done();
    girih(&["chat", plain.name(), "--no-think"]).fails(2, "does not read enable_thinking");
}

#[test]
fn the_prompt_is_an_argument_a_file_or_a_pipe() {
    let run = |more: &[&str], stdin: &str| {
        girih(&["run", "stories260k"]).with(&SHORT).with(more).stdin(stdin).done().stdout
    };
    let story = run(&["Tom saw a"], "never read");
    assert_ne!(story, run(&["never read"], ""));
    let folder = Folder::new();
    let file = folder.write("prompt.txt", "Tom saw a\n");
    for more in [&["-f", name(&file)][..], &["--file", name(&file)]] {
        assert_eq!(run(more, "never read"), story);
    }
    assert_eq!(run(&["-f", "-"], "Tom saw a\n"), story);
    assert_eq!(run(&[], "Tom saw a\n"), story);
    assert_eq!(run(&["-"], "Tom saw a"), story);
    let call = |more: &[&str]| girih(&["run", "stories260k"]).with(more);
    call(&[]).fails(2, "no prompt was given: add one, or '-' to read it from standard input");
    call(&["Hi", "-f", name(&file)]).fails(2, "cannot be used with");
    call(&["-f", "/nowhere.txt"]).fails(2, "/nowhere.txt: cannot be read");
    // Without a model, standard input is not read.
    let demo = girih(&["run"]).with(&SHORT).stdin("Tom saw a").done().stdout;
    assert_eq!(demo, run(&["Once upon a time, there was a little girl named Lily."], ""));
}

/// The first thing that is wrong is the model, whatever else the call says.
#[test]
fn a_missing_model_is_named_before_anything_else() {
    for more in [&[][..], &["-"], &["-f", "/nowhere.txt"], &["Hi", "--temp", "-1"], &["Hi", "--system", "Be"]]
    {
        girih(&["run", "/nowhere/model"]).with(more).fails(2, "/nowhere/model");
        girih(&["run", "org/name"]).with(more).fails(2, "girih pull org/name");
    }
    let home = Folder::new();
    let mut console = Console::start(&["run", "/nowhere/model", "-"], &home, &[]);
    console.wait_for("/nowhere/model");
    assert_eq!(console.end(), Some(2), "it does not wait for standard input");
}

/// Calls `found` with the path of each key of a value.
fn each_key(value: &Value, path: &str, found: &mut dyn FnMut(String)) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| {
            let path = format!("{path}.{key}");
            found(path.clone());
            each_key(value, &path, found);
        }),
        Value::Array(items) => items.iter().for_each(|item| each_key(item, path, found)),
        _ => {}
    }
}

#[test]
fn json_is_one_object_whose_keys_have_no_spaces() {
    let model = model_with_template(TEMPLATE);
    let text = model.write("text", "Once upon a time there was a girl.");
    let golden = fixture("llama32_tied/golden.safetensors");
    let calls: [&[&str]; 9] = [
        &["run", "-n", "4"],
        &["run", model.name(), "Hi", "-n", "4"],
        &["tokenize", "stories260k", "Once", "--explain"],
        &["render", model.name(), "Hi"],
        &["inspect", "stories260k", "--tensors"],
        &["perplexity", "stories260k", name(&text)],
        &["profile", "stories260k", "-p", "8", "-n", "2", "--no-limits"],
        &["verify", model.name(), "--golden", name(&golden)],
        &["doctor"],
    ];
    for call in calls {
        let ended = girih(call).with(&["--json"]).done();
        let value: Value = serde_json::from_str(&ended.stdout).expect("one value, and nothing else");
        assert!(value.is_object(), "{call:?}: {value}");
        each_key(&value, "", &mut |path| assert!(!path.contains(' '), "{call:?}: {path}"));
    }
}

#[test]
fn jsonl_streams_an_event_for_each_token() {
    let call = || girih(&["run", "stories260k", "Once upon a time", "-n", "5", "--quiet"]);
    let events = call().with(&["--jsonl"]).done().json_lines();
    let names: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
    assert_eq!(names, ["start", "text", "text", "text", "text", "text", "end"]);
    let (start, end) = (&events[0], &events[6]);
    assert_eq!(start["prompt_tokens"], end["prompt_tokens"]);
    let texts: String = events[1..6].iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(end["text"], texts);
    let whole = call().with(&["--json"]).done().json();
    assert_eq!(end["ids"], whole["ids"]);
    let prompt = whole["prompt_tokens"].as_u64().expect("a count") as usize;
    let ids: Vec<&Value> = events[1..6].iter().map(|event| &event["id"]).collect();
    assert_eq!(ids, whole["ids"].as_array().expect("a list")[prompt..].iter().collect::<Vec<_>>());
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(end)[1..], keys(&whole)[..], "the last event has the fields of --json");
    assert!(whole["start"]["first_token"].is_number());
    call().with(&["--json", "--jsonl"]).fails(2, "cannot be used with");
}

#[test]
fn a_model_without_a_prompt_opens_a_chat_on_a_terminal() {
    let home = Folder::new();
    let mut console = Console::start(&["run", "stories260k", "-n", "4"], &home, &[]);
    console.wait_for("messages and replies become one story");
    console.wait_for("> ");
    console.line("Once upon a time");
    console.wait_for("maximum length");
    console.keys(CTRL_D);
    assert_eq!(console.end(), Some(0));
    // One reply needs its prompt.
    let mut console = Console::start(&["run", "stories260k", "--json"], &home, &[]);
    console.wait_for("no prompt was given");
    assert_eq!(console.end(), Some(2));
}

/// The same in every command that takes a text.
#[test]
fn a_text_on_standard_input_equals_an_argument() {
    let model = model_with_template(TEMPLATE);
    let encoder = Folder::of(&fixture("bert"), &["config.json", "model.safetensors"]);
    encoder.copy(&fixture("../../crates/girih/assets/stories260k/tokenizer.json"), "tokenizer.json");
    let text = "Once upon a time there was";
    let file = model.write("text", text);
    for command in [
        &["run", "stories260k", "-q", "-n", "3"][..],
        &["tokenize", "stories260k"],
        &["render", model.name()],
        &["embed", encoder.name(), "-q"],
        &["perplexity", "stories260k", "-q"],
    ] {
        let argument = if command[0] == "perplexity" { name(&file) } else { text };
        let want = girih(command).with(&[argument]).done().stdout;
        assert!(!want.is_empty());
        assert_eq!(girih(command).with(&["-"]).stdin(text).done().stdout, want, "{command:?}");
        assert_eq!(girih(command).stdin(text).done().stdout, want, "{command:?}");
        girih(command).fails(2, if command[0] == "perplexity" { "at least 2" } else { "was given: add one" });
        let home = Folder::new();
        let mut console = Console::start(&[command, &["--context", "64"][..0]].concat(), &home, &[]);
        // `run` opens a chat instead.
        if command[0] == "run" {
            console.wait_for("> ");
            continue;
        }
        console.wait_for("was given: add one, or '-' to read it from standard input");
        assert_eq!(console.end(), Some(2), "{command:?}");
        let mut console = Console::start(&[command, &["-"][..]].concat(), &home, &[]);
        console.wait_for("reading standard input; Ctrl-D ends it");
        console.keys(&format!("{text}\n{CTRL_D}"));
        assert_eq!(console.end(), Some(0), "{command:?}: {}", console.shown());
    }
    let two = ["embed", encoder.name(), "a cat", "-"];
    let both = girih(&two).with(&["--json"]).stdin("a dog\n").done().json();
    assert_eq!(both["embeddings"][1]["text"], "a dog");
    assert_eq!(girih(&two).with(&["--jsonl"]).stdin("a dog").done().json_lines().len(), 2);
    girih(&["embed", encoder.name(), "-", "-"]).fails(2, "'-' is given twice");
}

#[test]
fn a_line_of_requests_opens_the_reply_unless_it_says_otherwise() {
    let model = model_with_template(TEMPLATE);
    let message = json!([{"role": "user", "content": "Hi"}]);
    let requests = [
        json!({"messages": message}),
        json!({"messages": message, "add_generation_prompt": false}),
        json!({"message": message}),
    ];
    let lines: String = requests.iter().map(|request| format!("{request}\n")).collect();
    let call = || girih(&["render", model.name(), "--jsonl", "-"]).stdin(&lines);
    let found = call().fails(1, "1 of 3 lines failed").json_lines();
    let plain = girih(&["render", model.name(), "Hi"]).done().stdout;
    assert!(plain.ends_with("assistant:"));
    assert_eq!(found[0]["text"], plain);
    assert_eq!(found[1]["text"], plain.strip_suffix("assistant:").unwrap());
    assert!(found[2]["error"].is_string());
    let without = call().with(&["--no-generation-prompt"]).end().json_lines();
    assert_eq!(without[0], found[1]);
}
