//! The reader's side of a request: its events, and its cancellation.

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use girih_engine::Stop;
use girih_graph::{Error, ErrorKind, Result};
use girih_words::reply::ReplyMessage;

use crate::activity::ActivityRecord;
use crate::engine_thread::Command;
use crate::mailbox::{Event, Mailbox, MailboxSender, ReadEvent, UnreadReplies, ends};
use crate::places::{RequestPlace, RequestPlaces};
use crate::progress::{LoadControl, is_in_callback};
use crate::prompt_map::PromptMap;
use crate::readiness::{EnginePhase, Readiness};
use crate::reply_format::{ReplySplitter, add_parts};
use crate::request::checked::PreparedRequest;

/// The handle of an engine's thread. When the last one is dropped, the thread ends.
pub(crate) struct EngineHandle {
    pub commands: Arc<CommandSender>,
    /// Present until the handle is dropped.
    pub thread: Option<JoinHandle<()>>,
    pub readiness: Arc<Readiness>,
    pub control: Arc<LoadControl>,
    /// What the engine does.
    pub activity: Arc<ActivityRecord>,
    pub places: Arc<RequestPlaces>,
    /// The number of unread events at which a request is suspended.
    pub unread_events: u32,
    /// The replies that are complete, but unread.
    pub unread_replies: UnreadReplies,
}

/// Sends commands to an engine's thread until the thread's handle is dropped.
pub(crate) struct CommandSender(Mutex<Option<Sender<Command>>>);

impl CommandSender {
    pub fn new(sender: Sender<Command>) -> CommandSender {
        CommandSender(Mutex::new(Some(sender)))
    }

    /// Sends a command; returns whether the engine's thread can receive it.
    fn send(&self, command: Command) -> bool {
        // What a failed command holds is dropped without the lock, as it may wake a program's task.
        let sender = self.lock().clone();
        sender.is_some_and(|sender| sender.send(command).is_ok())
    }

    /// Sends the command that cancels a request, once for each request, so that the number of
    /// commands in the queue stays bounded.
    fn cancel(&self, mailbox: &Arc<Mailbox>) {
        if mailbox.is_first_cancellation() {
            self.send(Command::Cancel(Arc::clone(mailbox)));
        }
    }

    /// Ends the queue: the thread receives what was sent, then nothing.
    fn close(&self) {
        *self.lock() = None;
    }

    /// No code panics while it holds the lock, so a poisoned one has valid contents.
    fn lock(&self) -> MutexGuard<'_, Option<Sender<Command>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EngineHandle {
    /// Sends a request that has a place to the engine.
    ///
    /// # Errors
    /// When the engine has ended.
    pub fn submit(
        self: &Arc<EngineHandle>,
        mut place: RequestPlace,
        prepared: PreparedRequest,
    ) -> Result<Reply> {
        let PreparedRequest { request, hooks, splitter, map } = prepared;
        let prompt_tokens = u32::try_from(request.tokens.len()).unwrap_or(u32::MAX);
        place.set_prompt(prompt_tokens);
        let mailbox = Arc::new(Mailbox::new(self.unread_events, Arc::clone(&self.unread_replies)));
        let sender = MailboxSender::new(Arc::clone(&mailbox), place);
        if !self.commands.send(Command::Submit(Box::new((request, hooks)), sender)) {
            let sentence = "the engine has ended; load the model again";
            return Err(Error::with_kind(ErrorKind::DeviceFailed, sentence));
        }
        Ok(Reply { mailbox, handle: Arc::clone(self), prompt_tokens, map, splitter, is_over: false })
    }
}

impl Drop for EngineHandle {
    /// Stops loading, or waits for the current step and for the files that are being written.
    fn drop(&mut self) {
        if matches!(self.readiness.phase(), EnginePhase::Loading) {
            self.control.cancelled.store(true, Ordering::Relaxed);
        }
        self.commands.close();
        let Some(thread) = self.thread.take() else { return };
        // If a hook owns the last session, this runs on the engine's own thread; the thread may
        // also wait for the callback that drops the session.
        if thread.thread().id() != thread::current().id() && !is_in_callback() {
            // A panic of the thread has reached the readers as an error.
            let _ = thread.join();
        }
    }
}

