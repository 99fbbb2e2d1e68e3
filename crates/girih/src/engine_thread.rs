//! The thread that owns an engine: it takes commands between steps and sends events to
//! mailboxes. It never waits for a reader.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use girih_engine::scheduler::Phase;
use girih_engine::{Engine, Hooks, RequestId, TokenRequest, WorkLeft};
use girih_graph::Error;

use crate::activity::ActivityRecord;
use crate::cache_observer::ObservedCache;
use crate::expected_wait::RunningReply;
use crate::mailbox::{Mailbox, MailboxSender};
use crate::places::RequestPlaces;
use crate::readiness::EngineLife;

/// The least time between two reports of an engine that serves the same requests.
const REPORT_INTERVAL: Duration = Duration::from_millis(20);

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
    /// The first field, so that it is dropped first: a reader that is told of a fault finds the engine ended.
    _life: EngineLife,
    commands: Receiver<Command>,
    senders: HashMap<RequestId, MailboxSender>,
    engine: Engine,
    activity: Arc<ActivityRecord>,
    places: Arc<RequestPlaces>,
    observed_cache: Option<ObservedCache>,
    /// When the last step began.
    step_began: Instant,
    /// When each active request was admitted.
    admitted: HashMap<RequestId, Instant>,
    /// When the places were told of the engine's work, and what they were told of its requests.
    reported: Option<(Instant, [u64; 3])>,
}

/// What is told of an engine's work.
pub(crate) struct EngineReports {
    /// What it does.
    pub activity: Arc<ActivityRecord>,
    /// How long requests wait.
    pub places: Arc<RequestPlaces>,
    /// What its prefix cache has, if somebody wants to know.
    pub observed_cache: Option<ObservedCache>,
}

/// Runs the engine until nobody can send a command any more. Readers learn of the end before the
/// engine is returned. `life` says that it ends.
pub(crate) fn run(
    engine: Engine,
    commands: Receiver<Command>,
    reports: EngineReports,
    life: EngineLife,
) -> Engine {
    let EngineReports { activity, places, observed_cache } = reports;
    let mut thread = EngineThread {
        _life: life,
        commands,
        senders: HashMap::new(),
        engine,
        activity,
        places,
        observed_cache,
        step_began: Instant::now(),
        admitted: HashMap::new(),
        reported: None,
    };
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
            if let Some(cache) = &mut self.observed_cache {
                cache.look(self.engine.cache());
            }
            self.report();
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

    /// Tells the places of the engine's work: always if other requests run or wait than before, else at
    /// intervals.
    fn report(&mut self) {
        let EngineThread { engine, senders, admitted, .. } = self;
        let (now, scheduler) = (Instant::now(), engine.scheduler());
        let counts = [scheduler.admitted(), scheduler.active().len() as u64, scheduler.waiting() as u64];
        let is_same = |(at, known): (Instant, _)| known == counts && now.duration_since(at) < REPORT_INTERVAL;
        if self.reported.is_some_and(is_same) {
            return;
        }
        self.reported = Some((now, counts));
        let active = scheduler.active();
        let mut ended = Vec::new();
        admitted.retain(|id, since| {
            let is_active = active.binary_search(id).is_ok();
            if !is_active && !senders.contains_key(id) {
                ended.push(now.duration_since(*since));
            }
            is_active
        });
        // Requests are admitted when a step begins.
        let running = engine.work_left().map(|WorkLeft { request, prompt_rows, tokens }| {
            let since = *admitted.entry(request).or_insert(self.step_began);
            RunningReply { since, prompt_rows, tokens }
        });
        let waits = |id: &RequestId| scheduler.phase(*id) == Some(Phase::Waiting);
        let known = senders.iter().filter_map(|(id, sender)| Some((sender.place()?, waits(id))));
        self.places.report(
            |service| {
                service.pace = engine.pace();
                ended.into_iter().for_each(|time| service.count_reply(time));
                service.running.clear();
                service.running.extend(running);
            },
            known,
        );
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
        self.step_began = Instant::now();
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
