//! Reads the tables of the Gemma 3 mapping (Du et al., *Mapping Gemma3 onto an Edge Dataflow
//! Architecture*): times of whole models, and the power of the NPU.

use girih_tensor::Result;

use super::row::{RowReading, TableRow, number};
use crate::published::energy::PublishedPower;
use crate::published::measurement::{MeasuredSubject, Measurement, ModelSteps, RowRole, StepKind};
use crate::published::steps::missing;
use crate::published::token::GemmaSizes;
use crate::published::workload::Workload;

/// The target of the tables: the board, with the bandwidth that its paper states.
const TARGET: &str = "xdna2-kraken@cap-2025";

/// The models whose tokens are built by hand.
const MODELS: [(&str, GemmaSizes); 2] = [
    (
        "gemma3-1b",
        GemmaSizes {
            width: 1152,
            layers: 26,
            heads: 4,
            kv_heads: 1,
            inner: 6912,
            vocabulary: 262_144,
            window: 512,
        },
    ),
    (
        "gemma3-4b",
        GemmaSizes {
            width: 2560,
            layers: 34,
            heads: 8,
            kv_heads: 4,
            inner: 10240,
            vocabulary: 262_208,
            window: 1024,
        },
    ),
];

/// Times of prefills and of tokens. A token is built by hand as published, and compiled by girih.
pub(super) fn steps(row: &TableRow<'_>) -> Result<Vec<RowReading>> {
    let skipped = |reason: &str| Ok(vec![RowReading::Skipped(reason.to_owned())]);
    let (model, metric) = (row.cell(0), row.cell(1));
    if row.cell(2) != "NPU" {
        return skipped("it ran on the CPU or on the integrated GPU");
    }
    if metric.starts_with("vision_tower") {
        return skipped("girih builds no graph of the vision tower");
    }
    let Some(context) = positions(row.cell(3)) else { return skipped("its context is not stated") };
    if let Some(missing) = missing(model, context) {
        return skipped(&missing);
    }
    let value = number(row.cell(4));
    let compiled = |kind: StepKind, label: String, micros: Option<f64>, reason: &'static str| {
        let subject = MeasuredSubject::Steps(ModelSteps { model: model.to_owned(), kind });
        let (table, role) = (row.file.to_owned(), RowRole::Shown(reason));
        let make = |micros| Measurement { table, label, micros, target: TARGET, role, elf: false, subject };
        row.measured(micros, make)
    };
    match metric {
        "prefill_TTFT_s" => {
            let reason = "array time beside a time to the first token, which contains the host";
            let label = format!("{model} prefill of {context}, compiled by girih");
            let micros = value.map(|seconds| seconds * 1e6);
            Ok(vec![compiled(StepKind::Prefill { tokens: context }, label, micros, reason)])
        }
        "decode_tps" => {
            let label = format!("{model} token at {context}");
            let micros = value.map(|rate| 1e6 / rate);
            let reason = "another mapping than the published one";
            let kind = StepKind::Token { context };
            let own = compiled(kind, format!("{label}, compiled by girih"), micros, reason);
            let sizes = MODELS.iter().find(|(name, _)| *name == model).map(|(_, sizes)| *sizes);
            let Some(sizes) = sizes.filter(|_| micros.is_some()) else { return Ok(vec![own]) };
            let workload = Workload::GemmaToken(sizes, u64::from(context));
            let make = |micros| Measurement {
                role: role(model, context),
                ..Measurement::new(row.file, label, micros, workload).on(TARGET)
            };
            Ok(vec![row.measured(micros, make), own])
        }
        _ => skipped("its metric is unknown: known are prefill_TTFT_s and decode_tps"),
    }
}

/// The positions of a text such as `32k`, of 1024 each, or `500`.
fn positions(text: &str) -> Option<u32> {
    let (digits, unit) = text.strip_suffix('k').map_or((text, 1), |digits| (digits, 1024));
    digits.parse::<u32>().ok()?.checked_mul(unit).filter(|positions| *positions > 0)
}

/// What the token of a model in a context says about the simulator.
fn role(model: &str, context: u32) -> RowRole {
    match (model, context) {
        ("gemma3-4b", 65536..) => RowRole::Shown("keys and values in bf16 would need more than the cap"),
        ("gemma3-1b", _) => {
            RowRole::Shown("no format of the head explains both models; its growth is counted")
        }
        _ => RowRole::HeldOut,
    }
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
