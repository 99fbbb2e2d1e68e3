//! `girih serve --models`: options of single models, models that come and go, and clients that change which there are.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::hub::server::{Fault, Repo, Server};
use crate::launch::model_folder;
use crate::program::{Folder, girih, name};
use crate::running_server::RunningServer;

/// The ids of the models with their contexts.
fn models(server: &RunningServer) -> Vec<(String, u64)> {
    let list = server.exchange("GET /v1/models", "", "").1;
    let models = list["data"].as_array().expect("a list").iter();
    let model =
        |model: &Value| (model["id"].as_str().expect("an id").to_owned(), model["max_model_len"].as_u64());
    models.map(model).map(|(id, context)| (id, context.expect("a context"))).collect()
}

fn story(server: &RunningServer, model: &str) -> u16 {
    let body = json!({"model": model, "prompt": "Once upon a time", "max_tokens": 4}).to_string();
    let (status, reply) = server.exchange("POST /v1/completions", "", &body);
    if status == 200 {
        assert_eq!(reply["choices"][0]["text"], ", there was a");
    }
    status
}

fn of(list: &[(&str, u64)]) -> Vec<(String, u64)> {
    list.iter().map(|(id, context)| ((*id).to_owned(), *context)).collect()
}

#[test]
fn models_have_options_of_their_own_and_come_and_go() {
    let home = Folder::new();
    model_folder(&home, "models/tom", 512);
    model_folder(&home, "models/org/lily", 512);
    home.write(
        "models/girih.toml",
        "[tom]\ncontext = 96\nunload-idle = 1\nkv = \"f32\"\n[\"org/mary\"]\nparallel = 1\n",
    );
    let folder = home.file("models");
    let server = RunningServer::start(&home, &["--models", name(&folder), "--context", "128"]);
    assert_eq!(models(&server), of(&[("org/lily", 128), ("tom", 96)]));
    assert_eq!((story(&server, "tom"), story(&server, "org/mary")), (200, 404));
    // By its own option, it is unloaded after a second.
    let start = Instant::now();
    while !server.exchange("GET /api/ps", "", "").1["models"].as_array().expect("a list").is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "tom stays loaded");
        sleep(Duration::from_millis(100));
    }
    model_folder(&home, "models/org/mary", 512);
    assert_eq!(story(&server, "org/mary"), 200);
    assert_eq!(models(&server), of(&[("org/lily", 128), ("tom", 96), ("org/mary", 128)]));
    // Its options change while the server runs, and so does the model.
    home.write("models/girih.toml", "[tom]\ncontext = 64\n");
    let start = Instant::now();
    while !models(&server).contains(&("tom".to_owned(), 64)) {
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", models(&server));
        sleep(Duration::from_millis(100));
    }
    fs::remove_dir_all(home.file("models/org")).expect("it is there");
    assert_eq!(story(&server, "org/lily"), 404);
    assert_eq!(models(&server), of(&[("tom", 64)]));
    // What is wrong in the file is told, and nothing changes.
    home.write("models/girih.toml", "[tom]\ncontxt = 1\n");
    assert_eq!(models(&server), of(&[("tom", 64)]));
    let said = server.end_by(Signal::TERM).1;
    assert!(said.contains("girih.toml has options of 'org/mary', which is not served"), "{said}");
    assert!(
        said.contains("girih.toml:2: 'contxt' is no option of a single model; is 'context' meant?"),
        "{said}"
    );
    girih(&["serve", "--models", name(&folder)]).fails(2, "is 'context' meant?");
    let options = home.write("options.toml", "[tom]\nkv = \"q7\"\n");
    girih(&["serve", &format!("tom={}", name(&folder.join("tom"))), "--model-options", name(&options)])
        .fails(2, "'tom': invalid value 'q7' for '--kv <TYPE>'");
}

/// The files of a folder as a repository.
fn repository(folder: &Path) -> Repo {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let files: Vec<(String, Vec<u8>)> = entries
        .map(|path| {
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            (name, fs::read(&path).expect("a file"))
        })
        .collect();
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    Repo::of(&files)
}

