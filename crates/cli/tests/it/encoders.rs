//! `girih verify`, `diagnose` and `inspect` on encoders.

use std::path::{Path, PathBuf};

use girih_cpu::kernels::tables;
use serde_json::Value;

use crate::program::{Folder, fixture, girih, name, read};
use crate::verify::{agrees, change, compare, is_found, model};

/// The encoders of the repository.
const ENCODERS: [&str; 2] = ["bert", "nomic_bert"];

/// The folders of the encoders, with their names.
fn encoders() -> [(&'static str, PathBuf); 2] {
    ENCODERS.map(|name| (name, fixture(name)))
}

fn golden(folder: &Path) -> PathBuf {
    folder.join("golden.safetensors")
}

/// Checks the prompts and the batch of a verdict.
fn check_verdict(verdict: &Value, has_batch: bool, what: &str) {
    assert_eq!(verdict["passed"], true, "{what}");
    let prompts = verdict["prompts"].as_array().expect("a list");
    let tokens: Vec<_> = prompts.iter().map(|prompt| prompt["tokens"].as_u64()).collect();
    assert_eq!(tokens, [Some(5), Some(40)], "{what}");
    assert_eq!(verdict["batch"].is_object(), has_batch, "{what}");
}

#[test]
fn encoders_pass_with_every_style_of_config() {
    for (encoder, folder) in encoders() {
        for config in ["config.json", "config.v5.json", "config.hub.json"] {
            if !folder.join(config).exists() {
                continue;
            }
            let (copy, what) = (model(&folder, config), format!("{encoder} with {config}"));
            for (precision, has_batch) in [("f32", true), ("bf16", false)] {
                let more = ["--backend", "interpreter", "--against", precision];
                let verdict = agrees("verify", copy.name(), &golden(&folder), &more, "f32");
                check_verdict(&verdict, has_batch, &what);
            }
        }
        let diagnosis = compare("diagnose", name(&folder), &golden(&folder)).done().stdout;
        assert!(diagnosis.contains("pooled") && !diagnosis.contains("logits"), "{diagnosis}");
    }
}

#[test]
fn encoders_pass_with_every_isa_and_precision() {
    for (encoder, folder) in encoders() {
        for table in tables() {
            for against in ["f32", "bf16"] {
                let more = ["--isa", table.name, "--against", against];
                let verdict = agrees("verify", name(&folder), &golden(&folder), &more, "f32");
                check_verdict(&verdict, against == "f32", &format!("{encoder} with {more:?}"));
            }
        }
        agrees("verify", name(&folder), &golden(&folder), &["--act-precision", "bf16"], "bf16");
    }
}

/// An architecture, the texts of its description that are replaced, and the first layer that is
/// wrong then.
type WrongFact<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

#[test]
fn one_wrong_fact_is_found() {
    let wrong: [WrongFact<'_>; 6] = [
        (
            "bert",
            &[("after_mixer_residual", "after_mixer"), ("after_ffn_residual", "after_ffn")],
            "layers.0.out",
        ),
        ("bert", &[("after_mixer_residual", "before_mixer")], "layers.0.out"),
        ("bert", &[("norm = true", "norm = false")], "embed"),
        ("bert", &[("positions = true", "positions = false")], "embed"),
        ("nomic_bert", &[("\"halves\"", "\"neighbours\"")], "layers.0.out"),
        ("nomic_bert", &[("fc11", "fc_"), ("fc12", "fc11"), ("fc_", "fc12")], "layers.0.out"),
    ];
    for (encoder, folder) in encoders() {
        let text = read(&fixture(&format!("../../archs/{encoder}.toml")));
        for (_, changes, layer) in wrong.iter().filter(|(name, ..)| *name == encoder) {
            let changed = changes.iter().fold(text.clone(), |text, (from, to)| {
                assert!(text.contains(from), "{from}");
                text.replace(from, to)
            });
            let file = Folder::new();
            let arch = file.write("arch.toml", &changed);
            let ended =
                compare("verify", name(&folder), &golden(&folder)).with(&["--arch", name(&arch)]).end();
            assert_eq!(ended.code, 1, "{encoder}, {changes:?}: {}{}", ended.stdout, ended.stderr);
            let words = format!("; {layer} is out of bound at token ");
            assert!(ended.stdout.contains(&words), "{encoder}, {changes:?}: {}", ended.stdout);
        }
    }
}

#[test]
fn a_wrong_setting_or_token_type_is_found() {
    for (encoder, folder) in encoders() {
        let (from, to) = match encoder {
            "bert" => ("\"gelu\"", "\"gelu_new\""),
            _ => ("\"rope_theta\": 1000.0", "\"rope_theta\": 10000.0"),
        };
        let copy = model(&folder, "config.json");
        let text = read(&copy.file("config.json"));
        copy.write("config.json", &text.replace(from, to));
        is_found(copy.path(), &golden(&folder), "layers.0.out", to);

        let golden = Folder::of(&folder, &["golden.safetensors"]);
        let file = golden.file("golden.safetensors");
        change(&file, "p1.token_type_ids", 3, |id| 1.0 - id);
        let ended = compare("verify", name(&folder), &file).end();
        assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains("prompt 1: 40 tokens"), "{}", ended.stdout);
        assert!(ended.stdout.contains("; embed is out of bound at token 3: "), "{}", ended.stdout);
    }
}

