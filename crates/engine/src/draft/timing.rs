//! Measures the times of steps by their number of rows.

use std::time::{Duration, Instant};

use girih_graph::backend::Unwatched;
use girih_graph::{InputSpec, Outputs, Watch};

use super::rows_watch::RowsWatch;
use crate::cached_runner::{CachedRunner, StepTokens};
use crate::step_costs::StepCosts;
use crate::{Error, Result};

/// The numbers of rows whose steps are timed.
const TIMED_ROWS: [u32; 5] = [1, 2, 4, 8, 16];

/// The time after which no further step is timed; a table of fewer numbers of rows is extended.
const BUDGET: Duration = Duration::from_millis(250);

/// A step of each number of rows is timed at most this often; the shortest time counts.
const REPEATS: u32 = 5;

/// Times steps of `most` rows at most that report the values `watched`, if they are named. The sequences that it runs are
/// discarded.
pub(crate) fn measured(
    runner: &mut CachedRunner,
    most: u32,
    watched: Option<&[String]>,
) -> Result<StepCosts> {
    let timed = |runner: &mut CachedRunner, rows| match watched {
        Some(names) => timed(runner, rows, &mut RowsWatch::new(names.to_vec())),
        None => timed(runner, rows, &mut Unwatched),
    };
    let begun = Instant::now();
    // The first step wakes threads and reads weights.
    timed(runner, 1)?;
    let mut times: Vec<(u32, Duration)> = Vec::new();
    for rows in TIMED_ROWS.into_iter().filter(|rows| *rows <= most) {
        // Without a second number of rows there is no slope.
        if times.len() > 1 && begun.elapsed() > BUDGET {
            break;
        }
        let mut best = timed(runner, rows)?;
        for _ in 1..REPEATS {
            if begun.elapsed() > BUDGET {
                break;
            }
            best = best.min(timed(runner, rows)?);
        }
        times.push((rows, best));
    }
    Ok(StepCosts::of(&times))
}

/// The time of a step of this number of rows of one new sequence, all of them output rows.
fn timed(runner: &mut CachedRunner, rows: u32, watch: &mut dyn Watch) -> Result<Duration> {
    let width: usize = runner.inner().inputs().iter().filter_map(InputSpec::hidden_width).sum();
    let hidden = vec![1.0; width * rows as usize];
    let tokens = vec![0; rows as usize];
    let (sequence, _) = runner.cache.begin(&[]);
    let begun = Instant::now();
    let run = runner.reserve(sequence, rows).and_then(|has_room| match has_room {
        true => {
            let step = StepTokens { hidden: &hidden, ..StepTokens::plain(sequence, &tokens, Outputs::All) };
            runner.run_one(step, watch)
        }
        false => Err(Error::new("no blocks are free to time a step")),
    });
    runner.cache.discard(sequence);
    run.map(|()| begun.elapsed())
}
