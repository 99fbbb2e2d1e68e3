//! The spread of relative errors.

/// The median and the 90th percentile of absolute relative errors: 0.1 is 10 %.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ErrorSpread {
    /// The median; 0 without errors.
    pub median: f64,
    /// The 90th percentile; 0 without errors.
    pub high: f64,
    /// The number of errors.
    pub count: usize,
}

impl ErrorSpread {
    /// The spread of these errors.
    pub fn of(errors: impl Iterator<Item = f64>) -> ErrorSpread {
        let mut errors: Vec<f64> = errors.map(f64::abs).collect();
        errors.sort_by(f64::total_cmp);
        let at = |part: f64| errors.get(((errors.len() as f64 * part).ceil() as usize).max(1) - 1).copied();
        ErrorSpread { median: at(0.5).unwrap_or(0.0), high: at(0.9).unwrap_or(0.0), count: errors.len() }
    }
}
