//! Writes GGUF files that llama.cpp can read.

use std::path::Path;

use girih_file::{ContainerWriter, Metadata, MetadataValue, NewTensor, quote};
use girih_model::ModelFiles;
use girih_model::arch::schema::{Relayout, Weight};
use girih_model::arch::{Head, Mixer};
use girih_tensor::{DType, Error, ErrorKind, Result, Shape};

use super::keys::{GgufKeys, keys};
use super::options::ConvertOptions;
use super::plan::{Chooser, FileLayout, Planned, at, check_whole, weights};
use super::report::{ConvertProgress, ConvertReport, WrittenTensor};
use super::types::{FileType, MatrixRole, MixContext, fitting, mixed};
use super::{stream, vocabulary};

/// The matrix formats of GGUF that girih writes.
const GGUF_DTYPES: [DType; 11] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::MXFP4,
];

/// A key of the source that describes the file, not the model.
const ALIGNMENT_KEY: &str = "general.alignment";

/// The version of the block formats (`GGML_QNT_VERSION`).
const QUANTIZATION_VERSION: u32 = 2;

pub(super) fn write(
    model: &ModelFiles,
    head: &Head,
    out: &Path,
    file_type: FileType,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    for (index, layer) in model.facts.layers.iter().enumerate() {
        let part = match layer.mixer {
            Mixer::Attend(_) => continue,
            Mixer::ShortConv(_) => "short convolution",
            Mixer::DeltaRule(_) => "gated delta rule",
            Mixer::Ssm(_) | Mixer::AttendAndSsm { .. } => "scan of Mamba-2",
            Mixer::None => "feed-forward part alone",
        };
        let sentence = format!(
            "layer {index} has a {part}, which girih does not write to GGUF; convert the model with llama.cpp"
        );
        return Err(Error::with_kind(ErrorKind::Refused, sentence));
    }
    let mut metadata = general(model, file_type, options)?;
    let GgufKeys { metadata: facts, factors, mut warnings } = keys(model.arch(), &model.facts)?;
    let planned = plan(model, head.tied, file_type, options)?;
    facts.iter().try_for_each(|(key, value)| metadata.insert(key, value.clone()))?;
    warnings.extend(vocabulary::put(model, &mut metadata, &options.limits)?);
    warnings.extend(requantized(&planned));
    warnings.extend(ignored(model));

    let factors = factors.as_ref().map(|(name, numbers)| (name.as_str(), numbers.as_slice()));
    let factors_shape = factors.map(|(name, numbers)| (name, Shape::vector(numbers.len())));
    let mut tensors: Vec<NewTensor> =
        factors_shape.iter().map(|(name, shape)| new(name, DType::F32, *shape)).collect();
    tensors.extend(planned.iter().map(|tensor| new(&tensor.name, tensor.stored, tensor.shape)));
    let mut writer = ContainerWriter::gguf(out, &metadata, &tensors)?;
    if let Some((name, numbers)) = factors {
        stream::write_numbers(&mut writer, name, numbers)?;
    }
    let mut report = stream::write_all(&mut writer, &model.weights, &planned, options, progress)?;
    writer.finish()?;
    report.tensors.splice(0..0, factors_shape.map(|(name, shape)| computed(name, shape)));
    (report.weights, report.warnings) = (out.to_owned(), warnings);
    Ok(report)
}

fn new(name: &str, dtype: DType, shape: Shape) -> NewTensor {
    NewTensor { name: name.to_owned(), dtype, shape }
}

fn computed(name: &str, shape: Shape) -> WrittenTensor {
    let note = Some("computed from the facts".to_owned());
    WrittenTensor { name: name.to_owned(), shape, source: DType::F32, stored: DType::F32, note }
}

/// The general keys of every model, and the source's own, such as its author
/// and licence.
fn general(model: &ModelFiles, file_type: FileType, options: &ConvertOptions) -> Result<Metadata> {
    let arch = model.arch();
    let name = arch.matches.gguf.first().ok_or_else(|| {
        Error::new(format!("architecture {} has no name in GGUF, so it cannot be written as GGUF", arch.name))
    })?;
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", MetadataValue::String(name.clone()))?;
    if let Some(name) = options.name.clone().or_else(|| own_name(model)) {
        metadata.insert("general.name", MetadataValue::String(name))?;
    }
    metadata.insert("general.file_type", MetadataValue::U32(file_type.number()))?;
    metadata.insert("general.quantization_version", MetadataValue::U32(QUANTIZATION_VERSION))?;
    for (key, value) in model.weights.container().metadata().iter() {
        if key.starts_with("general.") && key != ALIGNMENT_KEY && metadata.value(key).is_none() {
            metadata.insert(key, value.clone())?;
        }
    }
    Ok(metadata)
}

