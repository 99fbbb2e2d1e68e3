//! Simulated and published times side by side, and the errors.

use std::fmt;

use girih_npu::form::schedule::Schedule;
use girih_npu::memory::SimMemory;
use girih_npu::sim::{EventOrder, SimUnwatched, Simulator};
use girih_tensor::{Error, Result};

use super::breakdown::{ModelPass, PASSES};
use super::built_in::built_in_tables;
use super::contradictions::contradictions;
use super::energy::{EnergyRow, PublishedPower};
use super::fits::figures_fitted_to;
use super::measurement::{MeasuredSubject, Measurement, ModelSteps, RowRole, StepKind};
use super::spread::ErrorSpread;
use super::steps::{StepCost, StepTimer};
use super::tables::{self, TableContent};

/// A measurement and its simulated time.
#[derive(Clone, Debug)]
pub struct Prediction {
    /// What was measured.
    pub measured: Measurement,
    /// Simulated microseconds.
    pub micros: f64,
}

/// All predictions, with medians and percentiles of their errors.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// In the order of the tables.
    pub predictions: Vec<Prediction>,
    /// A sentence for the rows that were not simulated.
    pub skipped: Vec<String>,
    /// Published energy beside simulated energy.
    pub energies: Vec<EnergyRow>,
    /// Published figures of the tables that contradict each other.
    pub contradictions: Vec<&'static str>,
}

/// The array time of a whole pass through the breakdown's model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassTime {
    /// `prefill` or `decode`.
    pub phase: &'static str,
    /// Simulated milliseconds.
    pub millis: f64,
    /// The published range, in milliseconds: from, to.
    pub published: (f64, f64),
}

/// How far a validation is.
#[derive(Clone, Copy, Debug)]
pub struct ValidationProgress<'a> {
    /// The table whose row was simulated last.
    pub table: &'a str,
    /// The rows of this table that are still to be simulated.
    pub left_in_table: usize,
    /// The rows of all tables that were simulated.
    pub done: usize,
    /// The rows of all tables that are selected.
    pub total: usize,
}

/// Reads tables, given as name and text, and simulates each row whose table or
/// label contains `wanted`; an empty text selects all rows. `array` returns the
/// simulator of a target's name. `watch` is called after each row.
///
/// # Errors
/// When a table is unknown. A row that cannot be read or simulated is named instead.
pub fn validate(
    files: &[(String, String)],
    wanted: &str,
    array: &dyn Fn(&str) -> Result<Simulator>,
    watch: &mut dyn FnMut(ValidationProgress<'_>),
) -> Result<Validation> {
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let mut validation = Validation { contradictions: contradictions(&names), ..Validation::default() };
    let fitted = fitted_rows()?;
    let mut arrays = Arrays { open: array, simulators: Vec::new(), steps: StepTimer::default() };
    let (mut powers, mut costs) = (Vec::new(), Vec::new());
    let (mut selected, mut done, mut total) = (Vec::new(), 0, 0);
    for (name, text) in files {
        let mut skipped = Vec::new();
        let TableContent { mut measurements, powers: of_table } = tables::read(name, text, &mut skipped)?;
        skipped.retain(|row| name.contains(wanted) || row.contains(wanted));
        measurements.retain(|row| row.table.contains(wanted) || row.label.contains(wanted));
        powers.extend(of_table);
        total += measurements.len();
        selected.push((name, skipped, measurements));
    }
    for (table, skipped, measurements) in selected {
        validation.skipped.extend(skipped);
        let last = done + measurements.len();
        for mut measured in measurements {
            let row = (measured.table.clone(), measured.label.clone(), measured.micros.to_bits());
            if let Some((_, figures)) = fitted.iter().find(|(known, _)| *known == row) {
                measured.role = RowRole::Fitted(figures);
            }
            let place = format!("{} {}", measured.table, measured.label);
            match arrays.time(&measured) {
                Ok((micros, cost)) => {
                    costs.push(cost);
                    validation.predictions.push(Prediction { measured, micros });
                }
                // A program that does not fit its target is a result.
                Err(error) => validation.skipped.push(format!("{place}: {error}")),
            }
            done += 1;
            watch(ValidationProgress { table, left_in_table: last - done, done, total });
        }
    }
    for power in powers {
        let rows = validation.predictions.iter().zip(&costs);
        let found = rows.filter_map(|(row, cost)| energy(&power, row, cost.as_ref()?)).next();
        if found.is_none() {
            let phase = if power.prefill { "prefill" } else { "decode" };
            let sentence = format!("power of {} in {phase}: no such step is simulated", power.model);
            validation.skipped.extend(Some(sentence).filter(|sentence| sentence.contains(wanted)));
        }
        validation.energies.extend(found);
    }
    Ok(validation)
}

/// The array times of the passes of the published breakdown, simulated with the published tiles.
///
/// # Errors
/// As [`validate`].
pub fn pass_times(array: &dyn Fn(&str) -> Result<Simulator>) -> Result<Vec<PassTime>> {
    let tables = built_in_tables().into_iter().filter(|(name, _)| name == BREAKDOWN);
    Ok(validate(&tables.collect::<Vec<_>>(), "", array, &mut |_| {})?.pass_times())
}

/// The table of the programs of a model.
const BREAKDOWN: &str = "mlir_air_llama1b_kernel_breakdown.csv";

/// The tokens of Gemma-3-1B between which only the keys and values of full layers grow.
const GROWTH: [&str; 2] = ["gemma3-1b token at 1024", "gemma3-1b token at 32768"];

/// A row of a table: file, label and the bits of its microseconds.
type RowId = (String, String, u64);

/// The rows of the built-in tables that figures were fitted to. A row of another table with
/// the same label was measured again, so it tests the figures.
fn fitted_rows() -> Result<Vec<(RowId, &'static str)>> {
    let mut rows = Vec::new();
    for (name, text) in built_in_tables() {
        let TableContent { measurements, .. } = tables::read(&name, &text, &mut Vec::new())?;
        for one in measurements {
            if let Some(figures) = figures_fitted_to(&name, &one.label) {
                rows.push(((name.clone(), one.label, one.micros.to_bits()), figures));
            }
        }
    }
    Ok(rows)
}

/// The first published step of a model at its power, with the energy of the simulated step.
fn energy(power: &PublishedPower, row: &Prediction, cost: &StepCost) -> Option<EnergyRow> {
    let MeasuredSubject::Steps(ModelSteps { model, kind }) = &row.measured.subject else { return None };
    let (of_phase, tokens) = match kind {
        StepKind::Prefill { tokens } => (power.prefill, *tokens),
        StepKind::Token { .. } => (!power.prefill, 1),
        StepKind::Image => return None,
    };
    (of_phase && *model == power.model).then(|| EnergyRow {
        label: row.measured.label.clone(),
        watts: power.watts,
        published_joules: power.watts * row.measured.micros * 1e-6,
        joules: cost.joules,
        tokens,
    })
}

/// The simulators of the targets that rows name.
struct Arrays<'a> {
    open: &'a dyn Fn(&str) -> Result<Simulator>,
    simulators: Vec<Simulator>,
    steps: StepTimer,
}

