//! The models that are served: their names, their sessions in a pool, and encoders.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use girih::{EngineFaults, ErrorKind, LoadedModel, Model, ModelPool, Result, Session};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};

use crate::calendar::since_1970;
use crate::encoders::ServedEncoder;
use crate::error::ApiError;
use crate::keep_alive::KeepAlive;
use crate::options::{ServeOptions, ServedModel};

/// The requests of a model that render templates or read grammars at once: one model's leave threads to the
/// others.
const TURNS: usize = 8;

/// The models that are served.
pub struct ServedModels {
    pool: ModelPool,
    /// Held while a load is begun, which the pool does one after another: requests that wait for it hold no thread.
    pub(crate) loading: Arc<Mutex<()>>,
    /// What is left of the turns of each model.
    turns: BTreeMap<String, Arc<Semaphore>>,
    models: Vec<ServedModel>,
    /// The models without their weights, in the same order.
    opened: Vec<Model>,
    /// Those that are encoders, by name.
    encoders: BTreeMap<String, ServedEncoder>,
    unload_idle: Option<Duration>,
    /// What requests ask for instead, by the model's name.
    keeps: std::sync::Mutex<BTreeMap<String, KeepAlive>>,
    started: Instant,
    created: u64,
}

impl ServedModels {
    /// The models of the options; nothing is loaded yet.
    ///
    /// # Errors
    /// When there is no model, two have the same name, one cannot be opened, or the encoders do not
    /// fit into memory together.
    pub fn new(options: &ServeOptions) -> Result<ServedModels> {
        let ServeOptions { models, memory, .. } = options;
        if models.is_empty() {
            return Err(girih::Error::with_kind(ErrorKind::Refused, "no model is served; name one"));
        }
        let open = |model: &ServedModel| {
            Model::open_with(&model.source, &model.open_options).map_err(|error| error.of(&model.name))
        };
        let opened = models.iter().map(open).collect::<Result<Vec<Model>>>()?;
        let mut encoders = BTreeMap::new();
        for (ServedModel { name, run_options, .. }, model) in models.iter().zip(&opened) {
            if model.files().facts.is_encoder() {
                let encoder = ServedEncoder::new(model.clone(), run_options.clone());
                encoders.insert(name.clone(), encoder.map_err(|error| error.of(name))?);
            }
        }
        // Encoders stay loaded; the pool has what they leave.
        let needed = encoders.values().fold(0, |sum: u64, encoder| sum.saturating_add(encoder.bytes()));
        if needed > *memory {
            let sentence = format!(
                "the encoders need {needed} bytes, but the budget of all models is {memory}: raise it"
            );
            return Err(girih::Error::with_kind(ErrorKind::OutOfMemory, sentence));
        }
        let pool = ModelPool::new(memory - needed);
        for ServedModel { name, source, open_options, run_options, .. } in models {
            pool.add(name, source, open_options.clone(), run_options.clone())?;
        }
        let turns = models.iter().map(|model| (model.name.clone(), Arc::new(Semaphore::new(TURNS))));
        Ok(ServedModels {
            pool,
            loading: Arc::default(),
            turns: turns.collect(),
            models: models.clone(),
            opened,
            encoders,
            unload_idle: options.unload_idle,
            keeps: std::sync::Mutex::default(),
            started: Instant::now(),
            created: since_1970().as_secs(),
        })
    }

    /// The models, in the order of the options.
    pub fn list(&self) -> &[ServedModel] {
        &self.models
    }

    /// The models with their files, without their weights.
    pub fn opened(&self) -> impl Iterator<Item = (&ServedModel, &Model)> {
        self.models.iter().zip(&self.opened)
    }

    /// The encoder of this name.
    ///
    /// # Errors
    /// When the model generates text.
    pub fn encoder(&self, name: &str) -> Result<&ServedEncoder, ApiError> {
        self.encoders.get(name).ok_or_else(|| {
            let message = format!("{name} generates text and defines no embeddings; use an encoder");
            ApiError::unsupported("model", message)
        })
    }

    /// The encoders, by name.
    pub fn encoders(&self) -> &BTreeMap<String, ServedEncoder> {
        &self.encoders
    }

    /// When the server was started, in seconds since 1970.
    pub fn created(&self) -> u64 {
        self.created
    }

    /// The model of this name; without a name, the first one.
    ///
    /// # Errors
    /// When no model has the name: status 404.
    pub fn find(&self, name: Option<&str>) -> Result<&ServedModel, ApiError> {
        let Some(name) = name else { return Ok(&self.models[0]) };
        self.models.iter().find(|model| model.name == name).ok_or_else(|| {
            let names: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
            let name: String = name.chars().take(100).collect();
            let message = format!("there is no model {name:?}; served are {}", names.join(", "));
            let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
            ApiError { param: Some("model".to_owned()), ..error }
        })
    }

