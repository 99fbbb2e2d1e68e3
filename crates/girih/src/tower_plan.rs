//! The plan of a model's image tower, and its loading.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use girih_engine::Tower;
use girih_graph::backend::Refusal;
use girih_graph::description::{AnyBackend, Services};
use girih_graph::{
    Error, ErrorKind, Graph, Key, MemoryPlan, Numerics, PoolBytes, Result, Runner, WeightSource,
};
use girih_model::arch::TowerFacts;
use girih_model::{TowerFiles, TowerPart};

use crate::free_memory::check;
use crate::model::Model;
use crate::progress::{CountedWeights, LoadControl, Progress, ProgressCallback};
use crate::run_options::RunOptions;
use crate::services::ModelServices;

/// The number of images whose rows a session keeps. A request with more of them would find none of its own again.
///
/// ```
/// assert_eq!(girih::IMAGES_KEPT, 16);
/// ```
pub const IMAGES_KEPT: usize = 16;

/// As [`IMAGES_KEPT`], of models that cut pictures into tiles: each is an image. Published ones make at most 17 of a picture.
const TILES_KEPT: usize = 64;

/// The number of images whose rows a session keeps for a tower.
pub(crate) fn images_kept(facts: &TowerFacts) -> usize {
    match facts.tiled_edge {
        None => IMAGES_KEPT,
        Some(_) => TILES_KEPT,
    }
}

/// The image tower of a planned model: its two programs, from patches to hidden states and from cells of these to rows of
/// the text model.
///
/// ```no_run
/// use girih::{Model, RunOptions};
///
/// let plan = Model::open("models/gemma-3-4b-it")?.plan(RunOptions { images: true, ..RunOptions::default() })?;
/// let tower = plan.tower().expect("it was planned with images");
/// println!("{} bytes", tower.memory().total());
/// # Ok::<(), girih::Error>(())
/// ```
pub struct TowerPlan {
    files: Arc<TowerFiles>,
    patches: ProgramPlan,
    cells: ProgramPlan,
}

/// The plan of one of its programs.
struct ProgramPlan {
    part: TowerPart,
    backend: Box<dyn AnyBackend>,
    services: Arc<ModelServices>,
    graph: Graph,
}

impl fmt::Debug for TowerPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TowerPlan").field("facts", &self.files.tower).finish_non_exhaustive()
    }
}

impl TowerPlan {
    /// Plans the tower of a model.
    ///
    /// ```
    /// use girih::{Model, RunOptions, TowerPlan};
    ///
    /// assert!(TowerPlan::new(&Model::open("stories260k")?, &RunOptions::default()).is_err());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Model::image_format`]; when the backend cannot be made.
    pub fn new(model: &Model, options: &RunOptions) -> Result<TowerPlan> {
        let files = Arc::clone(model.tower_files()?);
        let program = |part| -> Result<ProgramPlan> {
            let graph = files.graph(part)?;
            let first_file = files.weights.container().paths().next().map(|path| path.to_owned());
            let control = Arc::new(LoadControl::default());
            let services = Arc::new(ModelServices::new(model.open_options(), first_file, control));
            let backend = options.backend.open(&(Arc::clone(&services) as Arc<dyn Services>))?;
            Ok(ProgramPlan { part, backend, services, graph })
        };
        let (patches, cells) = (program(TowerPart::Patches)?, program(TowerPart::Cells)?);
        Ok(TowerPlan { files, patches, cells })
    }

    /// Checks that a step of the text model holds an image whose rows attend to each other.
    pub(crate) fn check_steps(&self, key: Key) -> Result<()> {
        let (rows, room) = (self.facts().rows(), (key.rows - (key.sequences - 1)) as usize);
        if !self.facts().image_tokens.mutual || rows <= room {
            return Ok(());
        }
        let sentence = format!(
            "an image has {rows} rows, which one step runs, but a step has room for {room} beside other requests: raise \
             the chunk or the context"
        );
        Err(Error::with_kind(ErrorKind::Refused, sentence))
    }

