//! Tests of folders that others can write to.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use girih_file::PrivateFolder;
use rustix::fs::{CWD, FileType, Mode};

use crate::folder::empty_folder;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_private_folder_and_its_files_are_created_for_one_user() {
    let path = empty_folder("private").join("a/b");
    assert!(PrivateFolder::open(&path).unwrap().is_none());
    let folder = PrivateFolder::create(&path).unwrap();
    folder.new_file("one").unwrap().write_all(b"1").unwrap();
    assert!(folder.new_file("one").is_err(), "it exists");
    folder.append("lines").unwrap().write_all(b"2").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join("one")), mode(&path.join("lines"))), (0o700, 0o600, 0o600));
    folder.rename("one", "two").unwrap();
    folder.sync().unwrap();
    assert!(folder.file("one").unwrap().is_none() && folder.file("two").unwrap().is_some());
    folder.remove("two").unwrap();
    folder.remove("two").unwrap();
    assert!(folder.file("two").unwrap().is_none());
}

#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    let path = empty_folder("shared");
    set_mode(&path, 0o777);
    for opened in [PrivateFolder::open(&path).map(|_| ()), PrivateFolder::create(&path).map(|_| ())] {
        let error = opened.unwrap_err().to_string();
        assert!(error.ends_with("has the mode 0777, so others can write to it: run chmod go-w on it"));
    }
    set_mode(&path, 0o755);
    assert!(PrivateFolder::open(&path).unwrap().is_some());
    assert!(PrivateFolder::open(&path.join("none")).unwrap().is_none());
}

#[test]
fn files_that_others_could_have_written_are_refused_by_name() {
    let path = empty_folder("planted");
    set_mode(&path, 0o700);
    let folder = PrivateFolder::open(&path).unwrap().unwrap();
    let error = |name: &str| folder.file(name).unwrap_err().to_string();
    fs::write(path.join("good"), "1").unwrap();
    for mode in [0o666, 0o620, 0o602] {
        set_mode(&path.join("good"), mode);
        let sentence =
            format!("good: has the mode {mode:04o}, so others can write to it: run chmod go-w on it");
        assert_eq!(error("good"), sentence);
    }
    set_mode(&path.join("good"), 0o400);
    assert!(folder.file("good").unwrap().is_some());
    symlink("good", path.join("link")).unwrap();
    assert_eq!(error("link"), "link: is a link; a regular file is needed: remove it");
    assert!(folder.append("link").is_err());
    rustix::fs::mknodat(CWD, path.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    assert_eq!(error("pipe"), "pipe: is not a regular file: remove it");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(path.join("good"), Some(1), None).unwrap();
        assert_eq!(error("good"), "good: belongs to user 1; one that belongs to user 0 is needed");
        std::os::unix::fs::chown(&path, Some(1), None).unwrap();
        assert!(PrivateFolder::open(&path).is_err());
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
}
