//! Progress bars and notes, on standard error. Bars appear only on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// Whether progress and notes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Show {
    /// Bars on a terminal, and notes.
    All,
    /// Nothing.
    Nothing,
}

/// The unit that a bar counts.
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

    /// A bar over `total` units; hidden if standard error is not a terminal.
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

    /// Prints a line that is not part of the result.
    pub fn note(self, line: impl AsRef<str>) {
        if self == Show::All {
            output::print_note(line.as_ref());
        }
    }
}
