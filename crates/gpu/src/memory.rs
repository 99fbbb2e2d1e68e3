//! What Vulkan tells of a device's memory, which wgpu does not pass on.

#![allow(unsafe_code)]

use ash::{ext, vk};
use wgpu::Adapter;
use wgpu::hal::api::Vulkan;

/// The bytes of the device's own memory that this process may still take: of its largest heap, the driver's budget
/// (`VK_EXT_memory_budget`) less what is used, or the whole heap where the driver has no budget. `None` if the interface is not
/// Vulkan.
pub(crate) fn free_memory(adapter: &Adapter) -> Option<u64> {
    // SAFETY: nothing of the adapter is destroyed or changed, and the guard lives until the end.
    let adapter = unsafe { adapter.as_hal::<Vulkan>() }?;
    let (shared, device) = (adapter.shared_instance(), adapter.raw_physical_device());
    if shared.instance_api_version() < vk::API_VERSION_1_1 {
        return None;
    }
    let instance = shared.raw_instance();
    // SAFETY: the device is one of this instance, and both live as long as the guard.
    let extensions = unsafe { instance.enumerate_device_extension_properties(device) }.ok()?;
    let is_budget =
        |known: &vk::ExtensionProperties| known.extension_name_as_c_str() == Ok(ext::memory_budget::NAME);
    let has_budget = extensions.iter().any(is_budget);
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut properties = vk::PhysicalDeviceMemoryProperties2::default();
    if has_budget {
        properties = properties.push_next(&mut budget);
    }
    // SAFETY: as above; the call is part of Vulkan 1.1, and the driver knows the extension of the chained structure.
    unsafe { instance.get_physical_device_memory_properties2(device, &mut properties) };
    let heaps = properties.memory_properties;
    let own = heaps.memory_heaps.iter().enumerate().take(heaps.memory_heap_count as usize);
    let (index, heap) = own
        .filter(|(_, heap)| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL))
        .max_by_key(|(_, heap)| heap.size)?;
    if !has_budget {
        return Some(heap.size);
    }
    Some(budget.heap_budget[index].saturating_sub(budget.heap_usage[index]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device_list::adapters;

    #[test]
    fn vulkan_tells_the_memory_of_each_adapter() {
        let all = adapters();
        if all.is_empty() {
            eprintln!("skipped: this machine has no Vulkan driver");
        }
        for adapter in all.iter().filter(|adapter| adapter.name.starts_with("vulkan")) {
            let free = free_memory(adapter.adapter());
            assert!(free.is_some_and(|bytes| bytes > 1 << 20), "{}: {free:?}", adapter.product);
        }
    }
}
