//! OpenVINO's C API: the functions that the backend calls, looked up in a library when the program runs, and types that
//! own what they return.
//!
//! The names, the types and the order of arguments are those of `openvino/c/*.h` of OpenVINO 2026.4.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::path::Path;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use girih_tensor::{Error, ErrorKind, Result};
use libloading::Library;

/// The oldest version whose functions are those of this table: year and release.
const OLDEST: [u32; 2] = [2026, 4];

/// An object of the library, known by its address only.
#[repr(C)]
struct Opaque {
    _bytes: [u8; 0],
}

/// `ov_version_t`.
#[repr(C)]
struct Version {
    build: *const c_char,
    description: *const c_char,
}

/// `ov_available_devices_t`.
#[repr(C)]
struct DeviceNames {
    names: *mut *mut c_char,
    count: usize,
}

/// `ov_shape_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct TensorShape {
    rank: i64,
    extents: *const i64,
}

/// `ov_property_t`.
#[repr(C)]
struct Property {
    key: *const c_char,
    value: *const c_char,
}

/// `ov_profiling_info_t`.
#[repr(C)]
struct ProfilingInfo {
    /// 2 if the layer ran.
    status: c_int,
    /// Microseconds.
    real_time: i64,
    cpu_time: i64,
    node_name: *const c_char,
    exec_type: *const c_char,
    node_type: *const c_char,
}

/// `ov_profiling_info_list_t`.
#[repr(C)]
struct ProfilingInfos {
    infos: *mut ProfilingInfo,
    count: usize,
}

/// The status of a layer that ran.
const EXECUTED: c_int = 2;

/// `ov_element_type_e`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum ElementType {
    F32 = 4,
    I32 = 9,
    U8 = 16,
}

/// `ov_status_e`; 0 is success.
type Status = c_int;

/// Makes the table of functions: each has the name of its symbol.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the library.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// Keeps the functions where they are. It is never unloaded: the threads of OpenVINO outlive its objects.
            _library: std::mem::ManuallyDrop<Library>,
        }

        impl Functions {
            /// Looks up every function.
            fn find(library: Library, path: &str) -> Result<Functions> {
                $(
                    // SAFETY: the library is an OpenVINO of a version whose headers declare this type.
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .map_err(|_| {
                            let name = stringify!($name);
                            refused(format!("{path} lacks the function {name}: install OpenVINO again"))
                        })?;
                )*
                Ok(Functions { $($name,)* _library: std::mem::ManuallyDrop::new(library) })
            }
        }
    };
}

functions! {
    ov_available_devices_free: fn(*mut DeviceNames);
    ov_compiled_model_create_infer_request: fn(*const Opaque, *mut *mut Opaque) -> Status;
    ov_compiled_model_export_model: fn(*const Opaque, *const c_char) -> Status;
    ov_compiled_model_free: fn(*mut Opaque);
    ov_core_compile_model_props: fn(*const Opaque, *const Opaque, *const c_char, usize, *const Property, *mut *mut Opaque) -> Status;
    ov_core_create: fn(*mut *mut Opaque) -> Status;
    ov_core_free: fn(*mut Opaque);
    ov_core_get_available_devices: fn(*const Opaque, *mut DeviceNames) -> Status;
    ov_core_get_property: fn(*const Opaque, *const c_char, *const c_char, *mut *mut c_char) -> Status;
    ov_core_import_model: fn(*const Opaque, *const c_char, usize, *const c_char, *mut *mut Opaque) -> Status;
    ov_core_read_model_from_memory_buffer: fn(*const Opaque, *const c_char, usize, *const Opaque, *mut *mut Opaque) -> Status;
    ov_core_set_properties: fn(*const Opaque, *const c_char, usize, *const Property) -> Status;
    ov_free: fn(*const c_char);
    ov_get_last_err_msg: fn() -> *const c_char;
    ov_infer_request_free: fn(*mut Opaque);
    ov_infer_request_get_profiling_info: fn(*const Opaque, *mut ProfilingInfos) -> Status;
    ov_infer_request_get_tensor: fn(*const Opaque, *const c_char, *mut *mut Opaque) -> Status;
    ov_infer_request_infer: fn(*mut Opaque) -> Status;
    ov_infer_request_set_tensor: fn(*mut Opaque, *const c_char, *const Opaque) -> Status;
    ov_model_free: fn(*mut Opaque);
    ov_profiling_info_list_free: fn(*mut ProfilingInfos);
    ov_tensor_create_from_host_ptr: fn(ElementType, TensorShape, *mut c_void, *mut *mut Opaque) -> Status;
    ov_tensor_data: fn(*const Opaque, *mut *mut c_void) -> Status;
    ov_tensor_free: fn(*mut Opaque);
    ov_tensor_get_element_type: fn(*const Opaque, *mut u32) -> Status;
    ov_tensor_get_size: fn(*const Opaque, *mut usize) -> Status;
}

