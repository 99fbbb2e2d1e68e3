//! A reply: its events one by one, or the whole of it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use girih::{CancelHandle, Error, ErrorKind, Event, Reply, ReplyMessage, Result, Stop, json, tools};
use pyo3::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use serde_json::Value;

use crate::errors::raised;
use crate::waiting::{lock, wait, without_lock};

/// The events of a request. Dropping it cancels the request.
#[pyclass(name = "Reply", frozen, module = "girih._girih")]
pub struct PyReply {
    events: Mutex<Option<Reply>>,
    cancel: CancelHandle,
    #[pyo3(get)]
    prompt_tokens: u32,
    /// What was read of a reply that is wanted whole.
    whole: Mutex<WholeReply>,
    /// Is written when an event is ready, for an event loop that watches it.
    ready: Mutex<Option<Arc<Readable>>>,
}

/// A file that can be read from the moment that an event is ready. A thread of the engine writes it, without the
/// interpreter's lock.
struct Readable(OwnedFd);

impl Wake for Readable {
    fn wake(self: Arc<Self>) {
        // It fails only if the count is full, and then the file can be read.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl PyReply {
    /// A reply that has begun.
    pub fn new(events: Reply) -> PyReply {
        PyReply {
            cancel: events.cancel_handle(),
            prompt_tokens: events.prompt_tokens(),
            events: Mutex::new(Some(events)),
            whole: Mutex::default(),
            ready: Mutex::default(),
        }
    }

    /// Polls for the next event; a reply that was closed has none.
    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Result<Event>>> {
        match &mut *lock(&self.events) {
            Some(events) => events.poll(context),
            None => Poll::Ready(None),
        }
    }

    fn take(&self) {
        let events = lock(&self.events).take();
        if events.is_some() {
            without_lock(move || drop(events));
        }
    }
}

#[pymethods]
impl PyReply {
    /// Waits for the next event, as JSON; `None` after the last one.
    fn next(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let event = wait(py, |context| self.poll(context), |_| Ok(()))?;
        told(py, event)
    }

    /// The next event if it is ready: whether the reply goes on, and the event. Otherwise the file of `fileno` can be read
    /// when one is.
    fn poll_next(&self, py: Python<'_>) -> PyResult<(bool, Option<String>)> {
        let waker = self.waker(py)?;
        match py.detach(|| self.poll(&mut Context::from_waker(&waker))) {
            Poll::Pending => Ok((true, None)),
            Poll::Ready(event) => Ok((event.is_some(), told(py, event)?)),
        }
    }

    /// The number of the file that an event loop watches.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.readable(py)?.0.as_raw_fd())
    }

    /// Waits for the end; the whole reply as JSON.
    fn finish(&self, py: Python<'_>) -> PyResult<String> {
        let end = wait(py, |context| self.poll_end(context), |_| Ok(()));
        self.take();
        end?.map_err(|error| raised(py, &error))
    }

    /// The whole reply as JSON if it is complete. Otherwise the file of `fileno` can be read when there is more of it.
    fn poll_finish(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let waker = self.waker(py)?;
        match py.detach(|| self.poll_end(&mut Context::from_waker(&waker))) {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(whole)) => Ok(Some(whole)),
            Poll::Ready(Err(error)) => Err(raised(py, &error)),
        }
    }

    /// Cancels the request; its last event says so.
    fn cancel(&self) {
        self.cancel.cancel();
    }

    /// Cancels the request and forgets its events.
    fn close(&self) {
        self.cancel.cancel();
        self.take();
    }
}

impl PyReply {
    /// Makes the file of `fileno` readable when there are events that the next poll has not seen.
    fn waker(&self, py: Python<'_>) -> PyResult<Waker> {
        let ready = self.readable(py)?;
        let _ = rustix::io::read(&ready.0, &mut [0_u8; 8]);
        Ok(Waker::from(ready))
    }

    /// Reads what is ready of a reply that is wanted whole.
    fn poll_end(&self, context: &mut Context<'_>) -> Poll<Result<String>> {
        loop {
            let event = match self.poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(None) => {
                    return Poll::Ready(Err(cancelled("the reply was closed or is read already")));
                }
                Poll::Ready(Some(event)) => event,
            };
            let mut whole = lock(&self.whole);
            match event.and_then(|event| whole.push(&event)) {
                Ok(false) => {}
                Ok(true) => {
                    return Poll::Ready(Ok(std::mem::take(&mut *whole).json(self.prompt_tokens).to_string()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn readable(&self, py: Python<'_>) -> PyResult<Arc<Readable>> {
        let mut ready = lock(&self.ready);
        if let Some(ready) = &*ready {
            return Ok(Arc::clone(ready));
        }
        let file = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(|error| {
            let sentence = format!("no file for events can be opened: {error}");
            raised(py, &Error::with_kind(ErrorKind::DeviceFailed, sentence))
        })?;
        Ok(Arc::clone(ready.insert(Arc::new(Readable(file)))))
    }
}

impl Drop for PyReply {
    fn drop(&mut self) {
        self.take();
    }
}

/// An event as JSON.
fn told(py: Python<'_>, event: Option<Result<Event>>) -> PyResult<Option<String>> {
    match event.transpose() {
        Ok(event) => Ok(event.map(|event| json::event(&event).to_string())),
        Err(error) => Err(raised(py, &error)),
    }
}

fn cancelled(sentence: &str) -> Error {
    Error::with_kind(ErrorKind::Cancelled, sentence)
}

/// The parts of a reply that is read to its end.
#[derive(Default)]
struct WholeReply {
    tokens: Vec<u32>,
    text: String,
    message: ReplyMessage,
    logprobs: Vec<Value>,
    prompt_logprobs: Vec<Value>,
    end: Value,
}

impl WholeReply {
    /// Adds an event; returns whether it is the last one.
    ///
    /// # Errors
    /// When the reply ended before it was complete.
    fn push(&mut self, event: &Event) -> Result<bool> {
        self.text.push_str(event.text());
        event.parts().iter().for_each(|part| self.message.push(part));
        match event {
            Event::PromptToken { .. } => self.prompt_logprobs.push(json::event(event)["logprobs"].take()),
            Event::Token { id, logprobs, .. } => {
                self.tokens.push(*id);
                if logprobs.is_some() {
                    self.logprobs.push(json::event(event)["logprobs"].take());
                }
            }
            Event::Finished { stop: Stop::Cancelled, .. } => {
                return Err(cancelled("the request was cancelled before its reply was complete"));
            }
            Event::Finished { stop: Stop::Deadline, .. } => {
                let sentence =
                    "the request's time limit passed before its reply was complete; allow more time";
                return Err(cancelled(sentence));
            }
            Event::Finished { .. } => {
                self.end = json::event(event);
                return Ok(true);
            }
            _ => {}
        }
        Ok(false)
    }

    /// All of it in one object.
    fn json(mut self, prompt_tokens: u32) -> Value {
        let mut whole = tools::message_json(&self.message);
        whole["prompt_tokens"] = prompt_tokens.into();
        whole["tokens"] = self.tokens.into();
        whole["logprobs"] = self.logprobs.into();
        whole["prompt_logprobs"] = self.prompt_logprobs.into();
        if let (Value::Object(whole), Value::Object(end)) = (&mut whole, self.end.take()) {
            whole.extend(end.into_iter().filter(|(name, _)| !["event", "parts"].contains(&&**name)));
        }
        whole["text"] = self.text.into();
        whole
    }
}
