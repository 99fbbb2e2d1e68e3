//! Decodes formats whose reference decoders the compiler does not vectorize.

pub(in super::super) fn f32(bytes: &[u8], values: &mut [f32]) {
    let (words, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty() && words.len() == values.len(), "four bytes a value");
    for (value, word) in values.iter_mut().zip(words) {
        *value = f32::from_le_bytes(*word);
    }
}

pub(in super::super) fn bf16(bytes: &[u8], values: &mut [f32]) {
    each(bytes, values, from_bf16);
}

pub(in super::super) fn f16(bytes: &[u8], values: &mut [f32]) {
    each(bytes, values, from_f16);
}

/// Decodes values of two bytes each.
#[inline(always)]
fn each(bytes: &[u8], values: &mut [f32], decode: impl Fn(u16) -> f32) {
    let (pairs, rest) = bytes.as_chunks::<2>();
    assert!(rest.is_empty() && pairs.len() == values.len(), "two bytes a value");
    for (value, pair) in values.iter_mut().zip(pairs) {
        *value = decode(u16::from_le_bytes(*pair));
    }
}

fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Without a branch: all three kinds of number are computed, one is chosen.
fn from_f16(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let size = u32::from(bits & 0x7fff) << 13;
    // The exponent's bias grows from 15 to 127.
    let normal = size + (112 << 23);
    // With the exponent of 2⁻¹⁴ the fraction counts from there on.
    let subnormal = (f32::from_bits(size + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let special = size | (255 << 23);
    let finite = if size < 1 << 23 { subnormal } else { normal };
    f32::from_bits(sign | if size >= 31 << 23 { special } else { finite })
}
