//! The report of a model on an array.

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::driver::CompiledGraph;
use girih_npu::kernel::KernelTimes;
use girih_tensor::{Error, Result};
use serde::Serialize;

use super::figures::SourcedFigure;
use super::limits::ArrayLimits;
use super::step::StepReport;

/// A model on an array.
#[derive(Clone, Debug, Serialize)]
pub struct ModelReport {
    /// The model's name, as the user gave it.
    pub model: String,
    /// The target's name.
    pub target: String,
    /// The target's title for display.
    pub title: String,
    /// The mapping's name, as the user gave it.
    pub mapping: String,
    /// Rows of tiles, including shims and memory tiles, and columns.
    pub grid: (u32, u32),
    /// The limits of the array.
    pub limits: ArrayLimits,
    /// Each step that was simulated.
    pub steps: Vec<StepReport>,
    /// The figures that the report rests on.
    pub figures: Vec<SourcedFigure>,
}

impl ModelReport {
    /// Simulates a step of each graph. `steps` holds each graph, its programs as
    /// compiled with the named mapping, and the number of tokens before the step.
    ///
    /// # Errors
    /// When a schedule is faulty, or a graph has several sequences.
    pub fn of(
        model: &str,
        mapping: &str,
        target: &Target,
        steps: &[(&Graph, &CompiledGraph, u32)],
    ) -> Result<ModelReport> {
        if let Some((graph, ..)) = steps.iter().find(|(graph, ..)| graph.key.sequences > 1) {
            let sequences = graph.key.sequences;
            return Err(Error::new(format!("a report has steps of one sequence; {model} has {sequences}")));
        }
        let limits = ArrayLimits::of(target);
        let steps = steps
            .iter()
            .map(|(graph, compiled, position)| StepReport::of(graph, compiled, target, &limits, *position));
        let steps = steps.collect::<Result<_>>()?;
        let mut figures: Vec<SourcedFigure> = target.figures.iter().map(SourcedFigure::from).collect();
        figures.extend(KernelTimes::of(target)?.figures().iter().map(SourcedFigure::from));
        Ok(ModelReport {
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
