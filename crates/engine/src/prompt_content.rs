//! The given rows, mutual spans and adapter of a prompt: which of them a step runs, and what the prefix
//! cache compares instead of tokens.

use std::sync::Arc;

use girih_graph::backend::{GivenRows, Range32};

use crate::position_key::{PositionContent, PositionKey};
use crate::{EmbeddedRows, Error, ErrorKind, Result};

/// The given rows and mutual spans of a prompt, and its adapter.
#[derive(Debug, Default)]
pub(crate) struct PromptContent {
    given: Vec<EmbeddedRows>,
    pub spans: Vec<Range32>,
    adapter: Option<u32>,
}

/// The given rows and mutual spans among the positions of a step, and its adapter.
#[derive(Debug, Default)]
pub(crate) struct StepContent<'a> {
    prompt: Option<&'a PromptContent>,
    /// The first position.
    start: u32,
    /// The given rows, counted from the first position.
    pub given: Vec<GivenRows<'a>>,
    /// The mutual spans, as positions.
    pub spans: Vec<Range32>,
    /// The adapter that the rows use.
    pub adapter: Option<u32>,
    /// The key of the first position, if it is not that of its token.
    pub first_key: Option<PositionKey>,
}

impl PromptContent {
    /// Returns the content of a prompt, whose parts were checked.
    pub fn new(given: Vec<EmbeddedRows>, spans: Vec<Range32>, adapter: Option<u32>) -> PromptContent {
        PromptContent { given, spans, adapter }
    }

    /// Those among `positions`, which cut no span.
    pub fn part(&self, positions: Range32) -> StepContent<'_> {
        let given = self.given.iter().filter_map(|rows| {
            let (start, end) = (rows.first.max(positions.start), (rows.first + rows.rows).min(positions.end));
            let width = rows.values.len() / rows.rows as usize;
            let range = || (start - rows.first) as usize * width..(end - rows.first) as usize * width;
            (start < end)
                .then(|| GivenRows { first_row: start - positions.start, values: &rows.values[range()] })
        });
        let spans =
            self.spans.iter().filter(|span| positions.start <= span.start && span.end <= positions.end);
        StepContent {
            prompt: Some(self),
            start: positions.start,
            given: given.collect(),
            spans: spans.copied().collect(),
            adapter: self.adapter,
            first_key: None,
        }
    }

    /// The end of a chunk of at most `chunk` rows from `start` on that cuts no span, of a prompt of `length` tokens.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`] when a span has more rows than a chunk.
    pub fn chunk_end(&self, start: u32, chunk: u32, length: u32) -> Result<u32> {
        let end = start.saturating_add(chunk).min(length);
        let cut = self.spans.iter().find(|span| span.start < end && end < span.end);
        match cut {
            None => Ok(end),
            Some(span) if span.start > start => Ok(span.start),
            Some(span) => {
                let rows = span.end - span.start;
                let sentence =
                    format!("a mutual span has {rows} rows, but a step has {chunk}; raise the chunk");
                Err(Error::with_kind(ErrorKind::Refused, sentence))
            }
        }
    }

    /// The keys of `tokens`; the first token is at position `start`.
    pub fn keys(&self, tokens: &[u32], start: u32) -> Vec<PositionKey> {
        // Both lists are in order, so each is walked once.
        let (mut given, mut spans) = (self.given.iter().peekable(), self.spans.iter().peekable());
        let key = |(position, &token): (u32, &u32)| {
            while given.next_if(|rows| rows.first + rows.rows <= position).is_some() {}
            while spans.next_if(|span| span.end <= position).is_some() {}
            let given = given.peek().filter(|rows| rows.first <= position);
            let span = spans.peek().filter(|span| span.start <= position);
            let adapter = self.adapter.filter(|_| position == 0);
            match (given, span, adapter) {
                (None, None, None) => PositionKey::Token(token),
                _ => PositionKey::Content(Arc::new(PositionContent {
                    given: given.map(|rows| (rows.content, position - rows.first)),
                    token,
                    span: span.map(|span| (position - span.start, span.end - span.start)),
                    adapter,
                })),
            }
        };
        (start..).zip(tokens).map(key).collect()
    }
}

impl StepContent<'_> {
    /// Tokens only. The first one has this key, if there is one.
    pub fn of_first_key(first_key: Option<PositionKey>) -> Self {
        StepContent { first_key, ..StepContent::default() }
    }

    /// The keys of these positions, which have `tokens`.
    pub fn keys(&self, tokens: &[u32]) -> Vec<PositionKey> {
        let mut keys = match self.prompt {
            Some(prompt) => prompt.keys(tokens, self.start),
            None => tokens.iter().copied().map(PositionKey::Token).collect(),
        };
        if let (Some(first), Some(key)) = (keys.first_mut(), &self.first_key) {
            first.clone_from(key);
        }
        keys
    }
}