impl Functions {
    /// An error with what the library says of it.
    fn check(&self, status: Status, what: &str) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the function has no arguments.
        let said = unsafe { (self.ov_get_last_err_msg)() };
        // SAFETY: the text ends with a zero, and nothing frees it: errors are rare and their texts short.
        let said = if said.is_null() { String::new() } else { unsafe { text(said) } };
        let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no reason");
        Err(Error::new(format!("OpenVINO cannot {what}: {last} (status {status})")))
    }
}

/// A refusal, such as of a library.
fn refused(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// A text of the library; empty if there is none.
///
/// # Safety
/// The pointer is null or the address of a text that ends with a zero.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: the caller says so.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A text for the library.
fn c_text(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| refused(format!("{text:?} has a zero byte: leave it out")))
}

/// Properties as texts of the library.
struct PropertyTexts(Vec<(CString, CString)>);

impl PropertyTexts {
    fn new(properties: &[(String, String)]) -> Result<PropertyTexts> {
        let texts = properties.iter().map(|(key, value)| Ok((c_text(key)?, c_text(value)?)));
        Ok(PropertyTexts(texts.collect::<Result<_>>()?))
    }

    /// The addresses of the texts.
    fn pairs(&self) -> Vec<Property> {
        let pair = |(key, value): &(CString, CString)| Property { key: key.as_ptr(), value: value.as_ptr() };
        self.0.iter().map(pair).collect()
    }
}

/// An OpenVINO of a version that the backend knows.
#[derive(Clone)]
pub(crate) struct OpenVino {
    functions: Arc<Functions>,
    /// Its version, such as `2026.4.1`.
    pub version: String,
}

impl fmt::Debug for OpenVino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenVino").field("version", &self.version).finish_non_exhaustive()
    }
}

impl OpenVino {
    /// Opens the library at `path`, or the one that the loader finds by this name.
    ///
    /// # Errors
    /// When it is no library, no OpenVINO, or older than 2026.4.
    pub fn open(path: &Path) -> Result<OpenVino> {
        let shown = path.display().to_string();
        // SAFETY: loading runs the initializers of the library, which the user names and trusts.
        let library = unsafe { Library::new(path) }.map_err(|error| {
            refused(format!(
                "{shown} cannot be loaded: {}",
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
            ))
        })?;
        let version = version_of(&library, &shown)?;
        let version = known_version(&version).map_err(|clause| refused(format!("{shown} is {clause}")))?;
        Ok(OpenVino { functions: Arc::new(Functions::find(library, &shown)?), version })
    }
}

