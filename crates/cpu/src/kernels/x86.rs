//! What kernels for x86 need beside vectors: prefetch instructions, and numbers as bytes.

use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
use std::slice;

/// Prefetches the line at an address into L1. Any address is allowed.
#[inline(always)]
pub(super) fn prefetch_address_l1(address: *const u8) {
    // SAFETY: SSE, which has the instruction, is part of x86-64; it reads nothing
    // that the program sees, and faults at no address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

/// Prefetches the line at an address into L2. Any address is allowed.
#[inline(always)]
pub(super) fn prefetch_address_l2(address: *const u8) {
    // SAFETY: as in `prefetch_address_l1`.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
}

/// Prefetches the line in which `bytes` begins into L2.
#[inline(always)]
pub(super) fn prefetch_l2(bytes: &[u8]) {
    prefetch_address_l2(bytes.as_ptr());
}

/// The bytes of numbers, in the order of memory, which on x86 is that of files.
pub(super) fn as_bytes(values: &[f32]) -> &[u8] {
    let (start, len) = (values.as_ptr().cast(), size_of_val(values));
    // SAFETY: the bytes are those of the slice, which is borrowed for as long;
    // bytes need no alignment, and numbers have no padding between them.
    unsafe { slice::from_raw_parts(start, len) }
}
