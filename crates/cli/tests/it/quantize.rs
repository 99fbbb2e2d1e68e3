//! `quantize`: what it prints, and that what it writes runs.

use serde_json::Value;

use crate::program::{Folder, fixture, girih, name};

const TYPES: [&str; 16] = [
    "f32",
    "f16",
    "bf16",
    "q8_0",
    "q4_0",
    "q4_1",
    "q5_0",
    "mxfp4",
    "q4_k_s",
    "q4_k_m",
    "q5_k_s",
    "q5_k_m",
    "q6_k",
    "q4nx",
    "iebin",
    "safetensors",
];

const PROMPT: &str = "Once upon a time, there was a little girl named Lily.";

#[test]
fn the_built_in_model_becomes_a_model_that_runs_in_every_type() {
    let folder = Folder::new();
    let text = folder.write("text", PROMPT);
    let score = |model: &str| {
        let scored = girih(&["perplexity", model, name(&text), "--json", "-q"]).done().json();
        let tokens = scored["tokens"].as_array().map(Vec::len);
        (scored["perplexity"].as_f64().expect("a number"), tokens)
    };
    let (original, tokens) = score("stories260k");
    for kind in TYPES {
        let is_folder = matches!(kind, "q4nx" | "iebin" | "safetensors");
        let out = folder.file(&format!("{kind}{}", if is_folder { "" } else { ".gguf" }));
        let report = girih(&["quantize", "stories260k", name(&out), "--type", kind, "--json"]).done().json();
        assert_eq!(report["warnings"].as_array().map(Vec::len), Some(0), "{kind}: {report}");
        let (perplexity, same_tokens) = score(name(&out));
        // The tokenizer came along, and four bits cost less than half.
        assert_eq!(same_tokens, tokens, "{kind}");
        assert!(perplexity < 1.5 * original, "{kind}: {perplexity} instead of {original}");
        if kind == "f32" {
            assert!((perplexity - original).abs() < 1e-3 * original, "{perplexity} instead of {original}");
        }
        let story = girih(&["run", name(&out), PROMPT, "-n", "4", "-q"]).done();
        assert!(
            story.stdout.starts_with(PROMPT) || !story.stdout.trim().is_empty(),
            "{kind}: {}",
            story.stdout
        );
    }
}

#[test]
fn quantize_ends_with_size_ratio_and_time_and_can_be_quiet() {
    let folder = Folder::new();
    let quantize =
        |out: &str| girih(&["quantize", "stories260k", name(&folder.file(out)), "--type", "q4_k_m"]);
    let ended = quantize("a.gguf").done();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let last = lines.last().expect("there are lines");
    let end = last.strip_prefix(&format!("wrote {}: ", folder.file("a.gguf").display())).expect(last);
    assert!(end.contains(" KiB, 0.") && end.contains(" of the input, in ") && end.ends_with(" s"), "{last}");
    // Rows of 64 weights are no whole blocks of 256; the summary says so once for each format.
    let fallback = "(instead of q4_k: rows of 64 weights are not whole blocks of 256)";
    assert_eq!(ended.stdout.matches(fallback).count(), 1, "{}", ended.stdout);
    assert!(lines.len() < 12 && ended.stderr.is_empty(), "{}{}", ended.stdout, ended.stderr);
    let rows = quantize("b.gguf").with(&["-v"]).done().stdout;
    assert!(rows.contains("blk.4.attn_norm.weight") && rows.lines().count() > 40, "{rows}");
    let quiet = quantize("c.gguf").with(&["-q"]).done();
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
    let json: Value = quantize("d.gguf").with(&["--json"]).done().json();
    let size = std::fs::metadata(folder.file("d.gguf")).expect("it was written").len();
    assert_eq!(json["bytes"].as_u64(), Some(size));
    assert!(json["input_bytes"].as_u64() > Some(size) && json["seconds"].as_f64() > Some(0.0), "{json}");
    quantize("d.gguf").fails(2, "already exists");
}

