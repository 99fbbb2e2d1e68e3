//! The device: its buffers, its pipelines, submitting and waiting, and what may go wrong.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use girih_tensor::{Error, ErrorKind, Result};
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingType, Buffer, BufferBinding, BufferBindingType, BufferDescriptor,
    BufferUsages, CommandEncoder, ComputePipeline, ComputePipelineDescriptor, DeviceDescriptor,
    ExperimentalFeatures, Features, Limits, MapMode, MemoryHints, PipelineCompilationOptions,
    PipelineLayoutDescriptor, PollType, ShaderModuleDescriptor, ShaderSource, ShaderStages,
};

use crate::device_list::{GpuAdapter, MATRIX_FEATURES, ready};
use crate::integer_source::ProductUnit;
use crate::kernel::{BindingUse, GpuKernel, IMMEDIATE_BYTES, KernelTuning};
use crate::trusted;

/// After this time a device counts as hung. A step of a large prompt on software may take minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// The bytes of a buffer that is bound where a kernel does not read or write.
const NULL_BYTES: u64 = 256;

/// The most bindings of a launch that it does not write.
const UNWRITTEN: usize = 3;

/// The largest part of data that is uploaded at once.
pub(crate) const UPLOAD_BYTES: usize = 64 << 20;

/// A kernel that the driver has compiled.
pub(crate) struct Pipeline {
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
}

/// A part of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct BufferPart {
    pub buffer: Buffer,
    pub offset: u64,
    pub bytes: u64,
}

impl BufferPart {
    /// A whole buffer.
    pub fn whole(buffer: &Buffer) -> BufferPart {
        BufferPart { buffer: buffer.clone(), offset: 0, bytes: buffer.size() }
    }
}

/// What the driver has reported.
#[derive(Debug, Default)]
struct Faults {
    /// The reason for which the device is lost.
    lost: Option<String>,
    /// The first error since the last check.
    error: Option<Error>,
    /// What tests have the driver report.
    #[cfg(test)]
    planned: PlannedFault,
}

/// A fault that a test plans, to be reported by a later check.
#[cfg(test)]
#[derive(Debug, Default)]
struct PlannedFault {
    /// The checks so far.
    checks: usize,
    /// The number of the check that reports it, and whether the device is lost; else its memory is short.
    fault: Option<(usize, bool)>,
}

#[cfg(test)]
impl Faults {
    /// Counts a check; that of the planned number finds the fault.
    fn count(&mut self) {
        let number = self.planned.checks;
        self.planned.checks += 1;
        if let Some((_, is_lost)) = self.planned.fault.take_if(|(at, _)| *at == number) {
            if is_lost {
                self.lost = Some("it was removed".to_owned());
            } else {
                self.error = Some(out_of_memory());
            }
        }
    }
}

/// An open device.
pub(crate) struct GpuDevice {
    pub name: String,
    pub product: String,
    pub driver: String,
    /// Whether its memory is the host's.
    pub shares_memory: bool,
    is_software: bool,
    device: wgpu::Device,
    queue: wgpu::Queue,
    faults: Arc<Mutex<Faults>>,
    pipelines: Mutex<HashMap<GpuKernel, Arc<Pipeline>>>,
    limits: Limits,
    tuning: KernelTuning,
    has_timestamps: bool,
    unread: Buffer,
    unwritten: [Buffer; UNWRITTEN],
}

/// The devices that this process has open: several models share one, and its compiled kernels.
static OPEN: Mutex<Vec<Weak<GpuDevice>>> = Mutex::new(Vec::new());

/// A panic elsewhere leaves the data whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuDevice")
            .field("name", &self.name)
            .field("product", &self.product)
            .finish_non_exhaustive()
    }
}

/// The sentence of a driver that has no memory left.
fn out_of_memory() -> Error {
    let sentence = "the GPU has not enough free memory: choose a smaller context or model";
    Error::with_kind(ErrorKind::OutOfMemory, sentence)
}

/// The sentence of an error of the driver.
fn error_of(error: wgpu::Error) -> Error {
    match error {
        wgpu::Error::OutOfMemory { .. } => out_of_memory(),
        wgpu::Error::Validation { description, .. } | wgpu::Error::Internal { description, .. } => {
            let first: String =
                description.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(400).collect();
            Error::with_kind(ErrorKind::DeviceFailed, format!("the GPU's driver refused a call: {first}"))
        }
    }
}

