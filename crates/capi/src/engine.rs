//! The engine of the calls `ie_engine_…`: one model, replies that are greedy, and the figures of the last one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use girih::tools::{peak_resident, quote};
use girih::{Event, Model, Request, RunOptions, Sampling};

use crate::environment;
use crate::handles::Handles;
use crate::model::OpenModel;
use crate::status::{Fault, Result};

/// The engines that callers have created.
pub static ENGINES: Handles<GreedyEngine> = Handles::new("engine", 3);

/// The parameters of an engine; `None` and empty texts are girih's defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineSettings<'a> {
    /// The number of threads; at most 0 is the default.
    pub threads: i32,
    /// How threads are pinned: a value of the CPU backend's option `affinity`.
    pub affinity: Option<&'a str>,
    /// Which matrices are transposed before a run. girih packs all weights for its kernels, so it changes nothing.
    pub pretranspose: Option<&'a str>,
    /// How far ahead weights are prefetched. girih measures the distance when it loads a model.
    pub prefetch: Option<&'a str>,
    /// The precision of activations. That of weights is the model's own.
    pub precision: Option<&'a str>,
}

/// An engine whose replies are greedy.
#[derive(Debug)]
pub struct GreedyEngine {
    model: OpenModel,
    figures: Mutex<Figures>,
}

/// The figures of the last reply.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// The tokens of the reply by the whole time of the call.
    pub tokens_per_second: f64,
    /// The median of the times between two tokens, in milliseconds; 0 for fewer than two tokens.
    pub p50_ms: f64,
    /// Their 95th percentile.
    pub p95_ms: f64,
    /// The tokens of the prompt whose state was in the prefix cache.
    pub hits: u64,
    /// The other tokens of the prompt.
    pub misses: u64,
}

impl GreedyEngine {
    /// Loads the model that the environment names.
    ///
    /// # Errors
    /// When a setting is unknown, the environment names no model, or it cannot be loaded.
    pub fn create(settings: EngineSettings<'_>) -> Result<GreedyEngine> {
        let options = settings.run_options()?;
        let model = Model::open_with(&environment::model()?, &environment::open_options())?;
        let engine = GreedyEngine { model: OpenModel::new(model, options), figures: Mutex::default() };
        engine.model.start()?;
        Ok(engine)
    }

    /// Continues a text by at most `tokens.len()` tokens, the most likely one each time; returns their number.
    ///
    /// # Errors
    /// When the prompt is too long, or the model fails.
    pub fn generate(&self, prompt: &str, tokens: &mut [u32]) -> Result<usize> {
        let max = u32::try_from(tokens.len()).map_err(|_| {
            Fault::argument(format!("max_new is {}; the maximum is {}", tokens.len(), u32::MAX))
        })?;
        if max == 0 {
            return Ok(0);
        }
        let begun = Instant::now();
        let request =
            Request::new(prompt).sampling(Sampling::greedy()).max_tokens(max).cut_to_context().without_text();
        let (mut count, mut figures) = (0, Figures::default());
        for event in self.model.generate(request)? {
            match event? {
                Event::Token { id, .. } => {
                    tokens[count] = id;
                    count += 1;
                }
                Event::Finished { stats, latencies, .. } => {
                    figures.hits = stats.cached.into();
                    figures.misses = stats.prefill.tokens.into();
                    if let Some(summary) = latencies.summary() {
                        [figures.p50_ms, figures.p95_ms] =
                            [summary.p50, summary.p95].map(|time| time.as_secs_f64() * 1e3);
                    }
                }
                _ => {}
            }
        }
        figures.tokens_per_second = count as f64 / begun.elapsed().as_secs_f64().max(1e-9);
        *self.figures.lock().unwrap_or_else(PoisonError::into_inner) = figures;
        Ok(count)
    }

    /// The figures of the last reply, and the peak of this process's resident memory in MiB.
    pub fn figures(&self) -> (Figures, u64) {
        let figures = *self.figures.lock().unwrap_or_else(PoisonError::into_inner);
        (figures, peak_resident().unwrap_or(0) >> 20)
    }
}

impl EngineSettings<'_> {
    fn run_options(&self) -> Result<RunOptions> {
        let mut options = RunOptions::default();
        known("pretranspose", self.pretranspose, &["none", "woh", "wxh", "all"])?;
        known("prefetch", self.prefetch, &["auto", "on"])?;
        if let Some(policy) = self.affinity.filter(|policy| !policy.is_empty()) {
            options.backend = options.backend.with("affinity", policy)?;
        }
        let precision = self.precision.filter(|name| !name.is_empty());
        known("precision", precision, &["fp32", "bf16"])?;
        if let Some(name) = precision {
            options.backend =
                options.backend.with("act-precision", if name == "fp32" { "f32" } else { name })?;
        }
        let threads = usize::try_from(self.threads).ok().filter(|threads| *threads > 0);
        options.backend = options.backend.with_threads(threads);
        Ok(options)
    }
}

/// Checks that a setting is absent or one of `words`.
fn known(name: &str, value: Option<&str>, words: &[&str]) -> Result<()> {
    match value.filter(|value| !value.is_empty() && !words.contains(value)) {
        None => Ok(()),
        Some(value) => {
            let (value, words) = (quote(value), words.join(", "));
            Err(Fault::argument(format!("{name} is {value}; it must be null or one of {words}")))
        }
    }
}

/// Adds an engine to the table and returns its handle.
///
/// # Errors
/// As [`GreedyEngine::create`].
pub fn open(settings: EngineSettings<'_>) -> Result<usize> {
    ENGINES.insert(Arc::new(GreedyEngine::create(settings)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_girihs_own_or_refused() {
        let settings = EngineSettings { threads: 2, precision: Some("fp32"), ..Default::default() };
        let backend = settings.run_options().unwrap().backend;
        assert_eq!(
            (backend.settings().threads, backend.settings().get("act-precision")),
            (Some(2), Some("f32"))
        );
        for (bad, named) in [
            (EngineSettings { precision: Some("int4w"), ..settings }, "int4w"),
            (EngineSettings { prefetch: Some("off"), ..settings }, "off"),
            (EngineSettings { pretranspose: Some("both"), ..settings }, "both"),
            (EngineSettings { affinity: Some("near"), ..settings }, "near"),
        ] {
            let fault = bad.run_options().unwrap_err();
            assert!(fault.sentence.contains(named), "{fault:?}");
        }
    }
}
