//! The models that are served: their names, their sessions in a pool, and encoders. The models of a folder may
//! change while the server runs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use girih::{AdapterSource, EngineFaults, ErrorKind, LoadedModel, Model, ModelPool, Result, Session};
use tokio::sync::{Mutex, OwnedSemaphorePermit, RwLock as AsyncRwLock, Semaphore};

use crate::calendar::since_1970;
use crate::encoders::ServedEncoder;
use crate::error::ApiError;
use crate::images::{unread_image, unread_video};
use crate::keep_alive::KeepAlive;
use crate::kv_events::{KvEvents, KvEventsOptions};
use crate::model_folder::{FolderEntry, ModelFolder};
use crate::options::ServeOptions;
use crate::served_model::ServedModel;
use crate::turns::turn_within;

/// The requests of a model that render templates or read grammars at once: one model's leave threads to the
/// others.
const TURNS: usize = 8;

/// The names of models that a message lists.
const MAX_NAMES: usize = 32;

/// The models that are served.
pub struct ServedModels {
    pool: ModelPool,
    kv_events: Option<Arc<KvEvents>>,
    /// Held while a load is begun, which the pool does one after another: requests that wait for it hold no thread.
    pub(crate) loading: Arc<Mutex<()>>,
    /// Those that are served now.
    list: RwLock<Arc<Vec<Arc<ListedModel>>>>,
    /// Where models may be added and removed.
    folder: Option<Arc<dyn ModelFolder>>,
    /// Why the folder could not be read the last time; empty if it could.
    folder_fault: std::sync::Mutex<String>,
    /// Held while the folder is read.
    pub(crate) reading: Arc<Mutex<()>>,
    /// Models that were removed while requests used them: they are still in the pool.
    leaving: std::sync::Mutex<BTreeSet<String>>,
    /// Those that are encoders, by name.
    encoders: BTreeMap<String, ServedEncoder>,
    unload_idle: Option<Duration>,
    /// What requests ask for instead, by the model's name.
    keeps: std::sync::Mutex<BTreeMap<String, KeepAlive>>,
    notice: fn(&str),
    started: Instant,
    created: u64,
}

/// A model that is served, with its files, without its weights; or an adapter of one, which requests name like a model.
#[derive(Debug)]
pub struct ListedModel {
    served: ServedModel,
    /// The model.
    pub model: Model,
    /// The adapter that requests to it use. Its engine is that of the model.
    pub adapter: Option<String>,
    /// What is left of its turns.
    turns: Arc<Semaphore>,
    /// The turn of requests with images: they take long, and so hold at most one of the others.
    image_turn: Arc<Semaphore>,
    /// Held for writing while its adapters change, and for reading while a request gets its session.
    changing: Arc<AsyncRwLock<()>>,
}

/// What became of an attempt to replace a model.
pub enum Replaced {
    /// It was replaced.
    Done,
    /// Requests use it.
    InUse,
    /// It is not served any more.
    Gone,
}

impl Deref for ListedModel {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.served
    }
}

impl ListedModel {
    fn open(served: ServedModel) -> Result<ListedModel> {
        let model = Model::open_with(&served.source, &served.open_options);
        let model = model.map_err(|error| error.of(&served.name))?;
        let (turns, image_turn) = (Arc::new(Semaphore::new(TURNS)), Arc::new(Semaphore::new(1)));
        Ok(ListedModel { served, model, adapter: None, turns, image_turn, changing: Arc::default() })
    }

    /// The same model, opened again with these adapters. Its requests take the turns of this one.
    ///
    /// # Errors
    /// When an adapter is none of the model.
    pub(crate) fn with_other_adapters(&self, adapters: Vec<AdapterSource>) -> Result<ListedModel> {
        let mut served = self.served.clone();
        served.open_options.adapters = adapters;
        let (turns, image_turn) = (Arc::clone(&self.turns), Arc::clone(&self.image_turn));
        let changing = Arc::clone(&self.changing);
        Ok(ListedModel { turns, image_turn, changing, ..ListedModel::open(served)? })
    }

    /// What is held for writing while its adapters change, and for reading while a request gets its session.
    pub(crate) fn changing(&self) -> &AsyncRwLock<()> {
        &self.changing
    }

    /// Its id in the APIs.
    pub fn id(&self) -> &str {
        self.adapter.as_deref().unwrap_or(&self.served.name)
    }

