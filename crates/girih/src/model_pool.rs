//! Several models in one process under one memory budget: loaded on demand, unloaded when idle.
//!
//! There are two locks. `state` is held for moments; `loading` is held while a model is opened and
//! planned, others are unloaded for it, and its thread is started. So loads are planned one after
//! another, each against what the others left, and models that are loaded answer meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use girih_engine::Tenant;
use girih_graph::{Error, ErrorKind, Result};

use crate::activity::EngineActivity;
use crate::model::Model;
use crate::open_options::OpenOptions;
use crate::pool_entry::{OpenedEntry, PATIENCE, PoolEntry, PooledModel};
use crate::progress::Progress;
use crate::run_options::RunOptions;
use crate::session::Session;

/// Several models in one process under one memory budget. A model is loaded when it is first
/// asked for; if it does not fit, models that nobody uses are unloaded for it, the least recently
/// used first. A model is in use as long as a clone of its session or a reply of it exists, and is
/// then never unloaded. Encoders are refused.
///
/// A model that was asked for again and again for five seconds, and for which models in use leave no room, is let in:
/// from then on the pool refuses requests for those models, and unloads them when those that it admitted
/// have ended. A model that was let in so has at least five seconds itself.
///
/// If an engine ends by a fault, the model is loaded again for the next request, after a pause of a second that doubles
/// with each further fault, up to a minute.
///
/// There is no clock: `now` is the time since any fixed moment, such as the start of the program.
///
/// ```
/// use std::time::Duration;
///
/// use girih::{Model, ModelPool, OpenOptions, Request, RunOptions};
///
/// let needed = Model::open("stories260k")?.plan(RunOptions::default())?.memory().total();
/// let pool = ModelPool::new(needed); // room for one of the two
/// pool.add("lily", "stories260k", OpenOptions::default(), RunOptions::default())?;
/// pool.add("tom", "stories260k", OpenOptions::default(), RunOptions::default())?;
///
/// let seconds = Duration::from_secs;
/// let story = pool.session("lily", seconds(1))?.generate(Request::new("Lily").max_tokens(8))?.text()?;
/// let other = pool.session("tom", seconds(2))?.generate(Request::new("Lily").max_tokens(8))?.text()?;
/// assert_eq!(story, other);
/// assert_eq!(pool.loaded()[0].name, "tom");
/// assert_eq!(pool.unload_idle(seconds(60), seconds(30)), ["tom"]);
/// # Ok::<(), girih::Error>(())
/// ```
pub struct ModelPool {
    budget: u64,
    loading: Mutex<()>,
    state: Mutex<BTreeMap<String, PoolEntry>>,
    /// What is told each note of a model.
    notice: Arc<dyn Fn(&str) + Send + Sync>,
}

/// A model that is loaded.
///
/// ```
/// use girih::{ModelPool, OpenOptions, RunOptions};
///
/// let pool = ModelPool::new(1 << 30);
/// pool.add("lily", "stories260k", OpenOptions::default(), RunOptions::default())?;
/// let session = pool.session("lily", std::time::Duration::from_secs(1))?;
/// assert!(pool.loaded()[0].is_in_use);
/// # Ok::<(), girih::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedModel {
    /// Its name in the pool.
    pub name: String,
    /// The bytes of its memory plan.
    pub bytes: u64,
    /// When it was last asked for, or last seen in use.
    pub last_used: Duration,
    /// Whether a session or a reply of it exists outside the pool.
    pub is_in_use: bool,
    /// What its engine does.
    pub activity: EngineActivity,
    /// The time for which a request of a tenant that has none in the queue would wait
    /// ([`Session::expected_wait`]).
    pub expected_wait: Duration,
}

/// The faults of a model's engines.
///
/// ```
/// assert!(girih::ModelPool::new(8 << 30).engine_faults().is_empty());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineFaults {
    /// The model's name in the pool.
    pub name: String,
    /// How many of its engines have ended by a fault.
    pub count: u64,
    /// Whether no engine of it is ready since the last fault, though the model would fit.
    pub is_down: bool,
}

/// The maximum number of models that are kept open though they are not loaded; a tokenizer of 128,000 tokens takes some
/// 40 MB.
const MAX_OPENED: usize = 4;

/// Who wants a model to be loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LoadReason {
    /// A request, for which models in use make room in the end.
    Request,
    /// The pool itself, after a fault.
    Fault,
}

