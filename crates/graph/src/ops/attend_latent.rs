//! Attention whose values are a part of its keys. Its definition is that of
//! [`attend`](super::attend), with the first columns of each key as its value.

use girih_tensor::Shape;

use crate::constant::Span;
use crate::value::{Extent, Value};
use crate::work::{NodeWork, Reads, WorkStep};

pub(super) fn fits(q: &Value, latents: &Value, y: &Value) -> bool {
    let (&[heads, size], &[kv_heads, key_size]) = (q.inner(), latents.inner()) else { return false };
    let &[results, value_size] = y.inner() else { return false };
    latents.outermost == Extent::Context
        && kv_heads > 0
        && heads.is_multiple_of(kv_heads)
        && size == key_size
        && y.has_rows_of(q)
        && results == heads
        && (1..=size).contains(&value_size)
}

/// The first `value_size` of each `size` numbers.
pub(crate) fn values(latents: &[f32], [size, value_size]: [usize; 2]) -> Vec<f32> {
    latents.chunks_exact(size).flat_map(|latent| &latent[..value_size]).copied().collect()
}

/// Two sums for each head of each row and each position that it reads; each latent is read once.
pub(super) fn work(
    _scale: f32,
    span: Span,
    values: u32,
    q: Shape,
    _latents: Shape,
    step: WorkStep<'_>,
) -> NodeWork {
    let positions = step.positions(span);
    let results = q.extents()[1] as u64 * u64::from(values);
    NodeWork {
        multiply_adds: positions.by_row * (q.stride() as u64 + results),
        ..NodeWork::reading([Reads::All, Reads::Positions(positions)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_the_beginning_of_its_latent() {
        assert_eq!(values(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2]), [1.0, 2.0, 4.0, 5.0]);
    }
}
