//! The time limits of one connection. Hyper's own limit on headers also ends idle connections, so
//! the two could not differ; and it has none on writes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::head_scan::HeadScan;
use super::limits::ListenerLimits;
use crate::drain::CountedRequest;

/// What a connection waits for, and since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    /// The first byte of the first request.
    First(Instant),
    /// The first byte of another request.
    Request(Instant),
    /// The end of a request's headers.
    Headers(Instant),
    /// Our response.
    Response,
}

/// Why a connection ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// No request came.
    Idle,
    /// The headers did not arrive in time.
    Headers,
    /// The client did not read, or too slowly.
    Write,
    /// The client closed its side before it was answered.
    Left,
    /// Another connection needed its place.
    Displaced,
}

/// The time limits of one connection.
pub struct ConnectionClock {
    limits: ListenerLimits,
    state: Mutex<ClockState>,
    /// Notified when a deadline may be earlier than before.
    changed: Notify,
}

struct ClockState {
    awaited: Awaited,
    /// Present while the client is behind.
    backlog: Option<Backlog>,
    /// Whether more of the response can be written at once.
    has_more: bool,
    /// What counts the last request until its response is written.
    unwritten: Option<CountedRequest>,
    head: HeadScan,
    is_displaced: bool,
}

/// A client that has not read all that was written.
#[derive(Clone, Copy)]
struct Backlog {
    /// When it fell behind.
    since: Instant,
    /// When it last read.
    last_read: Instant,
    /// The bytes that it has read since it fell behind.
    read: u64,
}

impl ConnectionClock {
    /// The clock of a connection that begins now. The headers of its first request have their time
    /// from now on.
    pub fn new(limits: ListenerLimits) -> ConnectionClock {
        let awaited = Awaited::First(Instant::now());
        let state = Mutex::new(ClockState {
            awaited,
            backlog: None,
            has_more: false,
            unwritten: None,
            head: HeadScan::default(),
            is_displaced: false,
        });
        ConnectionClock { limits, state, changed: Notify::new() }
    }

    /// Bytes have arrived.
    pub fn has_read(&self, bytes: &[u8]) {
        let mut state = self.lock();
        state.head.read(bytes);
        let before = state.awaited;
        state.awaited = match before {
            Awaited::First(since) => Awaited::Headers(since),
            Awaited::Request(_) => Awaited::Headers(Instant::now()),
            Awaited::Headers(_) => before,
            Awaited::Response => return,
        };
        if state.awaited != before {
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The headers of a request have arrived; returns what is wrong with them.
    pub fn begin_response(&self) -> Option<&'static str> {
        let mut state = self.lock();
        state.awaited = Awaited::Response;
        state.head.next_fault()
    }

    /// Whether a request is being answered.
    pub fn is_answering(&self) -> bool {
        self.lock().awaited == Awaited::Response
    }

    /// The response has been produced. Its request counts until the response is written.
    pub fn end_response(&self, request: Option<CountedRequest>) {
        let mut state = self.lock();
        state.awaited = Awaited::Request(Instant::now());
        state.has_more = false;
        let before = std::mem::replace(&mut state.unwritten, request);
        drop(state);
        drop(before);
        self.changed.notify_one();
    }

    /// The client reads no more for now.
    pub fn is_blocked(&self) {
        let mut state = self.lock();
        if state.backlog.is_none() {
            let now = Instant::now();
            state.backlog = Some(Backlog { since: now, last_read: now, read: 0 });
            drop(state);
            self.changed.notify_one();
        }
    }

    /// Bytes were written, though others may wait.
    pub fn has_written(&self, bytes: usize) {
        if let Some(backlog) = &mut self.lock().backlog {
            backlog.last_read = Instant::now();
            backlog.read = backlog.read.saturating_add(bytes as u64);
        }
    }

    /// Whether the response has more bytes now.
    pub fn set_more(&self, has_more: bool) {
        self.lock().has_more = has_more;
    }

    /// All bytes were written that the response had.
    pub fn has_flushed(&self) {
        let mut state = self.lock();
        if !state.has_more {
            state.backlog = None;
        }
        let written = state.unwritten.take();
        drop(state);
        drop(written);
    }

    /// Since when the connection has waited for a request; `None` while it answers one.
    pub fn waiting_since(&self) -> Option<Instant> {
        let state = self.lock();
        match state.awaited {
            Awaited::First(since) | Awaited::Request(since) | Awaited::Headers(since)
                if !state.is_displaced =>
            {
                Some(since)
            }
            _ => None,
        }
    }

    /// Ends the connection for another one.
    pub fn displace(&self) {
        self.lock().is_displaced = true;
        self.changed.notify_one();
    }

    /// Nothing more is answered: another connection may have the place.
    pub fn begin_linger(&self) {
        let mut state = self.lock();
        if state.awaited == Awaited::Response {
            state.awaited = Awaited::Request(Instant::now());
        }
        let unwritten = state.unwritten.take();
        drop(state);
        drop(unwritten);
    }

    /// Waits for [`ConnectionClock::displace`].
    pub async fn displaced(&self) {
        while !self.lock().is_displaced {
            self.changed.notified().await;
        }
    }

    /// Waits until a limit is exceeded.
    pub async fn expired(&self) -> Expiry {
        loop {
            let next = self.next();
            let changed = self.changed.notified();
            match next {
                Some((deadline, expiry)) if deadline <= Instant::now() => return expiry,
                Some((deadline, _)) => tokio::select! {
                    () = changed => {}
                    () = sleep_until(deadline) => {}
                },
                None => changed.await,
            }
        }
    }

    /// The next deadline, and what it ends.
    fn next(&self) -> Option<(Instant, Expiry)> {
        let state = self.lock();
        if state.is_displaced {
            return Some((Instant::now(), Expiry::Displaced));
        }
        let read = match state.awaited {
            Awaited::First(since) => Some((since + self.limits.headers, Expiry::Idle)),
            Awaited::Request(since) => Some((since + self.limits.idle, Expiry::Idle)),
            Awaited::Headers(since) => Some((since + self.limits.headers, Expiry::Headers)),
            Awaited::Response => None,
        };
        let ListenerLimits { write_stall, write_bytes_per_second, .. } = self.limits;
        let write = state.backlog.map(|Backlog { since, last_read, read }| {
            let earned = Duration::from_secs_f64(read as f64 / write_bytes_per_second.max(1) as f64);
            // A year is a time that can be added to any other.
            let behind = since + earned.min(Duration::from_secs(365 * 86400));
            (behind.min(last_read) + write_stall, Expiry::Write)
        });
        read.into_iter().chain(write).min_by_key(|(deadline, _)| *deadline)
    }

    /// The time that a client that has been answered has to close the connection.
    pub fn linger(&self) -> Duration {
        self.limits.linger
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, ClockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