impl GpuDevice {
    /// Opens an adapter, or returns the device that is open already.
    ///
    /// # Errors
    /// When the adapter lacks a feature that kernels need, or the driver fails.
    pub fn open(adapter: &GpuAdapter) -> Result<Arc<GpuDevice>> {
        let mut open = locked(&OPEN);
        open.retain(|device| device.strong_count() > 0);
        let known = open.iter().filter_map(Weak::upgrade);
        if let Some(device) =
            known.into_iter().find(|device| device.name == adapter.name && !device.is_lost())
        {
            return Ok(device);
        }
        let tuning = match (adapter.is_software, adapter.has_matrix_units()) {
            (true, _) => KernelTuning::SOFTWARE,
            (false, false) => KernelTuning::GPU,
            (false, true) => KernelTuning::GPU.with_unit(ProductUnit::Matrix),
        };
        let device = Arc::new(GpuDevice::new(adapter, tuning)?);
        open.push(Arc::downgrade(&device));
        Ok(device)
    }

    /// Opens an adapter; kernels that it has no room for get smaller workgroups.
    pub fn new(adapter: &GpuAdapter, tuning: KernelTuning) -> Result<GpuDevice> {
        let failed = |sentence: String| Error::with_kind(ErrorKind::DeviceFailed, sentence);
        let product = &adapter.product;
        let offered = adapter.adapter().features();
        if !offered.contains(Features::IMMEDIATES) {
            return Err(failed(format!(
                "{product} lacks immediate data of kernels, which girih needs: update its driver"
            )));
        }
        let has_timestamps = offered.contains(Features::TIMESTAMP_QUERY);
        let timestamps = if has_timestamps { Features::TIMESTAMP_QUERY } else { Features::empty() };
        let (units, experimental_features) = match tuning.unit {
            ProductUnit::Dot => (Features::empty(), ExperimentalFeatures::disabled()),
            ProductUnit::Matrix => (MATRIX_FEATURES, trusted::experimental_features()),
            #[cfg(test)]
            ProductUnit::MatrixTwin => (Features::SHADER_F16, ExperimentalFeatures::disabled()),
        };
        let limits = adapter.adapter().limits();
        check_limits(product, &limits)?;
        let descriptor = DeviceDescriptor {
            label: Some("girih"),
            required_features: Features::IMMEDIATES | timestamps | units,
            experimental_features,
            required_limits: limits.clone(),
            memory_hints: MemoryHints::MemoryUsage,
            ..DeviceDescriptor::default()
        };
        let (device, queue) = ready(adapter.adapter().request_device(&descriptor))
            .map_err(|error| failed(format!("{product} cannot be opened: {error}")))?;
        let faults = Arc::new(Mutex::new(Faults::default()));
        let reported = Arc::clone(&faults);
        device.on_uncaptured_error(Arc::new(move |error| {
            locked(&reported).error.get_or_insert_with(|| error_of(error));
        }));
        let reported = Arc::clone(&faults);
        device.set_device_lost_callback(move |_, reason| {
            locked(&reported).lost.get_or_insert(reason);
        });
        let null = |label| {
            let usage = BufferUsages::STORAGE;
            device.create_buffer(&BufferDescriptor {
                label: Some(label),
                size: NULL_BYTES,
                usage,
                mapped_at_creation: false,
            })
        };
        let (unread, unwritten) = (null("unread"), [0; UNWRITTEN].map(|_| null("unwritten")));
        let device = GpuDevice {
            name: adapter.name.clone(),
            product: product.clone(),
            driver: adapter.driver.clone(),
            shares_memory: adapter.shares_memory,
            is_software: adapter.is_software,
            device,
            queue,
            faults,
            pipelines: Mutex::new(HashMap::new()),
            tuning: match tuning.invocations() <= limits.max_compute_invocations_per_workgroup {
                true => tuning,
                false => KernelTuning::SOFTWARE,
            },
            limits,
            has_timestamps,
            unread,
            unwritten,
        };
        device.check()?;
        Ok(device)
    }

    /// Whether the device is lost; then it computes nothing any more.
    pub fn is_lost(&self) -> bool {
        locked(&self.faults).lost.is_some()
    }

    /// The number of checks so far.
    #[cfg(test)]
    pub fn checks(&self) -> usize {
        locked(&self.faults).planned.checks
    }

    /// Plans a fault that the check of this number reports.
    #[cfg(test)]
    pub fn plan_fault(&self, check: usize, is_lost: bool) {
        locked(&self.faults).planned.fault = Some((check, is_lost));
    }

