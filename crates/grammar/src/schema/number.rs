//! Sets of numbers as regular expressions over their decimal texts.
//!
//! A set holds all plain texts of a number (`1`, `1.0`, `1.00`) or none, so complements are exact;
//! minus zero is no text. What is written may be fewer texts: integers without a fraction, and numbers of
//! few digits. A number of `const` or `enum` that has more is written as the schema has it.

use girih_tensor::{Error, Result};
use llguidance::derivre::{Regex, RegexAst, RegexBuilder};
use serde_json::Number;

use crate::limits::refused;

/// The maximum number of digits of a number in a schema on either side of its point.
const MAX_DIGITS: i32 = 40;

/// The end of the integers that validators hold exactly, also where they are written as doubles: 2^64.
const INTEGERS_END: f64 = 18_446_744_073_709_551_616.0;

/// Any number with at most this many characters behind its sign can be written plainly.
const ALWAYS_WRITTEN: usize = 16;

/// The largest multiple, without its point and zeros at its ends. The lexer's automaton has as many states for
/// each digit, and the search for a text that is left takes as many steps, which nothing bounds.
const MAX_COEFFICIENT: u32 = 1024;

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
    /// The decimal digits of a keyword's number: those of its shortest text, but a double that is an integer
    /// below 2^64 is that integer.
    ///
    /// # Errors
    /// When it has too many digits; names the keyword.
    pub fn of(keyword: &str, number: &Number) -> Result<Decimal> {
        let is_whole = |value: &f64| number.is_f64() && value.fract() == 0.0 && value.abs() < INTEGERS_END;
        let whole = number.as_f64().filter(is_whole);
        let text = whole.map_or_else(|| number.to_string(), |value| (value as i128).to_string());
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
                "the schema's {keyword} {number} has more digits than the {MAX_DIGITS} that are supported on each \
                 side of the point: use a number with fewer"
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

    /// The shortest plain text.
    fn plain(&self) -> String {
        let sign = if self.negative { "-" } else { "" };
        let point = if self.is_integer() { "" } else { "." };
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
        // An integer's zeros at the end need no automaton: those of its multiples are there, too.
        let counted = if self.is_integer() { digits.trim_end_matches('0') } else { &digits };
        let zeros = digits.len() - counted.len();
        let coefficient = counted.parse::<u32>().unwrap_or(u32::MAX);
        if coefficient == 0 || coefficient > MAX_COEFFICIENT || exponent > MAX_EXPONENT {
            return Err(refused(format!(
                "multipleOf {} is not supported: without its point and the zeros at its ends it must be 1 to \
                 {MAX_COEFFICIENT}, with at most {MAX_EXPONENT} digits behind the point",
                self.plain()
            )));
        }
        let mut options = Vec::new();
        let mut unit = coefficient;
        // The automaton is exact for texts with all of its digits behind the point, so each number of digits has
        // its own: 5 tenths and 50 hundredths are multiples of 25 hundredths.
        for digits in (0..=exponent).rev() {
            let multiple = RegexAst::MultipleOf(unit, digits);
            options.push(match digits {
                0 => {
                    let multiple = RegexAst::Concat(vec![multiple, regex("0".repeat(zeros))]);
                    RegexAst::Concat(vec![RegexAst::Or(vec![regex("0"), multiple]), regex(r"(\.0+)?")])
                }
                digits => {
                    let texts = RegexAst::And(vec![multiple, regex(format!(r"[0-9]+\.[0-9]{{{digits}}}"))]);
                    RegexAst::Concat(vec![texts, regex("0*")])
                }
            });
            for factor in [2, 5] {
                unit /= if unit % factor == 0 { factor } else { 1 };
            }
        }
        Ok(RegexAst::Concat(vec![regex("-?"), RegexAst::Or(options)]))
    }
}

/// A text without a sign.
const MAGNITUDE: &str = r"(0|[1-9][0-9]*)(\.[0-9]+)?";

/// What a keyword demands of numbers.
#[derive(Clone, Debug)]
pub(crate) struct NumberDemand {
    pub keyword: &'static str,
    pub texts: RegexAst,
}

impl NumberDemand {
    /// The demand that this one is not met.
    pub fn negated(self) -> NumberDemand {
        NumberDemand { texts: not(self.texts), ..self }
    }
}

/// A number of `const` or `enum`.
#[derive(Clone, Debug)]
pub(crate) struct ListedNumber {
    pub number: Number,
    pub value: Decimal,
}

