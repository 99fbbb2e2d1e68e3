//! The columns of a table by their titles, so that a table with the same columns in another order is
//! read as it is.

use super::row;
use crate::published::built_in::built_in_tables;

/// Where a table has the columns that its readers expect.
pub(super) struct Columns {
    /// The title that each line of titles has.
    first: &'static str,
    /// The lines of titles of the table of this name in the repository; readers expect their order.
    known: Vec<Vec<String>>,
    /// The place of each expected column; `None` if the table lacks it. Empty before the first line of
    /// titles, when columns are in order.
    places: Vec<Option<usize>>,
    /// The title of the second expected column.
    second: String,
    /// The number of titles.
    count: usize,
}

impl Columns {
    /// Those of a file before its first line of titles.
    pub fn of_table(file: &str, first: &'static str) -> Columns {
        let text = built_in_tables().into_iter().find(|(name, _)| name == file).map(|(_, text)| text);
        let lines = text.iter().flat_map(|text| text.lines()).map(row::cells);
        let known = lines.filter(|cells| cells[0] == first).collect();
        Columns { first, known, places: Vec::new(), second: String::new(), count: usize::MAX }
    }

    /// Whether the cells are titles; then the next rows have these columns.
    pub fn read_titles(&mut self, titles: &[String]) -> bool {
        if !titles.iter().any(|title| title == self.first) {
            return false;
        }
        let shared = |known: &Vec<String>| known.iter().filter(|title| titles.contains(title)).count();
        // Of equal ones the first.
        let known = self.known.iter().rev().max_by_key(|known| shared(known)).cloned().unwrap_or_default();
        let place = |(at, title): (usize, &String)| {
            // A column without a title or with another one is in its place, unless a known column is there.
            let renamed = || titles.get(at).is_none_or(|title| !known.contains(title)).then_some(at);
            titles.iter().position(|one| one == title).or_else(renamed)
        };
        self.places = known.iter().enumerate().map(place).collect();
        let second = self.places.get(1).copied().unwrap_or(Some(1));
        self.count = titles.len();
        self.second = second.and_then(|at| titles.get(at)).cloned().unwrap_or_default();
        true
    }

    /// The title of the second column; empty if unknown.
    pub fn second(&self) -> &str {
        &self.second
    }

    /// Whether a row has fewer than its first `needed` cells, or fewer than all titles.
    pub fn lacks(&self, needed: usize, cells: &[String]) -> bool {
        cells.len() < needed.min(self.count)
    }

    /// The cells of a row in the expected order, followed by those of other columns.
    pub fn in_order(&self, cells: Vec<String>) -> Vec<String> {
        let ordered = self.places.iter().map(|place| place.and_then(|at| cells.get(at)).cloned());
        let others = (0..cells.len()).filter(|at| !self.places.contains(&Some(*at)));
        let others = others.map(|at| cells[at].clone());
        ordered.map(Option::unwrap_or_default).chain(others).collect()
    }
}
