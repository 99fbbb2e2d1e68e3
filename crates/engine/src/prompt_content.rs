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

/// Where the rows of an image lie along the axes of time, line and column.
#[derive(Clone, Copy, Default)]
struct ImagePlace {
    /// The position along all axes at which it starts, or the video that it belongs to.
    start: i64,
    /// That behind it.
    end: i64,
    /// By how much positions behind it lie before their numbers. It is negative behind a video that takes more time than rows.
    saved: i64,
}

impl ImagePlace {
    /// That of the next image of a prompt.
    fn next(self, rows: &EmbeddedRows) -> ImagePlace {
        let columns = rows.columns.unwrap_or(1).max(1);
        let start = if rows.time.is_some() { self.start } else { i64::from(rows.first) - self.saved };
        let sides = i64::from(columns.max(rows.rows / columns));
        let time = i64::from(rows.time.unwrap_or(0)) + 1;
        let before = if rows.time.is_some() { self.end } else { start };
        let end = before.max(start + sides.max(time));
        ImagePlace { start, end, saved: i64::from(rows.first) + i64::from(rows.rows) - end }
    }

    /// The position of a row of the image, counted from its first one, along each axis.
    fn axes(self, rows: &EmbeddedRows, row: u32) -> [i64; 3] {
        let columns = rows.columns.unwrap_or(1).max(1);
        let behind = [rows.time.unwrap_or(0), row / columns, row % columns];
        behind.map(|behind| self.start + i64::from(behind))
    }
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

    /// The positions along the axes of time, line and column of the rows from `start` on.
    fn axes(&self, start: u32, count: usize) -> Vec<[u32; 3]> {
        let mut images = self.given.iter().filter(|rows| rows.columns.is_some()).peekable();
        let mut place = ImagePlace::default();
        let axes = |position: u32| {
            while let Some(image) = images.next_if(|image| image.first + image.rows <= position) {
                place = place.next(image);
            }
            let axes = match images.peek().filter(|image| image.first <= position) {
                Some(image) => place.next(image).axes(image, position - image.first),
                None => [i64::from(position) - place.saved; 3],
            };
            // Within 32 bits, as the times of groups are.
            axes.map(|axis| axis.clamp(0, i64::from(u32::MAX)) as u32)
        };
        (start..).take(count).map(axes).collect()
    }

    /// Of the rows from `start` on, those that have something to add to the output of layer `layer`: the first one, counted
    /// from `start`, and the values.
    fn added(&self, layer: usize, positions: Range32) -> impl Iterator<Item = (usize, &[f32])> {
        self.given.iter().filter_map(move |rows| {
            let (start, end) = (rows.first.max(positions.start), (rows.first + rows.rows).min(positions.end));
            let values = rows.added.get(layer).filter(|_| start < end)?;
            let width = values.len() / rows.rows as usize;
            let range = (start - rows.first) as usize * width..(end - rows.first) as usize * width;
            Some(((start - positions.start) as usize, &values[range]))
        })
    }

    /// The tokens that the model reads in place of the prompt's among these positions: their places, and the token.
    fn replaced(&self, positions: Range32) -> impl Iterator<Item = (Range32, u32)> {
        self.given.iter().filter_map(move |rows| {
            let (start, end) = (rows.first.max(positions.start), (rows.first + rows.rows).min(positions.end));
            Some((Range32 { start, end }, rows.token.filter(|_| start < end)?))
        })
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

    /// The positions along several axes of `count` rows, of which the first is at `position`.
    pub fn axes(&self, position: u32, count: usize) -> Vec<[u32; 3]> {
        match self.prompt {
            Some(prompt) => prompt.axes(position, count),
            None => (position..).take(count).map(|position| [position; 3]).collect(),
        }
    }

    /// What is added to the output of layer `layer` in `count` rows, of which the first is at `position`.
    pub fn added(&self, layer: usize, position: u32, count: usize) -> impl Iterator<Item = (usize, &[f32])> {
        let positions = Range32 { start: position, end: position + count as u32 };
        self.prompt.into_iter().flat_map(move |prompt| prompt.added(layer, positions))
    }

    /// The tokens that the model reads in place of the prompt's in the `count` rows from `position` on: the rows, counted
    /// from the first one, and the token.
    pub fn replaced(&self, position: u32, count: u32) -> impl Iterator<Item = (Range32, u32)> {
        let positions = Range32 { start: position, end: position + count };
        let replaced = self.prompt.into_iter().flat_map(move |prompt| prompt.replaced(positions));
        replaced.map(move |(range, token)| {
            (Range32 { start: range.start - position, end: range.end - position }, token)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers' `get_rope_index`: an image of 2 x 3 rows takes three positions, and so does one of 3 x 1.
    #[test]
    fn positions_of_an_image_follow_from_its_rows_and_columns() {
        let image = |first, rows, columns| EmbeddedRows {
            first,
            rows,
            columns: Some(columns),
            ..EmbeddedRows::default()
        };
        let content = PromptContent::new(vec![image(2, 6, 3), image(9, 3, 1)], Vec::new(), None);
        let expected = [
            [0, 0, 0],
            [1, 1, 1],
            [2, 2, 2],
            [2, 2, 3],
            [2, 2, 4],
            [2, 3, 2],
            [2, 3, 3],
            [2, 3, 4],
            [5, 5, 5],
            [6, 6, 6],
            [6, 7, 6],
            [6, 8, 6],
            [9, 9, 9],
        ];
        assert_eq!(content.axes(0, 13), expected);
        for start in 0..13 {
            assert_eq!(content.axes(start, 1), [expected[start as usize]], "a chunk from {start} on");
        }
    }

    /// Qwen2.5-VL's `get_rope_index`, as in transformers 4: two groups of 2 x 2 rows with five positions between them, and two
    /// of one row that are as early as each other. Positions behind a video go on from the largest.
    #[test]
    fn groups_of_a_video_start_at_one_place() {
        let group = |first, rows, columns, time| EmbeddedRows {
            first,
            rows,
            columns: Some(columns),
            time,
            ..EmbeddedRows::default()
        };
        let given = vec![
            group(1, 4, 2, None),
            group(5, 4, 2, Some(5)),
            group(10, 1, 1, None),
            group(11, 1, 1, Some(0)),
        ];
        let content = PromptContent::new(given, Vec::new(), None);
        let of_groups = [1, 6].map(|time| [[time, 1, 1], [time, 1, 2], [time, 2, 1], [time, 2, 2]]);
        let expected =
            [&[[0; 3]][..], &of_groups[0], &of_groups[1], &[[7; 3], [8; 3], [8; 3], [9; 3], [10; 3]]]
                .concat();
        assert_eq!(content.axes(0, 14), expected);
        for start in 0..14 {
            assert_eq!(content.axes(start, 1), [expected[start as usize]], "a chunk from {start} on");
        }
        let late = PromptContent::new(vec![group(0, 1, 1, None), group(1, 1, 1, Some(90))], Vec::new(), None);
        assert_eq!(late.axes(1, 2), [[90, 0, 0], [91; 3]], "more time than rows");
    }

    #[test]
    fn rows_without_places_are_one_after_the_other() {
        let rows = EmbeddedRows { first: 2, rows: 6, ..EmbeddedRows::default() };
        let plain = PromptContent::new(vec![rows], Vec::new(), None);
        assert_eq!(plain.axes(7, 2), [[7; 3], [8; 3]]);
    }
}