impl Arrays<'_> {
    /// Simulated microseconds of a row, and the cost of steps of a model.
    fn time(&mut self, measured: &Measurement) -> Result<(f64, Option<StepCost>)> {
        let known = self.simulators.iter().position(|one| one.target().name == measured.target);
        let at = match known {
            Some(at) => at,
            None => {
                self.simulators.push((self.open)(measured.target)?);
                self.simulators.len() - 1
            }
        };
        let simulator = &mut self.simulators[at];
        if let MeasuredSubject::Steps(steps) = &measured.subject {
            let (micros, cost) = self.steps.micros(steps, simulator.target())?;
            return Ok((micros, Some(cost)));
        }
        let Some(schedule) = measured.schedule() else { return Err(Error::new("the row has no program")) };
        Ok((simulated_micros(simulator, &schedule, measured.elf)?, None))
    }
}

/// Microseconds of a program's second run, which finds the array as the first
/// run left it.
pub(super) fn simulated_micros(simulator: &mut Simulator, schedule: &Schedule, elf: bool) -> Result<f64> {
    let mut run = |forget: bool| {
        if forget {
            simulator.forget();
        }
        simulator.run(schedule, &[], &mut SimMemory::TimeOnly, &mut SimUnwatched, EventOrder::Earliest)
    };
    run(true).map_err(Error::from)?;
    let report = run(elf).map_err(Error::from)?;
    Ok(simulator.target().seconds(report.cycles) * 1e6)
}

impl Prediction {
    /// The relative error: the simulated time divided by the measured one,
    /// minus 1.
    pub fn error(&self) -> f64 {
        self.micros / self.measured.micros - 1.0
    }

    /// Whether the row is of launches, and not of whole steps of a model.
    pub fn is_of_launches(&self) -> bool {
        matches!(self.measured.subject, MeasuredSubject::Launches(_))
    }
}

impl Validation {
    /// The median and the 90th percentile of the absolute errors of the
    /// predictions that `keep` accepts, and the number of these predictions.
    pub fn spread(&self, keep: impl Fn(&Prediction) -> bool) -> ErrorSpread {
        let kept = self.predictions.iter().filter(|prediction| keep(prediction));
        ErrorSpread::of(kept.map(Prediction::error))
    }

    /// The array time of each whole pass whose programs are all among the
    /// predictions.
    pub fn pass_times(&self) -> Vec<PassTime> {
        let time = |pass: &ModelPass| {
            let millis = |&(name, times): &(&str, f64)| {
                let label = format!("{} {name}", pass.phase);
                let prediction =
                    self.predictions.iter().find(|prediction| prediction.measured.label == label)?;
                Some(prediction.micros * times * 1e-3)
            };
            let millis = pass.programs.iter().map(millis).sum::<Option<f64>>()?;
            Some(PassTime { phase: pass.phase, millis, published: pass.millis })
        };
        PASSES.iter().filter_map(time).collect()
    }

