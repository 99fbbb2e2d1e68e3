//! The backend: the parts of the crate that each call uses.

use std::borrow::Cow;
use std::sync::Arc;

use girih_graph::backend::{Backend, Refusal, Step, WeightSource};
use girih_graph::routed_experts::without_weights;
use girih_graph::{AppliedOp, DevicePool, Graph, HostRows, Key, MemoryPlan, Numerics, PoolBytes, Value};
use girih_tensor::{Error, ErrorKind, Result};

use crate::cuda::refuse::{cuda_knows, cuda_objections};
use crate::device::{GpuDevice, UPLOAD_BYTES};
use crate::device_list::{AdapterChoice, find_cuda};
use crate::integer_source::ProductUnit;
use crate::kernel::KernelTuning;
use crate::output::GpuOutput;
use crate::precision::ActPrecision;
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
    precision: ActPrecision,
    tuning: KernelTuning,
    /// Whether the caller of a step computes routed experts.
    leaves_experts: bool,
}

impl GpuBackend {
    /// Opens a GPU. A model may take `memory` bytes of it, or what its driver says is free; software has the host's memory, of
    /// which it says nothing. Activations are rounded to `precision` before they are multiplied by quantized weights.
    ///
    /// # Errors
    /// When there is no such GPU, or it lacks what the kernels need.
    pub fn open(choice: &AdapterChoice, memory: Option<u64>, precision: ActPrecision) -> Result<GpuBackend> {
        if let AdapterChoice::Cuda(number) = choice {
            let device = GpuDevice::open_cuda(&find_cuda(*number)?)?;
            if precision != ActPrecision::Int8 {
                let sentence =
                    "gpu:cuda has kernels for activations in int8 only: leave --act-precision int8";
                return Err(Error::with_kind(ErrorKind::Refused, sentence));
            }
            let memory = memory.or_else(|| device.free_cuda_memory());
            return Ok(GpuBackend::on(device, memory, precision));
        }
        let adapter = choice.find()?;
        let memory = memory.or_else(|| adapter.free_memory());
        Ok(GpuBackend::on(GpuDevice::open(&adapter)?, memory, precision))
    }

