//! Finds the library of OpenVINO, where packages put it.

use std::fs;
use std::path::{Path, PathBuf};

use girih_tensor::{Error, ErrorKind, Result};

use crate::ffi::OpenVino;

/// How the file name of the library begins; the version follows.
const NAME: &str = "libopenvino_c.";

/// The names by which the system's loader may know it.
const LOADED: [&str; 2] = ["libopenvino_c.so", "libopenvino_c.dylib"];

/// Folders of the library itself.
const FOLDERS: [&str; 6] = [
    "/opt/intel/openvino/runtime/lib/intel64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/local/lib",
    "/opt/homebrew/lib",
];

/// Folders with one folder for each version of Python.
const PYTHONS: [&str; 3] = ["/usr/local/lib", "/usr/lib", "/opt/conda/lib"];

/// Folders of packages within that of a Python.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// Opens the library that an option names, or the one of this machine.
///
/// # Errors
/// When there is none, or it is not an OpenVINO that the backend knows.
pub(crate) fn open(option: Option<&str>) -> Result<OpenVino> {
    if let Some(path) = option {
        return OpenVino::open(&named(Path::new(path))?);
    }
    let loaded = LOADED.iter().find_map(|name| OpenVino::open(Path::new(name)).ok());
    if let Some(openvino) = loaded {
        return Ok(openvino);
    }
    let pythons = PYTHONS.iter().flat_map(|folder| folders(Path::new(folder), "python3"));
    let packages = pythons.flat_map(|python| PACKAGES.map(|name| python.join(name).join("openvino/libs")));
    let all = FOLDERS.iter().map(PathBuf::from).chain(packages);
    match all.filter_map(|folder| newest(&folder)).next() {
        Some(path) => OpenVino::open(&path),
        None => Err(Error::with_kind(
            ErrorKind::NotFound,
            "the library of OpenVINO is not found: run `pip install openvino`, and name its folder openvino/libs with \
             --openvino-lib",
        )),
    }
}

/// The library that a path names: a file, or one in a folder.
fn named(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    newest(path).ok_or_else(|| {
        let sentence =
            format!("{} has no file {NAME}*: name the folder of OpenVINO's libraries", path.display());
        Error::with_kind(ErrorKind::NotFound, sentence)
    })
}

/// The last file of the library in a folder, by name.
fn newest(folder: &Path) -> Option<PathBuf> {
    entries(folder, NAME).into_iter().next_back()
}

/// The folders within a folder whose names begin so.
fn folders(folder: &Path, start: &str) -> Vec<PathBuf> {
    entries(folder, start).into_iter().filter(|path| path.is_dir()).collect()
}

/// What lies in a folder under names that begin so, in their order; nothing if it cannot be read.
fn entries(folder: &Path, start: &str) -> Vec<PathBuf> {
    let Ok(all) = fs::read_dir(folder) else { return Vec::new() };
    let matches = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(start));
    let mut found: Vec<PathBuf> = all
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(matches))
        .collect();
    found.sort();
    found
}
