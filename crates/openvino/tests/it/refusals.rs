//! What is not there, or is not what it says, is an error of one sentence.

use std::fs;
use std::path::PathBuf;

use girih_graph::description::BackendChoice;
use girih_openvino::INFO;

use crate::opened::processor;

/// The sentence of a library at this path.
fn refused(path: &str) -> String {
    let choice = BackendChoice::parse(&[&INFO], "openvino").expect("the backend is in the list");
    let choice = choice.with("openvino-lib", path).expect("it is a path");
    let error = choice.device().expect_err("there is no OpenVINO").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

/// A folder of this test, which is removed by the next run.
fn folder(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("the folder of the build can be written");
    folder
}

#[test]
fn a_library_that_is_none_is_refused() {
    let folder = folder("libraries");
    let text = folder.join("libopenvino_c.so.2641");
    let gone = refused(&folder.join("gone.so").display().to_string());
    assert!(gone.contains("gone.so cannot be loaded"), "{gone}");
    let empty = refused(&folder.display().to_string());
    assert!(
        empty.contains("has no file libopenvino_c.*: name the folder of OpenVINO's libraries"),
        "{empty}"
    );
    for bytes in ["a text, and no library", ""] {
        fs::write(&text, bytes).expect("the folder of the build can be written");
        for path in [&text, &folder] {
            let sentence = refused(&path.display().to_string());
            assert!(sentence.contains("libopenvino_c.so.2641 cannot be loaded"), "{sentence}");
        }
    }
}

#[test]
fn another_library_is_refused() {
    let sentence = refused("libc.so.6");
    // Only Linux has it.
    let is_absent = sentence.starts_with("libc.so.6 cannot be loaded");
    assert!(is_absent || sentence == "libc.so.6 is no OpenVINO: name its libopenvino_c", "{sentence}");
}

#[test]
fn devices_that_are_not_there_are_refused_with_the_reason() {
    let Some(choice) = processor() else { return };
    let known = (INFO.devices)(choice.settings()).expect("the library was opened");
    for (name, reason) in [("GPU", ""), ("NPU", ""), ("FOO", "not registered"), ("AUTO", ""), ("cpu", "")] {
        if known.iter().any(|device| device.name.as_deref() == Some(name)) {
            continue;
        }
        let mut named =
            BackendChoice::parse(&[&INFO], &format!("openvino:{name}")).expect("the backend is in the list");
        if let Some(path) = choice.settings().get("openvino-lib") {
            named = named.with("openvino-lib", path).expect("it is a path");
        }
        let error = named.device().expect_err("the device is not there").to_string();
        let start = format!("OpenVINO has no device '{name}': install its driver, or use one of CPU");
        assert!(error.starts_with(&start) && error.contains(reason) && !error.contains('\n'), "{error}");
    }
}