/// A set of numbers: those that meet all demands.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberShape {
    pub demands: Vec<NumberDemand>,
    pub is_integer: bool,
    /// Numbers that lists have. Demands exclude those that other lists lack.
    listed: Vec<ListedNumber>,
}

impl NumberShape {
    /// Demands one of some numbers, or none of them; `false` if no number is left.
    pub fn demand_listed(&mut self, listed: Vec<ListedNumber>, is_one: bool) -> bool {
        if listed.is_empty() {
            return !is_one;
        }
        let texts = RegexAst::Or(listed.iter().map(|listed| listed.value.texts()).collect());
        let demand = NumberDemand { keyword: "const or enum", texts };
        self.demands.push(if is_one { demand } else { demand.negated() });
        if is_one {
            self.is_integer |= listed.iter().all(|listed| listed.value.is_integer());
            self.listed
                .extend(listed.into_iter().filter(|listed| listed.value.plain().len() > ALWAYS_WRITTEN));
        }
        true
    }

    /// The texts that are written. Their digits are bounded, so that parsers which hold numbers in
    /// 64 bits read the same number.
    ///
    /// # Errors
    /// When a number of a list is too complex to decide, or is not read as it is written.
    pub fn written(&self) -> Result<RegexAst> {
        if self.demands.is_empty() && !self.is_integer {
            return Ok(regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?"));
        }
        let plain = match self.is_integer {
            true => regex("0|-?[1-9][0-9]{0,17}|[1-9][0-9]{18}"),
            false => RegexAst::And(vec![plain_texts(), regex("-?[0-9.]{1,16}")]),
        };
        let within = |texts: RegexAst| RegexAst::And([vec![texts], self.demanded()].concat());
        if self.listed.is_empty() {
            return Ok(within(plain));
        }
        let (mut is_plain, mut is_in_set) = (matcher(&plain)?, matcher(&self.all())?);
        let mut options = Vec::new();
        for ListedNumber { number, value } in &self.listed {
            let text = value.plain();
            if is_plain.is_match(&text) || !is_in_set.is_match(&text) {
                continue;
            }
            let own_text = number.to_string().replace("e+", "e");
            if serde_json::from_str::<Number>(&own_text).ok().as_ref() != Some(number) {
                return Err(refused(format!(
                    "the schema's const or enum has {own_text}, which is not read as it is written: use at most 15 digits"
                )));
            }
            options.push(RegexAst::Literal(own_text));
        }
        options.push(within(plain));
        Ok(RegexAst::Or(options))
    }

    /// All plain texts of the set, also those with more digits than are written.
    pub fn all(&self) -> RegexAst {
        let plain = if self.is_integer { integers() } else { plain_texts() };
        RegexAst::And([vec![plain], self.demanded()].concat())
    }

    fn demanded(&self) -> Vec<RegexAst> {
        self.demands.iter().map(|demand| demand.texts.clone()).collect()
    }

    /// The refusal of a set whose numbers all have more digits than are written.
    pub fn too_long(&self) -> Error {
        let mut keywords: Vec<&str> = self.demands.iter().map(|demand| demand.keyword).collect();
        keywords.sort_unstable();
        keywords.dedup();
        let digits = if self.is_integer { "19 digits" } else { "16 digits, or 15 with a point" };
        refused(format!(
            "the schema's {} leaves only numbers of more than {digits}, which are not written: widen it, or list the \
             numbers in enum",
            keywords.join(" with ")
        ))
    }
}

/// All plain texts of numbers.
fn plain_texts() -> RegexAst {
    RegexAst::And(vec![regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"), not(regex(r"-0(\.0+)?"))])
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

/// The work that is spent on one expression, in the units of the crate.
const FUEL: u64 = 50_000;

/// An expression that texts can be matched with.
///
/// # Errors
/// When that takes too much work.
pub(crate) fn matcher(ast: &RegexAst) -> Result<Regex> {
    let mut builder = RegexBuilder::new();
    let regex = builder.mk(ast).and_then(|expression| builder.to_regex_limited(expression, FUEL));
    regex.map_err(|_| refused("a pattern, bound or enum of the schema is too complex: simplify it"))
}

/// Whether an expression matches no text; `None` if that takes too long to find out.
pub(crate) fn is_empty_regex(ast: &RegexAst) -> Option<bool> {
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(ast).ok()?;
    if builder.exprset().is_positive(expression) {
        return Some(false);
    }
    builder.to_regex_limited(expression, FUEL).ok().map(|mut regex| regex.always_empty())
}
