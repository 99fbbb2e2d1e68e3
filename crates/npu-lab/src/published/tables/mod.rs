//! Reads the published tables: the design and the time of each row.

mod air;
mod columns;
mod gemma;
mod paper;
mod row;
#[cfg(test)]
mod tests;

use girih_tensor::{Error, Result};

use super::energy::PublishedPower;
use super::measurement::Measurement;
use columns::Columns;
use row::{NO_FIGURE, RowReading, TableRow};

/// Reads a row.
type RowReader = fn(&TableRow<'_>) -> Result<Vec<RowReading>>;

/// Files that lie beside published tables and are no measurements, and why.
const OTHER_FILES: &[(&str, &str)] = &[
    ("npuw_llm_options_defaults.csv", "it lists options"),
    ("npuw_on_cpu_oracle_check.csv", "it compares tokens"),
    ("overheads_dispatch_reconfig.csv", "it lists overheads, which are figures of the targets"),
    ("power_fastflowlm_llama3.csv", "it lists power, to which figures of the targets are fitted"),
    ("simulators.csv", "it lists simulators"),
    ("xdna_dpm_clocks.csv", "it lists clocks"),
];

/// The tables: file, first cell of the line that names the columns, cells up to the
/// figure, and reader.
const TABLES: &[(&str, &str, usize, RowReader)] = &[
    ("gemm_gemma3_paper_megatile.csv", "megatile_MxKxN_as_written", 2, |row| one(paper::megatile(row))),
    ("gemm_xdna_xdna2_striking_the_balance.csv", "table", 14, |row| one(paper::balance(row))),
    ("mlir_air_kernel_EltwiseAdd_bf16.csv", PAGE, 4, |row| one(air::add(row))),
    ("mlir_air_kernel_FlashAttention_bf16.csv", PAGE, 7, |row| one(air::flash(row))),
    ("mlir_air_kernel_GELU_bf16.csv", PAGE, 4, |row| one(air::gelu(row))),
    ("mlir_air_kernel_GEMM_bf16_in_bf16_out.csv", PAGE, 5, |row| one(air::gemm_bf16(row))),
    ("mlir_air_kernel_GEMM_bf16_in_fp32_out.csv", PAGE, 5, air::gemm_f32),
    ("mlir_air_kernel_GEMV_bf16.csv", PAGE, 4, |row| one(air::gemv(row))),
    ("mlir_air_kernel_LayerNorm_bf16.csv", PAGE, 3, |row| one(air::layer_norm(row))),
    ("mlir_air_kernel_RMSNorm_bf16.csv", PAGE, 3, |row| one(air::rms_norm(row))),
    ("mlir_air_kernel_RoPE_bf16.csv", PAGE, 4, |row| one(air::rope(row))),
    ("mlir_air_kernel_SiLU_Mul_bf16.csv", PAGE, 4, |row| one(air::silu(row))),
    ("mlir_air_llama1b_kernel_breakdown.csv", "phase", 4, |row| one(air::breakdown(row))),
    ("power_seed001_table5.csv", "category", 5, |row| one(gemma::power(row))),
    ("seed001_gemma3_kraken.csv", "model", 5, gemma::steps),
];

/// The first cell of the line that names the columns of a table of a page of mlir-air.
const PAGE: &str = "section";

fn one(reading: Result<RowReading>) -> Result<Vec<RowReading>> {
    Ok(vec![reading?])
}

/// What a table states.
#[derive(Clone, Debug, Default)]
pub(super) struct TableContent {
    pub measurements: Vec<Measurement>,
    pub powers: Vec<PublishedPower>,
}

/// Reads the measurements of a table that can be simulated. Adds a sentence to `skipped` for
/// the rows that cannot, such as those whose sizes do not fit their tiles, and for a file that has
/// no measurements.
///
/// # Errors
/// When the table is unknown.
pub(super) fn read(file: &str, text: &str, skipped: &mut Vec<String>) -> Result<TableContent> {
    let mut content = TableContent::default();
    let Some((_, first, needed, read)) = TABLES.iter().find(|(name, ..)| *name == file) else {
        let (_, why) = OTHER_FILES.iter().find(|(name, _)| *name == file).ok_or_else(|| {
            let sentence = "is an unknown table: the names of files tell their forms apart; correct its name";
            Error::new(sentence).of(file)
        })?;
        skipped.push(format!("{file}: {why}"));
        return Ok(content);
    };
    let mut left = SkippedRows::default();
    let mut columns = Columns::of_table(file, first);
    // Lines with `#` state the source, or the title of one of several tables.
    let text = text.trim_start_matches('\u{feff}');
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let cells = row::cells(line);
        if columns.read_titles(&cells) {
            continue;
        }
        let is_short = columns.lacks(*needed, &cells);
        let cells = columns.in_order(cells);
        let row = TableRow { file, column: columns.second(), cells: &cells };
        if row.failed() {
            left.add(&row, "the design did not run".to_owned());
            continue;
        }
        if is_short {
            left.add(&row, NO_FIGURE.to_owned());
            continue;
        }
        for reading in read(&row).unwrap_or_else(|error| vec![RowReading::Skipped(error.to_string())]) {
            match reading {
                RowReading::Measured(one) => match one.fits() {
                    Ok(()) => content.measurements.push(one),
                    Err(error) => left.add(&row, error.to_string()),
                },
                RowReading::Power(power) => content.powers.push(power),
                RowReading::Skipped(reason) => left.add(&row, reason),
            }
        }
    }
    if content.measurements.is_empty() && content.powers.is_empty() && left.parts.is_empty() {
        skipped.push(format!("{file}: it has no rows"));
    }
    skipped.extend(left.sentences(file));
    Ok(content)
}

/// The maximum letters of a row in a sentence.
const MAX_SHOWN: usize = 160;

/// A row as it is printed: no control characters, and cut if it is long.
fn shown(row: &str) -> String {
    let letters = row.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let cut: String = letters.take(MAX_SHOWN).collect();
    if row.chars().nth(MAX_SHOWN).is_some() { cut + "…" } else { cut }
}

/// The rows of a table that are not simulated.
#[derive(Default)]
struct SkippedRows {
    /// For each heading and reason: the first row, and the number of rows.
    parts: Vec<(String, String, String, usize)>,
}

impl SkippedRows {
    fn add(&mut self, row: &TableRow<'_>, reason: String) {
        let heading = row.cell(0);
        match self.parts.iter_mut().find(|(known, why, ..)| known == heading && *why == reason) {
            Some((.., count)) => *count += 1,
            None => self.parts.push((heading.to_owned(), reason, shown(&row.cells.join(",")), 1)),
        }
    }

    fn sentences(self, file: &str) -> Vec<String> {
        let sentence = |(heading, reason, row, count): (String, String, String, usize)| match count {
            1 => format!("{file}: {row}: {reason}"),
            _ => format!("{file}: {count} rows of {heading:?}: {reason}"),
        };
        self.parts.into_iter().map(sentence).collect()
    }
}
