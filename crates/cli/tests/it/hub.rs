//! `pull`, `list`, `repair` and opening by id, against a server on this machine.

#[path = "../../../hub/tests/it/server.rs"]
#[allow(dead_code)] // the hub's own tests use all of it
pub mod server;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{Call, Folder, girih, read_json};
use server::{COMMIT, Fault, Repo, Server, blob_name};

const CONFIG: &[u8] = br#"{"model_type":"llama"}"#;
const WEIGHTS: &str = "model.safetensors";

fn weights() -> Vec<u8> {
    (0..200_000u32).map(|at| (at % 251) as u8).collect()
}

fn repo() -> Repo {
    Repo::of(&[("config.json", CONFIG), (WEIGHTS, &weights())])
}

/// A cache folder of its own, which several calls share.
struct Cache(Folder);

impl Cache {
    fn new() -> Cache {
        Cache(Folder::new())
    }

    fn call(&self, server: &Server, arguments: &[&str]) -> Call {
        girih(arguments).env("HF_HUB_CACHE", self.0.path()).env("HF_ENDPOINT", server.url())
    }

    fn partial(&self) -> PathBuf {
        let blobs = self.0.file("models--org--name/blobs");
        std::fs::create_dir_all(&blobs).expect("the cache is writable");
        blobs.join(format!("{}.girih-partial", blob_name(WEIGHTS, &weights())))
    }
}

/// The built-in model as a GGUF file of this type.
fn gguf(kind: &str) -> Vec<u8> {
    let folder = Folder::new();
    let out = folder.file("out.gguf");
    girih(&["quantize", "stories260k", crate::program::name(&out), "--type", kind, "-q"]).done();
    std::fs::read(out).expect("it was written")
}

#[test]
fn a_pull_ends_with_its_size_time_and_rate() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let pull = || cache.call(&server, &["pull", "org/name"]);
    let first = pull().done();
    assert_eq!(
        first.stdout.trim_end(),
        cache.0.file(&format!("models--org--name/snapshots/{COMMIT}")).to_str().unwrap()
    );
    let lines: Vec<&str> = first.stderr.lines().collect();
    assert_eq!(lines[0], "2 files, 195.33 KiB");
    assert!(lines[1].starts_with("pulled 195.33 KiB in ") && lines[1].ends_with("/s)"), "{}", lines[1]);
    let again = pull().done();
    assert!(again.stderr.ends_with("complete already: 2 files, 195.33 KiB\n"), "{}", again.stderr);
    assert_eq!((again.stdout, pull().with(&["-q"]).done().stderr.as_str()), (first.stdout, ""));
    let json = pull().with(&["--json"]).done().json();
    assert_eq!((json["id"].as_str(), json["fetched_bytes"].as_u64()), (Some("org/name"), Some(0)));
}

/// The server sends 80 KiB a second, so the bar appears, with a rate of the bytes that arrive: the
/// half that is there does not count.
#[test]
fn the_bar_of_a_pull_shows_a_rate_of_new_bytes_and_the_time_left() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    std::fs::write(cache.partial(), &weights()[..20_000]).expect("the cache is writable");
    server.file_faults(WEIGHTS, [Fault::Blocks]);
    let ended = cache.call(&server, &["pull", "org/name"]).env("TERM", "xterm").stderr_on_terminal();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("(19.53 KiB already downloaded)"), "{}", ended.stderr);
    let shown: Vec<&str> = ended.stderr.split("pulling [").skip(1).collect();
    assert!(
        !shown.is_empty() && shown[0].contains("/195.33 KiB") && shown[0].contains("s left"),
        "{}",
        ended.stderr
    );
    let rates = shown.iter().filter_map(|bar| bar.split(" KiB/s").next()?.rsplit(' ').next()?.parse().ok());
    let rates: Vec<f64> = rates.collect();
    assert!(!rates.is_empty() && rates.iter().all(|rate| (10.0..160.0).contains(rate)), "{rates:?}");
    assert!(
        ended.stderr.contains("pulled 175.8") && ended.stderr.contains(" of 195.33 KiB in "),
        "{}",
        ended.stderr
    );
    // No bar without a terminal, and none with -q.
    for call in [
        cache.call(&server, &["pull", "org/name"]).end(),
        cache.call(&server, &["pull", "org/name", "-q"]).stderr_on_terminal(),
    ] {
        assert!(!call.stderr.contains('['), "{}", call.stderr);
    }
}

