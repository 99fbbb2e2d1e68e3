//! `girih chat`: a conversation. Earlier turns stay in the KV cache, so each turn
//! prefills only new tokens.

use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih::{CancelHandle, Conversation, Session, Stop};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use super::outcome::Outcome;
use crate::args::{DeviceArgs, ModelArgs, SamplingArgs};
use crate::editor::LineEditor;
use crate::error::{Error, Result};
use crate::input::each_line_of_text;
use crate::loading;
use crate::output::{print_json, print_note, stream};
use crate::progress::Show;
use crate::report::{self, FinishedReply, reply_json, summary};
use crate::request::request;

const HELP: &str = "/system TEXT  set the system message and start a new conversation
/clear        start a new conversation
/undo         forget the last turn
/stats        show the counts and times of the last reply
/help         show this
/quit         leave, like Ctrl-D; Ctrl-C stops a reply";

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    device: DeviceArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// System message.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Print a line of JSON after each reply.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> Result<Outcome> {
    let show = args.device.show.show();
    let model = loading::open_model(&args.model)?;
    if let Some(generation) = &model.files().generation {
        show.detail(loading::generation_note(generation));
    }
    // A template that fails does so before the weights are read.
    model.render(&Conversation::new().user("?"))?;
    let session = loading::session(loading::plan(&model, &args.device, 1)?, show)?;
    let running: Arc<Mutex<Option<CancelHandle>>> = Arc::default();
    let interrupted = Arc::clone(&running);
    let cancel = move || {
        if let Some(cancel_handle) = &*lock(&interrupted) {
            cancel_handle.cancel();
        }
    };
    ctrlc::set_handler(cancel).map_err(Error::work)?;
    let messages = opening(args.system.as_deref());
    let mut chat = ChatLoop { args, show, session, messages, last: None, running };
    if io::stdin().is_terminal() { chat.converse() } else { chat.read_lines() }
}

/// No code panics while it holds the lock, so a poisoned one has valid contents.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn opening(system: Option<&str>) -> Vec<Value> {
    system.map(|text| json!({"role": "system", "content": text})).into_iter().collect()
}

struct ChatLoop<'a> {
    args: &'a Args,
    show: Show,
    session: Session,
    messages: Vec<Value>,
    last: Option<FinishedReply>,
    /// What cancels the reply that is being generated.
    running: Arc<Mutex<Option<CancelHandle>>>,
}

impl ChatLoop<'_> {
    /// Runs the conversation at a terminal.
    fn converse(&mut self) -> Result<Outcome> {
        self.show.note("/help lists the commands");
        let mut editor = LineEditor::new().map_err(Error::work)?;
        loop {
            match editor.line() {
                Ok(line) => match self.line(&line) {
                    Ok(ControlFlow::Break(())) => return Ok(Outcome::Done),
                    Ok(ControlFlow::Continue(())) => {}
                    Err(Error::Work(sentence) | Error::Call(sentence)) => {
                        print_note(format_args!("girih: {sentence}"))
                    }
                    Err(error) => return Err(error),
                },
                Err(ReadlineError::Interrupted) => {}
                Err(ReadlineError::Eof) => return Ok(Outcome::Done),
                Err(error) => return Err(Error::work(error)),
            }
        }
    }

    /// Runs the conversation from a pipe, one turn per line, up to the first error.
    fn read_lines(&mut self) -> Result<Outcome> {
        each_line_of_text(|line| self.line(line))?;
        Ok(Outcome::Done)
    }

    /// Executes a line: a command, or a message of the user. Breaks on `/quit`.
    fn line(&mut self, line: &str) -> Result<ControlFlow<()>> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "" => {}
            "/quit" | "/exit" => return Ok(ControlFlow::Break(())),
            "/help" => print_line!("{HELP}")?,
            "/clear" => self.messages = opening(self.args.system.as_deref()),
            "/system" => self.messages = opening(Some(rest)),
            "/undo" => self.undo(),
            "/stats" => print_line!("{}", self.last.as_ref().map_or("no reply yet".to_owned(), summary))?,
            _ if command.starts_with('/') => {
                return Err(Error::call(format!("unknown command '{command}'; /help lists them")));
            }
            _ => self.turn(line)?,
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Removes the last question and its answer.
    fn undo(&mut self) {
        let question = self.messages.iter().rposition(|message| message["role"] == "user");
        self.messages.truncate(question.unwrap_or(self.messages.len()));
    }

    /// Generates the answer to a question. If that fails, neither is kept.
    fn turn(&mut self, line: &str) -> Result<()> {
        self.messages.push(json!({"role": "user", "content": line}));
        let (prompt, reply) = self.reply().inspect_err(|_| {
            self.messages.pop();
        })?;
        self.messages.push(json!({"role": "assistant", "content": reply.text}));
        if self.args.json {
            print_json(&reply_json(&prompt, &reply))?;
        }
        self.last = Some(reply);
        Ok(())
    }

    /// Returns the tokens of the whole conversation, and the model's reply.
    fn reply(&mut self) -> Result<(Vec<u32>, FinishedReply)> {
        let model = self.session.model();
        let conversation = Conversation { messages: self.messages.clone(), ..Conversation::new() };
        let tokens = model.tokenize_conversation(&conversation)?;
        let reply = self.session.generate(request(tokens.clone(), &self.args.sampling, model))?;
        *lock(&self.running) = Some(reply.cancel_handle());
        let reply = report::read(reply, stream);
        *lock(&self.running) = None;
        let reply = reply?;
        print_line!("")?;
        match reply.stop {
            Stop::Length => self.show.note("[the reply ended at the limit of --max-tokens]"),
            Stop::Context => self.show.note("[the reply ended because the context is full]"),
            _ => {}
        }
        Ok((tokens, reply))
    }
}