/// The events of one request: an iterator that waits for each. Dropping it cancels the
/// request. If all sessions are gone, dropping the last reply waits for the engine's thread,
/// as dropping the last [`Session`](crate::Session) does.
///
/// ```
/// use girih::{Model, Request};
///
/// let session = Model::open("stories260k")?.start()?;
/// let mut story = String::new();
/// for event in session.generate(Request::new("Once upon a time").max_tokens(20))? {
///     story += event?.text();
/// }
/// assert!(!story.is_empty());
/// # Ok::<(), girih::Error>(())
/// ```
pub struct Reply {
    mailbox: Arc<Mailbox>,
    handle: Arc<EngineHandle>,
    /// The number of tokens of its prompt.
    prompt_tokens: u32,
    /// Where the parts of its conversation lie in the prompt.
    map: Option<Arc<PromptMap>>,
    /// Splits its text; without one, all is content.
    splitter: Option<ReplySplitter>,
    /// Whether its last event was read.
    is_over: bool,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl Reply {
    /// Waits for the end and returns the whole text: with thinking and calls, as the model wrote
    /// them, but without special tokens.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let story = session.generate(girih::Request::new("Once upon a time").max_tokens(20))?.text()?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When the request fails, is cancelled, or exceeds its time limits
    /// ([`ErrorKind::Cancelled`]).
    pub fn text(self) -> Result<String> {
        self.map(|event| Ok(complete(event)?.text().to_owned())).collect()
    }

    /// Waits for the end and returns content, thinking and calls of tools apart.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions, Request};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let session = Model::open_with(BUILT_IN, &options)?.start()?;
    /// let request = Request::new(Conversation::new().user("Once upon a time")).max_tokens(20);
    /// let message = session.generate(request)?.message()?;
    /// assert!(!message.content.is_empty() && message.calls.is_empty());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Reply::text`].
    pub fn message(self) -> Result<ReplyMessage> {
        let mut message = ReplyMessage::default();
        for event in self {
            complete(event)?.parts().iter().for_each(|part| message.push(part));
        }
        Ok(message)
    }

    /// Waits for the end and returns the token ids, without a stop token.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let ids = session.generate(girih::Request::new("Once upon a time").max_tokens(20))?.tokens()?;
    /// assert_eq!(ids.len(), 20);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Reply::text`].
    pub fn tokens(self) -> Result<Vec<u32>> {
        let id = |event: Result<Event>| match complete(event) {
            Ok(Event::Token { id, .. }) => Some(Ok(id)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        };
        self.filter_map(id).collect()
    }

    /// The number of tokens of the request's prompt.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let reply = session.generate(girih::Request::new(vec![1, 400]))?;
    /// assert_eq!(reply.prompt_tokens(), 2);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn prompt_tokens(&self) -> u32 {
        self.prompt_tokens
    }

    /// Where the parts of the request's conversation lie in its prompt; `None` if the prompt is none, or was cut.
    ///
    /// ```
    /// use girih::{BUILT_IN, BUILT_IN_TEMPLATE, Conversation, Model, OpenOptions, PromptPart, Request};
    ///
    /// let options = OpenOptions { chat_template: Some(BUILT_IN_TEMPLATE.into()), ..Default::default() };
    /// let session = Model::open_with(BUILT_IN, &options)?.start()?;
    /// let reply = session.generate(Request::new(Conversation::new().system("Be kind.").user("Once")))?;
    /// let map = reply.prompt_map().expect("the prompt is a conversation");
    /// assert_eq!(map.part_at(1), PromptPart::System);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn prompt_map(&self) -> Option<&PromptMap> {
        self.map.as_deref()
    }

