//! `girih serve --models`: options of single models, models that come and go, and clients that change which there are.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

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
    let said = server.end_by(rustix::process::Signal::TERM).1;
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

fn pulling(home: &Folder, hub: &Server, arguments: &[&str]) -> RunningServer {
    let program = Path::new(env!("CARGO_BIN_EXE_girih"));
    RunningServer::with_variables(program, home, &[("HF_ENDPOINT", &hub.url())], arguments)
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
    // Again: nothing is to be done.
    let again = server.post("/api/pull", &json!({"name": "org/name:latest", "stream": false}));
    assert_eq!(again, success());
    let end =
        |model: &str| pull(&server, model).1.last().expect("a line")["error"].as_str().map(str::to_owned);
    assert!(end("../a").is_some_and(|sentence| sentence.contains("is no name of a model")));
    assert!(end("org/other").is_some());
    assert_eq!(server.end(), Some(0));

    // Without the option, and with too little room.
    let folder = home.file("models");
    let server = pulling(&home, &hub, &["--models", name(&folder)]);
    assert_eq!(refusal(pull(&server, "org/name")).0, 501);
    assert_eq!(server.end(), Some(0));
    fs::remove_dir_all(&folder).and_then(|()| fs::create_dir(&folder)).expect("it is there");
    let server = changeable(&home, &hub, "64KiB");
    let (status, sentence) =
        refusal(server.lines("POST /api/pull", &json!({"model": "org/name", "stream": false})));
    assert!(
        status == 400 && sentence.contains("bytes, but ") && sentence.contains("are allowed"),
        "{sentence}"
    );
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
    assert!(!folder.join("org").exists() && !folder.join(".girih-hub/models--org--name").exists());
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
    let start = Instant::now();
    while hub.blocks() < 2 {
        assert!(start.elapsed() < Duration::from_secs(30), "the download does not begin");
        sleep(Duration::from_millis(20));
    }
    drop(leaving);
    sleep(Duration::from_millis(1500));
    let blocks = hub.blocks();
    sleep(Duration::from_millis(500));
    assert_eq!(hub.blocks(), blocks, "it has ended");
    assert_eq!(pull(&server, "org/name").1.last(), Some(&success()));
    let requests = hub.requests("model.safetensors");
    assert!(requests.last().expect("a request").header("range").is_some(), "{requests:?}");
    assert_eq!(server.end(), Some(0));
}
