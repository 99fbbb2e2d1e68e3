//! Bit planes: the order in which ggml's formats pack small integers into bytes.
//!
//! A byte does not hold neighbouring values. The lowest bits of `n` bytes are the
//! first `n` values, the next bits are the `n` values after them, and so on:
//!
//! ```text
//! BITS = 4   byte i = q[i] | q[n + i] << 4
//! BITS = 2   byte i = q[i] | q[n + i] << 2 | q[2n + i] << 4 | q[3n + i] << 6
//! ```

/// Splits the planes into one byte per value.
///
/// # Panics
/// When the length of `q` is not the number of values.
#[inline(always)] // Halves the decoding time, because the caller's lengths are constants.
pub(super) fn split<const BITS: u32>(packed: &[u8], q: &mut [u8]) {
    assert_eq!(q.len() * BITS as usize, packed.len() * 8, "one byte per value");
    for (plane, q) in q.chunks_exact_mut(packed.len()).enumerate() {
        let shift = BITS * plane as u32;
        for (q, byte) in q.iter_mut().zip(packed) {
            *q = (byte >> shift) & mask(BITS);
        }
    }
}

/// Joins the planes; uses the lowest `BITS` bits of each value.
///
/// # Panics
/// When the values do not fill `packed` exactly.
pub(super) fn join<const BITS: u32>(q: &[u8], packed: &mut [u8]) {
    assert_eq!(q.len() * BITS as usize, packed.len() * 8, "the values fill the bytes exactly");
    packed.fill(0);
    for (plane, q) in q.chunks_exact(packed.len()).enumerate() {
        let shift = BITS * plane as u32;
        for (byte, q) in packed.iter_mut().zip(q) {
            *byte |= (q & mask(BITS)) << shift;
        }
    }
}

const fn mask(bits: u32) -> u8 {
    (1 << bits) - 1
}
