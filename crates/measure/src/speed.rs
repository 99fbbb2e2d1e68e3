//! How fast a loaded model is, through the engine as users run it: the time of
//! a prefill and of generated tokens, at any depth of the context.
//!
//! A measurement is repeated on prompts of random tokens; one round before the
//! counted ones warms caches up. Times are the engine's own: the steps of the
//! model and the choice of tokens.

use std::time::{Duration, Instant};

use girih_engine::{Engine, Event, Request, Sampling, Stats, What};
use girih_tensor::Random;
use serde::Serialize;

use crate::{Error, Result};

/// What a row of a benchmark measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Tokens of the prompt that is timed; 0 where generation is.
    pub prompt: u32,
    /// Tokens that are generated and timed; 0 where the prompt is.
    pub generated: u32,
    /// Tokens that each sequence has before those that are timed.
    pub depth: u32,
    /// Sequences that generate together.
    pub parallel: u32,
}

impl Case {
    /// llama-bench's name of it: `pp512`, `tg128 @ d4096`.
    pub fn name(&self) -> String {
        let test = match self.generated {
            0 => format!("pp{}", self.prompt),
            tokens => format!("tg{tokens}"),
        };
        let test = if self.parallel == 1 { test } else { format!("{test} x{}", self.parallel) };
        if self.depth == 0 { test } else { format!("{test} @ d{}", self.depth) }
    }

    /// The tokens that are timed, of all sequences.
    pub fn tokens(&self) -> u32 {
        (self.prompt + self.generated) * self.parallel
    }

    /// The positions that a sequence takes, with the token that ends it; while
    /// other prompts are run, steps of at least 64 rows, it generates already.
    pub fn positions(&self) -> u32 {
        let others = (self.parallel - 1) * (self.start() / 64 + 2);
        self.start() + self.prompt + self.generated + others + 1
    }

    /// The position of the first token that is timed. Generation goes on from
    /// some token, so that it starts at 1 at least.
    pub fn start(&self) -> u32 {
        if self.generated > 0 { self.depth.max(1) } else { self.depth }
    }
}

/// Times of one [`Case`], in the order in which they were taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    /// The time of each repetition.
    pub samples: Vec<Duration>,
    /// The tokens of a repetition.
    pub tokens: u32,
}

impl Times {
    /// Tokens per second of each repetition.
    pub fn rates(&self) -> Vec<f64> {
        self.samples.iter().map(|time| f64::from(self.tokens) / time.as_secs_f64().max(1e-9)).collect()
    }
}

/// Times `case` so many times, after a round that is not counted.
///
/// # Errors
/// When the case exceeds the engine's limits, a step fails, or the engine
/// holds other tokens than the case says.
pub fn speed(engine: &mut Engine<'_>, case: Case, repetitions: u32, seed: u64) -> Result<Times> {
    let mut random = Random(seed);
    let vocabulary = engine.runner().width();
    let before = random_tokens(&mut random, case.start() as usize, vocabulary);
    engine.forget()?;
    if case.prompt > 0 && !before.is_empty() {
        finish(engine, before.clone(), 1)?;
    }
    let mut samples = Vec::with_capacity(repetitions as usize);
    for round in 0..=repetitions {
        if before.is_empty() {
            engine.forget()?;
        }
        let mut tokens = before.clone();
        tokens.extend(random_tokens(&mut random, case.prompt as usize, vocabulary));
        let time = if case.parallel > 1 {
            together(engine, case, &mut random)?
        } else {
            counted(&case, &finish(engine, tokens, case.generated + 1)?)?
        };
        if round > 0 {
            samples.push(time);
        }
    }
    Ok(Times { samples, tokens: case.tokens() })
}

/// The time of so many steps in which all sequences generate a token each.
fn together(engine: &mut Engine<'_>, case: Case, random: &mut Random) -> Result<Duration> {
    let vocabulary = engine.runner().width();
    let mut ids = Vec::new();
    for _ in 0..case.parallel {
        let tokens = random_tokens(random, case.start() as usize, vocabulary);
        let request = Request { tokens, sampling: Sampling::greedy(), max_new: None, ..Request::default() };
        ids.push(engine.submit(request, None)?);
    }
    let mut prefilled = 0;
    while prefilled < case.parallel {
        prefilled += happened(engine.step(), |what| matches!(what, What::Prefilled(_)))?;
    }
    let begun = Instant::now();
    for _ in 0..case.generated {
        let tokens = happened(engine.step(), |what| matches!(what, What::Token { .. }))?;
        if tokens != case.parallel {
            let (name, all) = (case.name(), case.parallel);
            return Err(Error::new(format!("{name}: a step made {tokens} tokens for {all} sequences")));
        }
    }
    let time = begun.elapsed();
    for id in ids {
        engine.cancel(id);
    }
    while !engine.is_idle() {
        engine.step();
    }
    Ok(time)
}

