//! The adapters of this machine, and which of them a name means.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use girih_tensor::{Error, ErrorKind, Result};
use wgpu::{
    Adapter, Backends, CooperativeMatrixProperties, CooperativeScalarType, DeviceType, Features, Instance,
    InstanceDescriptor, InstanceFlags, MemoryBudgetThresholds,
};

use crate::cuda::driver::{CudaDevice, cuda_devices};
use crate::memory::free_memory;

/// An adapter of this machine: a GPU, or a program that computes as one.
#[derive(Clone, Debug)]
pub struct GpuAdapter {
    /// What follows `gpu:`, such as `vulkan:0`.
    pub name: String,
    /// The name of the product.
    pub product: String,
    /// The driver with its version.
    pub driver: String,
    /// Whether the host's processor computes.
    pub is_software: bool,
    /// Whether its memory is the host's.
    pub shares_memory: bool,
    adapter: Adapter,
}

/// Which adapter is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The first one that is no software, of this interface or of any.
    First(Option<String>),
    /// That of this number of an interface, as in `vulkan:1`; software, too.
    Numbered(String),
    /// The device of this number of NVIDIA's driver, as in `cuda:1`. Nothing else chooses it.
    Cuda(usize),
    /// The first whose product begins so, as in `llvmpipe`; software, too.
    Product(String),
}

/// The interfaces by name.
const INTERFACES: [(&str, wgpu::Backend); 2] =
    [("vulkan", wgpu::Backend::Vulkan), ("metal", wgpu::Backend::Metal)];

/// The name of NVIDIA's interface.
const CUDA: &str = "cuda";

/// The share of the device's memory, in percent, beyond which the driver's budget refuses an allocation.
const MEMORY_PERCENT: u8 = 98;

impl AdapterChoice {
    /// Reads what follows `gpu:`; nothing means the first adapter.
    pub fn parse(text: Option<&str>) -> AdapterChoice {
        let is_interface = |text: &str| INTERFACES.iter().any(|(name, _)| *name == text);
        match text {
            None => AdapterChoice::First(None),
            Some(CUDA) => AdapterChoice::Cuda(0),
            Some(text) if let Some(number) = cuda_number(text) => AdapterChoice::Cuda(number),
            Some(text) if is_interface(text) => AdapterChoice::First(Some(text.to_owned())),
            Some(text) if text.split_once(':').is_some_and(|(name, _)| is_interface(name)) => {
                AdapterChoice::Numbered(text.to_owned())
            }
            Some(text) => AdapterChoice::Product(text.to_owned()),
        }
    }

    /// Whether an adapter is meant, if no earlier one is.
    fn means(&self, adapter: &GpuAdapter) -> bool {
        match self {
            AdapterChoice::First(None) => !adapter.is_software,
            AdapterChoice::First(Some(interface)) => {
                !adapter.is_software && adapter.name.split(':').next() == Some(interface)
            }
            AdapterChoice::Numbered(name) => adapter.name == *name,
            AdapterChoice::Cuda(_) => false,
            AdapterChoice::Product(product) => {
                !product.is_empty() && adapter.product.to_lowercase().starts_with(&product.to_lowercase())
            }
        }
    }

    /// The adapter that is meant.
    pub fn among<'a>(&self, all: &'a [GpuAdapter]) -> Option<&'a GpuAdapter> {
        all.iter().find(|adapter| self.means(adapter))
    }

    /// Finds the adapter.
    ///
    /// # Errors
    /// When there is none; the sentence lists those that there are.
    pub fn find(&self) -> Result<GpuAdapter> {
        let all = adapters();
        if let Some(found) = self.among(&all) {
            return Ok(found.clone());
        }
        let text = |adapter: &GpuAdapter| format!("gpu:{} ({})", adapter.name, adapter.product);
        let list: Vec<String> = all.iter().map(text).collect();
        let sentence = match (self, list.is_empty()) {
            (_, true) => "this machine has no GPU that Vulkan or Metal knows: install its driver".to_owned(),
            (AdapterChoice::First(_), false) if all.iter().all(|adapter| adapter.is_software) => {
                format!("this machine has no such GPU, only software: name it to use it, {}", list.join(", "))
            }
            (_, false) => format!("there is no such GPU: use one of {}", list.join(", ")),
        };
        Err(Error::with_kind(ErrorKind::NotFound, sentence))
    }
}

/// The number in `cuda:1`.
fn cuda_number(text: &str) -> Option<usize> {
    text.strip_prefix(CUDA)?.strip_prefix(':')?.parse().ok()
}

