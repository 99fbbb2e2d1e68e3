//! The choice of the positions that a row attends to, by a small score of each.

use girih_tensor::{Result, Shape, reference};

use super::attend::HeldRows;
use crate::constant::Span;
use crate::selection::{SELECTION_POSITIONS, select};
use crate::sequence::Sequence;
use crate::value::{Extent, Value};
use crate::work::{NodeWork, Reads, WorkStep};

pub(super) fn fits(q: &Value, weights: &Value, keys: &Value, y: &Value) -> bool {
    let (&[heads, size], &[1, key_size]) = (q.inner(), keys.inner()) else { return false };
    keys.outermost == Extent::Context
        && heads > 0
        && size == key_size
        && weights.has_rows_of(q)
        && weights.inner() == [heads]
        && y.has_rows_of(q)
        && has_numbers_for(y, keys)
}

/// Whether rows are selections that suffice for the positions of a state.
pub(super) fn has_numbers_for(selections: &Value, state: &Value) -> bool {
    let &[numbers] = selections.inner() else { return false };
    numbers >= state.shape.extents()[0].div_ceil(SELECTION_POSITIONS)
}

/// The selections of all rows, of `numbers` numbers each.
pub(crate) fn define(
    q: &[f32],
    weights: &[f32],
    [best, numbers]: [usize; 2],
    keys: HeldRows<'_>,
    sequences: &[Sequence<'_>],
) -> Result<Vec<f32>> {
    let rows: usize = sequences.iter().map(|sequence| sequence.rows.indexes().len()).sum();
    let heads = weights.len() / rows.max(1);
    let mut all = vec![0.0; rows * numbers];
    for sequence in sequences {
        for (row, position) in sequence.rows.indexes().zip(sequence.position as usize..) {
            let seen = sequence.sees(Span::Full, position);
            let held = (keys.at)(sequence, seen.clone())?;
            let q = &q[row * heads * keys.inner..][..heads * keys.inner];
            let weights = &weights[row * heads..][..heads];
            let scores: Vec<f64> = held.chunks_exact(keys.inner).map(|key| score(q, weights, key)).collect();
            let mut order: Vec<usize> = (0..scores.len()).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
            let selection = &mut all[row * numbers..][..numbers];
            order.iter().take(best).for_each(|index| select(selection, seen.start + index));
        }
    }
    Ok(all)
}

/// The score of a key.
fn score(q: &[f32], weights: &[f32], key: &[f32]) -> f64 {
    let of_heads = weights.iter().zip(q.chunks_exact(key.len()));
    let terms = of_heads.map(|(weight, head)| {
        let product = reference::dot(head, key).sum;
        // A comparison that lets NaN pass.
        f64::from(*weight) * if product < 0.0 { 0.0 } else { product }
    });
    terms.fold(0.0, |sum, term| sum + term)
}

/// A sum for each head and each position that a row sees.
pub(super) fn work(_best: u32, q: Shape, weights: Shape, _keys: Shape, step: WorkStep<'_>) -> NodeWork {
    let positions = step.positions(Span::Full);
    NodeWork {
        multiply_adds: positions.by_row * (q.stride() + weights.stride()) as u64,
        ..NodeWork::reading([Reads::All, Reads::All, Reads::Positions(positions)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: the heads have the products 2 and −3, of which the second one counts 0; then −2 and 3.
    #[test]
    fn negative_products_count_nothing() {
        assert_eq!(score(&[1.0, 0.0, 0.0, 1.0], &[5.0, 7.0], &[2.0, -3.0]), 10.0);
        assert_eq!(score(&[1.0, 0.0, 0.0, 1.0], &[5.0, 7.0], &[-2.0, 3.0]), 21.0);
    }
}
