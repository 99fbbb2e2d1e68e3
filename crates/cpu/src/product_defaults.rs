//! The committed table of processors that says where BF16 weights are multiplied by bf16 activations by
//! default. Results depend on it, so it is looked up by the processor's model and never follows from a timing.

use std::ops::RangeInclusive;

use crate::kernels::processor::ProcessorModel;

/// What is known of the processors of one microarchitecture.
#[derive(Debug)]
pub(crate) struct ProductDefault {
    /// The name, for people.
    pub name: &'static str,
    /// The vendor, the family and the models, as in [`ProcessorModel`].
    vendor: &'static [u8; 12],
    family: u32,
    models: &'static [RangeInclusive<u32>],
    /// Whether `vdpbf16ps` multiplies more numbers per cycle than the f32 FMA.
    pub bf16_is_faster: bool,
}

/// The processors that were measured. A processor that is not listed multiplies BF16 weights in f32, as does one
/// that is listed as not faster. Models are those of Linux (`arch/x86/kernel/cpu/amd.c`,
/// `arch/x86/include/asm/intel-family.h`).
///
/// Cycles are those of the loops `floats Bf16 x12` and `bf16 x12`, which multiply the same numbers, printed by
/// `PROGRAM inner_loops_are_timed --ignored --nocapture` (docs/kernels.md).
const PRODUCT_DEFAULTS: [ProductDefault; 4] = [
    // 49.6 cycles in f32, 24.0 in bf16 (family 25, model 17).
    ProductDefault {
        name: "AMD Zen 4",
        vendor: b"AuthenticAMD",
        family: 0x19,
        models: &[0x10..=0x1f, 0x60..=0x7f, 0xa0..=0xaf],
        bf16_is_faster: true,
    },
    // 23.8 cycles in f32, 12.1 in bf16 (family 26, model 2).
    ProductDefault {
        name: "AMD Zen 5",
        vendor: b"AuthenticAMD",
        family: 0x1a,
        models: &[0x00..=0x2f, 0x40..=0x4f, 0x60..=0x7f],
        bf16_is_faster: true,
    },
    // One thread at 3.55 GHz: 227 GFLOPS with the f32 FMA, 113 with `vdpbf16ps`, as `girih doctor` measures peaks.
    ProductDefault {
        name: "Intel Emerald Rapids",
        vendor: b"GenuineIntel",
        family: 6,
        models: &[0xcf..=0xcf],
        bf16_is_faster: false,
    },
    // Not measured: its cores have the ports of Emerald Rapids.
    ProductDefault {
        name: "Intel Sapphire Rapids",
        vendor: b"GenuineIntel",
        family: 6,
        models: &[0x8f..=0x8f],
        bf16_is_faster: false,
    },
];

impl ProductDefault {
    /// The row of a processor, if it is listed.
    pub fn of(processor: ProcessorModel) -> Option<&'static ProductDefault> {
        PRODUCT_DEFAULTS.iter().find(|row| {
            let has_model = || row.models.iter().any(|models| models.contains(&processor.model));
            *row.vendor == processor.vendor && row.family == processor.family && has_model()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMD: &[u8; 12] = b"AuthenticAMD";
    const INTEL: &[u8; 12] = b"GenuineIntel";

    /// What the table says of a processor with this signature.
    fn row(vendor: &[u8; 12], signature: u32) -> Option<(&'static str, bool)> {
        let row = ProductDefault::of(ProcessorModel::of(*vendor, signature))?;
        Some((row.name, row.bf16_is_faster))
    }

    #[test]
    fn processors_are_found_by_vendor_family_and_model() {
        // EPYC 9004, Ryzen 7000, Ryzen 7040, EPYC 97x4.
        for zen4 in [0x00a1_0f11, 0x00a6_0f12, 0x00a7_0f41, 0x00aa_0f02] {
            assert_eq!(row(AMD, zen4), Some(("AMD Zen 4", true)), "{zen4:x}");
        }
        // EPYC 9005, its dense variant, Ryzen 9000, Ryzen AI 300.
        for zen5 in [0x00b0_0f21, 0x00b1_0f10, 0x00b4_0f40, 0x00b2_0f40] {
            assert_eq!(row(AMD, zen5), Some(("AMD Zen 5", true)), "{zen5:x}");
        }
        assert_eq!(row(INTEL, 0x000c_06f2), Some(("Intel Emerald Rapids", false)));
        assert_eq!(row(INTEL, 0x0008_06f8), Some(("Intel Sapphire Rapids", false)));
    }

    #[test]
    fn a_processor_that_is_not_listed_has_no_row() {
        // Zen 3 shares Zen 4's family: EPYC 7003, Ryzen 5000. Later models of Zen 5's family are not known.
        for amd in [0x00a0_0f11, 0x00a2_0f10, 0x0083_0f10, 0x00b5_0f00, 0x00b9_0f00] {
            assert_eq!(row(AMD, amd), None, "{amd:x}");
        }
        assert_eq!(row(INTEL, 0x000a_06d1), None, "Granite Rapids");
        assert_eq!(row(INTEL, 0x00a1_0f11), None, "another vendor's number");
        assert_eq!(row(b"HygonGenuine", 0x00a1_0f11), None);
    }
}