    /// The bytes of the largest binding.
    pub fn binding_limit(&self) -> u64 {
        let Limits { max_storage_buffer_binding_size: binding, max_buffer_size: buffer, .. } = self.limits;
        // Kernels count words in 32 bits.
        binding.min(buffer).min(u64::from(u32::MAX)) / NULL_BYTES * NULL_BYTES
    }

    /// What differs between devices in its kernels.
    pub fn tuning(&self) -> KernelTuning {
        self.tuning
    }

    /// The bytes of memory that a workgroup has.
    pub fn workgroup_bytes(&self) -> u32 {
        self.limits.max_compute_workgroup_storage_size
    }

    /// Whether times of kernels can be read.
    pub fn has_timestamps(&self) -> bool {
        self.has_timestamps
    }

    /// What is bound where a kernel reads nothing.
    pub fn unread(&self) -> BufferPart {
        BufferPart::whole(&self.unread)
    }

    /// What is bound where a kernel writes nothing.
    pub fn unwritten(&self, index: usize) -> BufferPart {
        BufferPart::whole(&self.unwritten[index])
    }

    /// Reports what went wrong since the last check.
    ///
    /// # Errors
    /// When the driver reported an error, or the device is lost.
    pub fn check(&self) -> Result<()> {
        let mut faults = locked(&self.faults);
        #[cfg(test)]
        faults.count();
        if let Some(reason) = &faults.lost {
            let sentence = format!("the GPU {} is lost ({reason}): load the model again", self.product);
            return Err(Error::with_kind(ErrorKind::DeviceFailed, sentence));
        }
        faults.error.take().map_or(Ok(()), Err)
    }

    /// Makes a zeroed buffer for kernels.
    ///
    /// # Errors
    /// When memory is short, or the size exceeds what the device can bind.
    pub fn buffer(&self, what: &str, bytes: u64) -> Result<Buffer> {
        let size = bytes.max(NULL_BYTES).next_multiple_of(NULL_BYTES);
        if size > self.binding_limit() {
            let limit = self.binding_limit();
            let sentence = format!(
                "{what} takes {bytes} bytes, but a buffer of {} holds {limit}: choose a smaller context or chunk",
                self.product
            );
            return Err(Error::with_kind(ErrorKind::OutOfMemory, sentence));
        }
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = self.device.create_buffer(&BufferDescriptor {
            label: Some(what),
            size,
            usage,
            mapped_at_creation: false,
        });
        self.check().map_err(|error| error.of(what))?;
        Ok(buffer)
    }

    /// Makes a buffer from which the host reads.
    ///
    /// # Errors
    /// When memory is short.
    pub fn staging(&self, bytes: u64) -> Result<Buffer> {
        let size = bytes.max(NULL_BYTES).next_multiple_of(NULL_BYTES);
        let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
        let label = Some("staging");
        let buffer =
            self.device.create_buffer(&BufferDescriptor { label, size, usage, mapped_at_creation: false });
        self.check()?;
        Ok(buffer)
    }

