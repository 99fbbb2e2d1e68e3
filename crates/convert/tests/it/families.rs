//! Architectures that are descriptions only, written as GGUF and read again; and warnings where
//! llama.cpp would read a file otherwise.

use girih_file::MetadataValue;
use girih_model::ModelFiles;
use girih_model::arch::Mixer;
use serde_json::json;

use super::facts::configured;
use super::{check_copy, committed, open, options, write};
use crate::folder::empty_folder;

/// Writes a model as a GGUF; returns the model read from it, and the warnings about llama.cpp.
fn written(model: &ModelFiles, folder: &str) -> (ModelFiles, Vec<String>) {
    let out = empty_folder(folder).join("out.gguf");
    let report = write(model, &out, &options("bf16")).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let about = report.warnings.into_iter().filter(|warning| warning.contains("llama.cpp"));
    (open(&out), about.collect())
}

#[test]
fn each_family_survives_a_conversion() {
    for name in [
        "qwen2",
        "mistral",
        "mistral_small",
        "mistral3",
        "gemma",
        "gemma2",
        "gemma3_vision",
        "idefics3",
        "ernie4_5",
        "seed_oss",
        "exaone4",
    ] {
        let mut model = open(&committed(name));
        let (copy, warnings) = written(&model, &format!("convert-family-{name}"));
        // GGUF has one name for these families and for the ones that include them.
        match name {
            "mistral_small" | "idefics3" => model.facts.name = "llama".to_owned(),
            "gemma3_vision" => model.facts.name = "gemma3".to_owned(),
            _ => {}
        }
        check_copy(&model, &copy);
        let expected: &[&str] = match name {
            "mistral" => {
                &["llama.cpp does not read 'llama.attention.sliding_window' and may give other results"]
            }
            _ => &[],
        };
        assert_eq!(warnings, expected, "{name}");
    }
}

#[test]
fn a_family_that_gguf_has_no_name_for_is_refused() {
    for name in ["helium", "ministral"] {
        let out = empty_folder(&format!("convert-nameless-{name}")).join("out.gguf");
        let error = write(&open(&committed(name)), &out, &options("q8_0")).unwrap_err().to_string();
        assert!(error.contains(&format!("architecture {name} has no name in GGUF")), "{error}");
        assert!(!out.exists());
    }
}

/// llama.cpp reads no key for the scale of Gemma's scores. It uses the head size, except in models
/// of 62 layers, where it uses the width divided by the number of heads.
#[test]
fn a_scale_that_llama_cpp_would_not_take_is_warned_about() {
    let largest = open(&committed("gguf/gemma3_27b.gguf"));
    let (copy, warnings) = written(&largest, "convert-27b");
    check_copy(&largest, &copy);
    assert!(warnings.is_empty(), "{warnings:?}");

    let mut head_size = open(&committed("gguf/gemma3_27b.gguf"));
    for layer in &mut head_size.facts.layers {
        let Mixer::Attend(attend) = &mut layer.mixer else { panic!("it attends") };
        attend.scale = 0.5;
    }
    let (copy, warnings) = written(&head_size, "convert-27b-head-size");
    check_copy(&head_size, &copy);
    assert!(
        warnings.concat().contains("the square root of 4") && warnings.concat().contains("takes 16 for 62")
    );

    let folder = configured("convert-share", "gemma2", &json!({ "query_pre_attn_scalar": 8 }));
    let share = open(&folder);
    let (copy, warnings) = written(&share, "convert-share-out");
    check_copy(&share, &copy);
    assert!(
        warnings.concat().contains("the square root of 8") && warnings.concat().contains("takes 16 for 3")
    );
    let key = copy.weights.container().metadata().value("gemma2.attention.query_pre_attn_scalar");
    assert_eq!(key, Some(&MetadataValue::F32(8.0)));
}

/// Without a window, local layers still have their own rotary base.
#[test]
fn local_layers_without_a_window_are_not_written() {
    let folder = configured("convert-no-window", "gemma3_text", &json!({ "sliding_window": null }));
    let out = empty_folder("convert-no-window-out").join("out.gguf");
    let error = write(&open(&folder), &out, &options("bf16")).unwrap_err().to_string();
    assert!(error.contains("local layers have no window, which GGUF cannot state"), "{error}");
}

#[test]
fn ropes_that_share_a_key_are_written_if_they_are_equal() {
    let mut model = open(&committed("gemma2"));
    let (copy, _) = written(&model, "convert-shared-rope");
    let base = copy.weights.container().metadata().value("gemma2.rope.freq_base");
    assert_eq!(base, Some(&MetadataValue::F32(10_000.0)));
    let out = empty_folder("convert-unequal-rope").join("out.gguf");
    let change = |model: &mut ModelFiles, base: f32, factors: Vec<f32>| {
        for layer in model.facts.layers.iter_mut().filter(|layer| layer.kind == "local") {
            let Mixer::Attend(attend) = &mut layer.mixer else { panic!("it attends") };
            let rope = attend.rope.as_mut().unwrap();
            (rope.base, rope.factors) = (base, factors.clone());
        }
    };
    change(&mut model, 20_000.0, Vec::new());
    let error = write(&model, &out, &options("bf16")).unwrap_err().to_string();
    assert!(error.contains("'gemma2.rope.freq_base' states two parameters"), "{error}");
    change(&mut model, 10_000.0, vec![2.0; 8]);
    let error = write(&model, &out, &options("bf16")).unwrap_err().to_string();
    assert!(error.contains("'gemma2.rope.scaling' scales the rotary frequencies"), "{error}");
}

/// Layers with states: their tensors hold several weights, or transposed ones.
#[test]
fn hybrids_survive_a_conversion() {
    for name in ["lfm2", "granitemoehybrid"] {
        let model = open(&committed(name));
        let (copy, _) = written(&model, &format!("convert-hybrid-{name}"));
        check_copy(&model, &copy);
    }
}

/// A file of GGUF has no key for it, or its weights lie in another order: it would be another model.
#[test]
fn what_a_file_could_not_state_is_refused_by_name() {
    for (name, words) in [
        ("gemma4", "architecture gemma4 has no GGUF key for embed.per_layer.vocabulary"),
        ("deepseek_v3", "GGUF cannot state this model of architecture deepseek_v3: "),
        (
            "qwen3_5",
            "layer 0 has more heads of values than of keys, whose order in GGUF girih does not write",
        ),
    ] {
        let out = empty_folder(&format!("convert-unstated-{name}")).join("out.gguf");
        let error = write(&open(&committed(name)), &out, &options("bf16")).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!out.exists());
    }
}
