//! GGUF files: the same model, the requested formats, llama.cpp's mixes.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use girih_convert::{ConvertOptions, FileType};
use girih_tensor::DType;

use super::{SMALL, check_copy, committed, corrupted, fixtures, open, options, write};
use crate::data;
use crate::folder::empty_folder;

#[test]
fn a_gguf_is_the_same_model() {
    let folder = empty_folder("convert-same");
    for fixture in fixtures() {
        let model = open(&fixture);
        for target in ["f32", "bf16"] {
            let out = folder.join(format!("{target}.gguf"));
            let report = write(&model, &out, &options(target)).unwrap();
            let copy = open(&out);
            check_copy(&model, &copy);
            // The weights of the fixtures are bf16, so nothing is rounded.
            for name in model.weights.names() {
                let same = copy.weights.numbers(name).unwrap() == model.weights.numbers(name).unwrap();
                assert!(same, "{}: {name}", fixture.display());
            }
            let scaled = fixture.ends_with("gemma3_text_scaled");
            assert_eq!(report.warnings.iter().any(|text| text.contains("square root of 24")), scaled);
            std::fs::remove_file(out).unwrap();
        }
    }
}

#[test]
fn real_weights_survive() {
    let Some(data) = data::folder() else { return };
    let model = open(&data.join("models/stories260K/hf-f32"));
    let out = empty_folder("convert-stories").join("stories.gguf");
    let report = write(&model, &out, &options("f32")).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    check_copy(&model, &open(&out));
}

#[test]
fn every_type_is_as_precise_as_its_formats() {
    let folder = empty_folder("convert-types");
    let mut fixtures = vec![committed(SMALL)];
    fixtures.extend(data::folder().map(|data| data.join("fixtures/llama_wide")));
    for fixture in fixtures {
        let model = open(&fixture);
        for file_type in FileType::ALL {
            let out = folder.join(format!("{}.gguf", file_type.name()));
            let report = write(&model, &out, &options(file_type.name())).unwrap();
            let copy = open(&out);
            check_copy(&model, &copy);
            for tensor in &report.tensors {
                assert_eq!(copy.weights.container().tensor(&tensor.name).unwrap().dtype, tensor.stored);
                let usual = if tensor.shape.extents().len() < 2 { DType::F32 } else { file_type.dtype() };
                assert!(tensor.stored == usual || tensor.note.is_some(), "{tensor:?}");
            }
            std::fs::remove_file(out).unwrap();
        }
    }
}

/// The formats of matrices, by the names in the file without the layer.
fn mix(fixture: &std::path::Path, target: &str) -> BTreeMap<String, Vec<DType>> {
    let out = empty_folder("convert-mix").join("mix.gguf");
    let report = write(&open(fixture), &out, &options(target)).unwrap();
    let mut mix: BTreeMap<String, Vec<DType>> = BTreeMap::new();
    for tensor in report.tensors.iter().filter(|tensor| tensor.shape.extents().len() == 2) {
        let name = tensor.name.strip_prefix("blk.").map_or(tensor.name.as_str(), |rest| &rest[2..]);
        mix.entry(name.to_owned()).or_default().push(tensor.stored);
    }
    mix
}