/// The models that have to go so that one fits.
struct NeededRoom {
    /// Those that nobody uses, the least recently used first.
    idle: Vec<String>,
    /// Those in use, the one that was loaded first before the others.
    in_use: Vec<String>,
    /// The bytes that those in use have to free.
    missing: u64,
}

impl fmt::Debug for ModelPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelPool").field("budget", &self.budget).field("loaded", &self.loaded()).finish()
    }
}

impl ModelPool {
    /// A pool whose loaded models may take `budget` bytes together, as their plans count them
    /// ([`Plan::memory`](crate::Plan::memory)).
    ///
    /// ```
    /// let pool = girih::ModelPool::new(8 << 30);
    /// assert!(pool.loaded().is_empty());
    /// ```
    pub fn new(budget: u64) -> ModelPool {
        ModelPool {
            budget,
            loading: Mutex::new(()),
            state: Mutex::new(BTreeMap::new()),
            notice: Arc::new(|_| {}),
        }
    }

    /// This pool, which calls `notice` with each note of a model ([`Progress::Note`]) behind the model's name, on any thread.
    ///
    /// ```
    /// let pool = girih::ModelPool::new(8 << 30).with_notice(|note| eprintln!("{note}"));
    /// assert!(pool.loaded().is_empty());
    /// ```
    pub fn with_notice(self, notice: impl Fn(&str) + Send + Sync + 'static) -> ModelPool {
        ModelPool { notice: Arc::new(notice), ..self }
    }

