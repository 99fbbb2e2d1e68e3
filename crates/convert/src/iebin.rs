//! Writes a copy of a model's folder as IEBIN.
//!
//! Tensors keep their names of the hub. A matrix that a recipe makes `q4_0` or `q8_0`, or that a manifest names, is stored as
//! integers with one scale for each row or for all; all others keep their type. Configuration and tokenizer are copied.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use girih_file::{
    ContainerKind, ContainerWriter, IEBIN_OVERLAY, IebinGroup, IebinScales, IebinStorage, IebinTensor,
    OverlayWriters, iebin, quote,
};
use girih_graph::WeightSource as _;
use girih_model::ModelFiles;
use girih_tensor::{DType, Error, ErrorKind, Result};

use super::bands::TensorSink;
use super::iebin_groups::{near_equal, write_groups};
use super::iebin_tensors::{PlannedTensor, TensorSource};
use super::new_folder::{self, NewFile};
use super::options::{ConvertOptions, Dedup};
use super::plan::{Chooser, FileLayout, Planned, check_whole, weights};
use super::prune::Sparsity;
use super::report::{ConvertProgress, ConvertReport};

/// The formats of matrices in a folder of IEBIN; the last two stand for integers with scales.
const IEBIN_DTYPES: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0];

pub(super) fn write(
    model: &ModelFiles,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    if matches!(model.weights.container().kind(), ContainerKind::Gguf | ContainerKind::Q4nx) {
        let sentence = "IEBIN has the hub's names and values of tensors; convert the original of this model";
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut planned = plan(model, options)?;
    let source = TensorSource { weights: &model.weights, options };
    let groups = match options.iebin.dedup {
        Some(Dedup::Overlay) => near_equal(&mut planned, source)?,
        None => Vec::new(),
    };
    let tensors: Vec<IebinTensor> = planned.iter().map(PlannedTensor::new_tensor).collect();
    // The folder is created when the weights are complete, so that an interruption leaves nothing.
    let (mut writer, manifest) = ContainerWriter::iebin_for_new_folder(out, &tensors, &groups)?;
    let mut files = vec![NewFile { name: iebin::MANIFEST.to_owned(), bytes: manifest.into_bytes() }];
    let total = planned.iter().map(|planned| planned.tensor.shape.elements() as u64).sum();
    let mut done = 0;
    let mut all = WrittenTensors { planned: &planned, source, written: BTreeMap::new() };
    let mut step = |tensor: &str, count: usize| {
        done += count as u64;
        progress(ConvertProgress { tensor, done, total });
    };
    let overlaid: BTreeSet<usize> = groups.iter().flat_map(IebinGroup::indexes).collect();
    for index in (0..planned.len()).filter(|index| !overlaid.contains(index)) {
        all.write(index, &mut writer, &mut step)?;
    }
    let mut writers = Vec::new();
    if !groups.is_empty() {
        let (mut overlay, list) = OverlayWriters::for_new_folder(out, &tensors, &groups)?;
        write_groups(&mut overlay, &groups, |index, sink| all.write(index, sink, &mut step))?;
        let OverlayWriters { defaults, masks, exceptions } = overlay;
        writers.extend([defaults, masks, exceptions]);
        files.push(NewFile { name: IEBIN_OVERLAY.to_owned(), bytes: list.into_bytes() });
    }
    let others = writers.iter().map(|writer: &ContainerWriter| writer.path().to_owned()).collect();
    writers.push(writer);
    let mut report = ConvertReport { weights: out.join(iebin::BIN), others, ..ConvertReport::default() };
    for (index, (scales, sparsity)) in all.written {
        if let (Some(bytes), IebinStorage::Int4(file) | IebinStorage::Int8(file)) =
            (scales, &planned[index].storage)
        {
            files.push(NewFile { name: file.file.clone(), bytes });
        }
        report.tensors.push(planned[index].tensor.written(sparsity));
    }
    model.weights.check_unchanged()?;
    report.others.extend(files.iter().skip(1).map(|file| out.join(&file.name)));
    new_folder::finish_with(model, out, writers, &files)?;
    Ok(report)
}

/// The tensors that are written so far: their scales and sparsity.
struct WrittenTensors<'a> {
    planned: &'a [PlannedTensor<'a>],
    source: TensorSource<'a>,
    written: BTreeMap<usize, (Option<Vec<u8>>, Option<Sparsity>)>,
}

impl WrittenTensors<'_> {
    fn write(
        &mut self,
        index: usize,
        sink: &mut dyn TensorSink,
        step: &mut dyn FnMut(&str, usize),
    ) -> Result<()> {
        let planned = &self.planned[index];
        let written = planned.write(sink, self.source, &mut |count| step(&planned.tensor.name, count))?;
        self.written.insert(index, written);
        Ok(())
    }
}

/// Plans every tensor of the model.
fn plan<'a>(model: &ModelFiles, options: &'a ConvertOptions) -> Result<Vec<PlannedTensor<'a>>> {
    let mut chooser = Chooser::new(options.recipe.as_ref(), &IEBIN_DTYPES).of_any_rows();
    let mut all = Vec::new();
    let mut matrices = Vec::new();
    for (weight, entry, _) in weights(model.arch(), &model.weights, model.facts.layers.len()) {
        check_whole(&weight, entry.hf.as_deref().unwrap_or_default(), entry.hf_part)?;
        let Some((name, info)) = model.weights.stored(&weight) else { continue };
        let (name, shape, source) = (name.to_owned(), info.shape, info.dtype);
        let is_matrix = shape.extents().len() >= 2;
        let item = match &options.iebin.q4_map {
            Some(map) if is_matrix => map.item(&name, &shape)?,
            _ => None,
        };
        let kept = if options.iebin.single_precision { DType::F32 } else { source };
        let (stored, note, pruning) = match (item, is_matrix) {
            (Some(_), _) => (DType::Q4_0, Some("named by the manifest".to_owned()), None),
            (None, true) => chooser.choose([&weight, &name], &shape, || (kept, None))?,
            (None, false) => (kept, None, None),
        };
        let scales = |is_by_row| IebinScales {
            is_by_row,
            file: format!("scales.{:05}.bin", all.len()),
            dtype: item.and_then(|item| item.files.as_ref()).map_or(DType::F16, |(.., dtype)| *dtype),
        };
        let storage = match stored {
            DType::Q4_0 if note.is_some() => {
                IebinStorage::Int4(scales(item.is_none_or(|item| item.is_by_row)))
            }
            DType::Q8_0 if note.is_some() => IebinStorage::Int8(scales(true)),
            dtype => IebinStorage::Plain(dtype),
        };
        if pruning.is_some() && !matches!(storage, IebinStorage::Plain(_)) {
            return Err(Error::new(format!(
                "tensor {} becomes integers with scales, which girih does not prune; prune it in a conversion before",
                quote(&name)
            )));
        }
        matrices.extend(is_matrix.then(|| name.clone()));
        let (layout, parts) = (FileLayout::AsStored, Vec::new());
        let tensor = Planned { weight, name, shape, source, stored, layout, note, pruning, parts };
        all.push(PlannedTensor { tensor, storage, item });
    }
    chooser.finish()?;
    if let Some(map) = &options.iebin.q4_map {
        map.check_used(&matrices.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    Ok(all)
}
