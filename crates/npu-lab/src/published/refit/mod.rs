//! Fits all figures again without the rows of a family of kernels, and tests them on these rows.
//!
//! Figures that have rows left are fitted to them. The others follow from figures that do: cycles of loops
//! from their public sources and the latencies of instructions, bandwidth from a measurement. So
//! the errors say what a prediction of kernels is worth that nobody has measured.

mod attention_code;
mod chain;
mod derived;
mod family;
mod figures;
mod function_code;
mod groups;
mod kernel_code;
mod loop_schedule;
mod product_code;
mod search;
mod vector_loops;

use std::fmt;

use girih_tensor::Result;

pub use derived::{derived_core_figures, derived_kernel_figures};
pub use family::KernelFamily;
use figures::{FigureValues, FittedFigure};
use groups::{FitGroup, GROUPS};
use search::{FitRow, fit, times};

use super::built_in::built_in_tables;
use super::fits::is_fitted;
use super::measurement::{MeasuredSubject, Measurement};
use super::spread::ErrorSpread;
use super::tables;

/// Rounds over all figures: in the second, each is fitted with the others of the first.
const ROUNDS: usize = 2;

/// A figure before and after a refit.
#[derive(Clone, Debug, PartialEq)]
pub struct RefitFigure {
    /// The file and the path, such as `aie2p add.vector`.
    pub name: String,
    /// The value of the repository, in the unit of the figure's file.
    pub committed: f64,
    /// The value without the rows of the family, in the same unit.
    pub refit: f64,
    /// Rows that it was fitted to, or what it follows from.
    pub source: RefitSource,
}

/// What a refitted figure rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefitSource {
    /// It was fitted to this number of rows.
    Rows(usize),
    /// It has no rows left, and follows from other figures.
    Derived(&'static str),
}

/// A row of the family.
#[derive(Clone, Debug)]
pub struct LeftOutRow {
    /// What was measured.
    pub measured: Measurement,
    /// Simulated microseconds with the refitted figures, to which the row did not contribute.
    pub refit: f64,
    /// Simulated microseconds with the figures of the repository.
    pub committed: f64,
}

/// Figures that were fitted without a family, and the family's rows.
#[derive(Clone, Debug)]
pub struct LeftOut {
    /// The family; none if all rows were fitted to.
    pub family: Option<KernelFamily>,
    /// All fitted figures.
    pub figures: Vec<RefitFigure>,
    /// The rows of the family, or all rows of kernels.
    pub rows: Vec<LeftOutRow>,
}

/// Fits all figures without the rows of a family, and simulates the family's rows of the tables
/// `files`, given as name and text. Without a family, it fits to all rows and simulates all rows of kernels.
/// Rows that are fitted to are those of the built-in tables. `watch` is called with the groups of figures that
/// are fitted and with their number.
///
/// # Errors
/// When a table is unknown, or a row's program does not fit its target.
pub fn leave_out(
    files: &[(String, String)],
    family: Option<KernelFamily>,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<LeftOut> {
    let training = training_rows(family)?;
    let committed = FigureValues::committed()?;
    let mut values = committed.clone();
    let groups: Vec<(&FitGroup, Vec<&FitRow>)> =
        GROUPS.iter().map(|group| (group, group.rows(&training))).collect();
    let (mut done, total) = (0, ROUNDS * groups.len());
    for _ in 0..ROUNDS {
        for (group, rows) in groups.iter().filter(|(_, rows)| !rows.is_empty()) {
            fit(&mut values, group, rows)?;
            done += 1;
            watch(done, total);
        }
        for (group, _) in groups.iter().filter(|(_, rows)| rows.is_empty()) {
            group.figures.iter().try_for_each(|figure| values.derive(figure))?;
            done += 1;
            watch(done, total);
        }
    }
    let tests = test_rows(files, family)?;
    let rows: Vec<&FitRow> = tests.iter().collect();
    let (refit, before) = (times(&values, &rows)?, times(&committed, &rows)?);
    let row = |((row, refit), committed): ((&FitRow, f64), f64)| LeftOutRow {
        measured: row.measured.clone(),
        refit,
        committed,
    };
    let rows = tests.iter().zip(refit).zip(before).map(row).collect();
    let figures = groups.iter().flat_map(|(group, rows)| described(group, rows.len(), &committed, &values));
    Ok(LeftOut { family, figures: figures.collect(), rows })
}

/// The rows of kernels in tables that `keep` accepts.
fn rows_of(files: &[(String, String)], keep: impl Fn(&Measurement) -> bool) -> Result<Vec<FitRow>> {
    let mut rows = Vec::new();
    for (name, text) in files {
        let content = tables::read(name, text, &mut Vec::new())?;
        rows.extend(content.measurements.into_iter().filter(&keep).filter_map(FitRow::of));
    }
    Ok(rows)
}

/// The built-in rows in which no launch is of the family.
fn training_rows(family: Option<KernelFamily>) -> Result<Vec<FitRow>> {
    rows_of(&built_in_tables(), |row| match (&row.subject, family) {
        (MeasuredSubject::Launches(workload), Some(family)) => !family.is_in(workload),
        _ => true,
    })
}

/// The rows of the family.
fn test_rows(files: &[(String, String)], family: Option<KernelFamily>) -> Result<Vec<FitRow>> {
    rows_of(files, |row| match &row.subject {
        MeasuredSubject::Launches(workload) => {
            let of = KernelFamily::of_launch(workload);
            family.map_or(of.is_some(), |family| of == Some(family))
        }
        MeasuredSubject::Steps(_) => false,
    })
}

fn described(group: &FitGroup, rows: usize, before: &FigureValues, after: &FigureValues) -> Vec<RefitFigure> {
    let figure = |figure: &FittedFigure| {
        let (file, path) = figure.id();
        let source = match &figure.without {
            Some(without) if rows == 0 => RefitSource::Derived(without.reason),
            _ => RefitSource::Rows(rows),
        };
        RefitFigure {
            name: format!("{file} {path}"),
            committed: before.of_figure(figure),
            refit: after.of_figure(figure),
            source,
        }
    };
    group.figures.iter().map(figure).collect()
}

impl FitGroup {
    /// The rows that its figures are fitted to.
    fn rows<'a>(&self, rows: &'a [FitRow]) -> Vec<&'a FitRow> {
        let fitted = |row: &&FitRow| {
            self.fits.iter().any(|figures| is_fitted(&row.measured.table, &row.measured.label, figures))
        };
        let own: Vec<&FitRow> = rows.iter().filter(fitted).collect();
        let spare = |row: &&FitRow| {
            let of = |(table, label): &(&str, &str)| {
                row.measured.table == *table && row.measured.label.starts_with(label)
            };
            self.spare.iter().any(of)
        };
        if own.is_empty() { rows.iter().filter(spare).collect() } else { own }
    }
}