/// A server that downloads from `hub`; its operator has a token.
fn pulling(home: &Folder, hub: &Server, arguments: &[&str]) -> RunningServer {
    let program = Path::new(env!("CARGO_BIN_EXE_girih"));
    let variables = [("HF_ENDPOINT", &*hub.url()), ("HF_TOKEN", "hf_of_the_operator")];
    RunningServer::with_variables(program, home, &variables, arguments)
}

/// A folder for models, and a hub with one.
fn with_hub() -> (Folder, Server) {
    let home = Folder::new();
    model_folder(&home, "source", 512);
    fs::create_dir(home.file("models")).expect("it is new");
    let hub = Server::of_repo(&repository(&home.file("source")));
    (home, hub)
}

/// A server whose clients may change the models, beside one that they may not change.
fn changeable(home: &Folder, hub: &Server, cap: &str) -> RunningServer {
    let outside = format!("outside={}", name(&home.file("source")));
    pulling(home, hub, &["--models", name(&home.file("models")), "--allow-pull", cap, &outside])
}

/// The status and the error of a refusal.
fn refusal((status, lines): (u16, Vec<Value>)) -> (u16, String) {
    (status, lines[0]["error"].as_str().expect("an error").to_owned())
}

fn pull(server: &RunningServer, model: &str) -> (u16, Vec<Value>) {
    server.lines("POST /api/pull", &json!({"model": model}))
}

fn success() -> Value {
    json!({"status": "success"})
}

