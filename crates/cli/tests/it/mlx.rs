//! Folders of MLX, whose matrices are words, scales and biases. The fixture has integers of 2, 3, 4, 5, 6 and 8 bits, and a matrix that
//! is not quantized; its golden is of the same numbers in f32 (`scripts/mlx_model.py`).

use serde_json::{Value, json};

use crate::program::{Folder, fixture, girih, name};
use crate::verify::{compare, passes};

#[test]
fn a_folder_of_mlx_passes() {
    let folder = fixture("mlx");
    let golden = folder.join("golden.safetensors");
    for more in [&[][..], &["--backend", "interpreter"], &["--chunk", "3"], &["--backend", "npu:toy"]] {
        passes(compare("verify", name(&folder), &golden).with(more), &format!("{more:?}"), None);
    }
}

/// A copy of the fixture with another configuration.
fn changed(change: impl Fn(&mut Value)) -> Folder {
    let folder = Folder::of(&fixture("mlx"), &["model.safetensors", "config.json", "tokenizer.json"]);
    let path = folder.file("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
    folder
}

/// Sets a key of both copies of the quantization.
fn both(config: &mut Value, key: &str, value: &Value) {
    for of in ["quantization", "quantization_config"] {
        config[of][key] = value.clone();
    }
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let up = "model.layers.0.mlp.up_proj";
    for (key, value, code, words) in [
        ("mode", json!("mxfp4"), 2, "sets 'mode' to \\\"mxfp4\\\", which girih does not know"),
        ("layout", json!(3), 2, "sets 'layout' to 3, which girih does not know"),
        ("bits", json!(7), 2, "has integers of 7 bits"),
        ("group_size", json!(16), 2, "has groups of 16 columns"),
        ("bits", json!("4"), 1, "has no number 'bits'"),
        (up, json!({"bits": 8, "group_size": 32}), 1, "which do not fit each other"),
        (up, json!(false), 1, "is said not to be quantized, but has scales"),
    ] {
        let folder = changed(|config| both(config, key, &value));
        girih(&["run", folder.name(), "x", "-n", "1"]).fails(code, words);
    }
    let folder = changed(|config| config["quantization_config"]["bits"] = json!(3));
    girih(&["run", folder.name(), "x", "-n", "1"]).fails(2, "and another 'quantization_config'");
    let folder = changed(|config| config["quantization"] = Value::Null);
    girih(&["run", folder.name(), "x", "-n", "1"]).fails(2, "quantization_config");
}

/// A scale that half precision would round is not rounded in silence.
#[test]
fn a_scale_beyond_half_precision_is_refused() {
    let folder = changed(|_| {});
    let path = folder.file("model.safetensors");
    let mut file = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let at = &header["model.layers.1.mlp.up_proj.scales"]["data_offsets"][0];
    let at = 8 + length + at.as_u64().unwrap() as usize;
    file[at..at + 2].copy_from_slice(&[0x01, 0x2a]);
    std::fs::write(path, file).unwrap();
    let words = "'model.layers.1.mlp.up_proj': has the scale or bias 1.145";
    girih(&["run", folder.name(), "x", "-n", "1"]).fails(2, words);
}
