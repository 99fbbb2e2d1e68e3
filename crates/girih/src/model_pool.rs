//! Several models in one process under one memory budget: loaded on demand, unloaded when idle.
//!
//! There are two locks. `state` is held for moments; `loading` is held while a model is opened and
//! planned, others are unloaded for it, and its thread is started. So loads are planned one after
//! another, each against what the others left, and models that are loaded answer meanwhile.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use girih_engine::Tenant;
use girih_graph::{Error, ErrorKind, Result};

use crate::activity::EngineActivity;
use crate::model::Model;
use crate::open_options::OpenOptions;
use crate::run_options::RunOptions;
use crate::session::Session;

/// Several models in one process under one memory budget. A model is loaded when it is first
/// asked for; if it does not fit, models that nobody uses are unloaded for it, the least recently
/// used first. A model is in use as long as a clone of its session or a reply of it exists, and is
/// then never unloaded. Encoders are refused.
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
}

/// A model of the pool.
struct PoolEntry {
    /// The name or path by which it is opened.
    source: String,
    open_options: OpenOptions,
    run_options: RunOptions,
    loaded: Option<PooledModel>,
}

struct PooledModel {
    session: Session,
    bytes: u64,
    last_used: Duration,
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
        ModelPool { budget, loading: Mutex::new(()), state: Mutex::new(BTreeMap::new()) }
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
        state.insert(name, PoolEntry { source: source.into(), open_options, run_options, loaded: None });
        Ok(())
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
    /// [`ErrorKind::NotFound`] if the pool has no such model, [`ErrorKind::OutOfMemory`] if it
    /// exceeds the budget, [`ErrorKind::QueueFull`] if it exceeds what models in use leave of it,
    /// and those of [`Model::open_with`], [`Model::plan`] and [`Plan::start`](crate::Plan::start).
    /// After an error of loading, the next call loads again.
    pub fn session(&self, name: &str, now: Duration) -> Result<Session> {
        let session = match self.loaded_session(name, now)? {
            Some(session) => session,
            None => self.begin_load(name, now)?,
        };
        if let Err(error) = session.wait_until_ready() {
            self.forget(name, &session);
            return Err(error.of(name));
        }
        Ok(session)
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
        let _loading = lock(&self.loading);
        let mut state = self.state();
        let mut unloaded = Vec::new();
        for (name, entry) in state.iter_mut() {
            let Some(loaded) = &mut entry.loaded else { continue };
            if loaded.session.is_in_use() {
                loaded.last_used = loaded.last_used.max(now);
            } else if now.saturating_sub(loaded.last_used) >= idle {
                unloaded.extend(entry.loaded.take().map(|loaded| (name.clone(), loaded)));
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
        let loaded = state.iter().filter_map(|(name, entry)| Some((name, entry.loaded.as_ref()?)));
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

    /// The session of a model if it is loaded or being loaded.
    fn loaded_session(&self, name: &str, now: Duration) -> Result<Option<Session>> {
        let mut state = self.state();
        let Some(entry) = state.get_mut(name) else {
            let names: Vec<&str> = state.keys().map(String::as_str).collect();
            let sentence = format!("the pool has no model {name:?}; it has {}", names.join(", "));
            return Err(Error::with_kind(ErrorKind::NotFound, sentence));
        };
        Ok(entry.loaded.as_mut().map(|loaded| {
            loaded.last_used = loaded.last_used.max(now);
            loaded.session.clone()
        }))
    }

    /// Plans a model, unloads others for it, and begins to load it.
    fn begin_load(&self, name: &str, now: Duration) -> Result<Session> {
        let _loading = lock(&self.loading);
        // Another request may have begun to load it.
        if let Some(session) = self.loaded_session(name, now)? {
            return Ok(session);
        }
        let (source, open_options, run_options) = {
            let state = self.state();
            let entry = &state[name]; // models are never removed
            (entry.source.clone(), entry.open_options.clone(), entry.run_options.clone())
        };
        let plan = Model::open_with(&source, &open_options)
            .and_then(|model| model.plan(run_options))
            .map_err(|error| error.of(name))?;
        let bytes = plan.memory().total();
        // Unloaded before the new model takes memory.
        drop(self.make_room(name, bytes)?);
        let session = plan.start_in_background(|_| {}).map_err(|error| error.of(name))?;
        if let Some(entry) = self.state().get_mut(name) {
            entry.loaded = Some(PooledModel { session: session.clone(), bytes, last_used: now });
        }
        Ok(session)
    }

    /// Removes the least recently used models that nobody uses until `bytes` fit, and returns them.
    ///
    /// # Errors
    /// When they cannot fit; nothing is removed then.
    fn make_room(&self, name: &str, bytes: u64) -> Result<Vec<PooledModel>> {
        let budget = self.budget;
        if bytes > budget {
            let sentence =
                format!("the model needs {bytes} bytes, but the budget of all models is {budget}: raise it");
            return Err(Error::with_kind(ErrorKind::OutOfMemory, sentence).of(name));
        }
        let mut state = self.state();
        let loaded = || state.iter().filter_map(|(name, entry)| Some((name, entry.loaded.as_ref()?)));
        let used: u64 = loaded().map(|(_, loaded)| loaded.bytes).sum();
        let mut idle: Vec<(Duration, String, u64)> = loaded()
            .filter(|(_, loaded)| !loaded.session.is_in_use())
            .map(|(name, loaded)| (loaded.last_used, name.clone(), loaded.bytes))
            .collect();
        idle.sort_unstable();
        let mut missing = (used + bytes).saturating_sub(budget);
        let mut victims = Vec::new();
        for (_, name, bytes) in idle {
            if missing == 0 {
                break;
            }
            missing = missing.saturating_sub(bytes);
            victims.push(name);
        }
        if missing > 0 {
            let in_use = loaded().filter(|(_, loaded)| loaded.session.is_in_use());
            let names: Vec<&str> = in_use.map(|(name, _)| name.as_str()).collect();
            let sentence = format!(
                "the model needs {bytes} bytes, {missing} more than can be freed of the budget of {budget}; in use \
                 are {}: try again later",
                names.join(", ")
            );
            return Err(Error::with_kind(ErrorKind::QueueFull, sentence).of(name));
        }
        Ok(victims.iter().filter_map(|victim| state.get_mut(victim)?.loaded.take()).collect())
    }

    /// Removes a session that could not be loaded.
    fn forget(&self, name: &str, failed: &Session) {
        let mut state = self.state();
        let loaded = state.get_mut(name).map(|entry| &mut entry.loaded);
        let failed = loaded.and_then(|loaded| loaded.take_if(|loaded| loaded.session.is_same(failed)));
        drop(state);
        drop(failed);
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<String, PoolEntry>> {
        lock(&self.state)
    }
}

/// No code leaves a state half changed when it panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