/// A folder of IEBIN runs, and the Q4_0 that it reads as gives the same logits, so the same perplexity.
#[test]
fn integers_of_iebin_give_the_logits_of_the_blocks_that_they_read_as() {
    let folder = Folder::new();
    let (model, text) = (fixture("llama32_tied"), folder.write("text", PROMPT));
    // Rows of 176 values are no whole blocks of 32.
    let rules = "[[rule]]\ntensors = '*down*'\ntype = 'f32'\n[[rule]]\ntensors = '*'\ntype = 'q4_0'";
    let recipe = folder.write("recipe", rules);
    let (iebin, gguf) = (folder.file("iebin"), folder.file("model.gguf"));
    let quantize = |from: &str, to: &str, kind: &str| {
        girih(&["quantize", from, to, "--type", kind, "--recipe", name(&recipe), "-q"]).done();
    };
    quantize(name(&model), name(&iebin), "iebin");
    quantize(name(&iebin), name(&gguf), "q4_0");
    let perplexity = |model: &str| {
        girih(&["perplexity", model, name(&text), "--json", "-q"]).done().json()["perplexity"].as_f64()
    };
    let [folder_of, file] = [name(&iebin), name(&gguf)].map(perplexity);
    assert!(folder_of.is_some() && folder_of == file, "{folder_of:?} {file:?}");
    assert_ne!(perplexity(name(&model)), folder_of);
    let call =
        girih(&["quantize", name(&model), name(&folder.file("x.gguf")), "--type", "q4_0", "--iebin-f32"]);
    call.fails(2, "--iebin-f32 is for --type iebin");
}

/// A pruned matrix without its blocks of zeros has the logits of the whole one.
#[test]
fn matrices_by_blocks_give_the_logits_of_whole_ones() {
    let folder = Folder::new();
    let (model, text) = (fixture("llama32_tied"), folder.write("text", PROMPT));
    let rules = "[[rule]]\ntensors = 'layers.*'\ntype = 'bf16'\nkeep = 0.5";
    let recipe = folder.write("recipe", rules);
    let (sparse, gguf) = (folder.file("sparse"), folder.file("model.gguf"));
    for (out, kind) in [(&sparse, "safetensors"), (&gguf, "bf16")] {
        girih(&["quantize", name(&model), name(out), "--type", kind, "--recipe", name(&recipe), "-q"]).done();
    }
    let perplexity = |model: &str| {
        girih(&["perplexity", model, name(&text), "--json", "-q"]).done().json()["perplexity"].as_f64()
    };
    assert_eq!(perplexity(name(&sparse)), perplexity(name(&gguf)));
    let kept = girih(&["perplexity", name(&sparse), name(&text), "--json", "-q", "--equal-weights", "keep"]);
    assert_eq!(kept.done().json()["perplexity"].as_f64(), perplexity(name(&sparse)));
}

#[test]
fn one_matrix_becomes_blocks() {
    let folder = Folder::new();
    let numbers: Vec<u8> =
        (0..64u32).flat_map(|at| (if at < 32 { 1.0f32 } else { 0.0 }).to_le_bytes()).collect();
    let (raw, out) = (folder.file("w.f32"), folder.file("w.iebs"));
    std::fs::write(&raw, numbers).expect("the folder is this test's");
    let quantize = |more: &[&str]| girih(&["quantize", name(&raw), name(&out), "--type", "iebs"]).with(more);
    quantize(&["--rows", "8", "--dedup", "overlay"]).fails(2, "--dedup is for --type iebin");
    quantize(&["--rows", "8", "--block", "0x4"]).fails(2, "has the block");
    quantize(&[]).fails(1, "state its rows with --rows");
    let report = quantize(&["--rows", "8", "--block", "4x4", "--json"]).done().json();
    assert_eq!((report["blocks"].as_u64(), report["density"].as_f64()), (Some(2), Some(0.5)), "{report}");
    let call = girih(&["quantize", "stories260k", name(&folder.file("x")), "--type", "q4_0", "--rows", "8"]);
    call.fails(2, "--rows and --block are for --type iebs");
}