    /// The session of a model if it is loaded or being loaded; `None` if it may be loaded.
    ///
    /// # Errors
    /// As [`ModelPool::begun`], and when the model is an encoder.
    pub(crate) fn begun(&self, name: &str) -> Result<Option<Session>> {
        self.check_is_no_encoder(name)?;
        self.pool.begun(name, self.now())
    }

    /// As [`ModelPool::begin`]: not for a thread that serves connections.
    ///
    /// # Errors
    /// As [`ModelPool::begin`], and when the model is an encoder.
    pub(crate) fn begin(&self, name: &str) -> Result<Session> {
        self.check_is_no_encoder(name)?;
        self.pool.begin(name, self.now())
    }

    /// Checks that a model generates text.
    ///
    /// # Errors
    /// When it is an encoder.
    pub(crate) fn check_is_no_encoder(&self, name: &str) -> Result<()> {
        if self.encoders.contains_key(name) {
            let sentence = format!("{name} is an encoder, which generates no text; use it for embeddings");
            return Err(girih::Error::with_kind(ErrorKind::Refused, sentence));
        }
        Ok(())
    }

    /// Waits for one of the turns of a model, which end with the result.
    pub(crate) async fn turn(&self, name: &str) -> Option<OwnedSemaphorePermit> {
        Arc::clone(self.turns.get(name)?).acquire_owned().await.ok()
    }

    /// The faults of the models' engines.
    pub fn engine_faults(&self) -> Vec<EngineFaults> {
        self.pool.engine_faults()
    }

    /// The models whose engine has ended by a fault, with no other one ready.
    pub fn down(&self) -> Vec<String> {
        let faults = self.engine_faults().into_iter();
        faults.filter(|faults| faults.is_down).map(|faults| faults.name).collect()
    }

    /// As [`ModelPool::restart_engines`]: not for a thread that serves connections.
    pub(crate) fn restart_engines(&self) {
        self.pool.restart_engines(self.now());
    }

    /// Loads the models in order, as long as they fit into memory together.
    ///
    /// # Errors
    /// When a model cannot be opened or loaded. One that does not fit beside those before it is
    /// loaded when it is asked for.
    pub fn load_all(&self) -> Result<()> {
        let mut sessions = Vec::new();
        for (name, encoder) in &self.encoders {
            encoder.load().map_err(|error| error.of(name))?;
        }
        let at_start =
            |model: &&ServedModel| !model.is_loaded_on_request && !self.encoders.contains_key(&model.name);
        for model in self.models.iter().filter(at_start) {
            match self.pool.session(&model.name, self.now()) {
                Ok(session) => sessions.push(session),
                Err(error) if error.kind() == ErrorKind::QueueFull => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The models that are loaded.
    pub fn loaded(&self) -> Vec<LoadedModel> {
        self.pool.loaded()
    }

    /// The time for which a request to a model would wait, as its engine expects; zero if it is not loaded.
    pub fn expected_wait(&self, name: &str) -> Duration {
        let loaded = self.pool.loaded().into_iter().find(|loaded| loaded.name == name);
        loaded.map_or(Duration::ZERO, |loaded| loaded.expected_wait)
    }

    /// When a loaded model is unloaded if nobody uses it from now on, since 1970; `None` if never.
    pub fn unloaded_at(&self, model: &LoadedModel) -> Option<Duration> {
        let last_used = if model.is_in_use { self.now() } else { model.last_used };
        let left = last_used.saturating_add(self.idle_of(&model.name)?).saturating_sub(self.now());
        Some(since_1970().saturating_add(left))
    }

    /// Sets how long a model stays loaded after its last request, instead of the server's own time.
    pub fn keep(&self, name: &str, keep: KeepAlive) {
        self.keeps().insert(name.to_owned(), keep);
    }

    /// The time after which a model that nobody uses is unloaded; `None` if it stays.
    fn idle_of(&self, name: &str) -> Option<Duration> {
        match self.keeps().get(name) {
            None => self.unload_idle,
            Some(KeepAlive::For(time)) => Some(*time),
            Some(KeepAlive::Forever) => None,
        }
    }

    /// Whether models are unloaded after a time.
    pub fn has_idle_times(&self) -> bool {
        self.unload_idle.is_some() || !self.keeps().is_empty()
    }

    fn keeps(&self) -> MutexGuard<'_, BTreeMap<String, KeepAlive>> {
        self.keeps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unloads the models whose time without a request is over, and returns their names.
    pub fn unload_idle(&self) -> Vec<String> {
        self.pool.unload_idle_by(self.now(), |name| self.idle_of(name))
    }

    /// The time since the start.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}
