//! Comparisons with bytes and values from other programs.

use girih_tensor::Random;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use girih_tensor::DType;
use serde_json::Value;

/// The tensors of a safetensors file, by name, without their types.
struct Tensors {
    bytes: Vec<u8>,
    ranges: BTreeMap<String, Range<usize>>,
}

impl Tensors {
    fn open(path: &Path) -> Tensors {
        let bytes = std::fs::read(path).unwrap();
        let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: BTreeMap<String, Value> = serde_json::from_slice(&bytes[8..start]).unwrap();
        let offset = |tensor: &Value, i: usize| start + tensor["data_offsets"][i].as_u64().unwrap() as usize;
        let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
        let ranges = tensors.map(|(name, t)| (name, offset(&t, 0)..offset(&t, 1))).collect();
        Tensors { bytes, ranges }
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        Some(&self.bytes[self.ranges.get(name)?.clone()])
    }

    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let chunks = self.bytes(name)?.chunks_exact(4);
        Some(chunks.map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect())
    }
}

/// The reference blocks of the `gguf` Python package, if the test data are present.
fn reference() -> Option<Tensors> {
    let Ok(folder) = std::env::var("GIRIH_TEST_DATA") else {
        eprintln!("skipped: GIRIH_TEST_DATA is not set");
        return None;
    };
    Some(Tensors::open(&PathBuf::from(folder).join("quant-golden/ggml_blocks.safetensors")))
}

/// Whether two values have the same bits or are both NaN.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn blocks_decode_to_the_reference_values() {
    let Some(reference) = reference() else { return };
    let mut checked = Vec::new();
    for &dtype in DType::ALL {
        let name = dtype.name().to_uppercase();
        let Some(blocks) = reference.bytes(&format!("{name}.blocks")) else { continue };
        let expected = reference.floats(&format!("{name}.values")).unwrap();
        let mut values = vec![0.0; expected.len()];
        dtype.unpack(blocks, &mut values);
        for (i, (&value, &expected)) in values.iter().zip(&expected).enumerate() {
            assert!(same(value, expected), "{dtype}, value {i}: {value:?}, not {expected:?}");
        }
        checked.push(dtype);
    }
    let expected = DType::ALL.iter().filter(|dtype| dtype.tile() != (1, 1) && **dtype != DType::Q4NX);
    assert!(checked.iter().eq(expected), "only {checked:?} have reference blocks");
}

#[test]
fn values_encode_to_the_reference_bytes() {
    let Some(reference) = reference() else { return };
    let input = reference.floats("natural.input").unwrap();
    let mut checked = 0;
    for &dtype in DType::ALL.iter().filter(|dtype| dtype.writes()) {
        let name = dtype.name().to_uppercase();
        let Some(expected) = reference.bytes(&format!("natural.{name}.bytes")) else { continue };
        let bytes = dtype.pack_matrix(8, 256, &input).unwrap();
        assert!(bytes == expected, "{dtype}");
        checked += 1;
    }
    assert_eq!(checked, 6, "BF16, Q4_0, Q4_1, Q5_0, Q8_0 and MXFP4");
}

/// The files are the output of ggml 0.25.3 (x86-64) for the same values:
/// `ggml_quantize_chunk` without an importance matrix.
#[test]
fn k_formats_encode_to_the_bytes_of_ggml() {
    let mut random = Random(20);
    let mut values = random.bells(8 * 256);
    for (index, block) in values.chunks_exact_mut(256).enumerate() {
        match index % 4 {
            1 => block.iter_mut().for_each(|value| *value /= 64.0),
            2 => block.iter_mut().step_by(32).for_each(|value| *value *= 16.0),
            3 => block.iter_mut().for_each(|value| *value = value.abs()),
            _ => {}
        }
    }
    let files: [(DType, &[u8]); 3] = [
        (DType::Q4_K, include_bytes!("golden/q4_k.bin")),
        (DType::Q5_K, include_bytes!("golden/q5_k.bin")),
        (DType::Q6_K, include_bytes!("golden/q6_k.bin")),
    ];
    for (dtype, expected) in files {
        let bytes = dtype.pack_matrix(8, 256, &values).unwrap();
        let pairs = bytes.chunks_exact(dtype.block_bytes()).zip(expected.chunks_exact(dtype.block_bytes()));
        for (index, (block, expected)) in pairs.enumerate() {
            assert_eq!(block, expected, "{dtype}, block {index}");
        }
        assert_eq!(bytes.len(), expected.len());
    }
}
