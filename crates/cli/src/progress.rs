//! Progress bars and notes, on standard error. Bars appear only on a terminal.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

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
    /// Weights of a model.
    Weights,
    /// Tilings of a search.
    Tilings,
}

impl Show {
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
