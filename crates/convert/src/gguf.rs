//! Writes GGUF files that llama.cpp can read.

use std::collections::BTreeMap;
use std::path::Path;

use girih_file::{ContainerWriter, Metadata, MetadataValue, NewTensor, quote};
use girih_graph::HeadSharing;
use girih_model::arch::schema::{MixerSchema, Relayout, Weight};
use girih_model::arch::{Head, Mixer};
use girih_model::{ModelFiles, ModelLimits, StatedYarn, fitting_format, is_exact};
use girih_tensor::{DType, Error, ErrorKind, Result, Shape};

use super::keys::{GgufKeys, keys};
use super::options::ConvertOptions;
use super::plan::{Chooser, FileLayout, MATRIX_DTYPES, Planned, at, weights};
use super::report::{ConvertProgress, ConvertReport, WrittenTensor};
use super::source::first_difference;
use super::types::{FileType, MatrixRole, MixContext, mixed};
use super::{parts, stream, vocabulary};

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
    check_heads(model)?;
    let mut metadata = general(model, file_type, options)?;
    let GgufKeys { metadata: facts, factors, mut warnings } =
        keys(model.arch(), &model.facts, &yarns(model)?)?;
    let planned = plan(model, head.tied, file_type, options)?;
    facts.iter().try_for_each(|(key, value)| metadata.insert(key, value.clone()))?;
    let factors = factors.as_ref().map(|(name, numbers)| (name.as_str(), numbers.as_slice()));
    check_facts(model, &metadata, factors)?;
    warnings.extend(vocabulary::put(model, &mut metadata, &options.limits)?);
    warnings.extend(requantized(&planned));
    warnings.extend(ignored(model));

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

/// The tables of rotary position embedding that the model's `config.json` scales by YaRN.
fn yarns(model: &ModelFiles) -> Result<BTreeMap<String, StatedYarn>> {
    let tables = model.arch().rope.iter().filter_map(|(table, rope)| Some((table, rope.scaling.as_ref()?)));
    let mut yarns = BTreeMap::new();
    for (table, scaling) in tables {
        let yarn = model.stated_yarn(scaling, &ModelLimits::DEFAULT)?;
        yarns.extend(yarn.map(|yarn| (table.clone(), yarn)));
    }
    Ok(yarns)
}

/// Refuses a model whose facts the keys do not state.
fn check_facts(model: &ModelFiles, metadata: &Metadata, factors: Option<(&str, &[f32])>) -> Result<()> {
    let refused = |why: String| {
        let name = &model.arch().name;
        let sentence = format!(
            "GGUF cannot state this model of architecture {name}: {why}; keep it in safetensors, or convert it with \
             llama.cpp"
        );
        Error::with_kind(ErrorKind::Refused, sentence)
    };
    let facts = model.facts_in_gguf(metadata, factors, &ModelLimits::DEFAULT);
    let facts = facts.map_err(|error| refused(error.to_string()))?;
    first_difference(&facts, &model.facts).map_or(Ok(()), |difference| Err(refused(difference)))
}

