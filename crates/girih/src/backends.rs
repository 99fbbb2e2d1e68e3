//! The list of backends; features switch whole lines.

use girih_graph::Result;
use girih_graph::description::{BackendChoice, BackendInfo};

/// Every backend; the first is the default.
static BACKENDS: &[&BackendInfo] = &[
    #[cfg(feature = "cpu")]
    &girih_cpu::INFO,
    &girih_graph::interpret::INFO,
    #[cfg(feature = "npu")]
    &girih_npu::INFO,
    #[cfg(feature = "gpu")]
    &girih_gpu::INFO,
    #[cfg(feature = "openvino")]
    &girih_openvino::INFO,
];

/// Returns the descriptions of all backends; the first is the default.
///
/// ```
/// let names: Vec<&str> = girih::backends().iter().map(|info| info.name).collect();
/// assert!(names.contains(&"interpreter"));
/// ```
pub fn backends() -> &'static [&'static BackendInfo] {
    BACKENDS
}

/// Finds a backend by `name` or `name:device`, without options.
///
/// ```
/// let choice = girih::backend("interpreter")?;
/// assert_eq!(choice.to_string(), "interpreter");
/// assert!(girih::backend("abacus").is_err());
/// # Ok::<(), girih::Error>(())
/// ```
///
/// # Errors
/// When there is no such backend. A device that does not exist is an error of planning and loading, as
/// options may decide which there are.
pub fn backend(name: &str) -> Result<BackendChoice> {
    BackendChoice::parse(BACKENDS, name)
}

/// The number of threads that a backend uses if none is set: the cores that this process may
/// use.
///
/// ```
/// assert!(girih::default_threads() >= 1);
/// ```
#[cfg(feature = "cpu")]
pub fn default_threads() -> usize {
    girih_cpu::default_threads()
}

/// The number of threads that a backend uses if none is set: the CPUs that this process may
/// use.
///
/// ```
/// assert!(girih::default_threads() >= 1);
/// ```
#[cfg(not(feature = "cpu"))]
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
