//! A planned model: its largest graph, its memory, what its backend refuses; and its
//! loading.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use girih_engine::{DraftModel, DraftSource, Encoder, Engine, EngineLimits, RowWork, StepCosts, cache};
use girih_graph::backend::{HostWork, Refusal};
use girih_graph::description::{AnyBackend, BackendChoice, Services};
use girih_graph::{
    Error, ErrorKind, Graph, Key, MemoryPlan, Numerics, OutputKind, Result, Runner, StateGroup,
    WeightSource as _,
};
use girih_model::{GraphOptions, ModelWeights, QuantizationError};
use girih_tensor::DType;

use crate::drafts::{Drafts, check_draft_model};
use crate::embedder::Embedder;
use crate::free_memory::{check, process_room};
use crate::gpu_parts;
use crate::image_tokens::row_token;
use crate::model::Model;
use crate::mtp_plan::MtpPlan;
use crate::progress::{CountedWeights, LoadControl, Progress, ProgressCallback};
use crate::prompt_work::row_work;
use crate::run_options::RunOptions;
use crate::services::{ModelServices, Tables};
use crate::tower_plan::TowerPlan;

/// The maximum context if the caller sets none.
const MAX_DEFAULT_CONTEXT: u32 = 4096;

/// The context if the caller sets none, of a model that supports `max` tokens.
fn default_context(max: u32) -> u32 {
    max.min(MAX_DEFAULT_CONTEXT)
}

/// The type of the KV cache if the caller sets none.
const DEFAULT_KV: DType = DType::F16;

/// The largest part of a model's weights with which a draft model can save noticeable time.
const MAX_USEFUL_COST: f32 = 0.75;

/// A model that is to run with certain options: what it will take, and how it will run.
///
/// ```
/// use girih::{Model, RunOptions};
///
/// let plan = Model::open("stories260k")?.plan(RunOptions::default())?;
/// assert!(plan.refusals().is_empty());
/// println!("{}: {} bytes", plan.description(), plan.memory().total());
/// # Ok::<(), girih::Error>(())
/// ```
pub struct Plan {
    model: Model,
    options: RunOptions,
    backend: Box<dyn AnyBackend>,
    services: Arc<ModelServices>,
    key: Key,
    graph: Graph,
    blocks: Vec<u32>,
    draft: Option<DraftPlan>,
    tower: Option<TowerPlan>,
}

/// The plan of what drafts.
enum DraftPlan {
    /// A draft model.
    Model(Box<Plan>),
    /// A layer of the model, or an assistant.
    Mtp(Box<MtpPlan>),
}

impl DraftPlan {
    fn memory(&self) -> MemoryPlan {
        match self {
            DraftPlan::Model(plan) => plan.memory(),
            DraftPlan::Mtp(plan) => plan.memory(),
        }
    }

    fn refusals(&self) -> Vec<Refusal> {
        match self {
            DraftPlan::Model(plan) => plan.refusals(),
            DraftPlan::Mtp(plan) => plan.refusals(),
        }
    }

    fn weight_bytes(&self) -> u64 {
        match self {
            DraftPlan::Model(plan) => plan.read_bytes(),
            DraftPlan::Mtp(plan) => weight_bytes(plan.graph()).saturating_sub(plan.memory().host.in_file),
        }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Plan").field("model", &self.model).field("key", &self.key).finish_non_exhaustive()
    }
}

impl Model {
    /// Plans how the model will run. Nothing is loaded, and no thread is started.
    ///
    /// ```
    /// use girih::{Model, RunOptions};
    ///
    /// let plan = Model::open("stories260k")?.plan(RunOptions { context: Some(128), ..RunOptions::default() })?;
    /// assert!(plan.memory().total() < 64 << 20);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When an option exceeds what the model supports, or the backend cannot be made.
    pub fn plan(&self, options: RunOptions) -> Result<Plan> {
        Plan::new(self.clone(), options, Arc::default())
    }
}

