//! The time limits of one connection. Hyper's own limit on headers also ends idle connections, so
//! the two could not differ; and it has none on writes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::limits::ListenerLimits;

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
    /// The client did not read.
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
    /// When the client stopped reading.
    blocked: Option<Instant>,
    is_displaced: bool,
}

impl ConnectionClock {
    /// The clock of a connection that begins now. The headers of its first request have their time
    /// from now on.
    pub fn new(limits: ListenerLimits) -> ConnectionClock {
        let awaited = Awaited::First(Instant::now());
        let state = Mutex::new(ClockState { awaited, blocked: None, is_displaced: false });
        ConnectionClock { limits, state, changed: Notify::new() }
    }

    /// Bytes have arrived.
    pub fn has_read(&self) {
        let mut state = self.lock();
        state.awaited = match state.awaited {
            Awaited::First(since) => Awaited::Headers(since),
            Awaited::Request(_) => Awaited::Headers(Instant::now()),
            Awaited::Headers(_) | Awaited::Response => return,
        };
        drop(state);
        self.changed.notify_one();
    }

    /// The headers of a request have arrived.
    pub fn begin_response(&self) {
        self.lock().awaited = Awaited::Response;
    }

    /// Whether a request is being answered.
    pub fn is_answering(&self) -> bool {
        self.lock().awaited == Awaited::Response
    }

    /// The response has been produced.
    pub fn end_response(&self) {
        self.lock().awaited = Awaited::Request(Instant::now());
        self.changed.notify_one();
    }

    /// The client reads no more for now.
    pub fn is_blocked(&self) {
        let mut state = self.lock();
        if state.blocked.is_none() {
            state.blocked = Some(Instant::now());
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The client has read.
    pub fn has_written(&self) {
        self.lock().blocked = None;
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
        let write = state.blocked.map(|since| (since + self.limits.write_stall, Expiry::Write));
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
