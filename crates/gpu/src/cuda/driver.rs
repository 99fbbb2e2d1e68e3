//! The driver for NVIDIA's GPUs: a context, one stream, memory and kernels of CUDA.
//!
//! Calls are in the order of one stream. A fault is noted when a call returns it, and reported by the next check, as that of the
//! portable driver is.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use girih_tensor::{Error, ErrorKind, Result};

use crate::cuda::kernels::{CudaModule, cuda_kernel};
use crate::cuda::library::{CudaFunctions, NOT_READY, OUT_OF_MEMORY, Status, functions};
use crate::faults::{FaultLog, locked, out_of_memory};
use crate::kernel::{GpuKernel, IMMEDIATE_BYTES};

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
const INTEGRATED: c_int = 18;

/// Both parts of `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: u32 = 1;

/// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
const UNSUPPORTED_PTX: Status = 222;

/// The oldest compute capability with the matrix units of the kernels.
const OLDEST: c_int = 8;

/// The most bindings of a launch.
const MOST_BINDINGS: usize = 10;

/// A wait asks the driver without a break for this time, and then with breaks.
const EAGER: Duration = Duration::from_millis(20);

/// A device that the driver lists.
#[derive(Clone, Debug)]
pub(crate) struct CudaDevice {
    /// What follows `gpu:`, such as `cuda:0`.
    pub name: String,
    pub product: String,
    pub driver: String,
    /// Whether its memory is the host's.
    pub shares_memory: bool,
    ordinal: c_int,
    capability: [c_int; 2],
}

/// All devices.
///
/// # Errors
/// When there is no driver, or it fails.
pub(crate) fn cuda_devices() -> Result<Vec<CudaDevice>> {
    let api = functions()?;
    let (mut version, mut count) = (0, 0);
    // SAFETY: the driver writes a number.
    failure(api, unsafe { (api.driver_version)(&raw mut version) }, "tell its version")?;
    // SAFETY: as above.
    failure(api, unsafe { (api.device_count)(&raw mut count) }, "list devices")?;
    (0..count).map(|ordinal| described(api, ordinal, version)).collect()
}

fn described(api: &CudaFunctions, ordinal: c_int, version: c_int) -> Result<CudaDevice> {
    let mut device = 0;
    let mut name = [0_u8; 256];
    // SAFETY: the driver writes a number.
    failure(api, unsafe { (api.device_get)(&raw mut device, ordinal) }, "describe a device")?;
    let room = name.len() as c_int - 1;
    // SAFETY: the driver writes a text that ends with a zero within this room.
    let status = unsafe { (api.device_name)(name.as_mut_ptr().cast(), room, device) };
    failure(api, status, "describe a device")?;
    let attribute = |attribute: c_int| {
        let mut number = 0;
        // SAFETY: the driver writes a number.
        let status = unsafe { (api.device_attribute)(&raw mut number, attribute, device) };
        failure(api, status, "describe a device").map(|()| number)
    };
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(0);
    Ok(CudaDevice {
        name: format!("cuda:{ordinal}"),
        product: String::from_utf8_lossy(&name[..end]).into_owned(),
        driver: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
        shares_memory: attribute(INTEGRATED)? != 0,
        ordinal: device,
        capability: [attribute(CAPABILITY[0])?, attribute(CAPABILITY[1])?],
    })
}

/// The error of a call outside a step.
fn failure(api: &CudaFunctions, status: Status, what: &str) -> Result<()> {
    match status {
        0 => Ok(()),
        status => {
            let sentence = format!("the CUDA driver cannot {what} ({})", api.name_of(status));
            Err(Error::with_kind(ErrorKind::DeviceFailed, sentence))
        }
    }
}

/// A context with its stream.
struct Context {
    api: &'static CudaFunctions,
    ordinal: c_int,
    context: usize,
    stream: usize,
    faults: Arc<FaultLog>,
}

impl Context {
    /// Makes the context that of this thread.
    fn enter(&self) {
        // SAFETY: the context is retained until this value is dropped.
        self.note(unsafe { (self.api.context_set)(self.context) });
    }