/// The version of an OpenVINO, such as `2026.4.1-22982-e213a147257-releases/2026/4`.
fn version_of(library: &Library, path: &str) -> Result<String> {
    type Get = unsafe extern "C" fn(*mut Version) -> Status;
    type Free = unsafe extern "C" fn(*mut Version);
    let no_openvino = |_| refused(format!("{path} is no OpenVINO: name its libopenvino_c"));
    // SAFETY: each OpenVINO with a C API has the function with this type.
    let get = unsafe { library.get::<Get>(b"ov_get_openvino_version\0") }.map_err(no_openvino)?;
    // SAFETY: as above.
    let free = unsafe { library.get::<Free>(b"ov_version_free\0") }.map_err(no_openvino)?;
    let mut version = Version { build: ptr::null(), description: ptr::null() };
    // SAFETY: the function fills the structure.
    if unsafe { get(&raw mut version) } != 0 {
        return Err(refused(format!("{path} does not say its version: install OpenVINO again")));
    }
    // SAFETY: the function returned a text.
    let build = unsafe { text(version.build) };
    // SAFETY: the structure is as the library filled it.
    unsafe { free(&raw mut version) };
    Ok(build)
}

/// The first part of a version that the backend knows. The error is a clause.
fn known_version(build: &str) -> std::result::Result<String, String> {
    let mut numbers = build.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let release = [numbers.next(), numbers.next()];
    if let [Some(year), Some(number)] = release
        && [year, number] >= OLDEST
    {
        return Ok(build.split('-').next().unwrap_or_default().to_owned());
    }
    let [year, number] = OLDEST;
    Err(format!("OpenVINO {build}; girih needs {year}.{number} or newer: run `pip install -U openvino`"))
}

/// What compiles and runs: the devices of an OpenVINO.
pub(crate) struct OpenVinoCore {
    openvino: OpenVino,
    core: *mut Opaque,
}

// SAFETY: `ov::OpenVinoCore` may be used from any thread.
unsafe impl Send for OpenVinoCore {}
// SAFETY: the methods of `ov::OpenVinoCore` that are called here lock what they share.
unsafe impl Sync for OpenVinoCore {}

impl fmt::Debug for OpenVinoCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.openvino.fmt(f)
    }
}

impl Drop for OpenVinoCore {
    fn drop(&mut self) {
        // SAFETY: `ov_core_create` made it, and nothing uses it any more.
        unsafe { (self.openvino.functions.ov_core_free)(self.core) };
    }
}

impl OpenVinoCore {
    /// Makes one.
    ///
    /// # Errors
    /// When the library fails.
    pub fn new(openvino: OpenVino) -> Result<OpenVinoCore> {
        let mut core = ptr::null_mut();
        // SAFETY: the function writes the address of what it makes.
        let status = unsafe { (openvino.functions.ov_core_create)(&raw mut core) };
        openvino.functions.check(status, "start")?;
        Ok(OpenVinoCore { openvino, core })
    }

    fn functions(&self) -> &Functions {
        &self.openvino.functions
    }

    /// The version of the library.
    pub fn version(&self) -> &str {
        &self.openvino.version
    }

    /// The names of the devices, such as `CPU` and `GPU.0`.
    ///
    /// # Errors
    /// When the library fails.
    pub fn devices(&self) -> Result<Vec<String>> {
        let mut list = DeviceNames { names: ptr::null_mut(), count: 0 };
        // SAFETY: the core is open, and the function fills the list.
        let status = unsafe { (self.functions().ov_core_get_available_devices)(self.core, &raw mut list) };
        self.functions().check(status, "list its devices")?;
        let texts: &[*mut c_char] = if list.count == 0 {
            &[]
        } else {
            // SAFETY: the list has `count` names.
            unsafe { std::slice::from_raw_parts(list.names, list.count) }
        };
        // SAFETY: each name is a text.
        let names = texts.iter().map(|name| unsafe { text(*name) }).collect();
        // SAFETY: the list is as the library filled it.
        unsafe { (self.functions().ov_available_devices_free)(&raw mut list) };
        Ok(names)
    }

