//! An open model: its files, and what runs it once it is started.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use girih::tools::memory_json;
use girih::{DType, Embedder, Model, Plan, Progress, Prompt, Reply, RunOptions, Session, TextOrigin};
use serde_json::{Value, json};

use crate::environment;
use crate::handles::Handles;
use crate::json::{as_argument, read};
use crate::reply::ReplyReader;
use crate::status::{Fault, Result};

/// The open models.
pub static MODELS: Handles<OpenModel> = Handles::new("model", 1);

/// The maximum number of notes that a model keeps.
const MAX_NOTES: usize = 64;

/// An open model.
#[derive(Debug)]
pub struct OpenModel {
    model: Model,
    options: RunOptions,
    /// What runs replies, once it was started.
    session: Mutex<Option<Session>>,
    /// What runs embeddings, once it was started.
    embedder: Mutex<Option<Embedder>>,
    /// Sentences for the user about loading.
    notes: Arc<Mutex<Vec<String>>>,
}

impl OpenModel {
    /// Opens the files of a model; `options` are JSON.
    ///
    /// # Errors
    /// When an option is wrong, or the model cannot be opened.
    pub fn open(name: &str, options: Option<&str>) -> Result<OpenModel> {
        let options = read("the options", options)?;
        let (open, run) = as_argument(girih::json::options(&options, &environment::variable))?;
        Ok(OpenModel::new(Model::open_with(name, &open)?, run))
    }

    /// An open model that runs with these options.
    pub fn new(model: Model, options: RunOptions) -> OpenModel {
        let (session, embedder, notes) = Default::default();
        OpenModel { model, options, session, embedder, notes }
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Loads the model, unless it is loaded, and returns when it is ready.
    ///
    /// # Errors
    /// When there is no memory for it, or its weights cannot be read. A later call tries again.
    pub fn start(&self) -> Result<()> {
        if self.is_encoder() { self.with_embedder(|_| Ok(())) } else { self.session().map(drop) }
    }

    fn is_encoder(&self) -> bool {
        self.model.files().facts.is_encoder()
    }

    /// What runs replies.
    fn session(&self) -> Result<Session> {
        let mut session = lock(&self.session);
        if let Some(session) = &*session {
            return Ok(session.clone());
        }
        let started = self.plan()?.start(self.progress())?;
        *session = Some(started.clone());
        Ok(started)
    }

    fn plan(&self) -> Result<Plan> {
        Ok(self.model.plan(self.options.clone())?)
    }

    /// Keeps the sentences for the user.
    fn progress(&self) -> impl Fn(Progress) + Send + Sync + use<> {
        let notes = Arc::clone(&self.notes);
        move |progress| {
            if let Progress::Note(sentence) = progress {
                let mut notes = lock(&notes);
                if notes.len() < MAX_NOTES {
                    notes.push(sentence);
                }
            }
        }
    }

    /// Submits a request, in JSON; the model is started first, unless it was.
    ///
    /// # Errors
    /// When the request is wrong or refused, or the model cannot be loaded.
    pub fn submit(&self, request: &str) -> Result<ReplyReader> {
        let value = read("the request", Some(request))?;
        let is_chat = value.get("messages").is_some_and(Value::is_array);
        let request = as_argument(girih::json::request(&value, &self.model))?;
        let (request, prompt) = request.tokenized(&self.model)?;
        let reply = self.generate(request)?;
        Ok(ReplyReader::new(reply, self.model.name(), prompt, is_chat))
    }

    /// Submits a request; the model is started first, unless it was.
    ///
    /// # Errors
    /// As [`OpenModel::submit`].
    pub fn generate(&self, request: girih::Request) -> Result<Reply> {
        Ok(self.session()?.generate(request)?)
    }

    /// What the model is, and whether it was started.
    ///
    /// # Errors
    /// Never, but the plan of a model that does not fit its options is absent.
    pub fn info(&self) -> Value {
        let files = self.model.files();
        let sizes = &files.facts.sizes;
        let text = self.model.text_processor().ok();
        let is_started = lock(&self.session).is_some() || lock(&self.embedder).is_some();
        json!({
            "model": self.model.name(),
            "encoder": self.is_encoder(),
            "parameters": self.model.parameters(),
            "vocabulary": sizes.vocabulary,
            "width": sizes.width,
            "context": self.model.max_context(),
            "tokenizer": text.is_some(),
            "chat_template": text.is_some_and(|text| text.template.is_some()),
            "stop_tokens": self.model.stop_tokens().unwrap_or_default(),
            "adapters": self.model.adapters().collect::<Vec<_>>(),
            "started": is_started,
            "notes": *lock(&self.notes),
        })
    }

    /// What running the model takes, without loading it.
    ///
    /// # Errors
    /// When the model cannot run with its options.
    pub fn plan_json(&self) -> Result<Value> {
        let plan = self.plan()?;
        let key = plan.key();
        Ok(json!({
            "backend": plan.backend().to_string(),
            "activations": plan.numerics().name(),
            "arithmetic": plan.arithmetic(),
            "kv": plan.kv().map(DType::name),
            "context": key.context,
            "sequences": key.sequences,
            "rows": key.rows,
            "output_rows": key.output_rows,
            "memory": memory_json(&plan.memory(), girih::tools::FreeMemory::now()),
        }))
    }

    /// The tokens of a text; `special` parses special tokens in it.
    ///
    /// # Errors
    /// When there is no tokenizer, or the text is too long for one.
    pub fn tokenize(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let origin = if special { TextOrigin::Template } else { TextOrigin::User };
        Ok(self.model.tokenize_as(text, origin)?)
    }

    /// One vector for each text of a request, in JSON, one after another in `values`; returns the number of values.
    /// The model is started first, unless it was.
    ///
    /// # Errors
    /// When the request is wrong, the model is no encoder, or a text is too long. `Err` of `Ok` is the number that is
    /// needed, if `values` has fewer.
    pub fn embed(&self, request: &str, values: &mut [f32]) -> Result<Result<usize, usize>> {
        let inputs = as_argument(girih::json::inputs(&read("the request", Some(request))?))?;
        let tokens = |input: Prompt| Ok(girih::Request::new(input).tokenized(&self.model)?.1);
        let texts: Vec<Vec<u32>> = inputs.into_iter().map(tokens).collect::<Result<_>>()?;
        self.with_embedder(|embedder| {
            let too_many = || Fault::argument(format!("the request has {} texts: pass fewer", texts.len()));
            let needed = texts.len().checked_mul(embedder.width()).ok_or_else(too_many)?;
            if values.len() < needed {
                return Ok(Err(needed));
            }
            let rows = embedder.embed_tokens(&texts)?;
            values[..needed].copy_from_slice(&rows.concat());
            Ok(Ok(needed))
        })
    }

    fn with_embedder<T>(&self, work: impl FnOnce(&mut Embedder) -> Result<T>) -> Result<T> {
        let mut embedder = lock(&self.embedder);
        let embedder = match &mut *embedder {
            Some(embedder) => embedder,
            none => none.insert(self.plan()?.load_embedder(self.progress())?),
        };
        work(embedder)
    }
}

/// A lock whose contents are valid even if a thread panicked while it held it: they are replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
