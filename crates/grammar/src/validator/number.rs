//! Numbers of JSON as exact decimals: bounds and multiples are decided without rounding.

use std::cmp::Ordering;

use serde_json::Number;

/// The power of ten below which a mantissa lies, so that 38 digits fit into 127 bits.
const MANTISSA_END: i128 = 10i128.pow(38);

/// The end of the integers that are not held as doubles: 2^64.
const INTEGERS_END: f64 = 18_446_744_073_709_551_616.0;

/// The number `mantissa * 10^exponent`. The mantissa does not end with a zero; the exponent of zero is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExactNumber {
    mantissa: i128,
    exponent: i32,
}

impl ExactNumber {
    /// The value of a number; `None` if it has more than 38 digits. A double has the value of its shortest
    /// decimal text, but a whole one below 2^64 is that integer, so that it equals the integer's own text.
    pub fn of(number: &Number) -> Option<ExactNumber> {
        let whole = number.as_f64().filter(|value| number.is_f64() && value.fract() == 0.0);
        if let Some(value) = whole.filter(|value| value.abs() < INTEGERS_END) {
            return ExactNumber::new(value as i128, 0);
        }
        let text = number.to_string();
        let (decimal, exponent) = text.split_once(['e', 'E']).unwrap_or((&text, "0"));
        let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
        let mantissa = format!("{whole}{fraction}").parse::<i128>().ok()?;
        let digits = i32::try_from(fraction.len()).ok()?;
        ExactNumber::new(mantissa, exponent.parse::<i32>().ok()?.checked_sub(digits)?)
    }

    /// The value of a count.
    pub fn of_count(count: usize) -> ExactNumber {
        ExactNumber::new(count as i128, 0).expect("a count has at most 20 digits")
    }

    fn new(mut mantissa: i128, mut exponent: i32) -> Option<ExactNumber> {
        if mantissa == 0 {
            return Some(ExactNumber { mantissa, exponent: 0 });
        }
        while mantissa % 10 == 0 {
            mantissa /= 10;
            exponent = exponent.checked_add(1)?;
        }
        (mantissa.abs() < MANTISSA_END).then_some(ExactNumber { mantissa, exponent })
    }

    /// Whether it has no fraction.
    pub fn is_integer(self) -> bool {
        self.exponent >= 0
    }

    /// -1, 0 or 1.
    pub fn sign(self) -> i128 {
        self.mantissa.signum()
    }

    /// Whether it is an integer times a divisor other than 0; `None` if the division exceeds 127 bits.
    pub fn is_multiple_of(self, divisor: ExactNumber) -> Option<bool> {
        let shift = i64::from(self.exponent) - i64::from(divisor.exponent);
        if self.mantissa == 0 {
            return Some(true);
        }
        // The divisor has a factor of ten that the mantissa lacks.
        let Ok(shift) = u64::try_from(shift) else { return Some(false) };
        let modulus = divisor.mantissa.checked_abs()?;
        let remainder = (self.mantissa % modulus).checked_mul(power_of_ten(shift, modulus)?)? % modulus;
        Some(remainder == 0)
    }

    /// The place of the first digit: 1 for 1 to 9, 0 for 0.1 to 0.9.
    fn magnitude(self) -> i64 {
        i64::from(digits(self.mantissa)) + i64::from(self.exponent)
    }
}

impl Ord for ExactNumber {
    fn cmp(&self, other: &ExactNumber) -> Ordering {
        let by_sign = self.sign().cmp(&other.sign());
        if by_sign.is_ne() || self.mantissa == 0 {
            return by_sign;
        }
        let by_magnitude = self.magnitude().cmp(&other.magnitude());
        let by_magnitude = if self.sign() < 0 { by_magnitude.reverse() } else { by_magnitude };
        // With as many digits each, the mantissas compare as the numbers do.
        let most = digits(self.mantissa).max(digits(other.mantissa));
        let aligned = |number: &ExactNumber| number.mantissa * 10i128.pow(most - digits(number.mantissa));
        by_magnitude.then_with(|| aligned(self).cmp(&aligned(other)))
    }
}

impl PartialOrd for ExactNumber {
    fn partial_cmp(&self, other: &ExactNumber) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn digits(mantissa: i128) -> u32 {
    mantissa.unsigned_abs().checked_ilog10().map_or(1, |log| log + 1)
}

/// `10^exponent` modulo a number, by squaring; `None` if a product exceeds 127 bits.
fn power_of_ten(mut exponent: u64, modulus: i128) -> Option<i128> {
    let (mut result, mut square) = (1 % modulus, 10 % modulus);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result = result.checked_mul(square)? % modulus;
        }
        exponent /= 2;
        if exponent > 0 {
            square = square.checked_mul(square)? % modulus;
        }
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(text: &str) -> ExactNumber {
        ExactNumber::of(&serde_json::from_str(text).expect("a number")).expect("few digits")
    }

    #[test]
    fn numbers_have_the_order_of_their_values() {
        let ascending = [
            "-1e300",
            "-10.5",
            "-10",
            "-9.99",
            "-1e-300",
            "0",
            "5e-324",
            "0.1",
            "0.11",
            "0.9",
            "1",
            "1.5",
            "2",
            "9007199254740993",
            "9223372036854775807",
            "18446744073709551615",
            "1e20",
            "1.7e308",
        ];
        for (at, one) in ascending.iter().enumerate() {
            for (other_at, other) in ascending.iter().enumerate() {
                assert_eq!(exact(one).cmp(&exact(other)), at.cmp(&other_at), "{one} and {other}");
            }
        }
        for (one, other) in [
            ("1", "1.0"),
            ("100", "1e2"),
            ("0", "-0.0"),
            ("0.5", "5e-1"),
            ("5447849327824491520", "5447849327824491591.0"),
        ] {
            assert_eq!(exact(one), exact(other));
        }
    }

    #[test]
    fn integers_have_no_fraction() {
        for (text, expected) in
            [("1.0", true), ("1e3", true), ("-0.0", true), ("1.5", false), ("1e-1", false)]
        {
            assert_eq!(exact(text).is_integer(), expected, "{text}");
        }
    }

    #[test]
    fn multiples_are_exact() {
        let cases = [
            ("5447849327824491591", "1.5", true),
            ("5458209297800181090", "0.7", true),
            ("-262514677721118975", "12.5", true),
            ("9878109508220035", "2.5", true),
            ("9878109508220036", "2.5", false),
            ("5447849327824491592", "1.5", false),
            ("0.3", "0.1", true),
            ("0.35", "0.1", false),
            ("1e308", "7", false),
            ("1e308", "0.5", true),
            ("1e-7", "1e-8", true),
            ("1e-8", "1e-7", false),
            ("0", "3", true),
            ("7", "18446744073709551615", false),
        ];
        for (number, divisor, expected) in cases {
            assert_eq!(exact(number).is_multiple_of(exact(divisor)), Some(expected), "{number} of {divisor}");
        }
    }

    #[test]
    fn what_exceeds_the_digits_is_not_guessed() {
        assert_eq!(ExactNumber::new(MANTISSA_END + 1, 0), None);
        assert_eq!(ExactNumber::new(1, i32::MAX).and_then(|_| ExactNumber::new(10, i32::MAX)), None);
        let divisor = ExactNumber::new(MANTISSA_END - 1, 0).expect("38 digits");
        assert_eq!(exact("1e300").is_multiple_of(divisor), None);
    }
}