    /// Returns a handle that cancels the request from any thread.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let reply = session.generate(girih::Request::new("Once upon a time"))?;
    /// let cancel_handle = reply.cancel_handle();
    /// std::thread::spawn(move || cancel_handle.cancel());
    /// for event in reply {
    ///     event?;
    /// }
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle { mailbox: Arc::clone(&self.mailbox), commands: Arc::clone(&self.handle.commands) }
    }

    /// Polls for the next event: `Pending` registers the task's waker, and `Ready(None)` means that
    /// the last event was read. `futures::stream::poll_fn(move |context| reply.poll(context))` is
    /// an async stream.
    ///
    /// ```
    /// use std::task::{Context, Poll, Waker};
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let mut reply = session.generate(girih::Request::new("Once upon a time").max_tokens(3))?;
    /// let mut events = 0;
    /// loop {
    ///     match reply.poll(&mut Context::from_waker(Waker::noop())) {
    ///         Poll::Ready(Some(event)) => events += usize::from(event.is_ok()),
    ///         Poll::Ready(None) => break,
    ///         Poll::Pending => std::thread::yield_now(),
    ///     }
    /// }
    /// assert_eq!(events, 5); // prefilled, three tokens, finished
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        self.mailbox.poll(context).map(|read| Some(self.accept(read)))
    }

    fn accept(&mut self, read: ReadEvent) -> Result<Event> {
        let ReadEvent { mut event, resumes } = read;
        if let Ok(event) = &mut event {
            add_parts(self.splitter.as_mut(), event);
        }
        self.is_over = ends(&event);
        if resumes && !self.is_over {
            self.handle.commands.send(Command::Resume(Arc::clone(&self.mailbox)));
        }
        event
    }
}

/// An event of a reply that is wanted whole.
fn complete(event: Result<Event>) -> Result<Event> {
    match event? {
        Event::Finished { stop: Stop::Cancelled, .. } => Err(Error::with_kind(
            ErrorKind::Cancelled,
            "the request was cancelled before its reply was complete",
        )),
        Event::Finished { stop: Stop::Deadline, .. } => Err(Error::with_kind(
            ErrorKind::Cancelled,
            "the request's time limit passed before its reply was complete; allow more time",
        )),
        event => Ok(event),
    }
}

impl Iterator for Reply {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Result<Event>> {
        if self.is_over {
            return None;
        }
        let read = self.mailbox.wait();
        Some(self.accept(read))
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.is_over {
            self.mailbox.abandon();
            self.handle.commands.cancel(&self.mailbox);
        }
    }
}

/// Cancels a request from any thread. It does not keep the model loaded.
///
/// ```
/// use girih::{Event, Model, Request, Stop};
///
/// let session = Model::open("stories260k")?.start()?;
/// let reply = session.generate(Request::new("Once upon a time").max_tokens(400))?;
/// reply.cancel_handle().cancel();
/// let last = reply.last().expect("a reply has a last event")?;
/// assert!(matches!(last, Event::Finished { stop: Stop::Cancelled | Stop::Length, .. }));
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone)]
pub struct CancelHandle {
    mailbox: Arc<Mailbox>,
    commands: Arc<CommandSender>,
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle").finish_non_exhaustive()
    }
}

impl CancelHandle {
    /// Cancels the request; it finishes as cancelled after the current step. Does nothing if
    /// the request has ended.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// # let reply = session.generate(girih::Request::new("Once upon a time"))?;
    /// reply.cancel_handle().cancel();
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn cancel(&self) {
        self.commands.cancel(&self.mailbox);
    }

    /// The time since the last event of the reply was ready to be read; `None` while the request waits or
    /// runs. An event that was not read takes memory, but no place of the queue.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// # let reply = session.generate(girih::Request::new("Once upon a time").max_tokens(3))?;
    /// let handle = reply.cancel_handle();
    /// reply.text()?;
    /// assert!(handle.ended_for().is_some());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn ended_for(&self) -> Option<Duration> {
        self.mailbox.ended_for()
    }

    /// Drops the events of a reply that is complete but unread; its reader gets an error of the kind
    /// [`ErrorKind::Cancelled`]. Does nothing while the request waits or runs.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// # let reply = session.generate(girih::Request::new("Once upon a time"))?;
    /// let handle = reply.cancel_handle();
    /// if handle.ended_for().is_some_and(|time| time > Duration::from_secs(60)) {
    ///     handle.discard();
    /// }
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn discard(&self) {
        self.mailbox.discard();
    }
}
