//! Benchmarks of a loaded model through the engine: the times of prefill and decode at
//! any depth of the context.
//!
//! A measurement is repeated with prompts of random tokens, after one warm-up round.
//! Times are the engine's: the steps of the model and the choice of tokens.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use girih_engine::{Engine, EventKind, Hooks, Sampling, Stats, TokenLatencies, TokenRequest};
use girih_tensor::Random;
use serde::Serialize;

use crate::progress::{ProgressWatcher, TokenCounter};
use crate::touch::WeightToucher;
use crate::{Error, Result};

/// The error of a sequence without room for the tokens to be timed.
const ENDED_EARLY: &str = "a sequence ended while it was timed";

/// One row of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BenchCase {
    /// Tokens of the timed prefill; 0 if decode is timed.
    pub prompt: u32,
    /// Tokens of the timed decode; 0 if prefill is timed.
    pub generated: u32,
    /// Tokens of each sequence before those that are timed.
    pub depth: u32,
    /// The number of sequences that decode concurrently.
    pub parallel: u32,
}

impl BenchCase {
    /// The name that llama-bench uses: `pp512`, `tg128 @ d4096`.
    pub fn name(&self) -> String {
        let test = match self.generated {
            0 => format!("pp{}", self.prompt),
            tokens => format!("tg{tokens}"),
        };
        let test = if self.parallel == 1 { test } else { format!("{test} x{}", self.parallel) };
        if self.depth == 0 { test } else { format!("{test} @ d{}", self.depth) }
    }

    /// The number of timed tokens, all sequences together.
    pub fn tokens(&self) -> u32 {
        (self.prompt + self.generated) * self.parallel
    }

    /// The positions of a sequence, including its last token. It includes tokens generated
    /// while the prompts of the other sequences run, in steps of at least 64 rows.
    pub fn positions(&self) -> u32 {
        let others = (self.parallel - 1) * (self.start() / 64 + 2);
        self.start() + self.prompt + self.generated + others + 1
    }

    /// The position of the first timed token. Decode continues a token, so it starts at 1
    /// or later.
    pub fn start(&self) -> u32 {
        if self.generated > 0 { self.depth.max(1) } else { self.depth }
    }
}

/// The times of one [`BenchCase`], in the order of measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchTimes {
    /// The time of each repetition.
    pub samples: Vec<Duration>,
    /// The number of tokens of a repetition.
    pub tokens: u32,
    /// Tokens that were drafted, in all repetitions together.
    pub drafted: u32,
    /// Drafted tokens that were accepted.
    pub accepted: u32,
    /// How long each token after the first one took, in all repetitions together.
    pub latencies: TokenLatencies,
}

impl BenchTimes {
    /// Tokens per second of each repetition.
    pub fn rates(&self) -> Vec<f64> {
        self.samples.iter().map(|time| f64::from(self.tokens) / time.as_secs_f64().max(1e-9)).collect()
    }
}

