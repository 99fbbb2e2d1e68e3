//! Writes a model as FastFlowLM's `model.q4nx`, beside copies of its configuration and tokenizer.
//!
//! Tensors have the hub's names. The matrices of linear layers are tiles; the table of embeddings is bf16, and the head is a
//! matrix of its own even if it is that table. Matrices in Q4_0 and Q4_1 keep their integers, as with FastFlowLM's converter
//! (`q4nx/model_converter.py` of FastFlowLM/FLM_Q4NX_Converter at dd0993c); others are quantized. All other tensors are bf16, in
//! girih's order and with girih's values, which are the converter's: norms of `1 + w` hold the sum.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use girih_file::{ContainerKind, ContainerWriter, NewTensor, OWN_Q4NX_FAMILY, Q4NX_FILE, q4nx, quote};
use girih_model::arch::schema::{Q4nxCodes, Q4nxSchema};
use girih_model::{ModelFiles, padded_in_q4nx};
use girih_tensor::{DType, Error, ErrorKind, Result, Shape, q4nx_tiles};

use super::band_sink::BandSink;
use super::new_folder;
use super::options::ConvertOptions;
use super::plan::{Chooser, FileLayout, Planned, at, check_whole, weights};
use super::report::{ConvertProgress, ConvertReport};
use super::stream;

/// The formats of matrices.
const Q4NX_DTYPES: [DType; 4] = [DType::Q4NX, DType::F32, DType::F16, DType::BF16];

/// The weight that is the table of embeddings.
const TABLE: &str = "embed.table";

/// The weight that is the head.
const HEAD: &str = "head.weight";

/// How a weight becomes a tensor of the file.
#[derive(Clone, Copy, Debug)]
enum TensorForm {
    /// As it is planned.
    Plain,
    /// Multiplied by this factor, as bf16; it is planned in f32.
    Scaled(f32),
    /// As tiles of a matrix of these rows and columns, whose last ones may be padding. It is planned in Q4NX, or in a
    /// format whose integers the tiles have.
    Tiles([usize; 2]),
}

struct FileTensor {
    tensor: Planned,
    form: TensorForm,
}

impl FileTensor {
    /// Its format in the file, other than that of its integers.
    fn dtype(&self) -> DType {
        match self.form {
            TensorForm::Plain => self.tensor.stored,
            TensorForm::Scaled(_) => DType::BF16,
            TensorForm::Tiles(_) => DType::Q4NX,
        }
    }

    fn new_tensor(&self) -> Result<NewTensor> {
        let name = self.tensor.name.clone();
        Ok(match self.form {
            TensorForm::Plain | TensorForm::Scaled(_) => {
                NewTensor { name, dtype: self.dtype(), shape: self.tensor.shape }
            }
            TensorForm::Tiles(padded) => {
                NewTensor { name, dtype: DType::I8, shape: q4nx::stored_shape(&Shape::new(&padded)?)? }
            }
        })
    }
}

pub(super) fn write(
    model: &ModelFiles,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    let planned = plan(model, options)?;
    let factors = factors(model)?;
    let mut tensors = planned.iter().map(FileTensor::new_tensor).collect::<Result<Vec<_>>>()?;
    tensors.extend(factors.iter().map(|RopeFactors { name, dtype, shape, .. }| NewTensor {
        name: name.clone(),
        dtype: *dtype,
        shape: *shape,
    }));
    let metadata = match model.arch().q4nx {
        Some(_) => BTreeMap::new(),
        None => BTreeMap::from([(OWN_Q4NX_FAMILY.to_owned(), model.arch().name.clone())]),
    };
    // The folder is created when the weights are complete, so that an interruption leaves nothing.
    let path = out.join(Q4NX_FILE);
    let mut writer = ContainerWriter::safetensors_for_new_folder(&path, &metadata, &tensors)?;
    let ranks: HashMap<String, usize> = writer.order().map(str::to_owned).zip(0..).collect();
    let mut ordered: Vec<&FileTensor> = planned.iter().collect();
    ordered.sort_by_key(|planned| ranks[&planned.tensor.name]);
    let mut pending = factors.iter().peekable();
    let writes = ordered.iter().map(|planned| (&planned.tensor, *planned));
    let mut report =
        stream::write_each(&model.weights, writes, options, progress, &mut |tensor, name, put| {
            while let Some(RopeFactors { name, bytes, .. }) =
                pending.next_if(|factors| ranks[&factors.name] < ranks[&tensor.tensor.name])
            {
                writer.append(name, bytes)?;
            }
            put_tensor(&mut writer, tensor, name, put)
        })?;
    pending.try_for_each(|RopeFactors { name, bytes, .. }| writer.append(name, bytes))?;
    for (written, planned) in report.tensors.iter_mut().zip(&ordered) {
        written.stored = planned.dtype();
    }
    report.warnings.extend(warnings(model));
    new_folder::finish(model, out, writer)?;
    Ok(ConvertReport { weights: path, ..report })
}