    /// Writes bytes to a buffer before what is submitted next.
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.queue.write_buffer(buffer, offset, bytes);
        }
    }

    /// Writes many bytes to a buffer, and waits, so that no more than one part is on its way.
    ///
    /// # Errors
    /// When the device fails.
    pub fn upload(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut at = offset;
        for part in bytes.chunks(UPLOAD_BYTES) {
            self.write(buffer, at, part);
            at += part.len() as u64;
            self.submit(self.encoder())?;
        }
        Ok(())
    }

    /// Begins a list of commands.
    pub fn encoder(&self) -> CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("girih") })
    }

    /// Makes room for times.
    pub fn queries(&self, count: u32) -> wgpu::QuerySet {
        let ty = wgpu::QueryType::Timestamp;
        self.device.create_query_set(&wgpu::QuerySetDescriptor { label: Some("times"), ty, count })
    }

    /// A buffer that times are written to.
    pub fn query_buffer(&self, bytes: u64) -> Buffer {
        let usage = BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC;
        let label = Some("times");
        self.device.create_buffer(&BufferDescriptor { label, size: bytes, usage, mapped_at_creation: false })
    }

    /// Nanoseconds of a unit of time.
    pub fn time_unit(&self) -> f32 {
        self.queue.get_timestamp_period()
    }

    /// Submits commands, before others; the wait for these reports what goes wrong.
    pub fn begin(&self, encoder: CommandEncoder) {
        self.queue.submit([encoder.finish()]);
    }

    /// Submits commands and waits until they have run.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn submit(&self, encoder: CommandEncoder) -> Result<()> {
        let index = self.queue.submit([encoder.finish()]);
        self.wait(index)
    }

    fn wait(&self, index: wgpu::SubmissionIndex) -> Result<()> {
        let waited =
            self.device.poll(PollType::Wait { submission_index: Some(index), timeout: Some(PATIENCE) });
        self.check()?;
        match waited {
            Ok(_) => Ok(()),
            Err(error) => {
                let (product, seconds) = (&self.product, PATIENCE.as_secs());
                let sentence = format!(
                    "the GPU {product} has not finished within {seconds} s ({error}): load the model again"
                );
                locked(&self.faults).lost.get_or_insert_with(|| "it hangs".to_owned());
                // Dropping the queue would wait for the device without a limit.
                std::mem::forget((self.device.clone(), self.queue.clone()));
                Err(Error::with_kind(ErrorKind::DeviceFailed, sentence))
            }
        }
    }

    /// Submits commands that write to a staging buffer, waits, and hands its first bytes to `read`.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn submit_and_read<T>(
        &self,
        encoder: CommandEncoder,
        staging: &Buffer,
        bytes: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let index = self.queue.submit([encoder.finish()]);
        let bytes = bytes.next_multiple_of(8).max(8);
        let slice = staging.slice(..bytes);
        let (sender, receiver) = mpsc::channel();
        slice.map_async(MapMode::Read, move |mapped| drop(sender.send(mapped)));
        self.wait(index)?;
        let failed = |fault: String| {
            let sentence = format!("the results of {} cannot be read: {fault}", self.product);
            Error::with_kind(ErrorKind::DeviceFailed, sentence)
        };
        match receiver.recv_timeout(PATIENCE) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return Err(failed("the driver does not answer".to_owned()));
            }
        }
        let result = {
            let view = slice.get_mapped_range().map_err(|error| failed(error.to_string()))?;
            read(&view)
        };
        staging.unmap();
        Ok(result)
    }

    /// Reads a part of a buffer.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(&self, buffer: &Buffer, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let staging = self.staging(bytes)?;
        let mut encoder = self.encoder();
        encoder.copy_buffer_to_buffer(buffer, offset, &staging, 0, bytes.next_multiple_of(4));
        self.submit_and_read(encoder, &staging, bytes, |read| read[..bytes as usize].to_vec())
    }

    /// The pipeline of a kernel; the first call compiles it.
    ///
    /// # Errors
    /// When the driver refuses the kernel.
    pub fn pipeline(&self, kernel: GpuKernel) -> Result<Arc<Pipeline>> {
        if let Some(known) = locked(&self.pipelines).get(&kernel) {
            return Ok(Arc::clone(known));
        }
        let made = Arc::new(self.compile(kernel)?);
        Ok(Arc::clone(locked(&self.pipelines).entry(kernel).or_insert(made)))
    }

    /// Compiles kernels, some at once: a GPU's driver takes seconds for the larger ones. Software compiles a kernel when it first
    /// runs, which is about when it is first used.
    ///
    /// # Errors
    /// When the driver refuses a kernel.
    pub fn prepare(&self, kernels: HashSet<GpuKernel>) -> Result<()> {
        if self.is_software {
            return Ok(());
        }
        let known = locked(&self.pipelines).keys().copied().collect();
        let new: Vec<GpuKernel> = kernels.difference(&known).copied().collect();
        let threads = thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let each = new.len().div_ceil(threads).max(1);
        let compile =
            |part: &[GpuKernel]| part.iter().try_for_each(|kernel| self.pipeline(*kernel).map(drop));
        thread::scope(|scope| {
            let parts: Vec<_> = new.chunks(each).map(|part| scope.spawn(move || compile(part))).collect();
            let done = parts.into_iter().map(|part| part.join().expect("a compiler does not panic"));
            done.collect()
        })
    }

    fn compile(&self, kernel: GpuKernel) -> Result<Pipeline> {
        let source = kernel.source(self.tuning);
        let label = Some(kernel.name());
        let descriptor = ShaderModuleDescriptor { label, source: ShaderSource::Wgsl(source.into()) };
        let module = match kernel.is_trusted() {
            true => trusted::shader(&self.device, descriptor),
            false => self.device.create_shader_module(descriptor),
        };
        let entry = |(index, binding): (usize, &BindingUse)| BindGroupLayoutEntry {
            binding: index as u32,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: BufferBindingType::Storage { read_only: *binding == BindingUse::Read },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<BindGroupLayoutEntry> = kernel.bindings().iter().enumerate().map(entry).collect();
        let layout =
            self.device.create_bind_group_layout(&BindGroupLayoutDescriptor { label, entries: &entries });
        let pipeline_layout = self.device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label,
            bind_group_layouts: &[Some(&layout)],
            immediate_size: IMMEDIATE_BYTES,
        });
        let pipeline = self.device.create_compute_pipeline(&ComputePipelineDescriptor {
            label,
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..PipelineCompilationOptions::default()
            },
            cache: None,
        });
        self.check().map_err(|error| error.of(format!("kernel {}", kernel.name())))?;
        Ok(Pipeline { pipeline, layout })
    }

    /// Binds parts of buffers to a pipeline.
    pub fn bind(&self, pipeline: &Pipeline, parts: &[BufferPart]) -> BindGroup {
        let resources = parts.iter().map(|part| {
            let size = std::num::NonZeroU64::new(part.bytes);
            wgpu::BindingResource::Buffer(BufferBinding { buffer: &part.buffer, offset: part.offset, size })
        });
        let entries: Vec<BindGroupEntry<'_>> =
            (0..).zip(resources).map(|(binding, resource)| BindGroupEntry { binding, resource }).collect();
        self.device.create_bind_group(&BindGroupDescriptor {
            label: None,
            layout: &pipeline.layout,
            entries: &entries,
        })
    }
}