/// Times `case` `repetitions` times, after one warm-up round. `progress` counts the tokens of all rounds. After each token of
/// one sequence that decodes, `touch` walks over the weights.
///
/// # Errors
/// When the case exceeds the engine's limits, a step fails, the engine runs another
/// number of tokens than the case states, or the weights cannot be touched.
pub fn speed(
    engine: &mut Engine,
    case: BenchCase,
    repetitions: u32,
    seed: u64,
    touch: Option<&mut WeightToucher>,
    progress: ProgressWatcher<'_>,
) -> Result<BenchTimes> {
    let mut touch = touch.filter(|_| case.generated > 0);
    let mut random = Random(seed);
    let rounds = u64::from(repetitions) + 1;
    let mut counter = TokenCounter::new(rounds * u64::from(case.tokens()), progress);
    let vocabulary = engine.runner().width();
    let before = random_tokens(&mut random, case.start() as usize, vocabulary);
    engine.forget()?;
    if case.prompt > 0 && !before.is_empty() {
        finish(engine, before.clone(), 1, &mut |_, _| Ok(()))?;
    }
    let mut times = BenchTimes { tokens: case.tokens(), ..BenchTimes::default() };
    for round in 0..=repetitions {
        if before.is_empty() {
            engine.forget()?;
        }
        let mut tokens = before.clone();
        tokens.extend(random_tokens(&mut random, case.prompt as usize, vocabulary));
        let mut touched = Duration::ZERO;
        let (time, all_stats) = if case.parallel > 1 {
            let timed = together(engine, case, &mut random)?;
            counter.add(case.tokens().into());
            timed
        } else {
            // The engine times its steps, so what happens between them does not count.
            let mut step = |engine: &Engine, tokens: u64| -> Result<()> {
                counter.add(if case.generated > 0 { tokens } else { 0 });
                let Some(touch) = touch.as_deref_mut().filter(|_| round > 0) else { return Ok(()) };
                (0..tokens).try_for_each(|_| {
                    touched += touch.walk(engine.runner())?;
                    Ok(())
                })
            };
            let ended = finish(engine, tokens, case.generated + 1, &mut step)?;
            counter.add(case.prompt.into());
            (counted(&case, &ended.stats)?, vec![ended])
        };
        if round > 0 {
            let is_in_window = touch.as_ref().is_some_and(|touch| touch.is_in_window());
            times.samples.push(if is_in_window { time + touched } else { time });
            for TimedRequest { stats, latencies } in &all_stats {
                times.drafted += stats.drafted;
                times.accepted += stats.accepted;
                times.latencies.extend(latencies);
            }
        }
    }
    Ok(times)
}

/// What the engine told of a request at its end.
struct TimedRequest {
    stats: Stats,
    latencies: TokenLatencies,
}

/// Returns the time in which every sequence decodes `case.generated` tokens, and the statistics of
/// the sequences. Without drafts, each step decodes one token of each sequence.
fn together(
    engine: &mut Engine,
    case: BenchCase,
    random: &mut Random,
) -> Result<(Duration, Vec<TimedRequest>)> {
    let vocabulary = engine.runner().width();
    let mut left = BTreeMap::new();
    for index in 0..case.parallel {
        let tokens = random_tokens(random, case.start() as usize, vocabulary);
        // Sequences use the adapters beside the model in turn.
        let adapter = index.checked_rem(engine.adapters());
        let sampling = Sampling::greedy();
        let request = TokenRequest { tokens, adapter, sampling, max_new: None, ..TokenRequest::default() };
        left.insert(engine.submit(request, Hooks::default())?, case.generated);
    }
    let (mut prefilled, mut all_stats) = (0, Vec::new());
    while prefilled < case.parallel {
        for event in engine.step() {
            match &event.kind {
                EventKind::Prefilled(_) => prefilled += 1,
                EventKind::Failed(error) => return Err(error.clone()),
                EventKind::Finished { .. } => return Err(Error::new(ENDED_EARLY)),
                EventKind::PromptToken { .. } | EventKind::Token { .. } | EventKind::Logits(_) => {}
            }
        }
    }
    let begun = Instant::now();
    let mut time = Duration::ZERO;
    while all_stats.len() < case.parallel as usize {
        let mut complete = Vec::new();
        for event in engine.step() {
            let left = left.get_mut(&event.request).expect("all requests are known");
            match &event.kind {
                EventKind::Token { .. } if *left == 1 => {
                    *left = 0;
                    complete.push(event.request);
                    time = begun.elapsed();
                }
                EventKind::Token { .. } => *left = left.saturating_sub(1),
                EventKind::Failed(error) => return Err(error.clone()),
                EventKind::Finished { .. } if *left > 0 => return Err(Error::new(ENDED_EARLY)),
                EventKind::Finished { stats, latencies, .. } => {
                    all_stats.push(TimedRequest { stats: *stats, latencies: latencies.clone() });
                }
                EventKind::PromptToken { .. } | EventKind::Prefilled(_) | EventKind::Logits(_) => {}
            }
        }
        for id in complete {
            // One that has reached the end of the context is not found any more.
            engine.cancel(id);
        }
    }
    Ok((time, all_stats))
}