/// The name in the source's header, or that of the model's folder.
fn own_name(model: &ModelFiles) -> Option<String> {
    let stated = model.weights.container().metadata().get::<&str>("general.name").ok().flatten();
    let folder = || Some(model.folder().file_name()?.to_str()?.to_owned());
    stated.map(str::to_owned).or_else(folder)
}

/// Plans every tensor of the model: its name in GGUF and its format.
fn plan(
    model: &ModelFiles,
    is_tied: bool,
    file_type: FileType,
    options: &ConvertOptions,
) -> Result<Vec<Planned>> {
    let facts = &model.facts;
    let shared_heads = facts
        .layers
        .iter()
        .filter_map(|layer| layer.mixer.attention())
        .any(|attend| attend.heads > attend.kv_heads);
    let context = MixContext { layers: facts.layers.len(), shared_heads };
    let mut chooser = Chooser::new(options.recipe.as_ref(), &GGUF_DTYPES);
    let mut planned = Vec::new();
    for (weight, entry, layer) in weights(model.arch(), &model.weights, context.layers) {
        if weight == "head.weight" && is_tied {
            continue; // a GGUF file with a separate head is an untied model
        }
        let Some((source, shape)) = model.weights.info(&weight) else { continue };
        let name = entry.gguf.as_ref().ok_or_else(|| {
            Error::new(format!("architecture {} has no name in GGUF for '{weight}'", model.arch().name))
        })?;
        check_whole(&weight, name, entry.gguf_part)?;
        let name = at(name, layer);
        // The choice of experts is not rounded, and biases of experts are used one by one.
        let is_kept = weight.contains(".ffn.router.") || weight.ends_with(".bias");
        let (stored, note) = if shape.extents().len() < 2 || is_kept {
            (DType::F32, None)
        } else {
            let role = role(&weight, layer, is_tied);
            let default = || by_type(file_type, role, shape.columns(), context);
            chooser.choose([&weight, &name], &shape, default)?
        };
        let layout = layout(model, entry, layer, &weight)?;
        planned.push(Planned { weight, name, shape, source, stored, layout, note });
    }
    chooser.finish()?;
    Ok(planned)
}

/// The role of a weight's matrix.
fn role(weight: &str, layer: Option<usize>, tied: bool) -> MatrixRole {
    match (weight, layer) {
        ("embed.table", _) if !tied => MatrixRole::Embedding,
        ("embed.table" | "head.weight", _) => MatrixRole::Head,
        (_, Some(layer)) if weight.ends_with(".mixer.v.weight") => MatrixRole::Values(layer),
        (_, Some(layer)) if weight.contains(".ffn.") && weight.ends_with("down.weight") => {
            MatrixRole::Down(layer)
        }
        _ => MatrixRole::Other,
    }
}

/// The format of a matrix by the file's type, and the reason if it differs from
/// that of most matrices.
fn by_type(
    file_type: FileType,
    role: MatrixRole,
    columns: usize,
    context: MixContext,
) -> (DType, Option<String>) {
    let mixed = mixed(file_type, role, columns, context);
    let stored = fitting(mixed, columns);
    let note = if stored != mixed {
        let block = mixed.tile().1;
        Some(format!("instead of {mixed}: rows of {columns} weights are not whole blocks of {block}"))
    } else if stored != file_type.dtype() {
        Some(format!("by the mix of {}", file_type.name()))
    } else {
        None
    };
    (stored, note)
}

/// The order of rows in the file: the inverse of the transform that reading
/// applies.
fn layout(model: &ModelFiles, entry: &Weight, layer: Option<usize>, weight: &str) -> Result<FileLayout> {
    let attend = layer.and_then(|layer| model.facts.layers.get(layer)?.mixer.attention());
    match (entry.gguf_as, attend) {
        (None, _) => Ok(FileLayout::Ours),
        (Some(Relayout::UnpermuteHeads), Some(attend)) => Ok(FileLayout::Interleaved { heads: attend.heads }),
        (Some(Relayout::UnpermuteKvHeads), Some(attend)) => {
            Ok(FileLayout::Interleaved { heads: attend.kv_heads })
        }
        (Some(other), _) => {
            Err(Error::new(format!("'{weight}' is {other:?} in GGUF, which can be read but not written")))
        }
    }
}

/// A warning if keys of the model were ignored, as the file does not have them.
fn ignored(model: &ModelFiles) -> Option<String> {
    let keys: Vec<String> = model.ignored_keys().iter().map(|key| quote(key)).collect();
    (!keys.is_empty()).then(|| format!("the file lacks the ignored keys {}", keys.join(", ")))
}

/// A warning if weights that are already quantized are quantized again.
fn requantized(planned: &[Planned]) -> Option<String> {
    let rounded = |tensor: &&Planned| tensor.source.tile() != (1, 1) && tensor.source != tensor.stored;
    let count = planned.iter().filter(rounded).count();
    (count > 0).then(|| {
        format!("{count} tensors of the source are already quantized and lose precision again; convert the original model instead")
    })
}
