//! `girih bench --sparse`: products with random matrices that leave out blocks of zeros, beside the same with all blocks.

use girih::DType;
use girih_cpu::kernels;
use girih_cpu::sparse_rate::{SparseCase, SparseRates, measure};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::output::print_json;

/// How a row is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SparseFormat {
    /// As a table.
    Md,
    /// As an array.
    Json,
    /// As an object with the array.
    JsonObject,
}

/// The formats that are timed, and the rows of activations.
const CASES: [(DType, usize); 4] = [(DType::Q4_0, 1), (DType::Q4_0, 64), (DType::BF16, 1), (DType::BF16, 64)];

/// The columns of the weights, as in Llama-3.2-1B.
const COLUMNS: usize = 2048;

/// Times each case with each density, in `rounds` rounds, by the kernels of an instruction set, or the fastest ones.
pub(super) fn run(
    isa: Option<&str>,
    (threads, rounds): (usize, usize),
    densities: &[f64],
    format: SparseFormat,
) -> Result<()> {
    let table = match isa {
        Some(isa) => kernels::by_name(isa)?,
        None => kernels::tables()[0],
    };
    if let Some(density) = densities.iter().find(|density| !(0.0..=1.0).contains(*density)) {
        return Err(Error::call(format!(
            "--sparse has the density {density}; shares from 0 to 1 are needed"
        )));
    }
    let mut rows = Vec::new();
    for (dtype, count) in CASES {
        for &density in densities {
            let case = SparseCase { dtype, columns: COLUMNS, rows: count, density };
            let row = SparseRow { case, rates: measure(&table, threads, case, rounds)? };
            if format == SparseFormat::Md {
                if rows.is_empty() {
                    print_line!("{}", SparseRow::heading())?;
                }
                print_line!("{}", row.markdown())?;
            }
            rows.push(row);
        }
    }
    let rows: Vec<Value> = rows.iter().map(SparseRow::json).collect();
    match format {
        SparseFormat::Md => Ok(()),
        SparseFormat::Json => print_json(&rows),
        SparseFormat::JsonObject => print_json(&json!({"rows": rows})),
    }
}

struct SparseRow {
    case: SparseCase,
    rates: SparseRates,
}

impl SparseRow {
    fn heading() -> &'static str {
        "| weights | rows | density | ns/element, all | sparse | GB/s stored, all | sparse | times as fast \
         | times density | largest difference |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    }

    /// The nanoseconds of an element, zeros included, and the stored bytes in a nanosecond; with all units and without
    /// zeros.
    fn speeds(&self) -> [(f64, f64); 2] {
        let medians = self.rates.medians();
        [0, 1].map(|index| {
            let nanoseconds = medians[index] * 1e9;
            (nanoseconds / self.rates.elements as f64, self.rates.bytes[index] as f64 / nanoseconds)
        })
    }

    fn markdown(&self) -> String {
        let [all, sparse] = self.speeds();
        let SparseCase { dtype, rows, density, .. } = self.case;
        let ratio = all.0 / sparse.0;
        format!(
            "| {dtype} | {rows} | {density} | {:.4} | {:.4} | {:.1} | {:.1} | {ratio:.2} | {:.2} | {:e} |",
            all.0,
            sparse.0,
            all.1,
            sparse.1,
            ratio * density,
            self.rates.largest_difference
        )
    }

    fn json(&self) -> Value {
        let [all, sparse] = self.speeds();
        let of = |index: usize, (element, rate): (f64, f64)| json!({"ns_per_element": element, "gb_s": rate, "bytes": self.rates.bytes[index]});
        json!({
            "weights": self.case.dtype.name(),
            "rows": self.case.rows,
            "columns": self.case.columns,
            "density": self.case.density,
            "all_blocks": of(0, all),
            "sparse": of(1, sparse),
            "times_as_fast": all.0 / sparse.0,
            "largest_difference": self.rates.largest_difference,
        })
    }
}
