//! A loaded model at work on a thread of its own.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use girih_engine::{EngineLimits, Tenant};
use girih_graph::{Error, ErrorKind, Result};

use crate::activity::{ActivityRecord, EngineActivity};
use crate::cache_observer::ObservedCache;
use crate::engine_thread::{EngineReports, fail_all, run};
use crate::image_tower::ImageTower;
use crate::mailbox::{Event, UnreadReplies};
use crate::model::Model;
use crate::places::{PlaceLimits, RequestPlaces};
use crate::plan::Plan;
use crate::progress::{Progress, ProgressCallback};
use crate::prompt_cache::PromptStore;
use crate::readiness::{EngineLife, EnginePhase, LoadTimes, Readiness, WhenReady};
use crate::rendered_prompt::RenderedPrompt;
use crate::reply::{CommandSender, EngineHandle, Reply};
use crate::request::Request;
use crate::run_options::RunOptions;

/// The stack of an engine's thread, which also compiles programs and runs hooks: that of main
/// threads on Linux.
const STACK_BYTES: usize = 8 << 20;

/// A loaded model at work on a thread of its own. Clones share it; any thread may use one.
/// Dropping the last clone and the last reply ends the thread: this waits for the present
/// step and for packed weights that are being written.
///
/// ```
/// use girih::{Model, Request};
///
/// let session = Model::open("stories260k")?.start()?;
/// let story = session.generate(Request::new("Once upon a time"))?.text()?;
/// assert!(story.contains("Lily"));
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone)]
pub struct Session {
    model: Model,
    limits: EngineLimits,
    /// The maximum number of output rows of a step.
    output_rows: u32,
    arithmetic: Arc<str>,
    /// What makes rows of images, if requests may have them.
    tower: Option<Arc<ImageTower>>,
    handle: Arc<EngineHandle>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Model {
    /// Loads the model with the default options. Returns when it is ready.
    ///
    /// ```
    /// let session = girih::Model::open("stories260k")?.start()?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::plan`] and [`Plan::start`].
    pub fn start(&self) -> Result<Session> {
        self.plan(RunOptions::default())?.start(|_| {})
    }
}

impl Plan {
    /// Loads the model on a thread of its own and returns when it is ready.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// let session = plan.start(|progress| eprintln!("{progress:?}"))?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn start(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Result<Session> {
        let session = self.start_in_background(progress)?;
        session.wait_until_ready()?;
        Ok(session)
    }

    /// Begins to load the model on a thread of its own and returns at once: requests can be
    /// made and checked meanwhile, and run when the model is ready.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// let session = plan.start_in_background(|_| {})?;
    /// let prompt = session.model().tokenize("Once")?; // in parallel to loading
    /// session.wait_until_ready()?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When no thread can be started. Errors of loading come from
    /// [`Session::wait_until_ready`] and from replies.
    pub fn start_in_background(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Result<Session> {
        Session::spawn(self, ProgressCallback::new(progress))
    }
}

impl Session {
    /// Starts the thread that loads the planned model and then runs it.
    fn spawn(mut plan: Plan, callback: ProgressCallback) -> Result<Session> {
        plan.require_decoder()?;
        plan.check_memory()?;
        let tower = plan.take_tower().map(|tower| ImageTower::new(plan.model(), tower, callback.clone()));
        let tower = tower.transpose()?.map(Arc::new);
        let RunOptions { waiting, tenant_requests, unread_events, max_wait, .. } = *plan.options();
        let observer = plan.options().cache_observer.clone();
        let observed_cache = observer.map(|observer| ObservedCache::new(observer, plan.model().adapters()));
        let (model, limits, output_rows) = (plan.model().clone(), plan.limits(), plan.key().output_rows);
        let arithmetic = plan.arithmetic().into();
        let (commands, inbox) = mpsc::channel();
        let (readiness, control) = (Arc::new(Readiness::default()), Arc::clone(plan.services().control()));
        let prompts = PromptStore::of(&plan)?;
        let life = EngineLife(Arc::clone(&readiness));
        let activity = Arc::new(ActivityRecord::default());
        let record = Arc::clone(&activity);
        let places = Arc::new(RequestPlaces::new(PlaceLimits {
            sequences: limits.sequences,
            waiting,
            of_tenant: tenant_requests,
            wait: max_wait,
        }));
        let served = Arc::clone(&places);
        let body = move || {
            let begun = Instant::now();
            let engine = plan.load_engine(callback);
            match engine {
                Ok(mut engine) => {
                    if let Some(prompts) = &prompts {
                        prompts.restore(&mut engine);
                    }
                    record.record(&engine, 0);
                    let phases = engine.runner().phases();
                    life.0.settle(Ok(LoadTimes { whole: begun.elapsed(), phases }));
                    let reports = EngineReports { activity: record, places: served, observed_cache };
                    let mut engine = run(engine, inbox, reports, life);
                    if let Some(prompts) = &prompts {
                        prompts.save(&mut engine);
                    }
                }
                Err(error) => {
                    life.0.settle(Err(error.clone()));
                    fail_all(&error, inbox);
                }
            }
        };
        let thread = thread::Builder::new()
            .name("girih-engine".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(body)
            .map_err(|error| {
                let sentence = format!("no thread can be started for the model: {error}");
                Error::with_kind(ErrorKind::DeviceFailed, sentence)
            })?;
        let handle = EngineHandle {
            commands: Arc::new(CommandSender::new(commands)),
            thread: Some(thread),
            readiness,
            control,
            activity,
            places,
            unread_events,
            unread_replies: UnreadReplies::default(),
        };
        Ok(Session { model, limits, output_rows, arithmetic, tower, handle: Arc::new(handle) })
    }

    /// Whether a clone of this session, or a reply of it, exists.
    pub(crate) fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.handle) > 1
    }

