//! A chat whose replies are streamed, and cancelled by another thread after a time limit:
//! `cargo run --release -p girih --example chat -- MODEL [SECONDS]`.
//!
//! A model without a chat template continues each line on its own.

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use girih::{CancelHandle, Conversation, Error, Event, Model, Prompt, Request, Result, Stop};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::open(&arguments.next().unwrap_or("stories260k".to_owned()))?;
    let limit = match arguments.next() {
        Some(seconds) => {
            seconds.parse().map_err(|_| Error::new(format!("'{seconds}' is not a number of seconds")))?
        }
        None => 20,
    };
    let session = model.start()?;
    let mut chat = Conversation::new().system("You are a helpful assistant.");
    for line in stdin().lock().lines() {
        let line = line.map_err(|error| Error::new(format!("standard input: {error}")))?;
        chat = chat.user(&line);
        let prompt = match model.text_processor()?.template {
            Some(_) => Prompt::from(&chat),
            None => Prompt::from(line),
        };
        let reply = session.generate(Request::new(prompt).max_tokens(0))?;
        let timer = cancel_after(Duration::from_secs(limit), reply.cancel_handle());
        let mut said = String::new();
        for event in reply {
            let event = event?;
            said += event.text();
            show(event.text());
            if let Event::Finished { stop: Stop::Cancelled, .. } = event {
                show(" [cancelled]");
            }
        }
        drop(timer);
        println!();
        chat = chat.assistant(said);
    }
    Ok(())
}

/// Cancels a reply after a time, unless the returned sender is dropped before.
fn cancel_after(time: Duration, reply: CancelHandle) -> mpsc::Sender<()> {
    let (finished, end) = mpsc::channel();
    thread::spawn(move || {
        if end.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            reply.cancel();
        }
    });
    finished
}

fn show(text: &str) {
    print!("{text}");
    // A closed pipe ends the program at the next line of input.
    let _ = stdout().flush();
}