impl Plan {
    fn new(model: Model, options: RunOptions, control: Arc<LoadControl>) -> Result<Plan> {
        let key = largest_step(&model, &options)?;
        let graph = model.files().graph(key, graph_options(&options))?;
        let blocks = cache::blocks_of(&graph);
        let first_file = model.files().weights.container().paths().next().map(|path| path.to_owned());
        let services = ModelServices::new(model.open_options(), first_file, Arc::clone(&control));
        let of_model = model.clone();
        let tables: Tables = Box::new(move |name| {
            ModelWeights::is_per_layer_table(name).then(|| of_model.files().weights.rows(name))?
        });
        let services = Arc::new(services.with_tables(tables));
        let of_backend = Arc::clone(&services) as Arc<dyn Services>;
        let backend = gpu_parts::open(&options.backend, &of_backend, &graph, &blocks)?;
        let draft = match &options.drafts {
            Drafts::Model(draft) => {
                check_draft_model(&model, draft)?;
                Some(match is_assistant(draft) {
                    true => {
                        let graph_options = graph_options(&options);
                        let plan =
                            MtpPlan::of_assistant([draft, &model], &options, key, graph_options, control)?;
                        DraftPlan::Mtp(Box::new(plan))
                    }
                    false => {
                        DraftPlan::Model(Box::new(Plan::of_draft(draft, &options, key.context, control)?))
                    }
                })
            }
            Drafts::Mtp => {
                let plan = MtpPlan::new(&model, &options, key, graph_options(&options), control)?;
                Some(DraftPlan::Mtp(Box::new(plan)))
            }
            Drafts::Off | Drafts::PromptLookup => None,
        };
        let tower = match options.images {
            true => Some(TowerPlan::new(&model, &options)?),
            false => None,
        };
        if let Some(tower) = &tower {
            tower.check_steps(key)?;
            row_token(&model, tower.facts())?;
        }
        Ok(Plan { model, options, backend, services, key, graph, blocks, draft, tower })
    }

