//! Tests of files that try to lead girih elsewhere, to make it wait, or to change under it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, Instant};

use girih_file::{Container, FileLimits, open_regular, read_companion, read_required, read_small};
use rustix::fs::{CWD, FileType, Mode};

use crate::folder::empty_folder;

/// The maximum size of the files that these tests read.
const MAX: u64 = 100;

/// The names of a commit and of a blob.
const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const DIGEST: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Creates a pipe without a writer.
fn pipe(path: &Path) {
    rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

fn error(folder: &Path, name: &str) -> String {
    let begin = Instant::now();
    let error = read_companion(folder, name, MAX).unwrap_err().to_string();
    assert!(begin.elapsed() < Duration::from_secs(1));
    error.replace(&folder.display().to_string(), "F")
}

#[test]
fn a_companion_is_a_small_regular_file() {
    let folder = empty_folder("companions");
    assert_eq!(read_companion(&folder, "config.json", MAX).unwrap(), None);
    let missing = read_required(&folder, "config.json", MAX).unwrap_err().to_string();
    assert!(missing.ends_with("/config.json: cannot be opened: No such file or directory (os error 2)"));
    fs::write(folder.join("config.json"), "{}").unwrap();
    assert_eq!(read_companion(&folder, "config.json", MAX).unwrap().as_deref(), Some(&b"{}"[..]));
    assert_eq!(read_required(&folder, "config.json", MAX).unwrap(), b"{}");
    fs::write(folder.join("long"), [b' '; 101]).unwrap();
    assert_eq!(error(&folder, "long"), "F/long: has 101 bytes; the cap is 100");
    pipe(&folder.join("pipe"));
    fs::create_dir(folder.join("folder")).unwrap();
    for name in ["pipe", "folder"] {
        let sentence = format!("F/{name}: is a pipe, a device or a folder; a regular file is needed");
        assert_eq!(error(&folder, name), sentence);
    }
}

#[test]
fn a_companion_that_links_out_of_its_folder_is_refused() {
    let root = empty_folder("links");
    let folder = root.join("model");
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    fs::write(root.join("outside.txt"), "secret").unwrap();
    fs::write(folder.join("inside.txt"), "text").unwrap();
    let leaves = "is a link that leaves the model's folder; put the file itself there";
    for (name, target) in [
        ("passwd", "/etc/passwd"),
        ("up", "../outside.txt"),
        ("device", "/dev/zero"),
        ("loop", "../model/up"),
    ] {
        symlink(target, folder.join(name)).unwrap();
        assert_eq!(error(&folder, name), format!("F/{name}: {leaves}"));
    }
    symlink("..", folder.join("part")).unwrap();
    assert_eq!(error(&folder, "part/outside.txt"), format!("F/part/outside.txt: {leaves}"));
    symlink("nowhere", folder.join("dangling")).unwrap();
    assert_eq!(error(&folder, "dangling"), "F/dangling: is a link to a file that does not exist");
    // A link that stays in the folder, and a folder that is itself a link.
    symlink("../inside.txt", folder.join("1_Pooling/config.json")).unwrap();
    symlink("model", root.join("alias")).unwrap();
    for folder in [&folder, &root.join("alias")] {
        let read = read_companion(folder, "1_Pooling/config.json", MAX).unwrap();
        assert_eq!(read.as_deref(), Some(&b"text"[..]));
    }
}

/// The layout of a hub's cache, and folders that imitate it.
#[test]
fn a_snapshot_links_to_blobs_of_its_repository_only() {
    let root = empty_folder("hub");
    let (repository, other) = (root.join("models--org--name"), root.join("models--org--other"));
    let snapshot = repository.join("snapshots").join(COMMIT);
    fs::create_dir_all(snapshot.join("1_Pooling")).unwrap();
    for repository in [&repository, &other] {
        fs::create_dir_all(repository.join("blobs")).unwrap();
        fs::write(repository.join("blobs").join(DIGEST), "text").unwrap();
    }
    fs::write(repository.join("blobs/passwords"), "secret").unwrap();
    let read = |name: &str| read_companion(&snapshot, name, MAX).map(Option::unwrap);
    symlink(format!("../../blobs/{DIGEST}"), snapshot.join("good")).unwrap();
    symlink(format!("../../../blobs/{DIGEST}"), snapshot.join("1_Pooling/config.json")).unwrap();
    symlink(snapshot.join("1_Pooling"), root.join("part-of-it")).unwrap();
    assert_eq!(read("good").unwrap(), b"text");
    assert_eq!(read("1_Pooling/config.json").unwrap(), b"text");
    assert_eq!(read_required(&root.join("part-of-it"), "config.json", MAX).unwrap(), b"text");
    let leaves = |name: &str| read(name).unwrap_err().to_string().contains("leaves the model's folder");
    symlink(format!("../../../models--org--other/blobs/{DIGEST}"), snapshot.join("other")).unwrap();
    symlink("../../blobs/passwords", snapshot.join("no-digest")).unwrap();
    assert!(leaves("other") && leaves("no-digest"));
    // A blob that is itself a link.
    let linked = DIGEST.replace('0', "f");
    symlink("/etc/passwd", repository.join("blobs").join(&linked)).unwrap();
    symlink(format!("../../blobs/{linked}"), snapshot.join("linked")).unwrap();
    assert!(leaves("linked"));
    // A folder of blobs that is itself a link.
    let fake = root.join("fake/snapshots").join(COMMIT);
    fs::create_dir_all(&fake).unwrap();
    symlink(other.join("blobs"), root.join("fake/blobs")).unwrap();
    symlink(format!("../../blobs/{DIGEST}"), fake.join("good")).unwrap();
    let error = read_companion(&fake, "good", MAX).unwrap_err().to_string();
    assert!(error.contains("leaves the model's folder"), "{error}");
}

/// Weights are only parsed, so a link to another disk is no danger.
#[test]
fn weights_and_named_files_may_lie_anywhere() {
    let root = empty_folder("anywhere");
    let good = crate::raw::good_safetensors();
    fs::write(root.join("weights"), &good).unwrap();
    fs::create_dir(root.join("model")).unwrap();
    symlink("../weights", root.join("model/model.safetensors")).unwrap();
    assert!(Container::open(&root.join("model"), &FileLimits::DEFAULT).is_ok());
    assert_eq!(read_small(&root.join("model/model.safetensors"), 1 << 20).unwrap(), good);
    pipe(&root.join("pipe"));
    let error = open_regular(&root.join("pipe")).unwrap_err().to_string();
    assert!(error.starts_with("is a pipe, a device or a folder"), "{error}");
}

#[test]
fn a_container_that_is_overwritten_after_it_was_opened_says_so() {
    let path = empty_folder("overwritten").join("model.safetensors");
    let good = crate::raw::good_safetensors();
    fs::write(&path, &good).unwrap();
    let container = Container::open(&path, &FileLimits::DEFAULT).unwrap();
    let identity = container.identity().unwrap();
    assert!(container.check_unchanged().is_ok() && container.sha256().is_ok());
    // The same bytes, so that only the times differ.
    fs::write(&path, &good).unwrap();
    let error = container.check_unchanged().unwrap_err().to_string();
    assert!(error.ends_with("/model.safetensors: was changed while it was read; load it again"), "{error}");
    assert!(container.sha256().is_err());
    let again = Container::open(&path, &FileLimits::DEFAULT).unwrap();
    assert_ne!(again.identity().unwrap(), identity);
}
