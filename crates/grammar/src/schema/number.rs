//! Sets of numbers as regular expressions over their decimal texts.
//!
//! A set holds all plain texts of a number (`1`, `1.0`, `1.00`) or none, so complements are exact;
//! minus zero is no text. What is written may be fewer texts: integers without a fraction.

use girih_tensor::Result;
use llguidance::derivre::RegexAst;
use serde_json::Number;

use crate::limits::refused;

/// The maximum number of digits of a bound on either side of the point.
const MAX_DIGITS: i32 = 40;

/// The largest multiple whose automaton counts in 32 bits, without its point.
const MAX_COEFFICIENT: u32 = 100_000_000;

/// The largest number of digits behind its point.
const MAX_EXPONENT: u32 = 8;

/// A number as decimal digits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    negative: bool,
    /// Without leading zeros; `0` for zero.
    whole: String,
    /// Without trailing zeros.
    fraction: String,
}

impl Decimal {
    /// The decimal digits of a number in a schema.
    ///
    /// # Errors
    /// When it has too many digits.
    pub fn of(number: &Number) -> Result<Decimal> {
        let text = number.to_string();
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.as_str()),
        };
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let exponent: i32 = exponent.parse().unwrap_or(i32::MAX);
        let point = (whole.len() as i32).saturating_add(exponent);
        let digits = format!("{whole}{fraction}");
        if !(-MAX_DIGITS..=MAX_DIGITS).contains(&point) || digits.len() as i32 > MAX_DIGITS {
            return Err(refused(format!(
                "the number {text} has too many digits; the maximum is {MAX_DIGITS}"
            )));
        }
        let zeros = |count: i32| "0".repeat(count.max(0) as usize);
        let digits = format!("{}{digits}{}", zeros(1 - point), zeros(point - digits.len() as i32));
        let (whole, fraction) = digits.split_at(point.max(1) as usize);
        let whole = whole.trim_start_matches('0');
        let whole = if whole.is_empty() { "0" } else { whole }.to_owned();
        let fraction = fraction.trim_end_matches('0').to_owned();
        let negative = negative && (whole != "0" || !fraction.is_empty());
        Ok(Decimal { negative, whole, fraction })
    }

    /// Whether it has no fraction.
    pub fn is_integer(&self) -> bool {
        self.fraction.is_empty()
    }

    /// The texts of this number alone.
    pub fn texts(&self) -> RegexAst {
        let sign = if self.negative { "-" } else { "" };
        regex(match self.fraction.as_str() {
            "" => format!(r"{sign}{}(\.0+)?", self.whole),
            fraction => format!(r"{sign}{}\.{fraction}0*", self.whole),
        })
    }

    /// The texts of numbers above this one, or also of this one.
    pub fn above(&self, is_strict: bool) -> RegexAst {
        if !self.negative {
            return regex(self.magnitudes_above(is_strict));
        }
        // Above -5 are all numbers without a sign, and those whose magnitude is below 5.
        RegexAst::Or(vec![regex(MAGNITUDE), minus(self.magnitudes_below(is_strict))])
    }

    /// The texts of numbers below this one, or also of this one.
    pub fn below(&self, is_strict: bool) -> RegexAst {
        match self.negative {
            true => minus(regex(self.magnitudes_above(is_strict))),
            false => RegexAst::Or(vec![minus(regex(MAGNITUDE)), self.magnitudes_below(is_strict)]),
        }
    }

    fn magnitudes_below(&self, is_strict: bool) -> RegexAst {
        RegexAst::And(vec![regex(MAGNITUDE), not(regex(self.magnitudes_above(!is_strict)))])
    }

    /// The texts without a sign of magnitudes above this one's, or also of it.
    fn magnitudes_above(&self, is_strict: bool) -> String {
        let (whole, fraction) = (&self.whole, &self.fraction);
        let any_fraction = r"(\.[0-9]+)?";
        let mut options = match whole.as_str() {
            "0" => vec![format!("[1-9][0-9]*{any_fraction}")],
            _ => vec![format!("[1-9][0-9]{{{},}}{any_fraction}", whole.len())],
        };
        for (at, digit) in whole.bytes().enumerate().filter(|(_, digit)| (b'1'..b'9').contains(digit)) {
            let (kept, rest) = (&whole[..at], whole.len() - at - 1);
            options.push(format!("{kept}[{}-9][0-9]{{{rest}}}{any_fraction}", char::from(digit + 1)));
        }
        // A zero within the whole part may grow, too; a leading one may not.
        for (at, _) in whole.bytes().enumerate().filter(|(at, digit)| *at > 0 && *digit == b'0') {
            let (kept, rest) = (&whole[..at], whole.len() - at - 1);
            options.push(format!("{kept}[1-9][0-9]{{{rest}}}{any_fraction}"));
        }
        for (at, digit) in fraction.bytes().enumerate().filter(|(_, digit)| *digit < b'9') {
            options.push(format!(r"{whole}\.{}[{}-9][0-9]*", &fraction[..at], char::from(digit + 1)));
        }
        options.push(match (fraction.is_empty(), is_strict) {
            (true, false) => format!("{whole}{any_fraction}"),
            (true, true) => format!(r"{whole}\.[0-9]*[1-9][0-9]*"),
            (false, false) => format!(r"{whole}\.{fraction}[0-9]*"),
            (false, true) => format!(r"{whole}\.{fraction}[0-9]*[1-9][0-9]*"),
        });
        options.join("|")
    }

    /// The texts of multiples of this number, which is above 0.
    ///
    /// # Errors
    /// When it has too many digits.
    pub fn multiples(&self) -> Result<RegexAst> {
        let digits = format!("{}{}", self.whole, self.fraction);
        let exponent = self.fraction.len() as u32;
        let coefficient = digits.parse::<u32>().unwrap_or(u32::MAX);
        if coefficient == 0 || coefficient > MAX_COEFFICIENT || exponent > MAX_EXPONENT {
            return Err(refused(format!(
                "multipleOf {}.{} is not supported: use a number of 1 to 8 digits above 0",
                self.whole, self.fraction
            )));
        }
        let multiple = RegexAst::MultipleOf(coefficient, exponent);
        // Zeros may follow the last digit that counts: `1.50` for `1.5`, `3.0` for `3`.
        let padded = match exponent {
            0 => RegexAst::Concat(vec![multiple, regex(r"(\.0+)?")]),
            _ => RegexAst::Or(vec![
                RegexAst::And(vec![
                    RegexAst::Concat(vec![multiple.clone(), regex("0*")]),
                    regex(r"[0-9]+\.[0-9]+"),
                ]),
                multiple,
            ]),
        };
        Ok(RegexAst::Concat(vec![regex("-?"), padded]))
    }
}

