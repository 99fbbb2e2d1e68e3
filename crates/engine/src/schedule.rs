//! What the next step does: a pure function of how far each sequence is.

use girih_graph::Outputs;
use girih_graph::backend::Range32;

/// How far a sequence is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many of its tokens have been run.
    pub run: u32,
    /// How many tokens it has: its prompt and what was chosen since.
    pub known: u32,
}

/// The part of one sequence that a step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The index of the sequence.
    pub sequence: usize,
    /// The positions to run.
    pub positions: Range32,
    /// Which of their rows leave the program.
    pub outputs: Outputs,
}

impl Part {
    /// How many rows it brings.
    pub fn rows(&self) -> u32 {
        self.positions.end - self.positions.start
    }
}

/// The next step of these sequences, the oldest first, in at most `rows` rows:
/// one part for each sequence that gets any, in the same order.
///
/// Sequences that lack one token, as all do that are decoding, come first.
/// What rows they leave goes to the prompts, to the oldest as much as it can
/// take. So while there are no more sequences than rows, every reply advances
/// with every step, a long prompt delays it by no more than a step's rows take,
/// and the oldest prompt always advances, too: nobody starves.
///
/// Logits are wanted of the last known token only, since only they decide
/// something new.
pub fn schedule(sequences: &[Progress], rows: u32) -> Vec<Part> {
    let lacks = |sequence: &Progress| sequence.known - sequence.run;
    assert!(sequences.iter().all(|sequence| sequence.run < sequence.known), "something is left to run");
    let decoding = sequences.iter().filter(|sequence| lacks(sequence) == 1).count() as u32;
    let mut for_decode = rows.min(decoding);
    let mut for_prefill = rows - for_decode;
    let mut parts = Vec::new();
    for (index, sequence) in sequences.iter().enumerate() {
        let left = if lacks(sequence) == 1 { &mut for_decode } else { &mut for_prefill };
        let count = lacks(sequence).min(*left);
        *left -= count;
        if count > 0 {
            let positions = Range32 { start: sequence.run, end: sequence.run + count };
            let outputs = if positions.end == sequence.known { Outputs::Last } else { Outputs::None };
            parts.push(Part { sequence: index, positions, outputs });
        }
    }
    parts
}
