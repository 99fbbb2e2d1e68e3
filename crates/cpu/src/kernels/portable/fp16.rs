//! Products whose sums are in half precision: the definition of what AVX512-FP16 computes.

use half::f16;

use crate::kernels::packed::{BAND, Band, GROUP, LINE, Layout};

/// Multiplies a band of half-precision numbers ([`MatmulKernels::fp16`](crate::kernels::packed::MatmulKernels::fp16)).
///
/// # Panics
/// When the band is of another layout.
pub(crate) fn fp16(band: Band<'_>, first: usize, x: &[u32], sums: &mut [[f32; BAND]]) {
    let (lines, columns) = (fp16_lines(band, first), sums.len());
    for (lines, x) in lines.chunks(GROUP).zip(x.chunks_exact((GROUP + 1) * columns)) {
        let (numbers, scales) = x.split_at(GROUP * columns);
        for (column, sums) in sums.iter_mut().enumerate() {
            let words = numbers.iter().skip(column).step_by(columns);
            let mut group = [f16::ZERO; BAND];
            for (line, word) in lines.iter().zip(words) {
                let x = f16::from_bits(*word as u16);
                for (sum, bytes) in group.iter_mut().zip(line.as_chunks().0) {
                    *sum = fused(f16::from_le_bytes(*bytes), x, *sum);
                }
            }
            let scale = f32::from_bits(scales[column]);
            sums.iter_mut().zip(group).for_each(|(sum, group)| *sum = scale.mul_add(group.to_f32(), *sum));
        }
    }
}

/// The lines of a band of half-precision numbers from column `first` on.
///
/// # Panics
/// When the band is of another layout.
pub(in super::super) fn fp16_lines(band: Band<'_>, first: usize) -> &[[u8; LINE]] {
    assert_eq!(band.layout, Layout::F16, "half-precision numbers are multiplied by half-precision numbers");
    &band.bytes.as_chunks().0[first..]
}

/// `a · b + sum`, rounded once to the nearest number of half precision, ties to even.
pub(in super::super) fn fused(a: f16, b: f16, sum: f16) -> f16 {
    // Every number is a whole multiple of the smallest one, 2^-24, and at most 2^40 of these.
    let units = |x: f16| (x.to_f64() * 2f64.powi(24)) as i128;
    let is_finite = a.is_finite() && b.is_finite() && sum.is_finite();
    let exact = if is_finite { units(a) * units(b) + (units(sum) << 24) } else { 0 };
    if exact == 0 {
        // Exact in single precision, or not finite.
        return f16::from_f32(a.to_f32() * b.to_f32() + sum.to_f32());
    }
    let size = exact.unsigned_abs();
    // Eleven bits are kept, but none below 2^-24.
    let dropped = (u128::BITS - size.leading_zeros()).saturating_sub(11).max(24);
    let (kept, rest, half) = (size >> dropped, size & ((1 << dropped) - 1), 1 << (dropped - 1));
    let kept = kept + u128::from(rest > half || rest == half && kept % 2 == 1);
    let rounded = kept as f64 * 2f64.powi(dropped as i32 - 48);
    f16::from_f64(if exact < 0 { -rounded } else { rounded })
}

#[cfg(test)]
mod tests {
    use girih_tensor::Random;

    use super::*;

    /// Where single precision holds the exact result, that rounds to the same number.
    #[test]
    fn results_are_rounded_once() {
        let mut random = Random(17);
        for _ in 0..200_000 {
            // Products have 22 bits from 2^-6 on, sums 11 bits up to 2^5: 24 bits hold both.
            let number = |random: &mut Random| f16::from_f32((random.below(4095) as f32 - 2047.0) / 4096.0);
            let (a, b) = (number(&mut random), number(&mut random));
            let sum = f16::from_f32(number(&mut random).to_f32() / 4.0);
            let exact = f64::from(a.to_f32()) * f64::from(b.to_f32()) + f64::from(sum.to_f32());
            if f64::from(exact as f32) == exact {
                assert_eq!(fused(a, b, sum), f16::from_f32(exact as f32), "{a} · {b} + {sum}");
            }
        }
    }

    #[test]
    fn ties_zeros_and_the_ends_of_the_range_are_those_of_ieee_754() {
        let bits = |a: f32, b: f32, sum: f32| {
            fused(f16::from_f32(a), f16::from_f32(b), f16::from_f32(sum)).to_bits()
        };
        let number = |x: f32| f16::from_f32(x).to_bits();
        assert_eq!(bits(1.0, 1.0, 2048.0), number(2048.0), "half a unit goes to the even number");
        assert_eq!(bits(3.0, 1.0, 2048.0), number(2052.0));
        // In two steps, 2049 + 2^-24 would be 2049, and that 2048.
        let least = 2f32.powi(-24);
        assert_eq!(bits(3.0, 683.0, least), number(2050.0), "not rounded twice");
        assert_eq!(bits(65504.0, 1.0, 15.0), number(65504.0));
        assert_eq!(bits(65504.0, 1.0, 16.0), number(f32::INFINITY), "half a unit above the largest number");
        assert_eq!(bits(least, 0.5, 0.0), 0, "half of the smallest number");
        assert_eq!(bits(-least, 0.25, 0.0), 0x8000, "a negative number may become a negative zero");
        assert_eq!(bits(3.0, -2.0, 6.0), 0, "a difference of equal numbers is a positive zero");
        assert_eq!(bits(-0.0, 1.0, -0.0), 0x8000);
        assert!(f16::from_bits(bits(f32::INFINITY, 0.0, 1.0)).is_nan());
        assert_eq!(bits(f32::INFINITY, 1.0, 1.0), number(f32::INFINITY));
    }

    /// A group of 32 columns under the scale 0.5, and one of a single column under the scale 2.
    #[test]
    fn groups_have_scales() {
        let word = |x: f32| u32::from(f16::from_f32(x).to_bits()) * 0x1_0001;
        let mut bytes = vec![0; (GROUP + 1) * LINE];
        for (column, weight) in [(0, 1.0), (GROUP, 3.0)] {
            bytes[column * LINE..][..2].copy_from_slice(&f16::from_f32(weight).to_le_bytes());
        }
        let mut x = vec![0; 2 * (GROUP + 1)];
        (x[0], x[GROUP], x[GROUP + 1], x[2 * GROUP + 1]) =
            (word(2.0), 0.5f32.to_bits(), word(4.0), 2f32.to_bits());
        let prefetch = crate::kernels::prefetch::PrefetchChoice::NONE;
        let band = Band { layout: Layout::F16, columns: GROUP + 1, bytes: &bytes, prefetch };
        let mut sums = [[0.25; BAND]];
        fp16(band, 0, &x, &mut sums);
        assert_eq!(sums[0][..2], [0.25 + 1.0 + 24.0, 0.25]);
    }
}
