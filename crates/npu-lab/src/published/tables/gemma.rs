//! Reads the tables of the Gemma 3 mapping (Du et al., *Mapping Gemma3 onto an Edge Dataflow
//! Architecture*): times of whole models, and the power of the NPU.

use girih_tensor::Result;

use super::row::{Reading, TableRow, number};
use crate::published::energy::PublishedPower;
use crate::published::measurement::{Measurement, ModelSteps, RowRole, StepKind, Subject};

/// The target of the tables: the board, with the bandwidth that its paper states.
const TARGET: &str = "xdna2-kraken@cap-2025";

/// Times of prefills and of tokens.
pub(super) fn steps(row: &TableRow<'_>) -> Result<Reading> {
    let skipped = |reason: &str| Ok(Reading::Skipped(reason.to_owned()));
    let (model, metric) = (row.cell(0), row.cell(1));
    if row.cell(2) != "NPU" {
        return skipped("it ran on the CPU or on the integrated GPU");
    }
    if metric.starts_with("vision_tower") {
        return skipped("girih builds no graph of the vision tower");
    }
    let Some(context) = positions(row.cell(3)) else { return skipped("its context is not stated") };
    let value = number(row.cell(4));
    let (kind, label, micros) = match metric {
        "prefill_TTFT_s" => (
            StepKind::Prefill { tokens: context },
            format!("{model} prefill of {context}"),
            value.map(|seconds| seconds * 1e6),
        ),
        "decode_tps" => {
            (StepKind::Token { context }, format!("{model} token at {context}"), value.map(|rate| 1e6 / rate))
        }
        _ => return skipped("its metric is unknown: known are prefill_TTFT_s and decode_tps"),
    };
    let role = role(model, kind);
    let subject = Subject::Steps(ModelSteps { model: model.to_owned(), kind });
    let table = row.file.to_owned();
    let make = |micros| Measurement { table, label, micros, target: TARGET, role, elf: false, subject };
    Ok(row.measured(micros, make))
}

/// The positions of a text such as `32k`, of 1024 each, or `500`.
fn positions(text: &str) -> Option<u32> {
    let (digits, unit) = text.strip_suffix('k').map_or((text, 1), |digits| (digits, 1024));
    digits.parse::<u32>().ok()?.checked_mul(unit).filter(|positions| *positions > 0)
}

/// What a row of a model says about the simulator.
fn role(model: &str, kind: StepKind) -> RowRole {
    if let StepKind::Prefill { .. } = kind {
        return RowRole::Shown("array time beside a time to the first token, which contains the host");
    }
    match (model, kind) {
        ("gemma3-4b", StepKind::Token { context: 8192 }) => {
            RowRole::Fitted("DRAM bandwidth of xdna2-kraken@cap-2025")
        }
        ("gemma3-4b", StepKind::Token { context: 65536.. }) => {
            RowRole::Shown("keys and values in bf16 would need more than the cap")
        }
        ("gemma3-1b", StepKind::Token { .. }) => {
            RowRole::Shown("no format of the head explains both models; its slope is counted")
        }
        _ => RowRole::HeldOut,
    }
}

/// The contexts between which the time of a token of Gemma-3-1B grows by its keys and values only.
const SLOPE: [u32; 2] = [1024, 32768];

/// Adds the growth of a token's time with the context, where the level of the times is not
/// counted.
pub(super) fn add_slopes(all: &mut Vec<Measurement>) {
    let at = |context: u32| {
        all.iter().find(|one| {
            matches!(&one.subject, Subject::Steps(ModelSteps { model, kind: StepKind::Token { context: of } })
                if model == "gemma3-1b" && *of == context)
        })
    };
    let [Some(short), Some(long)] = SLOPE.map(at) else { return };
    let kind = StepKind::TokenDifference { contexts: SLOPE };
    let slope = Measurement {
        label: format!("gemma3-1b token at {} less token at {}", SLOPE[1], SLOPE[0]),
        micros: long.micros - short.micros,
        role: role("gemma3-1b", kind),
        subject: Subject::Steps(ModelSteps { model: "gemma3-1b".to_owned(), kind }),
        ..long.clone()
    };
    all.push(slope);
}

/// The power of the NPU's rail.
pub(super) fn power(row: &TableRow<'_>) -> Result<Reading> {
    let skipped = |reason: &str| Ok(Reading::Skipped(reason.to_owned()));
    let prefill = match row.cell(0) {
        "NPU Prefill" => true,
        "NPU Decoding" => false,
        _ => return skipped("it is power of the CPU or of the integrated GPU"),
    };
    let Some(watts) = number(row.cell(4)).filter(|watts| *watts > 0.0) else {
        return Ok(Reading::no_figure());
    };
    let model = format!("gemma3-{}", row.cell(1).to_lowercase());
    Ok(Reading::Power(PublishedPower { model, prefill, watts }))
}
