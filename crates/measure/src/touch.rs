//! Reads of weights between the tokens of a benchmark, as programs do that measure how memory takes more load.

use std::time::{Duration, Instant};

use girih_graph::{Runner, WeightTouch};

use crate::{Error, Result};

/// What is read after each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TouchPlan {
    /// The bytes of weights to walk over.
    pub bytes: u64,
    /// The distance of the bytes that are read.
    pub stride: u64,
    /// Whether the time counts as time of the tokens.
    pub in_window: bool,
}

/// Walks over the weights, round and round.
#[derive(Clone, Debug)]
pub struct WeightToucher {
    plan: TouchPlan,
    /// The first byte of the next walk.
    next: u64,
    /// The bytes walked over.
    bytes: u64,
    time: Duration,
    checksum: u8,
}

/// What was read after the tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TouchTimes {
    /// What was to be read after each token.
    pub plan: TouchPlan,
    /// The bytes walked over.
    pub bytes: u64,
    /// The time of all walks.
    pub time: Duration,
    /// The exclusive or of the bytes that were read, so that no walk can be left out.
    pub checksum: u8,
}

impl WeightToucher {
    /// Begins at the first byte of the weights.
    pub fn new(plan: TouchPlan) -> WeightToucher {
        WeightToucher { plan, next: 0, bytes: 0, time: Duration::ZERO, checksum: 0 }
    }

    /// Walks over the weights of a loaded model once; returns the time.
    ///
    /// # Errors
    /// When the backend does not tell where its weights lie.
    pub fn walk(&mut self, runner: &dyn Runner) -> Result<Duration> {
        let TouchPlan { bytes, stride, in_window: _ } = self.plan;
        let begun = Instant::now();
        let touched = runner.touch(WeightTouch { first: self.next, bytes, stride });
        let time = begun.elapsed();
        let checksum = touched.ok_or_else(|| {
            let backend = runner.backend();
            Error::new(format!(
                "backend {backend} keeps its weights where they cannot be touched; use backend cpu"
            ))
        })?;
        self.checksum ^= checksum;
        self.next = self.next.wrapping_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.time += time;
        Ok(time)
    }

    /// The walks so far.
    pub fn times(&self) -> TouchTimes {
        TouchTimes { plan: self.plan, bytes: self.bytes, time: self.time, checksum: self.checksum }
    }

    /// Whether the time of walks counts as time of the tokens.
    pub(crate) fn is_in_window(&self) -> bool {
        self.plan.in_window
    }
}
