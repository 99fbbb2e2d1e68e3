//! The device: its buffers, its kernels, submitting and waiting, and what may go wrong.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use girih_tensor::{Error, ErrorKind, Result};

use crate::cuda::driver::{CudaDevice, CudaDriver};
use crate::device_list::GpuAdapter;
use crate::driver::{BoundKernel, BufferPart, Commands, Driver, GpuBuffer, NodeTimes, Pipeline};
use crate::faults::{FaultLog, locked};
use crate::integer_source::ProductUnit;
use crate::kernel::{GpuKernel, KernelTuning};
use crate::wgpu_driver::WgpuDriver;

/// After this time a device counts as hung. A step of a large prompt on software may take minutes.
const PATIENCE: Duration = Duration::from_secs(600);

/// The bytes of a buffer that is bound where a kernel does not read or write.
const NULL_BYTES: u64 = 256;

/// The most bindings of a launch that it does not write.
const UNWRITTEN: usize = 3;

/// The largest part of data that is uploaded at once.
pub(crate) const UPLOAD_BYTES: usize = 64 << 20;

/// The memory of a block that kernels for CUDA may declare.
const CUDA_BLOCK_BYTES: u32 = 48 << 10;

/// An open device.
pub(crate) struct GpuDevice {
    pub name: String,
    pub product: String,
    pub driver_name: String,
    /// Whether its memory is the host's.
    pub shares_memory: bool,
    is_software: bool,
    driver: Driver,
    faults: Arc<FaultLog>,
    pipelines: Mutex<HashMap<GpuKernel, Arc<Pipeline>>>,
    limits: DeviceLimits,
    tuning: KernelTuning,
    unread: GpuBuffer,
    unwritten: [GpuBuffer; UNWRITTEN],
}

/// What a device has room for.
#[derive(Clone, Copy, Debug)]
struct DeviceLimits {
    binding_bytes: u64,
    workgroup_bytes: u32,
    has_timestamps: bool,
}

/// The devices that this process has open: several models share one, and its compiled kernels.
static OPEN: Mutex<Vec<Weak<GpuDevice>>> = Mutex::new(Vec::new());

impl fmt::Debug for GpuDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuDevice")
            .field("name", &self.name)
            .field("product", &self.product)
            .finish_non_exhaustive()
    }
}

impl GpuDevice {
    /// The device of this name that is open already, or a new one.
    fn shared(name: &str, open: impl FnOnce() -> Result<GpuDevice>) -> Result<Arc<GpuDevice>> {
        let mut all = locked(&OPEN);
        all.retain(|device| device.strong_count() > 0);
        let known = all.iter().filter_map(Weak::upgrade);
        if let Some(device) = known.into_iter().find(|device| device.name == name && !device.is_lost()) {
            return Ok(device);
        }
        let device = Arc::new(open()?);
        all.push(Arc::downgrade(&device));
        Ok(device)
    }

    /// Opens an adapter, or returns the device that is open already.
    ///
    /// # Errors
    /// When the adapter lacks a feature that kernels need, or the driver fails.
    pub fn open(adapter: &GpuAdapter) -> Result<Arc<GpuDevice>> {
        let tuning = match (adapter.is_software, adapter.has_matrix_units()) {
            (true, _) => KernelTuning::SOFTWARE,
            (false, false) => KernelTuning::GPU,
            (false, true) => KernelTuning::GPU.with_unit(ProductUnit::Matrix),
        };
        GpuDevice::shared(&adapter.name, || GpuDevice::new(adapter, tuning))
    }

    /// Opens a device of CUDA, or returns the device that is open already.
    ///
    /// # Errors
    /// When the device is too old, or the driver fails.
    pub fn open_cuda(device: &CudaDevice) -> Result<Arc<GpuDevice>> {
        GpuDevice::shared(&device.name, || GpuDevice::of_cuda(device))
    }

