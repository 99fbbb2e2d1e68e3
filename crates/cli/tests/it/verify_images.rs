//! `verify` and `diagnose` of models that read images, with towers in folders and in projector files.

use std::path::Path;

use girih_cpu::kernels::tables;

use crate::program::{Folder, data, fixture, girih, name};
use crate::verify::{LOGITS_WITHIN, agrees, compare, forged, model, passes};

/// The bug: the images were ignored, and the embeddings of their tokens were out of bound.
#[test]
fn a_golden_of_prompts_with_images_is_refused_by_a_model_of_text() {
    let Some(data) = data() else { return };
    let [text, vision] = ["gemma3_text", "gemma3_vision"].map(|name| data.join("fixtures").join(name));
    compare("verify", name(&text), &vision.join("golden.safetensors"))
        .fails(2, "tensor 'p0.pixel_values' holds images, which this model does not read");
}

/// The golden has the tower's hidden states, too.
#[test]
fn images_pass_from_a_folder_and_from_a_projector_file() {
    let folder = fixture("gemma3_vision");
    let golden = folder.join("images.safetensors");
    for config in ["config.json", "config.v5.json"] {
        passes(compare("verify", model(&folder, config).name(), &golden), config, Some(LOGITS_WITHIN));
    }
    let (text, projector) = (fixture("gguf/gemma3_vision.gguf"), fixture("mmproj/mmproj-gemma3_vision.gguf"));
    for against in ["f32", "bf16"] {
        agrees("verify", name(&folder), &golden, &["--against", against], "f32");
        let more = ["--against", against, "--mmproj", name(&projector)];
        agrees("verify", name(&text), &golden, &more, "f32");
    }
    // The file beside the model, which is the only other one in the folder.
    let beside = Folder::new();
    beside.copy(&text, "model.gguf");
    beside.copy(&projector, "mmproj-F16.gguf");
    for model in [beside.name().to_owned(), name(&beside.file("model.gguf")).to_owned()] {
        agrees("verify", &model, &golden, &[], "f32");
        let inspected = girih(&["inspect", &model]).end().stdout;
        assert!(
            inspected.contains("image tower: 28 x 28 pixels in patches of 7, 1 layers, 4 tokens"),
            "{inspected}"
        );
    }
    let diagnosis = compare("diagnose", beside.name(), &golden).done().stdout;
    for layer in ["tower.embed", "tower.layers.0.out", "tower.rows", "layers.5.out"] {
        assert!(diagnosis.contains(layer), "{diagnosis}");
    }
    beside.copy(&projector, "mmproj-F32.gguf");
    let words = "mmproj-F16.gguf and 1 more projector files lie beside the model; choose one with --mmproj";
    compare("verify", beside.name(), &golden).fails(2, words);
    compare("verify", name(&text), &golden).fails(2, "no projector file 'mmproj-….gguf'");
    let other = fixture("gguf/gemma2.gguf");
    let words = "has the architecture 'gemma2'; a projector file, 'mmproj-….gguf', has clip";
    compare("verify", name(&text), &golden).with(&["--mmproj", name(&other)]).fails(2, words);
    let wide = fixture("gguf/gemma3_27b.gguf");
    let words = "the image tower makes rows of 32, but the model's hidden size is";
    let inspected = girih(&["inspect", name(&wide), "--mmproj", name(&projector)]).end().stdout;
    assert!(inspected.contains(words), "{inspected}");
}

/// The text model of a GGUF names only Llama.
#[test]
fn tiles_pass_from_a_folder_and_from_a_projector_file() {
    let folder = fixture("idefics3");
    let golden = folder.join("images.safetensors");
    for config in ["config.json", "config.v5.json"] {
        passes(compare("verify", model(&folder, config).name(), &golden), config, Some(LOGITS_WITHIN));
    }
    let (text, projector) = (fixture("gguf/idefics3.gguf"), fixture("mmproj/mmproj-idefics3.gguf"));
    for against in ["f32", "bf16"] {
        agrees("verify", name(&folder), &golden, &["--against", against, "--backend", "interpreter"], "f32");
        let more = ["--against", against, "--mmproj", name(&projector)];
        agrees("verify", name(&text), &golden, &more, "f32");
    }
    let diagnosis = compare("diagnose", name(&folder), &golden).done().stdout;
    for layer in ["tower.embed", "tower.layers.1.out", "tower.rows", "layers.1.out"] {
        assert!(diagnosis.contains(layer), "{diagnosis}");
    }
    // Another projector makes other rows of the cells.
    let tensor = "model.connector.modality_projection.proj.weight";
    let forged = forged(&folder.join("model.safetensors"), &[(tensor.to_owned(), 5, 3.0)]);
    let other = Folder::of(&folder, &["config.json"]);
    other.copy(&forged.file("golden.safetensors"), "model.safetensors");
    let ended = compare("verify", other.name(), &golden).end();
    assert!(ended.code == 1 && ended.stdout.contains("tower.rows is out of bound"), "{}", ended.stdout);
    let gemma = fixture("mmproj/mmproj-gemma3_vision.gguf");
    let words =
        "has the projector 'gemma3', but this model needs idefics3; use the projector file of this model";
    compare("verify", name(&text), &golden).with(&["--mmproj", name(&gemma)]).fails(2, words);
    assert!(!girih(&["inspect", name(&text)]).end().stdout.contains("image tower"), "a Llama may have none");
}

