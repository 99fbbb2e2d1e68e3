//! The phases of a start, from the call to the first token, in wall-clock time.

use std::time::{Duration, Instant};

use girih::{LoadTimes, Phases};
use serde_json::{Map, Value, json};

/// The phases of a start that have ended, in order.
#[derive(Clone, Debug)]
pub struct StartPhases {
    ended: Vec<(&'static str, Duration)>,
    /// Work that ran in parallel to the phases, with its time.
    parallel: Vec<(&'static str, Duration)>,
    /// The start of the current phase.
    since: Instant,
}

impl StartPhases {
    /// Begins the first phase.
    pub fn begin() -> StartPhases {
        StartPhases { ended: Vec::new(), parallel: Vec::new(), since: Instant::now() }
    }

    /// Ends the current phase and begins the next.
    pub fn end(&mut self, name: &'static str) {
        self.ended.push((name, self.since.elapsed()));
        self.restart();
    }

    /// Restarts the current phase: what happened since the last one ended is not counted.
    pub fn restart(&mut self) {
        self.since = Instant::now();
    }

    /// Ends the current phase, in which a model was loaded in `times.whole`, and splits that time
    /// into the parts that were timed. Time of this phase that loading did not take counts for
    /// the next phase.
    pub fn end_load(&mut self, times: &LoadTimes) {
        let LoadTimes { whole, phases: Phases { plan, weights, state, compile } } = *times;
        let rest = whole.saturating_sub(weights + state + compile).max(plan);
        self.ended.extend([("plan", rest), ("weights", weights), ("state", state), ("compile", compile)]);
        // Loading on another thread may outlast this phase; then `since` lies in the future.
        self.since += whole;
    }

    /// Ends the current phase, which waited for another thread. That thread took
    /// `whole`, mostly in parallel to the phases before.
    pub fn end_parallel(&mut self, name: &'static str, whole: Duration) {
        self.end(name);
        self.parallel.push((name, whole));
    }

    /// Adds a phase that was timed elsewhere.
    pub fn add(&mut self, name: &'static str, time: Duration) {
        self.ended.push((name, time));
    }

    /// The time of all phases.
    pub fn total(&self) -> Duration {
        self.ended.iter().map(|(_, time)| *time).sum()
    }

    /// The seconds of each phase and their sum as JSON, with `_` for the spaces of names and an object `parallel`
    /// for parallel work.
    pub fn json(&self) -> Value {
        let seconds = |times: &[(&'static str, Duration)]| -> Map<String, Value> {
            times.iter().map(|(name, time)| (name.replace(' ', "_"), json!(time.as_secs_f64()))).collect()
        };
        let mut phases = seconds(&self.ended);
        phases.insert("total".to_owned(), json!(self.total().as_secs_f64()));
        if !self.parallel.is_empty() {
            phases.insert("parallel".to_owned(), seconds(&self.parallel).into());
        }
        Value::Object(phases)
    }

    /// A line for people: `open 12 ms, …`.
    pub fn line(&self) -> String {
        let shown = |times: &[(&'static str, Duration)]| {
            let each = times.iter().map(|(name, time)| format!("{name} {:.1} ms", time.as_secs_f64() * 1e3));
            each.collect::<Vec<_>>().join(", ")
        };
        let total = self.total().as_secs_f64() * 1e3;
        let parallel = match self.parallel.as_slice() {
            [] => String::new(),
            parallel => format!(" (in parallel: {})", shown(parallel)),
        };
        format!("start: {}; total {total:.1} ms{parallel}", shown(&self.ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up() {
        let mut phases = StartPhases::begin();
        phases.add("open", Duration::from_millis(2));
        phases.add("first token", Duration::from_millis(40));
        assert_eq!(phases.line(), "start: open 2.0 ms, first token 40.0 ms; total 42.0 ms");
        assert_eq!(phases.json()["total"].as_f64(), Some(0.042));
        assert_eq!(phases.json()["first_token"].as_f64(), Some(0.04));
    }

    #[test]
    fn parallel_work_is_not_added_to_the_total() {
        let mut phases = StartPhases::begin();
        phases.end_parallel("tokenizer", Duration::from_secs(30));
        assert!(phases.total() < Duration::from_secs(10));
        assert_eq!(phases.json()["parallel"]["tokenizer"].as_f64(), Some(30.0));
        assert!(phases.line().ends_with(" (in parallel: tokenizer 30000.0 ms)"), "{}", phases.line());
    }
}
