//! One malformed file per fault, each with its expected error.
//!
//! The files are in `tests/bad/files`, the errors in its `sentences.tsv`.
//! `UPDATE=1` rewrites both; review the sentences afterwards.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use girih_file::{Container, FileLimits, gguf, safetensors};
use girih_tensor::ErrorKind;

use crate::folder::empty_folder;
use crate::raw::{self, Gguf};

/// The time limit of a file of a few kilobytes, regardless of its stated sizes.
const TIME_MAX: Duration = Duration::from_secs(2);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/bad/files").canonicalize().unwrap()
}

#[test]
fn every_bad_file_is_refused_with_its_sentence() {
    let folder = folder();
    let update = std::env::var_os("UPDATE").is_some();
    let mut table = String::from("file\tsentence\n");
    for (name, bytes) in cases() {
        let path = folder.join(name);
        assert!(bytes.len() < 2048, "{name} must be small enough to be committed");
        if update {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        assert_eq!(std::fs::read(&path).unwrap(), bytes, "{name} differs from the bytes that the test makes");
        table += &format!("{name}\t{}\n", sentence(&folder, &path));
    }
    if update {
        std::fs::write(folder.join("sentences.tsv"), &table).unwrap();
    }
    let expected = std::fs::read_to_string(folder.join("sentences.tsv")).unwrap();
    for (found, expected) in table.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(table.lines().count(), expected.lines().count());
}

/// The error of opening the file at `path`, or its folder if the file is an index.
fn sentence(folder: &Path, path: &Path) -> String {
    let opened = if path.extension().is_some_and(|e| e == "json") { path.parent().unwrap() } else { path };
    let start = Instant::now();
    let error = match Container::open(opened, &FileLimits::DEFAULT) {
        Err(error) => error,
        // The file is well formed; the type of one value is wrong.
        Ok(container) => container
            .metadata()
            .require::<&[f32]>("tokenizer.ggml.scores")
            .expect_err(&format!("{} is bad", path.display())),
    };
    assert!(start.elapsed() < TIME_MAX, "{} takes {:?}", path.display(), start.elapsed());
    error.to_string().replace(&format!("{}/", folder.display()), "")
}

fn cases() -> Vec<(&'static str, Vec<u8>)> {
    [safetensors_headers(), safetensors_extents(), indexes(), gguf_starts(), gguf_values(), gguf_tensors()]
        .concat()
}

fn safetensors_headers() -> Vec<(&'static str, Vec<u8>)> {
    let with_prefix = |length: u64, rest: &[u8]| [&length.to_le_bytes(), rest].concat();
    let deep = format!(r#"{{"a":{}"#, "[".repeat(1500));
    let deep_metadata = format!(r#"{{"__metadata__":{}"#, r#"{"a":"#.repeat(300));
    let duplicate = r#"{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},
                        "a":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}"#;
    vec![
        ("st-empty.safetensors", vec![]),
        ("st-length-huge.safetensors", with_prefix(u64::MAX, b"{}")),
        ("st-length-above-cap.safetensors", with_prefix(100_000_001, b"{}")),
        ("st-length-past-end.safetensors", with_prefix(3, b"{}")),
        ("st-no-header.safetensors", with_prefix(0, b"")),
        ("st-not-utf8.safetensors", with_prefix(4, b"{\"\xff\"")),
        ("st-not-json.safetensors", raw::safetensors("tensors: 5", 0)),
        ("st-not-object.safetensors", raw::safetensors("[1, 2]", 0)),
        ("st-json-then-more.safetensors", raw::safetensors("{} {}", 0)),
        ("st-deep.safetensors", raw::safetensors(&deep, 0)),
        ("st-deep-metadata.safetensors", raw::safetensors(&deep_metadata, 0)),
        ("st-duplicate-name.safetensors", raw::safetensors(duplicate, 2)),
        (
            "st-duplicate-field.safetensors",
            raw::safetensors(r#"{"a":{"dtype":"I8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1),
        ),
        (
            "st-duplicate-pair.safetensors",
            raw::safetensors(r#"{"__metadata__":{"format":"pt","format":"np"}}"#, 0),
        ),
        ("st-pair-not-string.safetensors", raw::safetensors(r#"{"__metadata__":{"format":1}}"#, 0)),
        (
            "st-unknown-field.safetensors",
            raw::safetensors(r#"{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1],"strides":[1]}}"#, 1),
        ),
        (
            "st-escape-in-name.safetensors",
            raw::safetensors(r#"{"\u001b[2Ja":{"dtype":"I8","shape":[2],"data_offsets":[0,1]}}"#, 1),
        ),
    ]
}

fn safetensors_extents() -> Vec<(&'static str, Vec<u8>)> {
    let one = |dtype: &str, shape: &str, extent: &str, data: usize| {
        let header = format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{extent}}}}}"#);
        raw::safetensors(&header, data)
    };
    let two = |first: &str, second: &str| {
        let entry = |extent| format!(r#"{{"dtype":"I8","shape":[4],"data_offsets":{extent}}}"#);
        raw::safetensors(&format!(r#"{{"a":{},"b":{}}}"#, entry(first), entry(second)), 8)
    };
    vec![
        ("st-negative-extent.safetensors", one("I8", "[-1]", "[0,1]", 1)),
        ("st-fractional-extent.safetensors", one("I8", "[1.5]", "[0,1]", 1)),
        ("st-shape-overflow.safetensors", one("I8", "[4294967296,4294967296]", "[0,0]", 0)),
        ("st-shape-overflow-hidden.safetensors", one("I8", "[0,4294967296,4294967296]", "[0,0]", 0)),
        ("st-bytes-overflow.safetensors", one("F32", "[4611686018427387904]", "[0,0]", 0)),
        ("st-size-of-rank-5.safetensors", one("I8", "[1,1,1,1,2]", "[0,1]", 1)),
        ("st-rank-5-overflow.safetensors", one("I8", "[0,4294967296,4294967296,1,1]", "[0,0]", 0)),
        ("st-rank-5-past-end.safetensors", one("I8", "[1,1,1,1,4096]", "[0,4096]", 16)),
        ("st-size-of-shape.safetensors", one("F32", "[2]", "[0,4]", 4)),
        ("st-offsets-reversed.safetensors", one("I8", "[4]", "[4,0]", 4)),
        ("st-past-end.safetensors", one("I8", "[4096]", "[0,4096]", 16)),
        ("st-overlap.safetensors", two("[0,4]", "[2,6]")),
        ("st-hole.safetensors", two("[0,4]", "[5,9]")),
        ("st-same-extent.safetensors", two("[0,4]", "[0,4]")),
        ("st-trailing.safetensors", one("I8", "[4]", "[0,4]", 5)),
        ("st-type-unknown.safetensors", one("F99", "[1]", "[0,1]", 1)),
        ("st-size-of-f64.safetensors", one("F64", "[1]", "[0,4]", 4)),
        ("st-size-of-f4.safetensors", one("F4", "[3]", "[0,1]", 1)),
    ]
}

fn indexes() -> Vec<(&'static str, Vec<u8>)> {
    let index = |text: &str| text.as_bytes().to_vec();
    vec![
        ("st-index-not-json/model.safetensors.index.json", index("weights")),
        ("st-index-empty/model.safetensors.index.json", index(r#"{"weight_map":{}}"#)),
        (
            "st-index-outside/model.safetensors.index.json",
            index(r#"{"weight_map":{"a":"../st-trailing.safetensors"}}"#),
        ),
        (
            "st-index-duplicate/model.safetensors.index.json",
            index(r#"{"weight_map":{"a":"1.safetensors","a":"2.safetensors"}}"#),
        ),
        (
            "st-index-no-such-file/model.safetensors.index.json",
            index(r#"{"weight_map":{"a":"1.safetensors"}}"#),
        ),
    ]
}

fn gguf_starts() -> Vec<(&'static str, Vec<u8>)> {
    let big_endian = [b"GGUF".as_slice(), &[0, 0, 0, 3], &[0; 16]].concat();
    vec![
        ("gg-empty.gguf", vec![]),
        ("gg-magic.gguf", b"GGML\x03\0\0\0".to_vec()),
        ("gg-version-1.gguf", Gguf::start(1, 0, 0).0),
        ("gg-version-4.gguf", Gguf::start(4, 0, 0).0),
        ("gg-big-endian.gguf", big_endian),
        ("gg-tensors-2p63.gguf", Gguf::start(3, 1 << 63, 0).0),
        ("gg-tensors-past-end.gguf", Gguf::start(3, 1_000_000, 0).0),
        ("gg-pairs-2p40.gguf", Gguf::start(3, 0, 1 << 40).0),
        ("gg-pairs-past-end.gguf", Gguf::start(3, 0, 100_000).0),
        ("gg-cut-short.gguf", Gguf::start(3, 0, 1).key("general.architecture", 8).u64(5).bytes(b"ll").0),
    ]
}

fn gguf_values() -> Vec<(&'static str, Vec<u8>)> {
    let pair = |kind: u32| Gguf::start(3, 0, 1).key("k", kind);
    let alignment = |kind: u32| Gguf::start(3, 0, 1).key("general.alignment", kind);
    let nested = (0..150).fold(pair(9), |gguf, _| gguf.u32(9).u64(1));
    let scores = Gguf::start(3, 0, 1).key("tokenizer.ggml.scores", 9).u32(0).u64(4);
    vec![
        ("gg-key-2p60.gguf", Gguf::start(3, 0, 1).u64(1 << 60).bytes(&[b'k'; 16]).0),
        ("gg-key-not-utf8.gguf", Gguf::start(3, 0, 1).u64(2).bytes(b"\xc3\x28").bytes(&[0; 16]).0),
        ("gg-key-twice.gguf", Gguf::start(3, 0, 2).key("k", 0).bytes(&[1]).key("k", 0).bytes(&[1]).0),
        ("gg-string-2p60.gguf", pair(8).u64(1 << 60).0),
        ("gg-string-past-end.gguf", pair(8).u64(1000).bytes(b"short").0),
        ("gg-string-not-utf8.gguf", pair(8).u64(2).bytes(b"\xff\xfe").0),
        ("gg-value-type-99.gguf", pair(99).u64(0).0),
        ("gg-bool-2.gguf", pair(7).bytes(&[2]).0),
        ("gg-array-2p61.gguf", pair(9).u32(6).u64(1 << 61).bytes(&[0; 64]).0),
        ("gg-array-strings-2p60.gguf", pair(9).u32(8).u64(1 << 60).bytes(&[0; 64]).0),
        ("gg-array-type-99.gguf", pair(9).u32(99).u64(1).u64(0).0),
        ("gg-array-nested.gguf", nested.0),
        ("gg-align-0.gguf", alignment(4).u32(0).0),
        ("gg-align-3.gguf", alignment(4).u32(3).0),
        ("gg-align-2p31.gguf", alignment(4).u32(1 << 31).0),
        ("gg-align-type.gguf", alignment(10).u64(32).0),
        ("gg-scores-u8.gguf", scores.bytes(&[0; 4]).0),
        ("gg-split-no-type.gguf", Gguf::start(3, 0, 1).key("split.no", 8).string("one").0),
        ("gg-split-lone.gguf", Gguf::start(3, 0, 1).key("split.count", 4).u32(2).0),
        ("gg-split-00003-of-00002.gguf", Gguf::start(3, 0, 0).0),
        ("gg-split-00001-of-99999.gguf", Gguf::start(3, 0, 0).0),
    ]
}

fn gguf_tensors() -> Vec<(&'static str, Vec<u8>)> {
    let one = |extents: &[u64], kind: u32, offset: u64, data: usize| {
        Gguf::start(3, 1, 0).entry("t", extents, kind, offset).data(data)
    };
    let two = |name: &str, offset: u64| {
        Gguf::start(3, 2, 0).entry("t", &[16], 0, 0).entry(name, &[16], 0, offset).data(128)
    };
    // An entry without extents is shorter than ENTRY_MIN_BYTES, so data must follow it.
    let no_extents = Gguf::start(3, 1, 0).entry("t", &[], 0, 0).data(32);
    vec![
        ("gg-rank-0.gguf", no_extents),
        ("gg-rank-9.gguf", one(&[1; 9], 0, 0, 32)),
        ("gg-shape-overflow.gguf", one(&[1 << 32, 1 << 32], 24, 0, 32)),
        ("gg-shape-overflow-hidden.gguf", one(&[1 << 32, 1 << 32, 0], 24, 0, 32)),
        ("gg-bytes-overflow.gguf", one(&[1 << 62], 0, 0, 32)),
        ("gg-row-no-blocks.gguf", one(&[31, 2], 8, 0, 96)),
        ("gg-type-iq2_xxs.gguf", one(&[256], 16, 0, 96)),
        ("gg-type-q8_1.gguf", one(&[32], 9, 0, 96)),
        ("gg-type-999.gguf", one(&[32], 999, 0, 96)),
        ("gg-offset-unaligned.gguf", one(&[4], 0, 16, 64)),
        ("gg-offset-wraps.gguf", one(&[4], 0, u64::MAX - 31, 64)),
        ("gg-offset-past-end.gguf", one(&[4], 0, 1 << 40, 64)),
        ("gg-past-end.gguf", one(&[1 << 20], 0, 0, 64)),
        ("gg-overlap.gguf", two("u", 32)),
        ("gg-same-extent.gguf", two("u", 0)),
        ("gg-name-twice.gguf", two("t", 64)),
    ]
}

#[test]
fn every_unsupported_ggml_type_is_refused_by_name() {
    for (id, name) in [
        (9, "Q8_1"),
        (15, "Q8_K"),
        (16, "IQ2_XXS"),
        (17, "IQ2_XS"),
        (18, "IQ3_XXS"),
        (19, "IQ1_S"),
        (21, "IQ3_S"),
        (22, "IQ2_S"),
        (25, "I16"),
        (28, "F64"),
        (29, "IQ1_M"),
        (34, "TQ1_0"),
        (35, "TQ2_0"),
        (40, "NVFP4"),
    ] {
        let bytes = Gguf::start(3, 1, 0).entry("t", &[256], id, 0).data(4096);
        let error = gguf::parse(&bytes, &FileLimits::DEFAULT).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor 't': stored as {name}, which girih does not")), "{error}");
    }
}

#[test]
fn large_headers_are_read_or_refused_in_time() {
    let start = Instant::now();
    let nested = (0..100_000).fold(Gguf::start(3, 0, 1).key("k", 9), |gguf, _| gguf.u32(9).u64(1));
    let error = gguf::parse(&nested.0, &FileLimits::DEFAULT).unwrap_err();
    assert_eq!(error.to_string(), "key 'k': arrays are nested deeper than the cap of 4");

    let entries: Vec<_> = (0..100_000)
        .map(|i| format!(r#""{i}":{{"dtype":"I8","shape":[1],"data_offsets":[{i},{}]}}"#, i + 1))
        .collect();
    let many = raw::safetensors(&format!("{{{}}}", entries.join(",")), 100_000);
    assert_eq!(safetensors::parse(&many, &FileLimits::DEFAULT).unwrap().tensors.len(), 100_000);
    let few = FileLimits { tensors: 99_999, ..FileLimits::DEFAULT };
    assert!(safetensors::parse(&many, &few).is_err());

    let pairs: Vec<_> = (0..100_001).map(|i| format!(r#""{i}":"""#)).collect();
    let pairs = raw::safetensors(&format!(r#"{{"__metadata__":{{{}}}}}"#, pairs.join(",")), 0);
    let error = safetensors::parse(&pairs, &FileLimits::DEFAULT).unwrap_err().to_string();
    assert!(error.contains("__metadata__ has more than 100000 pairs"), "{error}");

    let empty = Gguf::start(3, 0, 1).key("k", 9).u32(9).u64(200_000);
    let empty = (0..200_000).fold(empty, |gguf, _| gguf.u32(0).u64(0));
    let error = gguf::parse(&empty.0, &FileLimits::DEFAULT).unwrap_err();
    assert_eq!(error.to_string(), "key 'k': has more than 100000 arrays");

    let words = (0..1_000_000)
        .fold(Gguf::start(3, 0, 1).key("k", 9).u32(8).u64(1_000_000), |gguf, i| gguf.string(&i.to_string()));
    let parsed = gguf::parse(&words.0, &FileLimits::DEFAULT).unwrap();
    let strings: &girih_file::Strings = parsed.metadata.require("k").unwrap();
    assert_eq!((strings.len(), strings.get(999_999)), (1_000_000, Some("999999")));
    assert!(start.elapsed() < 5 * TIME_MAX, "{:?}", start.elapsed());
}

#[test]
fn a_header_above_the_cap_is_refused() {
    let small = FileLimits { header_bytes: 64, ..FileLimits::DEFAULT };
    let error = gguf::parse(&raw::good_gguf(), &small).unwrap_err().to_string();
    assert!(error.ends_with("the header exceeds the cap of 64 bytes"), "{error}");
}

#[test]
fn pipes_and_other_non_files_are_refused_without_waiting() {
    let folder = empty_folder("no-file");
    let error = |path: &Path| {
        let error = Container::open(path, &FileLimits::DEFAULT).unwrap_err().to_string();
        error.replace(&folder.display().to_string(), "F")
    };
    assert_eq!(
        error(&folder),
        "F: contains no model.safetensors, no model.safetensors.index.json, no model.ie.json, no model.q4nx and no .gguf file"
    );
    for name in ["pipe.gguf", "model.safetensors"] {
        let pipe = folder.join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
            .unwrap();
        let sentence = format!("F/{name}: is a pipe, a device or a folder; a regular file is needed");
        assert_eq!(error(&pipe), sentence);
    }
    assert_eq!(
        error(&folder),
        "F/model.safetensors: is a pipe, a device or a folder; a regular file is needed"
    );
    assert_eq!(
        error(&folder.join("none")),
        "F/none: cannot be opened: No such file or directory (os error 2)"
    );
    let missing = Container::open(&folder.join("none"), &FileLimits::DEFAULT).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    std::fs::write(folder.join("model.bin"), b"").unwrap();
    assert_eq!(
        error(&folder.join("model.bin")),
        "F/model.bin: is neither a folder nor a .safetensors, .gguf, .q4nx or .iebs file"
    );
}

#[test]
fn a_long_name_is_refused_by_its_beginning() {
    let long = "k".repeat(70_000);
    let (gguf_key, tensor) = (
        Gguf::start(3, 0, 1).key(&long, 4).u32(1).0,
        Gguf::start(3, 1, 0).entry(&long, &[32], 0, 0).data(128),
    );
    let header = |name: &str| format!(r#"{{"{name}":{{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}}}"#);
    let pair = format!(r#"{{"__metadata__":{{"{long}":"1"}}}}"#);
    let limits = &FileLimits::DEFAULT;
    let errors = [
        gguf::parse(&gguf_key, limits).unwrap_err(),
        gguf::parse(&tensor, limits).unwrap_err(),
        safetensors::parse(&raw::safetensors(&header(&long), 1), limits).unwrap_err(),
        safetensors::parse(&raw::safetensors(&pair, 0), limits).unwrap_err(),
    ];
    for error in errors.map(|error| error.to_string()) {
        let name = format!("the name '{}…' has 70000 bytes; the cap is 1024", "k".repeat(80));
        assert!(error.contains(&name), "{error}");
        assert!(error.len() < 400, "{error}");
    }
    let longest = "k".repeat(1024);
    safetensors::parse(&raw::safetensors(&header(&longest), 1), limits).unwrap();
    gguf::parse(&Gguf::start(3, 0, 1).key(&longest, 4).u32(1).data(0), limits).unwrap();
}

/// Its weights would be read although the index knows nothing of them.
#[test]
fn a_tensor_that_the_index_does_not_list_is_refused() {
    let folder = empty_folder("unlisted");
    let header = r#"{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},
                     "b":{"dtype":"I8","shape":[1],"data_offsets":[1,2]}}"#;
    std::fs::write(folder.join("1.safetensors"), raw::safetensors(header, 2)).unwrap();
    let index = folder.join("model.safetensors.index.json");
    std::fs::write(&index, r#"{"weight_map":{"a":"1.safetensors"}}"#).unwrap();
    let error = Container::open(&folder, &FileLimits::DEFAULT).unwrap_err().to_string();
    assert!(
        error.ends_with("1.safetensors: tensor 'b' is not listed in the index; pass the model's own index")
    );
    std::fs::write(&index, r#"{"weight_map":{"a":"1.safetensors","b":"1.safetensors"}}"#).unwrap();
    Container::open(&folder, &FileLimits::DEFAULT).unwrap();
}

/// Parsers repeat what they cannot read.
#[test]
fn errors_repeat_at_most_200_characters_of_a_file() {
    let long = "x".repeat(70_000);
    let entry = |dtype: &str, key: &str| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,1],"{key}":1}}}}"#)
    };
    let folder = empty_folder("long-index");
    let index = |text: String| {
        std::fs::write(folder.join("model.safetensors.index.json"), text).unwrap();
        Container::open(&folder, &FileLimits::DEFAULT).unwrap_err()
    };
    let limits = &FileLimits::DEFAULT;
    let errors = [
        safetensors::parse(&raw::safetensors(&entry(&long, "strides"), 1), limits).unwrap_err(),
        safetensors::parse(&raw::safetensors(&entry("I8", &long), 1), limits).unwrap_err(),
        safetensors::parse(&raw::safetensors(&format!("\"{long}\""), 1), limits).unwrap_err(),
        index(format!(r#"{{"weight_map":"{long}"}}"#)),
        index(format!(r#"{{"weight_map":{{"a":"{long}"}}}}"#)),
        index(format!(r#"{{"weight_map":{{"{long}":"1.safetensors"}}}}"#)),
    ];
    for error in errors.map(|error| error.to_string()) {
        let repeated = error.chars().filter(|c| *c == 'x').count();
        assert!((1..=200).contains(&repeated) && error.chars().count() < 500, "{error}");
    }
}
