//! The plan of a model's layer that predicts the token after the next one, and its loading.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use girih_engine::{DraftSource, EngineLimits, HiddenNames, MtpModel, cache};
use girih_graph::backend::Refusal;
use girih_graph::description::{AnyBackend, Services};
use girih_graph::{Error, Graph, Key, MemoryPlan, Numerics, OutputKind, Result, Runner, WeightSource as _};
use girih_model::{DraftFiles, GraphOptions, ModelLimits};

use crate::model::Model;
use crate::progress::{CountedWeights, LoadControl, ProgressCallback};
use crate::run_options::RunOptions;
use crate::services::ModelServices;

/// The largest number of rows of a step. It runs one sequence at a time, and a prompt in several steps.
const MAX_ROWS: u32 = 256;

/// The layer as a program of its own.
pub(crate) struct MtpPlan {
    files: DraftFiles,
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
        let rows = of_model.rows.min(MAX_ROWS);
        let key =
            Key { rows, output_rows: of_model.sequences.min(rows), output: OutputKind::Logits, ..of_model };
        let options_of_graph = GraphOptions { given_rows: false, hidden_rows: false, ..graph_options };
        let graph = files.graph(key, options_of_graph).map_err(named)?;
        let blocks = cache::blocks_of(&graph);
        let first_file = files.weights.container().paths().next().map(|path| path.to_owned());
        let services = Arc::new(ModelServices::new(model.open_options(), first_file, control));
        let backend = options.backend.open(&(Arc::clone(&services) as Arc<dyn Services>))?;
        let names = HiddenNames { model: model.files().hidden_name(files.reads), own: files.own_hidden() };
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
        let source = CountedWeights {
            source: &files.weights,
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
