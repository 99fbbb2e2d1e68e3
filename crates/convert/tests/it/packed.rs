//! Weights that are quantized while they are read: those of a converted file, and their error.

use girih_graph::WeightSource as _;
use girih_model::ModelFiles;
use girih_tensor::{DType, ErrorKind};

use super::{SMALL, committed, fixtures, open, options, rounded, write};
use crate::folder::empty_folder;

/// All bytes of a weight, read in pieces of this size.
fn bytes(model: &ModelFiles, name: &str, piece: usize) -> Vec<u8> {
    let (dtype, shape) = model.weights.info(name).unwrap();
    let mut bytes = vec![0; dtype.bytes(&shape).unwrap()];
    for (index, part) in bytes.chunks_mut(piece).enumerate() {
        model.weights.read(name, (index * piece) as u64, part).unwrap();
    }
    bytes
}

/// The relative error of `to`, by numbers: of all matrices that differ in their format, and of each.
fn errors(from: &ModelFiles, to: &ModelFiles) -> (f64, Vec<(String, f64)>) {
    let (mut all, mut each) = ([0.0; 2], Vec::new());
    for name in from.weights.names() {
        let dtype = to.weights.info(name).unwrap().0;
        if !matches!(dtype, DType::Q8_0 | DType::F16) || from.weights.info(name).unwrap().0 == dtype {
            continue;
        }
        let mut own = [0.0; 2];
        for (a, b) in from.weights.numbers(name).unwrap().iter().zip(to.weights.numbers(name).unwrap()) {
            own[0] += (f64::from(*a) - f64::from(b)).powi(2);
            own[1] += f64::from(*a).powi(2);
        }
        all = [all[0] + own[0], all[1] + own[1]];
        each.push((name.to_owned(), (own[0] / own[1]).sqrt()));
    }
    ((all[0] / all[1]).sqrt(), each)
}

#[test]
fn packed_weights_are_those_of_a_converted_file() {
    let folder = empty_folder("convert-packed");
    let further = ["gemma2", "lfm2", "qwen2"].map(committed);
    for fixture in fixtures().into_iter().chain(further) {
        let (exact, mut packed) = (open(&fixture), open(&fixture));
        packed.quantize(DType::Q8_0).unwrap();
        let out = folder.join("out.gguf");
        write(&exact, &out, &options("q8_0")).unwrap();
        let file = open(&out);
        for name in exact.weights.names() {
            let at = format!("{}: {name}", fixture.display());
            let ((dtype, shape), (own, own_shape)) =
                (file.weights.info(name).unwrap(), packed.weights.info(name).unwrap());
            assert_eq!(shape, own_shape, "{at}");
            if shape.extents().len() < 2 {
                assert!(file.weights.numbers(name).unwrap() == packed.weights.numbers(name).unwrap(), "{at}");
                continue;
            }
            assert_eq!(dtype, own, "{at}");
            let whole = bytes(&packed, name, usize::MAX);
            assert!(bytes(&file, name, usize::MAX) == whole, "{at}");
            assert!(bytes(&packed, name, 777) == whole, "{at}");
        }
        let found = packed.quantization_error().unwrap();
        let (all, each) = errors(&exact, &packed);
        assert_eq!(found.matrices, each.len());
        assert!((found.relative_rms - all).abs() <= 1e-9 * all, "{found:?} instead of {all}");
        let worst = each.iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        let (name, error) = found.worst.unwrap();
        assert!(name == worst.0 && (error - worst.1).abs() <= 1e-9 * error, "{name} instead of {worst:?}");
        std::fs::remove_file(out).unwrap();
    }
}

/// Of experts, latents and layers that share weights, too: each matrix is rounded, and routers are exact.
#[test]
fn every_kind_of_weight_is_packed_or_exact() {
    for name in ["qwen3_vl_moe", "deepseek_v3", "cohere2_moe", "granitemoehybrid", "gemma4"] {
        let (exact, mut packed) = (open(&committed(name)), open(&committed(name)));
        packed.quantize(DType::Q8_0).unwrap();
        let mut formats = std::collections::BTreeSet::new();
        for weight in exact.weights.names() {
            let (dtype, shape) = packed.weights.info(weight).unwrap();
            let numbers = exact.weights.numbers(weight).unwrap();
            let want = rounded(dtype, shape.columns(), &numbers);
            assert!(packed.weights.numbers(weight).unwrap() == want, "{name}: {weight}");
            assert!(!weight.contains(".ffn.router.") || want == numbers, "{name}: {weight}");
            formats.insert(dtype.name());
        }
        assert!(formats.contains("q8_0"), "{name}: {formats:?}");
    }
}

#[test]
fn another_identity_belongs_to_packed_weights() {
    let (exact, mut packed) = (open(&committed(SMALL)), open(&committed(SMALL)));
    assert_eq!(packed.quantization_error(), None);
    packed.quantize(DType::Q8_0).unwrap();
    assert_ne!(packed.weights.identity(), exact.weights.identity());
    let mut again = open(&committed(SMALL));
    again.quantize(DType::Q8_0).unwrap();
    // What was read changes none.
    bytes(&again, "embed.table", usize::MAX);
    assert_eq!(packed.weights.identity(), again.weights.identity());
    assert_eq!(packed.quantization_error().map(|error| error.matrices), Some(0));
    // Its rows may stay in their file.
    let (rows, table) =
        (packed.weights.rows("embed.table").unwrap(), bytes(&packed, "embed.table", usize::MAX));
    let row = table.len() / packed.weights.info("embed.table").unwrap().1.rows();
    let mut part = vec![0; row - 5];
    rows.read(3, 5, &mut part).unwrap();
    assert_eq!(part, table[3 * row + 5..4 * row]);
    assert!(rows.read(usize::MAX, 0, &mut part).is_err());
    assert!(rows.read(3, 6, &mut part).is_err());
}

#[test]
fn only_floats_are_packed_and_only_as_q8_0() {
    let mut model = open(&committed(SMALL));
    let error = model.quantize(DType::Q4_0).unwrap_err();
    assert!(error.kind() == ErrorKind::Refused && error.to_string().contains("only q8_0"), "{error}");
    let out = empty_folder("convert-packed-twice").join("out.gguf");
    write(&model, &out, &options("q8_0")).unwrap();
    let error = open(&out).quantize(DType::Q8_0).unwrap_err();
    assert!(
        error.kind() == ErrorKind::Refused && error.to_string().contains("so none is quantized"),
        "{error}"
    );
}

#[test]
fn a_weight_that_is_not_finite_is_refused_when_it_is_packed() {
    for bits in [0x7fc0, 0x7f80, 0x7f7f] {
        let mut model = super::corrupted("convert-packed-nan", "model.layers.1.mlp.up_proj.weight", bits);
        model.quantize(DType::Q8_0).unwrap();
        let name = "layers.1.ffn.up.weight";
        let (dtype, shape) = model.weights.info(name).unwrap();
        let error = model.weights.read(name, 0, &mut vec![0; dtype.bytes(&shape).unwrap()]).unwrap_err();
        assert!(error.to_string().contains("which q8_0 cannot hold"), "{error}");
    }
}