    /// What its engine's thread does.
    pub(crate) fn phase(&self) -> EnginePhase {
        self.handle.readiness.phase()
    }

    /// Waits until the model is loaded.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?.start_in_background(|_| {})?;
    /// println!("loaded in {:?}", session.wait_until_ready()?.whole);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When loading failed, see [`Plan::load`], or the engine has ended.
    pub fn wait_until_ready(&self) -> Result<LoadTimes> {
        self.handle.readiness.wait()
    }

    /// As [`Session::wait_until_ready`], for async programs.
    ///
    /// ```
    /// # async fn load(plan: girih::Plan) -> girih::Result<()> {
    /// let session = plan.start_in_background(|_| {})?;
    /// println!("loaded in {:?}", session.ready().await?.whole);
    /// # Ok(())
    /// # }
    /// ```
    pub fn ready(&self) -> WhenReady {
        WhenReady::new(Arc::clone(&self.handle.readiness))
    }

    /// Whether the engine took requests and has ended, which only a fault of girih makes it do: its message
    /// is on standard error. Requests fail from then on; load the model again.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// assert!(!session.has_ended());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn has_ended(&self) -> bool {
        matches!(self.phase(), EnginePhase::Ended(_))
    }

    /// The model.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// assert_eq!(session.model().name(), "stories260k");
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The name of the arithmetic, as [`Plan::arithmetic`].
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// assert!(session.arithmetic().contains("-f32-kv-"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn arithmetic(&self) -> &str {
        &self.arithmetic
    }

    /// What its engine does: the requests that run and wait, and the KV cache that they hold.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// assert!(session.activity().blocks > 0);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn activity(&self) -> EngineActivity {
        let unread = self.handle.unread_replies.load(Ordering::Relaxed);
        EngineActivity { unread, ..self.handle.activity.get() }
    }

    /// The time for which a request of `tenant` would wait now until it begins: an estimate from the
    /// replies that run, the mean time of the last ones, and the requests before it. It takes them
    /// for requests of one priority whose prompts are not in the prefix cache.
    ///
    /// ```
    /// use girih::Tenant;
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// assert!(session.expected_wait(&Tenant::default()).is_zero());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn expected_wait(&self, tenant: &Tenant) -> Duration {
        self.handle.places.expected_wait(tenant)
    }

    /// The limits on one request. `waiting` does not apply here: see
    /// [`RunOptions::waiting`](crate::RunOptions::waiting).
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// assert_eq!(session.limits().context, 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// Queues a request and returns its reply, whose events can be read at once. The request is
    /// checked on this thread, so that one that is refused is refused without delay.
    ///
    /// ```
    /// use girih::{ErrorKind, Request};
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let story = session.generate(Request::new("Once upon a time").max_tokens(20))?.text()?;
    /// let error = session.generate(Request::new("Once").max_tokens(100_000)).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::TooLong);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::QueueFull`] if no place is free, and [`ErrorKind::WaitTooLong`] if the request is
    /// expected to wait too long, which is found out first,
    /// [`ErrorKind::TooLong`] if prompt and reply exceed the context, [`ErrorKind::Refused`] if a setting is invalid or the model has no chat
    /// template for a conversation, [`ErrorKind::DeviceFailed`] if the engine has ended.
    pub fn generate(&self, request: Request) -> Result<Reply> {
        let mut replies = self.generate_several(request, 1)?;
        Ok(replies.pop().expect("one reply was asked for"))
    }

    /// Queues a request for several replies and returns them in order (`n` of the OpenAI API): 1 to
    /// 128, and at most [`RunOptions::sequences`](crate::RunOptions::sequences) +
    /// [`RunOptions::waiting`](crate::RunOptions::waiting). The seed of each is one more than that of
    /// the reply before it, so each is the reply to the request with that seed. Replies that begin
    /// after the prefill of the first one reuse its prefix.
    ///
    /// ```
    /// use girih::{Request, Sampling};
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let sampling = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
    /// let request = Request::new("Once upon a time").sampling(sampling).max_tokens(20);
    /// let stories = session.generate_several(request, 3)?;
    /// assert_eq!(stories.len(), 3);
    /// for story in stories {
    ///     println!("{}", story.text()?);
    /// }
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::generate`], and when several replies are asked for with a constraint or a
    /// drafter of the caller's. Then none is queued.
    pub fn generate_several(&self, request: Request, count: u32) -> Result<Vec<Reply>> {
        request.check_count(count)?;
        // Before the work of checking: a full queue must cost little.
        let own = request.queue_limit();
        let max_wait = own.or(self.handle.places.max_wait());
        let places = self.handle.places.take(request.owner(), count, max_wait)?;
        let mut prepared =
            request.prepare(&self.model, &self.limits, self.output_rows, count, self.tower.as_deref())?;
        if own.is_none()
            && let Some(first) = prepared.first_mut()
        {
            // The estimate may err, and a late refusal is of little use: the reply is let in soon.
            first.request.time_limits.queue = max_wait.map(|max| max.saturating_mul(2));
        }
        // A reply that is dropped is cancelled.
        places.into_iter().zip(prepared).map(|(place, request)| self.handle.submit(place, request)).collect()
    }

    /// Checks a request as [`Session::generate`] does, and returns its prompt instead of a reply. It takes no place and
    /// does not wait until the model is loaded.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let rendered = session.render(girih::Request::new("Once upon a time"))?;
    /// assert_eq!(session.model().detokenize(&rendered.tokens)?, "Once upon a time");
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::generate`], but for those of places and of the engine.
    pub fn render(&self, request: Request) -> Result<RenderedPrompt> {
        let checked =
            request.checked(&self.model, &self.limits, self.output_rows, 1, self.tower.as_deref())?;
        Ok(RenderedPrompt::of(&checked.request, self.limits.context))
    }

    /// Runs a request and calls `each` with its events on this thread; a break cancels it.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    ///
    /// use girih::Request;
    ///
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let mut story = String::new();
    /// session.for_each_event(Request::new("Once upon a time"), |event| {
    ///     story += event.text();
    ///     if story.contains('.') { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    /// })?;
    /// assert!(story.contains('.'));
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::generate`], and when the request fails.
    pub fn for_each_event(
        &self,
        request: Request,
        mut each: impl FnMut(&Event) -> ControlFlow<()>,
    ) -> Result<()> {
        for event in self.generate(request)? {
            if each(&event?).is_break() {
                break; // Dropping the reply cancels it.
            }
        }
        Ok(())
    }

    /// Returns the logits of the token that follows `tokens`, one for each token of the
    /// vocabulary.
    ///
    /// ```
    /// # let session = girih::Model::open("stories260k")?.start()?;
    /// let logits = session.logits(&session.model().tokenize("Once upon a")?)?;
    /// let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).expect("there are 512").0;
    /// assert_eq!(session.model().detokenize(&[best])?, "time");
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Session::generate`], and when the model fails.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>> {
        for event in self.generate(Request::for_logits(tokens))? {
            if let Event::Logits(logits) = event? {
                return Ok(logits);
            }
        }
        Err(Error::with_kind(ErrorKind::Cancelled, "the request ended before its logits were computed"))
    }
}