    /// The context that a model has with these options, in tokens, without a plan.
    ///
    /// ```
    /// use girih::{Model, Plan, RunOptions};
    ///
    /// let model = Model::open("stories260k")?;
    /// assert_eq!(Plan::context_of(&model, &RunOptions::default()), 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn context_of(model: &Model, options: &RunOptions) -> u32 {
        options.context.unwrap_or_else(|| default_context(model.max_context()))
    }

    /// Plans a draft model for a model with these options and this context.
    fn of_draft(
        draft: &Model,
        options: &RunOptions,
        context: u32,
        control: Arc<LoadControl>,
    ) -> Result<Plan> {
        let options = RunOptions {
            context: Some(context.min(draft.max_context())),
            output_rows: 1,
            drafts: Drafts::Off,
            prompt_cache: None,
            given_rows: false,
            images: false,
            backend: gpu_parts::whole_experts(options.backend.clone()),
            ..options.clone()
        };
        Plan::new(draft.clone(), options, control).map_err(|error| error.of(draft_name(draft)))
    }

    /// The model.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.model().name(), "stories260k");
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The backend with its options.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.backend().info().name, girih::backends()[0].name);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn backend(&self) -> &BackendChoice {
        &self.options.backend
    }

    /// The largest step.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.key().context, 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn key(&self) -> Key {
        self.key
    }

    /// The graph of the largest step.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert!(plan.graph().nodes.len() > 50);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The groups of state, each with its number of blocks.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// // 512 positions are 8 blocks of 64.
    /// assert!(plan.state().all(|(_, blocks)| blocks == 8));
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn state(&self) -> impl Iterator<Item = (&StateGroup, u32)> {
        self.graph.groups.iter().zip(self.blocks.iter().copied())
    }

    /// The type of the KV cache; `None` for an encoder, which has none.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.kv(), Some(girih::DType::F16));
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn kv(&self) -> Option<DType> {
        (!self.model.files().facts.is_encoder()).then(|| self.options.kv.unwrap_or(DEFAULT_KV))
    }

    /// The bytes that the loaded model takes, together with its draft model and its image tower.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert!(plan.memory().total() > 1_000_000);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn memory(&self) -> MemoryPlan {
        let own = self.backend.plan(&self.graph, &self.blocks);
        let own = self.draft.as_ref().map_or(own, |draft| own.plus(draft.memory()));
        self.tower.as_ref().map_or(own, |tower| own.plus(tower.memory()))
    }

    /// A line about how the backend will run the model: its kernels or its device.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// println!("{}", plan.description());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn description(&self) -> String {
        self.backend.describe(&self.graph)
    }

    /// The name of the kernels or of the device that computes; `-` if there is only one.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert!(!plan.kernels().is_empty());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn kernels(&self) -> String {
        self.backend.kernels()
    }

    /// How the backend rounds.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.numerics().stores, girih::DType::F32);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn numerics(&self) -> Numerics {
        self.backend.numerics(&self.graph)
    }

    /// A sentence about the rounding that the machine's model decided by default, if it did; results depend on
    /// it. An option of the backend overrides it.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// // The built-in model has F32 weights, which are multiplied in f32 on every machine.
    /// assert_eq!(plan.machine_default(), None);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn machine_default(&self) -> Option<String> {
        self.backend.machine_default(&self.graph)
    }

    /// The name of the arithmetic: the backend, its kernels, the precision of activations and the type of the KV
    /// cache. With the same name, version, model and request, the `cpu` backend gives the same bits on every
    /// machine.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// println!("{}", plan.arithmetic()); // such as cpu-avx512-f32-kv-f16
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn arithmetic(&self) -> String {
        let (kernels, activations) = (self.kernels(), self.numerics().name());
        let kernels = if kernels == "-" { String::new() } else { format!("{kernels}-") };
        let kv = self.kv().map_or_else(String::new, |kv| format!("-kv-{}", kv.name()));
        format!("{}-{kernels}{activations}{kv}", self.backend().info().name)
    }

    /// The nodes that the backend does not run, those of a draft model and of an image tower included; empty if the model
    /// can be loaded.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert!(plan.refusals().is_empty());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn refusals(&self) -> Vec<Refusal> {
        let draft = self.draft.iter().flat_map(DraftPlan::refusals);
        let tower = self.tower.iter().flat_map(TowerPlan::refusals);
        self.backend.refuses(&self.graph).into_iter().chain(draft).chain(tower).collect()
    }

    /// The nodes that the host computes for the device, each with the numbers of rows of the
    /// steps in which it does.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// for (work, rows) in plan.host_work()? {
    ///     println!("{} in steps of {rows:?} rows: {}", work.name, work.reason);
    /// }
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// When a graph cannot be made.
    pub fn host_work(&self) -> Result<Vec<(HostWork, Vec<u32>)>> {
        let mut all: Vec<(HostWork, Vec<u32>)> = Vec::new();
        for key in self.backend.ladder(self.key) {
            let graph = self.model.files().graph(key, graph_options(&self.options))?;
            for work in self.backend.host_work(&graph) {
                match all.iter_mut().find(|(known, _)| *known == work) {
                    Some((_, rows)) => rows.push(key.rows),
                    None => all.push((work, vec![key.rows])),
                }
            }
        }
        Ok(all)
    }

    /// The limits on one request.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert_eq!((plan.limits().context, plan.limits().sequences), (512, 1));
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn limits(&self) -> EngineLimits {
        let Key { rows, sequences, context, .. } = self.key;
        let RunOptions { tenant_waiting, step_time, .. } = self.options;
        // A device that fills steps up to the sizes of its programs is as slow with fewer rows.
        let step_time = step_time.filter(|_| self.backend.ladder(self.key).len() == 1);
        let row_work = step_time.map_or_else(RowWork::default, |_| row_work(&self.graph));
        EngineLimits { sequences, tenant_waiting, step_time, row_work, ..EngineLimits::new(context, rows) }
    }

    /// Loads the model on this thread, which then runs its steps: for programs that call the
    /// engine themselves, with the types of [`engine`](crate::engine). Such a program bounds its
    /// own queue: [`RunOptions::waiting`] and [`RunOptions::unread_events`] do not apply.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// let mut engine = plan.load(|_| {})?;
    /// let logits = engine.last_logits(&[1, 2, 3], &mut girih::Unwatched)?;
    /// assert_eq!(logits.len(), 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if the model does not fit into memory, [`ErrorKind::Refused`] if
    /// the backend refuses a node, [`ErrorKind::Cancelled`] if the session was dropped, others if
    /// a file cannot be read or was changed since the model was opened.
    pub fn load(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Result<Engine> {
        self.require_decoder()?;
        self.load_engine(ProgressCallback::new(progress))
    }

    /// Loads an encoder on this thread, which then runs its steps.
    ///
    /// ```no_run
    /// use girih::{Model, RunOptions};
    ///
    /// let plan = Model::open("models/all-MiniLM-L6-v2")?.plan(RunOptions::default())?;
    /// let mut embedder = plan.load_embedder(|_| {})?;
    /// let rows = embedder.embed(&["a cat", "a dog"])?;
    /// assert_eq!(rows.len(), 2);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::load`]; of the kind [`ErrorKind::Refused`] if the model is no encoder, or has no
    /// tokenizer.
    pub fn load_embedder(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Result<Embedder> {
        let model = self.model.clone();
        model.text_processor()?;
        Ok(Embedder::new(model, self.load_encoder(progress)?))
    }

    /// As [`Plan::load_embedder`], for tokens instead of texts.
    ///
    /// ```no_run
    /// use girih::engine::EncoderInput;
    /// use girih::{Model, RunOptions, Unwatched};
    ///
    /// let plan = Model::open("models/all-MiniLM-L6-v2")?.plan(RunOptions::default())?;
    /// let mut encoder = plan.load_encoder(|_| {})?;
    /// let text = EncoderInput { tokens: &[101, 7592, 102], token_types: &[] };
    /// let rows = encoder.encode(&[text], &mut Unwatched)?;
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::load_embedder`].
    pub fn load_encoder(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Result<Encoder> {
        if !self.model.files().facts.is_encoder() {
            let name = self.model.name();
            let sentence = format!("{name} generates text and defines no embeddings; use an encoder");
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        Encoder::new(self.load_runner(progress)?)
    }

    /// Refuses an encoder.
    pub(crate) fn require_decoder(&self) -> Result<()> {
        if !self.model.files().facts.is_encoder() {
            return Ok(());
        }
        let name = self.model.name();
        let sentence = format!("{name} is an encoder, which generates no text; use it for embeddings");
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }

    /// As [`Plan::load`], without an engine and a draft model: for programs that time single steps.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// let runner = plan.load_runner(|_| {})?;
    /// assert_eq!(runner.width(), 512);
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::load`].
    pub fn load_runner(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Result<Box<dyn Runner>> {
        let alone = Plan { draft: None, ..self };
        alone.check_memory()?;
        let total = alone.read_bytes();
        alone.load_weights(&ProgressCallback::new(progress), 0, total)
    }

    /// Loads only the layer that predicts the token after the next one ([`Drafts::Mtp`]) or an assistant, with its graph
    /// and how the backend rounds: for programs that compare it with a reference.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert!(plan.load_mtp_layer(|_| {}).is_err(), "the plan has no such layer");
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::load`]; of the kind [`ErrorKind::Refused`] if the plan drafts by other means.
    pub fn load_mtp_layer(
        self,
        progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<(Box<dyn Runner>, Graph, Numerics)> {
        let Some(DraftPlan::Mtp(plan)) = self.draft else {
            let sentence = "the plan has no layer for multi-token prediction; plan with its drafts";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        };
        let (graph, numerics) = (plan.graph().clone(), plan.numerics());
        let total = weight_bytes(&graph).saturating_sub(plan.memory().host.in_file);
        Ok((plan.load_runner(&ProgressCallback::new(progress), 0, total)?, graph, numerics))
    }

    /// Loads the model, and its draft model if there is one, into an engine.
    pub(crate) fn load_engine(mut self, callback: ProgressCallback) -> Result<Engine> {
        self.check_memory()?;
        let (limits, drafts, max) = (self.limits(), self.options.drafts.clone(), self.options.draft_max);
        let (draft, own) = (self.draft.take(), self.read_bytes());
        let drafting = draft.as_ref().map_or(0, DraftPlan::weight_bytes);
        let (total, control) = (own.saturating_add(drafting), Arc::clone(self.services.control()));
        let mut engine = Engine::new(self.load_weights(&callback, 0, total)?, limits)?;
        // A longer draft has no output rows.
        let max = max.min(engine.runner().max_key().output_rows);
        let source = match (drafts, draft) {
            (Drafts::PromptLookup, _) => DraftSource::PromptLookup,
            (_, Some(DraftPlan::Model(draft))) => draft.load_draft(&callback, own, total)?,
            (_, Some(DraftPlan::Mtp(draft))) => draft.load(&callback, limits, [drafting, own, total])?,
            _ => return Ok(engine),
        };
        engine.set_drafts(source, max);
        let (costs, drafted) = engine.measure_steps()?;
        control.detail(cost_sentence(&costs, drafted));
        Ok(engine)
    }

    /// Loads a draft model for a model whose weights have `main` bytes.
    fn load_draft(self, callback: &ProgressCallback, main: u64, total: u64) -> Result<DraftSource> {
        let (limits, control) = (self.limits(), Arc::clone(self.services.control()));
        // Decode reads all weights, so its time is in proportion to their bytes.
        let relative_cost = self.read_bytes() as f32 / main.max(1) as f32;
        let name = draft_name(&self.model);
        if relative_cost > MAX_USEFUL_COST {
            control.note(format!(
                "{name} reads {:.0} % of the weights that the model reads for a token, so drafts rarely pay: \
                 choose a smaller one",
                100.0 * relative_cost
            ));
        }
        let runner = self.load_weights(callback, main, total);
        let model = runner.and_then(|runner| {
            DraftModel::new(runner, limits, relative_cost, move |note| control.note(note))
        });
        model.map(DraftSource::model).map_err(|error| error.of(name))
    }

    /// The bytes of the weights that are read before the first step.
    fn read_bytes(&self) -> u64 {
        let in_file = self.backend.plan(&self.graph, &self.blocks).host.in_file;
        weight_bytes(&self.graph).saturating_sub(in_file)
    }

    /// Takes the plan of the image tower, which is loaded later.
    pub(crate) fn take_tower(&mut self) -> Option<TowerPlan> {
        self.tower.take()
    }

    /// Checks that the plan fits into memory.
    pub(crate) fn check_memory(&self) -> Result<()> {
        // A plan with refusals may have no meaningful size; loading names the refusal.
        if self.refusals().is_empty() {
            if process_room().is_some() {
                // Its memory then counts as used. A request reports its error.
                let _ = self.model.text_processor();
            }
            check(&self.memory())?;
        }
        Ok(())
    }

    /// Loads the weights and compiles the programs. Progress counts from `done` bytes to `total`.
    fn load_weights(self, callback: &ProgressCallback, done: u64, total: u64) -> Result<Box<dyn Runner>> {
        let Plan { model, options, backend, services, key, blocks, .. } = self;
        services.control().connect(callback.clone());
        let source = CountedWeights {
            source: &model.files().weights,
            callback,
            total,
            done: AtomicU64::new(done),
            cancelled: &services.control().cancelled,
        };
        let graph_options = graph_options(&options);
        let runner = backend.load(&source, key, &blocks, &|key| model.files().graph(key, graph_options))?;
        source.check_unchanged()?;
        if let Some(error) = model.quantization_error() {
            services.control().note(error_sentence(&error));
        }
        Ok(runner)
    }

    /// The plan of the image tower, if requests may have images.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert!(plan.tower().is_none());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn tower(&self) -> Option<&TowerPlan> {
        self.tower.as_ref()
    }

    pub(crate) fn services(&self) -> &Arc<ModelServices> {
        &self.services
    }

    pub(crate) fn graph_options(&self) -> GraphOptions {
        graph_options(&self.options)
    }

    /// How the model is to run.
    ///
    /// ```
    /// # let plan = girih::Model::open("stories260k")?.plan(girih::RunOptions::default())?;
    /// assert_eq!(plan.options().sequences, 1);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn options(&self) -> &RunOptions {
        &self.options
    }
}