    /// Opens an adapter; kernels that it has no room for get smaller workgroups.
    pub fn new(adapter: &GpuAdapter, tuning: KernelTuning) -> Result<GpuDevice> {
        let faults = Arc::default();
        let driver = WgpuDriver::open(adapter, tuning, &faults)?;
        let offered = &driver.limits;
        // Kernels count words in 32 bits.
        let binding = offered.max_storage_buffer_binding_size.min(offered.max_buffer_size);
        let limits = DeviceLimits {
            binding_bytes: binding.min(u64::from(u32::MAX)) / NULL_BYTES * NULL_BYTES,
            workgroup_bytes: offered.max_compute_workgroup_storage_size,
            has_timestamps: driver.has_timestamps,
        };
        let fits = tuning.invocations() <= offered.max_compute_invocations_per_workgroup;
        let tuning = if fits { tuning } else { KernelTuning::SOFTWARE };
        let GpuAdapter { name, product, driver: driver_name, .. } = adapter;
        let names = [name, product, driver_name].map(String::clone);
        let shares = (adapter.shares_memory, adapter.is_software);
        GpuDevice::on(Driver::Wgpu(Box::new(driver)), names, shares, limits, tuning, faults)
    }

    /// Opens a device of CUDA.
    pub fn of_cuda(device: &CudaDevice) -> Result<GpuDevice> {
        let faults = Arc::default();
        let driver = CudaDriver::open(device, &faults)?;
        let limits = DeviceLimits {
            binding_bytes: u64::from(u32::MAX) / NULL_BYTES * NULL_BYTES,
            workgroup_bytes: CUDA_BLOCK_BYTES,
            has_timestamps: true,
        };
        let CudaDevice { name, product, driver: driver_name, .. } = device;
        let names = [name, product, driver_name].map(String::clone);
        let shares = (device.shares_memory, false);
        GpuDevice::on(Driver::Cuda(driver), names, shares, limits, KernelTuning::CUDA, faults)
    }

    fn on(
        driver: Driver,
        [name, product, driver_name]: [String; 3],
        (shares_memory, is_software): (bool, bool),
        limits: DeviceLimits,
        tuning: KernelTuning,
        faults: Arc<FaultLog>,
    ) -> Result<GpuDevice> {
        let unread = driver.buffer("unread", NULL_BYTES);
        let unwritten = [0; UNWRITTEN].map(|_| driver.buffer("unwritten", NULL_BYTES));
        let device = GpuDevice {
            name,
            product,
            driver_name,
            shares_memory,
            is_software,
            driver,
            faults,
            pipelines: Mutex::default(),
            limits,
            tuning,
            unread,
            unwritten,
        };
        device.check()?;
        Ok(device)
    }

    /// Whether the device is lost; then it computes nothing any more.
    pub fn is_lost(&self) -> bool {
        self.faults.is_lost()
    }

    /// Whether its driver is that of CUDA.
    pub fn is_cuda(&self) -> bool {
        matches!(self.driver, Driver::Cuda(_))
    }

    /// The bytes of memory that are free, if its driver is that of CUDA.
    pub fn free_cuda_memory(&self) -> Option<u64> {
        match &self.driver {
            Driver::Cuda(driver) => driver.free_memory(),
            Driver::Wgpu(_) => None,
        }
    }

    /// The number of checks so far.
    #[cfg(test)]
    pub fn checks(&self) -> usize {
        self.faults.checks()
    }

    /// Plans a fault that the check of this number reports.
    #[cfg(test)]
    pub fn plan_fault(&self, check: usize, is_lost: bool) {
        self.faults.plan(check, is_lost);
    }

    /// The bytes of the largest binding.
    pub fn binding_limit(&self) -> u64 {
        self.limits.binding_bytes
    }

    /// What differs between devices in its kernels.
    pub fn tuning(&self) -> KernelTuning {
        self.tuning
    }

    /// The bytes of memory that a workgroup has.
    pub fn workgroup_bytes(&self) -> u32 {
        self.limits.workgroup_bytes
    }

    /// Whether times of kernels can be read.
    pub fn has_timestamps(&self) -> bool {
        self.limits.has_timestamps
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
        self.faults.check(&self.product)
    }

