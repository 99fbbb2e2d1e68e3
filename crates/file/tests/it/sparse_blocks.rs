//! Sparse matrices in safetensors: what they read as, and bad ones with their errors.

use std::fs;

use girih_file::sparse_blocks::SparseLayout;
use girih_file::{Container, ContainerKind, FileLimits};
use girih_tensor::{DType, Random, Result, Shape};

use crate::folder::empty_folder;
use crate::iebin::bytes;
use crate::raw;

/// The bytes of a dense matrix whose blocks of `block` have values where `is_set` says so.
fn dense(dtype: DType, [rows, columns]: [usize; 2], block: [usize; 2], is_set: fn(usize) -> bool) -> Vec<u8> {
    let (mut random, across) = (Random(3), columns.div_ceil(block[1]));
    let value = |at: usize| {
        let (row, column) = (at / columns, at % columns);
        let set = is_set(row / block[0] * across + column / block[1]);
        let value = random.below(255) as f32 - 127.0;
        if set { value } else { 0.0 }
    };
    let values: Vec<f32> = (0..rows * columns).map(value).collect();
    dtype.pack_matrix(rows, columns, &values).unwrap()
}

/// The tensor of a dense matrix, and its pair of metadata.
fn stored(layout: &SparseLayout, dense: &[u8]) -> (Vec<u8>, (String, String)) {
    let bands: Vec<&[u8]> = dense.chunks(layout.band_bytes()).collect();
    let present: Vec<Vec<u32>> = bands.iter().map(|band| layout.present(band)).collect();
    let mut bytes = layout.head(&present).unwrap();
    for (band, present) in bands.iter().zip(&present) {
        bytes.extend(layout.blocks(band, present));
    }
    let blocks = present.iter().map(Vec::len).sum();
    assert_eq!(layout.bytes(blocks).unwrap(), bytes.len());
    (bytes, layout.pair("w", blocks))
}

/// A file of `w`, and of a tensor without values.
fn file(pair: &(String, String), stored: &[u8]) -> Vec<u8> {
    let text = |text: &str| serde_json::to_string(text).unwrap();
    let count = stored.len();
    let header = format!(
        r#"{{"__metadata__":{{{}:{}}},"w":{{"dtype":"U8","shape":[{count}],"data_offsets":[0,{count}]}},"empty":{{"dtype":"U8","shape":[0],"data_offsets":[{count},{count}]}}}}"#,
        text(&pair.0),
        text(&pair.1)
    );
    let mut file = raw::safetensors(&header, count);
    let data = file.len() - count;
    file[data..].copy_from_slice(stored);
    file
}

fn open(pair: &(String, String), stored: &[u8]) -> Result<Container> {
    let file = file(pair, stored);
    Container::memory(ContainerKind::Safetensors, "m.safetensors", file, &FileLimits::DEFAULT)
}

#[test]
fn blocks_read_as_the_dense_matrix() {
    for (dtype, shape, block) in [
        (DType::F32, [5, 7], [2, 3]),
        (DType::BF16, [64, 96], [32, 32]),
        (DType::Q4_0, [70, 160], [32, 64]),
        (DType::Q8_0, [32, 64], [32, 32]),
        (DType::Q4_K, [40, 512], [32, 256]),
    ] {
        for is_set in [|_| false, |_| true, |block| block % 3 == 1] as [fn(usize) -> bool; 3] {
            let dense = dense(dtype, shape, block, is_set);
            let layout = SparseLayout::new(Shape::matrix(shape[0], shape[1]), dtype, block).unwrap();
            let (stored, pair) = stored(&layout, &dense);
            let container = open(&pair, &stored).unwrap();
            let info = container.tensor("w").unwrap();
            assert_eq!((info.dtype, info.shape), (dtype, Shape::matrix(shape[0], shape[1])));
            assert!(bytes(&container, "w") == dense, "{dtype} {shape:?}");
        }
    }
}

