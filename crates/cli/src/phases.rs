//! The phases of a start, from the call to the first token, by the clock on
//! the wall.

use std::time::{Duration, Instant};

use girih_graph::Runner;
use serde_json::{Map, Value, json};

/// Phases that have ended, in order.
#[derive(Clone, Debug)]
pub struct Phases {
    ended: Vec<(&'static str, Duration)>,
    /// What was done beside others, and how long that took.
    beside: Vec<(&'static str, Duration)>,
    /// When the present one began.
    since: Instant,
}

impl Phases {
    /// The first phase begins.
    pub fn begin() -> Phases {
        Phases { ended: Vec::new(), beside: Vec::new(), since: Instant::now() }
    }

    /// The present phase ends, and the next begins.
    pub fn end(&mut self, name: &'static str) {
        self.ended.push((name, self.since.elapsed()));
        self.since = Instant::now();
    }

    /// The present phase ends, which was the loading of `runner`: it knows of
    /// what parts that was.
    pub fn end_load(&mut self, runner: &dyn Runner) {
        let girih_graph::Phases { plan, weights, state, compile } = runner.phases();
        let whole = self.since.elapsed();
        let rest = whole.saturating_sub(weights + state + compile).max(plan);
        self.ended.extend([("plan", rest), ("weights", weights), ("state", state), ("compile", compile)]);
        self.since = Instant::now();
    }

    /// The present phase ends, in which another thread was waited for; it took
    /// `whole`, most of it beside the phases before.
    pub fn end_beside(&mut self, name: &'static str, whole: Duration) {
        self.end(name);
        self.beside.push((name, whole));
    }

    /// A phase that something else has timed.
    pub fn add(&mut self, name: &'static str, time: Duration) {
        self.ended.push((name, time));
    }

    /// All phases together.
    pub fn total(&self) -> Duration {
        self.ended.iter().map(|(_, time)| *time).sum()
    }

    /// Seconds by phase, and their sum; what was done beside others in an
    /// object of its own.
    pub fn json(&self) -> Value {
        let seconds = |times: &[(&'static str, Duration)]| -> Map<String, Value> {
            times.iter().map(|(name, time)| ((*name).to_owned(), json!(time.as_secs_f64()))).collect()
        };
        let mut phases = seconds(&self.ended);
        phases.insert("total".to_owned(), json!(self.total().as_secs_f64()));
        if !self.beside.is_empty() {
            phases.insert("beside".to_owned(), seconds(&self.beside).into());
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
        let beside = match self.beside.as_slice() {
            [] => String::new(),
            beside => format!(" (beside them {})", shown(beside)),
        };
        format!("start: {}; together {total:.1} ms{beside}", shown(&self.ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up() {
        let mut phases = Phases::begin();
        phases.add("open", Duration::from_millis(2));
        phases.add("first token", Duration::from_millis(40));
        assert_eq!(phases.line(), "start: open 2.0 ms, first token 40.0 ms; together 42.0 ms");
        assert_eq!(phases.json()["total"].as_f64(), Some(0.042));
    }

    #[test]
    fn what_was_done_beside_others_is_not_added() {
        let mut phases = Phases::begin();
        phases.end_beside("tokenizer", Duration::from_secs(30));
        assert!(phases.total() < Duration::from_secs(10));
        assert_eq!(phases.json()["beside"]["tokenizer"].as_f64(), Some(30.0));
        assert!(phases.line().ends_with(" (beside them tokenizer 30000.0 ms)"), "{}", phases.line());
    }
}
