//! The progress of a measurement, for callers that show it.

/// How far a measurement is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasureProgress {
    /// The tokens that have been run.
    pub done: u64,
    /// The tokens of the whole measurement.
    pub total: u64,
}

/// Gets each progress of a measurement, outside the times that are measured.
pub type ProgressWatcher<'a> = &'a mut dyn FnMut(MeasureProgress);

/// Counts the tokens of a measurement.
pub(crate) struct TokenCounter<'a> {
    now: MeasureProgress,
    watcher: ProgressWatcher<'a>,
}

impl<'a> TokenCounter<'a> {
    pub fn new(total: u64, watcher: ProgressWatcher<'a>) -> TokenCounter<'a> {
        TokenCounter { now: MeasureProgress { done: 0, total }, watcher }
    }

    /// Counts further tokens.
    pub fn add(&mut self, tokens: u64) {
        self.now.done += tokens;
        (self.watcher)(self.now);
    }
}
