//! What the next step does: a pure function of how far a sequence is.

use girih_graph::Want;
use girih_graph::backend::Range32;

/// The part of one sequence that a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The positions to run.
    pub positions: Range32,
    /// Which of their rows leave the program.
    pub want: Want,
}

impl Batch {
    /// How many rows the step has.
    pub fn rows(&self) -> u32 {
        self.positions.end - self.positions.start
    }
}

/// The next step of a sequence of `known` tokens, the first `held` of which
/// have been run: a chunk of its prompt, or the one token chosen last.
///
/// Logits are wanted of the last known token only, since only they decide
/// something new.
pub fn schedule(held: u32, known: u32, chunk: u32) -> Batch {
    assert!(held < known && chunk > 0, "something is left to run");
    let end = known.min(held.saturating_add(chunk));
    let want = if end == known { Want::Last } else { Want::Nothing };
    Batch { positions: Range32 { start: held, end }, want }
}
