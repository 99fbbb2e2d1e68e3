//! The loops of aarch64, each chosen after the processor has reported its instructions.
//!
//! ```text
//! round: for each of CHAINS accumulators: accumulator = instruction(accumulator, a, b)
//! ```
//! The longest latency of these instructions is 4 cycles and at most four issue in one (Arm, Neoverse V1
//! Software Optimization Guide), so that 16 chains would do.

use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::hint::black_box;

use super::peak::{Numbers, Peak, chains};

/// Accumulators of a round; with two operands they fit the 32 registers.
const CHAINS: usize = 20;

/// The loops whose instructions this processor has.
pub(super) fn peaks() -> Vec<Peak> {
    let mut peaks = Vec::new();
    let mut add = |instruction, numbers, lanes: u64, run| {
        peaks.push(Peak { instruction, numbers, operations: 2 * lanes * CHAINS as u64, run });
    };
    if is_aarch64_feature_detected!("i8mm") {
        // SAFETY: the processor has just reported the features of the loop.
        add("smmla", Numbers::Int8, 32, |rounds| unsafe { smmla(rounds) });
    }
    if is_aarch64_feature_detected!("dotprod") {
        // SAFETY: the processor has just reported the features of the loop.
        add("sdot", Numbers::Int8, 16, |rounds| unsafe { sdot(rounds) });
    }
    if is_aarch64_feature_detected!("neon") {
        // SAFETY: the processor has just reported the features of the loop.
        add("fmla", Numbers::F32, 4, |rounds| unsafe { fmla(rounds) });
    }
    peaks
}

/// An instruction that has no stable intrinsic, as a step of a chain.
macro_rules! instruction {
    ($template:literal) => {
        |mut chain: int32x4_t, a: int32x4_t, b: int32x4_t| {
            // SAFETY: the features of the loop have the instruction, which touches no memory.
            unsafe {
                asm!(
                    $template,
                    inout(vreg) chain,
                    in(vreg) a,
                    in(vreg) b,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            chain
        }
    };
}

chains!(
    smmla,
    "neon,i8mm",
    int32x4_t,
    vdupq_n_s32(0),
    vdupq_n_s32(0x0101_0101),
    instruction!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b")
);
chains!(
    sdot,
    "neon,dotprod",
    int32x4_t,
    vdupq_n_s32(0),
    vdupq_n_s32(0x0101_0101),
    instruction!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b")
);
chains!(fmla, "neon", float32x4_t, vdupq_n_f32(1.0), vdupq_n_f32(0.5), |chain, a, b| vfmaq_f32(chain, a, b));
