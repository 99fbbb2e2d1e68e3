//! Progress bars and notes: on standard error, and only where a person reads.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};

use girih_graph::WeightSource;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// What is shown of long work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Bars on a terminal, and notes.
    All,
    /// Nothing.
    Nothing,
}

/// What a bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Weights of a model.
    Weights,
    /// Tilings of a search.
    Tilings,
}

impl Show {
    /// Nothing if `quiet`.
    pub fn unless(quiet: bool) -> Show {
        if quiet { Show::Nothing } else { Show::All }
    }

    /// A bar over so many units; invisible where nobody would see it.
    pub fn bar(self, what: &'static str, total: u64, unit: Unit) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        if self == Show::Nothing || !std::io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template(match unit {
            Unit::Bytes => "{prefix} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}",
            Unit::Weights => "{prefix} [{bar:30}] {human_pos}/{human_len} weights",
            Unit::Tilings => "{prefix} [{bar:30}] {human_pos}/{human_len}",
        });
        bar.set_style(style.expect("the template is a constant").progress_chars("=> "));
        bar.set_prefix(what);
        bar
    }

    /// A line that is no result.
    pub fn note(self, line: impl AsRef<str>) {
        if self == Show::All {
            output::say(line.as_ref());
        }
    }
}

/// Weights whose reading moves a bar, and ends when nobody wants them.
pub struct Counted<'a> {
    /// Where they come from.
    pub source: &'a dyn WeightSource,
    /// What moves.
    pub bar: ProgressBar,
    /// Whether nobody wants the weights any longer; then reading fails.
    pub abandoned: &'a AtomicBool,
}

impl WeightSource for Counted<'_> {
    fn read(&self, name: &str, offset: u64, into: &mut [u8]) -> Result<(), girih_graph::Error> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(girih_graph::Error::new("nobody wants the weights any longer"));
        }
        self.source.read(name, offset, into)?;
        self.bar.inc(into.len() as u64);
        Ok(())
    }

    fn identity(&self) -> Option<[u8; 32]> {
        self.source.identity()
    }
}
