//! Prompts with images and videos: their tokens are those of transformers' processors, by `scripts/image_prompts.py`.

use std::path::{Path, PathBuf};

use girih::{BosEos, Conversation, DecodeLimits, ImagePatches, Model, Picture};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// A folder that is removed with its contents.
fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// The fixture beside the files of a golden: tokenizer, template and settings of images.
fn with_files(name: &str, golden: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(tests().join("fixtures").join(name).join(file), folder.path().join(file)).unwrap();
    }
    for (file, content) in golden["files"].as_object().unwrap() {
        std::fs::write(folder.path().join(file), content.to_string()).unwrap();
    }
    folder
}

/// The pictures with the names of this list.
fn pictures(names: &Value) -> girih::Result<Vec<Picture>> {
    let names = names.as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let files = names.map(|name| std::fs::read(tests().join("images").join(name)).unwrap());
    files.map(|file| Picture::decode(&file, &DecodeLimits::default())).collect()
}

/// The video of a case.
fn video(model: &Model, case: &Value) -> girih::Result<ImagePatches> {
    model.video_patches(&pictures(&case["frames"])?, case["frames_per_second"].as_f64().unwrap())
}

/// The tokens of a case's prompt.
fn tokens(model: &Model, case: &Value) -> girih::Result<Vec<u32>> {
    let patches: Vec<ImagePatches> = match case.get("frames") {
        Some(_) => vec![video(model, case)?],
        None => pictures(&case["images"])?
            .iter()
            .map(|one| model.image_patches(one))
            .collect::<girih::Result<_>>()?,
    };
    let mut chat = Conversation::new();
    chat.messages.extend(case["messages"].as_array().unwrap().iter().cloned());
    let spans = model.render_with_images(&chat, &patches)?;
    model.text_processor()?.tokenizer.encode_spans(&spans, BosEos::Omit)
}

/// The golden of this model, and the model with its files, for a test of this name.
fn opened(name: &str) -> girih::Result<(Value, TempDir, Model)> {
    let golden = std::fs::read(tests().join(format!("images/prompts/{name}.json"))).unwrap();
    let golden: Value = serde_json::from_slice(&golden).unwrap();
    let folder = with_files(name, &golden);
    let model = Model::open(folder.path().to_str().expect("paths of tests are valid"))?;
    Ok((golden, folder, model))
}

/// Checks the tokens of each of these cases.
fn check_tokens(model: &Model, cases: &Value) -> girih::Result<()> {
    for case in cases.as_array().unwrap() {
        let expected: Vec<u64> =
            case["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        let found: Vec<u64> = tokens(model, case)?.into_iter().map(u64::from).collect();
        assert_eq!(found, expected, "{case}");
    }
    Ok(())
}

#[test]
fn prompts_with_videos_have_the_tokens_and_pixels_of_transformers() -> girih::Result<()> {
    for name in ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vision", "gemma4_vision"] {
        let (golden, _folder, model) = opened(name)?;
        check_tokens(&model, &golden["videos"])?;
        for case in golden["videos"].as_array().unwrap() {
            let found = video(&model, case)?;
            let grid = found.grid().unwrap();
            assert_eq!(serde_json::json!([found.images(), grid.down, grid.across]), case["grid"]);
            let bytes: Vec<u8> =
                found.values().iter().map(|value| ((value + 1.0) * 127.5).round() as u8).collect();
            let digest: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(digest, case["sha256"], "{name}: {}", case["frames"]);
        }
        let mut case = golden["videos"][0].clone();
        let mut refused = |key: &str, value: Value, words: &str| {
            case[key] = value;
            let error = tokens(&model, &case).unwrap_err().to_string();
            assert!(error.contains(words), "{name}: {error}");
        };
        refused("frames", serde_json::json!(["rgb.png", "wide.png"]), "give frames of one size");
        if name != "gemma4_vision" {
            refused("frames", serde_json::json!(["rgb.png"]), "a video has 1 frames, but 2 are one patch");
        }
        refused("frames", vec!["rgb.png"; 769].into(), "a video has 769 frames; give 768 or fewer");
        refused("frames_per_second", 0.0.into(), "a video has 0 frames per second");
        refused("frames_per_second", 2.0.into(), "a video has 769 frames");
        let mut image = golden["cases"][0].clone();
        image["messages"] = case["messages"].clone();
        let error = tokens(&model, &image).unwrap_err().to_string();
        assert!(
            error.contains("place 1 of the prompt is that of a video, but an image was given"),
            "{error}"
        );
    }
    Ok(())
}

#[test]
fn models_whose_videos_are_not_read_refuse_them() -> girih::Result<()> {
    for name in ["gemma3_vision", "idefics3"] {
        let folder = tests().join("fixtures").join(name);
        let model = Model::open(folder.to_str().expect("paths of tests are valid"))?;
        let error =
            model.video_patches(&pictures(&serde_json::json!(["rgb.png", "rgb.png"]))?, 2.0).unwrap_err();
        assert!(error.to_string().contains("girih reads no videos of this model"), "{name}: {error}");
    }
    Ok(())
}

#[test]
fn prompts_with_images_have_the_tokens_of_transformers() -> girih::Result<()> {
    for name in ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vision", "gemma4_vision"] {
        let (golden, _folder, model) = opened(name)?;
        check_tokens(&model, &golden["cases"])?;
        let mut more = golden["cases"][0].clone();
        more["images"] = serde_json::json!(["rgb.png", "rgb.png"]);
        let error = tokens(&model, &more).unwrap_err().to_string();
        assert!(error.contains("the request has 2 images"), "{name}: {error}");
    }
    Ok(())
}