#[test]
fn images_pass_in_both_precisions_with_every_isa() {
    let Some(data) = data() else { return };
    let folder = data.join("fixtures/gemma3_vision");
    let golden = folder.join("golden.safetensors");
    for config in ["config.json", "config.v5.json"] {
        passes(compare("verify", model(&folder, config).name(), &golden), config, Some(LOGITS_WITHIN));
    }
    for against in ["f32", "bf16"] {
        for table in tables() {
            let more = ["--isa", table.name, "--against", against];
            agrees("verify", name(&folder), &golden, &more, "f32");
        }
        let more = ["--backend", "interpreter", "--against", against, "--chunk", "5"];
        agrees("verify", name(&folder), &golden, &more, "f32");
    }
    let diagnosis = compare("diagnose", name(&folder), &golden).done().stdout;
    assert!(diagnosis.contains("tower.rows") && diagnosis.contains("every op\n"), "{diagnosis}");
    // Another norm of the tower is found there, and not in the text model.
    let tensor = "vision_tower.vision_model.encoder.layers.1.layer_norm2.weight";
    let forged = forged(&folder.join("model.safetensors"), &[(tensor.to_owned(), 5, 3.0)]);
    let other = Folder::of(&folder, &["config.json"]);
    other.copy(&forged.file("golden.safetensors"), "model.safetensors");
    let ended = compare("verify", other.name(), &golden).end();
    assert_eq!(ended.code, 1, "{}", ended.stdout);
    assert!(ended.stdout.contains("images of prompt 0: rows within"), "{}", ended.stdout);
    assert!(ended.stdout.contains("tower.rows is out of bound"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("layers.0.out is out of bound"), "{}", ended.stdout);
}

/// Positions along three axes, images of several sizes, rows for the first layers, and the gated delta rule.
#[test]
fn images_of_any_size_pass_in_both_precisions() {
    let models = [
        ("qwen2_vl", 2),
        ("qwen2_5_vl", 2),
        ("qwen2_5_vl_windows", 3),
        ("qwen3_vl", 2),
        ("qwen3_vl_moe", 1),
        ("qwen3_5_vision", 2),
    ];
    for (model, last) in models {
        let folder = fixture(model);
        let golden = folder.join("images.safetensors");
        for against in ["f32", "bf16"] {
            agrees("verify", name(&folder), &golden, &["--against", against], "f32");
        }
        agrees("verify", name(&folder), &golden, &["--backend", "interpreter", "--chunk", "5"], "f32");
        let diagnosis = compare("diagnose", name(&folder), &golden).done().stdout;
        let layer = format!("tower.layers.{last}.out");
        assert!(diagnosis.contains(&layer) && diagnosis.contains("every op"), "{diagnosis}");
        assert_eq!(diagnosis.contains("tower.tap.0"), model.starts_with("qwen3_vl"), "{diagnosis}");
    }
    let folder = fixture("qwen3_vl");
    let inspected = girih(&["inspect", name(&folder)]).end().stdout;
    assert!(
        inspected.contains("image tower: images of any size in patches of 4, 3 layers, at most 1024"),
        "{inspected}"
    );
    // Another projector of a tapped layer is found there, and not in the text model.
    let tensor = "model.visual.deepstack_merger_list.1.linear_fc1.bias";
    let forged = forged(&folder.join("model.safetensors"), &[(tensor.to_owned(), 5, 3.0)]);
    let other = Folder::of(&folder, &["config.json"]);
    other.copy(&forged.file("golden.safetensors"), "model.safetensors");
    let ended = compare("verify", other.name(), &folder.join("images.safetensors")).end();
    assert!(ended.stdout.contains("tower.tap.2 is out of bound"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("layers.0.out is out of bound"), "{}", ended.stdout);
}

/// Weights of two frames, queries with keys and values, and projectors of tapped layers by the numbers of their layers.
#[test]
fn images_of_any_size_pass_from_a_projector_file() {
    let models = [
        "qwen2_vl",
        "qwen2_5_vl_windows",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5_vision",
        "gemma4_vision",
        "gemma4_31b",
        "gemma4_26b",
        "gemma4_unified",
    ];
    for model in models {
        let text = fixture(&format!("gguf/{model}.gguf"));
        let projector = fixture(&format!("mmproj/mmproj-{model}.gguf"));
        let golden = fixture(model).join("images.safetensors");
        for against in ["f32", "bf16"] {
            let more = ["--against", against, "--mmproj", name(&projector)];
            agrees("verify", name(&text), &golden, &more, "f32");
        }
        let [of_folder, of_file] = [vec![], vec!["--mmproj", name(&projector)]].map(|more| {
            let model = if more.is_empty() { fixture(model) } else { text.clone() };
            let inspected = girih(&[&["inspect", name(&model)], &more[..]].concat()).end().stdout;
            // Of other formats of weights, the memory is another.
            inspected
                .split_once("image tower: ")
                .map(|(_, rest)| rest.split("; memory").next().map(str::to_owned))
        });
        assert!(of_folder.is_some() && of_folder == of_file, "{of_folder:?} and {of_file:?}");
    }
    let text = fixture("gguf/qwen3_vl.gguf");
    let golden = fixture("qwen3_vl").join("images.safetensors");
    for (other, words) in [
        ("gemma3_vision", "has the projector 'gemma3', but this model needs qwen3vl_merger"),
        ("qwen3_vl_moe", "makes rows for 1 layers of the text model, which has 2 that take them"),
    ] {
        let other = fixture(&format!("mmproj/mmproj-{other}.gguf"));
        compare("verify", name(&text), &golden).with(&["--mmproj", name(&other)]).fails(2, words);
    }
}

/// Published files have the text model's keys beside those of the whole model; transformers writes them in a part of their own.
#[test]
fn qwen2_vl_passes_with_both_forms_of_its_configuration() {
    let folder = fixture("qwen2_vl");
    for config in ["config.json", "config.v5.json"] {
        let golden = folder.join("images.safetensors");
        passes(compare("verify", model(&folder, config).name(), &golden), config, Some(LOGITS_WITHIN));
    }
    // The projector file of another tower.
    let projector = fixture("mmproj/mmproj-gemma3_vision.gguf");
    let words = "has the projector 'gemma3', but this model needs qwen2vl_merger or qwen2.5vl_merger";
    compare("verify", name(&fixture("gguf/qwen2_vl.gguf")), &folder.join("images.safetensors"))
        .with(&["--mmproj", name(&projector)])
        .fails(2, words);
}

/// A wrong window, and a weight of a layer with windows, are found where they are.
#[test]
fn windows_of_patches_are_those_of_the_model() {
    let folder = fixture("qwen2_5_vl");
    let golden = folder.join("images.safetensors");
    let config = std::fs::read_to_string(folder.join("config.json")).expect("the fixture has it");
    let tensor = "model.visual.blocks.2.attn.qkv.weight";
    let forged = forged(&folder.join("model.safetensors"), &[(tensor.to_owned(), 5, 3.0)]);
    let weights = [folder.join("model.safetensors"), forged.file("golden.safetensors")];
    let configs = [config.replace("\"window_size\": 16", "\"window_size\": 24"), config.clone()];
    for ((weights, config), value) in weights.iter().zip(configs).zip(["embed", "layers.2.out"]) {
        let other = Folder::new();
        other.write("config.json", &config);
        other.copy(weights, "model.safetensors");
        let ended = compare("verify", other.name(), &golden).end();
        let found = format!("tower.{value} is out of bound");
        assert!(ended.code == 1 && ended.stdout.contains(&found), "{}", ended.stdout);
    }
    let other = Folder::new();
    other.write("config.json", &config.replace("\"window_size\": 16", "\"window_size\": 7"));
    other.copy(&weights[0], "model.safetensors");
    compare("verify", other.name(), &golden).fails(2, "a window of at least one cell is needed");
}

/// The model in a folder with another first value of a tensor.
fn with_weight(folder: &Path, tensor: &str, value: f64) -> Folder {
    let forged = forged(&folder.join("model.safetensors"), &[(tensor.to_owned(), 0, value)]);
    let other = Folder::of(folder, &["config.json"]);
    other.copy(&forged.file("golden.safetensors"), "model.safetensors");
    other
}

/// What transformers makes of a video, whose groups of frames are images here. Those of Qwen2-VL start at one position.
#[test]
fn videos_pass_in_both_precisions() {
    let of_gemma = ["gemma4_vision", "gemma4_unified", "gemma4_31b"];
    for model in [&["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vision"][..], &of_gemma].concat() {
        let folder = fixture(model);
        for against in ["f32", "bf16"] {
            agrees(
                "verify",
                name(&folder),
                &folder.join("video.safetensors"),
                &["--against", against],
                "f32",
            );
        }
    }
}

/// Positions by line and column, bounds of linear parts, heads of two planes, and embeddings of layers, which image tokens
/// share with padding.
#[test]
fn images_of_gemma_4_pass_in_both_precisions() {
    let folder = fixture("gemma4_vision");
    let golden = folder.join("images.safetensors");
    for against in ["f32", "bf16"] {
        agrees("verify", name(&folder), &golden, &["--against", against], "f32");
    }
    agrees("verify", name(&folder), &golden, &["--backend", "interpreter", "--chunk", "5"], "f32");
    let diagnosis = compare("diagnose", name(&folder), &golden).done().stdout;
    for layer in ["tower.embed", "tower.layers.1.out", "tower.rows", "layers.2.out", "every op\n"] {
        assert!(diagnosis.contains(layer), "{diagnosis}");
    }
    // Another norm, or another bound, of the tower is found there, and not in the text model.
    let layer = "model.vision_tower.encoder.layers.1";
    for tensor in ["post_attention_layernorm.weight", "mlp.up_proj.output_max", "self_attn.k_norm.weight"] {
        let other = with_weight(&folder, &format!("{layer}.{tensor}"), 0.1);
        let ended = compare("verify", other.name(), &golden).end();
        assert!(ended.stdout.contains("tower.layers.1.out is out of bound"), "{tensor}: {}", ended.stdout);
        assert!(!ended.stdout.contains("layers.0.out is out of bound"), "{tensor}: {}", ended.stdout);
    }
    // The embeddings of layers of image tokens are those of the padding token.
    let other = with_weight(&folder, "model.language_model.embed_tokens_per_layer.weight", 9.0);
    let ended = compare("verify", other.name(), &golden).end();
    assert_eq!(ended.code, 1, "{}", ended.stdout);
}

/// Patches without a tower, whose rows see each other both ways in sliding windows only.
#[test]
fn images_of_gemma_4_12b_pass_in_both_precisions() {
    let folder = fixture("gemma4_unified");
    let golden = folder.join("images.safetensors");
    for against in ["f32", "bf16"] {
        agrees("verify", name(&folder), &golden, &["--against", against], "f32");
    }
    agrees("verify", name(&folder), &golden, &["--backend", "interpreter", "--chunk", "15"], "f32");
    let diagnosis = compare("diagnose", name(&folder), &golden).done().stdout;
    for value in ["tower.embed", "tower.rows", "layers.2.out", "every op\n"] {
        assert!(diagnosis.contains(value), "{diagnosis}");
    }
    for (tensor, value) in [
        ("model.vision_embedder.patch_ln1.bias", "tower.embed"),
        ("model.vision_embedder.patch_ln2.weight", "tower.embed"),
        ("model.vision_embedder.pos_embedding", "tower.embed"),
        ("model.vision_embedder.pos_norm.bias", "tower.rows"),
        ("model.embed_vision.embedding_projection.weight", "tower.rows"),
    ] {
        let other = with_weight(&folder, tensor, 0.5);
        let ended = compare("verify", other.name(), &golden).end();
        assert!(ended.stdout.contains(&format!("{value} is out of bound")), "{tensor}: {}", ended.stdout);
        assert!(!ended.stdout.contains("layers.0.out is out of bound"), "{tensor}: {}", ended.stdout);
    }
    // Rows that see earlier ones only, and rows that see each other in all layers, have other logits.
    let text = std::fs::read_to_string(folder.join("config.json")).unwrap();
    let causal = Folder::of(&folder, &["model.safetensors"]);
    let changed =
        text.replace(r#""use_bidirectional_attention": "vision""#, r#""use_bidirectional_attention": null"#);
    std::fs::write(causal.file("config.json"), changed).unwrap();
    let ended = compare("verify", causal.name(), &golden).end();
    assert!(ended.stdout.contains("layers.0.out is out of bound"), "{}", ended.stdout);
}

/// Standardized rows, which see each other both ways in sliding windows only.
#[test]
fn images_of_gemma_4_31b_pass_in_both_precisions() {
    // The second one has experts.
    let [folder, with_experts] = ["gemma4_31b", "gemma4_26b"].map(fixture);
    for folder in [&folder, &with_experts] {
        for against in ["f32", "bf16"] {
            let golden = folder.join("images.safetensors");
            agrees("verify", name(folder), &golden, &["--against", against], "f32");
        }
    }
    let golden = folder.join("images.safetensors");
    for tensor in ["std_bias", "std_scale"] {
        let tensor = format!("model.vision_tower.{tensor}");
        let other = with_weight(&folder, &tensor, 0.5);
        let ended = compare("verify", other.name(), &golden).end();
        assert!(ended.stdout.contains("tower.rows is out of bound"), "{tensor}: {}", ended.stdout);
    }
}
