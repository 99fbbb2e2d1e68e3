//! Libraries that are not what they say are errors of one sentence.

use std::fs;
use std::path::PathBuf;

use girih_graph::description::BackendChoice;
use girih_openvino::INFO;

use crate::opened::processor;

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the backend says of a library.
fn sentence(path: &str) -> String {
    let choice = BackendChoice::parse(&[&INFO], "openvino:CPU").expect("the backend is in the list");
    let choice = choice.with("openvino-lib", path).expect("it is a path");
    choice.device().expect_err("it is no OpenVINO").to_string()
}

#[test]
fn what_is_no_library_of_openvino_is_refused_in_one_sentence() {
    let scratch = Scratch(std::env::temp_dir().join(format!("girih-openvino-{}", std::process::id())));
    fs::create_dir_all(&scratch.0).unwrap();
    let folder = scratch.0.to_str().unwrap();
    assert!(
        sentence(folder).ends_with("has no file libopenvino_c.*: name the folder of OpenVINO's libraries")
    );
    let text = format!("{folder}/libopenvino_c.so.2641");
    fs::write(&text, "a text, but no library").unwrap();
    // The folder has the file now.
    for path in [text.as_str(), folder, "/nowhere/libopenvino_c.so"] {
        let sentence = sentence(path);
        assert!(sentence.contains("cannot be loaded: ") && !sentence.contains('\n'), "{sentence}");
    }
    // A library of the system that is another one.
    let other = sentence("libm.so.6");
    assert!(
        other.ends_with("is no OpenVINO: name its libopenvino_c") || other.contains("cannot be loaded"),
        "{other}"
    );
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let Some(choice) = processor() else { return };
    let known = choice.device().expect("the processor is there");
    assert!(known.settings[0].1.starts_with("20"), "{known:?}");
    let library = choice.settings().get("openvino-lib").map(str::to_owned);
    let other = BackendChoice::parse(&[&INFO], "openvino:ABACUS").expect("the backend is in the list");
    let other = match library {
        Some(path) => other.with("openvino-lib", &path).expect("it is a path"),
        None => other,
    };
    let sentence = other.device().unwrap_err().to_string();
    assert!(sentence.contains("has no device 'ABACUS'; use one of openvino, openvino:CPU"), "{sentence}");
}
