//! Converts a model to another container or to other storage formats.
//!
//! A GGUF file follows llama.cpp's names, order of rows and mixes of types, so
//! that llama.cpp can read it. A Q4NX folder has the weights as FastFlowLM's `model.q4nx`. A folder of safetensors is the model's folder with pruned matrices by blocks. Tensors are read, packed and
//! written in bands of rows, so that a model is never in memory as a whole. The same model gives the same bytes.
//!
//! A GGUF file of any origin is compared with the folder that it was made from by
//! [`compare_with_source`].
#![forbid(unsafe_code)]

mod band_sink;
mod bands;
mod gguf;
mod iebin;
mod iebin_groups;
mod iebin_tensors;
mod iebs;
mod keys;
mod merge;
mod new_folder;
mod options;
mod parts;
mod plan;
mod prune;
mod q4_map;
mod q4nx;
mod recipe;
mod report;
mod safetensors;
mod source;
mod stream;
mod types;
mod vocabulary;

use std::path::Path;

use girih_graph::{Key, OutputKind};
use girih_model::ModelFiles;
use girih_tensor::{DType, Error, ErrorKind, Result};

pub use iebs::{IebsOptions, WrittenIebs, write_iebs};
pub use merge::merge;
pub use options::{ConvertOptions, ConvertTarget, Dedup, IebinOptions};
pub use prune::Sparsity;
pub use q4_map::Q4Map;
pub use recipe::Recipe;
pub use report::{ConvertProgress, ConvertReport, WrittenTensor};
pub use source::{CompareOptions, SourceFinding, SourcePart, SourceVerdict, compare_with_source};
pub use types::FileType;

/// Writes `model` to `out`: a file for GGUF, a folder for Q4NX, safetensors and IEBIN.
///
/// # Errors
/// When `out` already exists; when the model is an encoder; when the container cannot express a property of
/// the model, which the error names; when a weight is not finite, or overflows
/// in its new format; when a recipe does not match the model; or when a file
/// cannot be read or written.
pub fn convert(
    model: &ModelFiles,
    out: &Path,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    new_folder::check_is_free(out)?;
    let head = model.facts.head.ok_or_else(|| {
        Error::with_kind(
            ErrorKind::Refused,
            format!(
                "models of architecture {} are encoders, which are not converted; run the original files",
                model.facts.name
            ),
        )
    })?;
    // The graph's builder checks the shape of every weight against the facts.
    let smallest = Key { rows: 1, sequences: 1, context: 1, output_rows: 1, output: OutputKind::Logits };
    model.graph(smallest, DType::F32)?;
    match options.target {
        ConvertTarget::Gguf(file_type) => gguf::write(model, &head, out, file_type, options, progress),
        ConvertTarget::Q4nx => q4nx::write(model, out, options, progress),
        ConvertTarget::Safetensors => safetensors::write(model, out, options, progress),
        ConvertTarget::Iebin => iebin::write(model, out, options, progress),
    }
}
