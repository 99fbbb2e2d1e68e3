//! The requests that are not active: those that wait, in the order of admission, and those
//! that their callers suspended. The order of admission is decided here only.

use std::collections::VecDeque;

use crate::RequestId;
use crate::live_request::LiveRequest;

/// Requests without a sequence.
#[derive(Default)]
pub(crate) struct Queue {
    /// Ordered by age; the oldest is admitted next.
    waiting: VecDeque<LiveRequest>,
    suspended: Vec<LiveRequest>,
}

impl Queue {
    /// The number of waiting requests, without suspended ones.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The waiting request that is admitted next.
    pub fn next(&self) -> Option<&LiveRequest> {
        self.waiting.front()
    }

    /// Removes the waiting request that is admitted next.
    pub fn take_next(&mut self) -> Option<LiveRequest> {
        self.waiting.pop_front()
    }

    /// Adds a request that waits: behind all older ones, before all younger ones.
    pub fn add(&mut self, live: LiveRequest) {
        let at = self.waiting.partition_point(|other| other.id() < live.id());
        self.waiting.insert(at, live);
    }

    /// Adds a request that is not admitted until it is resumed.
    pub fn add_suspended(&mut self, live: LiveRequest) {
        self.suspended.push(live);
    }

    /// Removes a waiting request.
    pub fn remove_waiting(&mut self, id: RequestId) -> Option<LiveRequest> {
        let index = self.waiting.iter().position(|live| live.id() == id)?;
        self.waiting.remove(index)
    }

    /// Removes a suspended request.
    pub fn remove_suspended(&mut self, id: RequestId) -> Option<LiveRequest> {
        let index = self.suspended.iter().position(|live| live.id() == id)?;
        Some(self.suspended.remove(index))
    }
}
