//! Reads the tables of the Gemma 3 mapping (Du et al., *Mapping Gemma3 onto an Edge Dataflow
//! Architecture*): times of whole models, and the power of the NPU.

use girih_tensor::Result;

use super::row::{RowReading, TableRow, number};
use crate::published::energy::PublishedPower;
use crate::published::measurement::{MeasuredSubject, Measurement, ModelSteps, RowRole, StepKind};
use crate::published::steps::missing;

/// The target of the tables: the board, with the bandwidth that its paper states.
const TARGET: &str = "xdna2-kraken@cap-2025";

/// Times of prefills and of tokens, for the programs that girih compiles, with the host.
pub(super) fn steps(row: &TableRow<'_>) -> Result<Vec<RowReading>> {
    let skipped = |reason: &str| Ok(vec![RowReading::Skipped(reason.to_owned())]);
    let (model, metric) = (row.cell(0), row.cell(1));
    if row.cell(2) != "NPU" {
        return skipped("it ran on the CPU or on the integrated GPU");
    }
    let (table, role) = (row.file.to_owned(), RowRole::HeldOut);
    if metric == "vision_tower_TTFT_s" {
        let steps = ModelSteps { model: model.to_owned(), kind: StepKind::Image };
        let (subject, label) = (MeasuredSubject::Steps(steps), format!("{model} image tower"));
        let micros = number(row.cell(4)).map(|seconds| seconds * 1e6);
        let make = |micros| Measurement { table, label, micros, target: TARGET, role, elf: false, subject };
        return Ok(vec![row.measured(micros, make)]);
    }
    let Some(context) = positions(row.cell(3)) else { return skipped("its context is not stated") };
    if let Some(missing) = missing(model, context) {
        return skipped(&missing);
    }
    let value = number(row.cell(4));
    let (kind, label, micros) = match metric {
        "prefill_TTFT_s" => {
            let micros = value.map(|seconds| seconds * 1e6);
            (StepKind::Prefill { tokens: context }, format!("{model} prefill of {context}"), micros)
        }
        "decode_tps" => {
            let micros = value.map(|rate| 1e6 / rate);
            (StepKind::Token { context }, format!("{model} token at {context}"), micros)
        }
        _ => {
            return skipped(
                "its metric is unknown: known are prefill_TTFT_s, decode_tps and vision_tower_TTFT_s",
            );
        }
    };
    let subject = MeasuredSubject::Steps(ModelSteps { model: model.to_owned(), kind });
    let make = |micros| Measurement { table, label, micros, target: TARGET, role, elf: false, subject };
    Ok(vec![row.measured(micros, make)])
}

/// The positions of a text such as `32k`, of 1024 each, or `500`.
fn positions(text: &str) -> Option<u32> {
    let (digits, unit) = text.strip_suffix('k').map_or((text, 1), |digits| (digits, 1024));
    digits.parse::<u32>().ok()?.checked_mul(unit).filter(|positions| *positions > 0)
}

/// The power of the NPU's rail.
pub(super) fn power(row: &TableRow<'_>) -> Result<RowReading> {
    let skipped = |reason: &str| Ok(RowReading::Skipped(reason.to_owned()));
    let prefill = match row.cell(0) {
        "NPU Prefill" => true,
        "NPU Decoding" => false,
        _ => return skipped("it is power of the CPU or of the integrated GPU"),
    };
    let Some(watts) = number(row.cell(4)).filter(|watts| *watts > 0.0) else {
        return Ok(RowReading::no_figure());
    };
    let model = format!("gemma3-{}", row.cell(1).to_lowercase());
    Ok(RowReading::Power(PublishedPower { model, prefill, watts }))
}
