//! The backend's description: its devices and its options.

use std::sync::Arc;

use girih_graph::description::{
    AllowedValues, AnyBackend, BackendDevice, BackendInfo, BackendOption, BackendSettings, DriverFiles,
    Services, numbers,
};
use girih_graph::store::StoreOptions;
use girih_tensor::{Error, ErrorKind, Result};

use crate::backend::OpenVinoBackend;
use crate::blobs::BlobStore;
use crate::device::{
    DeviceUse, OpenVinoDevice, WRAPPED, Wrapper, is_npu, missing, product, settings as told, wrapped_product,
};
use crate::ffi::OpenVinoCore;
use crate::kv_form::KvForm;
use crate::library;
use crate::product_type::ProductType;
use crate::step_shape::{ModelShapes, Rungs};

/// The description of the backend.
pub static INFO: BackendInfo = BackendInfo {
    name: "openvino",
    about: "processors, GPUs and NPUs of Intel",
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

const SHAPES: &str = "openvino-shapes";
const LENGTHS: &str = "openvino-lengths";
const CONTEXTS: &str = "openvino-contexts";
const WRAPPER: &str = "openvino-npuw";
const BLOBS: &str = "openvino-blobs";
const PROPERTY: &str = "openvino-property";

/// The values of [`SHAPES`].
const ANY: &str = "any";
const FIXED: &str = "fixed";

/// The value of [`WRAPPER`] that uses none, and of [`BLOBS`] that keeps none.
const OFF: &str = "off";

/// The value of [`BLOBS`] that keeps compiled models.
const ON: &str = "on";

/// The folder of packed weights in the host's cache, whose limit holds for compiled models, too.
const STORE: &str = "packed";

/// The positions of models for one row, beside the largest. Each compilation for an NPU takes minutes.
const DEFAULT_CONTEXTS: [u32; 2] = [1024, 4096];

/// OpenVINO's property for the type that models compute in.
const PRECISION: &str = "INFERENCE_PRECISION_HINT";

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
    BackendOption {
        name: SHAPES,
        placeholder: "any|fixed",
        help: "Shapes of OpenVINO's models: any, or fixed, in several models, to which steps are filled up \
            [default: fixed on an NPU, otherwise any]",
        values: AllowedValues::OneOf(|| vec![ANY, FIXED]),
        repeats: false,
    },
    BackendOption {
        name: LENGTHS,
        placeholder: "N",
        help: "Rows for which models of fixed shapes are compiled in addition to 1 and --chunk, so that short \
            prompts are padded less, such as 64,256 [default: none]",
        values: AllowedValues::Checked(|text| lengths(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: CONTEXTS,
        placeholder: "N",
        help: "Positions for which models of one row of fixed shapes are compiled in addition to --context \
            [default: 1024,4096]",
        values: AllowedValues::Checked(|text| contexts(text).map(drop)),
        repeats: false,
    },
    BackendOption {
        name: WRAPPER,
        placeholder: "DEVICE|off",
        help: "Device on which NPUW, OpenVINO's wrapper for NPUs, runs the models of openvino:NPU: NPU, or CPU to try them \
            without one; or off, to compile them without the wrapper [default: NPU]",
        values: AllowedValues::OneOf(|| vec![Wrapper::Npu.device(), Wrapper::Processor.device(), OFF]),
        repeats: false,
    },
    BackendOption {
        name: BLOBS,
        placeholder: "on|off",
        help: "Whether models that OpenVINO compiled for an NPU or a GPU are kept for the next start, among the packed weights \
            of the cache folder [default: off]",
        values: AllowedValues::OneOf(|| vec![ON, OFF]),
        repeats: false,
    },
    BackendOption {
        name: PROPERTY,
        placeholder: "NAME=VALUE",
        help: "Property with which OpenVINO compiles models, in the place of girih's; can change results and can be repeated",
        values: AllowedValues::Checked(property),
        repeats: true,
    },
];

fn lengths(text: &str) -> Result<Vec<u32>, String> {
    numbers(text, 65536)
}

fn contexts(text: &str) -> Result<Vec<u32>, String> {
    numbers(text, u32::MAX)
}

fn property(text: &str) -> Result<(), String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(()),
        _ => Err("must be NAME=VALUE, such as PERF_COUNT=YES".to_owned()),
    }
}

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
    let wrapped = wraps_processor(settings).then(|| BackendDevice {
        name: Some(WRAPPED.to_owned()),
        about: wrapped_product(&core),
        settings: Vec::new(),
    });
    if let Some(wanted) = settings.device.as_deref().filter(|wanted| !names.iter().any(|name| name == wanted))
        && wrapped.as_ref().and_then(|device| device.name.as_deref()) != Some(wanted)
    {
        return Err(missing(&core, wanted, &names));
    }
    let default = names.iter().filter(|name| *name == DEFAULT_DEVICE).map(|name| device(None, name));
    Ok(default.chain(names.iter().map(|name| device(Some(name.clone()), name))).chain(wrapped).collect())
}