/// The bytes of a graph's weights in the model's files.
fn weight_bytes(graph: &Graph) -> u64 {
    let bytes = graph.weights().filter_map(|(_, value)| value.dtype.bytes(&value.shape).ok());
    bytes.map(|bytes| bytes as u64).sum()
}

/// A sentence about the times of steps. To draft a token takes `drafted` steps of one row.
fn cost_sentence(costs: &StepCosts, drafted: f32) -> String {
    let point = |(rows, cost): &(u32, f32)| format!("{rows}: {cost:.2}");
    let points: Vec<String> = costs.points().iter().map(point).collect();
    let one_row = costs.one_row().unwrap_or_default().as_secs_f64() * 1e3;
    format!(
        "a step of one row takes {one_row:.2} ms; in such steps, steps of more rows take {}, and a drafted token {drafted:.2}",
        points.join(", ")
    )
}

/// A sentence about the error of weights that were quantized while they were loaded.
fn error_sentence(error: &QuantizationError) -> String {
    let QuantizationError { dtype, matrices, relative_rms, worst } = error;
    match worst {
        None => format!(
            "no matrix that is quantized to {dtype} was read while loading: it came from the cache of packed weights, where \
             --packed-cache off measures its error, or stays in its file"
        ),
        Some((name, of_worst)) => format!(
            "matrices quantized to {dtype}, or to f16 where rows are no whole blocks: {matrices}, with a relative RMS error of \
             {relative_rms:.5}; the largest is {of_worst:.5} in '{name}'"
        ),
    }
}

