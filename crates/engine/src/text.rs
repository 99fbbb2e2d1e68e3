//! The text of a reply as it becomes certain: what a stop string may yet
//! swallow is held back.

/// Turns ids into text, one by one.
pub trait Detokenize {
    /// The text that this id completes: whole characters, perhaps none.
    fn push(&mut self, id: u32) -> String;
    /// What remains of a character that was begun and not completed.
    fn finish(self: Box<Self>) -> String;
}

/// A stretch of text that became certain, and the stop string that ended it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Certain {
    /// May be shown: no stop string can reach into it any more.
    pub text: String,
    /// The stop string that was found; the text ends before it.
    pub stop: Option<String>,
}

/// Looks for stop strings in a stream of text.
///
/// What is found does not depend on how the text is cut into pieces: it is the
/// stop string that ends first, the longest of those that end together.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    /// The end of the text so far, where it may be the beginning of a stop.
    held: String,
}

impl StopStrings {
    /// Looks for these strings, none of which is empty.
    pub fn new(stops: Vec<String>) -> StopStrings {
        StopStrings { stops, held: String::new() }
    }

    /// The next piece of text.
    pub fn push(&mut self, text: &str) -> Certain {
        self.held.push_str(text);
        if let Some((start, stop)) = self.found() {
            let stop = Some(stop.to_owned());
            self.held.truncate(start);
            return Certain { text: std::mem::take(&mut self.held), stop };
        }
        let rest = self.held.split_off(self.uncertain());
        Certain { text: std::mem::replace(&mut self.held, rest), stop: None }
    }

    /// Ends the text: nothing can complete a stop string any more.
    pub fn finish(self) -> String {
        self.held
    }

    /// The first stop string to end, and where it starts.
    fn found(&self) -> Option<(usize, &str)> {
        let places = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop.as_str())));
        places.min_by_key(|(start, stop)| (start + stop.len(), *start))
    }

    /// Where the longest end of the text begins that also begins a stop string.
    fn uncertain(&self) -> usize {
        let mut starts = self.held.char_indices().map(|(start, _)| start);
        let begins = |start: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*start..]));
        starts.find(begins).unwrap_or(self.held.len())
    }
}
