//! A chat whose replies are streamed, and cancelled by another thread after a time limit:
//! `cargo run --release -p girih --example chat -- MODEL [SECONDS]`.
//!
//! Without a model that has a chat template, it continues the conversation as plain text.

use std::io::{BufRead, Write, stdin, stdout};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use girih::{CancelHandle, Conversation, Event, Model, Prompt, Request, Result, Stop};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let model = Model::open(&arguments.next().unwrap_or("stories260k".to_owned()))?;
    let seconds: f64 = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(20.0);
    let session = model.start()?;
    let mut chat = Conversation::new().system("You are a helpful assistant.");
    for line in stdin().lock().lines().map_while(std::result::Result::ok) {
        chat = chat.user(&line);
        let prompt = match model.text_processor()?.template {
            Some(_) => Prompt::from(&chat),
            None => Prompt::from(line),
        };
        let reply = session.generate(Request::new(prompt).max_tokens(0))?;
        let watchdog = cancel_after(Duration::from_secs_f64(seconds), reply.cancel_handle());
        let mut said = String::new();
        for event in reply {
            let event = event?;
            said += event.text();
            show(event.text());
            if let Event::Finished { stop: Stop::Cancelled, .. } = event {
                show(" [cancelled]");
            }
        }
        drop(watchdog);
        println!();
        chat = chat.assistant(said);
    }
    Ok(())
}

/// Cancels a reply after a time, unless the returned sender is dropped before.
fn cancel_after(time: Duration, cancel_handle: CancelHandle) -> mpsc::Sender<()> {
    let (finished, end) = mpsc::channel();
    thread::spawn(move || {
        if end.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
            cancel_handle.cancel();
        }
    });
    finished
}

fn show(text: &str) {
    print!("{text}");
    // A closed pipe ends the program at the next line of input.
    let _ = stdout().flush();
}
