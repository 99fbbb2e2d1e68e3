//! The version of a model in a folder: what tells that its files were replaced, without reading them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use girih_file::{COMPANIONS, SplitName};

/// A text that differs when a model's files or options do: the options, the model's own entry, and each file of a folder,
/// or each part of a GGUF file and each companion beside it, by name, device, inode, size and time of modification. A
/// further name of a file (a hard link) is no change.
pub fn version(path: &Path, options: &str) -> String {
    let files = if path.is_dir() { files_in(path) } else { files_beside(path) };
    let lines = files.iter().filter_map(|file| line_of(file)).collect::<Vec<_>>();
    format!("{}{options}\n{}", line_of(path).unwrap_or_default(), lines.join("\n"))
}

/// The files of a folder by name, with those of the folders that companions may lie in.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let within = COMPANIONS.iter().filter(|name| name.contains('/')).map(|name| folder.join(name));
    let mut files: Vec<PathBuf> = entries.chain(within).collect();
    files.sort();
    files
}

/// The parts of a GGUF file, and what may accompany it.
fn files_beside(file: &Path) -> Vec<PathBuf> {
    let split = file.file_stem().and_then(|stem| stem.to_str()).and_then(SplitName::of);
    let parts = split.into_iter().flat_map(|split| split.names()).map(|part| format!("{part}.gguf"));
    // A part that is missing ends the list, as the model is not whole then.
    let parts = parts.map(|part| file.with_file_name(part)).take_while(|part| part.exists());
    parts.chain(COMPANIONS.iter().map(|name| file.with_file_name(name))).collect()
}

/// What is known of a file; `None` if there is none.
fn line_of(path: &Path) -> Option<String> {
    let status = fs::metadata(path).ok()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (device, inode, size) = (status.dev(), status.ino(), status.len());
    Some(format!("{name}:{device}:{inode}:{size}:{}.{}", status.mtime(), status.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_replaced_changes_the_version_and_a_further_name_does_not() {
        let temporary = tempfile::tempdir().unwrap();
        let base = temporary.path();
        let folder = base.join("tom");
        fs::create_dir_all(folder.join("1_Pooling")).unwrap();
        for file in
            ["tom/config.json", "tom/tokenizer.json", "tom/model.safetensors", "tom/1_Pooling/config.json"]
        {
            fs::write(base.join(file), file).unwrap();
        }
        let first = base.join("a-00001-of-00002.gguf");
        fs::write(&first, "a").unwrap();
        fs::write(base.join("a-00002-of-00002.gguf"), "a").unwrap();
        let both = || (version(&folder, " --kv=f32"), version(&first, ""));
        let mut last = both();
        assert_ne!(last.0, version(&folder, " --kv=f16"));
        fs::hard_link(folder.join("tokenizer.json"), base.join("other")).unwrap();
        fs::hard_link(&first, base.join("b.gguf")).unwrap();
        assert_eq!(both(), last);
        for file in ["tokenizer.json", "model.safetensors", "1_Pooling/config.json", "chat_template.jinja"] {
            fs::write(folder.join(file), "x").unwrap();
            let now = both();
            assert!(now.0 != last.0 && now.1 == last.1, "{file}");
            last = now;
        }
        for file in ["a-00002-of-00002.gguf", "generation_config.json"] {
            fs::write(base.join(file), "xx").unwrap();
            let now = both();
            assert!(now.0 == last.0 && now.1 != last.1, "{file}");
            last = now;
        }
    }
}
