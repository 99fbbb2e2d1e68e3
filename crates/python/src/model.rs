//! A loaded model: opening with progress, requests, logits, hidden states and embeddings.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Context;

use girih::{
    CancelHandle, Embedder, Engine, Model, Plan, Progress, Result, RunOptions, Session, json, tools,
};
use girih_measure::HiddenStates;
use pyo3::prelude::*;
use serde_json::{Value, json as object};

use crate::buffer::PyFloats;
use crate::errors::{closed, parsed, raised, refused};
use crate::reply::PyReply;
use crate::text::{PyTokenizer, open_options};
use crate::waiting::{lock, on_thread, wait, without_lock};

/// The maximum number of notes that wait to be read; of more, the oldest are dropped.
const MAX_NOTES: usize = 256;

/// The rows of logits of a step that is watched.
const OUTPUT_ROWS: u32 = 64;

/// A model that was loaded.
#[pyclass(name = "Model", frozen, module = "girih._girih")]
pub struct PyModel {
    opened: Model,
    /// The options, with which the engine for hidden states is planned.
    run: RunOptions,
    loaded: Mutex<Option<LoadedWork>>,
    /// What girih tells while it loads and runs.
    told: Arc<Told>,
    /// The replies that may still run, and the number at which those that have ended are forgotten.
    replies: Mutex<(Vec<CancelHandle>, usize)>,
    /// Made when hidden states are first asked for.
    watched: Arc<Mutex<Option<Engine>>>,
}

/// A model at work: it generates, or it embeds.
enum LoadedWork {
    Session(Session),
    Embedder(Arc<Mutex<Embedder>>),
}

/// What is told, until a thread of Python takes it. The threads that tell never need the interpreter.
#[derive(Default)]
struct Told {
    weights: Mutex<Option<(u64, u64)>>,
    notes: Mutex<VecDeque<String>>,
}

impl Told {
    fn tell(&self, progress: Progress) {
        match progress {
            Progress::Weights { done, total } => {
                let mut weights = lock(&self.weights);
                // Calls come in any order.
                let before = weights.map_or(0, |(before, _)| before);
                *weights = Some((done.max(before), total));
            }
            Progress::Note(sentence) => {
                let mut notes = lock(&self.notes);
                if notes.len() == MAX_NOTES {
                    notes.pop_front();
                }
                notes.push_back(sentence);
            }
            _ => {}
        }
    }

    /// Calls `progress` with the bytes of weights that are read, if there are more than before.
    fn pass_on(&self, py: Python<'_>, progress: Option<&Py<PyAny>>, before: &mut u64) -> PyResult<()> {
        let weights = *lock(&self.weights);
        if let (Some(progress), Some((done, total))) = (progress, weights)
            && done > *before
        {
            *before = done;
            progress.call1(py, (done, total))?;
        }
        Ok(())
    }
}

/// Opens a model and plans it.
fn planned(py: Python<'_>, name: &str, open: &str, run: &str) -> PyResult<Plan> {
    let (open, run) = (open_options(py, open)?, parsed(py, "the options", run)?);
    let plan = py.detach(|| {
        let model = Model::open_with(name, &open)?;
        model.plan(json::run_options(&run, &open)?)
    });
    plan.map_err(|error| raised(py, &error))
}

/// The memory and the arithmetic of a model with these options, as JSON.
#[pyfunction]
pub fn plan(py: Python<'_>, name: &str, open: &str, run: &str) -> PyResult<String> {
    let plan = planned(py, name, open, run)?;
    let refusals: Vec<String> =
        plan.refusals().iter().map(|refusal| format!("{}: {}", refusal.node, refusal.reason)).collect();
    let facts = object!({
        "memory": tools::memory_json(&plan.memory(), None),
        "description": plan.description(),
        "arithmetic": plan.arithmetic(),
        "refusals": refusals,
    });
    Ok(joined(facts, model_facts(&plan)).to_string())
}

/// The version of girih.
#[pyfunction]
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The names of the backends; the first is the default.
#[pyfunction]
pub fn backends() -> Vec<&'static str> {
    girih::backends().iter().map(|info| info.name).collect()
}

/// What a plan says about its model.
fn model_facts(plan: &Plan) -> Value {
    let (model, key) = (plan.model(), plan.key());
    let facts = &model.files().facts;
    object!({
        "name": model.name(),
        "parameters": model.parameters(),
        "layers": facts.layers.len(),
        "width": facts.sizes.width,
        "vocabulary": facts.sizes.vocabulary,
        "is_encoder": facts.is_encoder(),
        "context": key.context,
        "max_context": model.max_context(),
        "sequences": key.sequences,
        "kv": plan.kv().map(girih::DType::name),
        "backend": plan.backend().to_string(),
    })
}