    /// A property of a device, such as `FULL_DEVICE_NAME`.
    ///
    /// # Errors
    /// When the device has none of this name.
    pub fn property(&self, device: &str, key: &str) -> Result<String> {
        let (device_name, key_name) = (c_text(device)?, c_text(key)?);
        let mut value = ptr::null_mut();
        // SAFETY: the core is open, both texts end with a zero, and the function writes an address.
        let status = unsafe {
            (self.functions().ov_core_get_property)(
                self.core,
                device_name.as_ptr(),
                key_name.as_ptr(),
                &raw mut value,
            )
        };
        self.functions().check(status, &format!("read {key} of {device}"))?;
        // SAFETY: the function returned a text.
        let found = unsafe { text(value) };
        // SAFETY: the text belongs to the caller.
        unsafe { (self.functions().ov_free)(value) };
        Ok(found)
    }

    /// Reads a model and compiles it for a device.
    ///
    /// # Errors
    /// When the library refuses the model, a property or the device.
    pub fn compile(
        self: &Arc<OpenVinoCore>,
        model: &str,
        weights: &Arc<ConstantBytes>,
        device: &str,
        properties: &[(String, String)],
    ) -> Result<CompiledModel> {
        let functions = self.functions();
        let tensor = HostTensor::bytes(&self.openvino, weights.bytes())?;
        let mut read = ptr::null_mut();
        // SAFETY: the text has this length, and the weights outlive what is compiled from them.
        let status = unsafe {
            (functions.ov_core_read_model_from_memory_buffer)(
                self.core,
                model.as_ptr().cast(),
                model.len(),
                tensor.tensor,
                &raw mut read,
            )
        };
        functions.check(status, "read the model that girih wrote")?;
        let device_name = c_text(device)?;
        let texts = PropertyTexts::new(properties)?;
        let pairs = texts.pairs();
        let mut compiled = ptr::null_mut();
        // SAFETY: the model was read by this core; the pairs are texts that outlive the call.
        let status = unsafe {
            (functions.ov_core_compile_model_props)(
                self.core,
                read,
                device_name.as_ptr(),
                pairs.len(),
                pairs.as_ptr(),
                &raw mut compiled,
            )
        };
        // SAFETY: the model is not used any more; what was compiled has its own references.
        unsafe { (functions.ov_model_free)(read) };
        functions.check(status, &format!("compile the model for {device}"))?;
        Ok(CompiledModel {
            compiled,
            core: Arc::clone(self),
            _weights: Some(Arc::clone(weights)),
            runs: AtomicU64::new(0),
        })
    }

    /// Sets properties of a device, which models that are imported have.
    ///
    /// # Errors
    /// When the device refuses one.
    pub fn set(&self, device: &str, properties: &[(String, String)]) -> Result<()> {
        let (device_name, texts) = (c_text(device)?, PropertyTexts::new(properties)?);
        let pairs = texts.pairs();
        // SAFETY: the core is open; the pairs are texts that outlive the call.
        let status = unsafe {
            (self.functions().ov_core_set_properties)(
                self.core,
                device_name.as_ptr(),
                pairs.len(),
                pairs.as_ptr(),
            )
        };
        self.functions().check(status, &format!("set properties of {device}"))
    }

    /// Imports a model that [`CompiledModel::export`] wrote. OpenVINO does not notice all damage, so the bytes must be those
    /// that it wrote.
    ///
    /// # Errors
    /// When the library refuses them.
    pub fn import(self: &Arc<OpenVinoCore>, blob: &[u8], device: &str) -> Result<CompiledModel> {
        let device_name = c_text(device)?;
        let mut compiled = ptr::null_mut();
        // SAFETY: the core is open, the bytes have this length and are read during the call, and the function writes an
        // address.
        let status = unsafe {
            (self.functions().ov_core_import_model)(
                self.core,
                blob.as_ptr().cast(),
                blob.len(),
                device_name.as_ptr(),
                &raw mut compiled,
            )
        };
        self.functions().check(status, &format!("import a compiled model for {device}"))?;
        Ok(CompiledModel { compiled, core: Arc::clone(self), _weights: None, runs: AtomicU64::new(0) })
    }
}

/// The weights and constants of models, at addresses that stay.
#[derive(Debug)]
pub(crate) struct ConstantBytes {
    bytes: Vec<u8>,
    /// The first byte whose address is divisible by [`ConstantBytes::ALIGNMENT`].
    first: usize,
    count: usize,
}

