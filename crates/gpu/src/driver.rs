//! The drivers: the portable one (wgpu), and that of CUDA. Both have buffers, compiled kernels and lists of commands, and run the
//! same launches.

use std::time::Duration;

use girih_tensor::Result;

use crate::cuda::driver::{CudaBound, CudaBuffer, CudaCommands, CudaDriver, CudaPipeline, CudaTimes};
use crate::kernel::{GpuKernel, IMMEDIATE_BYTES, KernelTuning};
use crate::wgpu_driver::{WgpuBound, WgpuCommands, WgpuDriver, WgpuPipeline, WgpuTimes};

/// An open device of a driver.
pub(crate) enum Driver {
    Wgpu(Box<WgpuDriver>),
    Cuda(CudaDriver),
}

/// Memory of a device, or of the host for its results.
#[derive(Clone, Debug)]
pub(crate) enum GpuBuffer {
    Wgpu(wgpu::Buffer),
    Cuda(CudaBuffer),
}

/// A part of a buffer.
#[derive(Clone, Debug)]
pub(crate) struct BufferPart {
    pub buffer: GpuBuffer,
    pub offset: u64,
    pub bytes: u64,
}

/// A kernel that a driver has compiled.
pub(crate) enum Pipeline {
    Wgpu(Box<WgpuPipeline>),
    Cuda(CudaPipeline),
}

/// A kernel with what it reads and writes.
pub(crate) enum BoundKernel {
    Wgpu(WgpuBound),
    Cuda(CudaBound),
}

impl std::fmt::Debug for BoundKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BoundKernel")
    }
}

/// A list of commands, in their order.
pub(crate) enum Commands {
    Wgpu(Box<WgpuCommands>),
    Cuda(CudaCommands),
}

/// Room for the times of nodes.
pub(crate) enum NodeTimes {
    Wgpu(WgpuTimes),
    Cuda(CudaTimes),
}

/// The reason for which another driver's part cannot occur.
const OWN: &str = "buffers, kernels and commands are used with the driver that made them";

impl GpuBuffer {
    /// The bytes of the buffer.
    pub fn size(&self) -> u64 {
        match self {
            GpuBuffer::Wgpu(buffer) => buffer.size(),
            GpuBuffer::Cuda(buffer) => buffer.size(),
        }
    }

    fn wgpu(&self) -> &wgpu::Buffer {
        match self {
            GpuBuffer::Wgpu(buffer) => buffer,
            GpuBuffer::Cuda(_) => unreachable!("{OWN}"),
        }
    }

    fn cuda(&self) -> &CudaBuffer {
        match self {
            GpuBuffer::Cuda(buffer) => buffer,
            GpuBuffer::Wgpu(_) => unreachable!("{OWN}"),
        }
    }
}

impl BufferPart {
    /// A whole buffer.
    pub fn whole(buffer: &GpuBuffer) -> BufferPart {
        BufferPart { buffer: buffer.clone(), offset: 0, bytes: buffer.size() }
    }
}

impl Driver {
    /// A zeroed buffer for kernels; the next check reports what goes wrong.
    pub fn buffer(&self, label: &str, bytes: u64) -> GpuBuffer {
        match self {
            Driver::Wgpu(driver) => GpuBuffer::Wgpu(driver.buffer(label, bytes)),
            Driver::Cuda(driver) => GpuBuffer::Cuda(driver.buffer(bytes)),
        }
    }

    /// A buffer from which the host reads; the next check reports what goes wrong.
    pub fn staging(&self, bytes: u64) -> GpuBuffer {
        match self {
            Driver::Wgpu(driver) => GpuBuffer::Wgpu(driver.staging(bytes)),
            Driver::Cuda(driver) => GpuBuffer::Cuda(driver.staging(bytes)),
        }
    }

    /// Writes bytes to a buffer before what is submitted next.
    pub fn write(&self, buffer: &GpuBuffer, offset: u64, bytes: &[u8]) {
        match self {
            Driver::Wgpu(driver) => driver.write(buffer.wgpu(), offset, bytes),
            Driver::Cuda(driver) => driver.write(buffer.cuda(), offset, bytes),
        }
    }

    /// Begins a list of commands.
    pub fn commands(&self) -> Commands {
        match self {
            Driver::Wgpu(driver) => Commands::Wgpu(Box::new(driver.commands())),
            Driver::Cuda(driver) => Commands::Cuda(driver.commands()),
        }
    }

    /// Room for the times of this number of nodes.
    pub fn times(&self, count: u32) -> NodeTimes {
        match self {
            Driver::Wgpu(driver) => NodeTimes::Wgpu(driver.times(count)),
            Driver::Cuda(driver) => NodeTimes::Cuda(driver.times(count)),
        }
    }

    /// Submits commands, before others.
    pub fn begin(&self, commands: Commands) {
        if let (Driver::Wgpu(driver), Commands::Wgpu(commands)) = (self, commands) {
            driver.begin(*commands);
        }
        // CUDA has begun them.
    }

