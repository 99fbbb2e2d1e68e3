//! Sets of numbers as regular expressions over their decimal texts.
//!
//! A set holds all plain texts of a number (`1`, `1.0`, `1.00`) or none, so complements are exact;
//! minus zero is no text. What is written may be fewer texts: integers without a fraction, and no more
//! digits than the validator of finished replies computes with exactly.

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

/// From here on, doubles are whole numbers, and the shortest text of one may name its neighbour.
const FIRST_INEXACT: f64 = 9_007_199_254_740_992.0;

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
    /// The decimal digits of a number in a schema, which the validator compares replies with.
    ///
    /// # Errors
    /// When it has too many digits.
    pub fn of(number: &Number) -> Result<Decimal> {
        let text = match number.as_f64() {
            Some(value) if number.is_f64() && (FIRST_INEXACT..1e40).contains(&value.abs()) => {
                format!("{value:.0}")
            }
            _ => number.to_string(),
        };
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

    /// The shortest text of this number without an exponent.
    fn shortest_text(&self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let point = if self.fraction.is_empty() { "" } else { "." };
        format!("{sign}{}{point}{}", self.whole, self.fraction)
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

/// What a keyword demands of a number.
#[derive(Clone, Debug)]
pub(crate) struct NumberDemand {
    /// The texts of the numbers that satisfy it.
    texts: RegexAst,
    /// Whether the validator computes it exactly for few digits only.
    needs_few_digits: bool,
}

impl NumberDemand {
    /// A demand that the validator computes exactly for all numbers that are written.
    pub fn exact(texts: RegexAst) -> NumberDemand {
        NumberDemand { texts, needs_few_digits: false }
    }

    /// That a number is a multiple of `unit`. The validator divides doubles if `unit` has a fraction.
    ///
    /// # Errors
    /// As [`Decimal::multiples`].
    pub fn multiple_of(unit: &Decimal) -> Result<NumberDemand> {
        Ok(NumberDemand { texts: unit.multiples()?, needs_few_digits: !unit.is_integer() })
    }
}

/// A set of numbers: those that meet all demands.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberShape {
    parts: Vec<RegexAst>,
    /// The parts that the validator computes exactly for few digits only.
    inexact: Vec<RegexAst>,
    pub is_integer: bool,
    /// If set, the set has no other numbers than these.
    listed: Option<Vec<Decimal>>,
}

impl NumberShape {
    /// Keeps the numbers that meet a demand, or those that do not.
    pub fn keep(&mut self, demand: NumberDemand, holds: bool) {
        let parts = if demand.needs_few_digits { &mut self.inexact } else { &mut self.parts };
        parts.push(if holds { demand.texts } else { not(demand.texts) });
    }

    /// Keeps the numbers of a list.
    pub fn keep_listed(&mut self, numbers: Vec<Decimal>) {
        self.parts.push(RegexAst::Or(numbers.iter().map(Decimal::texts).collect()));
        self.listed.get_or_insert(numbers);
    }

    /// The texts that are written. Their digits are bounded, so that the validator and parsers which
    /// hold numbers in 64 bits read the same number; a listed number is written as it is.
    pub fn regex(&self) -> RegexAst {
        if self.parts.is_empty() && self.inexact.is_empty() && !self.is_integer {
            return regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?");
        }
        RegexAst::And([self.short_texts(), self.inexact.clone()].concat())
    }

    /// What the texts that are written match, besides the inexact parts.
    fn short_texts(&self) -> Vec<RegexAst> {
        let mut all = vec![match (&self.listed, self.is_integer) {
            (Some(listed), _) => {
                RegexAst::Or(listed.iter().map(|one| RegexAst::Literal(one.shortest_text())).collect())
            }
            (None, true) => regex("0|-?[1-9][0-9]{0,17}|[1-9][0-9]{18}"),
            (None, false) => numbers(),
        }];
        if !self.inexact.is_empty() || (self.listed.is_none() && !self.is_integer) {
            all.extend(few_digits());
        }
        all.extend(self.listed.as_ref().filter(|_| self.is_integer).map(|_| integers()));
        all.extend(self.parts.iter().cloned());
        all
    }

    /// Whether no text is written, whatever the inexact parts are: theirs are many states.
    pub fn is_unwritten(&self) -> bool {
        !self.inexact.is_empty() && is_empty_regex(&RegexAst::And(self.short_texts())) == Some(true)
    }

    /// Whether a set with demands verifiably has no number, of any number of digits. Where the
    /// validator rounds, it may find one.
    pub fn is_empty(&self) -> bool {
        let is_exact = !self.parts.is_empty() && self.inexact.is_empty();
        is_exact && is_empty_regex(&self.all_texts()) == Some(true)
    }

    /// Whether a set of which no text is written has numbers with more digits, as far as is known.
    pub fn lacks_digits(&self) -> bool {
        is_empty_regex(&self.all_texts()) != Some(true)
    }

    /// All texts without an exponent.
    fn all_texts(&self) -> RegexAst {
        let domain = if self.is_integer { RegexAst::And(vec![numbers(), integers()]) } else { numbers() };
        RegexAst::And([vec![domain], self.parts.clone(), self.inexact.clone()].concat())
    }
}

/// All texts without an exponent.
fn numbers() -> RegexAst {
    RegexAst::And(vec![regex(format!("-?{MAGNITUDE}")), not(regex(r"-0(\.0+)?"))])
}

/// What the texts of at most 15 digits match. A double holds 15 digits of any number, so its
/// shortest text is the number itself.
fn few_digits() -> [RegexAst; 2] {
    [regex("-?[0-9.]{1,16}"), not(regex("-?[0-9]{16}"))]
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
