//! The published tiles as validated: the launches of mlir-air's Llama-3.2-1B, built by hand with the
//! measured tiles. girih's own compilation of these tiles is slower, so a gain against it is larger.

use girih_graph::Graph;
use girih_npu::Target;
use girih_npu::form::groups::{Groups, Kernel, StepAction};
use girih_npu::sim::Simulator;
use girih_tensor::Result;

use super::timing::TimedMapping;
use crate::published::{PassTime, llama_layers, pass_times};

/// Columns of cores that the published launches need.
const PUBLISHED_COLUMNS: u32 = 8;

/// The array times of the published passes with the figures of `target`, if `timed` has steps of the
/// published model; else none.
///
/// # Errors
/// When a run has a fault.
pub fn published_tiles(graphs: &[Graph], timed: &TimedMapping, target: &Target) -> Result<Vec<PassTime>> {
    let (rows, layers, operations) = llama_layers();
    let of_model = graphs.iter().zip(&timed.steps).any(|(graph, step)| {
        u64::from(graph.key.rows) == rows && gemm_operations(&step.compiled.groups) == layers * operations
    });
    if !of_model || target.array.columns < PUBLISHED_COLUMNS {
        return Ok(Vec::new());
    }
    pass_times(&|_| Simulator::new(target))
}

/// The operations of all matmuls of a step.
fn gemm_operations(groups: &Groups) -> u64 {
    let of_step = |step: &StepAction| {
        let StepAction::Array { program, .. } = step else { return 0 };
        let launches = groups.programs[*program as usize].launches.iter();
        let gemms = launches.filter(|launch| matches!(launch.kernel, Kernel::Gemm { .. }));
        gemms.map(|launch| launch.kernel.flops()).sum::<u64>()
    };
    groups.steps.iter().map(of_step).sum()
}
