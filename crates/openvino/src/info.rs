//! The backend's description: its devices and its options.

use std::sync::Arc;

use girih_graph::description::{
    AllowedValues, AnyBackend, BackendDevice, BackendInfo, BackendOption, BackendSettings, DriverFiles,
    Services,
};
use girih_tensor::Result;

use crate::backend::OpenVinoBackend;
use crate::device::{OpenVinoDevice, missing, product, settings as told};
use crate::ffi::OpenVinoCore;
use crate::kv_form::KvForm;
use crate::library;
use crate::product_type::ProductType;

/// The description of the backend.
pub static INFO: BackendInfo = BackendInfo {
    name: "openvino",
    about: "processors and GPUs of Intel",
    devices,
    options: OPTIONS,
    exact: &[(PRODUCTS, ProductType::F32.name())],
    driver: DRIVER,
    is_simulated: false,
    notes: &[],
    open,
};

/// OpenVINO where Intel's packages and Python put it, and the drivers of Intel's GPUs and NPUs.
const DRIVER: DriverFiles = DriverFiles {
    read: &["/etc/OpenCL", "/opt/conda/lib", "/opt/intel", "/usr/local/lib"],
    options: &[LIBRARY],
    devices: &["/dev/accel", "/dev/dri"],
};

/// The device that is meant without a name.
const DEFAULT_DEVICE: &str = "CPU";

const LIBRARY: &str = "openvino-lib";

/// The option that chooses where keys and values of earlier steps are.
const KV: &str = "openvino-kv";

/// The option that chooses how block formats are multiplied.
const PRODUCTS: &str = "openvino-products";

const OPTIONS: &[BackendOption] = &[
    BackendOption {
        name: LIBRARY,
        placeholder: "PATH",
        help: "Library of OpenVINO 2026.4 or newer, such as libopenvino_c.so.2641, or its folder \
            [default: that of the system or of a Python]",
        values: AllowedValues::Checked(|text| match text {
            "" => Err("must be a path".to_owned()),
            _ => Ok(()),
        }),
        repeats: false,
    },
    BackendOption {
        name: KV,
        placeholder: "FORM",
        help: "Where keys and values of earlier steps are: windows in the host's memory, or hidden in the model, which runs tokens \
            again where sequences part [default: hidden for one sequence of tokens, else windows]",
        values: AllowedValues::OneOf(|| KvForm::ALL.map(KvForm::name).to_vec()),
        repeats: false,
    },
    BackendOption {
        name: PRODUCTS,
        placeholder: "TYPE",
        help: "Type of the numbers that matrices in block formats are multiplied with: f32, or int8 where OpenVINO has such \
            products [default: f32]",
        values: AllowedValues::OneOf(|| ProductType::ALL.map(ProductType::name).to_vec()),
        repeats: false,
    },
];

fn core(settings: &BackendSettings) -> Result<OpenVinoCore> {
    OpenVinoCore::new(library::open(settings.get(LIBRARY))?)
}

/// The devices of the library; the processor is meant without a name, too. A device that is named and not there is an error
/// with OpenVINO's reason.
fn devices(settings: &BackendSettings) -> Result<Vec<BackendDevice>> {
    let core = core(settings)?;
    let device = |name: Option<String>, device: &str| BackendDevice {
        name,
        about: product(&core, device),
        settings: told(&core, device),
    };
    let names = core.devices()?;
    if let Some(wanted) = settings.device.as_deref().filter(|wanted| !names.iter().any(|name| name == wanted))
    {
        return Err(missing(&core, wanted, &names));
    }
    let default = names.iter().filter(|name| *name == DEFAULT_DEVICE).map(|name| device(None, name));
    Ok(default.chain(names.iter().map(|name| device(Some(name.clone()), name))).collect())
}

fn open(settings: &BackendSettings, _: &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>> {
    let name = settings.device.as_deref().unwrap_or(DEFAULT_DEVICE);
    let threads = settings.threads.filter(|_| name == DEFAULT_DEVICE);
    let threads = threads.map(|threads| ("INFERENCE_NUM_THREADS", threads.to_string()));
    let chosen = settings.get(PRODUCTS);
    let products =
        ProductType::ALL.into_iter().find(|known| chosen == Some(known.name())).unwrap_or(ProductType::F32);
    let kv = KvForm::ALL.into_iter().find(|known| settings.get(KV) == Some(known.name()));
    let fixed = [
        // Without it, a processor with bf16 computes in bf16.
        ("INFERENCE_PRECISION_HINT", "f32"),
        ("DYNAMIC_QUANTIZATION_GROUP_SIZE", products.group()),
        ("NUM_STREAMS", "1"),
    ];
    let fixed = fixed.into_iter().map(|(key, value)| (key, value.to_owned()));
    let properties = fixed.chain(threads).map(|(key, value)| (key.to_owned(), value)).collect();
    let device = OpenVinoDevice::open(core(settings)?, name, properties)?;
    Ok(Box::new(OpenVinoBackend::new(device, products, kv)))
}