/// Writes one tensor.
fn put_tensor(
    writer: &mut ContainerWriter,
    FileTensor { tensor, form }: &FileTensor,
    name: &str,
    put: &mut stream::PutTensor<'_>,
) -> Result<super::prune::Sparsity> {
    let (dtype, columns) = (tensor.stored, tensor.shape.columns());
    let (height, width) = DType::Q4NX.tile();
    match *form {
        TensorForm::Plain => put(writer),
        TensorForm::Scaled(factor) => {
            let row = dtype.matrix_bytes(1, columns)?;
            let mut each = |row: &[u8]| {
                let numbers = row.as_chunks().0.iter().map(|bytes| factor * f32::from_le_bytes(*bytes));
                let numbers: Vec<f32> = numbers.collect();
                writer.append(name, &DType::BF16.pack_matrix(1, columns, &numbers)?)
            };
            let mut sink = BandSink::new(row.max(1), &mut each);
            put(&mut sink)
        }
        TensorForm::Tiles([padded_rows, padded_columns]) => {
            let tile_row = dtype.matrix_bytes(height, columns)?;
            let padding =
                (padded_columns.div_ceil(width) - columns.div_ceil(width)) * DType::Q4NX.block_bytes();
            let mut missing = padded_rows.div_ceil(height);
            let mut each = |rows: &[u8]| {
                missing -= 1;
                if dtype == DType::Q4NX {
                    writer.append(name, rows)?;
                } else {
                    let count = rows.len() / dtype.matrix_bytes(1, columns)?;
                    writer.append(name, &q4nx_tiles(dtype, [count, columns], rows)?)?;
                }
                writer.append(name, &vec![0; padding])
            };
            let mut sink = BandSink::new(tile_row.max(1), &mut each);
            let sparsity = put(&mut sink)?;
            sink.finish()?;
            let empty = DType::Q4NX.matrix_bytes(height, padded_columns)?;
            (0..missing).try_for_each(|_| writer.append(name, &vec![0; empty]))?;
            Ok(sparsity)
        }
    }
}

/// Plans every tensor of the model and its format.
fn plan(model: &ModelFiles, options: &ConvertOptions) -> Result<Vec<FileTensor>> {
    let mut chooser = Chooser::new(options.recipe.as_ref(), &Q4NX_DTYPES);
    let arch = model.arch();
    let mut planned = Vec::new();
    for (weight, entry, layer) in weights(arch, &model.weights, model.facts.layers.len()) {
        let Some(name) = entry.hf.as_deref() else {
            return Err(Error::new(format!(
                "'{weight}' has no name on the hub, so model.q4nx cannot have it"
            )));
        };
        check_whole(&weight, name, entry.hf_part)?;
        planned.push(plan_one(model, &weight, at(name, layer), &mut chooser)?);
    }
    let is_tied = model.facts.head.as_ref().is_some_and(|head| head.tied);
    if is_tied && model.weights.info(HEAD).is_none() {
        let name = arch.weights.get(HEAD).and_then(|head| head.hf.clone());
        let name = name.ok_or_else(|| Error::new("the architecture has no name for a head of its own"))?;
        let table = plan_one(model, HEAD, name, &mut chooser)?;
        planned.push(FileTensor { tensor: Planned { weight: TABLE.to_owned(), ..table.tensor }, ..table });
    }
    chooser.finish()?;
    Ok(planned)
}

