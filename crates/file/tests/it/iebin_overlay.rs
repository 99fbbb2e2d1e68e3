//! Overlays of IEBIN: what their tensors read as, and bad ones with their errors.
//!
//! The overlays are in `tests/bad/iebin_overlay`, the errors in its `sentences.tsv`. `UPDATE=1` rewrites both; review the
//! sentences afterwards.

use std::fs;
use std::path::PathBuf;

use girih_file::{Container, FileLimits};
use girih_tensor::{DType, Random};

use crate::folder::empty_folder;
use crate::iebin::{bytes, check_sentences};

/// The bytes of a large tensor: more than are patched at once.
const LARGE: usize = 200_003;

/// A folder whose tensors `d` and `e` are stored as differences to `b`, and `m`, a matrix of integers, as one to `n`.
/// Returns the bytes of `b`, `d` and `e`, too.
fn folder(name: &str, overlay: Option<&str>) -> (PathBuf, [Vec<u8>; 3]) {
    let folder = empty_folder(name);
    let mut random = Random(7);
    let mut noise = |count: usize| (0..count).map(|_| random.below(256) as u8).collect::<Vec<u8>>();
    let b = noise(LARGE);
    let mut d = b.clone();
    for index in (0..LARGE).step_by(1009).chain([1, 2, 65_535, 65_536, LARGE - 1]) {
        d[index] ^= 0x41;
    }
    let e: Vec<u8> = b.iter().map(|byte| byte ^ 0xff).collect();
    let n = noise(32);
    let m = [&n[..7], &[n[7] ^ 1], &n[8..]].concat();
    let (mut masks, mut exceptions) = (Vec::new(), Vec::new());
    let mut groups = Vec::new();
    for (default, off, targets) in [(1, 0, vec![(&d, 2), (&e, 3)]), (4, LARGE, vec![(&m, 5)])] {
        let own = if default == 1 { &b } else { &n };
        let mut list = Vec::new();
        for (target, index) in targets {
            let set: Vec<bool> = own.iter().zip(target).map(|(a, b)| a != b).collect();
            let mask =
                set.chunks(8).map(|bits| bits.iter().rev().fold(0, |all, bit| all << 1 | u8::from(*bit)));
            let mask: Vec<u8> = mask.collect();
            let differ: Vec<u8> =
                target.iter().zip(&set).filter(|(_, set)| **set).map(|(byte, _)| *byte).collect();
            list.push(format!(
                r#"{{"tensor_index":{index},"nbytes":{},"mask_off":{},"mask_nbytes":{},"exc_off":{},"exc_nbytes":{},"exc_popcount":{}}}"#,
                target.len(), masks.len(), mask.len(), exceptions.len(), differ.len(), differ.len(),
            ));
            masks.extend(mask);
            exceptions.extend(differ);
        }
        groups.push(format!(
            r#"{{"default":{{"tensor_index":{default},"nbytes":{},"default_off":{off}}},"targets":[{}]}}"#,
            own.len(),
            list.join(","),
        ));
    }
    let defaults = [&b[..], &n].concat();
    let own = format!(
        r#"{{"magic":"DUDP","version":1,"files":{{"defaults":"/made/there/model.defaults.bin","masks":"model.masks.bin","exceptions":"model.exceptions.bin"}},"totals":{{"defaults_size":{},"masks_size":{},"exceptions_size":{}}},"groups":[{}]}}"#,
        defaults.len(),
        masks.len(),
        exceptions.len(),
        groups.join(",")
    );
    let large = format!(r#""dtype":"u8","shape":[{LARGE}]"#);
    let quant = r#""dtype":"int4","shape":[2,32],"quant":{"per":"tensor","scale_bin":"half1.bin"}"#;
    let manifest = format!(
        r#"{{"format":"iebin.v1","tensors":[{{"name":"a","dtype":"u8","shape":[4],"offset":0}},{{"name":"b",{large},"nbytes":{LARGE}}},{{"name":"d",{large}}},{{"name":"e",{large}}},{{"name":"n","offset":8,{quant}}},{{"name":"m",{quant}}}]}}"#
    );
    let half = DType::F16.pack_matrix(1, 1, &[0.5]).unwrap();
    let files = [
        ("model.ie.json", manifest.into_bytes()),
        ("model.ie.bin", (0..=255).collect()),
        ("half1.bin", half),
        ("model.defaults.bin", defaults),
        ("model.masks.bin", masks),
        ("model.exceptions.bin", exceptions),
        ("model.dedup.json", overlay.unwrap_or(&own).as_bytes().to_vec()),
    ];
    files.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
    (folder, [b, d, e])
}

#[test]
fn differences_read_as_the_tensors_that_they_were_made_of() {
    let (folder, [b, d, e]) = folder("iebin-overlay", None);
    let container = Container::open(&folder, &FileLimits::DEFAULT).unwrap();
    assert_eq!(bytes(&container, "a"), [0, 1, 2, 3]);
    for (name, expected) in [("b", b), ("d", d), ("e", e)] {
        let info = container.tensor(name).unwrap();
        for step in [1009, 4096, 65_537, LARGE] {
            let mut read = vec![0; LARGE];
            for (piece, start) in read.chunks_mut(step).zip((0..).step_by(step)) {
                container.read(info, start, piece).unwrap();
            }
            assert!(read == expected, "{name} in pieces of {step}");
        }
    }
    // One code of a matrix of integers differs, by one.
    let [n, m] = ["n", "m"].map(|name| bytes(&container, name));
    assert_eq!(container.tensor("m").unwrap().dtype, DType::Q4_0);
    assert_eq!(n.iter().zip(&m).filter(|(a, b)| a != b).count(), 1);
    assert_eq!(container.paths().count(), 7, "all files are parts of the model");
    fs::write(folder.join("model.masks.bin"), [0]).unwrap();
    assert!(container.check_unchanged().unwrap_err().to_string().contains("model.masks.bin: was changed"));
}

/// An overlay with these groups.
fn overlay(groups: &str) -> String {
    let files =
        r#"{"defaults":"model.defaults.bin","masks":"model.masks.bin","exceptions":"model.exceptions.bin"}"#;
    format!(r#"{{"magic":"DUDP","version":1,"files":{files},"groups":[{groups}]}}"#)
}

/// A group of the large default `b` with these targets.
fn group(targets: &str) -> String {
    overlay(&format!(
        r#"{{"default":{{"tensor_index":1,"nbytes":{LARGE},"default_off":0}},"targets":[{targets}]}}"#
    ))
}

/// A target: its index, then its six numbers.
fn target(numbers: [u64; 7]) -> String {
    let [index, bytes, mask, mask_bytes, exceptions, exception_bytes, bits] = numbers;
    format!(
        r#"{{"tensor_index":{index},"nbytes":{bytes},"mask_off":{mask},"mask_nbytes":{mask_bytes},"exc_off":{exceptions},"exc_nbytes":{exception_bytes},"exc_popcount":{bits}}}"#
    )
}

/// The bits of the mask of `d`.
const BITS: u64 = 204;

fn cases() -> Vec<(&'static str, String)> {
    let (bytes, mask) = (LARGE as u64, LARGE.div_ceil(8) as u64);
    let good = [2, bytes, 0, mask, 0, BITS, BITS];
    let with = |place: usize, number: u64| {
        let mut numbers = good;
        numbers[place] = number;
        group(&target(numbers))
    };
    let bits = |exceptions: u64| group(&target([2, bytes, 0, mask, 0, exceptions, exceptions]));
    let lone = |default: &str| overlay(&format!(r#"{{"default":{default},"targets":[]}}"#));
    let second = |numbers: [u64; 7]| group(&format!("{},{}", target(good), target(numbers)));
    let whole = group(&[good, [3, bytes, mask, mask, BITS, bytes, bytes]].map(target).join(","));
    let default_at = |offset: u64| {
        let targets = target([5, 32, 2 * mask, 4, BITS + bytes, 1, 1]);
        let default = format!(r#"{{"tensor_index":4,"nbytes":32,"default_off":{offset}}}"#);
        whole.replace("]}]}", &format!(r#"]}},{{"default":{default},"targets":[{targets}]}}]}}"#))
    };
    vec![
        ("empty", String::new()),
        ("not-json", "groups".to_owned()),
        ("not-object", "[]".to_owned()),
        ("json-then-more", overlay("") + "x"),
        ("magic-other", overlay("").replace("DUDP", "DUPE")),
        ("magic-missing", overlay("").replace(r#""magic":"DUDP","#, "")),
        ("version-2", overlay("").replace(r#""version":1"#, r#""version":2"#)),
        ("key-unknown", overlay("").replace(r#""version":1"#, r#""version":1,"policy":"lossy""#)),
        ("files-missing", r#"{"magic":"DUDP","version":1,"groups":[]}"#.to_owned()),
        ("file-not-there", overlay("").replace("model.masks", "no.masks")),
        ("file-outside", overlay("").replace("model.masks.bin", "../..")),
        ("file-is-no-bin", overlay("").replace("model.masks.bin", "/etc/passwd")),
        ("files-equal", overlay("").replace("model.masks", "model.defaults")),
        (
            "totals-other",
            overlay("").replace(
                r#""groups""#,
                r#""totals":{"defaults_size":1,"masks_size":2,"exceptions_size":3},"groups""#,
            ),
        ),
        ("groups-number", overlay("").replace("[]", "5")),
        ("default-key-unknown", lone(r#"{"tensor_index":1,"nbytes":1,"default_off":0,"dtype":"int4"}"#)),
        ("default-negative", lone(r#"{"tensor_index":-1,"nbytes":1,"default_off":0}"#)),
        ("default-past-end", lone(r#"{"tensor_index":1,"nbytes":200000,"default_off":1000}"#)),
        (
            "default-offset-wraps",
            lone(r#"{"tensor_index":1,"nbytes":16,"default_off":18446744073709551608}"#),
        ),
        ("default-overlaps", default_at(100)),
        ("default-size-of-entry", lone(r#"{"tensor_index":1,"nbytes":16,"default_off":0}"#)),
        ("index-past-end", with(0, 6)),
        ("index-twice", second([2, bytes, mask, mask, BITS, bytes, bytes])),
        ("index-of-default", with(0, 1)),
        ("nbytes-of-default", with(1, bytes - 8)),
        ("mask-past-end", with(2, 1 << 40)),
        ("mask-offset-wraps", with(2, u64::MAX - 8)),
        ("mask-too-short", with(3, mask - 1)),
        ("mask-overlaps", second([3, bytes, mask - 1, mask, BITS, bytes, bytes])),
        ("exceptions-overlap", second([3, bytes, mask, mask, BITS - 1, bytes, bytes])),
        ("exceptions-past-end", with(4, 1 << 20)),
        ("exceptions-not-bits", with(6, BITS + 1)),
        ("bits-fewer", bits(BITS + 1)),
        ("bits-more", bits(BITS - 1)),
        (
            "bits-behind-end",
            overlay(&format!(
                r#"{{"default":{{"tensor_index":1,"nbytes":4,"default_off":0}},"targets":[{}]}}"#,
                target([2, 4, mask, 1, 0, 8, 8])
            )),
        ),
        ("target-missing-key", group(r#"{"tensor_index":2}"#)),
        ("entry-without-bytes", overlay("")),
    ]
}

#[test]
fn every_bad_overlay_is_refused_with_its_sentence() {
    check_sentences("iebin_overlay", &cases(), &|text| folder("iebin-overlay-bad", Some(text)).0);
}
