//! Messages about hostile files: at most 200 characters of a file are repeated.

use std::path::Path;

use serde_json::json;

use crate::program::{Call, Ended, Folder, fixture, girih, name, read_json};

/// The commands that open a model: the arguments before the model, and those after it.
const COMMANDS: [(&[&str], &[&str]); 9] = [
    (&["run"], &["Hi", "-n", "1"]),
    (&["chat"], &["-n", "1"]),
    (&["embed"], &["Hi"]),
    (&["inspect"], &[]),
    (&["perplexity"], &["/dev/null"]),
    (&["bench"], &["-p", "1", "-n", "0"]),
    (&["profile"], &[]),
    (&["npu", "inspect"], &["--target", "toy"]),
    (&["quantize"], &["/nowhere/out.gguf", "--type", "q8_0"]),
];

/// What only `tokenize` and `render` also open.
const TEXT_COMMANDS: [(&[&str], &[&str]); 2] = [(&["tokenize"], &["Hi"]), (&["render"], &["Hi"])];

/// 70,000 characters.
fn long() -> String {
    "x".repeat(70_000)
}

/// Checks the length of what a failed call prints.
#[track_caller]
fn assert_short(call: Call, what: &str) -> Ended {
    let ended = assert_short_output(call, what);
    assert_ne!(ended.code, 0, "{what}: {}", ended.stderr);
    ended
}

/// Checks the length of what a call prints.
#[track_caller]
fn assert_short_output(call: Call, what: &str) -> Ended {
    let ended = call.stdin("Hi\n").end();
    let printed = format!("{}{}", ended.stdout, ended.stderr);
    assert!(!printed.contains("panicked"), "{what}: {}", ended.stderr);
    let most = printed.lines().map(|line| line.chars().filter(|c| *c == 'x').count()).max();
    assert!(most.unwrap_or_default() <= 202, "{what}: {most:?} characters are repeated");
    assert!(ended.stderr.chars().count() <= 700, "{what}: {}", ended.stderr);
    ended
}

/// A model whose file `file` is `text`.
fn model_with(file: &str, text: &str) -> Folder {
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let folder = Folder::of(&fixture("llama32_tied"), &files);
    folder.write(file, text);
    folder
}

/// A model with this value of a key of its configuration.
fn model_with_key(key: &str, value: serde_json::Value) -> Folder {
    let mut config = read_json(&fixture("llama32_tied").join("config.json"));
    config[key] = value;
    model_with("config.json", &config.to_string())
}

/// A safetensors file of this header.
fn safetensors(folder: &Folder, header: &str) {
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    std::fs::write(folder.file("model.safetensors"), bytes).expect("the folder is writable");
}

/// Runs every command of `commands` on a model.
fn check(commands: &[(&[&str], &[&str])], model: &Path, what: &str) {
    for (command, rest) in commands {
        let call = girih(command).with(&[name(model)]).with(rest);
        assert_short(call, &format!("{} {what}", command.join(" ")));
    }
}

#[test]
fn a_hostile_configuration_is_not_repeated() {
    for (key, value) in [
        ("architectures", json!([long()])),
        ("architectures", json!([long(), long(), long()])),
        ("hidden_size", json!(long())),
        ("hidden_act", json!(long())),
        ("rope_scaling", json!({"rope_type": long()})),
        ("tie_word_embeddings", json!(long())),
        (&long(), json!(long())),
        ("unknown", json!({long(): {long(): long()}})),
    ] {
        check(&COMMANDS, model_with_key(key, value).path(), key);
    }
    check(&COMMANDS, model_with("config.json", &format!("{{\"{}\": ]", long())).path(), "a key");
    let generation = json!({"temperature": long()}).to_string();
    check(&COMMANDS, model_with("generation_config.json", &generation).path(), "a temperature");
}

