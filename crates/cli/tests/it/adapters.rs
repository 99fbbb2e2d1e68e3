//! A model with an adapter, beside it or merged, against a golden file of PEFT.

use std::io::Read;

use serde_json::json;

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
