//! A row of a published table, and how the texts of its cells are read.

use girih_tensor::{Error, Result};

use crate::published::energy::PublishedPower;
use crate::published::measurement::Measurement;

/// A row of a table.
pub(super) struct TableRow<'a> {
    /// The table's file name.
    pub file: &'a str,
    /// The title of the second column, which tells apart the tables of one page; empty if unknown.
    pub column: &'a str,
    /// The cells; the first is the heading of the table in a page.
    pub cells: &'a [String],
}

/// What a row states.
pub(super) enum RowReading {
    Measured(Measurement),
    Power(PublishedPower),
    /// No measurement that can be simulated, for this reason.
    Skipped(String),
}

/// Why a row without a figure is skipped.
pub(super) const NO_FIGURE: &str = "the row has no time and no rate";

impl RowReading {
    /// A row that states no figure.
    pub fn no_figure() -> RowReading {
        RowReading::Skipped(NO_FIGURE.to_owned())
    }
}

impl TableRow<'_> {
    /// The text of a cell, empty if there is none.
    pub fn cell(&self, at: usize) -> &str {
        self.cells.get(at).map_or("", String::as_str)
    }

    /// Whether the row belongs to a table with this heading.
    pub fn is_of(&self, heading: &str) -> bool {
        self.cell(0).starts_with(heading)
    }

    /// Whether the row states that the design did not run.
    pub fn failed(&self) -> bool {
        self.cells.iter().any(|cell| cell.contains('❌'))
    }

    /// The time of the row in microseconds: the first cell after the heading that has one.
    pub fn latency(&self) -> Option<f64> {
        self.cells.iter().skip(1).find(|cell| time_unit(cell).is_some()).and_then(|cell| micros(cell))
    }

    /// A measurement of `micros` microseconds, if the row states them.
    pub fn measured(&self, micros: Option<f64>, make: impl FnOnce(f64) -> Measurement) -> RowReading {
        match micros {
            Some(micros) if TIMES.contains(&micros) => RowReading::Measured(make(micros)),
            Some(micros) if micros > 0.0 => {
                RowReading::Skipped(format!("no launch takes {micros:e} microseconds"))
            }
            _ => RowReading::no_figure(),
        }
    }
}

/// The microseconds that a row may state: less than a cycle and more than a day are no times.
const TIMES: std::ops::RangeInclusive<f64> = 1e-3..=1e11;

/// The cells of a line of CSV, without spaces at their ends; quoted cells may contain commas. An `x`
/// between digits is the sign `×`.
pub(super) fn cells(line: &str) -> Vec<String> {
    let (mut all, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut cell).trim().to_owned()),
            'x' if cell.ends_with(|digit: char| digit.is_ascii_digit())
                && letters.peek().is_some_and(char::is_ascii_digit) =>
            {
                cell.push('×');
            }
            _ => cell.push(letter),
        }
    }
    all.push(cell.trim().to_owned());
    all
}

/// The largest size that a row may contain.
pub(super) const MAX_TABLE_SIZE: u64 = 1 << 28;

/// The text without the commas that group digits by thousands.
fn ungrouped(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let digit = |at: usize| letters.get(at).is_some_and(char::is_ascii_digit);
    let groups = |at: usize| {
        let three = (1..=3).all(|next| digit(at + next)) && !digit(at + 4);
        letters[at] == ',' && at > 0 && digit(at - 1) && three
    };
    (0..letters.len()).filter(|&at| !groups(at)).map(|at| letters[at]).collect()
}

/// The sizes in a text, with any separators.
fn numbers(text: &str) -> Result<Vec<u64>> {
    let text = ungrouped(text);
    let mut sizes = Vec::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find(|letter: char| letter.is_ascii_digit()) {
        let end = rest[start..].find(|letter: char| !letter.is_ascii_digit());
        let (before, (digits, after)) =
            (&rest[..start], rest[start..].split_at(end.unwrap_or(rest.len() - start)));
        // `8-4` are two sizes, `-4` and `8×-4` have a sign.
        let signed = before.strip_suffix(['-', '−']);
        let negative = signed.is_some_and(|front| sizes.is_empty() || !front.trim().is_empty());
        let fraction = !sizes.is_empty() && before == ".";
        let size = digits.parse().ok().filter(|size| (1..=MAX_TABLE_SIZE).contains(size));
        match size.filter(|_| !negative && !fraction) {
            Some(size) => sizes.push(size),
            None => {
                let sentence = format!("{text:?} has a size that is not from 1 to {MAX_TABLE_SIZE}");
                return Err(Error::new(sentence));
            }
        }
        rest = after;
    }
    Ok(sizes)
}

