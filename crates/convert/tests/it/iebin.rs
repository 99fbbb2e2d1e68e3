//! Conversions to folders of IEBIN.

use std::fs;
use std::path::Path;

use girih_convert::{ConvertOptions, Dedup, IebinOptions, Q4Map};
use girih_file::{ContainerKind, TensorInfo};
use girih_model::ModelFiles;
use girih_tensor::DType;

use super::{COMMITTED, SMALL, committed, open, options, with_recipe, write};
use crate::folder::empty_folder;

/// Checks that both have the same numbers in the same formats.
fn check_same(model: &ModelFiles, copy: &ModelFiles) {
    assert_eq!(copy.facts, model.facts);
    for name in model.weights.names() {
        let (dtype, shape) = model.weights.info(name).unwrap();
        // A GGUF has vectors in single precision.
        if shape.extents().len() == 2 {
            assert_eq!(copy.weights.info(name), Some((dtype, shape)), "{name}");
        }
        assert!(copy.weights.numbers(name).unwrap() == model.weights.numbers(name).unwrap(), "{name}");
    }
}

#[test]
fn an_iebin_folder_is_the_same_model_and_writes_itself() {
    let folder = empty_folder("convert-iebin");
    for fixture in COMMITTED {
        let model = open(&committed(fixture));
        let [once, twice] = ["once", "twice"].map(|name| folder.join(format!("{fixture}-{name}")));
        write(&model, &once, &options("iebin")).unwrap();
        let copy = open(&once);
        assert_eq!(copy.weights.container().kind(), ContainerKind::Iebin);
        check_same(&model, &copy);
        write(&copy, &twice, &options("iebin")).unwrap();
        for name in ["model.ie.bin", "model.ie.json", "config.json"] {
            assert!(fs::read(once.join(name)).unwrap() == fs::read(twice.join(name)).unwrap(), "{name}");
        }
    }
}

#[test]
fn every_plain_type_can_be_stored() {
    let folder = empty_folder("convert-iebin-types");
    let model = open(&committed(SMALL));
    for kind in ["f32", "f16", "bf16"] {
        let recipe = format!("[[rule]]\ntensors = '*'\ntype = '{kind}'");
        let out = folder.join(kind);
        write(&model, &out, &with_recipe("iebin", &recipe)).unwrap();
        super::check_copy(&model, &open(&out));
    }
    let wide = IebinOptions { single_precision: true, ..IebinOptions::default() };
    write(&model, &folder.join("wide"), &ConvertOptions { iebin: wide, ..options("iebin") }).unwrap();
    let wide = open(&folder.join("wide"));
    assert!(wide.weights.container().tensors().values().all(|info| info.dtype == DType::F32));
    super::check_copy(&model, &wide);
    let refused = with_recipe("iebin", "[[rule]]\ntensors = '*'\ntype = 'q6_k'");
    let error = write(&model, &folder.join("refused"), &refused).unwrap_err().to_string();
    assert!(error.contains("q6_k cannot be stored"), "{error}");
}

/// Each integer is the nearest one under the scale of its row, which half precision holds.
#[test]
fn integers_have_the_scale_of_their_row() {
    let folder = empty_folder("convert-iebin-integers");
    let model = open(&committed(SMALL));
    for (kind, dtype, max) in [("q4_0", DType::Q4_0, 7.0), ("q8_0", DType::Q8_0, 127.0f32)] {
        let recipe = format!("[[rule]]\ntensors = '*'\ntype = '{kind}'");
        let out = folder.join(kind);
        write(&model, &out, &with_recipe("iebin", &recipe)).unwrap();
        let copy = open(&out);
        let mut matrices = 0;
        for name in model.weights.names() {
            let (found, shape) = copy.weights.info(name).unwrap();
            let is_matrix = shape.extents().len() == 2;
            // Rows that are no whole blocks are read as single values.
            let has_blocks = shape.columns().is_multiple_of(32);
            assert_eq!(found == dtype, is_matrix && has_blocks, "{name} is {found}");
            assert!(!is_matrix || has_blocks || found == DType::F32, "{name} is {found}");
            matrices += usize::from(is_matrix);
            let numbers = [&model, &copy].map(|model| model.weights.numbers(name).unwrap());
            let rows = numbers.each_ref().map(|numbers| numbers.chunks_exact(shape.columns()));
            let [own, stored] = rows;
            for (own, stored) in own.zip(stored).filter(|_| is_matrix) {
                let largest = own.iter().fold(0.0f32, |all, value| value.abs().max(all));
                // Half a step, and what half precision and clamping may take from the largest value.
                let bound = largest / max * (0.5 + max * 2f32.powi(-11));
                assert!(own.iter().zip(stored).all(|(own, stored)| (own - stored).abs() <= bound), "{name}");
            }
        }
        assert!(matrices > 0);
        // The blocks that it reads as become a GGUF without another rounding.
        let gguf = folder.join(format!("{kind}.gguf"));
        let recipe = format!("[[rule]]\ntensors = '*down*'\ntype = 'f32'\n{recipe}");
        write(&copy, &gguf, &with_recipe(kind, &recipe)).unwrap();
        check_same(&copy, &open(&gguf));
    }
}

