//! The new folder of a converted model: its weights, and copies of the files beside them.

use std::fs;
use std::path::{Path, PathBuf};

use girih_file::{COMPANIONS, ContainerWriter, SAFETENSORS_INDEX, copy_companion, write_companion};
use girih_model::{Embedded, ModelFiles};
use girih_tensor::{Error, ErrorKind, Result};

/// Checks that a result may have this path.
///
/// # Errors
/// When something is there.
pub(super) fn check_is_free(out: &Path) -> Result<()> {
    if out.symlink_metadata().is_err() {
        return Ok(());
    }
    let sentence = "already exists; choose another path, or remove it";
    Err(Error::with_kind(ErrorKind::Refused, sentence).of(out.display()))
}

/// Creates the folder `out` with the files beside the weights of `model`, and finishes `writer`, which has written the new weights.
///
/// # Errors
/// When the folder exists or a file cannot be written; then nothing that this call has made stays.
pub(super) fn finish(model: &ModelFiles, out: &Path, writer: ContainerWriter) -> Result<()> {
    finish_with(model, out, vec![writer], &[])
}

/// As [`finish`], with several files of weights, which get their names in this order, and more new files.
///
/// # Errors
/// As [`finish`].
pub(super) fn finish_with(
    model: &ModelFiles,
    out: &Path,
    mut writers: Vec<ContainerWriter>,
    more: &[NewFile],
) -> Result<()> {
    writers.iter_mut().try_for_each(ContainerWriter::sync)?;
    let mut copies = Copies::create(out)?;
    // The weights get their name last, as an incomplete folder is not a model.
    let copied = match model.embedded() {
        Some(files) => copies.write_embedded(files),
        None => copies.copy_companions(model.folder()),
    };
    let written = copied.and_then(|()| more.iter().try_for_each(|file| copies.write(file)));
    let finished = written.and_then(|()| writers.into_iter().try_for_each(|writer| copies.publish(writer)));
    if finished.is_err() {
        copies.remove();
    }
    finished
}

/// A small file of the new folder: its name and its bytes.
pub(super) struct NewFile {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// What this run has put into its new folder.
struct Copies<'a> {
    out: &'a Path,
    /// The folder itself first.
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Copies<'_> {
    /// Creates the folder.
    fn create(out: &Path) -> Result<Copies<'_>> {
        fs::create_dir(out).map_err(|error| unwritten(out, &error))?;
        Ok(Copies { out, folders: vec![out.to_owned()], files: Vec::new() })
    }

    /// Copies the configuration and the tokenizer of the model in `from`.
    fn copy_companions(&mut self, from: &Path) -> Result<()> {
        for name in COMPANIONS.iter().filter(|name| **name != SAFETENSORS_INDEX) {
            if from.join(name).symlink_metadata().is_err() {
                continue;
            }
            let to = self.out.join(name);
            if let Some(part) = to.parent().filter(|part| !self.folders.iter().any(|made| made == part)) {
                fs::create_dir(part).map_err(|error| unwritten(part, &error))?;
                self.folders.push(part.to_owned());
            }
            if copy_companion(from, name, &to)? {
                self.files.push(to);
            }
        }
        Ok(())
    }

    /// Gives a file of weights its name.
    fn publish(&mut self, writer: ContainerWriter) -> Result<()> {
        let to = writer.path().to_owned();
        writer.finish()?;
        self.files.push(to);
        Ok(())
    }

    /// Writes a file that only this folder has.
    fn write(&mut self, file: &NewFile) -> Result<()> {
        let to = self.out.join(&file.name);
        write_companion(&mut file.bytes.as_slice(), &to)?;
        self.files.push(to);
        Ok(())
    }

    /// Writes the configuration and the tokenizer of a model that is part of the program.
    fn write_embedded(&mut self, files: &Embedded) -> Result<()> {
        for (name, text) in [
            ("config.json", files.config),
            ("generation_config.json", files.generation),
            ("tokenizer.json", files.tokenizer),
        ] {
            let to = self.out.join(name);
            write_companion(&mut text.as_bytes(), &to)?;
            self.files.push(to);
        }
        Ok(())
    }

    /// Removes what this run has made. What others have put there stays. If something cannot be
    /// removed, the error that came before is reported.
    fn remove(self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

fn unwritten(path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("cannot be written: {error}")).of(path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_companion_that_links_out_of_its_folder_is_not_copied() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let (model, out) = (root.join("model"), root.join("out"));
        fs::create_dir_all(model.join("1_Pooling")).unwrap();
        fs::write(model.join("1_Pooling/config.json"), "{}").unwrap();
        fs::write(model.join("config.json"), "{}").unwrap();
        fs::write(root.join("secret"), "secret").unwrap();
        let mut copies = Copies::create(&out).unwrap();
        copies.copy_companions(&model).unwrap();
        assert_eq!(fs::read(out.join("1_Pooling/config.json")).unwrap(), b"{}");
        copies.remove();
        assert!(!out.exists());
        symlink("../secret", model.join("merges.txt")).unwrap();
        let mut copies = Copies::create(&out).unwrap();
        let error = copies.copy_companions(&model).unwrap_err().to_string();
        assert!(error.contains("merges.txt: is a link that leaves the model's folder"), "{error}");
        assert!(out.join("config.json").exists() && !out.join("merges.txt").exists());
    }

    #[test]
    fn what_others_have_put_into_the_new_folder_stays() {
        let temporary = tempfile::tempdir().unwrap();
        let root = temporary.path();
        let (model, out) = (root.join("model"), root.join("out"));
        fs::create_dir_all(&model).unwrap();
        for name in ["config.json", "merges.txt"] {
            fs::write(model.join(name), "{}").unwrap();
        }
        let mut copies = Copies::create(&out).unwrap();
        fs::write(out.join("model.safetensors"), "theirs").unwrap();
        fs::write(out.join("merges.txt"), "theirs").unwrap();
        copies.copy_companions(&model).unwrap_err();
        copies.remove();
        assert!(!out.join("config.json").exists());
        for name in ["model.safetensors", "merges.txt"] {
            assert_eq!(fs::read(out.join(name)).unwrap(), b"theirs", "{name}");
        }
    }
}