#[test]
fn clients_download_models() {
    let (home, hub) = with_hub();
    let server = changeable(&home, &hub, "50MiB");
    // A download that is damaged leaves nothing.
    hub.file_faults("model.safetensors", [Fault::WrongBytes]);
    let (status, damaged) = pull(&server, "org/name");
    let fault = damaged.last().expect("a line")["error"].as_str().expect("an error");
    assert!(status == 200 && fault.contains("has the digest"), "{damaged:?}");
    assert_eq!(models(&server), of(&[("outside", 512)]));
    let (status, lines) = pull(&server, "org/name");
    assert_eq!((status, &lines[0]), (200, &json!({"status": "pulling manifest"})));
    assert_eq!(lines.last(), Some(&success()));
    let is_large = |line: &&Value| line["digest"].as_str().is_some_and(|it| it.starts_with("sha256:"));
    let weights = lines.iter().rev().find(is_large).expect("the weights are told");
    assert!(weights["status"].as_str().expect("a status").starts_with("pulling "));
    assert!(
        weights["total"].as_u64() > Some(100_000) && weights["total"] == weights["completed"],
        "{weights}"
    );
    assert_eq!(models(&server), of(&[("outside", 512), ("org/name", 512)]));
    assert_eq!(story(&server, "org/name"), 200);
    let tokens = |hub: &Server| hub.requests("").iter().filter_map(|it| it.header("authorization")).count();
    assert_eq!(tokens(&hub), 0, "the operator's token is not for clients");
    // Again: nothing is to be done.
    let again = server.post("/api/pull", &json!({"name": "org/name:latest", "stream": false}));
    assert_eq!(again, success());
    let end =
        |model: &str| pull(&server, model).1.last().expect("a line")["error"].as_str().map(str::to_owned);
    assert!(end("../a").is_some_and(|sentence| sentence.contains("is no name of a model")));
    assert!(end("org/other").is_some_and(|sentence| sentence.contains("does not exist")));
    assert!(!home.file("models/.girih-hub/org/other").exists(), "nothing has arrived");
    for taken in ["org/mmproj-a", "org/a-00001-of-00002", "org/config.json"] {
        assert!(end(taken).is_some_and(|sentence| sentence.contains("choose another name")), "{taken}");
    }
    assert!(refusal(pull(&server, "outside")).1.contains("is not in the folder of --models"));
    assert_eq!(server.end(), Some(0));

    // Without the option, and with too little room.
    let folder = home.file("models");
    let server = pulling(&home, &hub, &["--models", name(&folder)]);
    assert_eq!(refusal(pull(&server, "org/name")).0, 501);
    assert_eq!(server.end(), Some(0));
    fs::remove_dir_all(&folder).and_then(|()| fs::create_dir(&folder)).expect("it is there");
    let cap = ["--allow-pull", "64KiB", "--allow-pull-token"];
    let server = pulling(&home, &hub, &[&["--models", name(&folder)], &cap[..]].concat());
    let (status, sentence) =
        refusal(server.lines("POST /api/pull", &json!({"model": "org/name", "stream": false})));
    assert!(
        status == 400 && sentence.contains("bytes, but ") && sentence.contains("are allowed"),
        "{sentence}"
    );
    assert_eq!(tokens(&hub), 1, "the list of files, with --allow-pull-token");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn clients_copy_and_delete_models_of_the_folder_only() {
    let (home, hub) = with_hub();
    let server = changeable(&home, &hub, "50MiB");
    assert_eq!(pull(&server, "org/name").1.last(), Some(&success()));
    let copy = |source: &str, destination: &str| {
        server.lines("POST /api/copy", &json!({"source": source, "destination": destination}))
    };
    let delete = |model: &str| server.lines("DELETE /api/delete", &json!({"model": model}));
    assert_eq!(copy("org/name", "story"), (200, Vec::new()));
    assert_eq!(delete("org/name"), (200, Vec::new()));
    assert_eq!((story(&server, "story"), story(&server, "org/name")), (200, 404));
    let folder = home.file("models");
    assert!(!folder.join("org").exists() && !folder.join(".girih-hub/org").exists());
    assert_eq!(refusal(delete("org/name")).0, 404);
    let (status, sentence) = refusal(delete("outside"));
    assert!(status == 400 && sentence.contains("is not in the folder of --models"), "{sentence}");
    for destination in ["../story", "/tmp/story", "a/b/c", ".story", "story"] {
        assert_eq!(refusal(copy("story", destination)).0, 400, "{destination}");
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_client_that_leaves_ends_its_download_which_goes_on_the_next_time() {
    let (home, hub) = with_hub();
    let server = changeable(&home, &hub, "50MiB");
    hub.file_faults("model.safetensors", [Fault::Blocks]);
    let mut leaving = server.asked("POST /api/pull", &json!({"model": "org/name"}));
    let mut some = [0; 200];
    leaving.read_exact(&mut some).expect("some lines");
    let begins = |begun: usize| {
        let start = Instant::now();
        while hub.blocks() < begun + 2 {
            assert!(start.elapsed() < Duration::from_secs(30), "the download does not begin");
            sleep(Duration::from_millis(20));
        }
    };
    begins(0);
    drop(leaving);
    // A block comes in a tenth of a second.
    let ends = || {
        let (start, mut blocks) = (Instant::now(), 0);
        while std::mem::replace(&mut blocks, hub.blocks()) != blocks {
            assert!(start.elapsed() < Duration::from_secs(30), "the download does not end");
            sleep(Duration::from_secs(1));
        }
    };
    ends();
    assert_eq!(pull(&server, "org/name").1.last(), Some(&success()));
    let requests = hub.requests("model.safetensors");
    assert!(requests.last().expect("a request").header("range").is_some(), "{requests:?}");

    // What has arrived of a download that nobody ends is deleted with its name.
    let delete = || server.lines("DELETE /api/delete", &json!({"model": "org/name"}));
    assert_eq!(delete(), (200, Vec::new()));
    hub.file_faults("model.safetensors", [Fault::Blocks]);
    let begun = hub.blocks();
    let leaving = server.asked("POST /api/pull", &json!({"model": "org/name"}));
    begins(begun);
    let (status, sentence) = refusal(delete());
    assert!(status == 400 && sentence.contains("is being downloaded"), "{sentence}");
    drop(leaving);
    ends();
    let arrived = home.file("models/.girih-hub/org/name");
    assert!(arrived.is_dir());
    assert_eq!((delete(), arrived.exists()), ((200, Vec::new()), false));
    assert_eq!(refusal(delete()).0, 404);

    // The process of a download ends with the one that has started it.
    hub.file_faults("model.safetensors", [Fault::Blocks]);
    let begun = hub.blocks();
    let mut waiting = server.asked("POST /api/pull", &json!({"model": "org/name"}));
    begins(begun);
    let is_worker = |id: &&Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", id.as_raw_nonzero())).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("store-worker")
    };
    let workers = server.children();
    kill_process(*workers.iter().find(is_worker).expect("it runs"), Signal::KILL).expect("it runs");
    let mut said = String::new();
    waiting.read_to_string(&mut said).expect("lines");
    assert!(said.contains("the process that changes models has ended; restart the server"), "{said}");
    ends();
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_model_that_cannot_be_served_is_told_of_and_can_be_deleted() {
    let home = Folder::new();
    model_folder(&home, "source", 512);
    home.write("source/config.json", r#"{"architectures": ["NoSuchForCausalLM"]}"#);
    fs::create_dir(home.file("models")).expect("it is new");
    let hub = Server::of_repo(&repository(&home.file("source")));
    let folder = home.file("models");
    let server = pulling(&home, &hub, &["--models", name(&folder), "--allow-pull", "50MiB"]);
    let (_, lines) = pull(&server, "org/name");
    let error = lines.last().expect("a line")["error"].as_str().expect("an error");
    assert!(error.starts_with("org/name was downloaded and cannot be served: "), "{error}");
    assert!(error.contains("NoSuchForCausalLM") && error.contains("/api/delete removes them"), "{error}");
    assert!(!error.contains(name(&folder)), "{error}");
    assert!(folder.join("org/name/config.json").is_file());
    assert_eq!(server.lines("DELETE /api/delete", &json!({"model": "org/name"})), (200, Vec::new()));
    assert!(!folder.join("org").exists());
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_server_without_models_lets_later_ones_use_its_caches() {
    let (home, hub) = with_hub();
    let (folder, prompts) = (home.file("models"), home.file("prompts"));
    let arguments = ["--models", name(&folder), "--allow-pull", "50MiB", "--prompt-cache", name(&prompts)];
    let server = pulling(&home, &hub, &arguments);
    assert_eq!(server.status("Seccomp"), "2");
    assert_eq!(pull(&server, "org/name").1.last(), Some(&success()));
    assert_eq!(story(&server, "org/name"), 200);
    // A path that is new is not known to the sandbox, and the operator reads why.
    let template = home.write("new.jinja", "{{ messages[0].content }}");
    fs::write(
        folder.join("girih.toml"),
        format!("[\"org/name\"]\nchat-template = \"{}\"\n", template.display()),
    )
    .expect("it is writable");
    let start = Instant::now();
    while !models(&server).is_empty() {
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", models(&server));
        sleep(Duration::from_millis(100));
    }
    let (code, said) = server.end_by(Signal::TERM);
    assert_eq!(code, Some(0));
    assert!(said.contains("restart the server for a new one"), "{said}");
    assert!(fs::read_dir(prompts).expect("a folder").count() > 0, "the prompt cache was written");
}

#[test]
fn orders_of_another_form_are_answered_and_the_next_one_is_obeyed() {
    let home = Folder::new();
    home.write("a.gguf", "");
    let mut command = Command::new(env!("CARGO_BIN_EXE_girih"));
    command.arg("store-worker").arg(home.path()).args(["1000", "public"]);
    let mut worker = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it is there");
    let long = "x".repeat(200_000);
    let delete = r#"{"number": 7, "task": {"change": "delete", "model": "a"}}"#;
    let orders = format!("{long}\n{{\"number\": 6, \"task\": \"none\"}}\n{delete}\n");
    worker.stdin.as_ref().expect("it is piped").write_all(orders.as_bytes()).expect("it reads");
    let lines = BufReader::new(worker.stdout.take().expect("it is piped")).lines().take(3);
    let ends: Vec<Value> =
        lines.map(|line| serde_json::from_str(&line.expect("a line")).expect("JSON")).collect();
    let numbers: Vec<Option<u64>> = ends.iter().map(|end| end["number"].as_u64()).collect();
    assert_eq!(numbers, [Some(0), Some(6), Some(7)]);
    assert!(ends[0]["end"]["Refused"].is_string() && ends[1]["end"]["Refused"].is_string(), "{ends:?}");
    assert_eq!((&ends[2]["end"], home.file("a.gguf").exists()), (&json!("Done"), false));
    drop(worker.stdin.take());
    assert_eq!(worker.wait().expect("it is our child").code(), Some(0));
}