/// The tensor of a manifest that names one matrix: its name, shape and format as read.
fn one_matrix(model: &ModelFiles) -> (String, TensorInfo) {
    let name = "model.layers.1.mlp.up_proj.weight".to_owned();
    let info = model.weights.container().tensor(&name).unwrap().clone();
    (name, info)
}

#[test]
fn a_manifest_chooses_matrices_and_brings_integers() {
    let folder = empty_folder("convert-iebin-map");
    let model = open(&committed(SMALL));
    let (name, info) = one_matrix(&model);
    let (rows, columns) = (info.shape.rows(), info.shape.columns());
    let with_map = |text: &str| {
        let path = folder.join("map.json");
        fs::write(&path, text).unwrap();
        let iebin = IebinOptions { q4_map: Some(Q4Map::read(&path).unwrap()), ..IebinOptions::default() };
        ConvertOptions { iebin, ..options("iebin") }
    };
    let item = format!(r#""per":"tensor","rows":{rows},"cols":{columns}"#);
    let own = folder.join("own");
    write(&model, &own, &with_map(&format!(r#"{{"{name}":{{{item}}}}}"#))).unwrap();
    let copy = open(&own);
    let others = copy.weights.container().tensors().iter().filter(|(_, info)| info.dtype == DType::Q4_0);
    assert_eq!(others.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [name.as_str()]);
    // The integers and the scale that it wrote are those of another folder.
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(own.join("model.ie.json")).unwrap()).unwrap();
    let entry = manifest["tensors"].as_array().unwrap().iter().find(|entry| entry["name"] == *name).unwrap();
    let [offset, bytes] = ["offset", "nbytes"].map(|key| entry[key].as_u64().unwrap() as usize);
    let scales = entry["quant"]["scale_bin"].as_str().unwrap();
    let bin = fs::read(own.join("model.ie.bin")).unwrap();
    fs::write(folder.join("codes.bin"), &bin[offset..offset + bytes]).unwrap();
    fs::copy(own.join(scales), folder.join("scale.bin")).unwrap();
    let files = r#""int4_bin":"codes.bin","scale_bin":"scale.bin""#;
    let brought = folder.join("brought");
    write(&model, &brought, &with_map(&format!(r#"[{{"name":"{name}",{item},{files}}}]"#))).unwrap();
    check_same(&copy, &open(&brought));
    assert!(fs::read(brought.join("model.ie.bin")).unwrap() == bin);

    let refused = |text: &str, word: &str| {
        let error = write(&model, &folder.join("refused"), &with_map(text)).unwrap_err().to_string();
        assert!(error.contains(word) && !folder.join("refused").exists(), "{error}");
    };
    refused(&format!(r#"{{"no.weight":{{{item}}}}}"#), "no matrix of the model");
    refused(&format!(r#"{{"{name}":{{"per":"row","rows":1,"cols":{columns}}}}}"#), "states [1, ");
    fs::write(folder.join("codes.bin"), [0; 3]).unwrap();
    refused(&format!(r#"[{{"name":"{name}",{item},{files}}}]"#), "has 3 bytes");
}

#[test]
fn a_gguf_has_no_names_of_the_hub() {
    let folder = empty_folder("convert-iebin-gguf");
    let (gguf, out) = (folder.join("model.gguf"), folder.join("out"));
    write(&open(&committed(SMALL)), &gguf, &options("bf16")).unwrap();
    let error = write(&open(&gguf), &out, &options("iebin")).unwrap_err().to_string();
    assert!(error.contains("the original of this model"), "{error}");
}

/// A copy of the small model whose second layer has the first one's matrices, but for one value in 64 of one of them.
fn doubled(folder: &Path) -> ModelFiles {
    let source = committed(SMALL);
    let model = open(&source);
    let mut bytes = fs::read(source.join("model.safetensors")).unwrap();
    for (name, info) in model.weights.container().tensors() {
        let Some(own) = name.strip_prefix("model.layers.1.") else { continue };
        let first = model.weights.container().tensor(&format!("model.layers.0.{own}")).unwrap();
        let (from, to, count) = (first.offset as usize, info.offset as usize, info.bytes as usize);
        bytes.copy_within(from..from + count, to);
        if own == "mlp.up_proj.weight" {
            (to..to + count).step_by(128).for_each(|at| bytes[at] ^= 1);
        }
    }
    fs::create_dir(folder).unwrap();
    for name in ["config.json", "tokenizer.json"] {
        fs::copy(source.join(name), folder.join(name)).unwrap();
    }
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
    open(folder)
}

#[test]
fn near_equal_tensors_are_stored_as_differences() {
    let folder = empty_folder("convert-iebin-overlay");
    let model = doubled(&folder.join("doubled"));
    let iebin = || IebinOptions { dedup: Some(Dedup::Overlay), ..IebinOptions::default() };
    let int4 = with_recipe("iebin", "[[rule]]\ntensors = '*'\ntype = 'q4_0'");
    for (name, plain) in [("bf16", options("iebin")), ("int4", int4)] {
        let [whole, small] = ["whole", "overlay"].map(|kind| folder.join(format!("{name}-{kind}")));
        write(&model, &whole, &plain).unwrap();
        let report = write(&model, &small, &ConvertOptions { iebin: iebin(), ..plain }).unwrap();
        let notes = report.tensors.iter().filter_map(|tensor| tensor.note.as_deref());
        let differing: Vec<&str> = notes.filter(|note| note.contains("differs from")).collect();
        assert!(differing.len() >= 4, "{differing:?}");
        check_same(&open(&whole), &open(&small));
        let size = |folder: &Path, files: &[&str]| -> u64 {
            files.iter().map(|file| fs::metadata(folder.join(file)).unwrap().len()).sum()
        };
        let parts = ["model.ie.bin", "model.defaults.bin", "model.masks.bin", "model.exceptions.bin"];
        let [before, after] = [size(&whole, &parts[..1]), size(&small, &parts)];
        assert!(after < before, "{name}: {after} of {before} bytes");
        // The folder writes itself, and the whole one again.
        let [again, back] = ["again", "back"].map(|kind| folder.join(format!("{name}-{kind}")));
        if name == "bf16" {
            let copy = open(&small);
            write(&copy, &again, &ConvertOptions { iebin: iebin(), ..options("iebin") }).unwrap();
            write(&copy, &back, &options("iebin")).unwrap();
            for file in parts.iter().chain(&["model.dedup.json", "model.ie.json"]) {
                assert!(fs::read(small.join(file)).unwrap() == fs::read(again.join(file)).unwrap(), "{file}");
            }
            assert!(fs::read(back.join(parts[0])).unwrap() == fs::read(whole.join(parts[0])).unwrap());
        }
    }
}

#[test]
fn tensors_that_differ_are_stored_whole() {
    let folder = empty_folder("convert-iebin-no-overlay");
    let iebin = IebinOptions { dedup: Some(Dedup::Overlay), ..IebinOptions::default() };
    let recipe = "[[rule]]\ntensors = '*'\ntype = 'q4_0'";
    let model = open(&committed(SMALL));
    write(&model, &folder.join("out"), &ConvertOptions { iebin, ..with_recipe("iebin", recipe) }).unwrap();
    assert!(!folder.join("out/model.dedup.json").exists());
}