/// Whether OpenVINO's wrapper of NPUs is to run models on the processor.
fn wraps_processor(settings: &BackendSettings) -> bool {
    settings.get(WRAPPER) == Some(Wrapper::Processor.device())
}

/// Why options contradict each other or a device.
fn contradiction(sentence: String) -> Error {
    Error::with_kind(ErrorKind::Refused, sentence)
}

/// What the wrapper runs models on, if it is used.
fn wrapper(settings: &BackendSettings, device: &str) -> Result<Option<Wrapper>> {
    match settings.get(WRAPPER) {
        Some(option) if !is_npu(device) => Err(contradiction(format!(
            "--{WRAPPER} {option} is for openvino:NPU, not openvino:{device}: leave it out"
        ))),
        Some(OFF) => Ok(None),
        Some(_) if wraps_processor(settings) => Ok(Some(Wrapper::Processor)),
        _ => Ok(is_npu(device).then_some(Wrapper::Npu)),
    }
}

/// The extents that models are made for.
fn shapes(settings: &BackendSettings, device: &str) -> Result<ModelShapes> {
    let is_fixed = match settings.get(SHAPES) {
        Some(ANY) if is_npu(device) => {
            return Err(contradiction(format!(
                "an NPU needs models of fixed shapes: use --{SHAPES} {FIXED}, or openvino:CPU"
            )));
        }
        Some(chosen) => chosen == FIXED,
        None => is_npu(device),
    };
    let rungs = Rungs {
        lengths: settings.parsed(LENGTHS, lengths)?.unwrap_or_default(),
        contexts: settings.parsed(CONTEXTS, contexts)?.unwrap_or(DEFAULT_CONTEXTS.to_vec()),
    };
    for option in [LENGTHS, CONTEXTS] {
        if !is_fixed && settings.get(option).is_some() {
            return Err(contradiction(format!(
                "--{option} is for models of fixed shapes: leave it out, or use --{SHAPES} {FIXED}"
            )));
        }
    }
    Ok(if is_fixed { ModelShapes::Fixed(rungs) } else { ModelShapes::Any })
}

/// The form of keys and values, if one was chosen. Models of fixed shapes have windows.
fn kv_form(settings: &BackendSettings, shapes: &ModelShapes) -> Result<Option<KvForm>> {
    let chosen = KvForm::ALL.into_iter().find(|known| settings.get(KV) == Some(known.name()));
    match (chosen, shapes) {
        (Some(KvForm::Hidden), ModelShapes::Fixed(_)) => Err(contradiction(format!(
            "models of fixed shapes have no hidden KV cache: use --{KV} {}, or --{SHAPES} {ANY}",
            KvForm::Windows.name()
        ))),
        (_, ModelShapes::Fixed(_)) => Ok(Some(KvForm::Windows)),
        (chosen, ModelShapes::Any) => Ok(chosen),
    }
}

