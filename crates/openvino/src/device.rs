//! A device of an OpenVINO with the properties that models are compiled with.

use std::sync::Arc;

use girih_graph::{Graph, Numerics, Rounding};
use girih_tensor::{DType, Error, ErrorKind, Result};

use crate::blobs::{BlobKey, BlobStore};
use crate::ffi::{CompiledModel, ConstantBytes, OpenVinoCore};
use crate::planes::PlaneFormat;
use crate::product_type::ProductType;
use crate::step_shape::ModelShapes;

/// An open device.
#[derive(Debug)]
pub(crate) struct OpenVinoDevice {
    core: Arc<OpenVinoCore>,
    /// The name that OpenVINO gives it, such as `CPU` or `GPU.0`.
    pub name: String,
    /// The name of the product.
    pub product: String,
    /// The extents of the steps that its models are made for.
    pub shapes: ModelShapes,
    wrapper: Option<Wrapper>,
    properties: Vec<(String, String)>,
    blobs: Option<BlobStore>,
}

/// How a device is used.
#[derive(Debug)]
pub(crate) struct DeviceUse {
    pub shapes: ModelShapes,
    /// What NPUW, OpenVINO's wrapper of NPUs, runs models on; `None` without it.
    pub wrapper: Option<Wrapper>,
    /// Properties that models are compiled with, and their values.
    pub properties: Vec<(String, String)>,
    /// The compiled models of earlier runs, if they are kept.
    pub blobs: Option<BlobStore>,
}

/// What OpenVINO's wrapper of NPUs runs models on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapper {
    /// An NPU.
    Npu,
    /// The processor, in the place of an NPU.
    Processor,
}

impl Wrapper {
    /// The device.
    pub fn device(self) -> &'static str {
        match self {
            Wrapper::Npu => NPU,
            Wrapper::Processor => "CPU",
        }
    }

    /// The properties of models. They share weights by a bank of this name. They are not cut into parts
    /// (`NPUW_ONLINE_PIPELINE`), as NPUW 2026.4 then computes other values of some models. What layers hand on is not rounded to
    /// f16 where the device has f32 (`NPUW_F16IC`).
    pub fn properties(self) -> Vec<(String, String)> {
        let all = [
            ("NPU_USE_NPUW", "YES"),
            ("NPUW_DEVICES", self.device()),
            ("NPUW_ONLINE_PIPELINE", "NONE"),
            ("NPUW_WEIGHTS_BANK", "girih"),
        ];
        let exact = (self == Wrapper::Processor).then_some(("NPUW_F16IC", "NO"));
        all.into_iter().chain(exact).map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }
}

impl OpenVinoDevice {
    /// Opens a device.
    ///
    /// # Errors
    /// When there is none of this name.
    pub fn open(core: OpenVinoCore, name: &str, used: DeviceUse) -> Result<Arc<OpenVinoDevice>> {
        let DeviceUse { shapes, wrapper, mut properties, blobs } = used;
        let known = core.devices()?;
        let is_processor = wrapper == Some(Wrapper::Processor);
        if !is_processor && !known.iter().any(|device| device == name) {
            return Err(missing(&core, name, &known));
        }
        let product = if is_processor { wrapped_product(&core) } else { product(&core, name) };
        if blobs.is_some() {
            // The C API imports without properties, and a processor with bf16 computes in bf16 unless it is told.
            let imported = match wrapper {
                Some(wrapper) => wrapper.device(),
                None => name,
            };
            core.set(imported, &kept_properties(&properties))?;
            // Else a compiled model lacks its weights, and the C API cannot say where they are.
            properties.push(("CACHE_MODE".to_owned(), "OPTIMIZE_SPEED".to_owned()));
        }
        let (core, name) = (Arc::new(core), name.to_owned());
        Ok(Arc::new(OpenVinoDevice { core, name, product, shapes, wrapper, properties, blobs }))
    }

    /// Whether NPUW, OpenVINO's wrapper of NPUs, runs the models.
    pub fn has_npuw(&self) -> bool {
        self.wrapper.is_some()
    }

    /// Whether the times of layers are the means of all runs of a model.
    pub fn tells_means(&self) -> bool {
        self.name == Wrapper::Processor.device() && self.wrapper.is_none()
    }

