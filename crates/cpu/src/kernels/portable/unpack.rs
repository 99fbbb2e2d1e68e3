//! Decoding of stored values: own loops where the formats' definitions do not
//! become vector code, the definitions themselves elsewhere.

use girih_tensor::DType;

pub(super) fn unpack(dtype: DType, bytes: &[u8], values: &mut [f32]) {
    match dtype {
        DType::BF16 => each(bytes, values, bf16),
        DType::F16 => each(bytes, values, f16),
        _ => dtype.unpack(bytes, values),
    }
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

fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Without a branch: all three kinds of number are computed, one is chosen.
fn f16(bits: u16) -> f32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_halves_decode_as_defined() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        for dtype in [DType::F16, DType::BF16] {
            let (mut got, mut want) = (vec![0.0; 1 << 16], vec![0.0; 1 << 16]);
            unpack(dtype, &bytes, &mut got);
            dtype.unpack(&bytes, &mut want);
            for (bits, (got, want)) in got.iter().zip(&want).enumerate() {
                let equal = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                assert!(equal, "{dtype} {bits:#06x}: {got} is not {want}");
            }
        }
    }
}
