//! Formats times, amounts and shares for readers.

/// A time in seconds, milliseconds or microseconds, whichever fits its size.
pub(in crate::report) fn millis(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{} s", number(s)),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s if s >= 0.001 => format!("{:.2} ms", s * 1e3),
        s if s > 0.0 => format!("{} µs", number(s * 1e6)),
        _ => "0".to_owned(),
    }
}

/// A number with three significant digits.
pub(in crate::report) fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// An amount with an SI prefix: `70.5 G`.
pub(in crate::report) fn amount(value: f64) -> String {
    const PREFIXES: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    match PREFIXES.iter().find(|(size, _)| value >= *size) {
        Some((size, prefix)) => format!("{} {prefix}", number(value / size)),
        None => format!("{} ", number(value)),
    }
}

/// A share in percent.
pub(in crate::report) fn percent(share: f64) -> String {
    match share * 100.0 {
        p if p >= 9.95 => format!("{p:.0} %"),
        p if p >= 0.05 => format!("{p:.1} %"),
        p if p > 0.0 => "< 0.1 %".to_owned(),
        _ => "0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(
            [0.844, 0.0421, 0.00245, 0.000_066].map(millis),
            ["844 ms", "42.1 ms", "2.45 ms", "66.0 µs"]
        );
        assert_eq!([70.5e9, 999.0, 0.25].map(amount), ["70.5 G", "999 ", "0.25 "]);
        assert_eq!([0.999, 0.0123, 0.0001, 0.0].map(percent), ["100 %", "1.2 %", "< 0.1 %", "0"]);
    }
}
