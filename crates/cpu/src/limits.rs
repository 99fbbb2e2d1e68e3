//! The limits of this machine, measured: the bandwidth of memory, and the rate of each instruction that
//! kernels use.
//!
//! A limit is the best of a few short runs, as disturbances only lower it.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use girih_graph::Error;

use crate::kernels::peaks::read;
pub use crate::kernels::peaks::{Numbers, Peak, peaks};

/// The number of runs; the best one counts.
const RUNS: usize = 5;

/// The duration of a run: longer than a time slice of the scheduler, so that a disturbed run is not
/// taken for a slow machine.
const RUN_TIME: Duration = Duration::from_millis(10);

/// Buffers to be read, one for each thread.
#[derive(Debug)]
pub struct Reading {
    buffers: Vec<Vec<u64>>,
}

impl Reading {
    /// Allocates buffers of `bytes` bytes in total, each first written by the thread that reads it.
    ///
    /// # Errors
    /// If there is not enough memory.
    pub fn new(bytes: usize, threads: usize) -> Result<Reading, Error> {
        let words = (bytes / threads.max(1) / size_of::<u64>()).max(1);
        let buffers = together(threads, |index| {
            let mut buffer = Vec::new();
            buffer.try_reserve_exact(words).map_err(|error| {
                Error::new(format!("cannot allocate {bytes} bytes to measure memory bandwidth: {error}"))
            })?;
            buffer.resize(words, index as u64 | 1);
            Ok(buffer)
        });
        Ok(Reading { buffers: buffers.into_iter().collect::<Result<_, Error>>()? })
    }

    /// Bytes per second that `threads` threads read together.
    pub fn rate(&self, threads: usize) -> f64 {
        let pass = |index: usize| {
            for buffer in self.buffers.iter().skip(index).step_by(threads.max(1)) {
                black_box(read(black_box(buffer)));
            }
        };
        let bytes: usize = self.buffers.iter().map(|buffer| size_of_val(&buffer[..])).sum();
        best(threads, |index, rounds| (0..rounds).for_each(|_| pass(index))) * bytes as f64
    }
}

impl Peak {
    /// Operations per second of `threads` threads together.
    pub fn rate(&self, threads: usize) -> f64 {
        best(threads, |_, rounds| (self.run)(rounds)) * (self.operations * threads as u64) as f64
    }
}

/// The highest number of rounds per second of `body`, run by all threads at once.
fn best(threads: usize, body: impl Fn(usize, u64) + Sync) -> f64 {
    let mut rounds = 1;
    let mut rate = 0.0_f64;
    let mut runs = 0;
    while runs < RUNS {
        let time = run(threads, rounds, &body);
        if time < RUN_TIME / 2 {
            // Too short for the clock's resolution: more rounds until it is long enough.
            let factor = RUN_TIME.as_secs_f64() / time.as_secs_f64().max(1e-7);
            rounds = (rounds as f64 * factor.clamp(2.0, 1000.0)) as u64;
            continue;
        }
        rate = rate.max(rounds as f64 / time.as_secs_f64());
        runs += 1;
    }
    rate
}

/// The time until the last thread has done its rounds.
fn run(threads: usize, rounds: u64, body: &(impl Fn(usize, u64) + Sync)) -> Duration {
    let barrier = Barrier::new(threads.max(1));
    let times = together(threads, |index| {
        barrier.wait();
        let begun = Instant::now();
        body(index, rounds);
        begun.elapsed()
    });
    times.into_iter().max().unwrap_or_default()
}

/// The results of `body` in `threads` threads at once.
fn together<T: Send>(threads: usize, body: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let body = &body;
    thread::scope(|scope| {
        let handles: Vec<_> = (0..threads.max(1)).map(|index| scope.spawn(move || body(index))).collect();
        handles.into_iter().map(|handle| handle.join().expect("measuring does not panic")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measured_limits_are_plausible() {
        let reading = Reading::new(1 << 20, 2).unwrap();
        for threads in [1, 2] {
            let rate = reading.rate(threads);
            assert!((1e7..1e14).contains(&rate), "{rate} bytes per second");
        }
        let peak = peaks().last().expect("there is one that runs anywhere");
        let rate = peak.rate(1);
        assert!((1e7..1e13).contains(&rate), "{rate} operations per second");
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let error = Reading::new(usize::MAX / 4, 1).unwrap_err();
        assert!(error.to_string().contains("cannot allocate"), "{error}");
    }
}