/// One weight of every kind changes by 5 %.
#[test]
fn one_weight_slightly_off_is_found_in_its_layer() {
    for (encoder, folder) in encoders() {
        let tensors: &[&str] = match encoder {
            "bert" => &[
                "encoder.layer.1.attention.self.value.weight",
                "encoder.layer.1.attention.output.dense.bias",
                "encoder.layer.1.attention.output.LayerNorm.weight",
                "encoder.layer.1.intermediate.dense.bias",
                "encoder.layer.1.output.dense.weight",
                "encoder.layer.1.output.LayerNorm.bias",
            ],
            _ => &[
                "encoder.layers.1.attn.Wqkv.weight",
                "encoder.layers.1.attn.out_proj.weight",
                "encoder.layers.1.norm1.bias",
                "encoder.layers.1.mlp.fc11.weight",
                "encoder.layers.1.mlp.fc12.weight",
                "encoder.layers.1.norm2.weight",
            ],
        };
        for tensor in tensors {
            let copy = model(&folder, "config.json");
            change(&copy.file("model.safetensors"), tensor, 3, |weight| weight * 1.05);
            is_found(copy.path(), &golden(&folder), "layers.1.out", &format!("{encoder}: {tensor}"));
        }
    }
}

#[test]
fn a_golden_value_that_was_changed_is_found() {
    for (_, folder) in encoders() {
        let changed = |tensor: &str, index, by: &dyn Fn(f64) -> f64| {
            let golden = Folder::of(&folder, &["golden.safetensors"]);
            let file = golden.file("golden.safetensors");
            change(&file, tensor, index, by);
            let ended = compare("verify", name(&folder), &file).end();
            assert_eq!(ended.code, 1, "{tensor}: {}{}", ended.stdout, ended.stderr);
            ended.stdout
        };
        // Text 1 of the batch has the rows from 40 on; its token 4 follows the 5 of text 0.
        let text = changed("batch.last_hidden_f32", (40 + 4) * 48 + 7, &|value| value + 1e-3);
        assert!(text.contains("; layers.2.out is out of bound at token 9: "), "{text}");
        assert!(
            text.lines().any(|line| line.starts_with("batch: ") && line.contains("out of bound")),
            "{text}"
        );
        let text = changed("p0.hidden_f32", 3, &|value| value + 1e-3);
        assert!(text.contains("; embed is out of bound at token 0: "), "{text}");
    }
}

#[test]
fn goldens_of_other_models_are_refused() {
    let (llama, encoders) = (fixture("llama32_tied"), encoders());
    for (_, folder) in &encoders {
        compare("verify", name(&llama), &golden(folder)).fails(2, "is a golden of an encoder");
        compare("verify", name(folder), &golden(&llama))
            .fails(2, "is a golden of a model that generates text");
        compare("verify", name(folder), &folder.join("model.safetensors"))
            .fails(2, "a golden file is needed");

        let hostile = Folder::of(folder, &["golden.safetensors"]);
        let file = hostile.file("golden.safetensors");
        change(&file, "batch.attention_mask", 5, |_| 2.0);
        compare("verify", name(folder), &file).fails(2, "row 0 of 'batch.attention_mask'");
        change(&file, "batch.attention_mask", 5, |_| 0.0);
        change(&file, "batch.input_ids", 2, |_| 512.0);
        compare("verify", name(folder), &file).fails(2, "row 0 of the batch has the token 512");
        let hostile = Folder::of(folder, &["golden.safetensors"]);
        let file = hostile.file("golden.safetensors");
        change(&file, "p0.token_type_ids", 0, |_| 2.0);
        compare("verify", name(folder), &file).fails(2, "2 of 'token_types'");
    }
}

