//! Simulated and published times side by side, and the errors.

use std::fmt;

use girih_npu::memory::SimMemory;
use girih_npu::sim::{EventOrder, SimUnwatched, Simulator};
use girih_tensor::{Error, Result};

use super::breakdown::{CONTRADICTIONS, ModelPass, PASSES};
use super::measurement::Measurement;
use super::tables;

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
    /// A sentence for each row that was not simulated.
    pub skipped: Vec<String>,
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

/// Reads tables, given as name and text, and simulates each row whose table or
/// label contains `wanted`; an empty text selects all rows. `array` returns the
/// simulator of a target's name.
///
/// # Errors
/// When a table cannot be read or a run has a fault.
pub fn validate(
    files: &[(String, String)],
    wanted: &str,
    array: &dyn Fn(&str) -> Result<Simulator>,
) -> Result<Validation> {
    let mut validation = Validation::default();
    let mut simulators: Vec<Simulator> = Vec::new();
    for (name, text) in files {
        let mut skipped = Vec::new();
        let measurements = tables::measurements(name, text, &mut skipped)?;
        validation
            .skipped
            .extend(skipped.into_iter().filter(|row| name.contains(wanted) || row.contains(wanted)));
        for measured in measurements {
            if !measured.table.contains(wanted) && !measured.label.contains(wanted) {
                continue;
            }
            let known = simulators.iter().position(|one| one.target().name == measured.target);
            let at = match known {
                Some(at) => at,
                None => {
                    simulators.push(array(measured.target)?);
                    simulators.len() - 1
                }
            };
            let micros = simulated_micros(&mut simulators[at], &measured)
                .map_err(|error| error.of(format!("{} {}", measured.table, measured.label)))?;
            validation.predictions.push(Prediction { measured, micros });
        }
    }
    Ok(validation)
}

/// Microseconds of a program's second run, which finds the array as the first
/// run left it.
fn simulated_micros(simulator: &mut Simulator, measured: &Measurement) -> Result<f64> {
    let schedule = measured.schedule();
    let mut run = |forget: bool| {
        if forget {
            simulator.forget();
        }
        simulator.run(&schedule, &[], &mut SimMemory::TimeOnly, &mut SimUnwatched, EventOrder::Earliest)
    };
    run(true).map_err(Error::from)?;
    let report = run(measured.elf).map_err(Error::from)?;
    Ok(simulator.target().seconds(report.cycles) * 1e6)
}

impl Prediction {
    /// The relative error: the simulated time divided by the measured one,
    /// minus 1.
    pub fn error(&self) -> f64 {
        self.micros / self.measured.micros - 1.0
    }
}

impl Validation {
    /// The median and the 90th percentile of the absolute errors of the
    /// predictions that `keep` accepts, and the number of these predictions.
    pub fn spread(&self, keep: impl Fn(&Prediction) -> bool) -> (f64, f64, usize) {
        let mut errors: Vec<f64> = self
            .predictions
            .iter()
            .filter(|prediction| keep(prediction))
            .map(|prediction| prediction.error().abs())
            .collect();
        errors.sort_by(f64::total_cmp);
        let at = |part: f64| errors.get(((errors.len() as f64 * part).ceil() as usize).max(1) - 1).copied();
        (at(0.5).unwrap_or(0.0), at(0.9).unwrap_or(0.0), errors.len())
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
}

/// In microseconds. In shorter times, the constant cost of a dispatch
/// dominates.
const DISPATCH_FLOOR_MICROS: f64 = 500.0;

impl fmt::Display for Validation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10} {:>10} {:>7}  row", "measured", "simulated", "error")?;
        let mut tables: Vec<&str> = Vec::new();
        for prediction in &self.predictions {
            let Measurement { table, label, micros, target, .. } = &prediction.measured;
            if tables.last() != Some(&table.as_str()) {
                tables.push(table);
                writeln!(f, "# {table}, {target}")?;
            }
            let error = prediction.error() * 100.0;
            writeln!(f, "{micros:>8.0}us {:>8.0}us {error:>+6.1}%  {label}", prediction.micros)?;
        }
        let mut line = |name: &str, keep: &dyn Fn(&Prediction) -> bool| {
            let (median, high, count) = self.spread(keep);
            if count == 0 {
                return Ok(());
            }
            writeln!(f, "{:>6.1}% {:>6.1}% {count:>5}  {name}", median * 100.0, high * 100.0)
        };
        line("median, 90th percentile and number of all rows", &|_| true)?;
        line("rows of 0.5 ms or more", &|prediction| prediction.measured.micros >= DISPATCH_FLOOR_MICROS)?;
        line("GEMM and GEMV", &|prediction| {
            prediction.measured.table.contains("GEM") || prediction.measured.table.contains("gemm")
        })?;
        tables
            .iter()
            .try_for_each(|table| line(table, &|prediction| prediction.measured.table == **table))?;
        for PassTime { phase, millis, published: (low, high) } in self.pass_times() {
            writeln!(f, "{phase} of the model: {millis:.1} ms of array time, published {low}-{high} ms")?;
        }
        self.skipped.iter().try_for_each(|row| writeln!(f, "not simulated: {row}"))?;
        CONTRADICTIONS.iter().try_for_each(|text| writeln!(f, "published figures contradict: {text}"))
    }
}
