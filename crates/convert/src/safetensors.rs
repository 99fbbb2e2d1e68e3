//! Writes a copy of a model's folder with matrices whose blocks of zeros are not stored.
//!
//! Tensors keep their names in safetensors. The matrices that a recipe prunes are stored by blocks, in any format
//! (`file/sparse_blocks.rs`). All other tensors are copied unchanged, and so are configuration and tokenizer.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use girih_file::sparse_blocks::{self, SparseLayout};
use girih_file::{ContainerKind, ContainerWriter, MetadataValue, NewTensor, quote};
use girih_model::ModelFiles;
use girih_tensor::{DType, Error, Result, Shape};

use super::band_sink::BandSink;
use super::bands::write_rows;
use super::new_folder;
use super::options::ConvertOptions;
use super::plan::{Chooser, FileLayout, MATRIX_DTYPES, Planned, check_whole, weights};
use super::report::{ConvertProgress, ConvertReport};
use super::stream;

/// The formats of matrices that are not stored by blocks.
const PLAIN_DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// A tensor to write, and how its blocks are stored if a recipe prunes it.
struct FolderTensor {
    tensor: Planned,
    blocks: Option<SparseBlocks>,
}

/// The blocks of a matrix that have values.
struct SparseBlocks {
    layout: SparseLayout,
    /// The columns of those of each row of blocks.
    present: Vec<Vec<u32>>,
    count: usize,
}

pub(super) fn write(
    model: &ModelFiles,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    if matches!(model.weights.container().kind(), ContainerKind::Gguf | ContainerKind::Q4nx) {
        return Err(Error::new(
            "safetensors have the hub's names and values of tensors; convert the original of this model",
        ));
    }
    let planned = plan(model, options)?;
    let with_blocks = |tensor: Planned| {
        let blocks = tensor.pruning.map(|pruning| counted(&tensor, pruning.block, model, options));
        let blocks = blocks.transpose()?;
        Ok(FolderTensor { tensor, blocks })
    };
    let planned = planned.into_iter().map(with_blocks).collect::<Result<Vec<_>>>()?;
    let tensors = planned.iter().map(new_tensor).collect::<Result<Vec<_>>>()?;
    // The folder is created when the weights are complete, so that an interruption leaves nothing.
    let path = out.join("model.safetensors");
    let mut writer =
        ContainerWriter::safetensors_for_new_folder(&path, &metadata(model, &planned), &tensors)?;
    let ranks: HashMap<String, usize> = writer.order().map(str::to_owned).zip(0..).collect();
    let mut ordered: Vec<&FolderTensor> = planned.iter().collect();
    ordered.sort_by_key(|planned| ranks[&planned.tensor.name]);
    let writes = ordered.iter().map(|planned| (&planned.tensor, planned.blocks.as_ref()));
    let report =
        stream::write_each(&model.weights, writes, options, progress, &mut |blocks, name, write| {
            let Some(SparseBlocks { layout, present, .. }) = blocks else { return write(&mut writer) };
            writer.append(name, &layout.head(present)?)?;
            let mut bands = present.iter();
            let mut each = |band: &[u8]| {
                let columns = bands.next().expect("both passes have the same rows of blocks");
                writer.append(name, &layout.blocks(band, columns))
            };
            let mut sink = BandSink::new(layout.band_bytes(), &mut each);
            let sparsity = write(&mut sink)?;
            sink.finish()?;
            Ok(sparsity)
        })?;
    new_folder::finish(model, out, writer)?;
    Ok(ConvertReport { weights: path, ..report })
}

/// The blocks of a pruned matrix that have values, in the bytes that would be written.
fn counted(
    tensor: &Planned,
    block: [usize; 2],
    model: &ModelFiles,
    options: &ConvertOptions,
) -> Result<SparseBlocks> {
    let of = |error: Error| error.of(format!("tensor {}", quote(&tensor.name)));
    let layout = SparseLayout::new(tensor.shape, tensor.stored, block).map_err(of)?;
    let mut present = Vec::new();
    let mut each = |band: &[u8]| {
        present.push(layout.present(band));
        Ok(())
    };
    let mut sink = BandSink::new(layout.band_bytes(), &mut each);
    write_rows(&mut sink, &model.weights, (&tensor.name, tensor), None, options.threads, &mut |_| ())
        .map_err(of)?;
    sink.finish()?;
    let count = present.iter().map(Vec::len).sum();
    Ok(SparseBlocks { layout, present, count })
}

/// Plans every tensor of the model and its format.
fn plan(model: &ModelFiles, options: &ConvertOptions) -> Result<Vec<Planned>> {
    let mut chooser = Chooser::new(options.recipe.as_ref(), &MATRIX_DTYPES);
    let mut planned = Vec::new();
    for (weight, entry, _) in weights(model.arch(), &model.weights, model.facts.layers.len()) {
        check_whole(&weight, entry.hf.as_deref().unwrap_or_default(), entry.hf_part)?;
        let Some((name, info)) = model.weights.stored(&weight) else { continue };
        let (name, shape, source) = (name.to_owned(), info.shape, info.dtype);
        let (stored, note, pruning) = match (shape.extents().len(), entry.hf_as) {
            (2, None) => chooser.choose([&weight, &name], &shape, || (source, None))?,
            (2, Some(_)) => (source, Some("kept: its rows are stored in another order".to_owned()), None),
            _ => (source, None, None),
        };
        if pruning.is_none() && !PLAIN_DTYPES.contains(&stored) && stored.tile() != (1, 1) {
            return Err(Error::new(format!(
                "tensor {} is {stored}, for which safetensors has no type; prune it, or name another type in a recipe",
                quote(&name)
            )));
        }
        let (layout, parts) = (FileLayout::AsStored, Vec::new());
        planned.push(Planned { weight, name, shape, source, stored, layout, note, pruning, parts });
    }
    chooser.finish()?;
    Ok(planned)
}

fn new_tensor(FolderTensor { tensor, blocks }: &FolderTensor) -> Result<NewTensor> {
    let (dtype, shape) = match blocks {
        Some(blocks) => (DType::U8, Shape::vector(blocks.layout.bytes(blocks.count)?)),
        None => (tensor.stored, tensor.shape),
    };
    Ok(NewTensor { name: tensor.name.clone(), dtype, shape })
}

/// The source's strings, and what the pruned matrices are.
fn metadata(model: &ModelFiles, planned: &[FolderTensor]) -> BTreeMap<String, String> {
    let source = model.weights.container().metadata().iter();
    let strings = source.filter_map(|(key, value)| match value {
        MetadataValue::String(text) if !sparse_blocks::is_pair(key) => Some((key.to_owned(), text.clone())),
        _ => None,
    });
    let pairs = planned.iter().filter_map(|FolderTensor { tensor, blocks }| {
        blocks.as_ref().map(|blocks| blocks.layout.pair(&tensor.name, blocks.count))
    });
    strings.chain(pairs).collect()
}
