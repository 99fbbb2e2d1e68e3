//! How fast an engine runs, as its last steps show, and how much work its requests have left: what a
//! caller needs to say how long a further request would wait.

use std::time::Duration;

use crate::request::RequestId;

/// The weight of a new value in a mean over the last ones.
const WEIGHT: f64 = 0.125;

/// The times of an engine's last steps; zeros before its second step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// The mean time of a step, in which each reply gets at least one token.
    pub step: Duration,
    /// The mean time of a row of a prompt.
    pub prompt_row: Duration,
}

/// Measures the pace.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PaceMeter {
    pub pace: Pace,
    has_begun: bool,
    /// Rows of prompts, those of earlier steps with less weight.
    rows: f64,
    /// Their work, with the same weights.
    work: f64,
    /// The seconds of their steps, with the same weights.
    row_seconds: f64,
}

impl PaceMeter {
    /// Counts a step that ran `prompt_rows` rows of prompts with this work, unless it is the first, which does what no other has to, such as
    /// packing weights for kernels: after a first prompt of one row in three seconds, requests would be refused.
    pub fn count(&mut self, time: Duration, prompt_rows: u32, prompt_work: u64) {
        if !std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let seconds = time.as_secs_f64();
        let is_first = self.pace.step.is_zero();
        let mean = self.pace.step.as_secs_f64();
        let step = if is_first { seconds } else { mean + WEIGHT * (seconds - mean) };
        self.pace.step = Duration::from_secs_f64(step);
        if prompt_rows > 0 {
            self.rows = (1.0 - WEIGHT) * self.rows + f64::from(prompt_rows);
            self.work = (1.0 - WEIGHT) * self.work + prompt_work as f64;
            self.row_seconds = (1.0 - WEIGHT) * self.row_seconds + seconds;
            self.pace.prompt_row = Duration::from_secs_f64(self.row_seconds / self.rows);
        }
    }

    /// The work of prompts that steps run in this time, at the rate of the last ones; `None` before a counted step ran a prompt.
    /// The rate includes the time of reading weights and of replies, so it changes with the size of steps: repeated calls approach
    /// the time.
    pub fn prompt_work_in(&self, time: Duration) -> Option<u64> {
        (self.row_seconds > 0.0).then(|| (self.work / self.row_seconds * time.as_secs_f64()) as u64)
    }
}

/// The work that an active request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLeft {
    /// The request.
    pub request: RequestId,
    /// The rows of its prompt that have not been run.
    pub prompt_rows: u32,
    /// The maximum number of tokens that its reply may still get.
    pub tokens: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_that_of_the_last_steps() {
        let millis = Duration::from_millis;
        let mut meter = PaceMeter::default();
        meter.count(millis(3000), 1, 5);
        assert_eq!(meter.pace, Pace::default());
        meter.count(millis(100), 0, 0);
        assert_eq!(meter.pace, Pace { step: millis(100), prompt_row: Duration::ZERO });
        meter.count(millis(180), 60, 300);
        assert_eq!(meter.pace, Pace { step: millis(110), prompt_row: millis(3) });
        for _ in 0..200 {
            meter.count(millis(20), 20, 100);
        }
        let pace = meter.pace;
        let is_near = |found: Duration, millis: f64| (found.as_secs_f64() * 1e3 - millis).abs() < 1e-3;
        assert!(is_near(pace.step, 20.0) && is_near(pace.prompt_row, 1.0), "{pace:?}");
        assert_eq!(PaceMeter::default().prompt_work_in(millis(7)), None);
        let work = meter.prompt_work_in(millis(7)).unwrap();
        assert!((34..=36).contains(&work), "{work}");
    }

    /// Steps whose time is that of reading the weights and of their rows get the time that was asked for.
    #[test]
    fn steps_approach_the_time_that_is_asked_for() {
        let asked = Duration::from_millis(150);
        for (fixed, each) in [(25.0, 1.6), (25.0, 3.5), (60.0, 1.0), (0.0, 2.0)] {
            let mut meter = PaceMeter::default();
            let time = |rows: f64| Duration::from_secs_f64((fixed + each * rows) / 1e3);
            let mut rows = 128;
            for _ in 0..100 {
                meter.count(time(f64::from(rows)), rows, u64::from(rows));
                rows = meter.prompt_work_in(asked).map_or(rows, |work| work as u32);
            }
            let last = time(f64::from(rows)).as_secs_f64() * 1e3;
            assert!((last - 150.0).abs() < 6.0, "{fixed} ms and {each} ms a row: {last} ms");
        }
    }
}