    /// Notes a fault. One after which a context computes nothing loses the device.
    fn note(&self, status: Status) {
        match status {
            0 => {}
            OUT_OF_MEMORY => self.faults.note(out_of_memory()),
            // From 700 on, and 214: faults of kernels and of memory, which end the context.
            700.. | 214 => self.faults.lose(self.api.name_of(status)),
            _ => {
                let sentence = format!("the CUDA driver refused a call ({})", self.api.name_of(status));
                self.faults.note(Error::with_kind(ErrorKind::DeviceFailed, sentence));
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.enter();
        // SAFETY: all memory, modules and events hold the context, so they are gone.
        unsafe { (self.api.stream_destroy)(self.stream) };
        // SAFETY: as above.
        unsafe { (self.api.context_release)(self.ordinal) };
    }
}

/// Memory of the device, or of the host for its results.
#[derive(Clone)]
pub(crate) struct CudaBuffer(Arc<Memory>);

struct Memory {
    context: Arc<Context>,
    place: MemoryPlace,
    bytes: u64,
}

/// Where memory is; 0 and null are memory that the driver refused.
#[derive(Clone, Copy)]
enum MemoryPlace {
    Device(u64),
    Host(HostAddress),
}

/// The address of pinned memory.
#[derive(Clone, Copy)]
struct HostAddress(*mut c_void);

// SAFETY: the address is that of plain bytes, which are read after a wait for the stream that writes them.
unsafe impl Send for HostAddress {}
// SAFETY: as above; nothing writes through a shared reference but the stream.
unsafe impl Sync for HostAddress {}

impl fmt::Debug for CudaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaBuffer").field("bytes", &self.0.bytes).finish_non_exhaustive()
    }
}

impl CudaBuffer {
    /// The bytes of the buffer.
    pub fn size(&self) -> u64 {
        self.0.bytes
    }

    /// The address of `bytes` bytes on the device.
    fn device(&self, offset: u64, bytes: u64) -> u64 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.0.bytes), "a copy lies within its buffer");
        match self.0.place {
            MemoryPlace::Device(address) => address + offset,
            MemoryPlace::Host(_) => unreachable!("kernels and copies on the device use the device's memory"),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.context.enter();
        let api = self.context.api;
        match self.place {
            MemoryPlace::Device(0) => {}
            // SAFETY: the driver gave the address. A kernel that uses it was launched before, and freeing waits for it.
            MemoryPlace::Device(address) => self.context.note(unsafe { (api.memory_free)(address) }),
            MemoryPlace::Host(HostAddress(address)) if address.is_null() => {}
            // SAFETY: as above.
            MemoryPlace::Host(HostAddress(address)) => self.context.note(unsafe { (api.host_free)(address) }),
        }
    }
}

/// An open device.
pub(crate) struct CudaDriver {
    context: Arc<Context>,
    product: String,
    modules: Mutex<HashMap<CudaModule, Arc<LoadedModule>>>,
}

/// Kernels that the driver has compiled.
struct LoadedModule {
    context: Arc<Context>,
    module: usize,
}

impl Drop for LoadedModule {
    fn drop(&mut self) {
        self.context.enter();
        // SAFETY: nothing holds a function of the module any more.
        self.context.note(unsafe { (self.context.api.module_unload)(self.module) });
    }
}

/// A kernel, and the threads of its blocks.
#[derive(Clone)]
pub(crate) struct CudaPipeline {
    /// Keeps the function.
    _module: Arc<LoadedModule>,
    function: usize,
    threads: u32,
}

/// A kernel with what it reads and writes.
pub(crate) struct CudaBound {
    pipeline: CudaPipeline,
    addresses: [u64; MOST_BINDINGS],
    /// Keeps the memory while the kernel may be launched.
    _buffers: Vec<CudaBuffer>,
}

/// What a kernel gets: the addresses of its bindings, then its words (`Launch` of `common.cuh`).
#[repr(C)]
struct LaunchData {
    addresses: [u64; MOST_BINDINGS],
    words: [u8; IMMEDIATE_BYTES as usize],
}

/// Launches and copies in the order of the stream, which begin at once.
pub(crate) struct CudaCommands {
    context: Arc<Context>,
}

/// An event before each node whose time is read, and one at the end.
pub(crate) struct CudaTimes(Vec<CudaEvent>);

