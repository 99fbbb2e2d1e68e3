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
    /// When there is none of this name.
    pub fn open(
        core: OpenVinoCore,
        name: &str,
        properties: Vec<(String, String)>,
    ) -> Result<Arc<OpenVinoDevice>> {
        let known = core.devices()?;
        if !known.iter().any(|device| device == name) {
            let known = known.join(", ");
            let sentence = format!("OpenVINO has no device '{name}': use one of {known}");
            return Err(Error::with_kind(ErrorKind::NotFound, sentence));
        }
        let product = product(&core, name);
        Ok(Arc::new(OpenVinoDevice { core: Arc::new(core), name: name.to_owned(), product, properties }))
    }

    /// The version of OpenVINO.
    pub fn version(&self) -> &str {
        self.core.version()
    }

    /// Compiles a model.
    ///
    /// # Errors
    /// When OpenVINO refuses it.
    pub fn compile(&self, model: &str, weights: &Arc<ConstantBytes>) -> Result<CompiledModel> {
        self.core.compile(model, weights, &self.name, &self.properties)
    }
}

/// The name of a device's product, or that of the device.
pub(crate) fn product(core: &OpenVinoCore, device: &str) -> String {
    core.property(device, "FULL_DEVICE_NAME")
        .map_or_else(|_| device.to_owned(), |name| name.trim().to_owned())
}
