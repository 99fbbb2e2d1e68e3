//! What a compiled model does on an array: time, use of tiles, channels and
//! DRAM, rooflines, what binds each launch, and an estimate of energy. It
//! counts what the simulator shows and judges nothing that it cannot see.
//!
//! | part | file |
//! |---|---|
//! | the step in the order of its time | `walk` |
//! | what cores and channels did | `count` |
//! | limits, and what binds a launch | `limits` |
//! | the estimate of energy | `energy` |
//! | a trace for Perfetto | `trace` |
//! | published times beside it | `compare` |
//! | text, and one page of HTML | `text`, `page` |

mod compare;
mod count;
mod energy;
mod limits;
mod page;
mod step;
mod text;
mod trace;
mod walk;

use girih_graph::Graph;
use girih_tensor::Result;
use serde::Serialize;

use crate::Target;
use crate::driver::CompiledGraph;
use crate::kernel::KernelTimes;
use crate::target::{Figure, Grade};

pub use compare::{Compared, ComparedHost, ComparedPass, ComparedRow};
pub use energy::Energy;
pub use limits::{Bound, Limits, Shares};
pub use page::page;
pub use step::{ChannelUse, EntryUse, LaunchUse, ProgramUse, StepReport, TileUse};
pub use trace::{About, AboutStep, Trace};
pub use walk::{Span, SpanKind};

/// A model on an array.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What the user calls the model.
    pub model: String,
    /// The target's name.
    pub target: String,
    /// The target's name for people.
    pub title: String,
    /// What the user calls the mapping.
    pub mapping: String,
    /// Rows of tiles, shims and memory tiles included, and columns.
    pub grid: (u32, u32),
    /// What the array could do.
    pub limits: Limits,
    /// Each step that was simulated.
    pub steps: Vec<StepReport>,
    /// The figures that all of it rests on.
    pub figures: Vec<Sourced>,
}

/// A figure of a target or a kernel, with its grade and source.
#[derive(Clone, Debug, Serialize)]
pub struct Sourced {
    /// Where it stands: `dram.bytes_per_second`, `gemm_bf16.step`.
    pub path: String,
    /// The value as its file has it.
    pub value: String,
    /// How well it is known.
    pub grade: String,
    /// Who says so, or why it is assumed.
    pub source: String,
}

impl From<&Figure> for Sourced {
    fn from(figure: &Figure) -> Sourced {
        let Figure { path, value, grade, source } = figure.clone();
        Sourced { path, value, grade: grade.to_string(), source }
    }
}

impl Report {
    /// Simulates a step of each graph, laid onto the array by a mapping of this
    /// name. `steps` are the graphs as they were
    /// compiled, and how many tokens their sequence has before them.
    ///
    /// # Errors
    /// When a schedule is faulty.
    pub fn of(
        model: &str,
        mapping: &str,
        target: &Target,
        steps: &[(&Graph, &CompiledGraph, u32)],
    ) -> Result<Report> {
        let limits = Limits::of(target);
        let steps = steps
            .iter()
            .map(|(graph, compiled, position)| StepReport::of(graph, compiled, target, &limits, *position));
        let steps = steps.collect::<Result<_>>()?;
        let mut figures: Vec<Sourced> = target.figures.iter().map(Sourced::from).collect();
        figures.extend(KernelTimes::of(target)?.figures().iter().map(Sourced::from));
        Ok(Report {
            model: model.to_owned(),
            target: target.name.clone(),
            title: target.title.clone(),
            mapping: mapping.to_owned(),
            grid: (1 + target.array.memory_rows + target.array.compute_rows, target.array.columns),
            limits,
            steps,
            figures,
        })
    }

    /// The grade of a figure.
    pub fn grade(&self, path: &str) -> Option<&str> {
        self.figures.iter().find(|figure| figure.path == path).map(|figure| figure.grade.as_str())
    }
}

/// How many figures have each grade, from the best known to guesses.
pub fn grades(figures: &[Sourced]) -> Vec<(&'static str, usize)> {
    let all = [Grade::Measured, Grade::Documented, Grade::Derived, Grade::Guessed];
    let names = ["measured", "documented", "derived", "guessed"];
    let count = |grade: &Grade| figures.iter().filter(|figure| figure.grade == grade.to_string()).count();
    names.into_iter().zip(all.iter().map(count)).collect()
}