impl LeftOut {
    /// The errors with the refitted figures and with those of the repository.
    pub fn spreads(&self) -> [ErrorSpread; 2] {
        let errors = |time: fn(&LeftOutRow) -> f64| {
            ErrorSpread::of(self.rows.iter().map(|row| time(row) / row.measured.micros - 1.0))
        };
        [errors(|row| row.refit), errors(|row| row.committed)]
    }

    /// The name of what was left out.
    pub fn name(&self) -> &'static str {
        self.family.map_or("nothing", KernelFamily::name)
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<37} {:>12} {:>12}  from", "figure", "repository", "refit")?;
        for RefitFigure { name, committed, refit, source } in &self.figures {
            let [committed, refit] = [committed, refit].map(|value| short(*value));
            write!(f, "{name:<37} {committed:>12} {refit:>12}  ")?;
            match source {
                RefitSource::Rows(1) => writeln!(f, "1 row")?,
                RefitSource::Rows(rows) => writeln!(f, "{rows} rows")?,
                RefitSource::Derived(reason) => writeln!(f, "{reason}")?,
            }
        }
        writeln!(f, "{:>10} {:>10} {:>7} {:>10}  row", "measured", "left out", "error", "repository")?;
        for LeftOutRow { measured, refit, committed } in &self.rows {
            let error = |time: f64| (time / measured.micros - 1.0) * 100.0;
            let label = &measured.label;
            writeln!(
                f,
                "{:>8.0}us {refit:>8.0}us {:>+6.1}% {:>+9.1}%  {label}",
                measured.micros,
                error(*refit),
                error(*committed)
            )?;
        }
        Ok(())
    }
}

/// A figure with few digits.
fn short(value: f64) -> String {
    if value >= 1e6 { format!("{:.1}e9", value * 1e-9) } else { format!("{value:.2}") }
}

/// Prints the table of families.
#[derive(Clone, Copy, Debug)]
pub struct LeftOutTable<'a>(pub &'a [LeftOut]);

impl fmt::Display for LeftOutTable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<10} {:>5} {:>8} {:>8} {:>12} {:>8}",
            "left out", "rows", "median", "90th", "repository", "90th"
        )?;
        for one in self.0 {
            let [refit, committed] = one.spreads();
            let percent = |part: f64| format!("{:.1}%", part * 100.0);
            let [median, high] = [refit.median, refit.high].map(percent);
            let [before, before_high] = [committed.median, committed.high].map(percent);
            writeln!(
                f,
                "{:<10} {:>5} {median:>8} {high:>8} {before:>12} {before_high:>8}",
                one.name(),
                refit.count
            )?;
        }
        Ok(())
    }
}
