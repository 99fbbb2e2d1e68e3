//! The folders below which programs keep files of one kind, as the XDG base directory specification
//! has it.

use std::path::PathBuf;

/// The folder of `variable`, which counts only if it is absolute; else `fallback` in the home folder.
pub fn base_folder(variable: &str, fallback: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let chosen = set(variable).filter(|path| path.is_absolute());
    chosen.or_else(|| Some(set("HOME")?.join(fallback)))
}