fn joined(mut object: Value, fields: Value) -> Value {
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}

#[pymethods]
impl PyModel {
    /// Opens and loads a model. Calls `progress(done, total)` with the bytes of weights.
    #[staticmethod]
    fn open(
        py: Python<'_>,
        name: &str,
        open: &str,
        run: &str,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<(PyModel, String)> {
        let plan = planned(py, name, open, run)?;
        let (opened, run, facts) =
            (plan.model().clone(), plan.options().clone(), model_facts(&plan).to_string());
        let told = Arc::new(Told::default());
        let loaded = load(py, plan, &told, progress.as_ref())?;
        let model = PyModel {
            opened,
            run,
            loaded: Mutex::new(Some(loaded)),
            told,
            replies: Mutex::default(),
            watched: Arc::default(),
        };
        Ok((model, facts))
    }

    /// Queues a request in JSON.
    fn generate(&self, py: Python<'_>, request: &str) -> PyResult<PyReply> {
        let (session, value, opened) = (self.session(py)?, parsed(py, "the request", request)?, &self.opened);
        // The session goes with the closure, as dropping the last one waits for a thread.
        let reply = py.detach(move || session.generate(json::request(&value, opened)?));
        let reply = reply.map_err(|error| raised(py, &error))?;
        self.remember(reply.cancel_handle());
        Ok(PyReply::new(reply))
    }

    /// The logits of the token that follows these.
    fn logits(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<PyFloats> {
        let session = self.session(py)?;
        let work = move || session.logits(&tokens);
        let logits = on_thread(py, work, |_| Ok(()))?;
        logits.map(PyFloats::new).map_err(|error| raised(py, &error))
    }

    /// The hidden states of the rows of these tokens as in transformers, and the logits of each row: names and numbers.
    fn hidden_states(&self, py: Python<'_>, tokens: Vec<u32>) -> PyResult<Vec<(String, PyFloats)>> {
        drop(self.session(py)?);
        let (watched, opened, run) = (Arc::clone(&self.watched), self.opened.clone(), self.run.clone());
        let work = move || states_of(&mut lock(&watched), &opened, run, &tokens);
        let states = on_thread(py, work, |_| Ok(()))?.map_err(|error| raised(py, &error))?;
        Ok(states.into_iter().map(|(name, numbers)| (name, PyFloats::new(numbers))).collect())
    }

    /// One vector for each text, one after another, and their width. Texts are tokens with all special ones.
    fn embed(&self, py: Python<'_>, texts: Vec<Vec<u32>>) -> PyResult<(PyFloats, usize)> {
        let embedder = match &*lock(&self.loaded) {
            Some(LoadedWork::Embedder(embedder)) => Arc::clone(embedder),
            Some(LoadedWork::Session(_)) => {
                let name = self.opened.name();
                let sentence = format!("{name} generates text and defines no embeddings; use an encoder");
                return Err(refused(py, sentence));
            }
            None => return Err(closed(py, "model")),
        };
        let mut raised_here = None;
        let vectors = py.detach(|| {
            let mut embedder = lock(&embedder);
            let interrupt = Mutex::new(None);
            let goes_on = || {
                let signal = Python::attach(|py| py.check_signals());
                let goes_on = signal.is_ok();
                *lock(&interrupt) = signal.err();
                goes_on
            };
            let vectors = embedder.embed_tokens_while(&texts, goes_on);
            raised_here = lock(&interrupt).take();
            vectors.map(|vectors| (vectors.concat(), embedder.width()))
        });
        match (raised_here, vectors) {
            (Some(interrupt), _) => Err(interrupt),
            (None, Ok((numbers, width))) => Ok((PyFloats::new(numbers), width)),
            (None, Err(error)) => Err(raised(py, &error)),
        }
    }

    /// Its tokenizer.
    fn tokenizer(&self) -> PyTokenizer {
        PyTokenizer::of(&self.opened)
    }

    /// The tokens of a text as a prompt: with BOS, if the tokenizer is configured to add it.
    fn tokenize(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        py.detach(|| self.opened.tokenize(text)).map_err(|error| raised(py, &error))
    }

    /// What girih has told since the last call, such as why packed weights are not cached.
    fn notes(&self) -> Vec<String> {
        lock(&self.told.notes).drain(..).collect()
    }

    /// Cancels its replies and gives its memory back.
    fn close(&self, py: Python<'_>) {
        let loaded = lock(&self.loaded).take();
        for reply in lock(&self.replies).0.drain(..) {
            reply.cancel();
        }
        py.detach(|| {
            drop(loaded);
            drop(lock(&self.watched).take());
        });
    }
}

impl PyModel {
    fn session(&self, py: Python<'_>) -> PyResult<Session> {
        match &*lock(&self.loaded) {
            Some(LoadedWork::Session(session)) => Ok(session.clone()),
            Some(LoadedWork::Embedder(_)) => {
                let sentence =
                    format!("{} is an encoder and generates no text; call embed", self.opened.name());
                Err(refused(py, sentence))
            }
            None => Err(closed(py, "model")),
        }
    }

    /// Keeps what cancels a reply when the model is closed.
    fn remember(&self, reply: CancelHandle) {
        let mut replies = lock(&self.replies);
        let (running, limit) = &mut *replies;
        if running.len() >= *limit {
            running.retain(|reply| reply.ended_for().is_none());
            *limit = 2 * running.len() + 16;
        }
        running.push(reply);
    }
}

impl Drop for PyModel {
    fn drop(&mut self) {
        let loaded = lock(&self.loaded).take();
        let watched = Arc::clone(&self.watched);
        if loaded.is_some() {
            without_lock(move || {
                drop(loaded);
                drop(watched);
            });
        }
    }
}

/// Loads a planned model, tells `progress`, and waits until it is ready.
fn load(py: Python<'_>, plan: Plan, told: &Arc<Told>, progress: Option<&Py<PyAny>>) -> PyResult<LoadedWork> {
    let mut before = 0;
    let mut pass_on = |py: Python<'_>| told.pass_on(py, progress, &mut before);
    let tell = Arc::clone(told);
    let callback = move |progress: Progress| tell.tell(progress);
    let loaded = if plan.model().files().facts.is_encoder() {
        let embedder = on_thread(py, move || plan.load_embedder(callback), &mut pass_on)?;
        embedder.map(|embedder| LoadedWork::Embedder(Arc::new(Mutex::new(embedder))))
    } else {
        ready_session(py, plan, callback, &mut pass_on)?.map(LoadedWork::Session)
    };
    pass_on(py)?;
    loaded.map_err(|error| raised(py, &error))
}

/// Starts a session and waits until it is ready. An exception meanwhile ends the loading.
fn ready_session(
    py: Python<'_>,
    plan: Plan,
    callback: impl Fn(Progress) + Send + Sync + 'static,
    meanwhile: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<Result<Session>> {
    let session = match py.detach(|| plan.start_in_background(callback)) {
        Ok(session) => session,
        Err(error) => return Ok(Err(error)),
    };
    let mut ready = session.ready();
    let poll = |context: &mut Context<'_>| Pin::new(&mut ready).poll(context);
    match wait(py, poll, meanwhile) {
        Ok(Ok(_)) => Ok(Ok(session)),
        Ok(Err(error)) => Ok(Err(error)),
        Err(interrupt) => {
            py.detach(|| drop(session));
            Err(interrupt)
        }
    }
}

/// The hidden states and the logits of a run of an engine of its own, which is loaded if there is none. It has its own copy
/// of the weights.
fn states_of(
    watched: &mut Option<Engine>,
    opened: &Model,
    run: RunOptions,
    tokens: &[u32],
) -> Result<Vec<(String, Vec<f32>)>> {
    let engine = match watched {
        Some(engine) => engine,
        None => {
            let rows = OUTPUT_ROWS.max(run.output_rows);
            let alone = RunOptions {
                output_rows: rows,
                sequences: 1,
                drafts: girih::Drafts::Off,
                prompt_cache: None,
                ..run
            };
            watched.insert(opened.plan(alone)?.load(|_| {})?)
        }
    };
    let mut hidden = HiddenStates::of(opened.files().facts.layers.len());
    let mut logits = Vec::new();
    engine.logits(tokens, &mut hidden, |_, row| logits.extend_from_slice(row))?;
    let names: Vec<String> = (0..hidden.states.len()).map(|index| hidden.name(index).to_owned()).collect();
    Ok(names.into_iter().zip(hidden.states).chain([("logits".to_owned(), logits)]).collect())
}
