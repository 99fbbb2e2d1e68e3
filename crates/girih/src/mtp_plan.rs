//! The plan of what reads a model's hidden states and drafts, and its loading: the model's own layer that predicts the
//! token after the next one, or an assistant.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use girih_engine::{DraftSource, EngineLimits, HiddenNames, MtpModel, cache};
use girih_graph::backend::Refusal;
use girih_graph::description::{AnyBackend, Services};
use girih_graph::{Error, Graph, Key, MemoryPlan, Numerics, OutputKind, Result, Runner, WeightSource};
use girih_model::{AssistantFiles, DraftFiles, GraphOptions, ModelLimits};

use crate::model::Model;
use crate::progress::{CountedWeights, LoadControl, ProgressCallback};
use crate::run_options::RunOptions;
use crate::services::{ModelServices, Tables};

/// The largest number of rows of a step. It runs one sequence at a time, and a prompt in several steps.
const MAX_ROWS: u32 = 256;

/// What drafts.
enum DraftParts {
    /// The model's own layer.
    Layer(Arc<DraftFiles>),
    /// An assistant, and the model.
    Assistant { own: Model, target: Model },
}

impl DraftParts {
    fn graph(&self, key: Key, options: GraphOptions) -> Result<Graph> {
        match self {
            DraftParts::Layer(files) => files.graph(key, options),
            DraftParts::Assistant { own, target } => {
                AssistantFiles::new(own.files(), target.files())?.graph(key, options)
            }
        }
    }

    /// The embedding, which may stay in its file.
    fn tables(&self) -> Tables {
        match self {
            DraftParts::Layer(files) => {
                let files = Arc::clone(files);
                Box::new(move |name| (name == "embed.table").then(|| files.weights.rows(name))?)
            }
            DraftParts::Assistant { target, .. } => {
                let target = target.clone();
                Box::new(move |name| AssistantFiles::rows(target.files(), name))
            }
        }
    }

    /// The file whose weights are read first.
    fn first_file(&self) -> Option<PathBuf> {
        let weights = match self {
            DraftParts::Layer(files) => &files.weights,
            DraftParts::Assistant { own, .. } => &own.files().weights,
        };
        weights.container().paths().next().map(|path| path.to_owned())
    }

    fn names(&self, model: &Model) -> Result<HiddenNames> {
        match self {
            DraftParts::Layer(files) => {
                let model = vec![model.files().hidden_name(files.reads)];
                Ok(HiddenNames { model, own: files.own_hidden() })
            }
            DraftParts::Assistant { own, target } => {
                let files = AssistantFiles::new(own.files(), target.files())?;
                Ok(HiddenNames { model: files.reads()?, own: files.own_hidden() })
            }
        }
    }
}

/// What drafts, as a program of its own.
pub(crate) struct MtpPlan {
    files: DraftParts,
    backend: Box<dyn AnyBackend>,
    services: Arc<ModelServices>,
    key: Key,
    options: GraphOptions,
    graph: Graph,
    blocks: Vec<u32>,
    names: HiddenNames,
}

impl MtpPlan {
    /// Plans the layer of a model whose largest step is `of_model`, with these options.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`](crate::ErrorKind::Refused) when the model has no such layer.
    pub fn new(
        model: &Model,
        options: &RunOptions,
        of_model: Key,
        graph_options: GraphOptions,
        control: Arc<LoadControl>,
    ) -> Result<MtpPlan> {
        let named = |error: Error| error.of(format!("--draft mtp of {}", model.name()));
        let files = model.files().draft(&ModelLimits::DEFAULT).map_err(named)?;
        let plan =
            MtpPlan::of(DraftParts::Layer(Arc::new(files)), model, options, of_model, graph_options, control);
        plan.map_err(named)
    }

    /// As [`MtpPlan::new`], of an assistant.
    ///
    /// # Errors
    /// Of the kind [`ErrorKind::Refused`](crate::ErrorKind::Refused) when it is the assistant of another model.
    pub fn of_assistant(
        [own, model]: [&Model; 2],
        options: &RunOptions,
        of_model: Key,
        graph_options: GraphOptions,
        control: Arc<LoadControl>,
    ) -> Result<MtpPlan> {
        let files = DraftParts::Assistant { own: own.clone(), target: model.clone() };
        let plan = MtpPlan::of(files, model, options, of_model, graph_options, control);
        plan.map_err(|error| error.of(format!("--draft {} of {}", own.name(), model.name())))
    }

    fn of(
        files: DraftParts,
        model: &Model,
        options: &RunOptions,
        of_model: Key,
        graph_options: GraphOptions,
        control: Arc<LoadControl>,
    ) -> Result<MtpPlan> {
        let rows = of_model.rows.min(MAX_ROWS);
        let key =
            Key { rows, output_rows: of_model.sequences.min(rows), output: OutputKind::Logits, ..of_model };
        let options_of_graph = GraphOptions { given_rows: false, hidden_rows: false, ..graph_options };
        let graph = files.graph(key, options_of_graph)?;
        let blocks = cache::blocks_of(&graph);
        let services = ModelServices::new(model.open_options(), files.first_file(), control);
        let services = Arc::new(services.with_tables(files.tables()));
        let backend = options.backend.open(&(Arc::clone(&services) as Arc<dyn Services>))?;
        let names = files.names(model)?;
        Ok(MtpPlan { files, backend, services, key, options: options_of_graph, graph, blocks, names })
    }

    /// The bytes that it takes.
    pub fn memory(&self) -> MemoryPlan {
        self.backend.plan(&self.graph, &self.blocks)
    }

    /// The nodes that the backend does not run.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.backend.refuses(&self.graph)
    }

    /// How the backend rounds.
    pub fn numerics(&self) -> Numerics {
        self.backend.numerics(&self.graph)
    }

    /// The graph of the largest step.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Loads it alone.
    ///
    /// # Errors
    /// As [`Plan::load`](crate::Plan::load).
    pub fn load_runner(self, callback: &ProgressCallback, done: u64, total: u64) -> Result<Box<dyn Runner>> {
        let MtpPlan { files, backend, services, key, options, blocks, .. } = self;
        let control = services.control();
        control.connect(callback.clone());
        let assistant;
        let weights: &dyn WeightSource = match &files {
            DraftParts::Layer(files) => &files.weights,
            DraftParts::Assistant { own, target } => {
                assistant = AssistantFiles::new(own.files(), target.files())?;
                &assistant
            }
        };
        let source = CountedWeights {
            source: weights,
            callback,
            total,
            done: AtomicU64::new(done),
            cancelled: &control.cancelled,
        };
        let runner = backend.load(&source, key, &blocks, &|key| files.graph(key, options))?;
        source.check_unchanged()?;
        Ok(runner)
    }

    /// Loads it for a model whose weights have `main` bytes, and whose requests have these limits.
    ///
    /// # Errors
    /// As [`Plan::load`](crate::Plan::load).
    pub fn load(
        self,
        callback: &ProgressCallback,
        limits: EngineLimits,
        [own, main, total]: [u64; 3],
    ) -> Result<DraftSource> {
        let (names, told) = (self.names.clone(), Arc::clone(self.services.control()));
        let limits = EngineLimits { chunk: self.key.rows, ..limits };
        let runner = self.load_runner(callback, main, total)?;
        // Decode reads all weights, so its time is in proportion to their bytes.
        let relative_cost = own as f32 / main.max(1) as f32;
        let model = MtpModel::new(runner, limits, relative_cost, names, move |note| told.note(note))?;
        Ok(DraftSource::mtp(model))
    }
}