/// The type of products, which an NPU chooses itself.
fn products(settings: &BackendSettings, device: &str) -> Result<ProductType> {
    let chosen = settings.get(PRODUCTS);
    let known = ProductType::ALL.into_iter().find(|known| chosen == Some(known.name()));
    if known == Some(ProductType::Int8) && is_npu(device) {
        return Err(contradiction(format!("--{PRODUCTS} int8 has no effect on an NPU: leave it out")));
    }
    Ok(known.unwrap_or(ProductType::F32))
}

/// The properties of models; those of the user come last.
fn properties(
    settings: &BackendSettings,
    device: &str,
    products: ProductType,
    wrapper: Option<Wrapper>,
) -> Vec<(String, String)> {
    let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let mut all = match (is_npu(device), wrapper) {
        (true, Some(Wrapper::Npu) | None) => vec![owned((PRECISION, "f16"))],
        // Without it, a processor with bf16 computes in bf16.
        (true, Some(Wrapper::Processor)) => vec![owned((PRECISION, "f32"))],
        (false, _) => {
            [(PRECISION, "f32"), ("DYNAMIC_QUANTIZATION_GROUP_SIZE", products.group()), ("NUM_STREAMS", "1")]
                .map(owned)
                .to_vec()
        }
    };
    if let Some(threads) = settings.threads.filter(|_| device == DEFAULT_DEVICE) {
        all.push(("INFERENCE_NUM_THREADS".to_owned(), threads.to_string()));
    }
    all.extend(wrapper.map(Wrapper::properties).unwrap_or_default());
    for given in settings.all(PROPERTY) {
        if let Some((key, value)) = given.split_once('=') {
            all.retain(|(known, _)| known != key);
            all.push(owned((key, value)));
        }
    }
    all
}

/// The compiled models of earlier runs, if they are to be kept.
fn blobs(
    settings: &BackendSettings,
    services: &Arc<dyn Services>,
    device: &str,
) -> Result<Option<BlobStore>> {
    if settings.get(BLOBS) != Some(ON) {
        return Ok(None);
    }
    if device == DEFAULT_DEVICE {
        return Err(contradiction(format!(
            "--{BLOBS} {ON} gains nothing on openvino:{device}, which compiles as fast as it reads: leave it out"
        )));
    }
    let store = services.store(STORE, StoreOptions { writes: true, limit: None });
    let folder = services.cache().map(|cache| cache.join(STORE));
    Ok(store.zip(folder).map(|(store, folder)| BlobStore { store, folder }))
}

