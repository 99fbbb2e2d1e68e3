//! How long a request would wait for its turn, as the requests before it and the last replies show.
//!
//! A request begins when a running reply ends and the prompts before it have been run. Replies often
//! begin together and end together, so the rate of recent ends says little about the next one: the
//! estimate asks when each of the running replies will end, and gives these places to the requests
//! before this one, in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use girih_engine::Pace;

/// The weight of a reply's time in the mean over the last ones is one of this number.
const MEAN_REPLIES: u32 = 16;

/// A reply that runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningReply {
    /// When it was admitted.
    pub since: Instant,
    /// The rows of its prompt that have not been run.
    pub prompt_rows: u32,
    /// The maximum number of tokens that it may still get.
    pub tokens: u32,
}

/// What an engine's thread tells of its work.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceRecord {
    /// How fast the last steps were.
    pub pace: Pace,
    /// The mean time from the admission of a reply to its end; `None` before the first end.
    pub reply: Option<Duration>,
    /// The replies that run.
    pub running: Vec<RunningReply>,
}

impl ServiceRecord {
    /// Counts a reply that ended this long after its admission.
    pub fn count_reply(&mut self, time: Duration) {
        let mean = self.reply.map_or(time, |mean| mean - mean / MEAN_REPLIES + time / MEAN_REPLIES);
        self.reply = Some(mean);
    }

    /// The expected time until the prompt of a request begins to run, on an engine of `sequences`
    /// places, if `ahead` are the rows of the prompts before it, in order. Until the first reply has
    /// ended, only prompts count.
    pub fn expected_wait(&self, sequences: u32, now: Instant, ahead: impl Iterator<Item = u32>) -> Duration {
        let reply = self.reply.unwrap_or_default();
        let free = (sequences as usize).saturating_sub(self.running.len());
        let ends = self.running.iter().map(|running| self.time_left(running, now));
        let mut places: BinaryHeap<Reverse<Duration>> =
            ends.chain(std::iter::repeat_n(Duration::ZERO, free)).map(Reverse).collect();
        let rows = self.running.iter().map(|running| running.prompt_rows).fold(0, u32::saturating_add);
        // Prompts run one after the other, as they share the rows of a step.
        let mut prompts_end = self.pace.prompt_row.saturating_mul(rows);
        for rows in ahead {
            let Some(Reverse(place)) = places.pop() else { break };
            let time = self.pace.prompt_row.saturating_mul(rows);
            prompts_end = place.max(prompts_end).saturating_add(time);
            places.push(Reverse(place.saturating_add(reply)));
        }
        places.peek().map_or(prompts_end, |Reverse(place)| prompts_end.max(*place))
    }

    /// The expected time until a running reply ends. One that has outlived the mean is expected to
    /// need as much again, as lengths of replies differ widely; but no reply exceeds its tokens.
    fn time_left(&self, running: &RunningReply, now: Instant) -> Duration {
        let Some(mean) = self.reply else { return Duration::ZERO };
        let age = now.saturating_duration_since(running.since);
        let by_age = if age < mean { mean - age } else { mean };
        let prompt = self.pace.prompt_row.saturating_mul(running.prompt_rows);
        by_age.min(self.pace.step.saturating_mul(running.tokens).saturating_add(prompt))
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;

    const MANY: u32 = 1_000_000;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Four places; a reply takes 8 s, a token 0.1 s, a row of a prompt 0.01 s. The replies run for
    /// `ages` seconds, with the tokens that they may still get.
    fn record(now: Instant, running: &[(f64, u32)]) -> ServiceRecord {
        let running = running.iter().map(|(age, tokens)| {
            let since = now.checked_sub(seconds(*age)).expect("the clock runs for longer");
            RunningReply { since, prompt_rows: 0, tokens: *tokens }
        });
        let pace = Pace { step: seconds(0.1), prompt_row: seconds(0.01) };
        ServiceRecord { pace, reply: Some(seconds(8.0)), running: running.collect() }
    }

    fn wait(running: &[(f64, u32)], ahead: &[u32]) -> f64 {
        let now = Instant::now();
        let wait = record(now, running).expected_wait(4, now, ahead.iter().copied());
        (wait.as_secs_f64() * 1e6).round() / 1e6
    }

    #[test]
    fn a_free_place_is_waited_for_only_as_long_as_prompts_run() {
        assert_eq!(wait(&[], &[]), 0.0);
        assert_eq!(wait(&[(1.0, MANY); 3], &[]), 0.0);
        assert_eq!(wait(&[], &[100, 50]), 1.5);
        let now = Instant::now();
        let mut reading = record(now, &[(1.0, MANY)]);
        reading.running[0].prompt_rows = 300;
        assert_eq!(reading.expected_wait(4, now, std::iter::empty()), seconds(3.0));
    }

    #[test]
    fn replies_that_began_together_end_together() {
        // All have just begun: the wait is a whole reply, though one ended every two seconds before.
        assert_eq!(wait(&[(0.0, MANY); 4], &[]), 8.0);
        assert_eq!(wait(&[(0.0, MANY); 4], &[1, 1, 1]), 8.03);
        assert_eq!(wait(&[(0.0, MANY); 4], &[1; 4]), 16.0);
        assert_eq!(wait(&[(6.0, MANY); 4], &[]), 2.0);
    }

    #[test]
    fn places_are_given_in_the_order_in_which_they_become_free() {
        let running = [(1.0, MANY), (7.0, MANY), (3.0, MANY), (5.0, MANY)];
        let waits: Vec<f64> = (0..6).map(|ahead| wait(&running, &[0; 6][..ahead])).collect();
        assert_eq!(waits, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]);
        // A long prompt before it delays it beyond the end of a reply.
        assert_eq!(wait(&running, &[600]), 7.0);
    }

