//! Conversions to folders of safetensors in which pruned matrices have no blocks of zeros.

use std::fs;

use girih_convert::{IebsOptions, write_iebs};
use girih_file::{ByteSource, Container, FileLimits, safetensors};
use girih_tensor::DType;

use super::{COMMITTED, SMALL, check_copy, committed, open, options, with_recipe, write};
use crate::folder::empty_folder;

/// Half of the blocks of all matrices of layers whose rows are whole blocks of 32.
fn pruned(kind: &str, block: &str) -> String {
    let down = "[[rule]]\ntensors = '*down*'\ntype = 'f32'";
    format!("{down}\n[[rule]]\ntensors = 'layers.*'\ntype = '{kind}'\nkeep = 0.5\nblock = '{block}'")
}

#[test]
fn without_a_recipe_it_is_the_same_model() {
    let folder = empty_folder("convert-safetensors");
    for fixture in COMMITTED {
        let model = open(&committed(fixture));
        let out = folder.join(fixture);
        write(&model, &out, &options("safetensors")).unwrap();
        check_copy(&model, &open(&out));
    }
}

/// The dense twin is a GGUF of the same recipe.
#[test]
fn pruned_matrices_are_stored_by_blocks() {
    let folder = empty_folder("convert-sparse");
    let model = open(&committed(SMALL));
    for (kind, block) in [("bf16", "32x32"), ("f32", "16x8"), ("q4_0", "32x32"), ("q8_0", "8x32")] {
        let recipe = pruned(kind, block);
        let [sparse, dense] = ["", ".gguf"].map(|ending| folder.join(format!("{kind}{ending}")));
        let report = write(&model, &sparse, &with_recipe("safetensors", &recipe)).unwrap();
        write(&model, &dense, &with_recipe("bf16", &recipe)).unwrap();
        let (copy, twin) = (open(&sparse), open(&dense));
        let file = ByteSource::open(&sparse.join("model.safetensors")).unwrap();
        let header = safetensors::parse(&file, &FileLimits::DEFAULT).unwrap();
        let (mut matrices, mut stored, mut whole) = (0, 0, 0);
        for tensor in report.tensors.iter().filter(|tensor| tensor.sparsity.is_some()) {
            let info = copy.weights.container().tensor(&tensor.name).unwrap();
            assert_eq!((info.dtype, info.shape), (tensor.stored, tensor.shape), "{}", tensor.name);
            matrices += 1;
            (stored, whole) = (stored + header.tensors[&tensor.name].bytes, whole + info.bytes);
        }
        // Half of the blocks, and the list of them.
        assert!((stored as f64) < 0.6 * whole as f64, "{kind}: {stored} of {whole} bytes");
        assert!(matrices >= 14, "{matrices} matrices");
        for name in model.weights.names() {
            assert!(
                copy.weights.numbers(name).unwrap() == twin.weights.numbers(name).unwrap(),
                "{kind} {name}"
            );
        }
        // It writes itself, though nothing is pruned any more: blocks of zeros are zeros.
        let again = folder.join(format!("{kind}-again"));
        let exact = recipe.replace("keep = 0.5", "zeros = 'exact'");
        write(&copy, &again, &with_recipe("safetensors", &exact)).unwrap();
        let file = |folder: &std::path::Path| fs::read(folder.join("model.safetensors")).unwrap();
        assert!(file(&again) == file(&sparse), "{kind}");
    }
}

#[test]
fn a_format_that_safetensors_lacks_needs_pruning() {
    let folder = empty_folder("convert-sparse-refused");
    let model = open(&committed(SMALL));
    let whole = "[[rule]]\ntensors = '*up_proj*'\ntype = 'q4_0'";
    let error =
        write(&model, &folder.join("out"), &with_recipe("safetensors", whole)).unwrap_err().to_string();
    assert!(error.contains("is q4_0, for which safetensors has no type"), "{error}");
    let block = pruned("q4_0", "32x16");
    let error =
        write(&model, &folder.join("out"), &with_recipe("safetensors", &block)).unwrap_err().to_string();
    assert!(error.contains("whose own blocks are 1x32"), "{error}");
    let gguf = folder.join("model.gguf");
    write(&model, &gguf, &options("bf16")).unwrap();
    let error = write(&open(&gguf), &folder.join("out"), &options("safetensors")).unwrap_err().to_string();
    assert!(error.contains("convert the original of this model"), "{error}");
    assert!(!folder.join("out").exists());
}

/// From numbers to blocks, to other blocks, and back.
#[test]
fn numbers_become_blocks() {
    let folder = empty_folder("convert-iebs");
    let [raw, first, second] = ["w.f32", "first.iebs", "second.iebs"].map(|name| folder.join(name));
    // 5 rows of 7 numbers; the second row of blocks of 2x3 has one block.
    let values: Vec<f32> =
        (0..35).map(|at| if (14..28).contains(&at) { 0.0 } else { at as f32 - 3.5 }).collect();
    let mut values = values;
    values[20] = -0.0;
    let bytes = DType::F32.pack_matrix(5, 7, &values).unwrap();
    fs::write(&raw, &bytes).unwrap();
    let options = |rows, block| IebsOptions::new(rows, block).unwrap();
    let written = write_iebs(&raw, &first, &options(Some(5), "2x3")).unwrap();
    assert_eq!((written.blocks, written.density), (7, 7.0 / 9.0));
    assert_eq!(fs::metadata(&first).unwrap().len(), 44 + 4 * (4 + 7 + 7 * 6));
    write_iebs(&first, &second, &options(None, "1x7")).unwrap();
    for path in [&first, &second] {
        let container = Container::open(path, &FileLimits::DEFAULT).unwrap();
        let info = container.tensor(path.file_stem().unwrap().to_str().unwrap()).unwrap();
        let mut read = vec![0; info.bytes as usize];
        container.read(info, 0, &mut read).unwrap();
        assert!(info.dtype == DType::F32 && read == bytes, "{}", path.display());
    }
    let refused = |rows, block, words: &str| {
        let error = write_iebs(&raw, &folder.join("no.iebs"), &options(rows, block)).unwrap_err().to_string();
        assert!(error.contains(words) && !folder.join("no.iebs").exists(), "{error}");
    };
    refused(None, "2x3", "state its rows");
    refused(Some(4), "2x3", "no 4 equal rows");
    refused(Some(0), "2x3", "no 0 equal rows");
    refused(Some(usize::MAX), "2x3", "equal rows");
    assert!(IebsOptions::new(None, "0x3").is_err());
    let error = write_iebs(&raw, &first, &options(Some(5), "2x3")).unwrap_err().to_string();
    assert!(error.contains("already exists"), "{error}");
    fs::write(&raw, f32::NAN.to_le_bytes()).unwrap();
    refused(Some(1), "1x1", "only finite");
    fs::write(folder.join("bad.iebs"), &fs::read(&first).unwrap()[..60]).unwrap();
    let error = Container::open(&folder.join("bad.iebs"), &FileLimits::DEFAULT).unwrap_err().to_string();
    assert!(error.contains("bad.iebs: the file has 60 bytes"), "{error}");
}
