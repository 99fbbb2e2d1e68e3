//! A reply as JSON events, which its reader polls.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use girih::tools::{event_json, logprobs_json, message_json, reply_json};
use girih::{CancelHandle, Event, Logprobs, Reply, ReplyMessage, Stats, Stop, TokenLatencies};
use serde_json::{Map, Value, json};

use crate::handles::Handles;
use crate::status::Result;

/// The replies that callers poll.
pub static REPLIES: Handles<OpenReply> = Handles::new("reply", 2);

/// A reply that a caller polls.
#[derive(Debug)]
pub struct OpenReply {
    reader: Mutex<ReplyReader>,
    cancel: CancelHandle,
}

impl OpenReply {
    /// A reply that any thread may poll or cancel.
    pub fn new(reader: ReplyReader) -> OpenReply {
        OpenReply { cancel: reader.cancel_handle(), reader: Mutex::new(reader) }
    }

    /// Waits for the next event; see [`ReplyReader::next_within`].
    ///
    /// # Errors
    /// When the request fails.
    pub fn next_within(&self, time: Option<Duration>) -> Result<NextEvent> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner).next_within(time)
    }

    /// Cancels the request.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

/// The answer to a poll.
#[derive(Debug, PartialEq)]
pub enum NextEvent {
    /// An event, as one JSON object.
    Event(Value),
    /// Nothing has arrived within the time.
    None,
    /// The last event was read.
    End,
}

/// Turns the events of a reply into JSON.
#[derive(Debug)]
pub struct ReplyReader {
    reply: Reply,
    prompt: Vec<u32>,
    is_chat: bool,
    /// Events that were made and not read.
    ready: VecDeque<Value>,
    /// The id of the call that the reply is in.
    call: String,
    ids: Vec<u32>,
    text: String,
    message: ReplyMessage,
    is_over: bool,
}

impl ReplyReader {
    /// A reader whose first event has the model, and the number of the prompt's tokens.
    pub fn new(reply: Reply, model: &str, prompt: Vec<u32>, is_chat: bool) -> ReplyReader {
        let start = json!({
            "event": "start", "model": model, "chat_template": is_chat, "prompt_tokens": prompt.len(),
        });
        ReplyReader {
            reply,
            prompt,
            is_chat,
            ready: VecDeque::from([start]),
            call: String::new(),
            ids: Vec::new(),
            text: String::new(),
            message: ReplyMessage::default(),
            is_over: false,
        }
    }

    /// Cancels the request from any thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.reply.cancel_handle()
    }

    /// Waits for the next event; without a time, until there is one.
    ///
    /// # Errors
    /// When the request fails; the reply has then ended.
    pub fn next_within(&mut self, time: Option<Duration>) -> Result<NextEvent> {
        let end = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(NextEvent::Event(event));
            }
            if self.is_over {
                return Ok(NextEvent::End);
            }
            match next_until(&mut self.reply, end) {
                None => return Ok(NextEvent::None),
                Some(None) => self.is_over = true,
                Some(Some(Ok(event))) => self.accept(event),
                Some(Some(Err(error))) => {
                    self.is_over = true;
                    return Err(error.into());
                }
            }
        }
    }

    /// Makes the JSON events of an event.
    fn accept(&mut self, event: Event) {
        self.text.push_str(event.text());
        event.parts().iter().for_each(|part| self.message.push(part));
        let id = if let Event::Token { id, .. } = event { Some(id) } else { None };
        self.ids.extend(id);
        for (name, fields) in event_json(self.is_chat, &mut self.call, (id, event.text()), event.parts()) {
            self.ready.push_back(named(name, &[&fields]));
        }
        match event {
            Event::Token { logprobs: Some(logprobs), .. } => {
                let token = self.ready.iter_mut().find(|event| event["event"] == "text");
                token.into_iter().for_each(|token| add_logprobs(token, &logprobs));
            }
            Event::PromptToken { id, logprobs } => {
                let mut token = named("prompt_token", &[&json!({"id": id})]);
                logprobs.iter().for_each(|logprobs| add_logprobs(&mut token, logprobs));
                self.ready.push_back(token);
            }
            Event::Finished { stop, stats, latencies, .. } => self.finish(&stop, &stats, &latencies),
            _ => {}
        }
    }

    fn finish(&mut self, stop: &Stop, stats: &Stats, latencies: &TokenLatencies) {
        self.is_over = true;
        if let Stop::Token(id) = stop {
            self.ids.push(*id);
        }
        let counts = reply_json(&self.prompt, &self.ids, &self.text, stop, stats, latencies);
        let parts = if self.is_chat { message_json(&self.message) } else { Value::Null };
        self.ready.push_back(named("end", &[&counts, &parts]));
    }
}

/// An event: its name, then the fields of the objects.
fn named(name: &str, objects: &[&Value]) -> Value {
    let mut event = Map::from_iter([("event".to_owned(), json!(name))]);
    let fields = objects.iter().filter_map(|object| object.as_object()).flatten();
    event.extend(fields.map(|(name, value)| (name.clone(), value.clone())));
    Value::Object(event)
}

fn add_logprobs(event: &mut Value, logprobs: &Logprobs) {
    if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), logprobs_json(logprobs)) {
        event.extend(fields);
    }
}

/// The thread that waits for an event.
struct WaitingThread(Thread);

impl Wake for WaitingThread {
    fn wake(self: Arc<WaitingThread>) {
        self.0.unpark();
    }
}

/// The next event, the end (`Some(None)`), or `None` if none has arrived by the end of the time.
fn next_until(reply: &mut Reply, end: Option<Instant>) -> Option<Option<girih::Result<Event>>> {
    let Some(end) = end else { return Some(reply.next()) };
    let waker = Waker::from(Arc::new(WaitingThread(thread::current())));
    loop {
        if let Poll::Ready(event) = reply.poll(&mut Context::from_waker(&waker)) {
            return Some(event);
        }
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        thread::park_timeout(left);
    }
}