    #[test]
    fn a_reply_needs_no_longer_than_its_tokens_take() {
        assert_eq!(wait(&[(1.0, 20), (1.0, MANY), (1.0, MANY), (1.0, MANY)], &[]), 2.0);
        assert_eq!(wait(&[(20.0, 5), (20.0, MANY), (20.0, MANY), (20.0, MANY)], &[]), 0.5);
        assert_eq!(wait(&[(20.0, MANY); 4], &[]), 8.0, "one that has outlived the mean");
    }

    #[test]
    fn before_the_first_end_nothing_is_known_of_replies() {
        let now = Instant::now();
        let mut new = ServiceRecord { reply: None, ..record(now, &[(30.0, MANY); 4]) };
        assert_eq!(new.expected_wait(4, now, [100; 9].into_iter()), seconds(9.0));
        new.count_reply(seconds(4.0));
        assert_eq!(new.reply, Some(seconds(4.0)));
        new.count_reply(seconds(12.0));
        assert_eq!(new.reply, Some(seconds(4.5)));
        let huge = ServiceRecord { reply: Some(Duration::MAX), ..new };
        assert!(huge.expected_wait(4, now, [u32::MAX; 9].into_iter()) > seconds(1e9), "nothing overflows");
    }

    /// What a server of 8 places does in 20 minutes whose replies take 4 to 6 s: the longest wait of the
    /// requests that were admitted, and the share of the time for which a place was in use.
    fn serve(requests_per_second: f64, max_wait: f64) -> (f64, f64) {
        const PLACES: usize = 8;
        let (mut random, origin, end) = (Random(7), Instant::now(), 1200.0);
        let (mut now, mut used, mut longest) = (0.0_f64, 0.0, 0.0_f64);
        // When each place is free again, and when each admitted reply begins and ends.
        let (mut free, mut replies): ([f64; PLACES], Vec<(f64, f64)>) = ([0.0; PLACES], Vec::new());
        let mut service = ServiceRecord::default();
        service.pace.step = seconds(0.1);
        while now < end {
            // The moments of a Poisson process, as clients that do not know each other send requests.
            now -= ((1.0 - f64::from(random.number())) / 2.0).ln() / requests_per_second;
            let mut ended: Vec<(f64, f64)> = replies.extract_if(.., |(_, end)| *end <= now).collect();
            ended.sort_by(|a, b| a.1.total_cmp(&b.1));
            ended.iter().for_each(|(begun, end)| service.count_reply(seconds(end - begun)));
            let (running, queue): (Vec<_>, Vec<_>) = replies.iter().partition(|(begins, _)| *begins <= now);
            let running = running.iter().map(|(begun, _)| RunningReply {
                since: origin + seconds(*begun),
                prompt_rows: 0,
                tokens: MANY,
            });
            service.running = running.collect();
            let ahead = queue.iter().map(|_| 0);
            if service.expected_wait(PLACES as u32, origin + seconds(now), ahead) > seconds(max_wait) {
                continue;
            }
            let place = free.iter_mut().min_by(|a, b| a.total_cmp(b)).expect("there are places");
            let begins = place.max(now);
            let time = 5.0 + f64::from(random.number());
            *place = begins + time;
            replies.push((begins, *place));
            used += time;
            // At the start, nothing is known of the length of replies.
            if now > 60.0 {
                longest = longest.max(begins - now);
            }
        }
        (longest, used / (PLACES as f64 * end))
    }

    #[test]
    fn admitted_requests_wait_hardly_longer_than_expected_however_many_come() {
        let capacity = 8.0 / 5.0;
        for (times, max_wait) in [(4.0, 2.0), (4.0, 1.0), (16.0, 2.0), (4.0, 30.0)] {
            let (longest, usage) = serve(times * capacity, max_wait);
            println!(
                "{times} times the capacity, at most {max_wait} s: longest {longest:.2} s, usage {usage:.3}"
            );
            assert!(longest < 1.1 * max_wait + 1.5, "{longest}");
            assert!(usage > 0.95, "{usage}");
        }
    }
}
