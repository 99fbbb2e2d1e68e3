//! Streams the tensors of a model to a container.

use std::num::NonZeroUsize;

use girih_file::{ContainerWriter, quote};
use girih_graph::WeightSource;
use girih_model::ModelWeights;
use girih_tensor::{DType, Result, Shape};

use super::bands::{TensorSink, write_rows};
use super::options::ConvertOptions;
use super::parts;
use super::plan::Planned;
use super::prune::Sparsity;
use super::report::{ConvertProgress, ConvertReport};

/// Writes all `planned` tensors; returns their report.
pub(super) fn write_all(
    writer: &mut ContainerWriter,
    weights: &ModelWeights,
    planned: &[Planned],
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
) -> Result<ConvertReport> {
    let each = planned.iter().map(|tensor| (tensor, ()));
    write_each(weights, each, options, progress, &mut |(), _, write| write(writer))
}

/// Puts the bytes of a tensor into a sink; returns what pruning has left of it.
pub(super) type PutTensor<'a> = dyn FnMut(&mut dyn TensorSink) -> Result<Sparsity> + 'a;

/// Writes tensors by calls of `write`, with what belongs to each, its name, and what puts its bytes into a sink; returns
/// their report.
pub(super) fn write_each<'a, T>(
    weights: &ModelWeights,
    planned: impl Iterator<Item = (&'a Planned, T)> + Clone,
    options: &ConvertOptions,
    progress: &mut dyn FnMut(ConvertProgress<'_>),
    write: &mut dyn FnMut(T, &str, &mut PutTensor<'_>) -> Result<Sparsity>,
) -> Result<ConvertReport> {
    let total = planned.clone().map(|(tensor, _)| tensor.shape.elements() as u64).sum();
    let mut done = 0;
    let mut report = ConvertReport::default();
    for (tensor, own) in planned {
        let mut step = |written: usize| {
            done += written as u64;
            progress(ConvertProgress { tensor: &tensor.name, done, total });
        };
        let mut put_tensor =
            |sink: &mut dyn TensorSink| put(sink, weights, tensor, options.threads, &mut step);
        let sparsity = write(own, &tensor.name, &mut put_tensor)
            .map_err(|error| error.of(format!("tensor {}", quote(&tensor.name))))?;
        report.tensors.push(tensor.written(tensor.pruning.map(|_| sparsity)));
    }
    weights.check_unchanged()?;
    Ok(report)
}

fn put(
    sink: &mut dyn TensorSink,
    weights: &ModelWeights,
    tensor: &Planned,
    threads: NonZeroUsize,
    step: &mut dyn FnMut(usize),
) -> Result<Sparsity> {
    if tensor.parts.is_empty() {
        return write_rows(sink, weights, (&tensor.name, tensor), None, threads, step);
    }
    for (range, index, first) in parts::rows(tensor) {
        let some = first..first + range.len();
        write_rows(sink, weights, (&tensor.name, &tensor.parts[index].0), Some(some), threads, step)?;
    }
    Ok(Sparsity::default())
}

/// Appends a vector of computed values.
pub(super) fn write_numbers(writer: &mut ContainerWriter, name: &str, numbers: &[f32]) -> Result<()> {
    let shape = Shape::vector(numbers.len());
    writer.append(name, &DType::F32.pack_matrix(shape.rows(), shape.columns(), numbers)?)
}
