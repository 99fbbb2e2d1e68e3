//! CUDA's driver: the functions that the backend calls, looked up when the first device is listed or opened.
//!
//! The names, the types and the order of arguments are those of `cuda.h`. Handles are addresses, which only the driver reads.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use girih_tensor::{Error, ErrorKind, Result};
use libloading::Library;

/// The driver's library on Linux, and on Windows.
const NAMES: [&str; 2] = ["libcuda.so.1", "nvcuda.dll"];

/// `CUresult`; 0 is success.
pub(crate) type Status = c_int;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: Status = 2;

/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: Status = 600;

/// Makes the table of functions: each has the name of its symbol.
macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) -> Status;)*) => {
        /// The functions of the driver.
        pub(crate) struct CudaFunctions {
            $(pub $name: unsafe extern "C" fn($($argument),*) -> Status,)*
            /// Keeps the functions where they are. It is never unloaded, as the driver has threads of its own.
            _library: ManuallyDrop<Library>,
        }

        impl CudaFunctions {
            /// Looks up every function.
            fn find(library: Library) -> Result<CudaFunctions, String> {
                $(
                    // SAFETY: the library is CUDA's driver, whose header declares this type.
                    let $name = *unsafe { library.get(concat!($symbol, "\0").as_bytes()) }
                        .map_err(|_| format!("the CUDA driver lacks {}: update NVIDIA's driver", $symbol))?;
                )*
                Ok(CudaFunctions { $($name,)* _library: ManuallyDrop::new(library) })
            }
        }
    };
}

functions! {
    init = "cuInit": fn(c_uint) -> Status;
    driver_version = "cuDriverGetVersion": fn(*mut c_int) -> Status;
    device_count = "cuDeviceGetCount": fn(*mut c_int) -> Status;
    device_get = "cuDeviceGet": fn(*mut c_int, c_int) -> Status;
    device_name = "cuDeviceGetName": fn(*mut c_char, c_int, c_int) -> Status;
    device_attribute = "cuDeviceGetAttribute": fn(*mut c_int, c_int, c_int) -> Status;
    context_retain = "cuDevicePrimaryCtxRetain": fn(*mut usize, c_int) -> Status;
    context_release = "cuDevicePrimaryCtxRelease_v2": fn(c_int) -> Status;
    context_set = "cuCtxSetCurrent": fn(usize) -> Status;
    memory_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize) -> Status;
    memory_alloc = "cuMemAlloc_v2": fn(*mut u64, usize) -> Status;
    memory_free = "cuMemFree_v2": fn(u64) -> Status;
    host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> Status;
    host_free = "cuMemFreeHost": fn(*mut c_void) -> Status;
    fill = "cuMemsetD8Async": fn(u64, u8, usize, usize) -> Status;
    copy_to_device = "cuMemcpyHtoDAsync_v2": fn(u64, *const c_void, usize, usize) -> Status;
    copy_to_host = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, u64, usize, usize) -> Status;
    copy_on_device = "cuMemcpyDtoDAsync_v2": fn(u64, u64, usize, usize) -> Status;
    stream_create = "cuStreamCreate": fn(*mut usize, c_uint) -> Status;
    stream_destroy = "cuStreamDestroy_v2": fn(usize) -> Status;
    stream_query = "cuStreamQuery": fn(usize) -> Status;
    module_load = "cuModuleLoadDataEx": fn(*mut usize, *const c_void, c_uint, *mut c_int, *mut *mut c_void) -> Status;
    module_unload = "cuModuleUnload": fn(usize) -> Status;
    module_function = "cuModuleGetFunction": fn(*mut usize, usize, *const c_char) -> Status;
    launch = "cuLaunchKernel": fn(usize, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, usize, *mut *mut c_void, *mut *mut c_void) -> Status;
    event_create = "cuEventCreate": fn(*mut usize, c_uint) -> Status;
    event_destroy = "cuEventDestroy_v2": fn(usize) -> Status;
    event_record = "cuEventRecord": fn(usize, usize) -> Status;
    event_elapsed = "cuEventElapsedTime": fn(*mut f32, usize, usize) -> Status;
    error_name = "cuGetErrorName": fn(Status, *mut *const c_char) -> Status;
}

impl CudaFunctions {
    /// The name of a status, such as `CUDA_ERROR_INVALID_VALUE`.
    pub fn name_of(&self, status: Status) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the driver writes the address of a text that it never frees, or null.
        let said = unsafe { (self.error_name)(status, &raw mut name) };
        if said != 0 || name.is_null() {
            return format!("status {status}");
        }
        // SAFETY: the text ends with a zero.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// The driver, which this process loads once; one that is installed later is found.
///
/// # Errors
/// When there is none, it is too old, or it cannot be used.
pub(crate) fn functions() -> Result<&'static CudaFunctions> {
    static LOADED: OnceLock<CudaFunctions> = OnceLock::new();
    if let Some(loaded) = LOADED.get() {
        return Ok(loaded);
    }
    let made = load().map_err(|sentence| Error::with_kind(ErrorKind::NotFound, sentence))?;
    Ok(LOADED.get_or_init(|| made))
}

fn load() -> Result<CudaFunctions, String> {
    // SAFETY: the library is the system's driver, whose initialization has no other conditions.
    let found = NAMES.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
    let library = found.ok_or_else(|| {
        format!(
            "gpu:cuda needs NVIDIA's driver, but {} is not found: install it, or use --backend gpu",
            NAMES[0]
        )
    })?;
    let functions = CudaFunctions::find(library)?;
    // SAFETY: the flags are 0, as the header demands.
    match unsafe { (functions.init)(0) } {
        0 => Ok(functions),
        status => {
            Err(format!("NVIDIA's driver finds no GPU that it can use ({})", functions.name_of(status)))
        }
    }
}
