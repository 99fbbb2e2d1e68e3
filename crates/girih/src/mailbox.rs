//! Events on their way from the engine's thread to the reader of a reply.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use girih_engine::sample::Logprobs;
use girih_engine::{EventKind, Stats, Stop, TokenLatencies};
use girih_graph::{Error, ErrorKind, Result};
use girih_words::reply::ReplyPart;

use crate::places::RequestPlace;

/// What happens to a request, in order. [`Event::Finished`] is the last event; a failed
/// request ends with an error instead.
///
/// ```
/// use girih::{Event, Model, Request};
///
/// let session = Model::open("stories260k")?.start()?;
/// for event in session.generate(Request::new("Once").max_tokens(4))? {
///     match event? {
///         Event::Token { id, text, .. } => println!("{id}: {text:?}"),
///         Event::Finished { stop, stats, .. } => println!("{stop:?} after {} tokens", stats.decode.tokens),
///         _ => {}
///     }
/// }
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A token of the prompt; they come in order, before all other events, if the request asked for
    /// them with [`Request::prompt_logprobs`](crate::Request::prompt_logprobs).
    PromptToken {
        /// Its id.
        id: u32,
        /// Its log-probability after the tokens before it; absent for the first one.
        logprobs: Option<Logprobs>,
    },
    /// The whole prompt has been run.
    Prefilled(Stats),
    /// A token of the reply.
    Token {
        /// Its id.
        id: u32,
        /// The text that it releases: whole characters, without text that may begin a stop
        /// string.
        text: String,
        /// Present if the request asked for them.
        logprobs: Option<Logprobs>,
        /// What the text is; see [`Event::parts`].
        parts: Vec<ReplyPart>,
    },
    /// The logits that follow the prompt, which [`Session::logits`](crate::Session::logits)
    /// returns.
    Logits(Vec<f32>),
    /// The reply is complete.
    Finished {
        /// Why it ended.
        stop: Stop,
        /// The text that was held back until now.
        text: String,
        /// The statistics of the whole request.
        stats: Stats,
        /// How long each token after the first one took.
        latencies: TokenLatencies,
        /// What the text is; see [`Event::parts`].
        parts: Vec<ReplyPart>,
    },
}

impl Event {
    /// The text that it releases.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// # let reply = session.generate(girih::Request::new("Once").max_tokens(4))?;
    /// for event in reply {
    ///     print!("{}", event?.text());
    /// }
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn text(&self) -> &str {
        match self {
            Event::Token { text, .. } | Event::Finished { text, .. } => text,
            Event::PromptToken { .. } | Event::Prefilled(_) | Event::Logits(_) => "",
        }
    }

    /// The parts that its text completes: content, thinking and calls of tools, without markup. In
    /// replies to other prompts than conversations, all text is content
    /// ([`Request::format`](crate::Request::format)).
    ///
    /// ```
    /// use girih::ReplyPart;
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// # let reply = session.generate(girih::Request::new("Once").max_tokens(4))?;
    /// for event in reply {
    ///     for part in event?.parts() {
    ///         match part {
    ///             ReplyPart::Content(text) => print!("{text}"),
    ///             ReplyPart::CallBegin { name, .. } => println!("calls {name}"),
    ///             _ => {}
    ///         }
    ///     }
    /// }
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn parts(&self) -> &[ReplyPart] {
        match self {
            Event::Token { parts, .. } | Event::Finished { parts, .. } => parts,
            Event::PromptToken { .. } | Event::Prefilled(_) | Event::Logits(_) => &[],
        }
    }

    /// The event of an engine's event without parts, or the error with which its request failed.
    fn of(kind: &EventKind) -> Result<Event> {
        Ok(match kind.clone() {
            EventKind::PromptToken { id, logprobs } => Event::PromptToken { id, logprobs },
            EventKind::Prefilled(stats) => Event::Prefilled(stats),
            EventKind::Token { id, text, logprobs } => Event::Token { id, text, logprobs, parts: Vec::new() },
            EventKind::Logits(logits) => Event::Logits(logits),
            EventKind::Finished { stop, text, stats, latencies } => {
                Event::Finished { stop, text, stats, latencies, parts: Vec::new() }
            }
            EventKind::Failed(error) => return Err(error),
        })
    }
}

/// Whether an event is the last one.
pub(crate) fn ends(event: &Result<Event>) -> bool {
    matches!(event, Ok(Event::Finished { .. }) | Err(_))
}

/// The time for which a reader that has read everything naps before it sleeps. A reply of
/// thousands of tokens per second is read in batches then: waking the reader for each token
/// would take time from the threads that compute.
const NAP: Duration = Duration::from_millis(2);

/// The number of a session's replies that are complete, and whose last event was not read.
pub(crate) type UnreadReplies = Arc<AtomicUsize>;

/// The unread events of one request.
pub(crate) struct Mailbox {
    inbox: Mutex<Inbox>,
    /// Counts this one from its last event until that is read or nobody will read it.
    unread: UnreadReplies,
    arrived: Condvar,
    /// The number of unread events at which the request is suspended.
    capacity: usize,
    /// Whether somebody has cancelled the request.
    is_cancelled: AtomicBool,
}

#[derive(Default)]
struct Inbox {
    events: VecDeque<Result<Event>>,
    /// The task of an async reader that waits.
    waker: Option<Waker>,
    /// Whether the request is suspended until events are read.
    is_suspended: bool,
    /// Whether the reader has read an event.
    has_read: bool,
    /// Whether the reader sleeps until it is woken.
    is_asleep: bool,
    /// When the last event came.
    ended: Option<Instant>,
    /// Whether it counts as unread.
    is_counted: bool,
    /// Whether nobody reads any more.
    is_abandoned: bool,
}