/// Refuses a delta rule whose heads GGUF has in another order.
fn check_heads(model: &ModelFiles) -> Result<()> {
    for (index, layer) in model.facts.layers.iter().enumerate() {
        let MixerSchema::DeltaRule(schema) = &model.arch().layer(&layer.kind)?.mixer else { continue };
        let Mixer::DeltaRule(delta) = &layer.mixer else { continue };
        if schema.gguf_turns
            && delta.sharing == HeadSharing::Neighbours
            && delta.key_heads != delta.value_heads
        {
            let sentence = format!(
                "layer {index} has more heads of values than of keys, whose order in GGUF girih does not write; convert \
                 the model with llama.cpp"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
    }
    Ok(())
}

fn new(name: &str, dtype: DType, shape: Shape) -> NewTensor {
    NewTensor { name: name.to_owned(), dtype, shape }
}

fn computed(name: &str, shape: Shape) -> WrittenTensor {
    let note = Some("computed from the facts".to_owned());
    WrittenTensor {
        name: name.to_owned(),
        shape,
        source: DType::F32,
        stored: DType::F32,
        note,
        sparsity: None,
    }
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
    let mut chooser = Chooser::new(options.recipe.as_ref(), &MATRIX_DTYPES);
    let mut planned: Vec<Planned> = Vec::new();
    for (weight, entry, layer) in weights(model.arch(), &model.weights, context.layers) {
        if weight == "head.weight" && is_tied {
            continue; // a GGUF file with a separate head is an untied model
        }
        let Some((source, shape)) = model.weights.info(&weight) else { continue };
        let name = tensor_name(model, entry, layer).ok_or_else(|| {
            Error::new(format!("architecture {} has no name in GGUF for '{weight}'", model.arch().name))
        })?;
        let layout = layout(model, entry, layer, &weight)?;
        let shape = file_shape(model, entry, layer, (&weight, shape))?;
        let (stored, note, pruning, parts) = (DType::F32, None, None, Vec::new());
        let whole = Planned { weight, name, shape, source, stored, layout, note, pruning, parts };
        parts::add(&mut planned, whole, entry.gguf_part, layer.map(|layer| (model, layer)))?;
    }
    for tensor in &mut planned {
        parts::join(tensor)?;
        (tensor.stored, tensor.note, tensor.pruning) = if is_exact(&model.weights, &tensor.weight) {
            (DType::F32, None, None)
        } else {
            let role = role(&tensor.weight, layer_of(&tensor.weight), is_tied);
            let default = || by_type(file_type, role, tensor.shape.columns(), context);
            chooser.choose([&tensor.weight, &tensor.name], &tensor.shape, default)?
        };
        tensor.parts.iter_mut().for_each(|(part, ..)| part.stored = tensor.stored);
        check_pruned(tensor)?;
    }
    chooser.finish()?;
    Ok(planned)
}

/// Refuses to prune a tensor whose rows girih packs in another order.
fn check_pruned(tensor: &Planned) -> Result<()> {
    if tensor.pruning.is_some() && (!tensor.parts.is_empty() || tensor.layout == FileLayout::Transposed) {
        return Err(Error::new(format!(
            "tensor {} holds several weights or columns as rows, which girih does not prune; leave it out of the \
             recipe's rule",
            quote(&tensor.name)
        )));
    }
    Ok(())
}

/// The layer in a weight's name.
fn layer_of(weight: &str) -> Option<usize> {
    weight.strip_prefix("layers.")?.split('.').next()?.parse().ok()
}

/// The name of a weight's tensor. Without a latent of queries, the projection of queries has another one.
fn tensor_name(model: &ModelFiles, entry: &Weight, layer: Option<usize>) -> Option<String> {
    let is_other = layer.is_some_and(|layer| {
        let latent = model.facts.layers[layer].mixer.attention().and_then(|attend| attend.latent);
        latent.is_some_and(|latent| latent.query_rank.is_none())
    });
    let other = entry.gguf_or.as_ref().filter(|_| is_other);
    other.or(entry.gguf.as_ref()).map(|name| at(name, layer))
}

/// The shape of a weight in the file. What girih reads as vectors may be matrices there.
fn file_shape(
    model: &ModelFiles,
    entry: &Weight,
    layer: Option<usize>,
    (weight, shape): (&str, Shape),
) -> Result<Shape> {
    let ssm = layer.and_then(|layer| model.facts.layers[layer].mixer.ssm());
    Ok(match (entry.gguf_as, ssm) {
        (Some(Relayout::Transposed), _) => Shape::matrix(shape.columns(), shape.rows()),
        (Some(Relayout::Flat), Some(ssm)) if weight.ends_with(".norm.weight") => {
            Shape::new(&[ssm.groups, shape.elements() / ssm.groups])?
        }
        (Some(Relayout::Flat), _) => Shape::matrix(shape.elements(), 1),
        _ => shape,
    })
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
    let stored = fitting_format(mixed, columns);
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
        (None | Some(Relayout::Flat), _) => Ok(FileLayout::Ours),
        (Some(Relayout::Transposed), _) => Ok(FileLayout::Transposed),
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
