//! The precision of activations of a model in BF16, which the processor decides if no option does.

use serde_json::Value;

use crate::program::{Folder, fixture, girih, name};

/// A model in BF16 with a tokenizer.
fn model() -> Folder {
    let source = fixture("llama32_tied");
    Folder::of(&source, &["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
}

/// The best instruction set of this machine.
fn best_isa() -> &'static str {
    girih_cpu::kernels::tables()[0].name
}

/// The precision that `inspect` prints, and its sentence if this machine decided it.
fn inspected(model: &Folder, more: &[&str]) -> (Value, Value) {
    let found = girih(&["inspect", model.name(), "--json"]).with(more).done().json();
    (found["activations"].clone(), found["machine_default"].clone())
}

#[test]
fn a_reply_and_a_row_have_the_precision_that_inspect_prints() {
    let model = model();
    let (activations, sentence) = inspected(&model, &[]);
    assert_eq!(sentence.is_string(), activations == "bf16", "{activations}: {sentence}");
    let text = girih(&["inspect", model.name()]).done().stdout;
    assert!(text.contains(&format!("\nactivations: {}\n", activations.as_str().unwrap())), "{text}");
    let run = || girih(&["run", model.name(), "Once", "-n", "2"]);
    let reply = run().with(&["--json"]).done().json();
    assert_eq!(reply["activations"], activations);
    let part = format!("-{}-kv-", activations.as_str().unwrap());
    assert!(reply["arithmetic"].as_str().unwrap().contains(&part), "{reply}");
    let bench = ["bench", model.name(), "-p", "4", "-n", "0", "-r", "1", "--no-limits"];
    let row = girih(&bench).with(&["--json"]).done().json()["rows"][0].take();
    assert_eq!((&row["activations"], &row["machine_default"]), (&activations, &sentence));
    if let Some(sentence) = sentence.as_str() {
        assert!(text.contains(sentence), "{text}");
        assert_eq!(run().done().stderr.matches(sentence).count(), 1);
        assert_eq!(run().with(&["-v"]).done().stderr.matches(sentence).count(), 1);
        assert!(!run().with(&["-q"]).done().stderr.contains(sentence));
        assert!(girih(&bench).done().stderr.contains(sentence));
    }
}

#[test]
fn an_option_decides_before_the_processor() {
    let model = model();
    let decided = |activations: &str| (Value::from(activations), Value::Null);
    assert_eq!(inspected(&model, &["--isa", best_isa()]), decided("f32"));
    assert_eq!(inspected(&model, &["--act-precision", "f32"]), decided("f32"));
    assert_eq!(inspected(&model, &["--act-precision", "bf16"]), decided("bf16"));
    assert_eq!(inspected(&model, &["--act-precision", "bf16", "--isa", "portable"]), decided("bf16"));
}

#[test]
fn commands_that_measure_multiply_in_f32_unless_they_are_told_otherwise() {
    let model = model();
    let text = model.write("text", "Once upon a time there was a girl.");
    let golden = fixture("llama32_tied/golden.safetensors");
    for call in [
        &["verify", model.name(), "--golden", name(&golden)][..],
        &["diagnose", model.name(), "--golden", name(&golden)],
        &["diagnose", model.name(), "--reference", "interpreter", "--tokens", "8"],
        &["perplexity", model.name(), name(&text)],
    ] {
        let activations = |more: &[&str]| {
            let done = girih(call).with(&["--json", "--quiet"]).with(more).done();
            done.json()["activations"].clone()
        };
        assert_eq!(activations(&[]), "f32", "{call:?}");
        assert_eq!(activations(&["--act-precision", "bf16"]), "bf16", "{call:?}");
    }
}