/// Plans one tensor; [`HEAD`] may be that of a model whose head is the table of embeddings.
fn plan_one(model: &ModelFiles, weight: &str, name: String, chooser: &mut Chooser<'_>) -> Result<FileTensor> {
    let own = model.weights.info(weight).or_else(|| model.weights.info(TABLE));
    let (source, shape) = own.ok_or_else(|| Error::new(format!("the model has no weight '{weight}'")))?;
    let is_matrix = shape.extents().len() == 2 && weight != TABLE;
    let (stored, note, pruning) = match is_matrix {
        true => chooser.choose([weight, &name], &shape, || (DType::Q4NX, None))?,
        false if weight == TABLE => chooser.choose([weight, &name], &shape, || (DType::BF16, None))?,
        false => (DType::BF16, None, None),
    };
    let scale = match &model.arch().q4nx {
        Some(Q4nxSchema { scaled_embeddings: true, .. }) if weight == TABLE => model.facts.embed.scale,
        _ => None,
    };
    let (stored, form) = match (stored, scale) {
        (DType::Q4NX, None) => {
            let multiple = model.arch().q4nx.as_ref().map_or(1, |q4nx| q4nx.ffn_multiple.get());
            let padded = padded_in_q4nx(weight, [shape.rows(), shape.columns()], multiple)?;
            (integers(model, source, shape.columns()), TensorForm::Tiles(padded))
        }
        (DType::BF16, Some(factor)) => (DType::F32, TensorForm::Scaled(factor)),
        (stored, None) => (stored, TensorForm::Plain),
        (stored, Some(_)) => {
            let sentence = format!("tensor {} is {stored}; this table is written in bf16 only", quote(&name));
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
    };
    let (layout, parts, weight) = (FileLayout::Ours, Vec::new(), weight.to_owned());
    Ok(FileTensor {
        tensor: Planned { weight, name, shape, source, stored, layout, note, pruning, parts },
        form,
    })
}

/// The format whose integers the tiles of a matrix have. Rows that are not whole blocks are quantized with minimums; FastFlowLM's
/// models have none.
fn integers(model: &ModelFiles, source: DType, columns: usize) -> DType {
    let codes = model.arch().q4nx.as_ref().map(|q4nx| q4nx.codes);
    match (source, codes) {
        (DType::Q4_0 | DType::Q4_1 | DType::Q4NX, _) => source,
        (_, Some(Q4nxCodes::Q4_0)) if columns.is_multiple_of(DType::Q4_0.tile().1) => DType::Q4_0,
        (_, Some(Q4nxCodes::Q4_0 | Q4nxCodes::Q4_1) | None) => DType::Q4NX,
    }
}

/// The factors of rotary frequencies, a tensor of the file.
struct RopeFactors {
    name: String,
    dtype: DType,
    shape: Shape,
    bytes: Vec<u8>,
}

/// The factors of rotary frequencies that the file has; a copy has those of the copied file.
fn factors(model: &ModelFiles) -> Result<Option<RopeFactors>> {
    let named = model.arch().rope.values().filter_map(|rope| rope.scaling.as_ref()?.factors.clone()).next();
    let (Some(name), Some(_)) = (named, &model.arch().q4nx) else { return Ok(None) };
    let container = model.weights.container();
    if container.kind() == ContainerKind::Q4nx {
        let Some(info) = container.tensors().get(&name) else { return Ok(None) };
        let mut bytes = vec![0; info.bytes as usize];
        container.read(info, 0, &mut bytes)?;
        return Ok(Some(RopeFactors { name, dtype: info.dtype, shape: info.shape, bytes }));
    }
    let rope = model.facts.layers.iter().find_map(|layer| layer.mixer.attention()?.rope.as_ref());
    let factors = rope.map(|rope| rope.factors.as_slice()).unwrap_or_default();
    if factors.is_empty() {
        return Ok(None);
    }
    let (dtype, shape) = (DType::BF16, Shape::vector(factors.len()));
    Ok(Some(RopeFactors { name, dtype, shape, bytes: dtype.pack_matrix(1, factors.len(), factors)? }))
}

/// What else the folder needs.
fn warnings(model: &ModelFiles) -> Option<String> {
    let is_gguf = model.weights.container().kind() == ContainerKind::Gguf;
    (is_gguf && !model.folder().join("config.json").exists()).then(|| {
        "a GGUF has no config.json and no tokenizer.json, which model.q4nx needs beside it; copy them from the model's folder \
         of safetensors"
            .to_owned()
    })
}
