//! Runs the cases on a backend: within the bound of the interpreter, and with equal bytes however rows are
//! divided into steps.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::time::{Duration, Instant};

use girih_tensor::{Random, Result};

use super::block::draw_block;
use super::case::{Case, Cut, StepCuts};
use super::roundoff::{Roundoff, U};
use super::table::draw;
use crate::description::AnyBackend;
use crate::interpret::Interpreter;
use crate::ops::OpName;
use crate::runner::Runner;

/// Opens a backend; called for each case.
pub type Open<'a> = &'a dyn Fn() -> Box<dyn AnyBackend>;

/// A backend that runs the cases.
#[derive(Clone, Copy)]
pub struct TestedBackend<'a> {
    /// Its name, for people.
    pub name: &'a str,
    /// Ways to open it that must have equal bytes, such as other numbers of threads.
    pub ways: &'a [Open<'a>],
    /// How it rounds; without it, only bytes are compared.
    pub round: Option<Roundoff>,
    /// Whether a case counts as skipped if the host computes its op for the device.
    pub skips_host_work: bool,
}

/// What the suite found.
#[derive(Debug, Default)]
pub struct Report {
    /// By the name of the op, and of whole layers as `block`.
    pub ops: BTreeMap<&'static str, OpReport>,
    /// The time that it took.
    pub time: Duration,
}

/// What the suite found about an op.
#[derive(Debug, Default)]
pub struct OpReport {
    /// Cases that ran.
    pub cases: usize,
    /// Values that were compared.
    pub values: usize,
    /// The largest error, as a part of its bound.
    pub worst: f64,
    /// Cases that did not run, by reason.
    pub skipped: BTreeMap<String, usize>,
    /// What was wrong.
    pub faults: Vec<String>,
}

/// Runs every op's cases of these seeds.
pub fn check(subject: TestedBackend<'_>, seeds: Range<u64>) -> Report {
    let begun = Instant::now();
    let mut report = Report::default();
    let round = subject.round.unwrap_or(Roundoff::SINGLE);
    for seed in seeds {
        let cases = OpName::ALL.iter().map(|op| draw(*op, seed, round)).chain([draw_block(seed)]);
        for case in cases {
            let found = report.ops.entry(case.of).or_default();
            if let Err(fault) = check_case(subject, &case, seed, found) {
                let Case { of, name, .. } = case;
                found.faults.push(format!("{}, {of} of seed {seed}, {name}: {fault}", subject.name));
            }
        }
    }
    report.time = begun.elapsed();
    report
}

/// Runs a case in every way. The error is a sentence.
fn check_case(
    subject: TestedBackend<'_>,
    case: &Case,
    seed: u64,
    report: &mut OpReport,
) -> Result<(), String> {
    if let Some(reason) = refused(subject, case) {
        *report.skipped.entry(reason).or_default() += 1;
        return Ok(());
    }
    report.cases += 1;
    let failed = |error: girih_tensor::Error| error.to_string();
    let got = run(&mut *opened(subject.ways[0](), case)?, case, &case.whole()).map_err(failed)?;
    report.values += got.len();
    if case.bounds.is_empty() {
        // Numbers that are not finite would hide differences.
        if let Some(at) = got.iter().position(|x| !x.is_finite()) {
            return Err(format!("value {at} is {}", got[at]));
        }
    } else if let Some(round) = subject.round {
        let want = truth(case)?;
        report.worst = report.worst.max(compare(&got, &want, &case.bounds, round)?);
    }
    let mut random = Random(seed);
    for (index, way) in subject.ways.iter().enumerate() {
        let mut runner = opened(way(), case)?;
        let cuts = drawn_cuts(case, &mut random);
        let again = run(&mut *runner, case, &cuts).map_err(failed)?;
        if let Some(at) = first_difference(&got, &again) {
            let (one, other) = (got[at], again[at]);
            return Err(format!(
                "value {at} is {one} in one step and {other} in way {index} with the steps {cuts:?}"
            ));
        }
    }
    Ok(())
}

/// Why a subject does not run a case, if it does not.
fn refused(subject: TestedBackend<'_>, case: &Case) -> Option<String> {
    let backend = subject.ways[0]();
    if let Some(refusal) = backend.refuses(&case.graph).into_iter().next() {
        return Some(format!("refused: {}", refusal.reason));
    }
    let mut host = backend.host_work(&case.graph).into_iter();
    let own = host.find(|work| subject.skips_host_work && work.op == case.of);
    own.map(|work| format!("host: {}", work.reason))
}