/// How many events are of a kind; an end or a failure is an error here.
fn happened(events: &[Event], kind: impl Fn(&What) -> bool) -> Result<u32> {
    let mut count = 0;
    for event in events {
        match &event.what {
            What::Failed(error) => return Err(error.clone()),
            What::Finished { .. } => return Err(Error::new("a sequence ended while it was timed")),
            what => count += u32::from(kind(what)),
        }
    }
    Ok(count)
}

/// The time to the first token after a prompt of so many random tokens.
///
/// # Errors
/// As [`speed`].
pub fn first_token(engine: &mut Engine<'_>, prompt: u32, seed: u64) -> Result<Duration> {
    let tokens = random_tokens(&mut Random(seed), prompt as usize, engine.runner().width());
    engine.forget()?;
    Ok(finish(engine, tokens, 1)?.prefill.time)
}

/// The time of what the case times, if that is what was run.
fn counted(case: &Case, stats: &Stats) -> Result<Duration> {
    let rate = if case.generated > 0 { stats.decode } else { stats.prefill };
    if rate.tokens != case.tokens() {
        let (name, have, need) = (case.name(), rate.tokens, case.tokens());
        return Err(Error::new(format!(
            "{name} ran {have} tokens instead of {need}, {} came from the cache; this is a fault of girih",
            stats.cached
        )));
    }
    Ok(rate.time)
}

/// Runs a request to its end.
fn finish(engine: &mut Engine<'_>, tokens: Vec<u32>, new: u32) -> Result<Stats> {
    let request = Request { tokens, sampling: Sampling::greedy(), max_new: Some(new), ..Request::default() };
    engine.submit(request, None)?;
    loop {
        for event in engine.step() {
            match &event.what {
                What::Finished { stats, .. } => return Ok(*stats),
                What::Failed(error) => return Err(error.clone()),
                What::Prefilled(_) | What::Token { .. } => {}
            }
        }
    }
}

/// `count` random tokens of a vocabulary.
pub fn random_tokens(random: &mut Random, count: usize, vocabulary: usize) -> Vec<u32> {
    (0..count).map(|_| (random.bits() % vocabulary.max(1) as u64) as u32).collect()
}

/// What a list of measurements says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The one in the middle, or the mean of the two there.
    pub median: f64,
    /// The largest.
    pub max: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of a sample, as llama-bench gives it; 0 for one.
    pub deviation: f64,
}

impl Spread {
    /// The spread of some numbers; zeros for none.
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
    fn the_median_is_in_the_middle() {
        let spread = Spread::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((spread.min, spread.median, spread.max, spread.mean), (1.0, 2.5, 4.0, 2.5));
        assert!((spread.deviation - (5.0f64 / 3.0).sqrt()).abs() <= f64::EPSILON * 4.0);
        assert_eq!(Spread::of(&[7.0]).deviation, 0.0);
        assert_eq!(Spread::of(&[]), Spread::default());
    }

    #[test]
    fn cases_are_named_as_by_llama_bench() {
        let case = |prompt, generated, depth| Case { prompt, generated, depth, parallel: 1 };
        assert_eq!(case(512, 0, 0).name(), "pp512");
        assert_eq!(case(0, 128, 4096).name(), "tg128 @ d4096");
        assert_eq!(case(0, 128, 0).positions(), 130);
        assert_eq!(case(512, 0, 16).positions(), 529);
        let eight = Case { parallel: 8, ..case(0, 128, 0) };
        assert_eq!((eight.name().as_str(), eight.tokens()), ("tg128 x8", 1024));
    }

    #[test]
    fn random_tokens_are_of_the_vocabulary() {
        let tokens = random_tokens(&mut Random(0), 100, 7);
        assert!(tokens.len() == 100 && tokens.iter().all(|&token| token < 7));
    }
}
