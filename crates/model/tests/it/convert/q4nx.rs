//! Folders with Q4NX matrices, and headers that lie about them.

use girih_model::Limits;
use girih_model::file::safetensors;
use girih_tensor::DType;

use super::{COMMITTED, SMALL, check_copy, committed, open, options, with_recipe, write};
use crate::{data, raw};

#[test]
fn a_q4nx_folder_is_the_same_model() {
    let folder = raw::empty_folder("convert-q4nx");
    let mut fixtures: Vec<_> = COMMITTED.map(committed).into();
    fixtures.extend(data::folder().map(|data| data.join("fixtures/llama_wide")));
    for fixture in fixtures {
        let model = open(&fixture);
        let [once, twice] = ["once", "twice"].map(|name| {
            let of = fixture.file_name().unwrap().to_str().unwrap();
            folder.join(format!("{of}-{name}"))
        });
        write(&model, &once, &options("q4nx")).unwrap();
        let copy = open(&once);
        check_copy(&model, &copy);
        for name in copy.weights.names() {
            let linear = name.ends_with(".weight") && !name.contains("norm");
            let (dtype, _) = copy.weights.info(name).unwrap();
            assert_eq!(dtype == DType::Q4NX, linear, "{name}");
        }
        write(&copy, &twice, &options("q4nx")).unwrap();
        for name in ["model.safetensors", "config.json"] {
            let read = |folder: &std::path::Path| std::fs::read(folder.join(name)).unwrap();
            assert!(read(&once) == read(&twice), "{name}");
        }
    }
}

#[test]
fn a_q4nx_model_becomes_a_gguf() {
    let folder = raw::empty_folder("convert-q4nx-gguf");
    let (packed, out) = (folder.join("packed"), folder.join("model.gguf"));
    write(&open(&committed(SMALL)), &packed, &options("q4nx")).unwrap();
    let report = write(&open(&packed), &out, &options("f32")).unwrap();
    assert!(report.warnings[0].contains("quantized already"), "{:?}", report.warnings);
    check_copy(&open(&packed), &open(&out));
}

#[test]
fn a_recipe_keeps_a_matrix_plain() {
    let out = raw::empty_folder("convert-q4nx-recipe").join("packed");
    let recipe =
        "[[rule]]\ntensors = '*.v.weight'\ntype = 'f32'\n[[rule]]\ntensors = 'embed.table'\ntype = 'q4nx'";
    let model = open(&committed(SMALL));
    write(&model, &out, &with_recipe("q4nx", recipe)).unwrap();
    let copy = open(&out);
    check_copy(&model, &copy);
    let dtype = |name: &str| copy.weights.info(name).unwrap().0;
    assert_eq!(dtype("layers.2.mixer.v.weight"), DType::F32);
    assert_eq!(dtype("layers.2.mixer.k.weight"), DType::Q4NX);
    assert_eq!(dtype("embed.table"), DType::Q4NX);
}

#[test]
fn q4nx_is_not_written_from_gguf() {
    let folder = raw::empty_folder("convert-q4nx-from-gguf");
    let gguf = folder.join("model.gguf");
    write(&open(&committed(SMALL)), &gguf, &options("f32")).unwrap();
    let error = write(&open(&gguf), &folder.join("packed"), &options("q4nx")).unwrap_err().to_string();
    assert!(error.contains("from safetensors models"), "{error}");
}

/// What is said of a file with one tensor `w` of one block and this pair of metadata.
fn refusal(key: &str, value: &str, dtype: &str, shape: &str) -> String {
    let header = format!(
        r#"{{"__metadata__":{{"{key}":"{value}"}},"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,5120]}}}}"#
    );
    match safetensors::parse(&raw::safetensors(&header, 5120), &Limits::DEFAULT) {
        Ok(contents) => format!("{} {}", contents.tensors["w"].dtype, contents.tensors["w"].shape),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_header_that_lies_about_q4nx_is_refused() {
    let key = "girih.q4nx.w";
    assert_eq!(refusal(key, "[1, 1]", "U8", "[1,1,5120]"), "q4nx [1, 1]");
    assert_eq!(refusal(key, "[32, 256]", "U8", "[1,1,5120]"), "q4nx [32, 256]");
    let stored = "is stored as u8";
    for (key, value, dtype, shape, words) in [
        ("girih.q4nx.x", "[1, 1]", "U8", "[1,1,5120]", "there is no such tensor"),
        (key, "[33, 256]", "U8", "[1,1,5120]", stored),
        (key, "[32, 257]", "U8", "[1,1,5120]", stored),
        (key, "[0, 256]", "U8", "[1,1,5120]", stored),
        (key, "[32, 256]", "U8", "[5120]", stored),
        (key, "[32, 256]", "I8", "[1,1,5120]", stored),
        (key, "[18446744073709551615, 2]", "U8", "[1,1,5120]", "memory has addresses"),
        (key, "[4611686018427387904, 1]", "U8", "[1,1,5120]", "memory has addresses"),
        (key, "[32]", "U8", "[1,1,5120]", "[rows, columns] is needed"),
        (key, "[32, -256]", "U8", "[1,1,5120]", "[rows, columns] is needed"),
        (key, "32 x 256", "U8", "[1,1,5120]", "[rows, columns] is needed"),
    ] {
        let sentence = refusal(key, value, dtype, shape);
        assert!(sentence.contains(words), "{value}: {sentence}");
    }
}
