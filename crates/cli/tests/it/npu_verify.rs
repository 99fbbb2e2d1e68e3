//! `girih verify` and `girih diagnose` on simulated arrays.

use std::path::{Path, PathBuf};

use crate::program::{Folder, data, fixture, girih, name};

/// Fixtures of the architectures that the array supports; a trained model is added.
const FIXTURES: &[&str] = &["llama32_tied", "llama32_untied_scaled", "llama_wide", "qwen3"];

/// Checks the array against the golden file of this arithmetic, with a bf16 KV
/// cache, as on the array.
fn passes(model: &Path, golden: &Path, target: &str, against: &str) {
    let call = girih(&["verify", name(model), "--golden", name(golden), "--quiet", "--json"]);
    let backend = format!("npu:{target}");
    let ended = call.with(&["--backend", &backend, "--kv", "bf16", "--against", against]).end();
    let what = format!("{} on {target} against {against}", model.display());
    assert_eq!(ended.code, 0, "{what}: {}{}", ended.stdout, ended.stderr);
    let verdict = ended.json();
    assert_eq!(verdict["activations"], "bf16", "{what}");
    assert!(verdict["prompts"].as_array().is_some_and(|prompts| !prompts.is_empty()), "{what}");
}

/// Every model with its golden file, if the test data exist.
fn models() -> Vec<(PathBuf, PathBuf)> {
    let Some(data) = data() else { return Vec::new() };
    let of = |folder: PathBuf| (folder.clone(), folder.join("golden.safetensors"));
    let mut models: Vec<_> = FIXTURES.iter().map(|name| of(data.join("fixtures").join(name))).collect();
    let stories = data.join("models/stories260K");
    models.push((stories.join("hf-bf16"), stories.join("golden.safetensors")));
    models
}

/// Heads and widths of 8, 172 and 160 are padded to multiples of the tiles.
#[test]
fn every_model_on_the_toy_array_matches_its_golden_file() {
    for (model, golden) in models() {
        passes(&model, &golden, "toy", "bf16");
    }
}

#[test]
fn padded_models_on_the_full_array_match_their_golden_files() {
    for (model, golden) in models().iter().filter(|(model, _)| !model.ends_with("llama_wide")) {
        passes(model, golden, "xdna2-strix", "bf16");
    }
}

/// The fixtures of texts that the array supports, with their golden files: those of the repository
/// and, if they exist, those of the test data.
fn texts() -> Vec<(PathBuf, PathBuf)> {
    let folders = std::iter::once(fixture("")).chain(data().map(|data| data.join("fixtures")));
    let entries = folders.flat_map(|folder| std::fs::read_dir(folder).expect("a folder of fixtures"));
    let paths = entries.map(|entry| entry.expect("a fixture").path());
    let is_text = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let whole = path.join("golden.safetensors").exists() && path.join("model.safetensors").exists();
        whole && !OTHER_FIXTURES.contains(&name)
    };
    let mut texts: Vec<_> =
        paths.filter(is_text).map(|path| (path.clone(), path.join("golden.safetensors"))).collect();
    texts.sort();
    texts
}

/// Encoders, architectures that girih does not know, and a golden file of images.
const OTHER_FIXTURES: &[&str] = &["bert", "nomic_bert", "cwm", "gpt_oss", "gpt_oss_mxfp4", "gemma3_vision"];

/// All models with both golden files, on both arrays:
///
/// ```text
/// cargo test --release --locked -p girih-cli --test it every_golden_file_on_every_array -- --ignored
/// ```
#[test]
#[ignore = "takes minutes"]
fn every_golden_file_on_every_array() {
    let models = models().into_iter().chain(texts());
    let mut count = 0;
    for (model, golden) in models.collect::<std::collections::BTreeSet<_>>() {
        for target in ["toy", "xdna2-strix"] {
            for against in ["f32", "bf16"] {
                passes(&model, &golden, target, against);
                count += 1;
            }
        }
    }
    println!("{count} calls of verify pass");
    assert!(count > 60, "{count} calls");
}

/// Packs the weights of a model as Q4NX and compares every layer on the array with the CPU.
fn matches_in_q4nx(model: &Path, targets: &[&str]) {
    let home = Folder::new();
    let packed = home.path().join("packed");
    girih(&["quantize", name(model), name(&packed), "--type", "q4nx", "--quiet"]).done();
    for target in targets {
        let backend = format!("npu:{target}");
        let call =
            girih(&["diagnose", name(&packed), "--reference", "cpu", "--kv", "bf16", "--quiet", "--json"]);
        let verdict = call.with(&["--backend", &backend, "--tokens", "60"]).done().json();
        assert_eq!(verdict["within"], true, "{} on {target}", model.display());
    }
}

