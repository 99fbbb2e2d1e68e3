//! Fits figures to rows by least squares: steps of Gauss and Newton in the logarithms of figures and of
//! times, with differences of simulated times as slopes.

use girih_npu::form::schedule::Schedule;
use girih_npu::sim::Simulator;
use girih_tensor::{Error, Result};

use super::figures::FigureValues;
use super::groups::{FitGroup, figures};
use crate::published::measurement::Measurement;
use crate::published::validation::simulated_micros;

/// The relative change of a figure for a slope.
const SLOPE_CHANGE: f64 = 0.05;

/// The maximum number of steps; two or three suffice where times are linear.
const MAX_STEPS: usize = 5;

/// The maximum change of a logarithm in a step: a factor of e.
const MAX_CHANGE: f64 = 1.0;

/// The change of a logarithm below which the search ends.
const SETTLED: f64 = 2e-3;

/// Times that a step is halved before it is given up.
const HALVINGS: i32 = 3;

/// A row that figures are fitted to.
pub(super) struct FitRow {
    pub measured: Measurement,
    schedule: Schedule,
}

impl FitRow {
    /// The row; none for steps of a model.
    pub fn of(measured: Measurement) -> Option<FitRow> {
        let schedule = measured.schedule()?;
        Some(FitRow { measured, schedule })
    }
}

/// Simulated microseconds of rows.
///
/// # Errors
/// When a program does not fit its target.
pub(super) fn times(values: &FigureValues, rows: &[&FitRow]) -> Result<Vec<f64>> {
    let mut simulators: Vec<Simulator> = Vec::new();
    let mut times = Vec::with_capacity(rows.len());
    for FitRow { measured, schedule } in rows {
        let known = simulators.iter().position(|one| one.target().name == measured.target);
        let at = match known {
            Some(at) => at,
            None => {
                simulators.push(values.simulator(measured.target, figures())?);
                simulators.len() - 1
            }
        };
        let micros = simulated_micros(&mut simulators[at], schedule, measured.elf);
        times
            .push(micros.map_err(|error: Error| error.of(format!("{} {}", measured.table, measured.label)))?);
    }
    Ok(times)
}

/// Fits the figures of a group to rows, from their present values.
///
/// # Errors
/// As [`times`].
pub(super) fn fit(values: &mut FigureValues, group: &FitGroup, rows: &[&FitRow]) -> Result<()> {
    let mut errors = logarithms(values, rows)?;
    for _ in 0..MAX_STEPS {
        let slopes = slopes(values, group, rows, &errors)?;
        let change = newton_step(&slopes, &errors);
        if change.iter().all(|change| change.abs() < SETTLED) {
            break;
        }
        let from: Vec<f64> = group.figures.iter().map(|figure| values.of_figure(figure)).collect();
        let mut is_better = false;
        for halving in 0..=HALVINGS {
            let part = 0.5f64.powi(halving);
            for ((figure, from), change) in group.figures.iter().zip(&from).zip(&change) {
                values.set(figure, from * (change * part).exp());
            }
            let next = logarithms(values, rows)?;
            is_better = squares(&next) < squares(&errors);
            if is_better {
                errors = next;
                break;
            }
        }
        if !is_better {
            group.figures.iter().zip(from).for_each(|(figure, from)| values.set(figure, from));
            break;
        }
    }
    Ok(())
}

/// The logarithms of simulated by measured times.
fn logarithms(values: &FigureValues, rows: &[&FitRow]) -> Result<Vec<f64>> {
    let times = times(values, rows)?;
    Ok(times.iter().zip(rows).map(|(time, row)| (time / row.measured.micros).ln()).collect())
}

fn squares(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum()
}

/// For each figure, by how much the logarithm of each row's time grows with that of the figure.
fn slopes(
    values: &mut FigureValues,
    group: &FitGroup,
    rows: &[&FitRow],
    errors: &[f64],
) -> Result<Vec<Vec<f64>>> {
    let mut slopes = Vec::new();
    for figure in &group.figures {
        let from = values.of_figure(figure);
        values.set(figure, from * (1.0 + SLOPE_CHANGE));
        let step = (values.of_figure(figure) / from).ln();
        let next = logarithms(values, rows)?;
        values.set(figure, from);
        slopes.push(next.iter().zip(errors).map(|(next, error)| (next - error) / step).collect());
    }
    Ok(slopes)
}

/// The changes of logarithms that lead to the least squares, if times were linear in them; 0 for figures
/// on which no row depends.
fn newton_step(slopes: &[Vec<f64>], errors: &[f64]) -> Vec<f64> {
    let product = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    let mut change = vec![0.0; slopes.len()];
    // Groups have one or two figures, so that this settles fast.
    for _ in 0..1000 {
        for (at, own_slope) in slopes.iter().enumerate() {
            let own = product(own_slope, own_slope);
            if own > 0.0 {
                let others = slopes.iter().zip(&change).enumerate().filter(|(other, _)| *other != at);
                let sum: f64 = others.map(|(_, (slope, change))| product(own_slope, slope) * change).sum();
                change[at] = -(product(own_slope, errors) + sum) / own;
            }
        }
    }
    change.iter().map(|change| change.clamp(-MAX_CHANGE, MAX_CHANGE)).collect()
}

#[cfg(test)]
mod tests {
    use super::newton_step;

    #[test]
    fn a_step_solves_linear_times() {
        // Errors of e + S·x for x = (0.2, -0.3), so the step is its negative.
        let slopes = vec![vec![0.9, 0.1, 0.5], vec![0.0, 0.8, 0.4]];
        let errors: Vec<f64> = (0..3).map(|row| 0.2 * slopes[0][row] - 0.3 * slopes[1][row]).collect();
        let step = newton_step(&slopes, &errors);
        assert!((step[0] + 0.2).abs() < 1e-9 && (step[1] - 0.3).abs() < 1e-9, "{step:?}");
        assert_eq!(newton_step(&[vec![0.0; 3]], &errors), [0.0], "no row depends on the figure");
    }
}
