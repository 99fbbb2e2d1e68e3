//! A device of an OpenVINO with the properties that models are compiled with.

use std::sync::Arc;

use girih_tensor::{Error, ErrorKind, Result};

use crate::ffi::{CompiledModel, ConstantBytes, OpenVinoCore};

/// An open device.
#[derive(Debug)]
pub(crate) struct OpenVinoDevice {
    core: Arc<OpenVinoCore>,
    /// The name that OpenVINO gives it, such as `CPU` or `GPU.0`.
    pub name: String,
    /// The name of the product.
    pub product: String,
    properties: Vec<(String, String)>,
}

impl OpenVinoDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// When there is none of this name, or it is an NPU.
    pub fn open(
        core: OpenVinoCore,
        name: &str,
        properties: Vec<(String, String)>,
    ) -> Result<Arc<OpenVinoDevice>> {
        let known = core.devices()?;
        if !known.iter().any(|device| device == name) {
            return Err(missing(&core, name, &known));
        }
        if name.starts_with(NPU) {
            let sentence = format!(
                "openvino:{name} needs models of fixed shapes, which girih does not make: use openvino:CPU or openvino:GPU"
            );
            return Err(Error::with_kind(ErrorKind::Refused, sentence));
        }
        let product = product(&core, name);
        Ok(Arc::new(OpenVinoDevice { core: Arc::new(core), name: name.to_owned(), product, properties }))
    }

    /// The version of OpenVINO.
    pub fn version(&self) -> &str {
        self.core.version()
    }

    /// Compiles a model, with properties of its own.
    ///
    /// # Errors
    /// When OpenVINO refuses it.
    pub fn compile(
        &self,
        model: &str,
        weights: &Arc<ConstantBytes>,
        more: &[(String, String)],
    ) -> Result<Arc<CompiledModel>> {
        let properties: Vec<_> = self.properties.iter().chain(more).cloned().collect();
        self.core.compile(model, weights, &self.name, &properties).map(Arc::new)
    }
}

/// How the names of NPUs begin.
const NPU: &str = "NPU";

/// Why there is no device of this name, with OpenVINO's word.
pub(crate) fn missing(core: &OpenVinoCore, name: &str, known: &[String]) -> Error {
    // The first has the name of the product in each plugin but that of NPUs, which needs the driver for the other.
    let key = if name.starts_with(NPU) { "NPU_DRIVER_VERSION" } else { PRODUCT };
    let why = core.property(name, key).err().map_or_else(String::new, |error| format!("; {error}"));
    let known = known.join(", ");
    let sentence = format!("OpenVINO has no device '{name}': install its driver, or use one of {known}{why}");
    Error::with_kind(ErrorKind::NotFound, sentence)
}

/// The property with the name of a product.
const PRODUCT: &str = "FULL_DEVICE_NAME";

/// Properties of devices that say what runs on them and how: the name for people, and OpenVINO's.
const TOLD: [(&str, &str); 8] = [
    ("architecture", "DEVICE_ARCHITECTURE"),
    ("types", "OPTIMIZATION_CAPABILITIES"),
    ("driver", "GPU_DRIVER_VERSION"),
    ("driver", "NPU_DRIVER_VERSION"),
    ("compiler", "NPU_COMPILER_VERSION"),
    ("memory", "GPU_DEVICE_TOTAL_MEM_SIZE"),
    ("memory", "NPU_DEVICE_TOTAL_MEM_SIZE"),
    ("units", "GPU_EXECUTION_UNITS_COUNT"),
];

/// What a device says of itself, for people.
pub(crate) fn settings(core: &OpenVinoCore, device: &str) -> Vec<(&'static str, String)> {
    let version = [("openvino", core.version().to_owned())];
    let told = TOLD
        .iter()
        .filter_map(|(name, key)| Some((*name, core.property(device, key).ok()?.trim().to_owned())));
    version.into_iter().chain(told.filter(|(_, value)| !value.is_empty())).collect()
}

/// The name of a device's product, or that of the device.
pub(crate) fn product(core: &OpenVinoCore, device: &str) -> String {
    core.property(device, PRODUCT).map_or_else(|_| device.to_owned(), |name| name.trim().to_owned())
}