impl ConstantBytes {
    /// The alignment of the first byte: one cache line.
    pub const ALIGNMENT: usize = 64;

    /// Zeros.
    ///
    /// # Errors
    /// When memory is short.
    pub fn zeroed(count: usize) -> Result<ConstantBytes> {
        let short = || {
            let sentence = format!("not enough memory for {count} bytes of weights: choose a smaller model");
            Error::with_kind(ErrorKind::OutOfMemory, sentence)
        };
        let room = count.checked_add(Self::ALIGNMENT).ok_or_else(short)?;
        let mut bytes: Vec<u8> = Vec::new();
        bytes.try_reserve_exact(room).map_err(|_| short())?;
        bytes.resize(room, 0);
        let first = bytes.as_ptr().align_offset(Self::ALIGNMENT).min(Self::ALIGNMENT);
        Ok(ConstantBytes { bytes, first, count })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.first..self.first + self.count]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.first..self.first + self.count]
    }
}

/// What a step brings for one parameter.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TensorData<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// 32-bit integers.
    I32(&'a [i32]),
}

/// The time of a layer of a compiled model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerTime {
    /// The name that the library gives it.
    pub name: String,
    pub time: Duration,
}

/// A parameter of a model with its name, its extents and its numbers.
#[derive(Clone, Debug)]
pub(crate) struct ModelArgument<'a> {
    pub name: &'a str,
    pub shape: Vec<usize>,
    pub data: TensorData<'a>,
}

/// A tensor over the host's memory, which it borrows.
struct HostTensor<'a> {
    openvino: &'a OpenVino,
    tensor: *mut Opaque,
}

impl Drop for HostTensor<'_> {
    fn drop(&mut self) {
        // SAFETY: the library made it.
        unsafe { (self.openvino.functions.ov_tensor_free)(self.tensor) };
    }
}

impl<'a> HostTensor<'a> {
    fn bytes(openvino: &'a OpenVino, bytes: &'a [u8]) -> Result<HostTensor<'a>> {
        // SAFETY: the extent is the length.
        unsafe { HostTensor::over(openvino, ElementType::U8, &[bytes.len()], bytes.as_ptr().cast()) }
    }

    fn of(openvino: &'a OpenVino, argument: &ModelArgument<'a>) -> Result<HostTensor<'a>> {
        let (kind, count, address) = match argument.data {
            TensorData::F32(numbers) => (ElementType::F32, numbers.len(), numbers.as_ptr().cast()),
            TensorData::I32(numbers) => (ElementType::I32, numbers.len(), numbers.as_ptr().cast()),
        };
        let need = argument.shape.iter().try_fold(1_usize, |all, extent| all.checked_mul(*extent));
        assert_eq!(need, Some(count), "the numbers of {} have its shape {:?}", argument.name, argument.shape);
        // SAFETY: the memory has as many numbers as the shape, as was just checked.
        unsafe { HostTensor::over(openvino, kind, &argument.shape, address) }
    }

    /// A tensor over memory.
    ///
    /// # Safety
    /// The memory has the numbers of the shape.
    unsafe fn over(
        openvino: &'a OpenVino,
        kind: ElementType,
        shape: &[usize],
        address: *const c_void,
    ) -> Result<HostTensor<'a>> {
        let extents: Vec<i64> = shape.iter().map(|extent| *extent as i64).collect();
        let shape = TensorShape { rank: extents.len() as i64, extents: extents.as_ptr() };
        let mut tensor = ptr::null_mut();
        // SAFETY: the memory is borrowed for the life of the tensor, and has the numbers of the shape. The library does
        // not write to what a model reads.
        let status = unsafe {
            (openvino.functions.ov_tensor_create_from_host_ptr)(
                kind,
                shape,
                address.cast_mut(),
                &raw mut tensor,
            )
        };
        openvino.functions.check(status, "borrow memory")?;
        Ok(HostTensor { openvino, tensor })
    }
}

