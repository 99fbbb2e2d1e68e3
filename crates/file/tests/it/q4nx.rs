//! Headers with wrong shapes of Q4NX matrices.

use girih_file::{FileLimits, safetensors};

use crate::raw;

/// Opens a file with this metadata and one tensor `w` of one block; returns the format and shape of `w`, or
/// the error.
fn refusal(key: &str, value: &str, dtype: &str, shape: &str) -> String {
    let header = format!(
        r#"{{"__metadata__":{{"{key}":"{value}"}},"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,5120]}}}}"#
    );
    match safetensors::parse(&raw::safetensors(&header, 5120), &FileLimits::DEFAULT) {
        Ok(contents) => format!("{} {}", contents.tensors["w"].dtype, contents.tensors["w"].shape),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_wrong_q4nx_shape_in_the_header_is_refused() {
    let key = "girih.q4nx.w";
    assert_eq!(refusal(key, "[1, 1]", "U8", "[1,1,5120]"), "q4nx [1, 1]");
    assert_eq!(refusal(key, "[32, 256]", "U8", "[1,1,5120]"), "q4nx [32, 256]");
    let stored = "is stored as u8";
    for (key, value, dtype, shape, words) in [
        ("girih.q4nx.x", "[1, 1]", "U8", "[1,1,5120]", "names a tensor that the file does not have"),
        (key, "[33, 256]", "U8", "[1,1,5120]", stored),
        (key, "[32, 257]", "U8", "[1,1,5120]", stored),
        (key, "[0, 256]", "U8", "[1,1,5120]", stored),
        (key, "[32, 256]", "U8", "[5120]", stored),
        (key, "[32, 256]", "I8", "[1,1,5120]", stored),
        (key, "[18446744073709551615, 2]", "U8", "[1,1,5120]", "the address space"),
        (key, "[4611686018427387904, 1]", "U8", "[1,1,5120]", "the address space"),
        (key, "[32]", "U8", "[1,1,5120]", "[rows, columns] is needed"),
        (key, "[32, -256]", "U8", "[1,1,5120]", "[rows, columns] is needed"),
        (key, "32 x 256", "U8", "[1,1,5120]", "[rows, columns] is needed"),
    ] {
        let sentence = refusal(key, value, dtype, shape);
        assert!(sentence.contains(words), "{value}: {sentence}");
    }
}
