//! Writes a copy of a model's folder with Q4NX matrices.
//!
//! Tensors keep their names in safetensors. Matrices of linear layers become
//! Q4NX, the table of embeddings too if it is also the head; all other tensors are
//! copied unchanged (`file/q4nx.rs` describes the storage). Configuration and
//! tokenizer are copied.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use girih_file::{
    COMPANIONS, ContainerKind, ContainerWriter, MetadataValue, NewTensor, SAFETENSORS_INDEX, copy_companion,
    q4nx, write_companion,
};
use girih_model::{Embedded, ModelFiles};
use girih_tensor::{DType, Error, Result};

use super::options::ConvertOptions;
use super::plan::{Chooser, FileLayout, Planned, check_whole, weights};
use super::report::{ConvertProgress, ConvertReport};
use super::stream;

/// The matrix formats of a Q4NX folder.
const Q4NX_DTYPES: [DType; 4] = [DType::Q4NX, DType::F32, DType::F16, DType::BF16];

pub(super) fn write(
    model: &ModelFiles,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    if model.weights.container().kind() != ContainerKind::Safetensors {
        return Err(Error::new(
            "Q4NX can only be made from safetensors models; convert the original of this GGUF",
        ));
    }
    let planned = plan(model, options)?;
    let tensors = planned.iter().map(new_tensor).collect::<Result<Vec<_>>>()?;
    // The folder is created when the weights are complete, so that an interruption leaves nothing.
    let path = out.join("model.safetensors");
    let mut writer =
        ContainerWriter::safetensors_for_new_folder(&path, &metadata(model, &planned), &tensors)?;
    let ranks: HashMap<&str, usize> = writer.order().zip(0..).collect();
    let mut ordered = planned.clone();
    ordered.sort_by_key(|tensor| ranks[tensor.name.as_str()]);
    let report = stream::write_all(&mut writer, &model.weights, &ordered, options, progress)?;
    writer.sync()?;
    let mut copies = Copies::create(out)?;
    // The weights get their name last, as an incomplete folder is not a model.
    let copied = match model.embedded() {
        Some(files) => copies.write_embedded(files),
        None => copies.copy_companions(model.folder()),
    };
    let finished = copied.and_then(|()| writer.finish());
    if finished.is_err() {
        copies.remove();
    }
    finished.map(|()| ConvertReport { weights: path, ..report })
}

/// What this run has put into its new folder.
pub(super) struct Copies<'a> {
    out: &'a Path,
    /// The folder itself first.
    folders: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Copies<'_> {
    /// Creates the folder.
    pub fn create(out: &Path) -> Result<Copies<'_>> {
        fs::create_dir(out).map_err(|error| unwritten(out, &error))?;
        Ok(Copies { out, folders: vec![out.to_owned()], files: Vec::new() })
    }

    /// Copies the configuration and the tokenizer of the model in `from`.
    pub fn copy_companions(&mut self, from: &Path) -> Result<()> {
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

    /// Writes the configuration and the tokenizer of a model that is part of the program.
    pub fn write_embedded(&mut self, files: &Embedded) -> Result<()> {
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
    pub fn remove(self) {
        for file in &self.files {
            let _ = fs::remove_file(file);
        }
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Plans every tensor of the model and its format.
fn plan(model: &ModelFiles, options: &ConvertOptions) -> Result<Vec<Planned>> {
    let mut chooser = Chooser::new(options.recipe.as_ref(), &Q4NX_DTYPES);
    let is_tied = model.facts.head.as_ref().is_some_and(|head| head.tied);
    let mut planned = Vec::new();
    for (weight, entry, _) in weights(model.arch(), &model.weights, model.facts.layers.len()) {
        check_whole(&weight, entry.hf.as_deref().unwrap_or_default(), entry.hf_part)?;
        let Some((name, info)) = model.weights.stored(&weight) else { continue };
        let (name, shape, source) = (name.to_owned(), info.shape, info.dtype);
        let (stored, note) = match (shape.extents().len(), entry.hf_as) {
            (2, None) => {
                // A table is only looked up, unless it is also the head.
                let is_read = weight != "embed.table" || is_tied;
                let linear = if is_read { DType::Q4NX } else { source };
                chooser.choose([&weight, &name], &shape, || (linear, None))?
            }
            (2, Some(_)) => (source, Some("kept: its rows are stored in another order".to_owned())),
            _ => (source, None),
        };
        let (layout, parts) = (FileLayout::AsStored, Vec::new());
        planned.push(Planned { weight, name, shape, source, stored, layout, note, parts });
    }
    chooser.finish()?;
    Ok(planned)
}

fn new_tensor(tensor: &Planned) -> Result<NewTensor> {
    let (dtype, shape) = match tensor.stored {
        DType::Q4NX => (DType::U8, q4nx::stored_shape(&tensor.shape)?),
        dtype => (dtype, tensor.shape),
    };
    Ok(NewTensor { name: tensor.name.clone(), dtype, shape })
}

/// The source's strings, and the shapes of the packed matrices.
fn metadata(model: &ModelFiles, planned: &[Planned]) -> BTreeMap<String, String> {
    let source = model.weights.container().metadata().iter();
    let strings = source.filter_map(|(key, value)| match value {
        MetadataValue::String(text) if !q4nx::is_pair(key) => Some((key.to_owned(), text.clone())),
        _ => None,
    });
    let packed = planned.iter().filter(|tensor| tensor.stored == DType::Q4NX);
    strings.chain(packed.map(|tensor| q4nx::pair(&tensor.name, &tensor.shape))).collect()
}

fn unwritten(path: &Path, error: &std::io::Error) -> Error {
    Error::new(format!("cannot be written: {error}")).of(path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn empty_folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("girih-convert-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_companion_that_links_out_of_its_folder_is_not_copied() {
        let root = empty_folder("links");
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
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_others_have_put_into_the_new_folder_stays() {
        let root = empty_folder("theirs");
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
        fs::remove_dir_all(&root).unwrap();
    }
}
