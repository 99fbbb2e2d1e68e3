//! Progress bars and notes, on standard error. Bars appear only on a terminal, and only for work
//! that takes longer than a moment.

use std::fmt::Write;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use girih_measure::MeasureProgress;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::output;

/// The time after which a bar appears. Shorter work needs none.
const PATIENCE: Duration = Duration::from_secs(1);

/// How much of progress and notes is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Nothing.
    Nothing,
    /// Bars on a terminal, and notes that change what the user would do.
    Notes,
    /// Bars, notes, and routine details.
    Details,
}

/// The unit that a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things of this name, in the plural.
    Things(&'static str),
}

impl Show {
    /// A bar over `total` units; hidden if standard error is not a terminal.
    pub fn bar(self, what: &'static str, total: u64, unit: Unit) -> Bar {
        let inner = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        let template = match unit {
            Unit::Bytes => "{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {left}".to_owned(),
            Unit::Things(name) => {
                format!("{{prefix}} [{{bar:30}}] {{human_pos}}/{{human_len}} {name} {{left}}")
            }
        };
        let style = ProgressStyle::with_template(&template).expect("the template is a constant");
        let left = |state: &ProgressState, out: &mut dyn Write| {
            if state.per_sec() > 0.0 {
                // A bar that cannot be written does no harm.
                let _ = write!(out, "{:#} left", HumanDuration(state.eta()));
            }
        };
        inner.set_style(style.with_key("left", left).progress_chars("=> "));
        inner.set_prefix(what);
        let is_wanted = self != Show::Nothing && std::io::stderr().is_terminal();
        Bar { inner, since: Instant::now(), is_hidden: Arc::new(AtomicBool::new(true)), is_wanted }
    }

    /// Prints a line that is not part of the result, and that the user should know.
    pub fn note(self, line: impl AsRef<str>) {
        if self != Show::Nothing {
            output::print_note(line.as_ref());
        }
    }

    /// Prints a line of routine: what was read, chosen or counted.
    pub fn detail(self, line: impl AsRef<str>) {
        if self == Show::Details {
            output::print_note(line.as_ref());
        }
    }
}

/// A progress bar. Copies move the same bar.
#[derive(Clone, Debug)]
pub struct Bar {
    inner: ProgressBar,
    since: Instant,
    is_hidden: Arc<AtomicBool>,
    /// Whether it appears at all.
    is_wanted: bool,
}

impl Bar {
    /// Sets the position of the start. It counts neither for the rate nor for the time left.
    pub fn begin_at(&self, done: u64) {
        self.inner.set_position(done);
        self.inner.tick();
        self.inner.reset_eta();
    }

    /// Sets the position and the total.
    pub fn set(&self, done: u64, total: u64) {
        if self.inner.length() != Some(total) {
            self.inner.set_length(total);
        }
        self.inner.set_position(done);
        self.appear();
    }

    /// Moves on by some units.
    pub fn advance(&self, units: u64) {
        self.inner.inc(units);
        self.appear();
    }

    /// A function that moves the bar with a measurement.
    pub fn watcher(&self) -> impl FnMut(MeasureProgress) + use<> {
        let bar = self.clone();
        move |MeasureProgress { done, total }| bar.set(done, total)
    }

    /// Prints lines without mixing them with the bar.
    pub fn pause<T>(&self, print: impl FnOnce() -> T) -> T {
        self.inner.suspend(print)
    }

    /// Removes the bar.
    pub fn finish_and_clear(&self) {
        self.inner.finish_and_clear();
    }

    /// Draws the bar from now on, if the work has taken long enough.
    fn appear(&self) {
        if self.is_wanted && self.since.elapsed() >= PATIENCE && self.is_hidden.swap(false, Ordering::Relaxed)
        {
            self.inner.set_draw_target(ProgressDrawTarget::stderr());
        }
    }
}
