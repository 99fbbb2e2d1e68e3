//! `--pack q8_0`: a model in floats gives what its converted file gives, and the error is shown.

use serde_json::{Value, json};

use crate::program::{Folder, fixture, girih, name};
use crate::random_model::random_llama;
use crate::running_server::RunningServer;

const PACK: [&str; 2] = ["--pack", "q8_0"];

/// A model in BF16 with a tokenizer.
fn model() -> Folder {
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    Folder::of(&fixture("llama32_tied"), &files)
}

#[test]
fn a_packed_model_has_the_bytes_of_its_converted_file() {
    let (folder, model) = (Folder::new(), model());
    for source in [model.name(), "stories260k"] {
        let file = folder.file(if source == "stories260k" { "story.gguf" } else { "model.gguf" });
        girih(&["quantize", source, name(&file), "--type", "q8_0"]).done();
        let text = folder.write("text", "Once upon a time, there was a little girl named Lily.");
        let logits = |model: &str, more: &[&str]| {
            let out = folder.file("logits");
            let call = ["perplexity", model, name(&text), "--logits", name(&out), "-q"];
            girih(&call).with(more).done();
            std::fs::read(out).expect("it was written")
        };
        let packed = logits(source, &PACK);
        assert!(packed == logits(name(&file), &[]), "{source}");
        assert!(packed != logits(source, &[]), "{source}");
        let ids = |model: &str, more: &[&str]| {
            let call = ["run", model, "Once", "-n", "16", "--temp", "0", "--raw", "--json"];
            let reply = girih(&call).with(more).done().json();
            (reply["ids"].clone(), reply["text"].clone())
        };
        assert_eq!(ids(source, &PACK), ids(name(&file), &[]), "{source}");
    }
}

#[test]
fn the_error_is_a_note_and_a_field() {
    let model = model();
    let run = || girih(&["run", model.name(), "Once", "-n", "2"]);
    assert_eq!(run().with(&["--json"]).done().json()["packing"], Value::Null);
    let ended = run().with(&PACK).with(&["--json"]).done();
    let packing = &ended.json()["packing"];
    assert_eq!((&packing["type"], packing["matrices"].as_u64()), (&Value::from("q8_0"), Some(22)));
    let (all, worst) = (packing["relative_rms"].as_f64().unwrap(), &packing["worst"]);
    assert!(all > 1e-4 && worst["relative_rms"].as_f64().unwrap() >= all && all < 0.01, "{packing}");
    let sentence = format!("with a relative RMS error of {all:.5}; the largest is ");
    assert!(ended.stderr.contains(&sentence), "{}", ended.stderr);
    assert!(ended.stderr.contains(worst["weight"].as_str().unwrap()), "{}", ended.stderr);
    assert!(!run().with(&PACK).with(&["-q"]).done().stderr.contains("RMS"));

    let bench = ["bench", model.name(), "-p", "4", "-n", "0", "-r", "1", "--no-limits", "--json"];
    let row = girih(&bench).with(&PACK).done();
    assert_eq!(&row.json()["rows"][0]["packing"], packing);
    assert!(row.stderr.contains(&sentence), "{}", row.stderr);

    let home = Folder::new();
    let server = RunningServer::start(&home, &[&[model.name()][..], &PACK].concat());
    server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2}));
    let (code, stderr) = server.end_by(rustix::process::Signal::TERM);
    assert!(code == Some(0) && stderr.contains(&sentence), "{stderr}");
}

/// A start that reads packed weights from the cache has no weights to compare.
#[test]
fn a_cached_start_says_that_no_error_was_measured() {
    let (model, home) = (random_llama(512, 5), Folder::new());
    let run = |more: &[&str]| {
        let call = ["run", model.name(), "Once", "-n", "2", "--packed-cache", "on", "--json"];
        girih(&call).with(more).env("HOME", home.name()).done()
    };
    let (exact, cold) = (run(&[]), run(&PACK));
    assert!(cold.stderr.contains("relative RMS"), "{}", cold.stderr);
    let begun = std::time::Instant::now();
    let warm = loop {
        let warm = run(&PACK);
        if warm.stderr.contains("came from the cache of packed weights") {
            break warm;
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{}", warm.stderr);
    };
    assert_eq!(warm.json()["packing"]["relative_rms"], Value::Null);
    assert_eq!(warm.json()["text"], cold.json()["text"]);
    assert_eq!(run(&[]).json()["text"], exact.json()["text"]);
}

#[test]
fn the_plan_counts_packed_weights_and_a_model_without_floats_is_refused() {
    let (folder, model) = (Folder::new(), model());
    let weights = |more: &[&str]| {
        let plan = girih(&["inspect", model.name(), "--json"]).with(more).done().json();
        plan["memory"]["weights"].as_u64().unwrap_or_else(|| panic!("{plan}"))
    };
    assert!(weights(&PACK) * 16 < weights(&[]) * 10, "{} and {}", weights(&PACK), weights(&[]));
    let file = folder.file("q4_0.gguf");
    girih(&["quantize", model.name(), name(&file), "--type", "q4_0"]).done();
    girih(&["run", name(&file), "Once", "-n", "1"]).with(&PACK).fails(2, "use --pack off");
    girih(&["run", name(&file), "Once", "-n", "1"]).with(&["--pack", "off"]).done();
    girih(&["run", model.name(), "Once", "--pack", "q4_0"]).fails(2, "q4_0");
    let profile = ["profile", model.name(), "-p", "4", "-n", "1", "--no-limits"];
    let profiled = girih(&profile).with(&PACK).done();
    assert!(profiled.stderr.contains("relative RMS"), "{}", profiled.stderr);
}