/// A place in the order of the stream.
struct CudaEvent {
    context: Arc<Context>,
    event: usize,
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: the event was made by the driver, and a device that has not reached it is waited for.
        unsafe { (self.context.api.event_destroy)(self.event) };
    }
}

impl CudaDriver {
    /// Opens a device.
    ///
    /// # Errors
    /// When it is too old, or the driver fails.
    pub fn open(device: &CudaDevice, faults: &Arc<FaultLog>) -> Result<CudaDriver> {
        let CudaDevice { product, ordinal, capability: [major, minor], .. } = device;
        if *major < OLDEST {
            let sentence = format!(
                "{product} has compute capability {major}.{minor}, but gpu:cuda needs {OLDEST}.0: use --backend gpu"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let api = functions()?;
        let (mut context, mut stream) = (0, 0);
        // SAFETY: the driver writes a handle; the device is one that it lists.
        failure(api, unsafe { (api.context_retain)(&raw mut context, *ordinal) }, "make a context")?;
        // SAFETY: the context was just retained.
        let entered = unsafe { (api.context_set)(context) };
        // SAFETY: the driver writes a handle.
        let made = unsafe { (api.stream_create)(&raw mut stream, NON_BLOCKING) };
        let faults = Arc::clone(faults);
        let context = Arc::new(Context { api, ordinal: *ordinal, context, stream, faults });
        [entered, made].into_iter().try_for_each(|status| failure(api, status, "make a stream"))?;
        Ok(CudaDriver { context, product: product.clone(), modules: Mutex::default() })
    }

    /// The bytes of memory that are free.
    pub fn free_memory(&self) -> Option<u64> {
        self.context.enter();
        let (mut free, mut all) = (0, 0);
        // SAFETY: the driver writes two numbers.
        let status = unsafe { (self.context.api.memory_info)(&raw mut free, &raw mut all) };
        (status == 0).then_some(free as u64)
    }

    fn buffer_at(&self, place: MemoryPlace, bytes: u64) -> CudaBuffer {
        CudaBuffer(Arc::new(Memory { context: Arc::clone(&self.context), place, bytes }))
    }

    /// A zeroed buffer for kernels; the next check reports what goes wrong.
    pub fn buffer(&self, bytes: u64) -> CudaBuffer {
        let Context { api, stream, .. } = &*self.context;
        self.context.enter();
        let mut address = 0;
        // SAFETY: the driver writes an address.
        let status = unsafe { (api.memory_alloc)(&raw mut address, bytes as usize) };
        self.context.note(status);
        if status != 0 {
            return self.buffer_at(MemoryPlace::Device(0), 0);
        }
        // SAFETY: the address is that of memory of this size.
        self.context.note(unsafe { (api.fill)(address, 0, bytes as usize, *stream) });
        self.buffer_at(MemoryPlace::Device(address), bytes)
    }

    /// A buffer from which the host reads; the next check reports what goes wrong.
    pub fn staging(&self, bytes: u64) -> CudaBuffer {
        self.context.enter();
        let mut address = std::ptr::null_mut();
        // SAFETY: the driver writes an address.
        let status = unsafe { (self.context.api.host_alloc)(&raw mut address, bytes as usize, 0) };
        self.context.note(status);
        let (address, bytes) = if status == 0 { (address, bytes) } else { (std::ptr::null_mut(), 0) };
        if !address.is_null() {
            // SAFETY: the memory has this number of bytes, and nothing else knows it yet.
            unsafe { address.cast::<u8>().write_bytes(0, bytes as usize) };
        }
        self.buffer_at(MemoryPlace::Host(HostAddress(address)), bytes)
    }

    /// Writes bytes to a buffer, after what was launched before.
    pub fn write(&self, buffer: &CudaBuffer, offset: u64, bytes: &[u8]) {
        let Context { api, stream, .. } = &*self.context;
        self.context.enter();
        let to = buffer.device(offset, bytes.len() as u64);
        // SAFETY: both sides have this number of bytes, and the driver has read those of pageable memory when it returns.
        self.context.note(unsafe { (api.copy_to_device)(to, bytes.as_ptr().cast(), bytes.len(), *stream) });
    }

    /// Begins a list of commands.
    pub fn commands(&self) -> CudaCommands {
        self.context.enter();
        CudaCommands { context: Arc::clone(&self.context) }
    }

    /// Room for the times of this number of nodes.
    pub fn times(&self, count: u32) -> CudaTimes {
        self.context.enter();
        let context = &self.context;
        let event = |_| {
            let mut event = 0;
            // SAFETY: the driver writes a handle.
            context.note(unsafe { (context.api.event_create)(&raw mut event, 0) });
            CudaEvent { context: Arc::clone(context), event }
        };
        CudaTimes((0..=count).map(event).collect())
    }

    /// Waits for all commands.
    ///
    /// # Errors
    /// When the device fails, or does not finish within `patience`.
    pub fn wait(&self, patience: Duration) -> Result<()> {
        let Context { api, stream, faults, .. } = &*self.context;
        self.context.enter();
        let begin = Instant::now();
        // SAFETY: the stream lives as long as the context.
        let mut status = unsafe { (api.stream_query)(*stream) };
        while status == NOT_READY && begin.elapsed() < patience {
            match begin.elapsed() < EAGER {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(Duration::from_micros(50)),
            }
            // SAFETY: as above.
            status = unsafe { (api.stream_query)(*stream) };
        }
        if status == NOT_READY {
            let (product, seconds) = (&self.product, patience.as_secs());
            let sentence =
                format!("the GPU {product} has not finished within {seconds} s: load the model again");
            faults.lose("it hangs".to_owned());
            return Err(Error::with_kind(ErrorKind::DeviceFailed, sentence));
        }
        self.context.note(status);
        faults.check(&self.product)
    }

    /// Waits, and hands the first bytes of a staging buffer to `read`.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn wait_and_read<T>(
        &self,
        (staging, bytes): (&CudaBuffer, u64),
        patience: Duration,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        self.wait(patience)?;
        let bytes = bytes.min(staging.0.bytes) as usize;
        let MemoryPlace::Host(HostAddress(address)) = staging.0.place else {
            unreachable!("results are copied to the host's memory")
        };
        if address.is_null() {
            return Ok(read(&[]));
        }
        // SAFETY: the memory has this number of bytes, was zeroed, and the stream that writes it has ended.
        Ok(read(unsafe { std::slice::from_raw_parts(address.cast::<u8>(), bytes) }))
    }

    /// Waits, and returns the time of each node.
    ///
    /// # Errors
    /// When the device fails or hangs.
    pub fn wait_and_time(&self, times: &CudaTimes, patience: Duration) -> Result<Vec<Duration>> {
        let CudaTimes(events) = times;
        self.commands().mark(events.last());
        self.wait(patience)?;
        let api = self.context.api;
        let between = |pair: &[CudaEvent]| {
            let mut milliseconds = 0.0_f32;
            // SAFETY: both events have passed, as the stream has ended.
            let status = unsafe { (api.event_elapsed)(&raw mut milliseconds, pair[0].event, pair[1].event) };
            failure(api, status, "read a time")?;
            Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
        };
        events.windows(2).map(between).collect()
    }

    /// The kernel; its module is compiled when the first of its kernels is.
    ///
    /// # Errors
    /// When there is no such kernel for CUDA, or the driver refuses it.
    pub fn compile(&self, kernel: GpuKernel) -> Result<CudaPipeline> {
        let Some(entry) = cuda_kernel(kernel) else {
            let name = kernel.name();
            return Err(Error::new(format!("gpu:cuda has no kernel {name}; this is a bug in girih")));
        };
        let api = self.context.api;
        self.context.enter();
        let module = self.module(entry.module)?;
        let name = CString::new(entry.name).expect("names of kernels have no zeros");
        let mut function = 0;
        // SAFETY: the driver writes a handle; the module is loaded.
        let status = unsafe { (api.module_function)(&raw mut function, module.module, name.as_ptr()) };
        failure(api, status, &format!("find the kernel {}", kernel.name()))?;
        Ok(CudaPipeline { _module: module, function, threads: entry.threads })
    }

    fn module(&self, which: CudaModule) -> Result<Arc<LoadedModule>> {
        let mut modules = locked(&self.modules);
        if let Some(known) = modules.get(&which) {
            return Ok(Arc::clone(known));
        }
        let text = CString::new(which.ptx()).expect("a text of PTX has no zeros");
        let (api, mut module) = (self.context.api, 0);
        // SAFETY: the text ends with a zero, there are no options, and the driver writes a handle.
        let status = unsafe {
            let none = std::ptr::null_mut();
            (api.module_load)(&raw mut module, text.as_ptr().cast(), 0, none, std::ptr::null_mut())
        };
        if status == UNSUPPORTED_PTX {
            let sentence = "NVIDIA's driver is too old for the kernels of gpu:cuda: install 570 or newer, or use --backend gpu";
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        failure(api, status, &format!("compile {}", which.name()))?;
        let made = Arc::new(LoadedModule { context: Arc::clone(&self.context), module });
        modules.insert(which, Arc::clone(&made));
        Ok(made)
    }

    /// Binds parts of buffers, each with its offset and bytes, to a kernel.
    pub fn bind(&self, pipeline: &CudaPipeline, parts: &[(&CudaBuffer, u64, u64)]) -> CudaBound {
        let mut addresses = [0; MOST_BINDINGS];
        for (to, (buffer, offset, bytes)) in addresses.iter_mut().zip(parts) {
            *to = buffer.device(*offset, *bytes);
        }
        let buffers = parts.iter().map(|(buffer, ..)| CudaBuffer::clone(buffer)).collect();
        CudaBound { pipeline: pipeline.clone(), addresses, _buffers: buffers }
    }
}

impl CudaCommands {
    /// Records an event.
    fn mark(&self, event: Option<&CudaEvent>) {
        if let Some(CudaEvent { event, .. }) = event {
            let Context { api, stream, .. } = &*self.context;
            // SAFETY: both handles live.
            self.context.note(unsafe { (api.event_record)(*event, *stream) });
        }
    }

    /// Begins the node of this number, whose time is read if there is room for it.
    pub fn begin_node(&self, times: &CudaTimes, node: u32) {
        self.mark(times.0.get(node as usize));
    }

    /// Launches a kernel with its immediate data and its blocks.
    pub fn launch(&self, bound: &CudaBound, words: [u8; IMMEDIATE_BYTES as usize], [x, y, z]: [u32; 3]) {
        let Context { api, stream, .. } = &*self.context;
        let CudaBound { pipeline: CudaPipeline { function, threads, .. }, addresses, .. } = bound;
        let mut data = LaunchData { addresses: *addresses, words };
        let mut arguments = [(&raw mut data).cast::<c_void>()];
        let none = std::ptr::null_mut();
        // SAFETY: the kernel takes one argument of this layout, which the driver copies before it returns; the addresses are
        // those of buffers that `bound` holds, with the sizes for which the launch was made.
        let status = unsafe {
            (api.launch)(*function, x, y, z, *threads, 1, 1, 0, *stream, arguments.as_mut_ptr(), none)
        };
        self.context.note(status);
    }

    /// Copies bytes to another buffer of the device, or to one of the host.
    pub fn copy(&self, from: &CudaBuffer, from_offset: u64, to: &CudaBuffer, to_offset: u64, bytes: u64) {
        let Context { api, stream, .. } = &*self.context;
        let (source, count) = (from.device(from_offset, bytes), bytes as usize);
        let status = match to.0.place {
            // SAFETY: both parts lie within their buffers.
            MemoryPlace::Device(_) => unsafe {
                (api.copy_on_device)(to.device(to_offset, bytes), source, count, *stream)
            },
            MemoryPlace::Host(HostAddress(address)) => {
                let end = to_offset.checked_add(bytes);
                assert!(end.is_some_and(|end| end <= to.0.bytes), "a copy lies within its buffer");
                let to = address.wrapping_byte_add(to_offset as usize);
                // SAFETY: both parts lie within their buffers, and the host reads them after a wait.
                unsafe { (api.copy_to_host)(to, source, count, *stream) }
            }
        };
        self.context.note(status);
    }

    /// Zeroes bytes of a buffer.
    pub fn clear(&self, buffer: &CudaBuffer, offset: u64, bytes: u64) {
        let Context { api, stream, .. } = &*self.context;
        let at = buffer.device(offset, bytes);
        // SAFETY: the bytes lie within the buffer.
        self.context.note(unsafe { (api.fill)(at, 0, bytes as usize, *stream) });
    }
}