#[test]
fn a_model_in_q4nx_matches_the_cpu_on_both_arrays() {
    matches_in_q4nx(&fixture("llama32_tied"), &["toy", "xdna2-strix"]);
}

/// ```text
/// cargo test --release --locked -p girih-cli --test it every_text_in_q4nx -- --ignored
/// ```
#[test]
#[ignore = "takes a minute"]
fn every_text_in_q4nx_matches_the_cpu_on_both_arrays() {
    let texts = texts();
    texts.iter().for_each(|(model, _)| matches_in_q4nx(model, &["toy", "xdna2-strix"]));
    println!("{} models in Q4NX", texts.len());
    assert!(texts.len() >= 16, "{} models", texts.len());
}

/// Layers with a window of 16 positions, between layers that attend to all.
#[test]
fn a_model_with_windows_matches_on_the_toy_array() {
    let folder = fixture("gemma3_text");
    passes(&folder, &folder.join("golden.safetensors"), "toy", "bf16");
}

/// Matrices in Q4NX, the tied table among them.
#[test]
#[ignore = "takes half a minute"]
fn packed_models_match_on_both_arrays() {
    let folder = Folder::new();
    for model in ["gemma3_text", "llama32_tied"] {
        let (source, packed) = (fixture(model), folder.file(model));
        girih(&["quantize", name(&source), name(&packed), "--type", "q4nx", "--quiet"]).done();
        for target in ["toy", "xdna2-strix"] {
            passes(&packed, &source.join("golden.safetensors"), target, "bf16");
        }
    }
}

/// Weights with biases: Llama with `attention_bias` and `mlp_bias`.
#[test]
fn a_model_with_biases_matches_on_the_toy_array() {
    let folder = fixture("llama_biased");
    passes(&folder, &folder.join("golden.safetensors"), "toy", "f32");
}

#[test]
fn tokens_beyond_the_context_or_beside_a_golden_file_are_refused() {
    let reference = ["diagnose", "stories260k", "--reference", "interpreter", "--tokens", "4000000000"];
    girih(&reference).fails(2, "do not fit into a context of 512");
    let golden = fixture("stories260k/golden.safetensors");
    let both = ["diagnose", "stories260k", "--golden", name(&golden), "--tokens", "9"];
    girih(&both).fails(2, "cannot be used with");
}

/// Without a golden file, the reference is another backend on the same tokens.
#[test]
fn layers_are_compared_with_another_backend() {
    let call = |backend: &str, reference: &str| {
        let backends = ["--backend", backend, "--reference", reference, "--kv", "bf16", "--quiet"];
        girih(&["diagnose", "stories260k", "--tokens", "70", "--json"]).with(&backends)
    };
    let rows = |verdict: serde_json::Value| verdict["prompts"][0].as_array().expect("rows").clone();
    let array = call("npu:toy", "cpu").done().json();
    assert_eq!((&array["within"], &array["reference"]), (&true.into(), &"cpu".into()));
    let array = rows(array);
    assert_eq!(array.len(), 5 + 3, "embeddings, five layers, the last norm and logits");
    assert!(array.iter().skip(1).all(|row| row["rms"].as_f64() > Some(0.0)), "bf16 rounds every layer");
    // Two f32 backends differ by less than a hundredth of that.
    let cpu = rows(call("cpu", "interpreter").done().json());
    let share = |rows: &[serde_json::Value]| rows[7]["rms"].as_f64().expect("a number");
    assert!(share(&cpu) < share(&array) / 100.0, "{cpu:?}");
    girih(&["diagnose", "stories260k"]).fails(2, "--golden");
}

/// `npu inspect` and a verbose run list the host's ops with the reason for each.
#[test]
fn host_ops_are_listed_with_their_reasons() {
    let folder = fixture("qwen3");
    let inspect = ["npu", "inspect", name(&folder), "--target", "toy", "--rows", "64", "--context", "128"];
    let text = girih(&inspect).with(&["--mapping", "mlir-air"]).done().stdout;
    for part in [
        "array   3 x rms_gemms_rope",
        "host    1 x embed                embed: the host looks up the rows of tokens",
        "attend: the policy runs attention of single rows on the host",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let steps = girih(&inspect).with(&["--json"]).done().json();
    assert_eq!(steps["steps"][1]["host"][0]["op"], "embed");
    let run = girih(&["run", "stories260k", "Once", "-n", "1", "--backend", "npu:toy", "--kv", "bf16", "-v"]);
    let notes = run.with(&["--npu-mapping", "mlir-air"]).done().stderr;
    assert!(notes.contains("the host computes 5 x mixer.heads (attend) in steps of 1"), "{notes}");
}
