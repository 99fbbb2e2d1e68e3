//! The log of requests: a line of JSON for each, written by a thread of its own, so that a reader
//! of the log that is slow delays no request.

use std::fmt::{self, Write as _};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use girih::{Error, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::record::RequestFacts;
use crate::calendar::since_1970;

/// The lines that may wait for the writer; further ones are dropped and counted.
const MAX_LINES: usize = 1024;

/// The log of requests. It has no text of prompts and replies unless bodies are logged.
#[derive(Clone, Debug)]
pub struct AccessLog {
    lines: SyncSender<LogEntry>,
    dropped: Arc<AtomicU64>,
    /// Whether lines have the bodies of requests.
    pub(crate) has_bodies: bool,
    /// What writes the lines, until it is started.
    writer: Arc<Mutex<Option<LogWriter>>>,
}

/// What writes the lines.
struct LogWriter {
    out: Box<dyn Write + Send>,
    waiting: Receiver<LogEntry>,
    dropped: Arc<AtomicU64>,
}

/// What the writer receives.
enum LogEntry {
    Line(String),
    /// Asks for an answer once all entries before it are written.
    Flush(SyncSender<()>),
}

/// A request that has ended.
#[derive(Debug)]
pub(crate) struct EndedRequest<'a> {
    pub id: &'a str,
    pub method: &'a str,
    /// The route, not the path, which may hold anything.
    pub route: &'a str,
    pub status: u16,
    /// Why it was refused.
    pub code: Option<&'a str>,
    /// Whether its client left before the end.
    pub is_disconnected: bool,
    pub time: Duration,
    pub facts: &'a RequestFacts,
}

/// The label of requests that no route matches, as a client may make up any number.
pub(crate) const NO_ROUTE: &str = "none";

#[cfg(feature = "otlp")]
impl EndedRequest<'_> {
    /// The route, if one matches.
    pub fn matched_route(&self) -> Option<&str> {
        (self.route != NO_ROUTE).then_some(self.route)
    }
}

impl AccessLog {
    /// A log that is written to `out` from the moment that the server starts; with `has_bodies`, lines
    /// have the bodies of requests.
    pub fn new(out: impl Write + Send + 'static, has_bodies: bool) -> AccessLog {
        let (lines, waiting) = sync_channel(MAX_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = LogWriter { out: Box::new(out), waiting, dropped: Arc::clone(&dropped) };
        AccessLog { lines, dropped, has_bodies, writer: Arc::new(Mutex::new(Some(writer))) }
    }

    /// Starts the thread that writes the lines, if it has not been started. A confined server does so
    /// when it is confined, as Landlock does not hold threads that run already.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn start(&self) -> Result<()> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(writer) = writer else { return Ok(()) };
        thread::Builder::new()
            .name("girih-log".to_owned())
            .spawn(move || writer.run())
            .map_err(|error| Error::new(format!("no thread can be started for the log: {error}")))?;
        Ok(())
    }

    /// Writes the line of a request.
    pub(crate) fn write(&self, ended: &EndedRequest<'_>) {
        if self.lines.try_send(LogEntry::Line(line(ended))).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until the writer has written all lines so far, at most for this time.
    pub(crate) fn flush(&self, time: Duration) {
        const POLL_INTERVAL: Duration = Duration::from_millis(1);
        let end = Instant::now() + time;
        let (answer, answered) = sync_channel(1);
        let mut entry = LogEntry::Flush(answer);
        while let Err(TrySendError::Full(unsent)) = self.lines.try_send(entry) {
            if Instant::now() >= end {
                return;
            }
            entry = unsent;
            thread::sleep(POLL_INTERVAL);
        }
        // A reader of the log that is stuck does not keep the server from ending.
        let _ = answered.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

impl LogWriter {
    /// Writes lines until no log is left.
    fn run(mut self) {
        for entry in self.waiting {
            let lost = self.dropped.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let _ = writeln!(self.out, "{}", json!({"time": now(), "dropped_lines": lost}));
            }
            // A log that cannot be written is no reason to end.
            match entry {
                LogEntry::Line(line) => {
                    let _ = self.out.write_all(line.as_bytes()).and_then(|()| self.out.flush());
                }
                LogEntry::Flush(answer) => {
                    let _ = self.out.flush();
                    // The caller may have given up.
                    let _ = answer.try_send(());
                }
            }
        }
    }
}

impl fmt::Debug for LogWriter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("LogWriter")
    }
}

/// The time in seconds since 1970.
fn now() -> f64 {
    (since_1970().as_secs_f64() * 1e3).round() / 1e3
}

