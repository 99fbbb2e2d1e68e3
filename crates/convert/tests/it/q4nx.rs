//! Conversions to folders with Q4NX matrices.

use girih_tensor::DType;

use super::{COMMITTED, SMALL, check_copy, committed, open, options, with_recipe, write};
use crate::data;
use crate::folder::empty_folder;

#[test]
fn a_q4nx_folder_is_the_same_model() {
    let folder = empty_folder("convert-q4nx");
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
        let is_tied = copy.facts.head.as_ref().is_some_and(|head| head.tied);
        for name in copy.weights.names() {
            let linear = name.ends_with(".weight") && !name.contains("norm");
            let head = name == "embed.table" && is_tied;
            let (dtype, _) = copy.weights.info(name).unwrap();
            assert_eq!(dtype == DType::Q4NX, linear || head, "{name}");
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
    let folder = empty_folder("convert-q4nx-gguf");
    let (packed, out) = (folder.join("packed"), folder.join("model.gguf"));
    write(&open(&committed(SMALL)), &packed, &options("q4nx")).unwrap();
    let report = write(&open(&packed), &out, &options("f32")).unwrap();
    assert!(report.warnings[0].contains("already quantized"), "{:?}", report.warnings);
    check_copy(&open(&packed), &open(&out));
}

#[test]
fn a_recipe_keeps_a_matrix_plain() {
    let out = empty_folder("convert-q4nx-recipe").join("packed");
    let recipe =
        "[[rule]]\ntensors = '*.v.weight'\ntype = 'f32'\n[[rule]]\ntensors = 'embed.table'\ntype = 'bf16'";
    let model = open(&committed(SMALL));
    write(&model, &out, &with_recipe("q4nx", recipe)).unwrap();
    let copy = open(&out);
    check_copy(&model, &copy);
    let dtype = |name: &str| copy.weights.info(name).unwrap().0;
    assert_eq!(dtype("layers.2.mixer.v.weight"), DType::F32);
    assert_eq!(dtype("layers.2.mixer.k.weight"), DType::Q4NX);
    assert_eq!(dtype("embed.table"), DType::BF16);
}

#[test]
fn q4nx_is_not_written_from_gguf() {
    let folder = empty_folder("convert-q4nx-from-gguf");
    let gguf = folder.join("model.gguf");
    write(&open(&committed(SMALL)), &gguf, &options("f32")).unwrap();
    let error = write(&open(&gguf), &folder.join("packed"), &options("q4nx")).unwrap_err().to_string();
    assert!(error.contains("from safetensors models"), "{error}");
}
