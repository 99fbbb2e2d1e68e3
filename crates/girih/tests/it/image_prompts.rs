//! Prompts with images: their tokens are those of transformers' processors, by `scripts/image_prompts.py`.

use std::path::{Path, PathBuf};

use girih::{BosEos, Conversation, DecodeLimits, Model, Picture};
use serde_json::Value;

/// A folder that is removed with its contents.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

/// The fixture beside the files of a golden: tokenizer, template and settings of images.
fn with_files(name: &str, golden: &Value) -> Folder {
    let folder = Folder(std::env::temp_dir().join(format!("girih-prompts-{name}-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(tests().join("fixtures").join(name).join(file), folder.0.join(file)).unwrap();
    }
    for (file, content) in golden["files"].as_object().unwrap() {
        std::fs::write(folder.0.join(file), content.to_string()).unwrap();
    }
    folder
}

/// The tokens of a case's prompt.
fn tokens(model: &Model, case: &Value) -> girih::Result<Vec<u32>> {
    let names = case["images"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let patches = names.map(|name| {
        let file = std::fs::read(tests().join("images").join(name)).unwrap();
        model.image_patches(&Picture::decode(&file, &DecodeLimits::default())?)
    });
    let patches: Vec<_> = patches.collect::<girih::Result<_>>()?;
    let mut chat = Conversation::new();
    chat.messages.extend(case["messages"].as_array().unwrap().iter().cloned());
    let spans = model.render_with_images(&chat, &patches)?;
    model.text_processor()?.tokenizer.encode_spans(&spans, BosEos::Omit)
}

#[test]
fn prompts_with_images_have_the_tokens_of_transformers() -> girih::Result<()> {
    for name in ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5_vision", "gemma4_vision"] {
        let golden = std::fs::read(tests().join(format!("images/prompts/{name}.json"))).unwrap();
        let golden: Value = serde_json::from_slice(&golden).unwrap();
        let folder = with_files(name, &golden);
        let model = Model::open(folder.0.to_str().expect("paths of tests are valid"))?;
        for case in golden["cases"].as_array().unwrap() {
            let expected: Vec<u64> =
                case["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
            let found: Vec<u64> = tokens(&model, case)?.into_iter().map(u64::from).collect();
            assert_eq!(found, expected, "{name}: {}", case["images"]);
        }
        let mut more = golden["cases"][0].clone();
        more["images"] = serde_json::json!(["rgb.png", "rgb.png"]);
        let error = tokens(&model, &more).unwrap_err().to_string();
        assert!(error.contains("the request has 2 images"), "{name}: {error}");
    }
    Ok(())
}
