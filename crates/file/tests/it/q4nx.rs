//! Headers of FastFlowLM's `model.q4nx`, and what differs from them.

use girih_file::{Container, ContainerKind, FileLimits};

use crate::raw;

/// Opens a file with one tensor `w` of this type and shape; returns its format and shape, or why it is not read.
fn shown(metadata: &str, dtype: &str, shape: &str, bytes: usize) -> String {
    let header = format!(
        r#"{{"__metadata__":{metadata},"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{bytes}]}}}}"#
    );
    let file = raw::safetensors(&header, bytes);
    match Container::memory(ContainerKind::Q4nx, "file", file, &FileLimits::DEFAULT) {
        Ok(container) => match container.tensor("w") {
            Ok(info) => format!("{} {}", info.dtype, info.shape),
            Err(error) => error.to_string(),
        },
        Err(error) => error.to_string(),
    }
}

#[test]
fn matrices_of_tiles_are_shown_and_others_are_refused_by_name() {
    assert_eq!(shown("{}", "I8", "[3,5120]", 15360), "q4nx [96, 256]");
    assert_eq!(shown("{}", "BF16", "[3,2]", 12), "bf16 [3, 2]");
    for (dtype, shape, bytes, words) in [
        ("I8", "[3,2560]", 7680, "tensor 'w': is I8 of the shape [3, 2560]"),
        ("I8", "[2,3,5120]", 30720, "in the shape [tiles, 5120]"),
        ("I8", "[5120]", 5120, "in the shape [tiles, 5120]"),
        ("Q4NX", "[32,256]", 5120, "has the type Q4NX of former files"),
    ] {
        let sentence = shown("{}", dtype, shape, bytes);
        assert!(sentence.contains(words), "{dtype} {shape}: {sentence}");
    }
    let sentence = shown(r#"{"girih.q4nx.w":"[32, 256]"}"#, "U8", "[1,1,5120]", 5120);
    assert!(sentence.contains("that only former versions of girih had"), "{sentence}");
}
