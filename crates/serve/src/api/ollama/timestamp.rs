//! Moments in the form of RFC 3339.

use std::time::Duration;

use crate::calendar::since_1970;

/// This moment in UTC, such as `2026-01-31T12:00:00.123456789Z`.
pub fn now() -> String {
    rfc3339(since_1970())
}

/// A moment in UTC, from the time since the beginning of 1970. The date follows Howard Hinnant,
/// "chrono-compatible low-level date algorithms", `civil_from_days`.
pub fn rfc3339(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let days = seconds / 86_400 + 719_468; // since 0000-03-01
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let nanoseconds = since_1970.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_dates_and_times() {
        let of = |seconds, nanoseconds| rfc3339(Duration::new(seconds, nanoseconds));
        assert_eq!(of(0, 0), "1970-01-01T00:00:00.000000000Z");
        assert_eq!(of(951_782_400, 5), "2000-02-29T00:00:00.000000005Z");
        assert_eq!(of(1_709_251_199, 999_999_999), "2024-02-29T23:59:59.999999999Z");
        assert_eq!(of(1_709_251_200, 0), "2024-03-01T00:00:00.000000000Z");
        assert_eq!(of(4_107_542_399, 0), "2100-02-28T23:59:59.000000000Z");
        assert_eq!(of(4_107_542_400, 0), "2100-03-01T00:00:00.000000000Z");
    }
}
