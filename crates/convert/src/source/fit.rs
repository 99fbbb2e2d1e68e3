//! Integers whose scale was fitted to an importance matrix after they were chosen.
//!
//! llama.cpp chooses the integers of Q4_0, Q4_1, Q5_0 and Q5_1 on a trial grid, and then fits scale and
//! minimum by least squares, with weights from the importance matrix (`make_qx_quants`,
//! `make_qkx3_quants`). The weights are not in the file, but they are positive, and two things
//! follow: integers rise with the values, and the residuals balance. For a scale alone, the normal
//! equation is `Σ w·level·r = 0`, so `level·r` has both signs. With a minimum, `Σ w·(level − b)·r = 0`
//! for each `b`, so `(level − b)·r` has both signs for each `b`.

/// Whether the stored values may be such a fit to the values. `has_minimum` tells if the format has one, and
/// `slack` is the rounding of a level.
pub(super) fn may_be_fit(values: &[f32], stored: &[f32], has_minimum: bool, slack: f64) -> bool {
    let mut pairs: Vec<(f64, f64)> =
        values.iter().zip(stored).map(|(value, stored)| (f64::from(*value), f64::from(*stored))).collect();
    pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
    if pairs.windows(2).any(|two| two[1].1 < two[0].1 && two[1].0 > two[0].0) {
        return false;
    }
    if !has_minimum {
        return balances(&pairs, 0.0, slack);
    }
    let lowest = pairs.iter().map(|pair| pair.1).fold(f64::INFINITY, f64::min);
    // A minimum of zero is not fitted, and the lowest level is then zero.
    if lowest.abs() <= slack {
        return balances(&pairs, lowest, slack);
    }
    let borders =
        pairs.windows(2).filter(|two| two[1].1 > two[0].1).map(|two| f64::midpoint(two[0].1, two[1].1));
    std::iter::once(f64::NEG_INFINITY).chain(borders).all(|border| balances(&pairs, border, slack))
}

/// Whether residuals have both signs, or may have them within `slack`, after those below `border` are
/// reversed.
fn balances(pairs: &[(f64, f64)], border: f64, slack: f64) -> bool {
    let residuals = pairs
        .iter()
        .filter(|(_, stored)| *stored != border)
        .map(|(value, stored)| if *stored < border { stored - value } else { value - stored });
    let (mut rises, mut falls, mut any) = (false, false, false);
    for residual in residuals {
        (rises, falls, any) = (rises || residual >= -slack, falls || residual <= slack, true);
    }
    !any || rises && falls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weighted_fit_passes_and_another_scale_does_not() {
        let values = [-7.6, -3.2, -1.1, 0.1, 0.9, 2.2, 4.4, 6.7];
        let integers = [-8.0, -3.0, -1.0, 0.0, 1.0, 2.0, 4.0, 7.0];
        let scaled = |scale: f32| integers.map(|integer: f32| integer * scale);
        for scale in [0.96, 1.0, 1.09] {
            assert!(may_be_fit(&values, &scaled(scale), false, 0.0), "{scale}");
        }
        for scale in [0.5, 1.2, 2.0, -1.0] {
            assert!(!may_be_fit(&values, &scaled(scale), false, 0.0), "{scale}");
        }
        let moved = |minimum: f32| integers.map(|integer: f32| integer + minimum);
        assert!(may_be_fit(&values, &moved(0.1), true, 0.0));
        assert!(!may_be_fit(&values, &moved(0.6), true, 0.0));
        let mut exchanged = integers;
        exchanged.swap(1, 6);
        assert!(!may_be_fit(&values, &exchanged, false, 0.0));
    }
}
