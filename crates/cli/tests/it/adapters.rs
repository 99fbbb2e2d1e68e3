//! A model with an adapter, beside it or merged, against a golden file of PEFT.

use std::io::Read;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{Folder, fixture, girih, name};
use crate::running_server::RunningServer;
use crate::verify::{compare, passes};

/// The golden file is of the built-in model with the adapter, as PEFT runs both.
#[test]
fn an_adapter_passes_and_the_model_alone_does_not() {
    let folder = fixture("stories_adapter");
    let golden = folder.join("golden.safetensors");
    passes(compare("verify", "stories260k", &golden).with(&["--adapter", name(&folder)]), "adapter", None);
    let alone = compare("verify", "stories260k", &golden).end();
    assert_eq!(alone.code, 1, "{}", alone.stdout);
    for backend in ["interpreter", "npu:toy"] {
        let call = compare("verify", "stories260k", &golden).with(&[
            "--adapter",
            name(&folder),
            "--backend",
            backend,
        ]);
        match backend {
            "npu:toy" => drop(call.fails(2, "the array runs no adapters")),
            _ => passes(call, backend, None),
        }
    }
    let two = ["--adapter", name(&folder), "--adapter", name(&folder)];
    compare("verify", "stories260k", &golden).with(&two).fails(2, "this command runs with one");
}

/// The merged model is compared with the golden file of the adapter.
#[test]
fn a_merged_adapter_passes() {
    let (folder, adapter) = (Folder::new(), fixture("stories_adapter"));
    let out = folder.file("merged");
    girih(&["merge", "stories260k", name(&adapter), name(&out), "--json"]).done();
    passes(compare("verify", name(&out), &adapter.join("golden.safetensors")), "merged", None);
    girih(&["merge", "stories260k", name(&adapter), name(&out)]).fails(2, "already exists");
}

/// The folder is one that the sandbox lets the server read.
#[test]
fn a_confined_server_loads_adapters_of_its_folder() {
    let home = Folder::new();
    let folder = fixture("");
    let server = RunningServer::start(&home, &["stories260k", "--allow-adapters", name(&folder)]);
    assert_eq!(server.status("Seccomp"), "2");
    let mut response = String::new();
    let body = json!({"lora_name": "poet", "lora_path": "stories_adapter"});
    server.asked("POST /v1/load_lora_adapter", &body).read_to_string(&mut response).expect("a response");
    assert!(response.ends_with("Success: LoRA adapter 'poet' added successfully."), "{response}");
    let reply = server.post("/v1/completions", &json!({"model": "poet", "prompt": "Once", "max_tokens": 2}));
    assert_eq!(reply["model"], "poet");
    assert_eq!(server.end(), Some(0));
    girih(&["serve", "stories260k", "--allow-adapters", "/nothing"]).fails(2, "/nothing is no folder");
}

/// The model is in f32, so nothing is rounded between merging and quantizing.
#[test]
fn quantizing_with_an_adapter_is_merging_and_quantizing() {
    let (folder, adapter) = (Folder::new(), fixture("stories_adapter"));
    let [merged, one, two, alone] =
        ["merged", "one.gguf", "two.gguf", "alone.gguf"].map(|at| folder.file(at));
    girih(&["merge", "stories260k", name(&adapter), name(&merged)]).done();
    let quantize = |model: &str, out: &Path, further: &[&str]| {
        girih(&[&["quantize", model, name(out), "--type", "q8_0", "--name", "x"], further].concat()).done();
        std::fs::read(out).unwrap()
    };
    let at_once = quantize("stories260k", &one, &["--adapter", name(&adapter)]);
    assert!(at_once == quantize(name(&merged), &two, &[]), "the bytes differ");
    assert!(at_once != quantize("stories260k", &alone, &[]), "the adapter changes nothing");
    let out = folder.file("q4nx");
    let q4nx = ["quantize", "stories260k", name(&out), "--type", "q4nx", "--adapter", name(&adapter)];
    girih(&q4nx).fails(2, "merge the adapter first");
}

/// The header and the numbers of a safetensors file.
fn parts(file: &[u8]) -> (serde_json::Map<String, Value>, &[u8]) {
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    (serde_json::from_slice(&rest[..length]).unwrap(), &rest[length..])
}

/// `modules_to_save`: a whole tensor takes the place of the model's.
#[test]
fn merging_replaces_whole_tensors() {
    let (folder, source) = (Folder::new(), fixture("stories_adapter"));
    let [adapter, out] = ["adapter", "merged"].map(|at| folder.file(at));
    std::fs::create_dir(&adapter).unwrap();
    let mut settings: Value =
        serde_json::from_slice(&std::fs::read(source.join("adapter_config.json")).unwrap()).unwrap();
    settings["modules_to_save"] = json!(["norm"]);
    std::fs::write(adapter.join("adapter_config.json"), settings.to_string()).unwrap();
    let file = std::fs::read(source.join("adapter_model.safetensors")).unwrap();
    let (mut header, data) = parts(&file);
    let norm: Vec<u8> = (0..64).flat_map(|i| (i as f32 / 8.0).to_le_bytes()).collect();
    let entry = json!({"dtype": "F32", "shape": [64], "data_offsets": [data.len(), data.len() + norm.len()]});
    header.insert("base_model.model.model.norm.weight".to_owned(), entry);
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, data, &norm].concat();
    std::fs::write(adapter.join("adapter_model.safetensors"), file).unwrap();
    girih(&["run", "stories260k", "--adapter", name(&adapter), "x"]).fails(2, "girih merge");
    girih(&["merge", "stories260k", name(&adapter), name(&out)]).done();
    let merged = std::fs::read(out.join("model.safetensors")).unwrap();
    let (header, data) = parts(&merged);
    let at: Vec<usize> = serde_json::from_value(header["model.norm.weight"]["data_offsets"].clone()).unwrap();
    assert_eq!(header["model.norm.weight"]["dtype"], "F32");
    assert_eq!(data[at[0]..at[1]], norm[..]);
}