#[test]
fn a_host_that_cannot_be_resolved_ends_the_pull_at_once() {
    let begun = Instant::now();
    let pull = |endpoint: &str| girih(&["pull", "org/name"]).env("HF_ENDPOINT", endpoint);
    pull("https://name.invalid").fails(1, "the host name.invalid cannot be resolved");
    pull("http://name.invalid").fails(1, "use https");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[test]
fn pages_of_the_hub_are_ids_and_other_hosts_are_refused() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let page = format!("{}/org/name/tree/{COMMIT}", server.url());
    cache.call(&server, &["pull", &page, "-q"]).done();
    cache.call(&server, &["pull", "hf.co/org/name", "-q"]).done();
    for model in [
        "https://huggingface.co/org/name",
        "hf.co/org/name",
        "hf://org/name",
        &format!("{}/org/name", server.url()),
    ] {
        // It is found, and its configuration lacks everything but its type.
        let ended = cache.call(&server, &["inspect", model]).end();
        assert!(ended.stderr.contains(&format!("snapshots/{COMMIT}")), "{model}: {}", ended.stderr);
    }
    for (command, model) in [("pull", "https://example.org/org/name"), ("inspect", "example.org/org/name")] {
        let call = cache.call(&server, &[command, model]);
        call.fails(
            2,
            "'example.org' is not the hub; models come from huggingface.co, hf.co or the host of HF_ENDPOINT",
        );
    }
}

#[test]
fn a_repository_of_ggufs_needs_no_label() {
    let (small, other) = (gguf("q4_k_m"), gguf("q8_0"));
    let files: [(&str, &[u8]); 2] = [("m-Q4_K_M.gguf", &small), ("m-Q8_0.gguf", &other)];
    let (cache, server) = (Cache::new(), Server::of_repo(&Repo::of(&files)));
    let call = |arguments: &[&str]| cache.call(&server, arguments);
    let pulled = call(&["pull", "org/name"]).done();
    assert!(pulled.stdout.trim_end().ends_with("/m-Q4_K_M.gguf"), "{}", pulled.stdout);
    let note =
        "org/name has several GGUF files: pulling Q4_K_M; choose another one as org/name:QUANT from Q8_0";
    assert!(pulled.stderr.contains(note), "{}", pulled.stderr);
    let story = |model: &str| call(&["perplexity", model]);
    let text = cache.0.write("text", "Once upon a time, there was a little girl named Lily.");
    let score = |model: &str| story(model).with(&[text.to_str().unwrap(), "-q"]).done().stdout;
    let first = score("org/name");
    call(&["pull", "org/name:Q8_0", "-q"]).done();
    // With both in the cache, the same one is taken.
    assert_eq!(score("org/name"), first);
    assert_ne!(score("org/name:Q8_0"), first);
    call(&["pull", "org/name:Q4_K_L"]).fails(2, "did you mean Q4_K_M?");
    story("org/name:Q8_1").with(&[text.to_str().unwrap()]).fails(2, "did you mean Q8_0?");

    let one: [(&str, &[u8]); 1] = [("m-F16.gguf", &other)];
    let (cache, server) = (Cache::new(), Server::of_repo(&Repo::of(&one)));
    let pulled = cache.call(&server, &["pull", "org/name"]).done();
    assert!(
        pulled.stdout.trim_end().ends_with("/m-F16.gguf") && !pulled.stderr.contains("several"),
        "{}",
        pulled.stderr
    );
    let several: [(&str, &[u8]); 2] = [("m-Q6_K.gguf", &small), ("m-F16.gguf", &other)];
    let (cache, server) = (Cache::new(), Server::of_repo(&Repo::of(&several)));
    cache.call(&server, &["pull", "org/name"]).fails(2, "choose one as org/name:QUANT from F16, Q6_K");
}