    /// The published and the simulated microseconds by which a token of Gemma-3-1B takes longer after 32,768 positions
    /// than after 1,024, if both are among the predictions.
    fn growth(&self) -> Option<(f64, f64)> {
        let at = |label: &str| self.predictions.iter().find(|one| one.measured.label == label);
        let (short, long) = (at(GROWTH[0])?, at(GROWTH[1])?);
        Some((long.measured.micros - short.measured.micros, long.micros - short.micros))
    }
}

/// The tables of the Gemma 3 paper, which one file holds, and how the labels of their rows begin.
const PAPER_TABLES: [(&str, &str); 4] = [
    ("table 1", "gemma3-1b prefill"),
    ("table 2", "gemma3-4b prefill"),
    ("table 3", "gemma3-1b token"),
    ("table 4", "gemma3-4b token"),
];

/// In microseconds. In shorter times, the constant cost of a dispatch
/// dominates.
const DISPATCH_FLOOR_MICROS: f64 = 500.0;

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10} {:>10} {:>7}  {:<8}  row", "measured", "simulated", "error", "role")?;
        let mut tables: Vec<(&str, &str)> = Vec::new();
        for prediction in &self.predictions {
            let Measurement { table, label, micros, target, role, .. } = &prediction.measured;
            if tables.last() != Some(&(table, target)) {
                tables.push((table, target));
                writeln!(f, "# {table}, {target}")?;
            }
            let (error, name) = (prediction.error() * 100.0, role.name());
            writeln!(f, "{micros:>8.0}us {:>8.0}us {error:>+6.1}%  {name:<8}  {label}", prediction.micros)?;
        }
        self.summary(f)?;
        for PassTime { phase, millis, published: (low, high) } in self.pass_times() {
            writeln!(f, "{phase} of the model: {millis:.1} ms of array time, published {low}-{high} ms")?;
        }
        if let Some((published, simulated)) = self.growth() {
            let [short, long] = GROWTH;
            writeln!(f, "{long} less {short}: {simulated:.0}us, published {published:.0}us")?;
        }
        self.energies.iter().try_for_each(|row| writeln!(f, "{row}"))?;
        self.skipped.iter().try_for_each(|row| writeln!(f, "not simulated: {row}"))?;
        self.contradictions.iter().try_for_each(|text| writeln!(f, "published figures contradict: {text}"))
    }
}

impl Validation {
    /// Prints medians and percentiles, and for each table which figures were fitted to its rows.
    fn summary(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = |f: &mut fmt::Formatter<'_>, name: &str, keep: &dyn Fn(&Prediction) -> bool| {
            let ErrorSpread { median, high, count } = self.spread(keep);
            if count == 0 {
                return Ok(());
            }
            writeln!(f, "{:>6.1}% {:>6.1}% {count:>5}  {name}", median * 100.0, high * 100.0)
        };
        let held_out = |prediction: &Prediction| prediction.measured.role == RowRole::HeldOut;
        line(f, "median, 90th percentile and number of all rows", &|_| true)?;
        line(f, "rows that no figure was fitted to", &held_out)?;
        line(f, "these without whole steps of models", &|prediction| {
            held_out(prediction) && prediction.is_of_launches()
        })?;
        line(f, "rows that figures were fitted to", &|prediction| !held_out(prediction))?;
        line(f, "rows of 0.5 ms or more", &|prediction| prediction.measured.micros >= DISPATCH_FLOOR_MICROS)?;
        line(f, "GEMM and GEMV", &|prediction| {
            prediction.measured.table.contains("_GEM") || prediction.measured.table.starts_with("gemm_")
        })?;
        let mut tables: Vec<&str> = self.predictions.iter().map(|row| row.measured.table.as_str()).collect();
        tables.dedup();
        for (table, label) in PAPER_TABLES {
            line(f, &format!("Gemma 3 paper, {table}: {label}"), &|prediction| {
                prediction.measured.label.starts_with(label)
            })?;
        }
        for table in tables {
            line(f, table, &|prediction| prediction.measured.table == table)?;
            let rows = || self.predictions.iter().filter(|row| row.measured.table == table);
            let mut fits: Vec<&str> = Vec::new();
            for row in rows() {
                match row.measured.role {
                    RowRole::Fitted(figures) if !fits.contains(&figures) => fits.push(figures),
                    _ => {}
                }
            }
            for figures in fits {
                let count = rows().filter(|row| row.measured.role == RowRole::Fitted(figures)).count();
                writeln!(f, "{:>21}  fitted to {count}: {figures}", "")?;
            }
        }
        Ok(())
    }
}
