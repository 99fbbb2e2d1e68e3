//! An image tower has the same facts and weights from safetensors and from a projector file.

use girih_model::arch::ImageTokens;
use girih_model::{ModelFiles, ModelLimits, TowerFiles};

use crate::light::{committed, open};

fn tower(model: &ModelFiles, projector: Option<&str>) -> TowerFiles {
    let projector = projector.map(|name| committed(&format!("mmproj/mmproj-{name}.gguf")));
    model.tower(projector.as_deref(), &ModelLimits::DEFAULT).unwrap()
}

#[test]
fn a_tower_is_the_same_in_every_container() {
    for name in [
        "gemma3_vision",
        "idefics3",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5_vision",
        "qwen2_vl",
        "qwen2_5_vl_windows",
        "gemma4_vision",
        "gemma4_31b",
        "gemma4_26b",
        "gemma4_unified",
    ] {
        let model = open(&committed(name));
        let (of_folder, mut of_file) = (tower(&model, None), tower(&model, Some(name)));
        // A projector file has no ids of tokens.
        let ids = &of_folder.tower.image_tokens;
        let ImageTokens { begin, row, end, video, .. } = &mut of_file.tower.image_tokens;
        assert_eq!((*begin, *row, *end, *video), (None, None, None, None), "{name}");
        (*begin, *row, *end, *video) = (ids.begin, ids.row, ids.end, ids.video);
        assert_eq!(of_folder.tower, of_file.tower, "{name}");
        assert_eq!(of_folder.facts.layers, of_file.facts.layers, "{name}");
        assert_eq!(of_folder.facts.sizes, of_file.facts.sizes, "{name}");
        let [names, others] = [&of_folder, &of_file].map(|files| files.weights.names().collect::<Vec<_>>());
        assert_eq!(names, others, "{name}");
        for weight in names {
            let numbers = [&of_folder, &of_file].map(|files| files.weights.numbers(weight).unwrap());
            assert!(numbers[0] == numbers[1], "{name}: {weight}");
        }
        let text = open(&committed(&format!("gguf/{name}.gguf")));
        assert_eq!(text.facts.image_layers, model.facts.image_layers, "{name}");
    }
}