/// A compiled model.
pub(crate) struct CompiledModel {
    compiled: *mut Opaque,
    core: Arc<OpenVinoCore>,
    /// What the model was read from; it is not copied. An imported model has its own.
    _weights: Option<Arc<ConstantBytes>>,
    /// The runs of all of its requests.
    runs: AtomicU64,
}

// SAFETY: a compiled model may be used from any thread.
unsafe impl Send for CompiledModel {}
// SAFETY: making requests, which is all that it is used for, is safe from any thread.
unsafe impl Sync for CompiledModel {}

impl fmt::Debug for CompiledModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CompiledModel")
    }
}

impl Drop for CompiledModel {
    fn drop(&mut self) {
        // SAFETY: the library made it, and its requests, which keep it, are gone.
        unsafe { (self.core.functions().ov_compiled_model_free)(self.compiled) };
    }
}

impl CompiledModel {
    /// Writes the model to a file, to be imported later.
    ///
    /// # Errors
    /// When the device has no such form, or the file cannot be written.
    pub fn export(&self, path: &Path) -> Result<()> {
        let name = c_text(path.to_str().ok_or_else(|| refused(format!("{} is no text", path.display())))?)?;
        // SAFETY: the model is alive, and the path ends with a zero.
        let status =
            unsafe { (self.core.functions().ov_compiled_model_export_model)(self.compiled, name.as_ptr()) };
        self.core.functions().check(status, "export a compiled model")
    }

    /// Makes room for a step, with variables of its own that hold nothing yet.
    ///
    /// # Errors
    /// When the library fails.
    pub fn request(self: &Arc<CompiledModel>) -> Result<InferRequest> {
        let functions = self.core.functions();
        let mut request = ptr::null_mut();
        // SAFETY: the model was compiled, and the function writes an address.
        let status =
            unsafe { (functions.ov_compiled_model_create_infer_request)(self.compiled, &raw mut request) };
        functions.check(status, "make room for a step")?;
        Ok(InferRequest { request, model: Arc::clone(self) })
    }
}

/// Room for a step of a model, and the values of its variables.
pub(crate) struct InferRequest {
    request: *mut Opaque,
    model: Arc<CompiledModel>,
}

// SAFETY: a request may be used by any thread, one at a time.
unsafe impl Send for InferRequest {}

impl fmt::Debug for InferRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InferRequest")
    }
}

impl Drop for InferRequest {
    fn drop(&mut self) {
        // SAFETY: the library made it, and no step runs.
        unsafe { (self.model.core.functions().ov_infer_request_free)(self.request) };
    }
}

