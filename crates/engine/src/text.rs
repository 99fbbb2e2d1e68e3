//! The text of a reply. Text that may still become part of a stop string is held back.

use std::collections::BTreeSet;

/// Decodes the ids of one reply into text, one by one.
pub trait Detokenize: Send {
    /// Returns the text that this id completes: zero or more whole characters.
    fn push(&mut self, id: u32) -> String;
    /// Returns the rest of an incomplete character.
    fn finish(self: Box<Self>) -> String;
}

/// Text that is released, and the stop string that ended it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReleasedText {
    /// Text that cannot become part of a stop string any more.
    pub text: String,
    /// The stop string that was found, if any; the text ends before it.
    pub stop: Option<String>,
}

/// Finds stop strings in a stream of text.
///
/// The result does not depend on how the text is split into pieces: it is the stop
/// string that ends first, and the longest one if several end there.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far that may be the beginning of a stop string.
    held: String,
    /// The number of bytes before `held`.
    before: usize,
    /// Whether the text ends after the stop string that was found, and not before it.
    includes: bool,
    /// If set, the offsets at which a stop string may begin.
    begins: Option<BTreeSet<usize>>,
    /// The offset after which a stop string must end.
    after: usize,
}

impl StopStrings {
    /// Returns a finder of these strings; none may be empty.
    pub fn new(stops: Vec<String>) -> StopStrings {
        StopStrings { stops, ..StopStrings::default() }
    }

    /// The same, for a text that ends after the stop string that was found, and not before it.
    #[must_use]
    pub fn including(self) -> StopStrings {
        StopStrings { includes: true, ..self }
    }

    /// The same, for a text that a stop string ends only where it begins at a place that
    /// [`StopStrings::may_begin_here`] marked.
    #[must_use]
    pub fn at_marked_places(self) -> StopStrings {
        StopStrings { begins: Some(BTreeSet::new()), ..self }
    }

    /// Marks the end of the text so far as a place at which a stop string may begin.
    pub fn may_begin_here(&mut self) {
        let (end, before) = (self.before + self.held.len(), self.before);
        if let Some(begins) = &mut self.begins {
            begins.retain(|begin| *begin >= before);
            begins.insert(end);
        }
    }

    /// Adds a piece of text in which no stop string may end; returns the text that is released by it.
    pub fn push_unstopped(&mut self, text: &str) -> ReleasedText {
        self.after = self.before + self.held.len() + text.len();
        self.push(text)
    }

    /// Adds a piece of text; returns the text that is released by it.
    pub fn push(&mut self, text: &str) -> ReleasedText {
        self.held.push_str(text);
        if let Some((start, stop)) = self.found() {
            let end = if self.includes { start + stop.len() } else { start };
            let stop = Some(stop.to_owned());
            self.held.truncate(end);
            return ReleasedText { text: std::mem::take(&mut self.held), stop };
        }
        let certain = self.uncertain();
        self.before += certain;
        let rest = self.held.split_off(certain);
        ReleasedText { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the text; returns what was held back.
    pub fn finish(self) -> String {
        self.held
    }

    /// The stop string that ends first, and the offset of its start.
    fn found(&self) -> Option<(usize, &str)> {
        let matches = self.stops.iter().filter_map(|stop| Some((self.found_one(stop)?, stop.as_str())));
        matches.min_by_key(|(start, stop)| (start + stop.len(), *start))
    }

    /// The offset of the first place at which this stop string ends the text.
    fn found_one(&self, stop: &str) -> Option<usize> {
        let first = self.held.find(stop)?;
        let counts = |start: &usize| {
            let begin = self.before + start;
            begin + stop.len() > self.after
                && self.begins.as_ref().is_none_or(|begins| begins.contains(&begin))
        };
        let starts = self.held[first..].char_indices().map(|(start, _)| first + start);
        starts.filter(counts).find(|start| self.held[*start..].starts_with(stop))
    }

    /// The offset of the longest suffix of the text that is a prefix of a stop string.
    fn uncertain(&self) -> usize {
        let mut starts = self.held.char_indices().map(|(start, _)| start);
        let begins = |start: &usize| {
            let rest = &self.held[*start..];
            self.stops.iter().any(|stop| stop.len() > rest.len() && stop.starts_with(rest))
        };
        starts.find(begins).unwrap_or(self.held.len())
    }
}
