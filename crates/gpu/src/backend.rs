//! The backend: the parts of the crate that each call uses.

use std::sync::Arc;

use girih_graph::backend::{Backend, Refusal, Step, WeightSource};
use girih_graph::{AppliedOp, DevicePool, Graph, HostRows, Key, MemoryPlan, Numerics, PoolBytes, Value};
use girih_tensor::Result;

use crate::device::{GpuDevice, UPLOAD_BYTES};
use crate::device_list::AdapterChoice;
use crate::output::GpuOutput;
use crate::program::{GpuProgram, scratch_bytes, staging_bytes};
use crate::refuse;
use crate::state::GpuState;
use crate::weights::GpuWeights;

/// The backend that runs graphs on a GPU.
#[derive(Debug)]
pub struct GpuBackend {
    device: Arc<GpuDevice>,
    /// The bytes of the device's memory that a model may take. `u64::MAX` if nobody tells; then the driver refuses what it has
    /// no room for.
    memory: u64,
}

impl GpuBackend {
    /// Opens a GPU. A model may take `memory` bytes of it, or what its driver says is free; software has the host's memory, of
    /// which it says nothing.
    ///
    /// # Errors
    /// When there is no such GPU, or it lacks what the kernels need.
    pub fn open(choice: &AdapterChoice, memory: Option<u64>) -> Result<GpuBackend> {
        let adapter = choice.find()?;
        let memory = memory.or_else(|| adapter.free_memory());
        Ok(GpuBackend::on(GpuDevice::open(&adapter)?, memory))
    }

    /// The backend on an open device.
    fn on(device: Arc<GpuDevice>, memory: Option<u64>) -> GpuBackend {
        GpuBackend { device, memory: memory.unwrap_or(u64::MAX) }
    }
}

impl Backend for GpuBackend {
    type Weights = GpuWeights;
    type State = GpuState;
    type Program = GpuProgram;
    type Output = GpuOutput;

    fn name(&self) -> &'static str {
        "gpu"
    }

    fn kernels(&self) -> String {
        self.device.product.clone()
    }

    fn describe(&self, _: &Graph) -> String {
        let GpuDevice { name, product, driver, .. } = &*self.device;
        format!("gpu:{name}, {product}, {driver}")
    }

    /// Weights have the numbers of their format, and everything else is `f32`.
    fn numerics(&self, _: &Graph) -> Numerics {
        Numerics::single()
    }

    fn ladder(&self, largest: Key) -> Vec<Key> {
        vec![largest]
    }

    fn knows(&self, call: &AppliedOp<&Value>) -> bool {
        refuse::knows(call)
    }

    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        refuse::objections(graph)
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let bytes = PoolBytes {
            weights: GpuWeights::plan(graph),
            in_file: 0,
            state: GpuState::plan(graph, blocks),
            scratch: scratch_bytes(graph, self.device.binding_limit()),
            output: 0,
            staging: 0,
        };
        let host = PoolBytes {
            output: HostRows::plan(graph),
            staging: staging_bytes(graph).saturating_add(3 * UPLOAD_BYTES as u64),
            ..PoolBytes::default()
        };
        let host = if self.device.shares_memory { host.plus(bytes) } else { host };
        MemoryPlan { host, device: Some(DevicePool { bytes, free: self.memory }) }
    }

    fn load(&self, graph: &Graph, source: &dyn WeightSource) -> Result<GpuWeights> {
        GpuWeights::load(&self.device, graph, source)
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<GpuState> {
        GpuState::new(&self.device, graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &GpuWeights) -> Result<GpuProgram> {
        GpuProgram::new(graph, weights)
    }

    fn output(&self, graph: &Graph) -> Result<GpuOutput> {
        GpuOutput::new(graph)
    }

    fn run(
        &self,
        program: &GpuProgram,
        _: &GpuWeights,
        state: &mut GpuState,
        output: &mut GpuOutput,
        step: Step<'_>,
    ) -> Result<()> {
        program.run(state, output, step)
    }
}

#[cfg(test)]
mod tests {
    use girih_graph::OpName;
    use girih_graph::description::AnyBackend;
    use girih_graph::testing::{Open, Roundoff, TestedBackend, check_cases, draw, error_shares};

    use super::*;
    use crate::device_list::adapters;
    use crate::kernel::KernelTuning;

    /// Ops on one device with the kernels of GPUs and with those of software.
    #[test]
    fn the_tuning_of_kernels_changes_no_byte() {
        let adapters = adapters();
        let Some(adapter) = adapters.first() else {
            eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
            return;
        };
        let opened =
            |tuning| Arc::new(GpuDevice::new(adapter, tuning).expect("the adapter has what kernels need"));
        let devices = [KernelTuning::SOFTWARE, KernelTuning::GPU].map(opened);
        let open = |index: usize| -> Box<dyn AnyBackend> {
            Box::new(GpuBackend::on(Arc::clone(&devices[index]), None))
        };
        let ways: [Open<'_>; 2] = [&|| open(0), &|| open(1)];
        let round = Roundoff::SINGLE;
        let ops = [OpName::Linear, OpName::Experts, OpName::Attend, OpName::AttendLatent, OpName::SelectKeys];
        let cases = (0..6).flat_map(|seed| ops.map(|op| (seed, draw(op, seed, round))));
        let report = check_cases(TestedBackend::new("tunings", &ways, Some(round)), cases);
        assert_eq!(report.faults(), [] as [&str; 0]);
    }
    #[test]
    fn a_fault_of_the_device_ends_a_run_with_one_sentence() {
        run_with_faults(6);
    }

    #[test]
    #[ignore = "half a minute"]
    fn a_hundred_faults_of_the_device_end_runs_with_one_sentence_each() {
        run_with_faults(50);
    }

    /// The device is lost, and its memory is short, at each of these places from loading to the last result.
    fn run_with_faults(places: usize) {
        let adapters = adapters();
        let Some(adapter) = adapters.first() else {
            eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
            return;
        };
        let opened =
            || Arc::new(GpuDevice::new(adapter, KernelTuning::SOFTWARE).expect("the adapter suits kernels"));
        let case = draw(OpName::Attend, 3, Roundoff::SINGLE);
        let run = |device: &Arc<GpuDevice>| {
            error_shares(Box::new(GpuBackend::on(Arc::clone(device), None)), &case, Roundoff::SINGLE)
        };
        let device = opened();
        let before = device.checks();
        run(&device).expect("nothing fails yet");
        let checks = device.checks() - before;
        assert!(checks >= 10, "a run has {checks} checks");
        for place in 0..places {
            for (is_lost, part) in
                [(true, "is lost (it was removed): load the model again"), (false, "not enough free memory")]
            {
                let device = opened();
                device.plan_fault(before + place * checks / places, is_lost);
                let sentence = run(&device).expect_err("the driver reports the fault");
                assert!(sentence.contains(part) && !sentence.contains('\n'), "{sentence}");
                assert_eq!(Arc::strong_count(&device), 1, "nothing holds the device any more");
                let next = run(&device);
                match is_lost {
                    true => assert!(next.is_err_and(|sentence| sentence.contains(part))),
                    false => assert!(next.is_ok(), "the device has memory again"),
                }
            }
        }
    }
}