impl InferRequest {
    /// Runs one step and waits. `arguments` has every parameter of the model, so that none of an earlier step, whose
    /// memory may be gone, is read.
    ///
    /// # Errors
    /// When the device fails.
    pub fn run(&mut self, arguments: &[ModelArgument<'_>]) -> Result<()> {
        let openvino = self.model.core.openvino.clone();
        let functions = &openvino.functions;
        let mut tensors = Vec::with_capacity(arguments.len());
        for argument in arguments {
            let name = c_text(argument.name)?;
            let tensor = HostTensor::of(&openvino, argument)?;
            // SAFETY: the request is alive, and the memory stays until the step has ended.
            let status = unsafe {
                (functions.ov_infer_request_set_tensor)(self.request, name.as_ptr(), tensor.tensor)
            };
            functions
                .check(status, &format!("take the input {} of shape {:?}", argument.name, argument.shape))?;
            tensors.push(tensor);
        }
        // SAFETY: every parameter has a tensor.
        let status = unsafe { (functions.ov_infer_request_infer)(self.request) };
        self.model.runs.fetch_add(1, Ordering::Relaxed);
        functions.check(status, "run a step")
    }

    /// The runs of all requests of the model.
    pub fn runs(&self) -> u64 {
        self.model.runs.load(Ordering::Relaxed)
    }

    /// The times of the layers that ran in the last step, of a model with the property `PERF_COUNT`. The CPU device tells the
    /// means of all runs of the model (`PerfCount::avg` of its plugin).
    ///
    /// # Errors
    /// When the device has no times.
    pub fn times(&self) -> Result<Vec<LayerTime>> {
        let functions = self.model.core.functions();
        let mut list = ProfilingInfos { infos: ptr::null_mut(), count: 0 };
        // SAFETY: the request is alive, and the function fills the list.
        let status = unsafe { (functions.ov_infer_request_get_profiling_info)(self.request, &raw mut list) };
        functions.check(status, "tell the times of layers")?;
        let infos: &[ProfilingInfo] = if list.count == 0 {
            &[]
        } else {
            // SAFETY: the list has `count` entries.
            unsafe { std::slice::from_raw_parts(list.infos, list.count) }
        };
        let ran = infos.iter().filter(|info| info.status == EXECUTED);
        let times = ran.map(|info| LayerTime {
            // SAFETY: each name is a text.
            name: unsafe { text(info.node_name) },
            time: Duration::from_micros(info.real_time.max(0) as u64),
        });
        let times = times.collect();
        // SAFETY: the list is as the library filled it.
        unsafe { (functions.ov_profiling_info_list_free)(&raw mut list) };
        Ok(times)
    }

    /// Lends the numbers of a result of the last step.
    ///
    /// # Errors
    /// When the model has no such result, or it is not of 32-bit floats.
    pub fn read<T>(&self, name: &str, lend: impl FnOnce(&[f32]) -> T) -> Result<T> {
        let openvino = &self.model.core.openvino;
        let functions = &openvino.functions;
        let name_text = c_text(name)?;
        let mut tensor = ptr::null_mut();
        // SAFETY: the request is alive, and the function writes an address.
        let status = unsafe {
            (functions.ov_infer_request_get_tensor)(self.request, name_text.as_ptr(), &raw mut tensor)
        };
        functions.check(status, &format!("return the result {name}"))?;
        let tensor = HostTensor { openvino, tensor };
        let (mut kind, mut count, mut data) = (0, 0, ptr::null_mut());
        // SAFETY: the tensor is alive, and the function writes a number.
        let status = unsafe { (functions.ov_tensor_get_element_type)(tensor.tensor, &raw mut kind) };
        functions.check(status, "tell the type of a result")?;
        if kind != ElementType::F32 as u32 {
            return Err(Error::new(format!(
                "the result {name} is of type {kind}, not f32; this is a bug in girih"
            )));
        }
        // SAFETY: as above.
        let status = unsafe { (functions.ov_tensor_get_size)(tensor.tensor, &raw mut count) };
        functions.check(status, "tell the size of a result")?;
        if count == 0 {
            return Ok(lend(&[]));
        }
        // SAFETY: as above.
        let status = unsafe { (functions.ov_tensor_data)(tensor.tensor, &raw mut data) };
        functions.check(status, "show a result")?;
        // SAFETY: a tensor of the host has `count` floats at this address, and nothing runs while they are lent.
        let numbers = unsafe { std::slice::from_raw_parts(data.cast::<f32>(), count) };
        Ok(lend(numbers))
    }
}

#[cfg(test)]
mod tests {
    use super::known_version;

    #[test]
    fn versions_before_the_first_with_these_functions_are_refused() {
        for build in ["2026.4.1-22982-e213a147257-releases/2026/4", "2026.10.0-1", "2027.0", "2027.1.0-x"] {
            let version = known_version(build).unwrap();
            assert!(build.starts_with(&version) && !version.contains('-'), "{version}");
        }
        for build in ["2026.3.0-1-releases/2026/3", "2025.9.9", "2026", "4.2026", "", "custom-2026.4"] {
            let want =
                format!("OpenVINO {build}; girih needs 2026.4 or newer: run `pip install -U openvino`");
            assert_eq!(known_version(build), Err(want));
        }
    }
}
