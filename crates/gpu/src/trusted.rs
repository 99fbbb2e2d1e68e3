//! What wgpu leaves to its caller: experimental features, and kernels without tests of their indices.

#![allow(unsafe_code)]

use wgpu::{Device, ExperimentalFeatures, ShaderModule, ShaderModuleDescriptor, ShaderRuntimeChecks};

/// The leave to use experimental features.
pub(crate) fn experimental_features() -> ExperimentalFeatures {
    // SAFETY: of these features only matrix units are used, by one kernel, whose sums tests compare with those of another one.
    unsafe { ExperimentalFeatures::enabled() }
}

/// A kernel whose indices are in bounds by construction: products by integers clamp the rows and groups that they read, and write only
/// what their parameters count.
pub(crate) fn shader(device: &Device, descriptor: ShaderModuleDescriptor<'_>) -> ShaderModule {
    // SAFETY: the indices of workgroup memory are made of the invocation's index and of constants, and those of buffers are
    // clamped to the counts for which the buffers were made; every loop ends by a count.
    unsafe { device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked()) }
}