fn line(ended: &EndedRequest<'_>) -> String {
    let mut object = serde_json::Map::new();
    let mut set = |key: &str, value: Value| {
        if !value.is_null() {
            object.insert(key.to_owned(), value);
        }
    };
    let facts = ended.facts;
    let millis = |time: Duration| json!((time.as_secs_f64() * 1e6).round() / 1e3);
    set("time", json!(now()));
    set("id", json!(ended.id));
    set("method", json!(ended.method));
    set("route", json!(ended.route));
    set("status", json!(ended.status));
    set("code", json!(ended.code));
    set("disconnected", if ended.is_disconnected { json!(true) } else { Value::Null });
    set("tenant", json!(facts.tenant));
    set("ms", millis(ended.time));
    if let Some(model) = &facts.model {
        set("model", json!(model));
        set("replies", json!(facts.replies));
        set("finish", json!(facts.finish));
        set("prompt_tokens", json!(facts.prompt_tokens));
        set("cached_tokens", json!(facts.cached_tokens));
        set("cache", json!(facts.cache));
        set("reply_tokens", json!(facts.reply_tokens));
        set("first_token_ms", facts.first_token.map_or(Value::Null, millis));
    }
    set("body", json!(facts.body));
    ascii(&object) + "\n"
}

/// JSON in ASCII: what is not could be control characters of a terminal, which obeys them.
fn ascii(object: &impl Serialize) -> String {
    let json = serde_json::to_string(object).expect("strings and numbers always serialize");
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() && c != '\x7f' {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}").expect("a string takes any text");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(facts: &RequestFacts) -> EndedRequest<'_> {
        EndedRequest {
            id: "a1",
            method: "POST",
            route: "/v1/chat/completions",
            status: 200,
            code: None,
            is_disconnected: false,
            time: Duration::from_micros(12_345),
            facts,
        }
    }

    #[test]
    fn a_line_is_json_in_ascii() {
        let facts = RequestFacts {
            tenant: Some("alice".to_owned()),
            model: Some("li\u{9b}31mly\u{202e}\u{1f600}\x7f".to_owned()),
            reply_tokens: 3,
            ..RequestFacts::default()
        };
        let text = line(&ended(&facts));
        assert!(text.is_ascii() && !text.contains('\x7f') && text.ends_with("}\n"), "{text}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["tenant"], "alice");
        assert_eq!(value["model"], facts.model.clone().expect("a model"));
        assert_eq!(
            (&value["status"], &value["ms"], &value["reply_tokens"]),
            (&json!(200), &json!(12.345), &json!(3))
        );
        assert!(value.get("body").is_none() && value.get("code").is_none());
    }

    /// Text that a slow reader has read.
    #[derive(Clone, Default)]
    struct SlowReader(Arc<Mutex<Vec<u8>>>);

    impl Write for SlowReader {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            thread::sleep(Duration::from_micros(100));
            self.0.lock().expect("no writer panics").extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_flush_waits_for_all_lines_and_tells_of_dropped_ones() {
        let out = SlowReader::default();
        let (log, facts) = (AccessLog::new(out.clone(), false), RequestFacts::default());
        // Before the writer starts, so that the last ones are dropped.
        for _ in 0..MAX_LINES + 7 {
            log.write(&ended(&facts));
        }
        log.start().expect("a thread");
        log.flush(Duration::from_secs(60));
        log.write(&ended(&facts));
        log.flush(Duration::from_secs(60));
        let text = String::from_utf8(out.0.lock().expect("no writer panics").clone()).expect("ASCII");
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        let dropped: u64 = lines.iter().filter_map(|line| line["dropped_lines"].as_u64()).sum();
        let written = lines.iter().filter(|line| line["id"] == "a1").count();
        assert_eq!((written, dropped), (MAX_LINES + 1, 7));
    }

    #[test]
    fn a_log_that_is_not_read_delays_nobody() {
        /// Says that it is written to, and then takes for ever.
        struct Stuck(std::sync::mpsc::Sender<()>);
        impl Write for Stuck {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                let _ = self.0.send(());
                loop {
                    thread::park();
                }
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (written, is_stuck) = std::sync::mpsc::channel();
        let log = AccessLog::new(Stuck(written), false);
        log.start().expect("a thread");
        let facts = RequestFacts::default();
        log.write(&ended(&facts));
        is_stuck.recv().expect("the line is written");
        for _ in 0..MAX_LINES + 10 {
            log.write(&ended(&facts));
        }
        assert_eq!(log.dropped.load(Ordering::Relaxed), 10);
        let start = Instant::now();
        log.flush(Duration::from_millis(20));
        assert!(start.elapsed() < Duration::from_secs(10), "the server would not end");
    }
}