#[test]
fn a_golden_that_contradicts_itself_is_refused() {
    for (_, folder) in encoders() {
        for (tensor, index, off, words) in [
            ("p1.mean_f32", 7, 1e-3, "prompt 1: 'mean' has "),
            ("p1.mean_bf16", 47, 1e-3, "prompt 1: 'mean' has "),
            ("p0.hidden_f32", 3 * 5 * 48, f64::NAN, "tensor 'p0.hidden_f32' has NaN at [3, 0, 0]"),
            ("p0.hidden_f32", 3 * 5 * 48, 1e-2, "prompt 0: 'mean' has "),
            ("batch.input_ids", 2, 1.0, "row 0 of 'batch.input_ids' has other tokens than prompt 0"),
            ("batch.attention_mask", 4, -1.0, "row 0 of 'batch.input_ids' has other tokens than prompt 0"),
            ("p1.input_ids", 7, 1.0, "row 1 of 'batch.input_ids' has other tokens than prompt 1"),
        ] {
            let golden = Folder::of(&folder, &["golden.safetensors"]);
            let file = golden.file("golden.safetensors");
            change(&file, tensor, index, |value| value + off);
            let precision = if tensor.ends_with("bf16") { "bf16" } else { "f32" };
            for command in ["verify", "diagnose"] {
                compare(command, name(&folder), &file).with(&["--against", precision]).fails(2, words);
            }
        }
    }
}

#[test]
fn inspect_shows_an_encoder() {
    for (encoder, folder) in encoders() {
        let text = girih(&["inspect", name(&folder)]).done().stdout;
        assert!(text.contains(&format!("architecture: {encoder}\n")), "{text}");
        assert!(text.contains("pooling (how mean), encoder\n") && text.contains("span all"), "{text}");
        let parts: &[&str] = match encoder {
            "bert" => &["ffn kind plain, ffn 192, act gelu, "],
            _ => &["base 1000)", "ffn kind gated, ffn 96, act silu, "],
        };
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        let facts = girih(&["inspect", name(&folder), "--json"]).done().json()["facts"].take();
        assert_eq!(facts["encoder"], true);
        assert_eq!(facts["tied"], Value::Null);
        assert_eq!(facts["pooling"]["how"], "mean");
        assert_eq!(facts["token_types"], 2);
        assert_eq!(facts["layers"][0]["norm"], "layer");
        let graph = girih(&["inspect", name(&folder), "--graph"]).done().stdout;
        assert!(graph.contains("layer_norm") && !graph.contains("write"), "{graph}");
    }
}

/// BERT with the tokenizer of the built-in model, which has as many tokens.
fn with_tokenizer() -> Folder {
    let folder = model(&fixture("bert"), "config.json");
    folder.copy(&fixture("../../crates/girih/assets/stories260k/tokenizer.json"), "tokenizer.json");
    folder
}

#[test]
fn embed_prints_a_vector_for_each_text() {
    let folder = with_tokenizer();
    let vectors = |texts: &[&str], more: &[&str]| -> Vec<String> {
        let call = girih(&["embed", folder.name()]).with(texts).with(more).done();
        call.stdout.lines().map(str::to_owned).collect()
    };
    let both = vectors(&["a cat", "Once upon a time there was a dog"], &[]);
    assert_eq!(both.len(), 2);
    assert_ne!(both[0], both[1]);
    for (line, text) in both.iter().zip(["a cat", "Once upon a time there was a dog"]) {
        assert_eq!(line.split(' ').filter(|value| value.parse::<f32>().is_ok()).count(), 48);
        assert_eq!(vectors(&[text], &["--threads", "1"]), std::slice::from_ref(line), "alone, on one thread");
    }
    let json = girih(&["embed", folder.name(), "a cat", "--json"]).done().json();
    let values: Vec<f32> = json["embeddings"][0]["embedding"]
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap() as f32)
        .collect();
    let printed: Vec<f32> = both[0].split(' ').map(|value| value.parse().unwrap()).collect();
    assert_eq!((json["embeddings"][0]["text"].as_str(), values), (Some("a cat"), printed));
    let exact = vectors(&["a cat"], &["--act-precision", "f32"]);
    let defined = vectors(&["a cat"], &["--backend", "interpreter"]);
    let numbers = |line: &str| line.split(' ').map(|value| value.parse::<f32>().unwrap()).collect::<Vec<_>>();
    for (value, defined) in numbers(&exact[0]).into_iter().zip(numbers(&defined[0])) {
        assert!((value - defined).abs() < 1e-5, "{value} instead of {defined}");
    }
}

#[test]
fn commands_refuse_models_of_the_other_kind() {
    let folder = with_tokenizer();
    let long = "a cat and a dog ".repeat(60);
    girih(&["embed", folder.name(), &long]).fails(2, "; the encoder takes 128: shorten the text");
    girih(&["embed", folder.name(), "a cat", "--kv", "f16"])
        .fails(2, "a KV cache in f16 was requested, but an encoder has none; omit the type");
    girih(&["embed", folder.name(), "a cat", "--kv", "f32", "-q"]).done();
    girih(&["embed", "stories260k", "a cat"]).fails(2, "generates text and defines no embeddings");
    for (command, more) in [("run", &["a cat"][..]), ("bench", &["-p", "8", "-n", "4"]), ("profile", &[])] {
        girih(&[command, folder.name()]).with(more).fails(2, "is an encoder");
    }
}
