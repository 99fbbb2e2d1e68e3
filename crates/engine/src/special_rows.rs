//! The given rows and mutual spans of a prompt: which of them a step runs, and what the prefix
//! cache compares instead of tokens.

use std::sync::Arc;

use girih_graph::backend::{GivenRows, Range32};

use crate::EmbeddedRows;
use crate::position_key::{PositionKey, SpecialPosition};

/// The given rows and mutual spans of a prompt.
#[derive(Debug, Default)]
pub(crate) struct SpecialPrompt {
    given: Vec<EmbeddedRows>,
    pub spans: Vec<Range32>,
}

/// The given rows and mutual spans among the positions of a step.
#[derive(Debug, Default)]
pub(crate) struct SpecialRows<'a> {
    prompt: Option<&'a SpecialPrompt>,
    /// The first position.
    start: u32,
    /// The given rows, counted from the first position.
    pub given: Vec<GivenRows<'a>>,
    /// The mutual spans, as positions.
    pub spans: Vec<Range32>,
}

impl SpecialPrompt {
    /// Returns the special rows of a prompt, whose parts were checked.
    pub fn new(given: Vec<EmbeddedRows>, spans: Vec<Range32>) -> SpecialPrompt {
        SpecialPrompt { given, spans }
    }

    /// Those among `positions`, which cut no span.
    pub fn part(&self, positions: Range32) -> SpecialRows<'_> {
        let given = self.given.iter().filter_map(|rows| {
            let (start, end) = (rows.first.max(positions.start), (rows.first + rows.rows).min(positions.end));
            let width = rows.values.len() / rows.rows as usize;
            let range = || (start - rows.first) as usize * width..(end - rows.first) as usize * width;
            (start < end)
                .then(|| GivenRows { first_row: start - positions.start, values: &rows.values[range()] })
        });
        let spans =
            self.spans.iter().filter(|span| positions.start <= span.start && span.end <= positions.end);
        SpecialRows {
            prompt: Some(self),
            start: positions.start,
            given: given.collect(),
            spans: spans.copied().collect(),
        }
    }

    /// The keys of `tokens`, the first of which is at position `start`.
    pub fn keys(&self, tokens: &[u32], start: u32) -> Vec<PositionKey> {
        let key = |(position, &token): (u32, &u32)| {
            let given =
                self.given.iter().find(|rows| (rows.first..rows.first + rows.rows).contains(&position));
            let span = self.spans.iter().find(|span| (span.start..span.end).contains(&position));
            match (given, span) {
                (None, None) => PositionKey::Token(token),
                _ => PositionKey::Special(Arc::new(SpecialPosition {
                    given: given.map(|rows| (rows.content, position - rows.first)),
                    token,
                    span: span.map(|span| (position - span.start, span.end - span.start)),
                })),
            }
        };
        (start..).zip(tokens).map(key).collect()
    }
}

impl SpecialRows<'_> {
    /// The keys of these positions, which have `tokens`.
    pub fn keys(&self, tokens: &[u32]) -> Vec<PositionKey> {
        match self.prompt {
            Some(prompt) => prompt.keys(tokens, self.start),
            None => tokens.iter().copied().map(PositionKey::Token).collect(),
        }
    }
}
