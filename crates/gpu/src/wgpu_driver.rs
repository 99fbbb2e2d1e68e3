//! The portable driver: buffers, pipelines and lists of commands of wgpu, through Vulkan or Metal.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use girih_tensor::{Error, ErrorKind, Result};
use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingResource, BindingType, Buffer, BufferBinding, BufferBindingType,
    BufferDescriptor, BufferUsages, CommandBuffer, CommandEncoder, CommandEncoderDescriptor, ComputePass,
    ComputePassDescriptor, ComputePassTimestampWrites, ComputePipeline, ComputePipelineDescriptor,
    DeviceDescriptor, ExperimentalFeatures, Features, Limits, MapMode, MemoryHints,
    PipelineCompilationOptions, PipelineLayoutDescriptor, PollType, QuerySet, QuerySetDescriptor, QueryType,
    ShaderModuleDescriptor, ShaderSource, ShaderStages,
};

use crate::device_list::{GpuAdapter, MATRIX_FEATURES, ready};
use crate::faults::{FaultLog, out_of_memory};
use crate::integer_source::ProductUnit;
use crate::kernel::{BindingUse, GpuKernel, IMMEDIATE_BYTES, KernelTuning};
use crate::trusted;

/// An open device of wgpu.
pub(crate) struct WgpuDriver {
    device: wgpu::Device,
    queue: wgpu::Queue,
    product: String,
    faults: Arc<FaultLog>,
    pub limits: Limits,
    pub has_timestamps: bool,
}

/// A kernel that the driver has compiled.
pub(crate) struct WgpuPipeline {
    pipeline: ComputePipeline,
    layout: BindGroupLayout,
}

/// A kernel with what it reads and writes.
pub(crate) struct WgpuBound {
    pipeline: ComputePipeline,
    group: BindGroup,
}

/// A list of commands. Launches in a row are one pass.
pub(crate) struct WgpuCommands {
    /// The pass that is open. It ends before the encoder does.
    pass: Option<ComputePass<'static>>,
    encoder: CommandEncoder,
}

/// Room for the times of nodes.
pub(crate) struct WgpuTimes {
    queries: QuerySet,
    count: u32,
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

impl WgpuDriver {
    /// Opens an adapter for kernels of this tuning.
    ///
    /// # Errors
    /// When the adapter lacks what kernels need, or the driver fails.
    pub fn open(adapter: &GpuAdapter, tuning: KernelTuning, faults: &Arc<FaultLog>) -> Result<WgpuDriver> {
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
            ProductUnit::Dot | ProductUnit::IntegerMatrix => {
                (Features::empty(), ExperimentalFeatures::disabled())
            }
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
        let reported = Arc::clone(faults);
        device.on_uncaptured_error(Arc::new(move |error| reported.note(error_of(error))));
        let reported = Arc::clone(faults);
        device.set_device_lost_callback(move |_, reason| reported.lose(reason));
        let (product, faults) = (product.clone(), Arc::clone(faults));
        Ok(WgpuDriver { device, queue, product, faults, limits, has_timestamps })
    }

    /// Makes a buffer; the driver reports what goes wrong.
    fn made(&self, label: &str, size: u64, usage: BufferUsages) -> Buffer {
        let descriptor = BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        self.device.create_buffer(&descriptor)
    }

    /// A zeroed buffer for kernels.
    pub fn buffer(&self, label: &str, size: u64) -> Buffer {
        self.made(label, size, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST)
    }

    /// A buffer from which the host reads.
    pub fn staging(&self, size: u64) -> Buffer {
        self.made("staging", size, BufferUsages::MAP_READ | BufferUsages::COPY_DST)
    }

    /// Writes bytes to a buffer before what is submitted next.
    pub fn write(&self, buffer: &Buffer, offset: u64, bytes: &[u8]) {
        self.queue.write_buffer(buffer, offset, bytes);
    }

    /// Begins a list of commands.
    pub fn commands(&self) -> WgpuCommands {
        let encoder = self.device.create_command_encoder(&CommandEncoderDescriptor { label: Some("girih") });
        WgpuCommands { pass: None, encoder }
    }

    /// Room for the times of this number of nodes.
    pub fn times(&self, count: u32) -> WgpuTimes {
        let descriptor =
            QuerySetDescriptor { label: Some("times"), ty: QueryType::Timestamp, count: 2 * count };
        WgpuTimes { queries: self.device.create_query_set(&descriptor), count }
    }

    /// Submits commands; a wait for later ones reports what goes wrong.
    pub fn begin(&self, commands: WgpuCommands) {
        self.queue.submit([commands.finish()]);
    }

    /// Submits commands and waits.
    ///
    /// # Errors
    /// When the device fails, or does not finish within `patience`.
    pub fn submit(&self, commands: WgpuCommands, patience: Duration) -> Result<()> {
        let index = self.queue.submit([commands.finish()]);
        self.wait(index, patience)
    }

