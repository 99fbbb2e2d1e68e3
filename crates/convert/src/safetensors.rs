//! Writes a copy of a model's folder with Q4NX matrices.
//!
//! Tensors keep their names in safetensors. Matrices of linear layers become
//! Q4NX, the table of embeddings too if it is also the head; all other tensors are
//! copied unchanged (`file/q4nx.rs` describes the storage). Configuration and
//! tokenizer are copied.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use girih_file::{ContainerKind, ContainerWriter, MetadataValue, NewTensor, q4nx};
use girih_model::ModelFiles;
use girih_tensor::{DType, Error, Result};

use super::new_folder;
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
            "Q4NX can only be made from safetensors models; convert the original of this model",
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
    new_folder::finish(model, out, writer)?;
    Ok(ConvertReport { weights: path, ..report })
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
        let (stored, note, pruning) = match (shape.extents().len(), entry.hf_as) {
            (2, None) => {
                // A table is only looked up, unless it is also the head.
                let is_read = weight != "embed.table" || is_tied;
                let linear = if is_read { DType::Q4NX } else { source };
                chooser.choose([&weight, &name], &shape, || (linear, None))?
            }
            (2, Some(_)) => (source, Some("kept: its rows are stored in another order".to_owned()), None),
            _ => (source, None, None),
        };
        let (layout, parts) = (FileLayout::AsStored, Vec::new());
        planned.push(Planned { weight, name, shape, source, stored, layout, note, pruning, parts });
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