    /// It, then its adapters.
    pub(crate) fn with_adapters(self) -> Vec<Arc<ListedModel>> {
        let adapters: Vec<String> = self.model.adapters().map(str::to_owned).collect();
        let adapters = adapters.into_iter().map(|name| ListedModel {
            served: self.served.clone(),
            model: self.model.clone(),
            adapter: Some(name),
            turns: Arc::clone(&self.turns),
            image_turn: Arc::clone(&self.image_turn),
            changing: Arc::clone(&self.changing),
        });
        let adapters: Vec<ListedModel> = adapters.collect();
        std::iter::once(self).chain(adapters).map(Arc::new).collect()
    }

    /// Whether requests to it may have images.
    pub fn reads_images(&self) -> bool {
        self.check_reads_images("").is_ok()
    }

    /// Whether requests to it that may have images may have videos, too.
    pub fn reads_videos(&self) -> bool {
        self.check_reads_videos("").is_ok()
    }

    /// Checks that requests to it may have images, such as that of the parameter `param`.
    ///
    /// # Errors
    /// When it reads none, or the server runs it without its tower.
    pub(crate) fn check_reads_images(&self, param: &str) -> std::result::Result<(), ApiError> {
        self.model.image_format().map_err(|error| unread_image(param, &error.to_string()))?;
        match self.run_options.images {
            true => Ok(()),
            false => {
                Err(unread_image(param, "the server runs the model without its image tower (--no-images)"))
            }
        }
    }

    /// Checks that requests to it may have videos, such as that of the parameter `param`.
    ///
    /// # Errors
    /// When it reads none.
    pub(crate) fn check_reads_videos(&self, param: &str) -> std::result::Result<(), ApiError> {
        self.model.check_videos().map_err(|error| unread_video(param, &error.to_string()))
    }

    /// Waits for one of the turns of the model, and before it, for a request with images, until those before it are
    /// queued. Dropping the result lets the next ones go on.
    ///
    /// # Errors
    /// When the wait for images takes longer than [`girih::RunOptions::max_wait`]: status 429.
    pub(crate) async fn turns(
        &self,
        has_images: bool,
    ) -> std::result::Result<[Option<OwnedSemaphorePermit>; 2], ApiError> {
        let image_turn = match has_images {
            true => Some(turn_within(&self.image_turn, self.run_options.max_wait).await?),
            false => None,
        };
        Ok([image_turn, Arc::clone(&self.turns).acquire_owned().await.ok()])
    }
}

/// Adds a model to a pool; what it caches is published.
///
/// # Errors
/// As [`ModelPool::add`].
fn add(pool: &ModelPool, kv_events: Option<&Arc<KvEvents>>, model: &ListedModel) -> Result<()> {
    let ServedModel { name, source, open_options, run_options, .. } = &model.served;
    let mut run_options = run_options.clone();
    if let Some(events) = kv_events {
        run_options.cache_observer = Some(events.observer(name));
    }
    pool.add(name, source, open_options.clone(), run_options)
}