    /// How a program of a graph rounds: an NPU computes in f16.
    pub fn numerics(&self, products: ProductType, graph: &Graph) -> Numerics {
        if is_npu(&self.name) && self.wrapper != Some(Wrapper::Processor) {
            return Numerics { stores: DType::F16, activations: Vec::new(), head: Rounding::NONE };
        }
        // Nobody has seen which formats NPUW multiplies with their scales in f32.
        let has_blocks = graph.weights().any(|(_, value)| PlaneFormat::of(value.dtype).is_some());
        if self.wrapper == Some(Wrapper::Processor) && has_blocks {
            return Numerics { stores: DType::F32, activations: vec![F16_WEIGHTS], head: F16_WEIGHTS };
        }
        products.numerics(graph)
    }

    /// The version of OpenVINO.
    pub fn version(&self) -> &str {
        self.core.version()
    }

    /// Compiles a model with the device's properties and `more`, or imports what an earlier run compiled if weights with the same
    /// identity are known. A property that the user gave replaces one of `more`.
    ///
    /// # Errors
    /// When OpenVINO refuses it.
    pub fn compile(
        &self,
        model: &str,
        weights: &Arc<ConstantBytes>,
        more: &[(String, String)],
        identity: Option<[u8; 32]>,
    ) -> Result<Arc<CompiledModel>> {
        let is_new = |(key, _): &&(String, String)| !self.properties.iter().any(|(known, _)| known == key);
        let properties: Vec<(String, String)> =
            self.properties.iter().chain(more.iter().filter(is_new)).cloned().collect();
        let compile = || self.core.compile(model, weights, &self.name, &properties).map(Arc::new);
        let (Some(blobs), Some(identity)) = (&self.blobs, identity) else { return compile() };
        let key = self.key(model, &properties, &identity);
        if let Some(blob) = blobs.find(key) {
            match self.core.import(&blob, &self.name) {
                Ok(imported) => return Ok(Arc::new(imported)),
                Err(error) => blobs.store.note(&error),
            }
        }
        let compiled = compile()?;
        match blobs.exported(key, |path| compiled.export(path)) {
            Ok(blob) => blobs.keep(key, blob),
            Err(error) => blobs.store.note(&error),
        }
        Ok(compiled)
    }

    /// What a compiled model depends on.
    fn key(&self, model: &str, properties: &[(String, String)], identity: &[u8; 32]) -> BlobKey {
        let told = format!(
            "{}\n{}\n{}\n{}\n{:?}\n{:?}",
            env!("CARGO_PKG_VERSION"),
            self.core.version(),
            self.name,
            self.product,
            properties,
            settings(&self.core, &self.name)
        );
        BlobKey::of(&[told.as_bytes(), model.as_bytes(), identity])
    }
}

/// Of the properties of models, those that a device has beside NPUW's.
fn kept_properties(properties: &[(String, String)]) -> Vec<(String, String)> {
    let is_own = |(key, _): &&(String, String)| !key.starts_with("NPU");
    properties.iter().filter(is_own).cloned().collect()
}

/// NPUW multiplies the codes of matrices with f16 scales in f16, which errs as much as activations in f16 do.
const F16_WEIGHTS: Rounding = Rounding { name: "f16", format: DType::F16, multiplied: "f32" };

/// How the names of NPUs begin.
const NPU: &str = "NPU";

/// Whether a device is an NPU, which runs models of fixed extents only.
pub(crate) fn is_npu(name: &str) -> bool {
    name.starts_with(NPU)
}

/// The device that the wrapper runs on the processor, in the place of an NPU.
pub(crate) const WRAPPED: &str = NPU;

/// The name of the processor that the wrapper runs models on.
pub(crate) fn wrapped_product(core: &OpenVinoCore) -> String {
    format!("NPUW over {}", product(core, Wrapper::Processor.device()))
}

/// Why there is no device of this name, with OpenVINO's word.
pub(crate) fn missing(core: &OpenVinoCore, name: &str, known: &[String]) -> Error {
    // The first has the name of the product in each plugin but that of NPUs, which needs the driver for the other.
    let key = if is_npu(name) { "NPU_DRIVER_VERSION" } else { PRODUCT };
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
