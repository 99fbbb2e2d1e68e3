//! Folders of IEBIN: what their tensors read as, and bad manifests with their errors.
//!
//! The manifests are in `tests/bad/iebin`, the errors in its `sentences.tsv`. `UPDATE=1` rewrites both; review the sentences
//! afterwards.

use std::fs;
use std::path::{Path, PathBuf};

use girih_file::{Container, ContainerKind, FileLimits};
use girih_tensor::{DType, Shape};

use crate::folder::empty_folder;
use crate::raw;

/// A manifest of these entries, without braces.
fn manifest(entries: &[&str]) -> String {
    let entries: Vec<String> = entries.iter().map(|entry| format!("{{{entry}}}")).collect();
    format!(r#"{{"format":"iebin.v1","version":1,"bin":"model.ie.bin","tensors":[{}]}}"#, entries.join(","))
}

/// A folder with this manifest and the files that the manifests of these tests name.
fn folder(name: &str, manifest: &str) -> PathBuf {
    let folder = empty_folder(name);
    let bin: Vec<u8> = (0..=255).collect();
    let half = |scales: &[f32]| DType::F16.pack_matrix(1, scales.len(), scales).unwrap();
    let single = |scales: &[f32]| DType::F32.pack_matrix(1, scales.len(), scales).unwrap();
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let files = [
        ("model.ie.json", manifest.as_bytes().to_vec()),
        ("model.ie.bin", bin),
        ("half1.bin", half(&[0.5])),
        ("half2.bin", half(&[0.5, -2.0])),
        ("single2.bin", single(&[0.5, 0.1])),
        ("nan2.bin", half(&[0.5, f32::NAN])),
        ("inf1.bin", single(&[f32::INFINITY])),
        ("w.safetensors", raw::safetensors(header, 8)),
        ("no.safetensors", vec![1; 16]),
    ];
    files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
    fs::create_dir(folder.join("folder.bin")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", folder.join("device.bin")).unwrap();
    folder
}

fn open(name: &str, manifest: &str) -> girih_tensor::Result<Container> {
    Container::open(&folder(name, manifest), &FileLimits::DEFAULT)
}

/// The bytes of a tensor, which are the same in any pieces.
pub fn bytes(container: &Container, name: &str) -> Vec<u8> {
    let info = container.tensor(name).unwrap();
    let mut whole = vec![0; info.bytes as usize];
    container.read(info, 0, &mut whole).unwrap();
    for step in [1, 7, 64] {
        let mut pieces = vec![0; whole.len()];
        for (piece, start) in pieces.chunks_mut(step).zip((0..).step_by(step)) {
            container.read(info, start, piece).unwrap();
        }
        assert_eq!(pieces, whole, "{name} in pieces of {step}");
    }
    whole
}

/// The values of a tensor.
fn values(container: &Container, name: &str) -> Vec<f32> {
    let info = container.tensor(name).unwrap();
    let mut values = vec![0.0; info.shape.elements()];
    info.dtype.unpack(&bytes(container, name), &mut values);
    values
}

const INT4: &str = r#""name":"m","dtype":"int4","shape":[2,32],"offset":16,"nbytes":32"#;

fn with_quant(entry: &str, quant: &str) -> String {
    format!(r#"{entry},"quant":{{{quant}}}"#)
}

#[test]
fn tensors_lie_where_the_manifest_says() {
    let both = manifest(&[
        r#""name":"a","dtype":"FP32","shape":[2,2],"offset":64,"nbytes":16"#,
        r#""name":"b","dtype":"bf16","shape":[8],"offset":64,"nbytes":16"#,
        r#""name":"w","dtype":"f32","shape":[2],"shard":"/elsewhere/w.safetensors","shard_data_offset":62"#,
        r#""name":"x","dtype":"u8","shape":[4],"file":"model.ie.bin","file_data_offset":200"#,
        r#""name":"s","dtype":"i64","shape":[],"offset":0,"nbytes":8"#,
        r#""name":"f","dtype":"F8_E4M3","shape":[5],"offset":240,"nbytes":5"#,
        r#""name":"r","dtype":"u8","shape":[1,1,1,1,1,1],"offset":250,"nbytes":1"#,
    ]);
    let container = open("iebin-places", &both).unwrap();
    assert_eq!(container.kind(), ContainerKind::Iebin);
    assert_eq!(bytes(&container, "a"), (64..80).collect::<Vec<u8>>());
    assert_eq!(bytes(&container, "b"), bytes(&container, "a"), "two tensors may share their bytes");
    assert_eq!(values(&container, "w"), [0.0, 0.0]);
    assert_eq!(bytes(&container, "x"), [200, 201, 202, 203]);
    assert_eq!(container.tensor("s").unwrap().shape, Shape::vector(1));
    for (name, words) in [("f", "F8_E4M3"), ("r", "has 6 dimensions")] {
        let error = container.tensor(name).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let names: Vec<&str> =
        container.paths().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["model.ie.json", "model.ie.bin", "w.safetensors"]);
}

#[test]
fn a_changed_manifest_is_a_changed_model() {
    let text = manifest(&[r#""name":"a","dtype":"u8","shape":[2],"offset":64,"nbytes":2"#]);
    let folder = folder("iebin-changed", &text);
    let container = Container::open(&folder, &FileLimits::DEFAULT).unwrap();
    container.check_unchanged().unwrap();
    fs::write(folder.join("model.ie.json"), text.replace("64", "65")).unwrap();
    let error = container.check_unchanged().unwrap_err().to_string();
    assert!(error.contains("model.ie.json: was changed"), "{error}");
}

/// The codes of the matrix at byte 16 of the file whose byte i is i, with eight subtracted.
fn codes_of_four_bits() -> Vec<f32> {
    (16u8..48).flat_map(|byte| [byte & 15, byte >> 4]).map(|code| f32::from(code) - 8.0).collect()
}

#[test]
fn integers_of_four_bits_are_blocks_of_q4_0() {
    let quant = r#""per":"row","scale_bin":"C:\\there\\half2.bin""#;
    let container = open("iebin-int4", &manifest(&[&with_quant(INT4, quant)])).unwrap();
    let expected: Vec<f32> = codes_of_four_bits()
        .iter()
        .enumerate()
        .map(|(i, code)| code * if i < 32 { 0.5 } else { -2.0 })
        .collect();
    assert_eq!(container.tensor("m").unwrap().dtype, DType::Q4_0);
    assert_eq!(values(&container, "m"), expected);
    let quant = r#""per":"tensor","scale_bin":"half1.bin","scale_dtype":"FP16","symmetric":true"#;
    let container = open("iebin-int4", &manifest(&[&with_quant(INT4, quant)])).unwrap();
    let expected: Vec<f32> = codes_of_four_bits().iter().map(|code| code * 0.5).collect();
    assert_eq!(values(&container, "m"), expected);
}

#[test]
fn a_scale_that_is_no_half_is_not_rounded() {
    let quant = r#""per":"row","scale_bin":"single2.bin","scale_dtype":"fp32""#;
    let container = open("iebin-single", &manifest(&[&with_quant(INT4, quant)])).unwrap();
    let expected: Vec<f32> = codes_of_four_bits()
        .iter()
        .enumerate()
        .map(|(i, code)| code * if i < 32 { 0.5 } else { 0.1 })
        .collect();
    assert_eq!(container.tensor("m").unwrap().dtype, DType::F32);
    assert_eq!(values(&container, "m"), expected);
}

#[test]
fn odd_rows_end_with_half_a_byte() {
    let entry = r#""name":"m","dtype":"INT4","shape":[2,3],"offset":16,"nbytes":4"#;
    let quant = r#""per":"row","scale_bin":"half2.bin""#;
    let container = open("iebin-odd", &manifest(&[&with_quant(entry, quant)])).unwrap();
    // Bytes 16 and 17, then 18 and 19: codes 0 1 1, then 2 1 3.
    assert_eq!(values(&container, "m"), [-4.0, -3.5, -3.5, 12.0, 14.0, 10.0]);
}

#[test]
fn integers_of_eight_bits_are_blocks_of_q8_0() {
    let quant = r#""per":"row","scale_bin":"half2.bin""#;
    for (columns, dtype) in [(32, DType::Q8_0), (33, DType::F32)] {
        let bytes = 2 * columns;
        let entry =
            format!(r#""name":"m","dtype":"int8","shape":[2,{columns}],"offset":120,"nbytes":{bytes}"#);
        let container = open("iebin-int8", &manifest(&[&with_quant(&entry, quant)])).unwrap();
        let expected = (120..120 + bytes).map(|byte: usize| {
            let scale = if byte - 120 < columns { 0.5 } else { -2.0 };
            f32::from((byte as u8).cast_signed()) * scale
        });
        assert_eq!(container.tensor("m").unwrap().dtype, dtype);
        assert_eq!(values(&container, "m"), expected.collect::<Vec<f32>>());
    }
}

/// Bad manifests: of the text, of a tensor's place, and of scales.
fn cases() -> Vec<(&'static str, String)> {
    [texts(), entries(), places(), matrices()].concat()
}

fn texts() -> Vec<(&'static str, String)> {
    let entry = r#"{"name":"a","dtype":"u8","shape":[2],"offset":0,"nbytes":2}"#;
    let with = |more: &str| format!(r#"{{{more},"tensors":[{entry}]}}"#);
    vec![
        ("empty", String::new()),
        ("not-json", "tensors".to_owned()),
        ("not-object", "[1, 2]".to_owned()),
        ("json-then-more", format!("{{\"tensors\":[{entry}]}} {{}}")),
        ("deep", "[".repeat(1500)),
        ("deep-source", with(&format!(r#""source":{}"#, "[".repeat(300)))),
        ("no-tensors", r#"{"format":"iebin.v1"}"#.to_owned()),
        ("tensors-empty", manifest(&[])),
        ("tensors-object", r#"{"tensors":{"a":1}}"#.to_owned()),
        ("format-other", with(r#""format":"iebin.v2""#)),
        ("format-number", with(r#""format":1"#)),
        ("version-3", with(r#""version":3"#)),
        ("version-negative", with(r#""version":-1"#)),
        ("key-unknown", with(r#""layout":"blocked_k""#)),
        ("key-twice", with(r#""bin":"model.ie.bin","bin":"other.bin""#)),
        ("bin-missing", with(r#""bin":"missing.bin""#)),
        ("bin-parent", with(r#""bin":"..""#)),
        ("bin-folder", with(r#""bin":"folder.bin""#)),
        ("bin-device", with(r#""bin":"device.bin""#)),
        ("bin-ending", with(r#""bin":"/etc/passwd""#)),
        ("bin-only-ending", with(r#""bin":"x/.bin""#)),
        ("bin-nul", with(r#""bin":"a\u0000.bin""#)),
        ("bin-escape", with(r#""bin":"\u001b[2J""#)),
    ]
}

fn entries() -> Vec<(&'static str, String)> {
    let one = |entry: &str| manifest(&[entry]);
    let twice = r#""name":"a","dtype":"u8","shape":[2],"offset":0,"nbytes":2"#;
    let long = format!(r#""name":"{}","dtype":"u8","shape":[2],"offset":0"#, "n".repeat(1025));
    vec![
        ("name-missing", one(r#""dtype":"u8","shape":[2],"offset":0"#)),
        ("name-twice", manifest(&[twice, twice])),
        ("name-long", one(&long)),
        ("name-number", one(r#""name":1,"dtype":"u8","shape":[2],"offset":0"#)),
        ("dtype-missing", one(r#""name":"a","shape":[2],"offset":0"#)),
        ("dtype-unknown-size", one(r#""name":"a","dtype":"f99","shape":[2],"offset":0"#)),
        ("entry-key-unknown", one(r#""name":"a","dtype":"u8","shape":[2],"offset":0,"strides":[1]"#)),
        ("shape-missing", one(r#""name":"a","dtype":"u8","offset":0"#)),
        ("shape-negative", one(r#""name":"a","dtype":"u8","shape":[-1],"offset":0"#)),
        ("shape-fraction", one(r#""name":"a","dtype":"u8","shape":[1.5],"offset":0"#)),
        ("shape-overflow", one(r#""name":"a","dtype":"u8","shape":[4294967296,4294967296],"offset":0"#)),
        (
            "shape-overflow-hidden",
            one(r#""name":"a","dtype":"u8","shape":[0,4294967296,4294967296],"offset":0"#),
        ),
        ("bytes-overflow", one(r#""name":"a","dtype":"f32","shape":[4611686018427387904],"offset":0"#)),
        ("nbytes-wrong", one(r#""name":"a","dtype":"f32","shape":[2],"offset":0,"nbytes":4"#)),
        ("quant-of-floats", one(&with_quant(twice, r#""per":"row","scale_bin":"half2.bin""#))),
    ]
}

fn places() -> Vec<(&'static str, String)> {
    let of = |more: &str| manifest(&[&format!(r#""name":"w","dtype":"f32","shape":[2],{more}"#)]);
    let two = |first: &str, second: &str| {
        let entry = |name: &str, place: &str| format!(r#""name":"{name}","dtype":"u8","shape":[8],{place}"#);
        manifest(&[&entry("a", first), &entry("b", second)])
    };
    vec![
        ("offset-missing", of(r#""nbytes":8"#)),
        ("offset-past-end", of(r#""offset":249"#)),
        ("offset-wraps", of(r#""offset":18446744073709551612"#)),
        ("overlap", two(r#""offset":0"#, r#""offset":4"#)),
        ("overlap-in-two-names", two(r#""offset":0"#, r#""file":"x/model.ie.bin","file_data_offset":7"#)),
        ("file-without-offset", of(r#""file":"w.safetensors""#)),
        ("offset-without-file", of(r#""file_data_offset":8"#)),
        ("file-and-offset", of(r#""file":"model.ie.bin","file_data_offset":8,"offset":0"#)),
        ("file-and-shard", of(r#""file":"a.bin","shard":"b.bin","file_data_offset":8"#)),
        ("two-file-offsets", of(r#""file":"model.ie.bin","file_data_offset":8,"shard_data_offset":9"#)),
        ("file-outside", of(r#""file":"../../w.bin","file_data_offset":0"#)),
        ("file-of-no-model", of(r#""file":"config.json","file_data_offset":0"#)),
        ("file-is-no-safetensors", of(r#""file":"no.safetensors","file_data_offset":0"#)),
        ("offset-from-the-data", of(r#""file":"w.safetensors","file_data_offset":0"#)),
        (
            "type-of-header",
            manifest(&[
                r#""name":"w","dtype":"i64","shape":[1],"file":"w.safetensors","file_data_offset":62"#,
            ]),
        ),
        (
            "not-in-header",
            manifest(&[
                r#""name":"v","dtype":"f32","shape":[2],"file":"w.safetensors","file_data_offset":62"#,
            ]),
        ),
    ]
}

fn matrices() -> Vec<(&'static str, String)> {
    let of = |quant: &str| manifest(&[&with_quant(INT4, quant)]);
    let row = |more: &str| of(&format!(r#""per":"row","scale_bin":"half2.bin"{more}"#));
    let int8 = r#""name":"m","dtype":"int8","shape":[2,32],"offset":0"#;
    let shaped = |shape: &str| {
        let entry = format!(r#""name":"m","dtype":"int4","shape":{shape},"offset":0"#);
        manifest(&[&with_quant(&entry, r#""per":"tensor","scale_bin":"half1.bin""#)])
    };
    vec![
        ("int4-without-quant", manifest(&[INT4])),
        ("int8-without-quant", manifest(&[int8])),
        ("per-missing", of(r#""scale_bin":"half2.bin""#)),
        ("per-group", of(r#""per":"group","scale_bin":"half2.bin""#)),
        ("scales-missing", of(r#""per":"row""#)),
        ("scales-not-there", of(r#""per":"row","scale_bin":"scales.bin""#)),
        ("scales-of-other-ending", of(r#""per":"row","scale_bin":"half2.npy""#)),
        ("scales-of-tensor", of(r#""per":"row","scale_bin":"half1.bin""#)),
        ("scales-of-rows", of(r#""per":"tensor","scale_bin":"half2.bin""#)),
        ("scales-other-size", row(r#","scale_dtype":"fp32""#)),
        ("scales-bf16", row(r#","scale_dtype":"bf16""#)),
        ("scales-nan", of(r#""per":"row","scale_bin":"nan2.bin""#)),
        ("scales-inf", of(r#""per":"tensor","scale_bin":"inf1.bin","scale_dtype":"fp32""#)),
        ("zero-point", row(r#","zp":8"#)),
        ("not-symmetric", row(r#","symmetric":false"#)),
        ("pack-other", row(r#","pack":"nibble_hilo""#)),
        (
            "int8-packed",
            manifest(&[&with_quant(int8, r#""per":"row","scale_bin":"half2.bin","pack":"nibble_lohi""#)]),
        ),
        ("quant-key-unknown", row(r#","group":128"#)),
        (
            "int4-nbytes",
            manifest(&[&with_quant(
                &INT4.replace("\"nbytes\":32", "\"nbytes\":64"),
                r#""per":"row","scale_bin":"half2.bin""#,
            )]),
        ),
        ("int4-rank-6", shaped("[1,1,1,1,1,2]")),
        ("int4-no-values", shaped("[0,32]")),
        ("int4-past-end", shaped("[1024,32]")),
        ("int4-overflow", shaped("[4611686018427387904,4]")),
        ("int4-row-above-cap", shaped("[1,33554432]")),
        ("scales-in-two-names", manifest(&[&with_quant(INT4, r#""per":"row","scale_bin":"model.ie.bin""#)])),
    ]
}

#[test]
fn every_bad_manifest_is_refused_with_its_sentence() {
    assert!(cases().len() >= 60);
    check_sentences("iebin", &cases(), &|text| folder("iebin-bad", text));
}

/// Checks the errors of opening the folders of some texts, which are committed in `tests/bad/KIND`.
pub fn check_sentences(kind: &str, cases: &[(&str, String)], folder: &dyn Fn(&str) -> PathBuf) {
    let bad = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bad").join(kind);
    let update = std::env::var_os("UPDATE").is_some();
    let mut table = String::from("manifest\tsentence\n");
    for (name, text) in cases {
        let path = bad.join(format!("{name}.json"));
        if update {
            fs::create_dir_all(&bad).unwrap();
            fs::write(&path, text).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), *text, "{name} differs from what the test makes");
        let folder = folder(text);
        let error = Container::open(&folder, &FileLimits::DEFAULT).expect_err(name).to_string();
        table += &format!("{name}\t{}\n", error.replace(&format!("{}/", folder.display()), ""));
    }
    if update {
        fs::write(bad.join("sentences.tsv"), &table).unwrap();
    }
    let expected = fs::read_to_string(bad.join("sentences.tsv")).unwrap();
    for (found, expected) in table.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(table.lines().count(), expected.lines().count());
}
