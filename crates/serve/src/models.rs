//! The models that are served: their names, and their sessions in a pool.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use girih::{ErrorKind, LoadedModel, ModelPool, Result, Session};

use crate::error::ApiError;
use crate::options::{ServeOptions, ServedModel};

/// The models that are served.
pub struct ServedModels {
    pool: ModelPool,
    models: Vec<ServedModel>,
    started: Instant,
    created: u64,
}

impl ServedModels {
    /// The models of the options; nothing is opened yet.
    ///
    /// # Errors
    /// When there is no model, or two have the same name.
    pub fn new(options: &ServeOptions) -> Result<ServedModels> {
        if options.models.is_empty() {
            return Err(girih::Error::with_kind(ErrorKind::Refused, "no model is served; name one"));
        }
        let pool = ModelPool::new(options.memory);
        for ServedModel { name, source, open_options, run_options } in &options.models {
            pool.add(name, source, open_options.clone(), run_options.clone())?;
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(ServedModels {
            pool,
            models: options.models.clone(),
            started: Instant::now(),
            created: since_1970.as_secs(),
        })
    }

    /// The models, in the order of the options.
    pub fn list(&self) -> &[ServedModel] {
        &self.models
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

    /// The session of a model. Loads it if it is not loaded, and returns when it is ready: not
    /// for a thread that serves connections.
    ///
    /// # Errors
    /// As [`ModelPool::session`].
    pub fn session(&self, name: &str) -> Result<Session> {
        self.pool.session(name, self.now())
    }

    /// Loads the models in order, as long as they fit into memory together.
    ///
    /// # Errors
    /// When a model cannot be opened or loaded. One that does not fit beside those before it is
    /// loaded when it is asked for.
    pub fn load_all(&self) -> Result<()> {
        let mut sessions = Vec::new();
        for model in &self.models {
            match self.session(&model.name) {
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

    /// Unloads models that were not used for this time, and returns their names.
    pub fn unload_idle(&self, idle: Duration) -> Vec<String> {
        self.pool.unload_idle(self.now(), idle)
    }

    /// The time since the start.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}