/// Returns the time to the first token after `prompt` random tokens.
///
/// # Errors
/// As [`speed`].
pub fn first_token(engine: &mut Engine, prompt: u32, seed: u64) -> Result<Duration> {
    let tokens = random_tokens(&mut Random(seed), prompt as usize, engine.runner().width());
    engine.forget()?;
    Ok(finish(engine, tokens, 1, &mut |_, _| Ok(()))?.stats.prefill.time)
}

/// Returns the time of the case's tokens, if the engine ran exactly these.
fn counted(case: &BenchCase, stats: &Stats) -> Result<Duration> {
    let rate = if case.generated > 0 { stats.decode } else { stats.prefill };
    if rate.tokens != case.tokens() {
        let (name, have, need) = (case.name(), rate.tokens, case.tokens());
        return Err(Error::new(format!(
            "{name} ran {have} tokens instead of {need}, {} came from the cache; this is a bug in girih",
            stats.cached
        )));
    }
    Ok(rate.time)
}

/// Runs a request to its end; `decoded` gets the tokens that each step decodes.
fn finish(
    engine: &mut Engine,
    tokens: Vec<u32>,
    new: u32,
    decoded: &mut dyn FnMut(&Engine, u64) -> Result<()>,
) -> Result<TimedRequest> {
    let request =
        TokenRequest { tokens, sampling: Sampling::greedy(), max_new: Some(new), ..TokenRequest::default() };
    engine.submit(request, Hooks::default())?;
    // The first token ends the prefill.
    let mut is_first = true;
    loop {
        let (mut tokens, mut ended) = (0, None);
        for event in engine.step() {
            match &event.kind {
                EventKind::Finished { stats, latencies, .. } => {
                    ended = Some(TimedRequest { stats: *stats, latencies: latencies.clone() });
                }
                EventKind::Failed(error) => return Err(error.clone()),
                EventKind::Token { .. } => tokens += u64::from(!std::mem::take(&mut is_first)),
                EventKind::PromptToken { .. } | EventKind::Prefilled(_) | EventKind::Logits(_) => {}
            }
        }
        decoded(engine, tokens)?;
        if let Some(ended) = ended {
            return Ok(ended);
        }
    }
}

/// Returns `count` random tokens of a vocabulary.
pub fn random_tokens(random: &mut Random, count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count).map(|_| (random.bits() % vocabulary.max(1) as u64) as u32).collect()
}

/// Statistics of a list of measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The median.
    pub median: f64,
    /// The largest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    /// The sample standard deviation, as in llama-bench; 0 for one number.
    pub deviation: f64,
}

impl Spread {
    /// Returns the spread of some numbers; zeros for an empty list.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Spread::default() };
        let (half, count) = (sorted.len() / 2, sorted.len() as f64);
        let median =
            if sorted.len() % 2 == 1 { sorted[half] } else { (sorted[half - 1] + sorted[half]) / 2.0 };
        let mean = sorted.iter().sum::<f64>() / count;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = if sorted.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Spread { min, median, max, mean, deviation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_median_mean_and_deviation() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((spread.min, spread.median, spread.max, spread.mean), (1.0, 2.5, 4.0, 2.5));
        assert!((spread.deviation - (5.0f64 / 3.0).sqrt()).abs() <= f64::EPSILON * 4.0);
        assert_eq!(Spread::of(&[7.0]).deviation, 0.0);
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn cases_have_the_names_of_llama_bench() {
        let case = |prompt, generated, depth| BenchCase { prompt, generated, depth, parallel: 1 };
        assert_eq!(case(512, 0, 0).name(), "pp512");
        assert_eq!(case(0, 128, 4096).name(), "tg128 @ d4096");
        assert_eq!(case(0, 128, 0).positions(), 130);
        assert_eq!(case(512, 0, 16).positions(), 529);
        let eight = BenchCase { parallel: 8, ..case(0, 128, 0) };
        assert_eq!((eight.name().as_str(), eight.tokens()), ("tg128 x8", 1024));
    }

    #[test]
    fn random_tokens_are_in_the_vocabulary() {
        let tokens = random_tokens(&mut Random(0), 100, 7);
        assert!(tokens.len() == 100 && tokens.iter().all(|&token| token < 7));
    }
}