#[test]
fn an_index_names_sparse_matrices() {
    let folder = empty_folder("sparse-index");
    let layout = SparseLayout::new(Shape::matrix(4, 4), DType::F32, [2, 2]).unwrap();
    let dense = dense(DType::F32, [4, 4], [2, 2], |block| block == 1);
    let (stored, pair) = stored(&layout, &dense);
    fs::write(folder.join("1.safetensors"), file(&pair, &stored)).unwrap();
    fs::write(folder.join("2.safetensors"), raw::good_safetensors()).unwrap();
    let others = r#""a":"2.safetensors","b":"2.safetensors","scalar":"2.safetensors""#;
    let with_index = |map: &str| {
        let index = format!(r#"{{"weight_map":{{"empty":"1.safetensors",{map}}}}}"#);
        fs::write(folder.join("model.safetensors.index.json"), index).unwrap();
        Container::open(&folder, &FileLimits::DEFAULT)
    };
    let container = with_index(&format!(r#""w":"1.safetensors",{others}"#)).unwrap();
    assert_eq!(container.tensor("w").unwrap().dtype, DType::F32);
    assert!(bytes(&container, "w") == dense);
    let error = with_index(&format!(r#""w":"2.safetensors",{others}"#)).unwrap_err().to_string();
    assert!(error.contains("'w' is listed in '2.safetensors', but that file does not contain it"), "{error}");
    let error = with_index(others).unwrap_err().to_string();
    assert!(error.contains("1.safetensors: tensor 'w' is not listed in the index"), "{error}");
}

/// A file of a hole, so that the length of the list is as its header says.
#[test]
fn a_list_of_blocks_has_a_cap() {
    let path = empty_folder("sparse-cap").join("w.iebs");
    let (columns, blocks) = (1 << 26, 1 << 26);
    let header = [1, 2, columns, 1, 1, blocks, 0, 0, 0, 0].map(u32::to_le_bytes).concat();
    fs::write(&path, [b"IEBS".as_slice(), &header].concat()).unwrap();
    let length = 44 + 4 * (3 + 2 * u64::from(blocks));
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(length).unwrap();
    let error = Container::open(&path, &FileLimits::DEFAULT).unwrap_err().to_string();
    assert!(
        error.contains("w.iebs: has a list of blocks of 268435468 bytes; the cap is 268435456"),
        "{error}"
    );
}

/// Half of the blocks take half of the bytes, and a hundredth for the list.
#[test]
fn a_file_is_as_large_as_its_density() {
    let layout = SparseLayout::new(Shape::matrix(1024, 1024), DType::Q4_0, [32, 32]).unwrap();
    let dense = dense(DType::Q4_0, [1024, 1024], [32, 32], |block| block % 2 == 0);
    let (stored, _) = stored(&layout, &dense);
    assert!((stored.len() as f64) < 0.51 * dense.len() as f64, "{} of {} bytes", stored.len(), dense.len());
}

#[test]
fn bad_matrices_are_refused_with_a_sentence() {
    let layout = SparseLayout::new(Shape::matrix(4, 4), DType::F32, [2, 2]).unwrap();
    let (good, pair) = stored(&layout, &dense(DType::F32, [4, 4], [2, 2], |_| true));
    open(&pair, &good).unwrap();
    let with_text = |from: &str, to: &str| {
        assert!(pair.1.contains(from), "{}", pair.1);
        ((pair.0.clone(), pair.1.replace(from, to)), good.clone())
    };
    let with_word = |index: usize, word: u32| {
        let mut bytes = good.clone();
        bytes[4 * index..][..4].copy_from_slice(&word.to_le_bytes());
        (pair.clone(), bytes)
    };
    let wide = r#"{"shape":[1,18446744073709551584],"dtype":"q4_0","block":[1,64],"blocks":4}"#;
    let whole_row = ((pair.0.clone(), wide.to_owned()), good.clone());
    let cases = [
        (with_text("[4,4]", "[4]"), "a matrix with values is needed"),
        (with_text("[4,4]", "[0,4]"), "a matrix with values is needed"),
        (with_text("[4,4]", "[9223372036854775807,4]"), "exceeds the address space"),
        (with_text("[4,4]", "[400000000000,4]"), "are stored as u8"),
        (whole_row, "exceed the address space"),
        (with_text("[4,4]", "\"4x4\""), "is not a sparse matrix"),
        (with_text("f32", "f99"), "is not a storage format"),
        (with_text("f32", "q4_0"), "whose own blocks are 1x32"),
        (with_text("f32", "q4nx"), "whose own blocks are"),
        (with_text("[2,2]", "[0,2]"), "a side has 1 to 4096 values"),
        (with_text("[2,2]", "[2,18446744073709551615]"), "a side has 1 to 4096 values"),
        (with_text("[2,2]", "[2]"), "is not a sparse matrix"),
        (with_text("\"blocks\":4", "\"blocks\":5"), "are stored as u8"),
        (with_text("\"blocks\":4", "\"blocks\":18446744073709551615"), "exceed the address space"),
        (with_text("\"blocks\"", "\"count\""), "is not a sparse matrix"),
        (
            ((format!("{}x", pair.0), pair.1.clone()), good.clone()),
            "names a tensor that the file does not have",
        ),
        (with_word(0, 1), "does not ascend from 0"),
        (with_word(1, 5), "does not ascend from 0"),
        (with_word(2, 3), "does not ascend from 0"),
        (with_word(3, 1), "does not ascend below 2 in its row of blocks 0"),
        (with_word(6, 2), "does not ascend below 2 in its row of blocks 1"),
        (with_word(7, 1), "has numbers behind its list"),
    ];
    for ((pair, bytes), words) in cases {
        let error = open(&pair, &bytes).expect_err(words).to_string();
        assert!(error.starts_with("m.safetensors: key 'girih.sparse.w"), "{error}");
        assert!(error.contains(words), "{words}: {error}");
    }
}
