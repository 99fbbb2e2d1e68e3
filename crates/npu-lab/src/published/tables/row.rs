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

    /// The time of the row in microseconds: the first cell that has one.
    pub fn latency(&self) -> Option<f64> {
        let timed = |cell: &&String| cell.contains("µs") || cell.trim_end().ends_with("ms");
        self.cells.iter().find(timed).and_then(|cell| micros(cell))
    }

    /// A measurement of `micros` microseconds, if the row states them.
    pub fn measured(&self, micros: Option<f64>, make: impl FnOnce(f64) -> Measurement) -> RowReading {
        match micros.filter(|micros| *micros > 0.0 && micros.is_finite()) {
            Some(micros) => RowReading::Measured(make(micros)),
            None => RowReading::no_figure(),
        }
    }
}

/// The cells of a line of CSV; quoted cells may contain commas.
pub(super) fn cells(line: &str) -> Vec<String> {
    let (mut all, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut cell)),
            _ => cell.push(letter),
        }
    }
    all.push(cell);
    all
}

/// The largest size that a row may contain.
pub(super) const MAX_TABLE_SIZE: u64 = 1 << 28;

/// The sizes in a text, with any separators.
fn numbers(text: &str) -> Vec<u64> {
    let parts = text.split(|letter: char| !letter.is_ascii_digit());
    let sizes = parts.filter_map(|part| part.parse().ok());
    sizes.filter(|size| (1..=MAX_TABLE_SIZE).contains(size)).collect()
}

/// The first `COUNT` sizes in a text.
pub(super) fn sizes<const COUNT: usize>(text: &str) -> Result<[u64; COUNT]> {
    let found = numbers(text).first_chunk().copied();
    found.ok_or_else(|| Error::new(format!("{text:?} has too few sizes: {COUNT} are needed")))
}

/// The sizes of a text that has exactly `COUNT`; `what` names the text in errors.
pub(super) fn all_sizes<const COUNT: usize>(what: &str, text: &str) -> Result<[u64; COUNT]> {
    let all = numbers(text);
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

/// The first number in a text, `437 µs`, or the middle of a range, `15.4–16.1 ms`.
pub(super) fn number(text: &str) -> Option<f64> {
    let mut parts = text.split(|letter: char| !letter.is_ascii_digit() && letter != '.');
    let values: Vec<f64> = parts.by_ref().filter_map(|part| part.parse().ok()).collect();
    match (text.contains('–'), &values[..]) {
        (true, [low, high, ..]) => Some((low + high) / 2.0),
        (_, [value, ..]) => Some(*value),
        _ => None,
    }
}

/// The microseconds of a text in µs or ms.
pub(super) fn micros(text: &str) -> Option<f64> {
    let value = number(text)?;
    Some(if text.contains("ms") { value * 1e3 } else { value })
}