    /// What the tower reads and makes.
    ///
    /// ```no_run
    /// # use girih::{Model, RunOptions};
    /// # let plan = Model::open("models/gemma-3-4b-it")?.plan(RunOptions { images: true, ..RunOptions::default() })?;
    /// # let tower = plan.tower().unwrap();
    /// assert_eq!(tower.facts().rows(), 256);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn facts(&self) -> &TowerFacts {
        &self.files.tower
    }

    /// Its parameters and weights.
    ///
    /// ```no_run
    /// # use girih::{Model, RunOptions};
    /// # let plan = Model::open("models/gemma-3-4b-it")?.plan(RunOptions { images: true, ..RunOptions::default() })?;
    /// # let tower = plan.tower().unwrap();
    /// assert_eq!(tower.files().facts.layers.len(), 27);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn files(&self) -> &TowerFiles {
        &self.files
    }

    /// Its graphs, in the order in which they run.
    ///
    /// ```no_run
    /// # use girih::{Model, RunOptions};
    /// # let plan = Model::open("models/gemma-3-4b-it")?.plan(RunOptions { images: true, ..RunOptions::default() })?;
    /// # let tower = plan.tower().unwrap();
    /// assert_eq!(tower.graphs()[0].key.rows, 4096);
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn graphs(&self) -> [&Graph; 2] {
        [&self.patches.graph, &self.cells.graph]
    }

    /// How the backend rounds in each of its programs.
    ///
    /// ```no_run
    /// # use girih::{Model, RunOptions};
    /// # let plan = Model::open("models/gemma-3-4b-it")?.plan(RunOptions { images: true, ..RunOptions::default() })?;
    /// # let tower = plan.tower().unwrap();
    /// println!("{}", tower.numerics()[0].name());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn numerics(&self) -> [Numerics; 2] {
        [&self.patches, &self.cells].map(|plan| plan.backend.numerics(&plan.graph))
    }

    /// The bytes that it takes, with the rows of the images that a session keeps.
    ///
    /// ```no_run
    /// # use girih::{Model, RunOptions};
    /// # let plan = Model::open("models/gemma-3-4b-it")?.plan(RunOptions { images: true, ..RunOptions::default() })?;
    /// println!("{} bytes", plan.tower().unwrap().memory().total());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn memory(&self) -> MemoryPlan {
        let facts = self.facts();
        let rows = images_kept(facts) * facts.rows() * facts.projector.width * size_of::<f32>();
        // Patches, and the hidden states on their way to the second program.
        let values = facts.patches() * (facts.patch_values() + self.files.facts.sizes.width);
        let staging = (values * size_of::<f32>()) as u64;
        let own = MemoryPlan::on_host(PoolBytes { output: rows as u64, staging, ..PoolBytes::default() });
        let plans = [&self.patches, &self.cells].map(|plan| plan.backend.plan(&plan.graph, &[]));
        plans.into_iter().fold(own, MemoryPlan::plus)
    }

    /// The nodes that the backend does not run; empty if the tower can be loaded.
    ///
    /// ```no_run
    /// # use girih::{Model, RunOptions};
    /// # let plan = Model::open("models/gemma-3-4b-it")?.plan(RunOptions { images: true, ..RunOptions::default() })?;
    /// assert!(plan.tower().unwrap().refusals().is_empty());
    /// # Ok::<(), girih::Error>(())
    /// ```
    pub fn refusals(&self) -> Vec<Refusal> {
        let plans = [&self.patches, &self.cells];
        plans.iter().flat_map(|plan| plan.backend.refuses(&plan.graph)).collect()
    }

    /// Loads it, for programs that run it themselves.
    ///
    /// ```no_run
    /// use girih::{Model, RunOptions, TowerPlan};
    ///
    /// let model = Model::open("models/gemma-3-4b-it")?;
    /// let tower = TowerPlan::new(&model, &RunOptions::default())?.load(|_| {})?;
    /// assert_eq!(tower.patches(), model.image_format()?.patches());
    /// # Ok::<(), girih::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Plan::load`](crate::Plan::load).
    pub fn load(self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Result<Tower> {
        check(&self.memory())?;
        self.load_with(&ProgressCallback::new(progress))
    }

    /// Loads it.
    pub(crate) fn load_with(self, callback: &ProgressCallback) -> Result<Tower> {
        let TowerPlan { files, patches, cells } = self;
        let bytes = |plan: &ProgramPlan| -> u64 {
            let bytes = plan.graph.weights().filter_map(|(_, value)| value.dtype.bytes(&value.shape).ok());
            bytes.map(|bytes| bytes as u64).sum()
        };
        let (first, second) = (bytes(&patches), bytes(&cells));
        let total = first.saturating_add(second);
        let patches = patches.load(&files, callback, [0, total])?;
        Tower::new(patches, cells.load(&files, callback, [first, total])?)
    }
}

impl ProgramPlan {
    fn load(
        self,
        files: &TowerFiles,
        callback: &ProgressCallback,
        [done, total]: [u64; 2],
    ) -> Result<Box<dyn Runner>> {
        let ProgramPlan { part, backend, services, graph } = self;
        let control = services.control();
        control.connect(callback.clone());
        let source = CountedWeights {
            source: &files.weights,
            callback,
            total,
            done: AtomicU64::new(done),
            cancelled: &control.cancelled,
        };
        let runner = backend.load(&source, graph.key, &[], &|_| files.graph(part))?;
        source.check_unchanged()?;
        Ok(runner)
    }
}
