//! The thread that owns an engine: it takes commands between steps and sends events to
//! mailboxes. It never waits for a reader.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};

use girih_engine::{Engine, Hooks, RequestId, TokenRequest};
use girih_graph::Error;

use crate::activity::ActivityRecord;
use crate::mailbox::{Mailbox, MailboxSender};

/// A command to the engine.
pub(crate) enum Command {
    /// Queues a request.
    Submit(Box<(TokenRequest, Hooks)>, MailboxSender),
    /// Cancels the request of a mailbox.
    Cancel(Arc<Mailbox>),
    /// Continues the request of a mailbox that has room again.
    Resume(Arc<Mailbox>),
}

/// The engine and the mailboxes of its requests.
struct EngineThread {
    commands: Receiver<Command>,
    senders: HashMap<RequestId, MailboxSender>,
    engine: Engine,
    activity: Arc<ActivityRecord>,
}

/// Runs the engine until nobody can send a command any more. Readers learn of the end before the
/// engine is returned. `activity` says what it does.
pub(crate) fn run(engine: Engine, commands: Receiver<Command>, activity: Arc<ActivityRecord>) -> Engine {
    let mut thread = EngineThread { commands, senders: HashMap::new(), engine, activity };
    thread.serve();
    thread.engine
}

/// Answers every request with the error that ended loading.
pub(crate) fn fail_all(error: &Error, commands: Receiver<Command>) {
    for command in commands {
        if let Command::Submit(_, sender) = command {
            sender.fail(error.clone());
        }
    }
}

impl EngineThread {
    fn serve(&mut self) {
        loop {
            self.activity.record(&self.engine, self.senders.len());
            if self.engine.is_idle() {
                match self.wait() {
                    Ok(command) => self.handle(command),
                    // A suspended request has passed its time limit.
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            loop {
                match self.commands.try_recv() {
                    Ok(command) => self.handle(command),
                    Err(TryRecvError::Empty) => break,
                    // Every reply holds a handle, so no reader is left.
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            self.step();
        }
    }

    /// Waits for a command, at most until a request passes its time limit.
    fn wait(&self) -> Result<Command, RecvTimeoutError> {
        match self.engine.until_deadline() {
            Some(time) => self.commands.recv_timeout(time),
            None => self.commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Submit(request, sender) => {
                let (request, hooks) = *request;
                match self.engine.submit(request, hooks) {
                    Ok(id) => drop(self.senders.insert(id, sender)),
                    Err(error) => sender.fail(error),
                }
            }
            Command::Cancel(mailbox) => {
                if let Some(id) = self.request_of(&mailbox) {
                    self.engine.cancel(id);
                }
            }
            Command::Resume(mailbox) => {
                if let Some(id) = self.request_of(&mailbox) {
                    self.engine.resume(id);
                }
            }
        }
    }

    /// The request of a mailbox, unless it has ended.
    fn request_of(&self, mailbox: &Arc<Mailbox>) -> Option<RequestId> {
        self.senders.iter().find(|(_, sender)| sender.sends_to(mailbox)).map(|(id, _)| *id)
    }

    /// Runs the model once and sends the events.
    fn step(&mut self) {
        let mut behind = Vec::new();
        for event in self.engine.step() {
            let Some(sender) = self.senders.get_mut(&event.request) else { continue };
            let suspends = sender.send(&event.kind);
            if sender.has_ended() {
                self.senders.remove(&event.request);
            } else if suspends {
                behind.push(event.request);
            }
        }
        for id in behind {
            self.engine.suspend(id);
        }
    }
}