    /// Makes a zeroed buffer for kernels.
    ///
    /// # Errors
    /// When memory is short, or the size exceeds what the device can bind.
    pub fn buffer(&self, what: &str, bytes: u64) -> Result<GpuBuffer> {
        let size = bytes.max(NULL_BYTES).next_multiple_of(NULL_BYTES);
        if size > self.binding_limit() {
            let limit = self.binding_limit();
            let sentence = format!(
                "{what} takes {bytes} bytes, but a buffer of {} holds {limit}: choose a smaller context or chunk",
                self.product
            );
            return Err(Error::with_kind(ErrorKind::OutOfMemory, sentence));
        }
        let buffer = self.driver.buffer(what, size);
        self.check().map_err(|error| error.of(what))?;
        Ok(buffer)
    }

    /// Makes a buffer from which the host reads.
    ///
    /// # Errors
    /// When memory is short.
    pub fn staging(&self, bytes: u64) -> Result<GpuBuffer> {
        let buffer = self.driver.staging(bytes.max(NULL_BYTES).next_multiple_of(NULL_BYTES));
        self.check()?;
        Ok(buffer)
    }

    /// Writes bytes to a buffer before what is submitted next.
    pub fn write(&self, buffer: &GpuBuffer, offset: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.driver.write(buffer, offset, bytes);
        }
    }

    /// Writes many bytes to a buffer, and waits, so that no more than one part is on its way.
    ///
    /// # Errors
    /// When the device fails.
    pub fn upload(&self, buffer: &GpuBuffer, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut at = offset;
        for part in bytes.chunks(UPLOAD_BYTES) {
            self.write(buffer, at, part);
            at += part.len() as u64;
            self.submit(self.commands())?;
        }
        Ok(())
    }

    /// Begins a list of commands.
    pub fn commands(&self) -> Commands {
        self.driver.commands()
    }

    /// Room for the times of this number of nodes.
    pub fn times(&self, count: u32) -> NodeTimes {
        self.driver.times(count)
    }

    /// Submits commands, before others; the wait for these reports what goes wrong.
    pub fn begin(&self, commands: Commands) {
        self.driver.begin(commands);
    }

    /// Submits commands and waits until they have run.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn submit(&self, commands: Commands) -> Result<()> {
        self.driver.submit(commands, PATIENCE)
    }

    /// Submits commands that write to a staging buffer, waits, and hands its first bytes to `read`.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn submit_and_read<T>(
        &self,
        commands: Commands,
        staging: &GpuBuffer,
        bytes: u64,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        self.driver.submit_and_read(commands, (staging, bytes), PATIENCE, read)
    }

    /// Submits the last commands whose times are taken, waits, and returns the times.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn submit_and_time(&self, commands: Commands, times: &NodeTimes) -> Result<Vec<Duration>> {
        self.driver.submit_and_time(commands, times, PATIENCE)
    }

    /// Reads a part of a buffer.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(&self, buffer: &GpuBuffer, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let staging = self.staging(bytes)?;
        let mut commands = self.commands();
        commands.copy(buffer, offset, &staging, 0, bytes.next_multiple_of(4));
        self.submit_and_read(commands, &staging, bytes, |read| read[..bytes as usize].to_vec())
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
        let pipeline = self.driver.compile(kernel, self.tuning)?;
        self.check().map_err(|error| error.of(format!("kernel {}", kernel.name())))?;
        Ok(pipeline)
    }

    /// Binds parts of buffers to a pipeline.
    ///
    /// # Errors
    /// When the driver refuses them.
    pub fn bind(&self, pipeline: &Pipeline, parts: &[BufferPart]) -> Result<BoundKernel> {
        let bound = self.driver.bind(pipeline, parts);
        self.check()?;
        Ok(bound)
    }
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
        let Driver::Wgpu(driver) = &device.driver else { unreachable!("an adapter is one of wgpu") };
        driver.destroy();
        assert!(device.is_lost());
        for _ in 0..2 {
            let error = device.submit(device.commands()).expect_err("nothing runs any more");
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