    /// Submits commands, and waits until they have run.
    ///
    /// # Errors
    /// When the device fails, or does not finish within `patience`.
    pub fn submit(&self, commands: Commands, patience: Duration) -> Result<()> {
        match (self, commands) {
            (Driver::Wgpu(driver), Commands::Wgpu(commands)) => driver.submit(*commands, patience),
            (Driver::Cuda(driver), _) => driver.wait(patience),
            (Driver::Wgpu(_), Commands::Cuda(_)) => unreachable!("{OWN}"),
        }
    }

    /// Submits commands that write to a staging buffer, waits, and hands its first bytes to `read`.
    ///
    /// # Errors
    /// As those of [`Driver::submit`].
    pub fn submit_and_read<T>(
        &self,
        commands: Commands,
        (staging, bytes): (&GpuBuffer, u64),
        patience: Duration,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        match (self, commands) {
            (Driver::Wgpu(driver), Commands::Wgpu(commands)) => {
                driver.submit_and_read(*commands, (staging.wgpu(), bytes), patience, read)
            }
            (Driver::Cuda(driver), _) => driver.wait_and_read((staging.cuda(), bytes), patience, read),
            (Driver::Wgpu(_), Commands::Cuda(_)) => unreachable!("{OWN}"),
        }
    }

    /// Submits the last commands whose times are taken, waits, and returns the times.
    ///
    /// # Errors
    /// As those of [`Driver::submit`].
    pub fn submit_and_time(
        &self,
        commands: Commands,
        times: &NodeTimes,
        patience: Duration,
    ) -> Result<Vec<Duration>> {
        match (self, commands, times) {
            (Driver::Wgpu(driver), Commands::Wgpu(commands), NodeTimes::Wgpu(times)) => {
                driver.submit_and_time(*commands, times, patience)
            }
            (Driver::Cuda(driver), _, NodeTimes::Cuda(times)) => driver.wait_and_time(times, patience),
            _ => unreachable!("{OWN}"),
        }
    }

    /// Compiles a kernel; the next check reports what goes wrong with the portable one.
    ///
    /// # Errors
    /// When the driver refuses the kernel.
    pub fn compile(&self, kernel: GpuKernel, tuning: KernelTuning) -> Result<Pipeline> {
        match self {
            Driver::Wgpu(driver) => Ok(Pipeline::Wgpu(Box::new(driver.compile(kernel, tuning)))),
            Driver::Cuda(driver) => driver.compile(kernel).map(Pipeline::Cuda),
        }
    }

    /// Binds parts of buffers to a kernel.
    pub fn bind(&self, pipeline: &Pipeline, parts: &[BufferPart]) -> BoundKernel {
        match (self, pipeline) {
            (Driver::Wgpu(driver), Pipeline::Wgpu(pipeline)) => {
                let parts: Vec<_> =
                    parts.iter().map(|part| (part.buffer.wgpu(), part.offset, part.bytes)).collect();
                BoundKernel::Wgpu(driver.bind(pipeline, &parts))
            }
            (Driver::Cuda(driver), Pipeline::Cuda(pipeline)) => {
                let parts: Vec<_> =
                    parts.iter().map(|part| (part.buffer.cuda(), part.offset, part.bytes)).collect();
                BoundKernel::Cuda(driver.bind(pipeline, &parts))
            }
            _ => unreachable!("{OWN}"),
        }
    }
}

impl Commands {
    /// Ends what may be submitted together.
    pub fn end_pass(&mut self) {
        if let Commands::Wgpu(commands) = self {
            commands.end_pass();
        }
    }

    /// Begins the node of this number, whose time is read if there is room for it.
    pub fn begin_node(&mut self, times: &NodeTimes, node: u32) {
        match (self, times) {
            (Commands::Wgpu(commands), NodeTimes::Wgpu(times)) => commands.begin_node(times, node),
            (Commands::Cuda(commands), NodeTimes::Cuda(times)) => commands.begin_node(times, node),
            _ => unreachable!("{OWN}"),
        }
    }

    /// Launches a kernel with its words and its workgroups.
    pub fn launch(&mut self, bound: &BoundKernel, words: &[u32], groups: [u32; 3]) {
        let mut bytes = [0; IMMEDIATE_BYTES as usize];
        bytes.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
        match (self, bound) {
            (Commands::Wgpu(commands), BoundKernel::Wgpu(bound)) => commands.launch(bound, &bytes, groups),
            (Commands::Cuda(commands), BoundKernel::Cuda(bound)) => commands.launch(bound, bytes, groups),
            _ => unreachable!("{OWN}"),
        }
    }

    /// Copies bytes between buffers.
    pub fn copy(&mut self, from: &GpuBuffer, from_offset: u64, to: &GpuBuffer, to_offset: u64, bytes: u64) {
        match self {
            Commands::Wgpu(commands) => {
                commands.copy(from.wgpu(), from_offset, to.wgpu(), to_offset, bytes);
            }
            Commands::Cuda(commands) => {
                commands.copy(from.cuda(), from_offset, to.cuda(), to_offset, bytes);
            }
        }
    }

    /// Zeroes bytes of a buffer.
    pub fn clear(&mut self, buffer: &GpuBuffer, offset: u64, bytes: u64) {
        match self {
            Commands::Wgpu(commands) => commands.clear(buffer.wgpu(), offset, bytes),
            Commands::Cuda(commands) => commands.clear(buffer.cuda(), offset, bytes),
        }
    }
}