fn open(settings: &BackendSettings, services: &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>> {
    let name = settings.device.as_deref().unwrap_or(DEFAULT_DEVICE);
    let products = products(settings, name)?;
    let wrapper = wrapper(settings, name)?;
    let properties = properties(settings, name, products, wrapper);
    let blobs = blobs(settings, services, name)?;
    let shapes = shapes(settings, name)?;
    let kv = kv_form(settings, &shapes)?;
    let used = DeviceUse { shapes, wrapper, properties, blobs };
    let device = OpenVinoDevice::open(core(settings)?, name, used)?;
    Ok(Box::new(OpenVinoBackend::new(device, products, kv)))
}

#[cfg(test)]
mod tests {
    use girih_graph::description::BackendChoice;

    use super::*;

    fn settings(device: &str, options: &[(&str, &str)]) -> Result<BackendSettings> {
        let choice = BackendChoice::parse(&[&INFO], &format!("openvino:{device}"))?;
        let with = |choice: BackendChoice, (name, value): &(&str, &str)| choice.with(name, value);
        Ok(options.iter().try_fold(choice, with)?.settings().clone())
    }

    fn shapes_of(device: &str, options: &[(&str, &str)]) -> Result<ModelShapes> {
        shapes(&settings(device, options)?, device)
    }

    fn properties_of(device: &str, options: &[(&str, &str)]) -> Vec<String> {
        let settings = settings(device, options).unwrap();
        let (products, wrapper) = (products(&settings, device).unwrap(), wrapper(&settings, device).unwrap());
        let all = properties(&settings, device, products, wrapper).into_iter();
        all.map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn models_have_fixed_shapes_on_an_npu_and_where_they_are_asked_for() {
        let rungs = |lengths: &[u32], contexts: &[u32]| {
            ModelShapes::Fixed(Rungs { lengths: lengths.to_vec(), contexts: contexts.to_vec() })
        };
        assert_eq!(shapes_of("CPU", &[]).unwrap(), ModelShapes::Any);
        assert_eq!(shapes_of("NPU", &[]).unwrap(), rungs(&[], &[1024, 4096]));
        let options = [(SHAPES, FIXED), (LENGTHS, "8,64"), (CONTEXTS, "256")];
        assert_eq!(shapes_of("CPU", &options).unwrap(), rungs(&[8, 64], &[256]));
        for (device, options, sentence) in [
            ("NPU", &[(SHAPES, ANY)][..], "an NPU needs models of fixed shapes"),
            ("CPU", &[(LENGTHS, "8")], "--openvino-lengths is for models of fixed shapes"),
            ("GPU", &[(CONTEXTS, "8")], "--openvino-contexts is for models of fixed shapes"),
            ("NPU", &[(LENGTHS, "0")], "option 'openvino-lengths' of the openvino backend"),
        ] {
            let error = shapes_of(device, options).unwrap_err().to_string();
            assert!(error.starts_with(sentence), "{error}");
        }
    }

    #[test]
    fn models_for_npus_have_the_properties_of_the_wrapper() {
        let f32 = ["INFERENCE_PRECISION_HINT=f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE=0", "NUM_STREAMS=1"];
        assert_eq!(properties_of("CPU", &[]), f32);
        let npu = ["INFERENCE_PRECISION_HINT=f16", "NPU_USE_NPUW=YES", "NPUW_DEVICES=NPU"];
        let shared = ["NPUW_ONLINE_PIPELINE=NONE", "NPUW_WEIGHTS_BANK=girih"];
        assert_eq!(properties_of("NPU", &[]), [&npu[..], &shared].concat());
        assert_eq!(properties_of("NPU", &[(WRAPPER, OFF)]), npu[..1]);
        let wrapped = ["INFERENCE_PRECISION_HINT=f32", "NPU_USE_NPUW=YES", "NPUW_DEVICES=CPU"];
        let exact = ["NPUW_F16IC=NO"];
        assert_eq!(properties_of("NPU", &[(WRAPPER, "CPU")]), [&wrapped[..], &shared, &exact].concat());
        let own = [(WRAPPER, OFF), (PROPERTY, "INFERENCE_PRECISION_HINT=f32"), (PROPERTY, "A=b=c")];
        assert_eq!(properties_of("NPU", &own), ["INFERENCE_PRECISION_HINT=f32", "A=b=c"]);
    }

    #[test]
    fn options_that_contradict_a_device_are_refused() {
        let on_processor = settings("CPU", &[(WRAPPER, "CPU")]).unwrap();
        let error = wrapper(&on_processor, "CPU").unwrap_err().to_string();
        assert_eq!(error, "--openvino-npuw CPU is for openvino:NPU, not openvino:CPU: leave it out");
        let hidden = settings("CPU", &[(KV, "hidden"), (SHAPES, FIXED)]).unwrap();
        let error = kv_form(&hidden, &shapes(&hidden, "CPU").unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("models of fixed shapes have no hidden KV cache"), "{error}");
        let on_npu = settings("NPU", &[(PRODUCTS, "int8")]).unwrap();
        let error = products(&on_npu, "NPU").unwrap_err().to_string();
        assert_eq!(error, "--openvino-products int8 has no effect on an NPU: leave it out");
        assert!(settings("NPU", &[(PROPERTY, "=x")]).is_err());
    }
}
