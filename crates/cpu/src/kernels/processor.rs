//! The model of the processor, as `cpuid` states it.

/// The vendor, the family and the model of an x86 processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorModel {
    /// The vendor, such as `AuthenticAMD`.
    pub vendor: [u8; 12],
    /// The family.
    pub family: u32,
    /// The model within the family.
    pub model: u32,
}

impl ProcessorModel {
    /// This machine's processor; `None` if it is not x86.
    #[cfg(target_arch = "x86_64")]
    pub fn here() -> Option<ProcessorModel> {
        use std::arch::x86_64::__cpuid;

        let (names, signature) = (__cpuid(0), __cpuid(1).eax);
        let mut vendor = [0; 12];
        vendor.copy_from_slice([names.ebx, names.edx, names.ecx].map(u32::to_le_bytes).as_flattened());
        Some(ProcessorModel::of(vendor, signature))
    }

    /// This machine's processor; `None` if it is not x86.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn here() -> Option<ProcessorModel> {
        None
    }

    /// The processor of a vendor with this signature, which `cpuid` returns in `eax` of leaf 1. The extended
    /// family counts if the base family is 15, the extended model if it is 6 or 15 (Intel SDM 2A, CPUID;
    /// AMD 25481, CPUID Specification).
    #[cfg(any(test, target_arch = "x86_64"))]
    pub fn of(vendor: [u8; 12], signature: u32) -> ProcessorModel {
        let (base, extended_family) = (signature >> 8 & 0xf, signature >> 20 & 0xff);
        let (model, extended_model) = (signature >> 4 & 0xf, signature >> 16 & 0xf);
        ProcessorModel {
            vendor,
            family: if base == 0xf { base + extended_family } else { base },
            model: if matches!(base, 0x6 | 0xf) { extended_model << 4 | model } else { model },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_have_families_and_models() {
        // Zen 4 (EPYC 9004), Zen 5 (EPYC 9005), Emerald Rapids, and a processor without extended fields (80486).
        let signatures = [0x00a1_0f11, 0x00b0_0f21, 0x000c_06f2, 0x0000_0480];
        let models = signatures.map(|signature| {
            let ProcessorModel { family, model, .. } = ProcessorModel::of([0; 12], signature);
            (family, model)
        });
        assert_eq!(models, [(0x19, 0x11), (0x1a, 0x02), (6, 0xcf), (4, 8)]);
    }

    #[test]
    fn this_processor_has_a_vendor_of_ascii() {
        if let Some(ProcessorModel { vendor, .. }) = ProcessorModel::here() {
            assert!(vendor.iter().all(u8::is_ascii), "{vendor:?}");
        }
    }
}
