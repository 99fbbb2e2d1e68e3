//! The positions that a row reads by a selection, and those of which a correct program may choose otherwise.

use super::attention::Rows;
use super::position_choice::PositionChoice;
use crate::rounding::RoundingErrors;

/// The score of a key for a row, and its largest error. Errors of queries, keys and weights are independent.
pub(super) fn score(
    q: &Rows<'_>,
    weights: &Rows<'_>,
    keys: &Rows<'_>,
    [row, key]: [usize; 2],
    one: RoundingErrors,
) -> (f64, f64) {
    let key = keys.part(key, 0);
    let square = |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
    let key_square = square(key.numbers);
    let (mut sum, mut noise) = (0.0, 0.0);
    for head in 0..q.heads {
        let (query, weight) = (q.part(row, head), weights.part(row, head));
        let products = query.numbers.iter().zip(key.numbers).map(|(q, k)| f64::from(*q) * f64::from(*k));
        let (product, squares) = products.fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
        let own = key.numbers.len() as f64 * one.term * squares.max(product.powi(2));
        let of_product = query.noise * key_square + key.noise * square(query.numbers) + own;
        if product <= -one.largest * of_product.sqrt() {
            continue;
        }
        let (product, factor) = (product.max(0.0), f64::from(weight.numbers[0]));
        sum += factor * product;
        noise += factor.powi(2) * of_product + (weight.noise + one.term * factor.powi(2)) * product.powi(2);
    }
    (sum, one.largest * noise.sqrt())
}

/// The choices of a row by scores with errors: it reads the `best`, of equal ones the first.
pub(super) fn choices(scores: &[(f64, f64)], best: usize) -> Vec<PositionChoice> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*b].0.total_cmp(&scores[*a].0).then(a.cmp(b)));
    let (read, unread) = order.split_at(best.min(order.len()));
    let least = read.iter().map(|index| scores[*index].0 - scores[*index].1).fold(f64::INFINITY, f64::min);
    let most =
        unread.iter().map(|index| scores[*index].0 + scores[*index].1).fold(f64::NEG_INFINITY, f64::max);
    let mut choices = vec![PositionChoice::Unread; scores.len()];
    for index in read {
        let (score, error) = scores[*index];
        choices[*index] =
            if score - error <= most { PositionChoice::PerhapsUnread } else { PositionChoice::Read };
    }
    for index in unread {
        let (score, error) = scores[*index];
        if score + error >= least {
            choices[*index] = PositionChoice::PerhapsRead;
        }
    }
    choices
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_between_near_scores_are_uncertain() {
        let certain = [(3.0, 0.1), (1.0, 0.1), (2.0, 0.1), (0.0, 0.1)];
        let [read, unread] = [PositionChoice::Read, PositionChoice::Unread];
        assert_eq!(choices(&certain, 2), [read, unread, read, unread]);
        assert_eq!(choices(&certain, 4), [read; 4]);
        let near = [(3.0, 0.1), (1.9, 0.1), (2.0, 0.1), (0.0, 0.1)];
        assert_eq!(
            choices(&near, 2),
            [read, PositionChoice::PerhapsRead, PositionChoice::PerhapsUnread, unread]
        );
        // Of equal scores the first are read.
        let equal = [(1.0, 0.0); 3];
        let [is, not] = [PositionChoice::PerhapsUnread, PositionChoice::PerhapsRead];
        assert_eq!(choices(&equal, 1), [is, not, not]);
    }
}
