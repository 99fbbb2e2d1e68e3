//! Finds replies that repeat themselves.

use std::collections::VecDeque;

use girih_graph::{Error, ErrorKind, Result};

/// The maximum number of tokens that a repetition may repeat.
const MAX_TOKENS: u32 = 512;

/// The maximum of a repetition's number of times.
const MAX_TIMES: u32 = 1000;

/// When a reply counts as a repetition: its last `tokens` × `times` tokens repeat with a period of at most `tokens`. So
/// the same `tokens` tokens stand there `times` times, and fewer tokens more often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RepetitionRule {
    /// The maximum number of tokens that are repeated, 1 to 512.
    pub tokens: u32,
    /// How often they stand in a row, 2 to 1000.
    pub times: u32,
}

impl RepetitionRule {
    /// Checks the ranges.
    ///
    /// # Errors
    /// When a number is outside its range.
    pub fn check(self) -> Result<()> {
        let RepetitionRule { tokens, times } = self;
        if (1..=MAX_TOKENS).contains(&tokens) && (2..=MAX_TIMES).contains(&times) {
            return Ok(());
        }
        let sentence = format!(
            "a repetition of {tokens} tokens {times} times is outside the ranges 1 to {MAX_TOKENS} and 2 to {MAX_TIMES}"
        );
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }
}

/// Finds the first place at which a reply counts as a repetition.
pub(crate) struct RepetitionFinder {
    rule: RepetitionRule,
    /// The last tokens, as many as a period may have.
    recent: VecDeque<u32>,
    /// For each period, how many of the last tokens equal the one that stands a period before them.
    runs: Vec<usize>,
}

impl RepetitionFinder {
    pub fn new(rule: RepetitionRule) -> RepetitionFinder {
        RepetitionFinder { rule, recent: VecDeque::new(), runs: vec![0; rule.tokens as usize] }
    }

    /// Takes the next token of the reply; returns whether it is a repetition now.
    pub fn push(&mut self, id: u32) -> bool {
        let RepetitionRule { tokens, times } = self.rule;
        let needed = tokens as usize * times as usize;
        let mut found = false;
        for (index, earlier) in self.recent.iter().rev().enumerate() {
            let run = &mut self.runs[index];
            *run = if *earlier == id { *run + 1 } else { 0 };
            found |= *run + index + 1 >= needed;
        }
        self.recent.push_back(id);
        if self.recent.len() > tokens as usize {
            self.recent.pop_front();
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;

    /// The definition: whether the last tokens have a period.
    fn repeats(ids: &[u32], rule: RepetitionRule) -> bool {
        let needed = (rule.tokens * rule.times) as usize;
        let Some(end) = ids.len().checked_sub(needed).map(|start| &ids[start..]) else { return false };
        (1..=rule.tokens as usize).any(|period| end.iter().zip(&end[period..]).all(|(a, b)| a == b))
    }

    #[test]
    fn repetitions_are_found_where_the_definition_has_them() {
        let mut random = Random(7);
        let mut found = 0;
        for seed in 0..200 {
            let rule = RepetitionRule { tokens: 1 + seed % 5, times: 2 + seed % 3 };
            let mut finder = RepetitionFinder::new(rule);
            let mut ids: Vec<u32> = Vec::new();
            for _ in 0..60 {
                // Mostly the token of a period before, so that there are repetitions and their breaks.
                let period = 1 + random.below(6);
                let again = ids.len().checked_sub(period).map(|at| ids[at]);
                let id = match again {
                    Some(id) if !random.once_in(8) => id,
                    _ => random.below(3) as u32,
                };
                ids.push(id);
                let is_found = finder.push(id);
                assert_eq!(is_found, repeats(&ids, rule), "seed {seed}: {ids:?}");
                found += u32::from(is_found);
            }
        }
        assert!(found > 100, "{found}");
    }

    #[test]
    fn numbers_outside_their_ranges_are_refused() {
        for (tokens, times) in [(0, 2), (513, 2), (1, 1), (1, 1001)] {
            assert!(RepetitionRule { tokens, times }.check().unwrap_err().to_string().contains("1 to 512"));
        }
        assert!(RepetitionRule { tokens: 512, times: 1000 }.check().is_ok());
    }
}
