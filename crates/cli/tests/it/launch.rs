//! `girih launch`, and `girih serve --models`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Folder, girih, name};
use crate::running_server::RunningServer;

/// A folder with a model: the built-in one, with a context of this size.
pub fn model_folder(home: &Folder, folder: &str, context: u32) {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../girih/assets/stories260k");
    fs::create_dir_all(home.file(folder)).expect("a folder");
    for file in ["model.safetensors", "generation_config.json", "tokenizer.json", "tokenizer_config.json"] {
        home.copy(&assets.join(file), &format!("{folder}/{file}"));
    }
    let config = fs::read_to_string(assets.join("config.json")).expect("a file");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    config["max_position_embeddings"] = json!(context);
    home.write(&format!("{folder}/config.json"), &config.to_string());
}

#[test]
fn an_agent_gets_its_settings_after_a_check_of_the_server() {
    let home = Folder::new();
    model_folder(&home, "agent", 40_000);
    let template =
        "<s>{{ tools }}{# <tool_call> #}{% for message in messages %}{{ message.content }}{% endfor %}";
    let template = home.write("tools.jinja", template);
    let model = home.file("agent");
    let options =
        [name(&model), "--chat-template", name(&template), "--api-key", "bob:sk-1", "--sequences", "1"];
    let server = RunningServer::start(&home, &[&options[..], &["--context", "32768"]].concat());
    let url = format!("http://{}", server.address);
    let launch = |agent: &str| girih(&["launch", agent, "--url", &url]);
    launch("claude").fails(2, "needs an API key; give GIRIH_API_KEY or --api-key");
    let claude = launch("claude").with(&["--json"]).env("GIRIH_API_KEY", "bob:sk-1").done().json();
    assert_eq!(claude["program"], "claude");
    assert_eq!(claude["variables"]["ANTHROPIC_BASE_URL"], url);
    assert_eq!(claude["variables"]["ANTHROPIC_AUTH_TOKEN"], "sk-1");
    assert_eq!(claude["variables"]["ANTHROPIC_MODEL"], "agent");
    let lines = launch("aider").with(&["--api-key", "sk-1"]).done().stdout;
    assert_eq!(
        lines,
        format!("export OPENAI_API_BASE={url}/v1\nexport OPENAI_API_KEY=sk-1\naider --model openai/agent\n")
    );
    launch("codex")
        .with(&["--api-key", "sk-1", "--model", "other"])
        .fails(2, "serves no model 'other'; it has agent");
    let health = |with: &[&str]| girih(&["health", "--url", &url]).with(with);
    assert_eq!(health(&[]).done().stdout, "ok\n");
    health(&["--ready"]).fails(2, "needs an API key; give GIRIH_API_KEY or --api-key");
    assert_eq!(health(&["--ready", "--api-key", "bob:sk-1"]).done().stdout, "ready\n");
    // With --run, the variables are those of the agent's process.
    fs::create_dir_all(home.file("bin")).expect("a folder");
    let program = home.write("bin/claude", "#!/bin/sh\necho \"$ANTHROPIC_MODEL $1\"\nexit 3\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a file of one's own");
    let path = format!("{}:/usr/bin:/bin", home.file("bin").display());
    let run = launch("claude").with(&["--api-key", "sk-1", "--run", "--", "-p"]).env("PATH", &path).end();
    assert_eq!((run.stdout.as_str(), run.code), ("agent -p\n", 1));
    assert_eq!(server.end(), Some(0));
    health(&[]).fails(1, &url);
    launch("claude").fails(1, "start it with `girih serve`, or give --url");
}

#[test]
fn a_server_that_cannot_serve_an_agent_is_refused_with_what_it_lacks() {
    let home = Folder::new();
    let server = RunningServer::start(&home, &["stories260k"]);
    let url = format!("http://{}", server.address);
    girih(&["launch", "opencode", "--url", &url])
        .fails(2, "OpenCode needs 16384: serve it with --context 16384");
    assert_eq!(server.end(), Some(0));
    model_folder(&home, "plain", 40_000);
    let model = home.file("plain");
    let template =
        home.write("plain.jinja", "<s>{% for message in messages %}{{ message.content }}{% endfor %}");
    let options =
        [name(&model), "--chat-template", name(&template), "--sequences", "1", "--context", "20000"];
    let server = RunningServer::start(&home, &options);
    let url = format!("http://{}", server.address);
    girih(&["launch", "opencode", "--url", &url])
        .fails(2, "'plain' does not call tools, which OpenCode needs");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn the_models_of_a_folder_are_served_and_loaded_on_request() {
    let home = Folder::new();
    for folder in ["models/unknown", "empty"] {
        fs::create_dir_all(home.file(folder)).expect("a folder");
    }
    model_folder(&home, "models/tom", 512);
    model_folder(&home, "models/lily", 512);
    home.write("models/unknown/config.json", r#"{"model_type": "no_such_family"}"#);
    home.write("models/notes.txt", "");
    home.write("models/tom.gguf", "");
    let folder = home.file("models");
    let server = RunningServer::start(&home, &["--models", name(&folder)]);
    let ids = |path: &str| {
        let list = server.exchange(&format!("GET {path}"), "", "").1;
        let models = list["data"].as_array().or(list["models"].as_array()).cloned().unwrap_or_default();
        let id = |model: &Value| model["id"].as_str().or(model["name"].as_str()).map(str::to_owned);
        models.iter().filter_map(id).collect::<Vec<_>>()
    };
    assert_eq!(ids("/v1/models"), ["lily", "tom"]);
    assert!(ids("/api/ps").is_empty(), "{:?}", ids("/api/ps"));
    let body = json!({"model": "tom", "prompt": "Once upon a time", "max_tokens": 4});
    assert_eq!(server.post("/v1/completions", &body)["choices"][0]["text"], ", there was a");
    assert_eq!(ids("/api/ps").len(), 1);
    let said = server.end_by(rustix::process::Signal::TERM).1;
    assert!(said.contains("left out: ") && said.contains("models/unknown"), "{said}");
    assert!(said.contains("models/tom.gguf has the name of another model, 'tom'"), "{said}");
    home.write("empty/notes.txt", "");
    girih(&["serve", "--models", name(&home.file("empty"))]).fails(2, "has no model that can be served");
    girih(&["serve", "--models", "/no/such/folder"]).fails(1, "/no/such/folder");
    girih(&["serve"]).fails(2, "MODEL");
}