/// The device of this number of NVIDIA's driver.
///
/// # Errors
/// When there is no driver or no such device; the sentence lists those that there are.
pub(crate) fn find_cuda(number: usize) -> Result<CudaDevice> {
    let all = cuda_devices()?;
    let list: Vec<String> =
        all.iter().map(|device| format!("gpu:{} ({})", device.name, device.product)).collect();
    all.into_iter().nth(number).ok_or_else(|| {
        let known =
            if list.is_empty() { "it lists none".to_owned() } else { format!("use {}", list.join(", ")) };
        let sentence = format!("NVIDIA's driver has no device cuda:{number}: {known}");
        Error::with_kind(ErrorKind::NotFound, sentence)
    })
}

/// What the kernel of matrix units needs.
pub(crate) const MATRIX_FEATURES: Features = Features::EXPERIMENTAL_COOPERATIVE_MATRIX
    .union(Features::SHADER_F16)
    .union(Features::SUBGROUP)
    .union(Features::SUBGROUP_BARRIER);

/// The largest workgroup memory of that kernel.
const MATRIX_BYTES: u32 = 42_000;

/// The makers, by the numbers of PCI-SIG, of the GPUs whose matrix units were compared with dot products, bit for bit: NVIDIA.
const COMPARED: [u32; 1] = [0x10de];

impl GpuAdapter {
    /// Whether its subgroups have 32 invocations and multiply matrices of 16 by 16 numbers in half precision with sums in single
    /// precision, and such units were compared with dot products.
    pub(crate) fn has_matrix_units(&self) -> bool {
        let info = self.adapter.get_info();
        let is_of_16 = |unit: &CooperativeMatrixProperties| {
            let CooperativeMatrixProperties { m_size, n_size, k_size, ab_type, cr_type, .. } = unit;
            let types = (ab_type, cr_type);
            [m_size, n_size, k_size] == [&16; 3]
                && types == (&CooperativeScalarType::F16, &CooperativeScalarType::F32)
        };
        COMPARED.contains(&info.vendor)
            && self.adapter.features().contains(MATRIX_FEATURES)
            && (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
            && self.adapter.limits().max_compute_workgroup_storage_size >= MATRIX_BYTES
            && self.adapter.cooperative_matrix_properties().iter().any(is_of_16)
    }

    /// The bytes of its own memory that a process may take now; `None` for software, or if its interface does not tell.
    pub fn free_memory(&self) -> Option<u64> {
        let percent = u64::from(MEMORY_PERCENT);
        (!self.is_software).then(|| free_memory(&self.adapter)).flatten().map(|bytes| bytes / 100 * percent)
    }

    /// The interface to the driver.
    pub(crate) fn adapter(&self) -> &Adapter {
        &self.adapter
    }
}

/// All adapters of this machine, in the order of the drivers.
pub fn adapters() -> Vec<GpuAdapter> {
    let descriptor = InstanceDescriptor {
        backends: Backends::VULKAN | Backends::METAL,
        flags: InstanceFlags::empty(),
        memory_budget_thresholds: MemoryBudgetThresholds {
            for_resource_creation: Some(MEMORY_PERCENT),
            for_device_loss: None,
        },
        ..InstanceDescriptor::new_without_display_handle()
    };
    let instance = Instance::new(descriptor);
    let found = ready(instance.enumerate_adapters(Backends::all()));
    let mut counts = [0; INTERFACES.len()];
    let mut list = Vec::new();
    for adapter in found {
        let info = adapter.get_info();
        let Some(index) = INTERFACES.iter().position(|(_, backend)| *backend == info.backend) else {
            continue;
        };
        let name = format!("{}:{}", INTERFACES[index].0, counts[index]);
        counts[index] += 1;
        list.push(GpuAdapter {
            name,
            product: info.name,
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            is_software: info.device_type == DeviceType::Cpu,
            shares_memory: matches!(info.device_type, DeviceType::Cpu | DeviceType::IntegratedGpu),
            adapter,
        });
    }
    list
}

/// The result of a future of wgpu; on native interfaces it is there at once.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_an_interface_a_number_or_a_product() {
        let parse = |text| AdapterChoice::parse(Some(text));
        assert_eq!(AdapterChoice::parse(None), AdapterChoice::First(None));
        assert_eq!(parse("vulkan"), AdapterChoice::First(Some("vulkan".to_owned())));
        assert_eq!(parse("metal:1"), AdapterChoice::Numbered("metal:1".to_owned()));
        assert_eq!(parse("llvmpipe"), AdapterChoice::Product("llvmpipe".to_owned()));
        assert_eq!(parse("cuda"), AdapterChoice::Cuda(0));
        assert_eq!(parse("cuda:2"), AdapterChoice::Cuda(2));
        assert_eq!(parse("cuda:x"), AdapterChoice::Product("cuda:x".to_owned()));
    }
}