    /// Adds a model under a name. `source` is what [`Model::open_with`] takes; nothing is opened
    /// yet.
    ///
    /// ```
    /// use girih::{ModelPool, OpenOptions, RunOptions};
    ///
    /// let pool = ModelPool::new(8 << 30);
    /// pool.add("default", "models/llama-3.2-1b-instruct", OpenOptions::default(), RunOptions::default())?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if the name is taken.
    pub fn add(
        &self,
        name: impl Into<String>,
        source: impl Into<String>,
        open_options: OpenOptions,
        run_options: RunOptions,
    ) -> Result<()> {
        let name = name.into();
        let mut state = self.state();
        if state.contains_key(&name) {
            let sentence = format!("the pool already has a model {name:?}; choose another name");
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        state.insert(name, PoolEntry::new(source.into(), open_options, run_options));
        Ok(())
    }

    /// Removes a model, and unloads it; returns whether the pool does not have it any more. One that is in use stays.
    ///
    /// ```
    /// use girih::{ModelPool, OpenOptions, RunOptions};
    ///
    /// let pool = ModelPool::new(1 << 30);
    /// pool.add("lily", "stories260k", OpenOptions::default(), RunOptions::default())?;
    /// let session = pool.session("lily", std::time::Duration::from_secs(1))?;
    /// assert!(!pool.remove("lily"));
    /// drop(session);
    /// assert!(pool.remove("lily"));
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn remove(&self, name: &str) -> bool {
        let _loading = lock(&self.loading);
        let mut state = self.state();
        let is_used = state.get(name).and_then(PoolEntry::live).is_some_and(|it| it.session.is_in_use());
        let removed = if is_used { None } else { state.remove(name) };
        drop(state);
        // Ending an engine's thread takes time, in which other models answer.
        drop(removed);
        !is_used
    }

    /// The session of a model. Loads it if it is not loaded, and returns when it is ready.
    /// Requests for a model that is being loaded wait for the same load.
    ///
    /// ```
    /// use girih::{ErrorKind, ModelPool};
    ///
    /// let error = ModelPool::new(8 << 30).session("lily", std::time::Duration::ZERO).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::NotFound);
    /// ```
    ///
    /// # Errors
    /// As [`ModelPool::begin`] and [`Session::wait_until_ready`]. After an error of loading, the next call
    /// loads again.
    pub fn session(&self, name: &str, now: Duration) -> Result<Session> {
        let session = self.begin(name, now)?;
        session.wait_until_ready().map_err(|error| error.of(name))?;
        Ok(session)
    }

    /// As [`ModelPool::session`], but returns as soon as the model is being loaded
    /// ([`Session::ready`]). Planning a model, and unloading others for it, takes time.
    ///
    /// ```
    /// use girih::{ModelPool, OpenOptions, RunOptions};
    ///
    /// let pool = ModelPool::new(1 << 30);
    /// pool.add("lily", "stories260k", OpenOptions::default(), RunOptions::default())?;
    /// let session = pool.begin("lily", std::time::Duration::from_secs(1))?;
    /// session.wait_until_ready()?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the pool has no such model, [`ErrorKind::OutOfMemory`] if it
    /// exceeds the budget, [`ErrorKind::QueueFull`] if it exceeds what models in use leave of it or makes room for
    /// another one, [`ErrorKind::DeviceFailed`] in the pause after its engine has ended, and those of
    /// [`Model::open_with`], [`Model::plan`] and [`Plan::start_in_background`](crate::Plan::start_in_background).
    pub fn begin(&self, name: &str, now: Duration) -> Result<Session> {
        match self.begun(name, now)? {
            Some(session) => Ok(session),
            None => self.load(name, now, LoadReason::Request),
        }
    }

    /// As [`ModelPool::begin`], but never waits: `None` if the model has to be loaded.
    ///
    /// ```
    /// use girih::{ModelPool, OpenOptions, RunOptions};
    ///
    /// let pool = ModelPool::new(1 << 30);
    /// pool.add("lily", "stories260k", OpenOptions::default(), RunOptions::default())?;
    /// assert!(pool.begun("lily", std::time::Duration::from_secs(1))?.is_none());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::QueueFull`] and [`ErrorKind::DeviceFailed`] as
    /// [`ModelPool::begin`].
    pub fn begun(&self, name: &str, now: Duration) -> Result<Option<Session>> {
        self.find(name, now, LoadReason::Request)
    }

    /// Begins to load the models again whose engine has ended by a fault, when their pause is over. One that does not
    /// fit beside models in use is loaded when it is asked for.
    ///
    /// ```
    /// let pool = girih::ModelPool::new(8 << 30);
    /// let start = std::time::Instant::now();
    /// // Every second:
    /// pool.restart_engines(start.elapsed());
    /// ```
    pub fn restart_engines(&self, now: Duration) {
        for EngineFaults { name, .. } in self.engine_faults().into_iter().filter(|faults| faults.is_down) {
            let Err(error) = self.load(&name, now, LoadReason::Fault) else { continue };
            let mut state = self.state();
            let Some(entry) = state.get_mut(&name) else { continue };
            if error.kind() == ErrorKind::QueueFull {
                entry.faults.is_down = false;
            } else if entry.pause_left(now).is_none() {
                entry.faults.pause(now);
            }
        }
    }

    /// The faults of all models' engines, by name.
    ///
    /// ```
    /// let pool = girih::ModelPool::new(8 << 30);
    /// assert!(pool.engine_faults().iter().all(|faults| !faults.is_down));
    /// ```
    pub fn engine_faults(&self) -> Vec<EngineFaults> {
        let state = self.state();
        let faults = state.iter().map(|(name, entry)| EngineFaults {
            name: name.clone(),
            count: entry.engine_faults(),
            is_down: entry.is_down(),
        });
        faults.collect()
    }

    /// Unloads the models that have not been in use for `idle`, and returns their names. A model
    /// that is in use counts as used now.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let pool = girih::ModelPool::new(8 << 30);
    /// let start = std::time::Instant::now();
    /// // Every few seconds:
    /// let unloaded = pool.unload_idle(start.elapsed(), Duration::from_secs(300));
    /// assert!(unloaded.is_empty());
    /// ```
    pub fn unload_idle(&self, now: Duration, idle: Duration) -> Vec<String> {
        self.unload_idle_by(now, |_| Some(idle))
    }

    /// As [`ModelPool::unload_idle`], with a time for each model by its name; `None` keeps it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let pool = girih::ModelPool::new(8 << 30);
    /// let idle = |name: &str| (name != "lily").then_some(Duration::from_secs(300));
    /// assert!(pool.unload_idle_by(Duration::from_secs(1), idle).is_empty());
    /// ```
    pub fn unload_idle_by(&self, now: Duration, idle: impl Fn(&str) -> Option<Duration>) -> Vec<String> {
        let _loading = lock(&self.loading);
        let mut state = self.state();
        let mut unloaded = Vec::new();
        for (name, entry) in state.iter_mut() {
            let Some(loaded) = &mut entry.loaded else { continue };
            if loaded.session.is_in_use() {
                loaded.last_used = loaded.last_used.max(now);
            } else if idle(name).is_some_and(|idle| now.saturating_sub(loaded.last_used) >= idle)
                && entry.live().is_some()
            {
                unloaded.extend(entry.take_unused().map(|loaded| (name.clone(), loaded)));
            }
        }
        drop(state);
        // Ending an engine's thread takes time, in which other models answer.
        unloaded.into_iter().map(|(name, _)| name).collect()
    }

    /// The models that are loaded or being loaded, by name.
    ///
    /// ```
    /// let pool = girih::ModelPool::new(8 << 30);
    /// let used: u64 = pool.loaded().iter().map(|model| model.bytes).sum();
    /// assert!(used <= pool.budget());
    /// ```
    pub fn loaded(&self) -> Vec<LoadedModel> {
        let state = self.state();
        let loaded = state.iter().filter_map(|(name, entry)| Some((name, entry.live()?)));
        loaded
            .map(|(name, loaded)| LoadedModel {
                name: name.clone(),
                bytes: loaded.bytes,
                last_used: loaded.last_used,
                is_in_use: loaded.session.is_in_use(),
                activity: loaded.session.activity(),
                expected_wait: loaded.session.expected_wait(&Tenant::default()),
            })
            .collect()
    }

    /// The bytes that the loaded models may take together.
    ///
    /// ```
    /// assert_eq!(girih::ModelPool::new(8 << 30).budget(), 8 << 30);
    /// ```
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// The session of a model if it is loaded or being loaded; `None` if it may be loaded.
    ///
    /// # Errors
    /// As [`ModelPool::begun`].
    fn find(&self, name: &str, now: Duration, reason: LoadReason) -> Result<Option<Session>> {
        let mut state = self.state();
        let Some(entry) = state.get(name) else {
            return Err(unknown(&state, name));
        };
        if let Some(left) = entry.pause_left(now) {
            let sentence = format!(
                "its engine has ended by a fault and is started again in {:.1} s: try again then",
                left.as_secs_f64()
            );
            return Err(Error::with_kind(ErrorKind::DeviceFailed, sentence).of(name));
        }
        if let Some(ready) = entry.live().and_then(|loaded| loaded.ready)
            && let Some((other, _)) = state.iter().find(|(_, other)| other.needs_room_of(name, ready, now))
        {
            let seconds = PATIENCE.as_secs();
            let sentence =
                format!("makes room for {other}, which has waited for {seconds} s: try again later");
            return Err(Error::with_kind(ErrorKind::QueueFull, sentence).of(name));
        }
        let is_loaded = entry.live().is_some();
        if let (false, Some(bytes)) = (is_loaded, entry.bytes) {
            self.check_room(&mut state, name, bytes, now, reason)?;
        }
        Ok(state.get_mut(name).and_then(|entry| entry.used(now)))
    }

    /// Plans a model, unloads others for it, and begins to load it.
    fn load(&self, name: &str, now: Duration, reason: LoadReason) -> Result<Session> {
        let _loading = lock(&self.loading);
        // Their threads end here, and then their memory is free.
        drop(self.take_ended(now));
        // Another request may have begun to load it.
        if let Some(session) = self.find(name, now, reason)? {
            return Ok(session);
        }
        let (source, open_options, run_options, opened) = {
            let state = self.state();
            let Some(entry) = state.get(name) else { return Err(unknown(&state, name)) };
            let opened = entry.opened.as_ref().map(|opened| opened.model.clone());
            (entry.source.clone(), entry.open_options.clone(), entry.run_options.clone(), opened)
        };
        let model = match opened.filter(Model::is_current) {
            Some(model) => model,
            None => Model::open_with(&source, &open_options).map_err(|error| error.of(name))?,
        };
        let plan = model.plan(run_options).map_err(|error| error.of(name))?;
        let bytes = plan.memory().total();
        // Unloaded before the new model takes memory.
        drop(self.make_room(name, bytes, now, reason)?);
        let (notice, of_model) = (Arc::clone(&self.notice), name.to_owned());
        let session = plan.start_in_background(move |progress| {
            if let Progress::Note(sentence) = progress {
                notice(&format!("{of_model}: {sentence}"));
            }
        });
        let session = session.map_err(|error| error.of(name))?;
        let mut state = self.state();
        if let Some(entry) = state.get_mut(name) {
            entry.opened = Some(OpenedEntry { model, loaded: now });
            let (begun, session) = (now, session.clone());
            entry.loaded = Some(PooledModel { session, bytes, begun, ready: None, last_used: now });
            entry.wait = None;
        }
        forget_opened(&mut state);
        drop(state);
        Ok(session)
    }

    /// Removes the sessions that cannot be used any more, and returns them.
    fn take_ended(&self, now: Duration) -> Vec<PooledModel> {
        self.state().values_mut().filter_map(|entry| entry.take_ended(now)).collect()
    }

    /// Removes the least recently used models that nobody uses until `bytes` fit, and returns them.
    ///
    /// # Errors
    /// When they cannot fit; nothing is removed then.
    fn make_room(
        &self,
        name: &str,
        bytes: u64,
        now: Duration,
        reason: LoadReason,
    ) -> Result<Vec<PooledModel>> {
        let budget = self.budget;
        if bytes > budget {
            let sentence =
                format!("the model needs {bytes} bytes, but the budget of all models is {budget}: raise it");
            return Err(Error::with_kind(ErrorKind::OutOfMemory, sentence).of(name));
        }
        let mut state = self.state();
        let NeededRoom { idle, .. } = self.check_room(&mut state, name, bytes, now, reason)?;
        Ok(idle.iter().filter_map(|victim| state.get_mut(victim)?.take_unused()).collect())
    }

    /// The models that have to go so that `bytes` of the model `name` fit.
    ///
    /// # Errors
    /// When one of them is in use. A request is remembered, so that they make room in the end.
    fn check_room(
        &self,
        state: &mut BTreeMap<String, PoolEntry>,
        name: &str,
        bytes: u64,
        now: Duration,
        reason: LoadReason,
    ) -> Result<NeededRoom> {
        let budget = self.budget;
        if let Some(entry) = state.get_mut(name) {
            entry.bytes = Some(bytes);
        }
        let room = needed_room(state, budget, bytes);
        let missing = room.missing;
        if missing == 0 {
            return Ok(room);
        }
        let in_use = state.iter().filter(|(_, entry)| entry.live().is_some_and(|it| it.session.is_in_use()));
        let names: Vec<&str> = in_use.map(|(name, _)| name.as_str()).collect();
        let sentence = format!(
            "the model needs {bytes} bytes, {missing} more than can be freed of the budget of {budget}; in use \
             are {}: try again later",
            names.join(", ")
        );
        if let (LoadReason::Request, Some(entry)) = (reason, state.get_mut(name)) {
            entry.note_refusal(room.in_use, now);
        }
        Err(Error::with_kind(ErrorKind::QueueFull, sentence).of(name))
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<String, PoolEntry>> {
        lock(&self.state)
    }
}

/// Closes models that are not loaded, those of the earliest loads first, until few are open.
fn forget_opened(state: &mut BTreeMap<String, PoolEntry>) {
    let idle = |entry: &PoolEntry| Some(entry.opened.as_ref().filter(|_| entry.live().is_none())?.loaded);
    let mut open: Vec<(Duration, String)> =
        state.iter().filter_map(|(name, entry)| Some((idle(entry)?, name.clone()))).collect();
    open.sort_unstable();
    let count = open.len().saturating_sub(MAX_OPENED);
    for (_, name) in open.into_iter().take(count) {
        if let Some(entry) = state.get_mut(&name) {
            entry.opened = None;
        }
    }
}

/// The error of a name that no model has.
fn unknown(state: &BTreeMap<String, PoolEntry>, name: &str) -> Error {
    let names: Vec<&str> = state.keys().map(String::as_str).collect();
    let sentence = format!("the pool has no model {name:?}; it has {}", names.join(", "));
    Error::with_kind(ErrorKind::NotFound, sentence)
}

/// The models of a pool with this budget that have to go so that `bytes` more fit.
fn needed_room(state: &BTreeMap<String, PoolEntry>, budget: u64, bytes: u64) -> NeededRoom {
    let loaded = || state.iter().filter_map(|(name, entry)| Some((name, entry.live()?)));
    let used: u64 = loaded().map(|(_, loaded)| loaded.bytes).sum();
    let mut missing = used.saturating_add(bytes).saturating_sub(budget);
    // Names of the first ones whose bytes suffice, and the bytes that are missing then.
    let mut first = |mut candidates: Vec<(Duration, &String, u64)>| {
        candidates.sort_unstable();
        let mut names = Vec::new();
        for (_, name, bytes) in candidates {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(bytes);
            names.push(name.clone());
        }
        (names, missing)
    };
    let (used, unused): (Vec<_>, Vec<_>) = loaded().partition(|(_, loaded)| loaded.session.is_in_use());
    let unused = unused.into_iter().map(|(name, loaded)| (loaded.last_used, name, loaded.bytes));
    let (idle, missing) = first(unused.collect());
    let used = used.into_iter().map(|(name, loaded)| (loaded.begun, name, loaded.bytes));
    let (in_use, _) = first(used.collect());
    NeededRoom { idle, in_use, missing }
}

/// No code leaves a state half changed when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
