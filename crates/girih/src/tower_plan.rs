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
use girih_model::{TowerFiles, TowerPart, layer_output};

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

/// The largest number of rows of kept images of a model whose images have any size: four of the largest ones.
const KEPT_ROWS: usize = 4096;

/// As [`IMAGES_KEPT`], of models that cut pictures into tiles: each is an image. Published ones make at most 17 of a picture.
const TILES_KEPT: usize = 64;

/// The number of images whose rows a session keeps for a tower.
pub(crate) fn images_kept(facts: &TowerFacts) -> usize {
    match facts.tiled_edge {
        None => IMAGES_KEPT,
        Some(_) => TILES_KEPT,
    }
}

/// The largest number of rows of images that a session keeps.
pub(crate) fn kept_rows(facts: &TowerFacts) -> usize {
    let most = images_kept(facts) * facts.max_rows();
    match facts.only_grid() {
        Some(_) => most,
        None => most.min(KEPT_ROWS.max(facts.max_rows())),
    }
}

/// The image tower of a planned model: its programs, from patches to hidden states, from cells of these to rows of the text
/// model, and from those after tapped layers to further rows.
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
    /// In the order of [`TowerPart::all`].
    programs: Vec<ProgramPlan>,
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
        let programs = TowerPart::all(&files.tower).into_iter().map(program).collect::<Result<_>>()?;
        Ok(TowerPlan { files, programs })
    }

    /// Checks that a step of the text model holds an image whose rows attend to each other.
    pub(crate) fn check_steps(&self, key: Key) -> Result<()> {
        let (rows, room) = (self.facts().max_rows(), (key.rows - (key.sequences - 1)) as usize);
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
    /// assert_eq!(tower.facts().max_rows(), 256);
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

    /// The same, to be shared.
    pub(crate) fn shared_files(&self) -> &Arc<TowerFiles> {
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
    pub fn graphs(&self) -> Vec<&Graph> {
        self.programs.iter().map(|plan| &plan.graph).collect()
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
    pub fn numerics(&self) -> Vec<Numerics> {
        self.programs.iter().map(|plan| plan.backend.numerics(&plan.graph)).collect()
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
        let made = 1 + facts.taps.len();
        let rows = kept_rows(facts) * facts.projector.width * made * size_of::<f32>();
        // Patches, the rows of their positions, and hidden states on their way to the other programs.
        let width = self.files.facts.sizes.width;
        let values = facts.max_patches() * (facts.patch_values() + width * (1 + made));
        let staging = (values * size_of::<f32>()) as u64;
        let own = MemoryPlan::on_host(PoolBytes { output: rows as u64, staging, ..PoolBytes::default() });
        let plans = self.programs.iter().map(|plan| plan.backend.plan(&plan.graph, &[]));
        plans.fold(own, MemoryPlan::plus)
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
        self.programs.iter().flat_map(|plan| plan.backend.refuses(&plan.graph)).collect()
    }

    /// Loads it, for programs that run it themselves.
    ///
    /// ```no_run
    /// use girih::{Model, RunOptions, TowerPlan};
    ///
    /// let model = Model::open("models/gemma-3-4b-it")?;
    /// let tower = TowerPlan::new(&model, &RunOptions::default())?.load(|_| {})?;
    /// assert_eq!(tower.patches(), model.image_format()?.max_patches);
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
        let TowerPlan { files, programs } = self;
        let bytes = |plan: &ProgramPlan| -> u64 {
            let bytes = plan.graph.weights().filter_map(|(_, value)| value.dtype.bytes(&value.shape).ok());
            bytes.map(|bytes| bytes as u64).sum()
        };
        let total = programs.iter().map(bytes).fold(0, u64::saturating_add);
        let mut done = 0;
        let mut loaded = Vec::with_capacity(programs.len());
        for program in programs {
            let (part, own) = (program.part, bytes(&program));
            loaded.push((part, program.load(&files, callback, [done, total])?));
            done += own;
        }
        let mut loaded = loaded.into_iter();
        let (Some((_, patches)), Some((_, cells))) = (loaded.next(), loaded.next()) else {
            unreachable!("a tower has these two parts");
        };
        let taps = loaded.zip(&files.tower.taps).map(|((_, tap), layer)| (layer_output(*layer), tap));
        Tower::new(patches, cells, taps.collect())
    }
}

impl ProgramPlan {
    fn load(
        self,
        files: &TowerFiles,
        callback: &ProgressCallback,
        [done, total]: [u64; 2],
    ) -> Result<Box<dyn Runner>> {
        let ProgramPlan { part: _, backend, services, graph } = self;
        let control = services.control();
        control.connect(callback.clone());
        let source = CountedWeights {
            source: &files.weights,
            callback,
            total,
            done: AtomicU64::new(done),
            cancelled: &control.cancelled,
        };
        let runner = backend.load_fixed(&source, &graph)?;
        source.check_unchanged()?;
        Ok(runner)
    }
}
