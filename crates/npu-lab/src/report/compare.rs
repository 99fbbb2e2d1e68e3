//! Compares a report with published measurements of the same model: the
//! programs of mlir-air's Llama-3.2-1B on Strix.

use girih_npu::sim::Simulator;
use girih_tensor::Result;
use serde::Serialize;

use super::model::ModelReport;
use super::step::{ProgramUse, StepReport};
use crate::published::{self, Validation, validate};

/// The table of the programs.
const BREAKDOWN: &str = "mlir_air_llama1b_kernel_breakdown.csv";

/// Three times of each program: published, simulated with the published tiles,
/// and with this mapping.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedComparison {
    /// Each published program.
    pub rows: Vec<PublishedProgram>,
    /// Whole passes.
    pub passes: Vec<PublishedPass>,
    /// Published work of the host.
    pub host: Vec<PublishedHostWork>,
    /// Published figures that contradict each other.
    pub contradictions: Vec<String>,
}

/// The times of one program.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedProgram {
    /// `prefill` or `decode`.
    pub phase: String,
    /// The program's name.
    pub program: String,
    /// Published seconds of a call.
    pub published_seconds: f64,
    /// Simulated seconds, with the tiles that were measured.
    pub simulated_seconds: f64,
    /// Seconds in the report, if its model is the published one and its
    /// mapping has this program.
    pub mapped_seconds: Option<f64>,
}

/// The array time of a whole pass.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedPass {
    /// `prefill` or `decode`.
    pub phase: String,
    /// The published range, in seconds.
    pub published_seconds: (f64, f64),
    /// Simulated seconds, with the tiles that were measured.
    pub simulated_seconds: f64,
    /// Seconds in the report, if its model is the published one.
    pub mapped_seconds: Option<f64>,
}

/// Published work of the host.
#[derive(Clone, Debug, Serialize)]
pub struct PublishedHostWork {
    /// `prefill` or `decode`.
    pub phase: String,
    /// The name of the work.
    pub work: String,
    /// Seconds in the pass.
    pub seconds: f64,
}

impl PublishedComparison {
    /// Simulates the published programs of the tables, given as name and text;
    /// `array` returns the simulator of a target's name. Returns `None` if the
    /// table of programs is missing.
    ///
    /// # Errors
    /// When a table cannot be read or a run has a fault.
    pub fn of(
        report: &ModelReport,
        tables: &[(String, String)],
        array: &dyn Fn(&str) -> Result<Simulator>,
    ) -> Result<Option<PublishedComparison>> {
        let Some((_, text)) = tables.iter().find(|(name, _)| name == BREAKDOWN) else { return Ok(None) };
        let validation = validate(tables, BREAKDOWN, array, &mut |_| {})?;
        let model = Mapped(if is_published_model(report) { &report.steps } else { &[] });
        let host = published::host_times(text).into_iter().map(|time| PublishedHostWork {
            phase: time.phase,
            work: time.work,
            seconds: time.millis * 1e-3,
        });
        Ok(Some(PublishedComparison {
            rows: rows(&validation, &model),
            passes: passes(&validation, &model),
            host: host.collect(),
            contradictions: published::contradictions(&[BREAKDOWN]).into_iter().map(str::to_owned).collect(),
        }))
    }
}

/// The steps of a report, if its model is the published one.
struct Mapped<'a>(&'a [StepReport]);

impl Mapped<'_> {
    fn step(&self, phase: &str) -> Option<&StepReport> {
        self.0.iter().find(|step| step.is_prefill() == (phase == "prefill"))
    }

    fn program(&self, phase: &str, name: &str) -> Option<&ProgramUse> {
        self.step(phase)?.programs.iter().find(|program| program.name == name)
    }
}

/// Whether the prefill step has the same number of rows, and of GEMM operations
/// in its layers, as the published model.
fn is_published_model(report: &ModelReport) -> bool {
    let (rows, layers, operations) = published::llama_layers();
    let Some(step) = report.steps.iter().find(|step| step.is_prefill()) else { return false };
    let of = |program: &ProgramUse| {
        let gemms = program.launches.iter().filter(|launch| launch.kernel == "gemm");
        program.runs * gemms.map(|launch| launch.operations).sum::<u64>()
    };
    u64::from(step.rows) == rows && step.programs.iter().map(of).sum::<u64>() == layers * operations
}

fn rows(validation: &Validation, model: &Mapped<'_>) -> Vec<PublishedProgram> {
    let row = |outcome: &published::Prediction| {
        let (phase, program) = outcome.measured.label.split_once(' ')?;
        Some(PublishedProgram {
            phase: phase.to_owned(),
            program: program.to_owned(),
            published_seconds: outcome.measured.micros * 1e-6,
            simulated_seconds: outcome.micros * 1e-6,
            mapped_seconds: model.program(phase, program).map(|program| program.seconds),
        })
    };
    validation.predictions.iter().filter_map(row).collect()
}

fn passes(validation: &Validation, model: &Mapped<'_>) -> Vec<PublishedPass> {
    let pass = |pass: published::PassTime| PublishedPass {
        phase: pass.phase.to_owned(),
        published_seconds: (pass.published.0 * 1e-3, pass.published.1 * 1e-3),
        simulated_seconds: pass.millis * 1e-3,
        mapped_seconds: model.step(pass.phase).map(|step| step.array_seconds),
    };
    validation.pass_times().into_iter().map(pass).collect()
}
