//! `girih perplexity` on texts whose likelihood was measured by another program.

use serde_json::Value;

use crate::program::{Folder, data, fixture, girih, name, read_json};

/// The maximum distance of a likelihood from the golden, which has five decimals.
const WITHIN: f64 = 1e-4;

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn agrees(model: &str) {
    let texts = read_json(&fixture("stories260k/golden_nll.json"));
    let texts = texts.as_array().expect("a list");
    assert_eq!(texts.len(), 3);
    for golden in texts {
        let folder = Folder::new();
        let file = folder.write("text", golden["text"].as_str().expect("a text"));
        let found = girih(&["perplexity", model, name(&file), "--json", "--quiet"]).done().json();
        let what = format!("{model}: {}", golden["name"]);
        // A golden ends with its 256th token; later tokens do not affect earlier ones.
        let (ours, theirs) = (numbers(&found["tokens"]), numbers(&golden["nll"]));
        assert!(ours.len() >= theirs.len() && golden["n"] == theirs.len(), "{what}");
        for (index, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert!((ours - theirs).abs() <= WITHIN, "{what}: token {index}: {ours} instead of {theirs}");
        }
        let mean = |numbers: &[f64]| numbers.iter().sum::<f64>() / numbers.len() as f64;
        let known = golden["mean_nll"].as_f64().expect("a number");
        assert!((mean(&ours[..theirs.len()]) - known).abs() <= WITHIN, "{what}");
        assert_eq!(found["scored"], ours.len(), "{what}");
        assert!((found["nll"].as_f64().expect("a number") - mean(&ours)).abs() <= 1e-9, "{what}");
    }
}

/// The written logits give the printed likelihood.
#[test]
fn written_logits_are_those_that_are_scored() {
    let folder = Folder::new();
    let (text, logits) = (folder.write("text", "Once upon a time"), folder.file("logits.f32"));
    let call = girih(&["perplexity", "stories260k", name(&text), "--json", "--quiet"]);
    let found = call.with(&["--logits", name(&logits)]).done().json();
    let bytes = std::fs::read(&logits).expect("it was written");
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let surprises = numbers(&found["tokens"]);
    let rows: Vec<&[f32]> = values.chunks(512).collect();
    assert_eq!(rows.len(), surprises.len() + 1);
    let ids = girih(&["tokenize", "stories260k", "--special", "--json"]).stdin("Once upon a time").done();
    let ids = numbers(&ids.json()["ids"]);
    for ((row, surprise), next) in rows.iter().zip(surprises).zip(&ids[1..]) {
        let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
        assert!((sum.ln() - f64::from(row[*next as usize]) - surprise).abs() < 1e-5);
    }
    girih(&["perplexity", "stories260k", name(&text), "--logits", "/no/folder/x"]).fails(1, "/no/folder/x");
}

#[test]
fn the_built_in_model_has_the_golden_likelihoods() {
    agrees("stories260k");
}

#[test]
fn f32_safetensors_and_gguf_have_the_golden_likelihoods() {
    let Some(data) = data() else { return };
    for form in ["hf-f32", "stories260K-f32.gguf"] {
        agrees(name(&data.join("models/stories260K").join(form)));
    }
}

/// Every size of windows scores each token once.
#[test]
fn windows_score_each_token_once() {
    let texts = read_json(&fixture("stories260k/golden_nll.json"));
    let folder = Folder::new();
    let file = folder.write("text", texts[0]["text"].as_str().expect("a text"));
    for window in ["2", "7", "64", "200", "201", "512"] {
        let call =
            girih(&["perplexity", "stories260k", name(&file), "--json", "--quiet", "--window", window]);
        let found = call.done().json();
        assert_eq!(found["scored"], 200, "windows of {window}");
        assert_eq!(found["tokens"].as_array().map(Vec::len), Some(200), "windows of {window}");
        assert_eq!(found["activations"], "f32");
    }
}

#[test]
fn texts_that_cannot_be_scored_are_refused() {
    let folder = Folder::new();
    let empty = folder.write("empty", "");
    girih(&["perplexity", "stories260k", name(&empty)]).fails(2, "at least 2 are needed");
    girih(&["perplexity", "stories260k", name(&folder.file("none"))]).fails(2, "cannot be read");
    girih(&["perplexity", "stories260k", "/dev/zero"]).fails(2, "/dev/zero: is longer than 67108864 bytes");
    let text = folder.write("text", "Once upon a time");
    girih(&["perplexity", "stories260k", name(&text), "--window", "1"]).fails(2, "--window");
    girih(&["perplexity", "stories260k", name(&text), "--window", "513"]).fails(2, "context of 512");
}
