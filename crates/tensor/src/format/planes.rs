//! Bit planes: how ggml's formats spread small integers over bytes.
//!
//! A byte does not hold neighbours. Of `n` bytes, the lowest bits are the
//! first `n` values, the next bits the `n` values after them, and so on:
//!
//! ```text
//! BITS = 4   byte i = q[i] | q[n + i] << 4
//! BITS = 2   byte i = q[i] | q[n + i] << 2 | q[2n + i] << 4 | q[3n + i] << 6
//! ```

/// Takes the planes apart: one byte for each value.
///
/// # Panics
/// When `q` does not have a place for every value.
#[inline(always)] // Halves the time to decode: the caller's lengths are constants.
pub(super) fn split<const BITS: u32>(packed: &[u8], q: &mut [u8]) {
    assert_eq!(q.len() * BITS as usize, packed.len() * 8, "one place for each value");
    for (plane, q) in q.chunks_exact_mut(packed.len()).enumerate() {
        let shift = BITS * plane as u32;
        for (q, byte) in q.iter_mut().zip(packed) {
            *q = (byte >> shift) & mask(BITS);
        }
    }
}

/// Puts the planes together; of each value the lowest bits count.
///
/// # Panics
/// When `packed` does not have room for exactly the values.
pub(super) fn join<const BITS: u32>(q: &[u8], packed: &mut [u8]) {
    assert_eq!(q.len() * BITS as usize, packed.len() * 8, "room for exactly the values");
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
