//! Runs the cases on a backend: within the bound of the interpreter, and with equal bytes however rows are
//! divided into steps.

use std::collections::{BTreeMap, BTreeSet};
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

/// For which steps a backend promises the bytes of one step of all rows. Others are compared within the bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EqualBytes {
    /// Steps of any rows.
    AnySteps,
    /// Steps of several rows of each sequence: those of one row round in another order.
    SeveralRows,
    /// None but equal steps.
    SameSteps,
}

/// A backend that runs the cases.
#[derive(Clone, Copy)]
pub struct TestedBackend<'a> {
    /// Its name, for people.
    pub name: &'a str,
    /// Ways to open it that must have equal bytes, such as other numbers of threads.
    pub ways: &'a [Open<'a>],
    /// How it rounds; without it, only bytes are compared.
    pub round: Option<Roundoff>,
    /// Which steps it computes with equal bytes.
    pub equal_bytes: EqualBytes,
    /// The most cases for each op and reason that the host computes for the device: a case more would compare the
    /// definition with itself.
    pub host_cases: usize,
    /// Parts of the sentences with which it may refuse to load or to run a case. Any other error is a fault.
    pub refusals: &'a [&'a str],
}

impl<'a> TestedBackend<'a> {
    /// A backend that computes every case itself, with equal bytes for steps of any size.
    pub fn new(name: &'a str, ways: &'a [Open<'a>], round: Option<Roundoff>) -> TestedBackend<'a> {
        TestedBackend { name, ways, round, equal_bytes: EqualBytes::AnySteps, host_cases: 0, refusals: &[] }
    }
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
    /// The cases among them whose op the host computed for the device, by reason.
    pub on_host: BTreeMap<String, usize>,
    /// Cases that did not run because the host would have computed them, as it did enough others.
    pub host_skipped: usize,
    /// Cases that did not run, by reason.
    pub skipped: BTreeMap<String, usize>,
    /// What was wrong.
    pub faults: Vec<String>,
}

/// Runs every op's cases of these seeds, and whole layers.
pub fn check(subject: TestedBackend<'_>, seeds: Range<u64>) -> Report {
    let round = subject.round.unwrap_or(Roundoff::SINGLE);
    let of_seed = |seed| {
        let cases = OpName::ALL.iter().map(move |op| draw(*op, seed, round)).chain([draw_block(seed)]);
        cases.map(move |case| (seed, case))
    };
    check_cases(subject, seeds.flat_map(of_seed))
}

/// Runs cases with their seeds.
pub fn check_cases(subject: TestedBackend<'_>, cases: impl Iterator<Item = (u64, Case)>) -> Report {
    let begun = Instant::now();
    let mut report = Report::default();
    for (seed, case) in cases {
        let found = report.ops.entry(case.of).or_default();
        if let Err(reason) = refused(subject, &case) {
            *found.skipped.entry(reason).or_default() += 1;
            continue;
        }
        let on_host = by_host(subject, &case);
        let before = |reason: &String| found.on_host.get(reason).copied().unwrap_or_default();
        if on_host.as_ref().map(before).is_some_and(|count| count >= subject.host_cases) {
            found.host_skipped += 1;
            continue;
        }
        let checked = check_case(subject, &case, seed, found);
        let is_known = |fault: &String| subject.refusals.iter().find(|known| fault.contains(**known));
        if let Some(known) = checked.as_ref().err().and_then(is_known) {
            *found.skipped.entry(format!("refused: {known}")).or_default() += 1;
            continue;
        }
        found.cases += 1;
        if let Some(reason) = on_host {
            *found.on_host.entry(reason).or_default() += 1;
        }
        if let Err(fault) = checked {
            let Case { of, name, .. } = case;
            found.faults.push(format!("{}, {of} of seed {seed}, {name}: {fault}", subject.name));
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
    let failed = |error: girih_tensor::Error| error.to_string();
    let got = run(&mut *opened(subject.ways[0](), case)?, case, &case.whole()).map_err(failed)?;
    report.values += got.len();
    let mut bounded = None;
    if case.bounds.is_empty() {
        // Numbers that are not finite would hide differences.
        if let Some(at) = got.iter().position(|x| !x.is_finite()) {
            return Err(format!("value {at} is {}", got[at]));
        }
    } else if let Some(round) = subject.round {
        let want = truth(case)?;
        report.worst = report.worst.max(compare(&got, &want, &case.bounds, round)?);
        bounded = Some((want, round));
    }
    let mut random = Random(seed);
    for (index, way) in subject.ways.iter().enumerate() {
        let mut runner = opened(way(), case)?;
        let mut cuts = drawn_cuts(case, &mut random);
        if subject.equal_bytes != EqualBytes::AnySteps {
            if let Some((want, round)) = &bounded {
                let got = run(&mut *runner, case, &cuts).map_err(failed)?;
                report.worst = report.worst.max(compare(&got, want, &case.bounds, *round)?);
            }
            cuts = match subject.equal_bytes {
                EqualBytes::AnySteps | EqualBytes::SeveralRows => without_single_rows(case, cuts),
                EqualBytes::SameSteps => case.whole(),
            };
        }
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

/// The error says why a subject refuses the graph of a case.
fn refused(subject: TestedBackend<'_>, case: &Case) -> Result<(), String> {
    let refusals = subject.ways[0]().refuses(&case.graph);
    refusals.first().map_or(Ok(()), |refusal| Err(format!("refused: {}", refusal.reason)))
}

/// Why the host computes the op of a case for the subject, if it does.
fn by_host(subject: TestedBackend<'_>, case: &Case) -> Option<String> {
    let mut work = subject.ways[0]().host_work(&case.graph).into_iter();
    work.find(|work| work.op == case.of).map(|work| work.reason)
}

/// A loaded case, whose state holds NaN.
fn opened(backend: Box<dyn AnyBackend>, case: &Case) -> Result<Box<dyn Runner>, String> {
    let build = |key| Ok(case.graph_at(key));
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

/// Runs a case on a backend in one step, and returns the error of each value as a part of its bound.
///
/// # Errors
/// A sentence, when the backend fails or a value is beyond its bound.
pub fn error_shares(backend: Box<dyn AnyBackend>, case: &Case, round: Roundoff) -> Result<Vec<f64>, String> {
    let got = run(&mut *opened(backend, case)?, case, &case.whole()).map_err(|error| error.to_string())?;
    shares(&got, &truth(case)?, &case.bounds, round)
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

/// The steps with each that has one row, or one of several rows of a sequence, joined to the one before or to the
/// next, until no step but the only one has such a row.
fn without_single_rows(case: &Case, steps: StepCuts) -> StepCuts {
    let is_single = |cut: &Cut| cut.rows.len() == 1 && case.sequences[cut.sequence].rows > 1;
    let has_single = |cuts: &[Cut]| {
        cuts.iter().map(|cut| cut.rows.len()).sum::<usize>() == 1 || cuts.iter().any(is_single)
    };
    let mut joined: StepCuts = Vec::new();
    for cuts in steps {
        match joined.last_mut() {
            Some(before) if has_single(before) || has_single(&cuts) => append(before, cuts),
            _ => joined.push(cuts),
        }
    }
    while joined.last().is_some_and(|last| has_single(last)) {
        let last = joined.pop().unwrap_or_default();
        match joined.last_mut() {
            Some(before) => append(before, last),
            None => return vec![last],
        }
    }
    joined
}

/// Adds the rows of the next step to a step.
fn append(step: &mut Vec<Cut>, next: Vec<Cut>) {
    for cut in next {
        match step.iter_mut().find(|own| own.sequence == cut.sequence) {
            Some(own) => own.rows.end = cut.rows.end,
            None => step.push(cut),
        }
    }
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
    Ok(shares(got, want, bounds, round)?.into_iter().fold(0.0, f64::max))
}

/// The error of each result, as a part of its bound.
fn shares(got: &[f32], want: &[f32], bounds: &[f64], round: Roundoff) -> Result<Vec<f64>, String> {
    if (got.len(), want.len()) != (bounds.len(), bounds.len()) {
        return Err(format!("{} values, {} by definition, {} bounds", got.len(), want.len(), bounds.len()));
    }
    let share = |(index, ((&got, &want), &bound)): (usize, ((&f32, &f32), &f64))| {
        if got == want || got.is_nan() && want.is_nan() {
            return Ok(0.0);
        }
        let exact = f64::from(want);
        // The interpreter rounds once, and a result is stored once.
        let bound = bound + U * exact.abs() + round.stored * (exact.abs() + bound) + round.least;
        let distance = (f64::from(got) - exact).abs();
        // False for NaN.
        let agrees = distance <= bound;
        if !agrees {
            return Err(format!("value {index} is {got}, not {want}: {distance:e} apart, not {bound:e}"));
        }
        Ok(distance / bound)
    };
    got.iter().zip(want).zip(bounds).enumerate().map(share).collect()
}

impl Report {
    /// All faults.
    pub fn faults(&self) -> Vec<&str> {
        self.ops.values().flat_map(|op| &op.faults).map(String::as_str).collect()
    }

    /// The ops that the host computed in every case that ran.
    pub fn only_on_host(&self) -> Vec<&'static str> {
        let is_host = |op: &OpReport| op.cases > 0 && op.on_host.values().sum::<usize>() == op.cases;
        self.ops.iter().filter(|(_, op)| is_host(op)).map(|(name, _)| *name).collect()
    }

    /// The reasons for which cases did not run.
    pub fn skipped(&self) -> BTreeSet<&str> {
        self.ops.values().flat_map(|op| op.skipped.keys()).map(String::as_str).collect()
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
            let OpReport { cases, values, worst, on_host, host_skipped, skipped, faults } = op;
            write!(f, "{name:<11} {cases:>4} cases {values:>9} values, worst {worst:.3}")?;
            if !faults.is_empty() {
                write!(f, ", {} faults", faults.len())?;
            }
            writeln!(f)?;
            for (reason, count) in on_host {
                writeln!(f, "            {count:>4} on the host: {reason}")?;
            }
            if *host_skipped > 0 {
                writeln!(f, "            {host_skipped:>4} skipped, for the host")?;
            }
            for (reason, count) in skipped {
                writeln!(f, "            {count:>4} skipped, {reason}")?;
            }
        }
        let (cases, values) = self.ops.values().fold((0, 0), |(c, v), op| (c + op.cases, v + op.values));
        write!(f, "{cases} cases, {values} values, {:.1} s", self.time.as_secs_f64())
    }
}
