//! The model of the x86 processor, and what is known about it.

use std::arch::x86_64::__cpuid;

/// A vendor and a family of processors, as `cpuid` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Processor {
    vendor: [u8; 12],
    family: u32,
}

/// The processors whose `vdpbf16ps` multiplies twice as many numbers per cycle as their f32 FMA. Measured
/// with the loops `bf16 x12` and `floats Bf16 x12` of `docs/kernels.md`. On Intel's Sapphire and Emerald
/// Rapids the instruction has half the rate of the FMA, so they are not listed; a processor that is not
/// listed keeps f32.
const DOUBLE_BF16: [Processor; 2] = [
    // Zen 4: 24.0 cycles instead of 49.6.
    Processor { vendor: *b"AuthenticAMD", family: 0x19 },
    // Zen 5: 12.3 cycles instead of 24.3.
    Processor { vendor: *b"AuthenticAMD", family: 0x1a },
];

impl Processor {
    /// This machine's processor.
    pub fn here() -> Processor {
        let (names, signature) = (__cpuid(0), __cpuid(1).eax);
        let mut vendor = [0; 12];
        let words = [names.ebx, names.edx, names.ecx].map(u32::to_le_bytes);
        vendor.copy_from_slice(words.as_flattened());
        Processor { vendor, family: family(signature) }
    }

    /// Whether `vdpbf16ps` multiplies twice as many numbers per cycle as the f32 FMA.
    pub fn doubles_bf16(self) -> bool {
        DOUBLE_BF16.contains(&self)
    }
}

/// The family in the signature that `cpuid` returns in `eax` of leaf 1: the base family, plus the extended
/// family where the base is 15 (AMD, CPUID Specification, 25481).
fn family(signature: u32) -> u32 {
    let base = signature >> 8 & 0xf;
    if base == 0xf { base + (signature >> 20 & 0xff) } else { base }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_have_families() {
        // Zen 4 (EPYC 9004), Zen 5 (EPYC 9005), Emerald Rapids.
        assert_eq!([0x00a1_0f11, 0x00b0_0f21, 0x000c_06f2].map(family), [0x19, 0x1a, 6]);
    }

    #[test]
    fn only_listed_processors_prefer_bf16() {
        let vendor = *b"AuthenticAMD";
        assert!(Processor { vendor, family: 0x19 }.doubles_bf16());
        assert!(!Processor { vendor, family: 0x17 }.doubles_bf16());
        assert!(!Processor { vendor: *b"GenuineIntel", family: 0x19 }.doubles_bf16());
        assert_eq!(Processor::here(), Processor::here());
    }
}