#[test]
fn the_list_marks_unfinished_models_and_shows_the_built_in_one() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let call = |arguments: &[&str]| cache.call(&server, arguments).done();
    std::fs::write(cache.partial(), &weights()[..100_000]).expect("the cache is writable");
    let listed = call(&["list"]).stdout;
    assert!(listed.contains("incomplete: 1 unfinished download") && listed.contains("97.66 KiB"), "{listed}");
    let json = |listed: &str| -> Value { serde_json::from_str(listed).expect("one object") };
    let models = json(&call(&["list", "--json"]).stdout)["models"].clone();
    assert_eq!(
        (models[0]["incomplete"].as_bool(), models[0]["unfinished"]["bytes"].as_u64()),
        (Some(true), Some(100_000))
    );
    assert_eq!(
        (models[1]["id"].as_str(), models[1]["built_in"].as_bool()),
        (Some("stories260k"), Some(true))
    );

    call(&["pull", "org/name", "-q"]);
    let listed = call(&["list"]).stdout;
    let rows: Vec<Vec<&str>> = listed
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], ["name", "size", "state", "revision"]);
    assert_eq!(rows[1], ["org/name", "195.33 KiB", "complete", &format!("main {}", &COMMIT[..7])]);
    assert_eq!((rows[2][0], rows[2][2], rows.len()), ("stories260k", "built in", 3));
    assert!(call(&["list", "-v"]).stdout.contains(&format!("complete (2 files)  main {COMMIT}")));

    std::fs::remove_file(
        cache.0.file(&format!("models--org--name/blobs/{}", blob_name(WEIGHTS, &weights()))),
    )
    .unwrap();
    let listed = call(&["list"]).stdout;
    assert!(listed.contains("incomplete: model.safetensors is missing"), "{listed}");
    let models = json(&call(&["list", "--json"]).stdout)["models"].clone();
    assert_eq!(
        (models[0]["incomplete"].as_bool(), models[0]["revisions"][0]["missing"].as_str()),
        (Some(true), Some(WEIGHTS))
    );
}

#[test]
fn repair_asks_before_it_removes_what_a_pull_can_resume() {
    let (cache, server) = (Cache::new(), Server::of_repo(&repo()));
    let repair = || cache.call(&server, &["repair"]);
    let partial = || {
        std::fs::write(cache.partial(), &weights()[..100_000]).expect("the cache is writable");
        cache.partial()
    };
    let there = partial();
    // Without a terminal nobody can answer.
    assert!(repair().done().stdout.contains("kept 1 unfinished download"));
    let refused = repair().answered("\n");
    assert!(
        refused.stderr.contains("found 1 unfinished download, 97.66 KiB") && refused.stderr.contains("[y/N]"),
        "{refused:?}"
    );
    assert!(refused.stdout.contains("kept 1") && there.exists(), "{refused:?}");
    assert!(repair().with(&["-q"]).answered("y\n").stdout.contains("kept 1"), "-q asks nothing");
    let removed = repair().answered("y\n");
    assert!(removed.stdout.contains("an unfinished download") && !there.exists(), "{removed:?}");
    partial();
    let removed = repair().with(&["--yes", "--json"]).done().json();
    assert_eq!((removed["removed"][0][1].as_str(), there.exists()), (Some("an unfinished download"), false));
    // Wrong bytes are removed without a question.
    cache.call(&server, &["pull", "org/name", "-q"]).done();
    let blob = cache.0.file(&format!("models--org--name/blobs/{}", blob_name(WEIGHTS, &weights())));
    std::fs::write(&blob, "wrong").expect("the cache is writable");
    let report = repair().done().stdout;
    assert!(
        report.contains("its digest is ") && report.contains("girih pull org/name@main") && !blob.exists(),
        "{report}"
    );
    assert_eq!(
        read_json(&cache.0.file(&format!("models--org--name/snapshots/{COMMIT}/config.json")))["model_type"],
        "llama"
    );
}