impl Pipeline {
    /// The pipeline.
    pub fn pipeline(&self) -> &ComputePipeline {
        &self.pipeline
    }
}

/// Checks what the kernels need.
fn check_limits(product: &str, limits: &Limits) -> Result<()> {
    let needs = [
        ("storage buffers of a kernel", u64::from(limits.max_storage_buffers_per_shader_stage), 10),
        ("invocations of a workgroup", u64::from(limits.max_compute_invocations_per_workgroup), 256),
        ("bytes of workgroup memory", u64::from(limits.max_compute_workgroup_storage_size), 24_576),
        ("bytes of immediate data", u64::from(limits.max_immediate_size), u64::from(IMMEDIATE_BYTES)),
        ("bytes of a binding", limits.max_storage_buffer_binding_size, 1 << 26),
    ];
    for (what, have, need) in needs {
        if have < need {
            let sentence = format!("{product} has {have} {what}, but girih needs {need}");
            return Err(Error::with_kind(ErrorKind::DeviceFailed, sentence));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_list::adapters;

    /// A device of its own, as other tests share theirs.
    fn any() -> Option<GpuDevice> {
        let adapters = adapters();
        let Some(adapter) = adapters.first() else {
            eprintln!("skipped: this machine has no adapter; Mesa's software Vulkan is one");
            return None;
        };
        Some(GpuDevice::new(adapter, KernelTuning::SOFTWARE).expect("the adapter has what kernels need"))
    }

    #[test]
    fn a_lost_device_is_a_sentence_each_time() {
        let Some(device) = any() else { return };
        assert_eq!(device.check(), Ok(()));
        device.device.destroy();
        // The driver tells it when it is asked.
        drop(device.device.poll(PollType::Poll));
        assert!(device.is_lost());
        for _ in 0..2 {
            let error = device.submit(device.encoder()).expect_err("nothing runs any more");
            assert_eq!(error.kind(), ErrorKind::DeviceFailed);
            assert!(error.to_string().contains("is lost"), "{error}");
        }
    }

    #[test]
    fn a_buffer_beyond_the_limit_is_a_sentence() {
        let Some(device) = any() else { return };
        let error =
            device.buffer("the state 'k'", device.binding_limit() + 1).expect_err("it exceeds the limit");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(error.to_string().starts_with("the state 'k' takes"), "{error}");
        assert_eq!(device.check(), Ok(()));
    }

    #[test]
    fn kernels_are_compiled_several_at_once() {
        let Some(mut device) = any() else { return };
        device.is_software = false;
        let kernels = HashSet::from([GpuKernel::Rope, GpuKernel::Join, GpuKernel::Conv]);
        assert_eq!(device.prepare(kernels.clone()), Ok(()));
        assert_eq!(locked(&device.pipelines).keys().copied().collect::<HashSet<_>>(), kernels);
    }

    #[test]
    fn what_is_written_is_read() {
        let Some(device) = any() else { return };
        let buffer = device.buffer("numbers", 1000).expect("it is small");
        device.upload(&buffer, 8, &[1, 2, 3, 4]).expect("the device runs");
        assert_eq!(device.read(&buffer, 4, 12), Ok(vec![0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0]));
    }
}
