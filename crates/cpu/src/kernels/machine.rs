//! What vector kernels need of the machine beside vectors: prefetch instructions, and numbers as bytes.

#[cfg(target_arch = "aarch64")]
use std::arch::asm;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::slice;

/// Prefetches the line at an address into L1. Any address is allowed.
#[inline(always)]
pub(super) fn prefetch_address_l1(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE, which has the instruction, is part of x86-64; it reads nothing
    // that the program sees, and faults at no address.
    unsafe {
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: every aarch64 processor has the instruction; it changes no register, reads
    // nothing that the program sees, and faults at no address.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags));
    }
}

/// Prefetches the line at an address into L2. Any address is allowed.
#[inline(always)]
pub(super) fn prefetch_address_l2(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `prefetch_address_l1`.
    unsafe {
        _mm_prefetch::<_MM_HINT_T1>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as in `prefetch_address_l1`.
    unsafe {
        asm!("prfm pldl2keep, [{}]", in(reg) address, options(nomem, nostack, preserves_flags));
    }
}

/// Prefetches the line in which `bytes` begins into L2.
#[inline(always)]
pub(super) fn prefetch_l2(bytes: &[u8]) {
    prefetch_address_l2(bytes.as_ptr());
}

/// The bytes of numbers, in the order of memory, which must be that of files.
pub(super) fn as_bytes(values: &[f32]) -> &[u8] {
    const { assert!(cfg!(target_endian = "little"), "vector kernels read files as they lie in memory") };
    let (start, len) = (values.as_ptr().cast(), size_of_val(values));
    // SAFETY: the bytes are those of the slice, which is borrowed for as long;
    // bytes need no alignment, and numbers have no padding between them.
    unsafe { slice::from_raw_parts(start, len) }
}
