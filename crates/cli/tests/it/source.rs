//! `verify --source`: a GGUF against the folder that it was made from; and the digest of a chat template.

use std::path::PathBuf;

use serde_json::Value;

use crate::program::{Folder, fixture, girih, name};

const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

/// A copy of a fixture with a chat template, and a GGUF of it elsewhere.
fn model(out: &Folder) -> (Folder, PathBuf) {
    let files = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    let folder = Folder::of(&fixture("llama32_tied"), &files);
    folder.write("chat_template.jinja", TEMPLATE);
    let gguf = out.file("model.gguf");
    girih(&["quantize", folder.name(), name(&gguf), "--type", "q8_0", "-q"]).done();
    (folder, gguf)
}

#[test]
fn a_file_agrees_with_its_source_and_not_with_another() {
    let out = Folder::new();
    let (folder, gguf) = model(&out);
    let verify = |folder: &Folder| girih(&["verify", name(&gguf), "--source", folder.name(), "-q"]);
    let right = verify(&folder).done().stdout;
    assert!(right.ends_with("passed\n") && !right.contains("DIFFERS"), "{right}");
    assert!(
        right.contains("agrees       weight layers.0.mixer.q.weight: q8_0, within what it allows"),
        "{right}"
    );
    assert!(right.contains("agrees       chat template prompts: equal text"), "{right}");

    folder.write("chat_template.jinja", &TEMPLATE.replace('[', "<"));
    let config = std::fs::read_to_string(folder.file("config.json")).expect("a file");
    let config: Value = serde_json::from_str(&config).expect("JSON");
    let mut other = config.clone();
    other["rms_norm_eps"] = Value::from(0.125);
    folder.write("config.json", &other.to_string());
    let wrong = verify(&folder).end();
    assert_eq!(wrong.code, 1, "{}", wrong.stderr);
    let lines: Vec<&str> = wrong.stdout.lines().filter(|line| line.starts_with("DIFFERS")).collect();
    assert!(
        lines.iter().any(|line| line.contains("facts epsilon: ") && line.contains("0.125 in the source")),
        "{lines:?}"
    );
    assert!(
        lines.iter().any(|line| line.contains("chat template prompts: conversation 'one question'")),
        "{lines:?}"
    );
    assert!(wrong.stdout.contains("failed: "), "{}", wrong.stdout);

    let json = verify(&folder).with(&["--json"]).end();
    assert_eq!(json.code, 1);
    let json: Value = serde_json::from_str(&json.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("a list");
    let differs = findings.iter().filter(|finding| finding["verdict"] == "differs").count();
    assert_eq!((json["passed"].as_bool(), differs), (Some(false), lines.len()));
}

#[test]
fn a_source_is_a_folder_and_its_file_a_gguf() {
    let out = Folder::new();
    let (folder, gguf) = model(&out);
    for (one, other) in [(folder.name(), folder.name()), (name(&gguf), name(&gguf))] {
        girih(&["verify", one, "--source", other]).fails(2, "is compared with the folder of safetensors");
    }
    girih(&["verify", name(&gguf)]).fails(2, "--golden");
}

#[test]
fn inspect_tells_whether_a_template_is_that_of_a_folder() {
    let out = Folder::new();
    let (folder, gguf) = model(&out);
    let digest = |more: &[&str]| {
        let all = girih(&["inspect", name(&gguf), "-q"]).with(more).done().stdout;
        let line = all.lines().find_map(|line| line.strip_prefix("chat template's digest: sha256 "));
        line.expect("a line").to_owned()
    };
    assert_eq!(digest(&[]).len(), 64);
    assert!(digest(&["--source", folder.name()]).ends_with(", that of the folder"));
    folder.write("chat_template.jinja", "another");
    assert!(digest(&["--source", folder.name()]).contains("; that of the folder is another one, "));
    let text = girih(&["inspect", name(&gguf), "--json", "--source", folder.name()]).done().json();
    let digests = &text["chat_template_digest"];
    assert!(digests["sha256"].is_string() && digests["sha256"] != digests["folder_sha256"], "{digests}");
}