/// An event that was read, and whether the request may go on.
pub(crate) struct ReadEvent {
    pub event: Result<Event>,
    pub resumes: bool,
}

impl Mailbox {
    pub fn new(capacity: u32, unread: UnreadReplies) -> Mailbox {
        Mailbox {
            inbox: Mutex::default(),
            unread,
            arrived: Condvar::new(),
            capacity: capacity as usize,
            is_cancelled: AtomicBool::new(false),
        }
    }

    /// Whether nobody has cancelled the request before this call.
    pub fn is_first_cancellation(&self) -> bool {
        !self.is_cancelled.swap(true, Ordering::Relaxed)
    }

    /// Waits for the next event and removes it.
    pub fn wait(&self) -> ReadEvent {
        let mut inbox = self.lock();
        if inbox.events.is_empty() && inbox.has_read {
            let nap = self.arrived.wait_timeout(inbox, NAP);
            inbox = nap.unwrap_or_else(PoisonError::into_inner).0;
        }
        inbox.is_asleep = true;
        let inbox = self.arrived.wait_while(inbox, |inbox| inbox.events.is_empty());
        let mut inbox = inbox.unwrap_or_else(PoisonError::into_inner);
        inbox.is_asleep = false;
        self.take(&mut inbox).expect("the wait ended with an event")
    }

    /// Removes the next event, or has the task of `context` woken when there is one.
    pub fn poll(&self, context: &mut Context<'_>) -> Poll<ReadEvent> {
        let mut inbox = self.lock();
        match self.take(&mut inbox) {
            Some(read) => Poll::Ready(read),
            None => {
                inbox.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The time since the last event came; `None` before.
    pub fn ended_for(&self) -> Option<Duration> {
        self.lock().ended.map(|ended| ended.elapsed())
    }

    /// Drops the events of a request that has ended; its reader gets an error instead. Does nothing while
    /// it runs, and when the last event was read.
    pub fn discard(&self) {
        let mut inbox = self.lock();
        if !inbox.is_counted {
            return;
        }
        self.count_no_more(&mut inbox);
        let sentence = "the reply was complete but was not read, and was dropped; read it sooner";
        let last = VecDeque::from([Err(Error::with_kind(ErrorKind::Cancelled, sentence))]);
        let events = std::mem::replace(&mut inbox.events, last);
        drop(inbox);
        drop(events);
    }

    /// Drops all events, also those that are still to come: nobody reads any more.
    pub fn abandon(&self) {
        let mut inbox = self.lock();
        inbox.is_abandoned = true;
        self.count_no_more(&mut inbox);
        let events = std::mem::take(&mut inbox.events);
        drop(inbox);
        drop(events);
    }

    fn count_no_more(&self, inbox: &mut Inbox) {
        if std::mem::take(&mut inbox.is_counted) {
            self.unread.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn take(&self, inbox: &mut Inbox) -> Option<ReadEvent> {
        let event = inbox.events.pop_front()?;
        if ends(&event) {
            self.count_no_more(inbox);
        }
        inbox.has_read = true;
        let resumes = inbox.is_suspended && inbox.events.len() <= self.capacity / 2;
        inbox.is_suspended &= !resumes;
        Some(ReadEvent { event, resumes })
    }

    /// Adds an event; returns whether the request has to be suspended.
    fn put(&self, event: Result<Event>) -> bool {
        let mut inbox = self.lock();
        let is_last = ends(&event);
        let wakes = inbox.is_asleep || is_last;
        if is_last {
            inbox.ended = Some(Instant::now());
        }
        if inbox.is_abandoned {
            return false;
        }
        if is_last {
            inbox.is_counted = true;
            self.unread.fetch_add(1, Ordering::Relaxed);
        }
        inbox.events.push_back(event);
        inbox.is_suspended |= inbox.events.len() >= self.capacity;
        let (suspends, waker) = (inbox.is_suspended, inbox.waker.take());
        drop(inbox);
        if wakes {
            self.arrived.notify_one();
        }
        if let Some(waker) = waker {
            // A waker is the program's code; its panic must not end the engine's thread.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        suspends
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The engine's side of a mailbox. It sends exactly one last event: if it is dropped before,
/// that is an error.
pub(crate) struct MailboxSender {
    mailbox: Arc<Mailbox>,
    /// The request's place until it has ended.
    place: Option<RequestPlace>,
}

impl MailboxSender {
    /// A sender to `mailbox` of the request at `place`.
    pub fn new(mailbox: Arc<Mailbox>, place: RequestPlace) -> MailboxSender {
        MailboxSender { mailbox, place: Some(place) }
    }

    /// The place of a request that has not ended.
    pub fn place(&self) -> Option<&RequestPlace> {
        self.place.as_ref()
    }

    /// Whether it sends to this mailbox.
    pub fn sends_to(&self, mailbox: &Arc<Mailbox>) -> bool {
        Arc::ptr_eq(&self.mailbox, mailbox)
    }

    /// Sends an event; returns whether the request has to be suspended until its reader catches up.
    pub fn send(&mut self, kind: &EventKind) -> bool {
        let event = Event::of(kind);
        if ends(&event) {
            self.end();
        }
        self.mailbox.put(event)
    }

    /// Sends an error as the last event.
    pub fn fail(mut self, error: Error) {
        self.end();
        self.mailbox.put(Err(error));
    }

    /// Whether the last event was sent.
    pub fn has_ended(&self) -> bool {
        self.place.is_none()
    }

    /// Frees the request's place before its reader sees the last event.
    fn end(&mut self) {
        self.place = None;
    }
}

impl Drop for MailboxSender {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.end();
            let sentence = "the engine ended before the request; load the model again";
            self.mailbox.put(Err(Error::with_kind(ErrorKind::DeviceFailed, sentence)));
        }
    }
}
