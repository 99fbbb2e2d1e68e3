//! How long each token of a reply took.

use std::time::Duration;

/// The number of tokens whose latencies are kept.
const KEPT: usize = 4096;

/// The latencies of the newest 4096 tokens of a reply, after the first one.
///
/// A latency is the time of the step that decoded the token: the model, the samplers and the request's hooks, but
/// not waiting for a turn or for a slow reader. A step that accepts a draft decodes several tokens, which share its time
/// equally.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenLatencies {
    /// Nanoseconds of each; the oldest is at `next` once the list is full.
    nanoseconds: Vec<u64>,
    next: usize,
}

/// Percentiles of latencies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatencySummary {
    /// Half of the tokens took at most this time.
    pub p50: Duration,
    /// 95 of 100 tokens took at most this time.
    pub p95: Duration,
    /// 99 of 100 tokens took at most this time.
    pub p99: Duration,
    /// The longest time.
    pub max: Duration,
    /// The number of tokens.
    pub samples: usize,
}

impl TokenLatencies {
    /// Adds `tokens` tokens that took `time` together.
    pub fn add(&mut self, tokens: u32, time: Duration) {
        let each = time.as_nanos() / u128::from(tokens.max(1));
        (0..tokens).for_each(|_| self.push(u64::try_from(each).unwrap_or(u64::MAX)));
    }

    /// Adds the tokens of another reply.
    pub fn extend(&mut self, other: &TokenLatencies) {
        let (newer, older) = other.nanoseconds.split_at(other.next);
        older.iter().chain(newer).for_each(|each| self.push(*each));
    }

    fn push(&mut self, nanoseconds: u64) {
        if self.nanoseconds.len() < KEPT {
            self.nanoseconds.push(nanoseconds);
            return;
        }
        self.nanoseconds[self.next] = nanoseconds;
        self.next = (self.next + 1) % KEPT;
    }

    /// Returns the percentiles by nearest rank; `None` without tokens.
    pub fn summary(&self) -> Option<LatencySummary> {
        let mut sorted = self.nanoseconds.clone();
        sorted.sort_unstable();
        let samples = sorted.len();
        // The nearest rank of p is the smallest value that p percent of all do not exceed.
        let rank = |percent: usize| {
            let nanoseconds = sorted.get((samples * percent).div_ceil(100).checked_sub(1)?)?;
            Some(Duration::from_nanos(*nanoseconds))
        };
        Some(LatencySummary { p50: rank(50)?, p95: rank(95)?, p99: rank(99)?, max: rank(100)?, samples })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> TokenLatencies {
        let mut latencies = TokenLatencies::default();
        values.into_iter().for_each(|value| latencies.add(1, Duration::from_nanos(value)));
        latencies
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let summary = of((1..=100).rev()).summary().expect("there are tokens");
        let nanoseconds = [summary.p50, summary.p95, summary.p99, summary.max].map(|time| time.as_nanos());
        assert_eq!((nanoseconds, summary.samples), ([50, 95, 99, 100], 100));
        let one = of([7]).summary().expect("there is a token");
        assert_eq!((one.p50, one.p99, one.samples), (one.max, one.max, 1));
        assert_eq!(of([]).summary(), None);
    }

    #[test]
    fn tokens_of_one_step_share_its_time() {
        let mut latencies = of([]);
        latencies.add(4, Duration::from_nanos(40));
        latencies.add(0, Duration::from_secs(1));
        assert_eq!(latencies, of([10, 10, 10, 10]));
    }

    #[test]
    fn only_the_newest_tokens_are_kept() {
        let kept = KEPT as u64;
        let summary = of(0..kept + 10).summary().expect("there are tokens");
        assert_eq!((summary.samples, summary.max.as_nanos()), (KEPT, u128::from(kept) + 9));
        let mut joined = of([5; 20]);
        joined.extend(&of(0..kept + 10));
        assert_eq!(joined.summary(), Some(summary));
    }
}