/// A text without a sign.
const MAGNITUDE: &str = r"(0|[1-9][0-9]*)(\.[0-9]+)?";

/// A set of numbers: those in all of its parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberShape {
    pub parts: Vec<RegexAst>,
    pub is_integer: bool,
}

impl NumberShape {
    /// The texts that are written. Their digits are bounded, so that parsers which hold numbers in
    /// 64 bits read the same number.
    pub fn regex(&self) -> RegexAst {
        if self.parts.is_empty() && !self.is_integer {
            return regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?");
        }
        let domain = match self.is_integer {
            true => regex("0|-?[1-9][0-9]{0,17}|[1-9][0-9]{18}"),
            false => RegexAst::And(vec![
                regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"),
                regex("-?[0-9.]{1,16}"),
                not(regex(r"-0(\.0+)?")),
            ]),
        };
        RegexAst::And([vec![domain], self.parts.clone()].concat())
    }
}

/// All texts of integers.
pub(crate) fn integers() -> RegexAst {
    regex(r"-?(0|[1-9][0-9]*)(\.0+)?")
}

pub(crate) fn regex(text: impl Into<String>) -> RegexAst {
    RegexAst::Regex(text.into())
}

pub(crate) fn not(ast: RegexAst) -> RegexAst {
    RegexAst::Not(Box::new(ast))
}

fn minus(ast: RegexAst) -> RegexAst {
    RegexAst::Concat(vec![regex("-"), ast])
}

/// Whether an expression matches no text; `None` if that takes too long to find out.
pub(crate) fn is_empty_regex(ast: &RegexAst) -> Option<bool> {
    /// The work that is spent on one expression, in the units of the crate.
    const FUEL: u64 = 50_000;
    let mut builder = llguidance::derivre::RegexBuilder::new();
    let expression = builder.mk(ast).ok()?;
    if builder.exprset().is_positive(expression) {
        return Some(false);
    }
    builder.to_regex_limited(expression, FUEL).ok().map(|mut regex| regex.always_empty())
}