/// The first `COUNT` sizes in a text.
pub(super) fn sizes<const COUNT: usize>(text: &str) -> Result<[u64; COUNT]> {
    let found = numbers(text)?.first_chunk().copied();
    found.ok_or_else(|| Error::new(format!("{text:?} has too few sizes: {COUNT} are needed")))
}

/// The sizes of a text that has exactly `COUNT`; `what` names the text in errors.
pub(super) fn all_sizes<const COUNT: usize>(what: &str, text: &str) -> Result<[u64; COUNT]> {
    let all = numbers(text)?;
    all.try_into()
        .map_err(|all| Error::new(format!("{what} {text:?} has the sizes {all:?}: {COUNT} are needed")))
}

/// The sizes of a tile, and its herd if the text names one: `64/512/32/128 (8×4)`.
pub(super) fn tile_and_herd(text: &str) -> Result<([u64; 4], Option<[u64; 2]>)> {
    let named = text.split_once(['(', '@']).map(|(tile, herd)| (tile, Some(herd)));
    let (tile, herd) = named.unwrap_or((text, None));
    Ok((all_sizes("the tile", tile)?, herd.map(sizes).transpose()?))
}

/// The operations of a matmul, times `unit`.
pub(super) fn operations([m, k, n]: [u64; 3], unit: f64) -> f64 {
    2.0 * unit * m as f64 * k as f64 * n as f64
}

/// The first number in a text, `437 µs`, or the middle of a range, `15.4–16.1 ms`. None if it is
/// negative or a bound.
pub(super) fn number(text: &str) -> Option<f64> {
    figure(text).map(|(value, _)| value)
}

/// The number of a text, and the text after it.
fn figure(text: &str) -> Option<(f64, String)> {
    let text = ungrouped(text);
    let start = text.find(|letter: char| letter.is_ascii_digit())?;
    let start = if text[..start].ends_with('.') { start - 1 } else { start };
    if text[..start].trim_end().ends_with(['-', '−', '<', '>', '≤', '≥']) {
        return None;
    }
    let (low, rest) = decimal(&text[start..])?;
    let high = rest.trim_start().strip_prefix(['–', '-']).and_then(|rest| decimal(rest.trim_start()));
    let (value, rest) = high.map_or((low, rest), |(high, rest)| ((low + high) / 2.0, rest));
    Some((value, rest.trim().to_owned()))
}

/// The decimal number that a text begins with, and the rest.
fn decimal(text: &str) -> Option<(f64, &str)> {
    let digits = |text: &str| text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let mut end = digits(text);
    if text[end..].starts_with('.') {
        end += 1 + digits(&text[end + 1..]);
    }
    if let Some(power) = text[end..].strip_prefix(['e', 'E']) {
        let sign = usize::from(power.starts_with(['-', '+']));
        let length = digits(&power[sign..]);
        end += if length > 0 { 1 + sign + length } else { 0 };
    }
    text[..end].parse().ok().map(|value| (value, &text[end..]))
}

/// The units of times, in microseconds.
const TIME_UNITS: [(&str, f64); 6] =
    [("ms", 1e3), ("µs", 1.0), ("μs", 1.0), ("us", 1.0), ("ns", 1e-3), ("s", 1e6)];

/// The number of a text and its unit, if the text is a time.
fn time_unit(text: &str) -> Option<(f64, f64)> {
    let (value, rest) = figure(text)?;
    let word = rest.split(|letter: char| !letter.is_alphabetic()).next().unwrap_or_default();
    let unit = TIME_UNITS.iter().find(|(name, _)| *name == word);
    unit.map(|(_, micros)| (value, *micros))
}

/// The microseconds of a text; without a unit they are microseconds.
pub(super) fn micros(text: &str) -> Option<f64> {
    time_unit(text).map(|(value, unit)| value * unit).or_else(|| number(text))
}