/// Whether a draft model reads the hidden states of the model that it drafts for.
fn is_assistant(draft: &Model) -> bool {
    draft.files().facts.assistant.is_some()
}

/// What an error calls a draft model.
fn draft_name(draft: &Model) -> String {
    format!("draft model {}", draft.name())
}

fn graph_options(options: &RunOptions) -> GraphOptions {
    GraphOptions {
        state: options.kv.unwrap_or(DEFAULT_KV),
        given_rows: options.given_rows || options.images,
        hidden_rows: match &options.drafts {
            Drafts::Mtp => true,
            Drafts::Model(draft) => is_assistant(draft),
            Drafts::Off | Drafts::PromptLookup => false,
        },
    }
}

/// The largest step of a model with these options.
fn largest_step(model: &Model, options: &RunOptions) -> Result<Key> {
    let refused = |sentence: String| Err(Error::with_kind(ErrorKind::Refused, sentence));
    let RunOptions { context, chunk, sequences, output_rows, unread_events, draft_max, .. } = *options;
    let max = model.max_context();
    let context = context.unwrap_or_else(|| default_context(max));
    if context > max {
        return refused(format!(
            "a context of {context} tokens is too large: the model supports {max} tokens"
        ));
    }
    let counts = [
        ("positions", context),
        ("rows per step", chunk),
        ("sequences", sequences),
        ("unread events", unread_events),
        ("requests of a tenant", options.tenant_requests),
        ("drafted tokens", draft_max),
    ];
    if let Some((what, _)) = counts.iter().find(|(_, count)| *count == 0) {
        return refused(format!("0 {what} were requested; request at least 1"));
    }
    let is_encoder = model.files().facts.is_encoder();
    if let (true, Some(kv)) = (is_encoder, options.kv)
        && kv != DType::F32
    {
        return refused(format!("a KV cache in {kv} was requested, but an encoder has none; omit the type"));
    }
    // An encoder runs each text whole in one step.
    let rows = if is_encoder { chunk.max(context) } else { chunk.min(context) };
    if sequences > rows {
        return refused(format!(
            "{sequences} sequences were requested, each with a row in every step, but a step has at most {rows} rows"
        ));
    }
    let drafted = match options.drafts {
        Drafts::Off => 0,
        _ if is_encoder => {
            return refused("drafts were requested, but an encoder generates no text".to_owned());
        }
        _ if sequences == rows => {
            return refused(format!(
                "drafts were requested, but a step of {rows} rows has none left beside {sequences} sequences; \
                 raise the chunk"
            ));
        }
        _ => draft_max,
    };
    let drafted_rows = sequences.saturating_mul(drafted.saturating_add(1));
    let output_rows = output_rows.max(drafted_rows).min(rows);
    if is_encoder && (options.given_rows || options.images) {
        return refused(
            "rows in place of embeddings were requested, which an encoder does not take".to_owned(),
        );
    }
    let output = if is_encoder { OutputKind::Pooled } else { OutputKind::Logits };
    Ok(Key { rows, sequences, context, output_rows, output })
}