/// A loaded case, whose state holds NaN.
fn opened(backend: Box<dyn AnyBackend>, case: &Case) -> Result<Box<dyn Runner>, String> {
    let build = |_| Ok(case.graph.clone());
    let runner = backend.load(&case.weights, case.graph.key, &case.blocks(), &build);
    runner.map_err(|error| error.to_string())
}

fn run(runner: &mut dyn Runner, case: &Case, cuts: &StepCuts) -> Result<Vec<f32>> {
    case.poison(runner)?;
    case.run(runner, cuts)
}

/// The results by the definition of the op.
pub(super) fn truth(case: &Case) -> Result<Vec<f32>, String> {
    let mut runner = opened(Box::new(Interpreter), case)?;
    run(&mut *runner, case, &case.whole()).map_err(|error| error.to_string())
}

/// Compares the results of a case with those of the definition; returns the largest error as a part of its bound.
///
/// # Errors
/// A sentence about the first value beyond its bound.
pub fn judge(case: &Case, got: &[f32], round: Roundoff) -> Result<f64, String> {
    compare(got, &truth(case)?, &case.bounds, round)
}

/// Rows of sequences in steps of random sizes, side by side.
fn drawn_cuts(case: &Case, random: &mut Random) -> StepCuts {
    let mut done = vec![0; case.sequences.len()];
    let (mut steps, can_be_cut) = (Vec::new(), case.can_be_cut());
    // One row, a few, or several blocks.
    let most = random.of(&[1, 3, 17, 90, 400]);
    while done.iter().zip(&case.sequences).any(|(done, s)| *done < s.rows) {
        let mut cuts = Vec::new();
        for (index, sequence) in case.sequences.iter().enumerate() {
            if done[index] == sequence.rows || random.once_in(4) {
                continue;
            }
            let end = (done[index] + 1 + random.below(most) as u32).min(sequence.rows);
            let end = if can_be_cut { sequence.end_of_cut(end) } else { sequence.rows };
            cuts.push(Cut { sequence: index, rows: done[index]..end });
            done[index] = end;
        }
        if !cuts.is_empty() {
            steps.push(cuts);
        }
    }
    steps
}

/// The index of the first value with other bits. All NaN are alike.
fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    let differs = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan());
    if a.len() != b.len() {
        return Some(0);
    }
    a.iter().zip(b).position(differs)
}

/// Compares results with those of the definition; returns the largest error as a part of its bound. The
/// error is a sentence.
pub(super) fn compare(got: &[f32], want: &[f32], bounds: &[f64], round: Roundoff) -> Result<f64, String> {
    if (got.len(), want.len()) != (bounds.len(), bounds.len()) {
        return Err(format!("{} values, {} by definition, {} bounds", got.len(), want.len(), bounds.len()));
    }
    let mut worst: f64 = 0.0;
    for (index, ((&got, &want), &bound)) in got.iter().zip(want).zip(bounds).enumerate() {
        if got == want || got.is_nan() && want.is_nan() {
            continue;
        }
        let exact = f64::from(want);
        // The interpreter rounds once, and a result is stored once.
        let bound = bound + U * exact.abs() + round.stored * (exact.abs() + bound);
        let distance = (f64::from(got) - exact).abs();
        // False for NaN.
        let agrees = distance <= bound;
        if !agrees {
            return Err(format!("value {index} is {got}, not {want}: {distance:e} apart, not {bound:e}"));
        }
        worst = worst.max(distance / bound);
    }
    Ok(worst)
}

impl Report {
    /// All faults.
    pub fn faults(&self) -> Vec<&str> {
        self.ops.values().flat_map(|op| &op.faults).map(String::as_str).collect()
    }

    /// The ops without a case that ran.
    pub fn without_cases(&self) -> Vec<&'static str> {
        self.ops.iter().filter(|(_, op)| op.cases == 0).map(|(name, _)| *name).collect()
    }
}

/// A line for each op, and the time.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, op) in &self.ops {
            let OpReport { cases, values, worst, skipped, faults } = op;
            write!(f, "{name:<11} {cases:>4} cases {values:>9} values, worst {worst:.3}")?;
            if !faults.is_empty() {
                write!(f, ", {} faults", faults.len())?;
            }
            writeln!(f)?;
            for (reason, count) in skipped {
                writeln!(f, "            {count:>4} skipped, {reason}")?;
            }
        }
        let (cases, values) = self.ops.values().fold((0, 0), |(c, v), op| (c + op.cases, v + op.values));
        write!(f, "{cases} cases, {values} values, {:.1} s", self.time.as_secs_f64())
    }
}
