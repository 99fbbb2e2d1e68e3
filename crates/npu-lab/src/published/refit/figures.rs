//! Values of figures, and arrays that are simulated with them.

use std::collections::BTreeMap;

use girih_npu::Target;
use girih_npu::kernel::KernelTimes;
use girih_npu::sim::Simulator;
use girih_tensor::{Error, Result};

/// The kind of core whose kernels are refitted; those of other kinds follow from rates of one core.
pub(super) const CORE: &str = "aie2p";

/// The target of most tables.
pub(super) const STRIX: &str = "xdna2-strix";
/// The other targets with rows.
pub(super) const KRAKEN: &str = "xdna2-kraken";
pub(super) const PHOENIX: &str = "xdna1-phoenix";

/// A fitted figure.
pub(super) struct FittedFigure {
    pub place: FigurePlace,
    /// Figures of the same file that keep their ratio to it.
    pub followers: &'static [&'static str],
    /// What it and its followers are without rows; none if rows are always left.
    pub without: Option<Derivation>,
}

/// The values that follow from other figures.
type DerivedValues = dyn Fn(&FigureValues) -> Vec<f64> + Send + Sync;

/// The value of a figure, and of each of its followers, that follows from other figures.
pub(super) struct Derivation {
    pub values: Box<DerivedValues>,
    /// In words.
    pub reason: &'static str,
}

/// The file and the path of a figure.
#[derive(Clone, Copy)]
pub(super) enum FigurePlace {
    /// Of the kernels, in cycles.
    Kernel(&'static str),
    /// Of a target and of those that inherit it.
    Target { target: &'static str, path: &'static str, set: fn(&mut Target, f64) },
}

impl FittedFigure {
    /// The file, which is a target or a kind of core, and the path.
    pub fn id(&self) -> (&'static str, &'static str) {
        match self.place {
            FigurePlace::Kernel(path) => (CORE, path),
            FigurePlace::Target { target, path, .. } => (target, path),
        }
    }
}

/// Values of all figures by file and path.
#[derive(Clone)]
pub(super) struct FigureValues {
    values: BTreeMap<(&'static str, String), f64>,
    /// The targets of the repository, whose other figures hold.
    targets: Vec<Target>,
}

impl FigureValues {
    /// The figures of the repository.
    ///
    /// # Errors
    /// When a target does not exist.
    pub fn committed() -> Result<FigureValues> {
        let (mut values, mut targets) = (BTreeMap::new(), Vec::new());
        for name in [STRIX, KRAKEN, PHOENIX] {
            let target = Target::named(name)?;
            let kernels = KernelTimes::of(&target)?;
            let of_core = kernels.figures().iter().filter(|_| name == STRIX).map(|figure| (CORE, figure));
            let all = target.figures.iter().map(|figure| (name, figure)).chain(of_core);
            // Figures of several numbers are not fitted.
            let number = |(file, figure): (_, &girih_npu::target::Figure)| {
                Some(((file, figure.path.clone()), figure.value.parse::<f64>().ok()?))
            };
            values.extend(all.filter_map(number));
            targets.push(target);
        }
        Ok(FigureValues { values, targets })
    }

    /// The value of a figure.
    pub fn of(&self, file: &'static str, path: &str) -> f64 {
        *self.values.get(&(file, path.to_owned())).expect("a test looks up every figure that is named here")
    }

    /// The value of a fitted figure.
    pub fn of_figure(&self, figure: &FittedFigure) -> f64 {
        let (file, path) = figure.id();
        self.of(file, path)
    }

    /// Sets a figure; its followers keep their ratio to it.
    pub fn set(&mut self, figure: &FittedFigure, value: f64) {
        let (file, path) = figure.id();
        let ratio = value / self.of(file, path);
        for follower in figure.followers {
            self.values.insert((file, (*follower).to_owned()), self.of(file, follower) * ratio);
        }
        self.values.insert((file, path.to_owned()), value);
    }

    /// Sets a figure without rows, and its followers.
    pub fn derive(&mut self, figure: &FittedFigure) -> Result<()> {
        let (file, path) = figure.id();
        let Some(without) = &figure.without else {
            return Err(Error::new(format!("{file} {path} has no row left to be fitted to")));
        };
        let values = (without.values)(self);
        let paths = [path].into_iter().chain(figure.followers.iter().copied());
        self.values.extend(paths.zip(values).map(|(path, value)| ((file, path.to_owned()), value)));
        Ok(())
    }

    /// Block and step of an entry, in its own proportion, with which a call of 32 terms takes the cycles
    /// of another entry.
    pub fn as_fast_as(&self, known: &str, entry: &str) -> Vec<f64> {
        let at = |entry: &str, figure: &str| self.of(CORE, &format!("{entry}.{figure}"));
        let whole = |entry: &str| at(entry, "block") + 4.0 * at(entry, "step");
        let factor = whole(known) / whole(entry);
        vec![at(entry, "block") * factor, at(entry, "step") * factor]
    }

    /// A simulated array with the values of `figures`, without a check for races.
    ///
    /// # Errors
    /// When the target has no rows.
    pub fn simulator<'a>(
        &self,
        name: &str,
        figures: impl Iterator<Item = &'a FittedFigure>,
    ) -> Result<Simulator> {
        let committed = self.target(name).ok_or_else(|| Error::new(format!("no row is of target {name}")))?;
        let (mut target, mut times) = (committed.clone(), KernelTimes::of(committed)?);
        let is_of_core = target.core == CORE;
        for figure in figures {
            let (file, path) = figure.id();
            match figure.place {
                FigurePlace::Target { set, .. } if self.inherits(committed, file, path) => {
                    set(&mut target, self.of(file, path));
                }
                FigurePlace::Kernel(path) if is_of_core => {
                    for path in [path].into_iter().chain(figure.followers.iter().copied()) {
                        times.set(path, self.of(file, path))?;
                    }
                }
                _ => {}
            }
        }
        let mut simulator = Simulator::new(&target)?.with_table(times);
        simulator.look_for_hazards(false);
        Ok(simulator)
    }

    fn target(&self, name: &str) -> Option<&Target> {
        self.targets.iter().find(|target| target.name == name)
    }

    /// Whether a target has the figure of another one, or is that target.
    fn inherits(&self, target: &Target, file: &str, path: &str) -> bool {
        let figure = |target: &Target| target.figures.iter().position(|figure| figure.path == path);
        let Some(base) = self.target(file) else { return false };
        figure(target).map(|at| &target.figures[at]) == figure(base).map(|at| &base.figures[at])
    }
}