/// Both tables are llama.cpp's own choice for the same model
/// (`scripts/compare_llama_cpp.py types`).
#[test]
fn the_medium_mix_is_that_of_llama_cpp() {
    use DType::{F16, Q4_K, Q5_0, Q6_K, Q8_0};
    let fallen = [
        ("attn_k.weight", [Q5_0, Q5_0, Q5_0].as_slice()),
        ("attn_output.weight", &[Q5_0, Q5_0, Q5_0]),
        ("attn_q.weight", &[Q5_0, Q5_0, Q5_0]),
        ("attn_v.weight", &[Q5_0, Q5_0, Q8_0]),
        ("ffn_down.weight", &[F16, F16, F16]),
        ("ffn_gate.weight", &[Q5_0, Q5_0, Q5_0]),
        ("ffn_up.weight", &[Q5_0, Q5_0, Q5_0]),
        ("token_embd.weight", &[Q8_0]),
    ];
    let table = |rows: &[(&str, &[DType])]| -> BTreeMap<String, Vec<DType>> {
        rows.iter().map(|(name, dtypes)| ((*name).to_owned(), dtypes.to_vec())).collect()
    };
    assert_eq!(mix(&committed(SMALL), "q4_k_m"), table(&fallen));
    let Some(data) = data::folder() else { return };
    let wide = [
        ("attn_k.weight", [Q4_K, Q4_K].as_slice()),
        ("attn_output.weight", &[Q4_K, Q4_K]),
        ("attn_q.weight", &[Q4_K, Q4_K]),
        ("attn_v.weight", &[Q4_K, Q6_K]),
        ("ffn_down.weight", &[Q4_K, Q6_K]),
        ("ffn_gate.weight", &[Q4_K, Q4_K]),
        ("ffn_up.weight", &[Q4_K, Q4_K]),
        ("output.weight", &[Q6_K]),
        ("token_embd.weight", &[Q4_K]),
    ];
    assert_eq!(mix(&data.join("fixtures/llama_wide"), "q4_k_m"), table(&wide));
}

#[test]
fn the_bytes_depend_on_the_model_alone() {
    let folder = empty_folder("convert-bytes");
    let model = open(&committed(SMALL));
    let [first, second, third] = ["1.gguf", "2.gguf", "3.gguf"].map(|name| folder.join(name));
    write(&model, &first, &options("q4_k_m")).unwrap();
    let threads = NonZeroUsize::new(3).unwrap();
    write(&model, &second, &ConvertOptions { threads, ..options("q4_k_m") }).unwrap();
    let bytes = std::fs::read(&first).unwrap();
    assert!(bytes == std::fs::read(&second).unwrap(), "threads");

    // First to a lossless GGUF, whose tokenizer is then copied.
    let between = folder.join("between.gguf");
    write(&model, &between, &options("f32")).unwrap();
    let report = write(&open(&between), &third, &ConvertOptions { name: None, ..options("q4_k_m") }).unwrap();
    assert!(report.warnings.is_empty(), "{:?}", report.warnings);
    assert!(bytes == std::fs::read(&third).unwrap(), "converted from a GGUF");
}

#[test]
fn quantizing_again_is_warned_of() {
    let folder = empty_folder("convert-again");
    let [first, second] = ["1.gguf", "2.gguf"].map(|name| folder.join(name));
    write(&open(&committed(SMALL)), &first, &options("q8_0")).unwrap();
    let report = write(&open(&first), &second, &options("q4_0")).unwrap();
    assert!(report.warnings[0].contains("already quantized"), "{:?}", report.warnings);
    // Tensors with an unchanged format keep their bytes.
    let third = folder.join("3.gguf");
    let again = write(&open(&first), &third, &options("q8_0")).unwrap();
    assert!(again.warnings.is_empty(), "{:?}", again.warnings);
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&third).unwrap());
}

#[test]
fn weights_that_are_not_finite_are_refused_by_name() {
    let folder = empty_folder("convert-finite");
    let tensor = "model.layers.1.self_attn.k_proj.weight";
    let nan = corrupted("convert-nan", tensor, 0x7fc0);
    let large = corrupted("convert-large", tensor, 0x7e00); // 4.25e37
    for (model, target, words) in [
        (&nan, "q4_0", ["'blk.1.attn_k.weight'", "the weight NaN"]),
        (&nan, "bf16", ["'blk.1.attn_k.weight'", "the weight NaN"]),
        (&nan, "q4nx", ["'model.layers.1.self_attn.k_proj.weight'", "the weight NaN"]),
        (&large, "f16", ["'blk.1.attn_k.weight'", "overflows f16"]),
        (&large, "q8_0", ["'blk.1.attn_k.weight'", "overflows q8_0"]),
    ] {
        let error = write(model, &folder.join("out"), &options(target)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    write(&large, &folder.join("bf16.gguf"), &options("bf16")).unwrap();
    let left: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["bf16.gguf"], "failed conversions leave no files");
}

#[test]
fn nothing_is_overwritten() {
    let out = empty_folder("convert-there").join("model.gguf");
    std::fs::write(&out, "precious").unwrap();
    let error = write(&open(&committed(SMALL)), &out, &options("f32")).unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
}