impl ServedModels {
    /// The models of the options; nothing is loaded yet.
    ///
    /// # Errors
    /// When there is no model and no folder, two have the same name, one cannot be opened, or the encoders do not
    /// fit into memory together.
    pub fn new(options: &ServeOptions) -> Result<ServedModels> {
        let ServeOptions { models, memory, folder, .. } = options;
        if models.is_empty() && folder.is_none() {
            return Err(girih::Error::with_kind(ErrorKind::Refused, "no model is served; name one"));
        }
        let opened = models.iter().cloned().map(ListedModel::open).collect::<Result<Vec<ListedModel>>>()?;
        let mut encoders = BTreeMap::new();
        for ListedModel { served: ServedModel { name, run_options, .. }, model, .. } in &opened {
            if model.files().facts.is_encoder() {
                let encoder = ServedEncoder::new(model.clone(), run_options.clone());
                let encoder = encoder.map_err(|error| error.of(name))?.with_notice(options.notice);
                encoders.insert(name.clone(), encoder);
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
        let pool = ModelPool::new(memory - needed).with_notice(options.notice);
        // A server names itself by its address before.
        let publisher = |options: &KvEventsOptions| KvEvents::new(options.pod.clone().unwrap_or_default());
        let kv_events = options.kv_events.as_ref().map(|options| Arc::new(publisher(options)));
        for model in &opened {
            add(&pool, kv_events.as_ref(), model)?;
        }
        let list: Vec<Arc<ListedModel>> = opened.into_iter().flat_map(ListedModel::with_adapters).collect();
        if let Some(twice) =
            list.iter().enumerate().find(|(at, it)| list[..*at].iter().any(|other| other.id() == it.id()))
        {
            return Err(two_of_a_name(twice.1.id()));
        }
        Ok(ServedModels {
            pool,
            kv_events,
            loading: Arc::default(),
            list: RwLock::new(Arc::new(list)),
            folder: folder.clone(),
            folder_fault: std::sync::Mutex::default(),
            reading: Arc::default(),
            leaving: std::sync::Mutex::default(),
            encoders,
            unload_idle: options.unload_idle,
            keeps: std::sync::Mutex::default(),
            notice: options.notice,
            started: Instant::now(),
            created: since_1970().as_secs(),
        })
    }

    /// Publishes what the models have cached, if the server does.
    pub(crate) fn kv_events(&self) -> Option<&Arc<KvEvents>> {
        self.kv_events.as_ref()
    }

    /// The models that are served now: those of the options in their order, then those that were added.
    pub fn list(&self) -> Arc<Vec<Arc<ListedModel>>> {
        Arc::clone(&self.list.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The folder whose models are served, if there is one.
    pub fn folder(&self) -> Option<&Arc<dyn ModelFolder>> {
        self.folder.as_ref()
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
    pub(crate) fn find(&self, name: Option<&str>) -> Result<Arc<ListedModel>, ApiError> {
        let list = self.list();
        let found = match name {
            None => list.first(),
            Some(name) => list.iter().find(|model| model.id() == name),
        };
        found.cloned().ok_or_else(|| not_found(name, &list))
    }

    /// Adds the models that are new in the folder and removes those that are gone. Not for a thread that serves
    /// connections.
    pub(crate) fn read_folder(&self) {
        let Some(folder) = &self.folder else { return };
        let entries = match folder.entries() {
            Ok(entries) => entries,
            Err(error) => return self.tell_fault(error.to_string()),
        };
        self.folder_fault().clear();
        let mut list: Vec<Arc<ListedModel>> = self.list().to_vec();
        let is_present = |model: &ListedModel| {
            let entry = |version| FolderEntry { name: model.name.clone(), version };
            model.version.clone().is_none_or(|version| entries.contains(&entry(version)))
        };
        let gone = list.extract_if(.., |model| !is_present(model)).collect::<Vec<_>>();
        self.leaving().extend(gone.iter().map(|model| model.name.clone()));
        if !gone.is_empty() {
            self.set_list(list.clone());
        }
        drop(gone);
        self.drop_leaving();
        for entry in &entries {
            if list.iter().any(|model| model.name == entry.name) || self.leaving().contains(&entry.name) {
                continue;
            }
            let Some(served) = folder.open(entry) else { continue };
            match self.added(served, &list) {
                Ok(model) => list.extend(model.with_adapters()),
                Err(error) => (self.notice)(&format!("left out: {error}")),
            }
        }
        self.set_list(list);
    }

    /// Tells why the folder cannot be read, unless that was told the last time.
    fn tell_fault(&self, sentence: String) {
        let mut last = self.folder_fault();
        if *last != sentence {
            (self.notice)(&sentence);
            *last = sentence;
        }
    }

    fn folder_fault(&self) -> MutexGuard<'_, String> {
        self.folder_fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a model beside those of the list.
    fn added(&self, served: ServedModel, list: &[Arc<ListedModel>]) -> Result<ListedModel> {
        let model = ListedModel::open(served)?;
        let own: Vec<&str> = std::iter::once(model.name.as_str()).chain(model.model.adapters()).collect();
        let is_taken = |(at, id): &(usize, &&str)| {
            own[..*at].contains(*id) || list.iter().any(|other| other.id() == **id)
        };
        if let Some((_, id)) = own.iter().enumerate().find(is_taken) {
            return Err(two_of_a_name(id));
        }
        add(&self.pool, self.kv_events.as_ref(), &model)?;
        Ok(model)
    }

    fn set_list(&self, list: Vec<Arc<ListedModel>>) {
        *self.list.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(list);
    }

    /// Checks that a model fits into the memory of all models.
    ///
    /// # Errors
    /// When it does not, or cannot be planned.
    pub(crate) fn check_fits(&self, model: &ListedModel) -> Result<()> {
        let (needed, budget) =
            (model.model.plan(model.run_options.clone())?.memory().total(), self.pool.budget());
        if needed <= budget {
            return Ok(());
        }
        let sentence = format!(
            "{} needs {needed} bytes with its adapters, but the budget of all models is {budget}: raise it",
            model.name
        );
        Err(girih::Error::with_kind(ErrorKind::OutOfMemory, sentence))
    }

    /// Puts entries in the place of a model and its adapters, unless requests use it. Not for a thread that serves
    /// connections; the folder must not be read meanwhile.
    ///
    /// # Errors
    /// When the pool has a model of the name, which is not so.
    pub(crate) fn replace(&self, old: &Arc<ListedModel>, entries: Vec<Arc<ListedModel>>) -> Result<Replaced> {
        let mut list = self.list().to_vec();
        let Some(at) = list.iter().position(|model| Arc::ptr_eq(model, old)) else {
            return Ok(Replaced::Gone);
        };
        if !self.pool.remove(&old.name) {
            return Ok(Replaced::InUse);
        }
        if let Some(model) = entries.first() {
            add(&self.pool, self.kv_events.as_ref(), model)?;
        }
        let count = list[at..].iter().take_while(|model| model.name == old.name).count();
        list.splice(at..at + count, entries);
        self.set_list(list);
        Ok(Replaced::Done)
    }

    /// Takes models that were removed out of the pool, if nobody uses them any more. Not for a thread that serves
    /// connections.
    fn drop_leaving(&self) {
        let names: Vec<String> = self.leaving().iter().cloned().collect();
        for name in names {
            if self.pool.remove(&name) {
                self.keeps().remove(&name);
                self.leaving().remove(&name);
            }
        }
    }

    fn leaving(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
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
        let at_start = |model: &&Arc<ListedModel>| {
            !model.is_loaded_on_request && !self.encoders.contains_key(&model.name)
        };
        for model in self.list().iter().filter(at_start) {
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

    /// The time after which a model that nobody uses is unloaded; `None` if it stays. What a request asked for comes
    /// before the model's own time, and that before the server's.
    fn idle_of(&self, name: &str) -> Option<Duration> {
        match self.keeps().get(name) {
            Some(KeepAlive::For(time)) => return Some(*time),
            Some(KeepAlive::Forever) => return None,
            None => {}
        }
        let list = self.list();
        let own = list.iter().find(|model| model.name == name).and_then(|model| model.unload_idle);
        own.or(self.unload_idle)
    }

    /// Whether models are unloaded after a time.
    pub fn has_idle_times(&self) -> bool {
        self.unload_idle.is_some()
            || !self.keeps().is_empty()
            || !self.leaving().is_empty()
            || self.list().iter().any(|model| model.unload_idle.is_some())
    }

    fn keeps(&self) -> MutexGuard<'_, BTreeMap<String, KeepAlive>> {
        self.keeps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unloads the models whose time without a request is over, and returns their names.
    pub fn unload_idle(&self) -> Vec<String> {
        self.drop_leaving();
        self.pool.unload_idle_by(self.now(), |name| self.idle_of(name))
    }

    /// The time since the start.
    fn now(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The error of a name that two models or adapters have.
fn two_of_a_name(name: &str) -> girih::Error {
    let sentence = format!("two models or adapters have the name {name}; each needs one of its own");
    girih::Error::with_kind(ErrorKind::Refused, sentence)
}

/// The error of a name that no model has.
fn not_found(name: Option<&str>, list: &[Arc<ListedModel>]) -> ApiError {
    let names: Vec<&str> = list.iter().take(MAX_NAMES).map(|model| model.id()).collect();
    let served = match list.len() {
        0 => "none is served yet".to_owned(),
        count if count > MAX_NAMES => format!("served are {count}, such as {}", names.join(", ")),
        _ => format!("served are {}", names.join(", ")),
    };
    let message = match name {
        None => format!("there is no model: {served}"),
        Some(name) => {
            let name: String = name.chars().take(100).collect();
            format!("there is no model {name:?}; {served}")
        }
    };
    let error = ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message);
    ApiError { param: Some("model".to_owned()), ..error }
}
