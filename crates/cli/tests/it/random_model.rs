//! A Llama with random weights of a chosen size, for tests of memory and of time.

use std::collections::BTreeMap;

use girih_file::{ContainerWriter, NewTensor};
use girih_tensor::{DType, Random, Shape};
use serde_json::json;

use crate::program::{Folder, fixture, read_json};

/// The folder of a model with this width and number of layers: about `layers` × 15 × `width`²
/// weights in bf16. Its tokenizer is that of a fixture.
pub fn random_llama(width: usize, layers: usize) -> Folder {
    let source = fixture("llama32_tied");
    let folder = Folder::of(&source, &["tokenizer.json", "tokenizer_config.json"]);
    let mut config = read_json(&source.join("config.json"));
    let (feed, head) = (4 * width, width / 4);
    config["hidden_size"] = json!(width);
    config["intermediate_size"] = json!(feed);
    config["num_hidden_layers"] = json!(layers);
    config["head_dim"] = json!(head);
    folder.write("config.json", &config.to_string());

    let tensor = |name: String, extents: &[usize]| NewTensor {
        name,
        dtype: DType::BF16,
        shape: Shape::new(extents).expect("four dimensions at most"),
    };
    let mut tensors = vec![tensor("model.embed_tokens.weight".to_owned(), &[512, width])];
    tensors.push(tensor("model.norm.weight".to_owned(), &[width]));
    for layer in 0..layers {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push(tensor(name(norm), &[width]));
        }
        for (part, rows, columns) in [
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", width / 2, width),
            ("self_attn.v_proj", width / 2, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", feed, width),
            ("mlp.up_proj", feed, width),
            ("mlp.down_proj", width, feed),
        ] {
            tensors.push(tensor(name(part), &[rows, columns]));
        }
    }
    let path = folder.file("model.safetensors");
    let mut writer =
        ContainerWriter::safetensors(&path, &BTreeMap::new(), &tensors).expect("the folder is writable");
    let mut random = Random(1);
    let order: Vec<String> = writer.order().map(str::to_owned).collect();
    for name in order {
        let shape = tensors.iter().find(|tensor| tensor.name == name).expect("it is in the list").shape;
        let numbers: Vec<f32> = random.numbers(shape.elements()).iter().map(|x| x / 16.0).collect();
        let bytes =
            DType::BF16.pack_matrix(shape.rows(), shape.columns(), &numbers).expect("bf16 holds them");
        writer.append(&name, &bytes).expect("the folder is writable");
    }
    writer.finish().expect("the folder is writable");
    folder
}