    fn wait(&self, index: wgpu::SubmissionIndex, patience: Duration) -> Result<()> {
        let waited =
            self.device.poll(PollType::Wait { submission_index: Some(index), timeout: Some(patience) });
        self.faults.check(&self.product)?;
        match waited {
            Ok(_) => Ok(()),
            Err(error) => {
                let (product, seconds) = (&self.product, patience.as_secs());
                let sentence = format!(
                    "the GPU {product} has not finished within {seconds} s ({error}): load the model again"
                );
                self.faults.lose("it hangs".to_owned());
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
        commands: WgpuCommands,
        (staging, bytes): (&Buffer, u64),
        patience: Duration,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let index = self.queue.submit([commands.finish()]);
        let bytes = bytes.next_multiple_of(8).max(8);
        let slice = staging.slice(..bytes);
        let (sender, receiver) = mpsc::channel();
        slice.map_async(MapMode::Read, move |mapped| drop(sender.send(mapped)));
        self.wait(index, patience)?;
        let failed = |fault: String| {
            let sentence = format!("the results of {} cannot be read: {fault}", self.product);
            Error::with_kind(ErrorKind::DeviceFailed, sentence)
        };
        match receiver.recv_timeout(patience) {
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

    /// Submits the last commands whose times are taken, waits, and returns the time of each node.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn submit_and_time(
        &self,
        mut commands: WgpuCommands,
        times: &WgpuTimes,
        patience: Duration,
    ) -> Result<Vec<Duration>> {
        commands.pass = None;
        let WgpuTimes { queries, count } = times;
        let bytes = 16 * u64::from(*count);
        let resolved = self.made("times", bytes, BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC);
        let staging = self.staging(bytes);
        commands.encoder.resolve_query_set(queries, 0..2 * count, &resolved, 0);
        commands.copy(&resolved, 0, &staging, 0, bytes);
        let times: Vec<u64> = self.submit_and_read(commands, (&staging, bytes), patience, |read| {
            read.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
        })?;
        let unit = f64::from(self.queue.get_timestamp_period());
        let of_node =
            |times: &[u64; 2]| Duration::from_nanos((times[1].saturating_sub(times[0]) as f64 * unit) as u64);
        Ok(times.as_chunks::<2>().0.iter().map(of_node).collect())
    }

    /// Compiles a kernel; the driver reports what goes wrong.
    pub fn compile(&self, kernel: GpuKernel, tuning: KernelTuning) -> WgpuPipeline {
        let source = kernel.source(tuning);
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
        WgpuPipeline { pipeline, layout }
    }

    /// Binds parts of buffers, each with its offset and bytes, to a kernel.
    pub fn bind(&self, pipeline: &WgpuPipeline, parts: &[(&Buffer, u64, u64)]) -> WgpuBound {
        let resources = parts.iter().map(|(buffer, offset, bytes)| {
            let size = std::num::NonZeroU64::new(*bytes);
            BindingResource::Buffer(BufferBinding { buffer, offset: *offset, size })
        });
        let entries: Vec<BindGroupEntry<'_>> =
            (0..).zip(resources).map(|(binding, resource)| BindGroupEntry { binding, resource }).collect();
        let descriptor = BindGroupDescriptor { label: None, layout: &pipeline.layout, entries: &entries };
        WgpuBound { pipeline: pipeline.pipeline.clone(), group: self.device.create_bind_group(&descriptor) }
    }

    /// Has the driver lose the device.
    #[cfg(test)]
    pub fn destroy(&self) {
        self.device.destroy();
        // The driver tells it when it is asked.
        drop(self.device.poll(PollType::Poll));
    }
}

impl WgpuCommands {
    /// Ends the pass, if one is open.
    pub fn end_pass(&mut self) {
        self.pass = None;
    }

    /// Begins the node of this number, whose time is read if there is room for it.
    pub fn begin_node(&mut self, times: &WgpuTimes, node: u32) {
        self.pass = None;
        let timestamp_writes = (node < times.count).then_some(ComputePassTimestampWrites {
            query_set: &times.queries,
            beginning_of_pass_write_index: Some(2 * node),
            end_of_pass_write_index: Some(2 * node + 1),
        });
        let descriptor = ComputePassDescriptor { label: None, timestamp_writes };
        self.pass = Some(self.encoder.begin_compute_pass(&descriptor).forget_lifetime());
    }

    /// Launches a kernel with its immediate data and its workgroups.
    pub fn launch(&mut self, bound: &WgpuBound, words: &[u8], [x, y, z]: [u32; 3]) {
        let encoder = &mut self.encoder;
        let pass = self.pass.get_or_insert_with(|| {
            encoder.begin_compute_pass(&ComputePassDescriptor::default()).forget_lifetime()
        });
        pass.set_pipeline(&bound.pipeline);
        pass.set_bind_group(0, &bound.group, &[]);
        pass.set_immediates(0, words);
        pass.dispatch_workgroups(x, y, z);
    }

    /// Copies bytes between buffers.
    pub fn copy(&mut self, from: &Buffer, from_offset: u64, to: &Buffer, to_offset: u64, bytes: u64) {
        self.pass = None;
        self.encoder.copy_buffer_to_buffer(from, from_offset, to, to_offset, bytes);
    }

    /// Zeroes bytes of a buffer.
    pub fn clear(&mut self, buffer: &Buffer, offset: u64, bytes: u64) {
        self.pass = None;
        self.encoder.clear_buffer(buffer, offset, Some(bytes));
    }

    fn finish(mut self) -> CommandBuffer {
        self.pass = None;
        self.encoder.finish()
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