    /// The backend without matrix units (does not affect results).
    ///
    /// # Errors
    /// When its kernels are those for CUDA, which multiply many rows by matrix units only.
    pub fn without_matrix_units(mut self) -> Result<GpuBackend> {
        if self.device.is_cuda() {
            let sentence = "gpu:cuda multiplies many rows by matrix units only: leave --gpu-products matrix";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        self.tuning.unit = ProductUnit::Dot;
        Ok(self)
    }

    /// The backend, if it uses matrix units.
    ///
    /// # Errors
    /// When the GPU lacks those that the kernels are made for.
    pub fn with_matrix_units(self) -> Result<GpuBackend> {
        if self.tuning.unit == ProductUnit::Dot {
            let sentence = format!(
                "{} has no matrix units that girih knows to be exact, such as NVIDIA's: choose gpu-products dot",
                self.device.product
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        Ok(self)
    }

    /// The backend on an open device.
    fn on(device: Arc<GpuDevice>, memory: Option<u64>, precision: ActPrecision) -> GpuBackend {
        let tuning = device.tuning();
        let memory = memory.unwrap_or(u64::MAX);
        GpuBackend { device, memory, precision, tuning, leaves_experts: false }
    }

    /// What the device has of a graph.
    fn own<'g>(&self, graph: &'g Graph) -> Cow<'g, Graph> {
        match self.leaves_experts {
            true => Cow::Owned(without_weights(graph)),
            false => Cow::Borrowed(graph),
        }
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
        let interface = if self.device.is_cuda() { " (CUDA)" } else { "" };
        format!("{}{interface}", self.device.product)
    }

    fn describe(&self, _: &Graph) -> String {
        let GpuDevice { name, product, driver_name, .. } = &*self.device;
        format!("gpu:{name}, {product}, {driver_name}")
    }

    /// Weights have the numbers of their format, and everything but rounded activations is `f32`.
    fn numerics(&self, graph: &Graph) -> Numerics {
        self.precision.numerics(&self.own(graph))
    }

    fn ladder(&self, largest: Key) -> Vec<Key> {
        vec![largest]
    }

    fn knows(&self, call: &AppliedOp<&Value>) -> bool {
        refuse::knows(call) && (!self.device.is_cuda() || cuda_knows(call))
    }

    fn objections(&self, graph: &Graph) -> Vec<Refusal> {
        let own = self.own(graph);
        let mut list = refuse::objections(&own);
        if self.device.is_cuda() {
            list.extend(cuda_objections(&own));
        }
        list
    }

    fn leave_experts(&mut self) -> Result<()> {
        self.leaves_experts = true;
        Ok(())
    }

    fn plan(&self, graph: &Graph, blocks: &[u32]) -> MemoryPlan {
        let graph = &*self.own(graph);
        let bytes = PoolBytes {
            weights: GpuWeights::plan(graph),
            in_file: 0,
            state: GpuState::plan(graph, blocks),
            scratch: scratch_bytes(graph, self.device.binding_limit(), self.precision),
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
        GpuWeights::load(&self.device, &self.own(graph), source, (self.precision, self.tuning))
    }

    fn state(&self, graph: &Graph, blocks: &[u32]) -> Result<GpuState> {
        GpuState::new(&self.device, graph, blocks)
    }

    fn compile(&self, graph: &Graph, weights: &GpuWeights) -> Result<GpuProgram> {
        GpuProgram::new(&self.own(graph), weights)
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
    use girih_graph::testing::{Case, Open, Roundoff, TestedBackend, check_cases, draw, error_shares};
    use girih_tensor::DType;
    use wgpu::Features;

    use super::*;
    use crate::device_list::{GpuAdapter, adapters};
    use crate::layout::BandLayout;

    /// Beyond this number of rows matrix units run.
    const MANY_ROWS: u32 = 64;

    /// Compares devices that differ in their tuning.
    fn compare(tunings: &[KernelTuning], precision: ActPrecision, cases: impl Iterator<Item = (u64, Case)>) {
        let adapters = adapters();
        let Some(adapter) = adapters.first() else {
            eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
            return;
        };
        let opened = |tuning: &KernelTuning| {
            Arc::new(GpuDevice::new(adapter, *tuning).expect("the adapter suits kernels"))
        };
        let devices: Vec<_> = tunings.iter().map(opened).collect();
        let open = |device: &Arc<GpuDevice>| -> Box<dyn AnyBackend> {
            Box::new(GpuBackend::on(Arc::clone(device), None, precision))
        };
        let opens: Vec<_> = devices.iter().map(|device| move || open(device)).collect();
        let ways: Vec<Open<'_>> = opens.iter().map(|open| open as Open<'_>).collect();
        let round = (precision == ActPrecision::F32).then_some(Roundoff::SINGLE);
        let report = check_cases(TestedBackend::new("tunings", &ways, round), cases);
        assert_eq!(report.faults(), [] as [&str; 0]);
    }

    /// Products on one device with the kernels of GPUs and with those of software.
    #[test]
    fn the_tuning_of_kernels_changes_no_byte() {
        for precision in ActPrecision::ALL {
            let ops = [
                OpName::Linear,
                OpName::LinearHeads,
                OpName::Experts,
                OpName::Attend,
                OpName::AttendLatent,
                OpName::SelectKeys,
            ];
            let cases = (0..6).flat_map(|seed| ops.map(|op| (seed, draw(op, seed, Roundoff::SINGLE))));
            compare(&[KernelTuning::SOFTWARE, KernelTuning::GPU], precision, cases);
        }
    }

    /// Loops stand for the matrix units, which software lacks; where the adapter has them, they are compared, too.
    #[test]
    fn matrix_units_and_dot_products_have_the_same_bytes() {
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        let cases = (0..300).map(|seed| (seed, draw(OpName::Linear, seed, Roundoff::SINGLE)));
        let has_many_rows =
            |case: &Case| case.sequences.iter().map(|sequence| sequence.rows).sum::<u32>() > MANY_ROWS;
        let mut is_new = |case: &Case| {
            let weight = case.graph.weights().next().map(|(_, weight)| weight.dtype);
            let Some(layout) = weight.and_then(BandLayout::of) else { return false };
            let is_new = !codes.contains(&layout.codes) || !scales.contains(&layout.scales);
            codes.push(layout.codes);
            scales.push(layout.scales);
            is_new
        };
        let cases = cases.filter(|(_, case)| has_many_rows(case) && is_new(case));
        let has = |has: fn(&GpuAdapter) -> bool| adapters().first().is_some_and(has);
        let mut tunings = vec![KernelTuning::SOFTWARE];
        if has(|adapter| adapter.adapter().features().contains(Features::SHADER_F16)) {
            tunings.push(KernelTuning::SOFTWARE.with_unit(ProductUnit::MatrixTwin));
        }
        if has(GpuAdapter::has_matrix_units) {
            tunings.push(KernelTuning::GPU.with_unit(ProductUnit::Matrix));
        }
        compare(&tunings, ActPrecision::Int8, cases);
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
        let is_held = |case: &Case| case.graph.values.iter().all(|value| value.dtype != DType::Q4_0);
        let mut cases = (0..).map(|seed| draw(OpName::Attend, seed, Roundoff::SINGLE));
        let case = cases.find(is_held).expect("the GPU has most types of state");
        let run = |device: &Arc<GpuDevice>| {
            error_shares(
                Box::new(GpuBackend::on(Arc::clone(device), None, ActPrecision::F32)),
                &case,
                Roundoff::SINGLE,
            )
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