#[test]
fn hostile_weights_are_not_repeated() {
    let folder = model_with("notes", "");
    let entry = |dtype: &str| format!(r#"{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,1]}}"#);
    for header in [
        format!(r#"{{"{}":{}}}"#, long(), entry("U8")),
        format!(r#"{{"a":{}}}"#, entry(&long())),
        format!(r#"{{"a":"{}"}}"#, long()),
        long(),
    ] {
        safetensors(&folder, &header);
        check(&COMMANDS, folder.path(), &header[..20]);
    }
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let pair = |key: &str, text: &str| [string(key), 8u32.to_le_bytes().to_vec(), string(text)].concat();
    let gguf = |pair: &[u8]| [b"GGUF\x03\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0", pair].concat();
    let file = folder.file("a.gguf");
    for (key, text) in [(long(), "a".to_owned()), ("general.architecture".to_owned(), long())] {
        std::fs::write(&file, gguf(&pair(&key, &text))).expect("the folder is writable");
        check(&COMMANDS, &file, &key[..10]);
        check(&TEXT_COMMANDS[..1], &file, &key[..10]);
    }
}

#[test]
fn a_hostile_tokenizer_is_not_repeated_and_inspect_names_it() {
    for text in [
        json!({"version": long()}).to_string(),
        json!({"version": "1.0", "model": {"type": long()}}).to_string(),
        json!({"version": "1.0", "model": long()}).to_string(),
        json!({"version": "1.0", "added_tokens": long()}).to_string(),
        json!({"version": "1.0", "normalizer": {"type": long()}}).to_string(),
        format!("{{\"{}\"", long()),
    ] {
        let folder = model_with("tokenizer.json", &text);
        check(&TEXT_COMMANDS, folder.path(), &text[..30]);
        check(&COMMANDS[..2], folder.path(), &text[..30]);
        let ended = assert_short(girih(&["inspect", folder.name()]), "inspect");
        assert_eq!(ended.code, 1);
        assert!(ended.stdout.contains("tokenizer: cannot be used: "), "{}", ended.stdout);
    }
    for text in
        [json!({"bos_token": long()}), json!({"add_bos_token": long()}), json!({"bos_token": [long()]})]
    {
        let folder = model_with("tokenizer_config.json", &text.to_string());
        check(&TEXT_COMMANDS, folder.path(), "tokenizer_config.json");
        let ended = assert_short(girih(&["inspect", folder.name(), "--json"]), "inspect --json");
        assert!(ended.json()["tokenizer"]["error"].is_string(), "{}", ended.stdout);
    }
}

#[test]
fn a_hostile_template_is_not_repeated_and_inspect_names_it() {
    let long = long();
    for (template, is_broken) in [
        (format!("{{{{ raise_exception('{long}') }}}}"), false),
        (format!("{{{{ messages | {long} }}}}"), true),
        (format!("{{{{ messages is {long} }}}}"), true),
        (format!("{{{{ {long}() }}}}"), true),
        (format!("{{% {long} %}}"), true),
        (format!("{{{{ messages.{long}.{long} }}}}"), true),
        (format!("{{{{ strftime_now('{long}%') }}}}"), true),
        (format!("{{{{ ('{long}' | int) / 0 }}}}"), true),
    ] {
        let folder = model_with("chat_template.jinja", &template);
        let what = &template[..20];
        check(&TEXT_COMMANDS[1..], folder.path(), what);
        check(&COMMANDS[1..2], folder.path(), what);
        let ended = girih(&["inspect", folder.name()]).end();
        assert_eq!(ended.code, i32::from(is_broken), "{what}: {}", ended.stdout);
        assert_eq!(ended.stdout.contains("chat template: cannot be used: "), is_broken, "{}", ended.stdout);
        assert!(ended.stdout.lines().all(|line| line.chars().count() < 500), "{what}");
    }
    let list = json!({"chat_template": [{"name": long, "template": "a"}]}).to_string();
    let folder = model_with("tokenizer_config.json", &list);
    check(&TEXT_COMMANDS[1..], folder.path(), "the name of a template");
}

#[test]
fn hostile_descriptions_are_not_repeated() {
    let folder = Folder::new();
    for text in [format!("{} = 1", long()), format!("name = {}", long()), format!("name = \"{}", long())] {
        let file = folder.write("description.toml", &text);
        let file = name(&file);
        assert_short(girih(&["inspect", "stories260k", "--arch", file]), "an architecture");
        let out = folder.file("out.gguf");
        let quantize = ["quantize", "stories260k", name(&out), "--type", "q8_0", "--recipe", file];
        assert_short(girih(&quantize), "a recipe");
        // A key that is unknown, but valid, is only a warning.
        let listed = assert_short_output(girih(&["list"]).env("GIRIH_CONFIG", file), "a configuration");
        assert!(listed.stderr.starts_with("girih: "), "{}", listed.stderr);
    }
    let config = folder.write("config.toml", &format!("temp = \"{}\"", long()));
    assert_short(girih(&["run"]).env("GIRIH_CONFIG", &config), "a value of the configuration");
    let rule = folder.write("recipe.toml", &format!("[[rule]]\ntensors = \"*\"\ntype = \"{}\"", long()));
    let out = folder.file("out.gguf");
    let quantize = ["quantize", "stories260k", name(&out), "--type", "q8_0", "--recipe", name(&rule)];
    assert_short(girih(&quantize), "a type of a recipe");
    let graph = folder.write("a.graph", &format!("graph\n{}", long()));
    assert_short(girih(&["npu", "compile", name(&graph), "--target", "toy"]), "a graph");
    let golden = folder.write("golden.safetensors", &long());
    assert_short(girih(&["verify", "stories260k", "--golden", name(&golden)]), "a golden");
    assert_short(girih(&["diagnose", "stories260k", "--golden", name(&golden)]), "a golden");
}

#[test]
fn a_hostile_line_is_not_repeated() {
    let lines = format!("{{\"{0}\": 1}}\n{{\"text\": {{\"{0}\": 1}}}}\n\"{0}\"\n", long());
    let answers = girih(&["tokenize", "stories260k", "--jsonl", "-"]).stdin(lines).done().json_lines();
    assert_eq!(answers.len(), 3);
    for answer in answers {
        let error = answer["error"].as_str().expect("an error");
        assert!(error.chars().filter(|c| *c == 'x').count() <= 202 && error.len() < 400, "{error}");
    }
}

/// Its memory fits, but nobody can talk to it.
#[test]
fn inspect_fails_beside_a_broken_tokenizer_and_not_without_one() {
    let broken = model_with("tokenizer.json", "{");
    let ended = girih(&["inspect", broken.name()]).end();
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    assert!(ended.stdout.contains("tokenizer: cannot be used: "), "{}", ended.stdout);
    std::fs::remove_file(broken.file("tokenizer.json")).expect("it is there");
    let ended = girih(&["inspect", broken.name()]).done();
    assert!(ended.stdout.contains("tokenizer: none\n"), "{}", ended.stdout);
    let whole = model_with("chat_template.jinja", "{{ messages[0].content }}");
    let ended = girih(&["inspect", whole.name()]).done();
    assert!(ended.stdout.contains("tokenizer: 512 tokens\nchat template: works\n"), "{}", ended.stdout);
}
