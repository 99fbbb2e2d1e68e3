//! The list of backends; features switch whole lines.

use girih_graph::description::{BackendChoice, BackendInfo};
use girih_graph::{Error, ErrorKind, Result};

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

/// The backends that this build does not have; a feature of the same name brings each.
const ABSENT: &[&str] = &[
    #[cfg(not(feature = "cpu"))]
    "cpu",
    #[cfg(not(feature = "npu"))]
    "npu",
    #[cfg(not(feature = "gpu"))]
    "gpu",
    #[cfg(not(feature = "openvino"))]
    "openvino",
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
/// When there is no such backend; the error says so if other builds have it. A device that does not exist is an
/// error of planning and loading, as options may decide which there are.
pub fn backend(name: &str) -> Result<BackendChoice> {
    let kind = name.split(':').next().unwrap_or(name);
    if ABSENT.contains(&kind) {
        let sentence = format!(
            "this build of girih has no backend '{kind}': use a package for glibc, which has every backend, or build \
             with `--features {kind}`"
        );
        return Err(Error::with_kind(ErrorKind::NotFound, sentence));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_found_or_said_to_be_of_other_builds() {
        for kind in ["cpu", "npu", "gpu", "openvino"] {
            match backend(&format!("{kind}:0")) {
                Ok(choice) => assert_eq!(choice.to_string(), format!("{kind}:0")),
                Err(error) => assert!(error.to_string().contains(&format!("--features {kind}")), "{error}"),
            }
            assert_eq!(ABSENT.contains(&kind), BACKENDS.iter().all(|info| info.name != kind));
        }
    }
}
