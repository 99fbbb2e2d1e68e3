//! The text of a reply. Text that may still become part of a stop string is held back.

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
}

impl StopStrings {
    /// Returns a finder of these strings; none may be empty.
    pub fn new(stops: Vec<String>) -> StopStrings {
        StopStrings { stops, held: String::new() }
    }

    /// Adds a piece of text; returns the text that is released by it.
    pub fn push(&mut self, text: &str) -> ReleasedText {
        self.held.push_str(text);
        if let Some((start, stop)) = self.found() {
            let stop = Some(stop.to_owned());
            self.held.truncate(start);
            return ReleasedText { text: std::mem::take(&mut self.held), stop };
        }
        let rest = self.held.split_off(self.uncertain());
        ReleasedText { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the text; returns what was held back.
    pub fn finish(self) -> String {
        self.held
    }

    /// The stop string that ends first, and the offset of its start.
    fn found(&self) -> Option<(usize, &str)> {
        let matches = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop.as_str())));
        matches.min_by_key(|(start, stop)| (start + stop.len(), *start))
    }

    /// The offset of the longest suffix of the text that is a prefix of a stop string.
    fn uncertain(&self) -> usize {
        let mut starts = self.held.char_indices().map(|(start, _)| start);
        let begins = |start: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*start..]));
        starts.find(begins).unwrap_or(self.held.len())
    }
}
