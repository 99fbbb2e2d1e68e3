//! The backend's description: its devices and its options.

use std::sync::Arc;

use girih_graph::description::{
    AllowedValues, AnyBackend, BackendDevice, BackendInfo, BackendOption, BackendSettings, DriverFiles,
    Services, byte_count,
};
use girih_tensor::Result;

use crate::backend::GpuBackend;
use crate::cuda::driver::{CudaDevice, cuda_devices};
use crate::device_list::{AdapterChoice, GpuAdapter, adapters, find_cuda};
use crate::precision::ActPrecision;

/// The description of the backend.
pub static INFO: BackendInfo = BackendInfo {
    name: "gpu",
    about: "a GPU, through Vulkan or Metal, or CUDA by name",
    devices,
    options: OPTIONS,
    exact: &[(PRECISION, "f32")],
    driver: DRIVER,
    is_simulated: false,
    notes: &[],
    open,
};

/// Vulkan's drivers of Mesa and NVIDIA, installed by distributions, by NVIDIA's installer and container toolkit, in NixOS and in WSL.
const DRIVER: DriverFiles = DriverFiles {
    read: &[
        "/etc/drirc",
        "/etc/glvnd",
        "/etc/nvidia",
        "/etc/vulkan",
        "/run/opengl-driver",
        "/usr/local/lib",
        "/usr/local/nvidia",
        "/usr/local/share/vulkan",
        "/usr/share/drirc.d",
        "/usr/share/glvnd",
        "/usr/share/libdrm",
        "/usr/share/nvidia",
        "/usr/share/vulkan",
    ],
    options: &[],
    devices: &["/dev/dri", "/dev/dxg", "/dev/kfd", "/dev/nvidia*"],
};

const MEMORY: &str = "gpu-memory";
const PRECISION: &str = "act-precision";
const PRODUCTS: &str = "gpu-products";

const OPTIONS: &[BackendOption] = &[
    BackendOption {
        name: MEMORY,
        placeholder: "SIZE",
        help: "Memory of the GPU that a model may use, such as 20GiB; a larger model is refused before it is loaded \
            [default: what is free]",
        values: AllowedValues::Checked(|text| byte_count(text).map(drop)),
        repeats: false,
    },
    BackendOption::act_precision(|| ActPrecision::ALL.iter().map(|it| it.name()).collect()),
    BackendOption {
        name: PRODUCTS,
        placeholder: "UNIT",
        help: "What multiplies many rows that are rounded to int8: matrix units, or dot products of four bytes (does not \
            affect results) [default: matrix where the GPU has such units, else dot]",
        values: AllowedValues::OneOf(|| vec!["matrix", "dot"]),
        repeats: false,
    },
    // The program that opens backends cuts the model: a backend knows no other one.
    BackendOption {
        name: "gpu-layers",
        placeholder: "N",
        help: "Number of layers that run on the GPU, the last ones and the head; the CPU runs the others. 'auto' is as many as \
            fit into its memory [default: all]",
        values: AllowedValues::Checked(|text| match text {
            "auto" => Ok(()),
            number => match number.parse::<usize>() {
                Ok(1..) => Ok(()),
                _ => Err("must be 'auto' or a number of layers, 1 or more".to_owned()),
            },
        }),
        repeats: false,
    },
    BackendOption {
        name: "cpu-experts",
        placeholder: "on|off",
        help: "Whether the routed experts of a mixture stay on the CPU, with their weights, and the GPU has the rest; without a \
            value, on [default: off]",
        values: AllowedValues::Switch,
        repeats: false,
    },
];

/// The adapters by number, the devices of CUDA if one is meant, and the one that is meant by the choice, if its name is another one.
fn devices(settings: &BackendSettings) -> Result<Vec<BackendDevice>> {
    let device = |name: Option<String>, adapter: &GpuAdapter| {
        let software = if adapter.is_software { ", software" } else { "" };
        let about = format!("{}{software}", adapter.product);
        BackendDevice { name, about, settings: vec![("driver", adapter.driver.clone())] }
    };
    let all = adapters();
    let choice = AdapterChoice::parse(settings.device.as_deref());
    let mut list: Vec<BackendDevice> =
        all.iter().map(|adapter| device(Some(adapter.name.clone()), adapter)).collect();
    list.extend(cuda_list(&choice, settings.device.as_deref())?);
    let is_listed = list.iter().any(|known| known.name == settings.device);
    if !is_listed && let Some(meant) = choice.among(&all) {
        list.push(device(settings.device.clone(), meant));
    }
    Ok(list)
}

/// The devices of CUDA, and the one that is meant by `name`, if a device of CUDA is meant; else none: the start of NVIDIA's driver
/// takes time that other choices do not need.
fn cuda_list(choice: &AdapterChoice, name: Option<&str>) -> Result<Vec<BackendDevice>> {
    let AdapterChoice::Cuda(number) = choice else {
        return Ok(Vec::new());
    };
    let device = |name: &str, device: &CudaDevice| {
        let about = format!("{}, through CUDA (never run on a GPU yet)", device.product);
        BackendDevice {
            name: Some(name.to_owned()),
            about,
            settings: vec![("driver", device.driver.clone())],
        }
    };
    let meant = find_cuda(*number)?;
    let all = cuda_devices()?;
    let others = all.iter().map(|found| device(&found.name, found));
    let own = name.filter(|name| *name != meant.name).map(|name| device(name, &meant));
    Ok(others.chain(own).collect())
}

fn precision(name: &str) -> Result<ActPrecision, String> {
    let found = ActPrecision::ALL.into_iter().find(|precision| precision.name() == name);
    found.ok_or_else(|| "must be one of f32, int8".to_owned())
}

fn open(settings: &BackendSettings, _: &Arc<dyn Services>) -> Result<Box<dyn AnyBackend>> {
    let memory = settings.parsed(MEMORY, byte_count)?;
    let choice = AdapterChoice::parse(settings.device.as_deref());
    let precision = settings.parsed(PRECISION, precision)?.unwrap_or_default();
    let backend = GpuBackend::open(&choice, memory, precision)?;
    Ok(Box::new(match settings.get(PRODUCTS) {
        None => backend,
        Some("matrix") => backend.with_matrix_units()?,
        Some(_) => backend.without_matrix_units()?,
    }))
}
