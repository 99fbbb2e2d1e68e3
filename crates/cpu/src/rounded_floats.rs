//! Floats of fewer bits to which activations are rounded: bf16, and half precision and eight bits under a scale.
//!
//! No processor that girih knows multiplies eight-bit floats on its own, so rounded numbers stay `f32`, in which they are
//! exact. A scale is a power of two for 32 values of a row, the smallest one under which none exceeds the largest number
//! of the format. So scaling is exact, nothing overflows, and nothing but a group's smallest values is subnormal.

use half::f16;

use crate::kernels::packed::GROUP;

/// A type of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundedFloat {
    /// bf16, without a scale: it has the range of `f32`.
    Bf16,
    /// Half precision (IEEE 754 binary16).
    Fp16,
    /// E4M3 without infinities (OCP 8-bit Floating Point Specification, revision 1.0).
    E4M3,
    /// E5M2 (the same).
    E5M2,
}

/// The numbers of a type.
#[derive(Clone, Copy, Debug)]
struct FloatFormat {
    /// The stored bits of the significand.
    significand_bits: i32,
    /// The exponents of the smallest normal number and of the largest number.
    exponents: (i32, i32),
    /// The largest number.
    largest: f32,
}

/// The bias of the exponent of `f32`, and the exponents of its normal numbers.
const BIAS: i32 = 127;
const NORMAL: (i32, i32) = (-126, 127);

impl RoundedFloat {
    /// The numbers of a type under a scale; `None` of bf16, which has none.
    fn scaled(self) -> Option<FloatFormat> {
        let (significand_bits, exponents, largest) = match self {
            RoundedFloat::Bf16 => return None,
            RoundedFloat::Fp16 => (10, (-14, 15), 65504.0),
            RoundedFloat::E4M3 => (3, (-6, 8), 448.0),
            RoundedFloat::E5M2 => (2, (-14, 15), 57344.0),
        };
        Some(FloatFormat { significand_bits, exponents, largest })
    }

    /// Rounds values of a row, from the start of a group on, and calls `put` with the index and the bits of each.
    pub fn round(self, values: &[f32], mut put: impl FnMut(usize, u32)) {
        let Some(format) = self.scaled() else {
            return values.iter().enumerate().for_each(|(index, x)| put(index, bf16_bits(*x) << 16));
        };
        for (group, values) in values.chunks(GROUP).enumerate() {
            let (scale, inverse) = format.scale(values);
            for (index, x) in values.iter().enumerate() {
                // NaN and infinities stay, so that no result hides them.
                let rounded = match x.is_finite() {
                    true => (format.nearest(x * inverse) * scale).clamp(f32::MIN, f32::MAX),
                    false => *x,
                };
                put(group * GROUP + index, rounded.to_bits());
            }
        }
    }
}

/// Half precision without its largest exponents, so that products of rounded numbers below 4 can be added up in it.
const SUMMED_FP16: FloatFormat =
    FloatFormat { significand_bits: 10, exponents: (-14, 1), largest: LARGEST_SUMMED };

/// The largest number of [`SUMMED_FP16`].
const LARGEST_SUMMED: f32 = 4.0 - 1.0 / 512.0;

/// The largest size of a weight with which no sum of a group overflows: 32
/// products of at most 2,000 are 64,000, and as many roundings by at most 16 stay below 65,520.
pub(crate) const LARGEST_SUMMED_WEIGHT: f32 = 500.0;

/// Rounds at most [`GROUP`] values to half precision under a scale, calls `put` with the bits of each, and returns the
/// scale. With an infinity or NaN among them, that is the scale, and all bits are zeros.
pub(crate) fn round_summed(values: &[f32], mut put: impl FnMut(u16)) -> f32 {
    if let Some(odd) = values.iter().find(|x| !x.is_finite()) {
        values.iter().for_each(|_| put(0));
        return *odd;
    }
    let (scale, inverse) = SUMMED_FP16.scale(values);
    values.iter().for_each(|x| put(f16::from_f32(SUMMED_FP16.nearest(x * inverse)).to_bits()));
    scale
}

impl FloatFormat {
    /// The scale of a group, and its inverse.
    fn scale(self, values: &[f32]) -> (f32, f32) {
        let finite = values.iter().filter(|x| x.is_finite());
        let largest = finite.fold(0.0f32, |most, x| most.max(x.abs()));
        let exponent = exponent(largest) - self.exponents.1;
        // Of values near 0, the scale stays a normal number.
        let exponent = exponent.max(NORMAL.0);
        let exceeds = largest * power_of_two(-exponent) > self.largest;
        let exponent = exponent + i32::from(exceeds);
        let scale = power_of_two(exponent);
        (scale, scale.recip())
    }

    /// The nearest number, ties to even; numbers beyond the largest become that.
    fn nearest(self, x: f32) -> f32 {
        let unit = power_of_two(exponent(x).max(self.exponents.0) - self.significand_bits);
        ((x / unit).round_ties_even() * unit).clamp(-self.largest, self.largest)
    }
}

/// The exponent of a finite number; that of the smallest normal one for subnormal ones and 0.
fn exponent(x: f32) -> i32 {
    ((x.to_bits() >> 23 & 0xff) as i32 - BIAS).max(NORMAL.0)
}

/// 2 to the power of the exponent of a normal number.
fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + BIAS) as u32) << 23)
}

/// The bits of the nearest bf16 number, ties to even; NaN stays NaN.
pub(crate) fn bf16_bits(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    fn rounded(to: RoundedFloat, values: &[f32]) -> Vec<f32> {
        let mut all = vec![0.0; values.len()];
        to.round(values, |index, bits| all[index] = f32::from_bits(bits));
        all
    }

    /// The finite numbers of all bytes from 0 on, without sign, in units of the smallest, 2^-9 and 2^-16:
    /// `torch.arange(128, dtype=torch.uint8).view(T).double() * 2**9` (16) of PyTorch 2.15.0 with `torch.float8_e4m3fn` (127
    /// numbers) and `torch.float8_e5m2` (124).
    const E4M3: [u32; 127] = [
        0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44,
        48, 52, 56, 60, 64, 72, 80, 88, 96, 104, 112, 120, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288,
        320, 352, 384, 416, 448, 480, 512, 576, 640, 704, 768, 832, 896, 960, 1024, 1152, 1280, 1408, 1536,
        1664, 1792, 1920, 2048, 2304, 2560, 2816, 3072, 3328, 3584, 3840, 4096, 4608, 5120, 5632, 6144, 6656,
        7168, 7680, 8192, 9216, 10240, 11264, 12288, 13312, 14336, 15360, 16384, 18432, 20480, 22528, 24576,
        26624, 28672, 30720, 32768, 36864, 40960, 45056, 49152, 53248, 57344, 61440, 65536, 73728, 81920,
        90112, 98304, 106496, 114688, 122880, 131072, 147456, 163840, 180224, 196608, 212992, 229376,
    ];
    const E5M2: [u32; 124] = [
        0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160,
        192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 2560, 3072, 3584,
        4096, 5120, 6144, 7168, 8192, 10240, 12288, 14336, 16384, 20480, 24576, 28672, 32768, 40960, 49152,
        57344, 65536, 81920, 98304, 114688, 131072, 163840, 196608, 229376, 262144, 327680, 393216, 458752,
        524288, 655360, 786432, 917504, 1048576, 1310720, 1572864, 1835008, 2097152, 2621440, 3145728,
        3670016, 4194304, 5242880, 6291456, 7340032, 8388608, 10485760, 12582912, 14680064, 16777216,
        20971520, 25165824, 29360128, 33554432, 41943040, 50331648, 58720256, 67108864, 83886080, 100663296,
        117440512, 134217728, 167772160, 201326592, 234881024, 268435456, 335544320, 402653184, 469762048,
        536870912, 671088640, 805306368, 939524096, 1073741824, 1342177280, 1610612736, 1879048192,
        2147483648, 2684354560, 3221225472, 3758096384,
    ];

    /// Each byte is itself; what lies between two numbers goes to the nearer one, and halfway to the even code.
    #[test]
    fn every_byte_of_eight_bits_is_a_number_of_pytorch() {
        for (to, units, unit) in [
            (RoundedFloat::E4M3, &E4M3[..], power_of_two(-9)),
            (RoundedFloat::E5M2, &E5M2[..], power_of_two(-16)),
        ] {
            let numbers: Vec<f32> = units.iter().map(|&number| number as f32 * unit).collect();
            let (format, largest) = (to.scaled().unwrap(), numbers[numbers.len() - 1]);
            assert_eq!(format.largest, largest);
            for (code, pair) in numbers.windows(2).enumerate() {
                let ([low, high], middle) = ([pair[0], pair[1]], f32::midpoint(pair[0], pair[1]));
                let even = if code % 2 == 0 { low } else { high };
                let cases = [
                    (low, low),
                    (high, high),
                    (middle.next_down(), low),
                    (middle, even),
                    (middle.next_up(), high),
                ];
                for (x, want) in cases {
                    assert_eq!((format.nearest(x), format.nearest(-x)), (want, -want), "{to:?} {x:e}");
                    // A group whose largest number is the format's has the scale 1.
                    assert_eq!(rounded(to, &[largest, x, -x]), [largest, want, -want]);
                }
            }
            assert_eq!([1.5 * largest, f32::MAX].map(|x| format.nearest(x)), [largest; 2], "saturated");
        }
    }

    #[test]
    fn half_precision_is_that_of_ieee() {
        for bits in 0..0x7c00 {
            let (x, next) = (f16::from_bits(bits).to_f32(), f16::from_bits(bits + 1).to_f32());
            let middle = if next.is_finite() { f32::midpoint(x, next) } else { x };
            for x in [x, -x, middle, middle.next_down(), middle.next_up()] {
                let want = f16::from_f32(x).to_f32();
                let want = if want.is_finite() { want } else { 65504.0 };
                assert_eq!(RoundedFloat::Fp16.scaled().unwrap().nearest(x), want, "{x:e}");
            }
        }
    }

    /// Any group has the error of its format, relative to each value, or to the largest one if it is small.
    #[test]
    fn groups_of_any_size_keep_the_relative_error() {
        for to in [RoundedFloat::Fp16, RoundedFloat::E4M3, RoundedFloat::E5M2] {
            let FloatFormat { significand_bits, exponents, .. } = to.scaled().unwrap();
            let half_unit = 0.5f64.powi(significand_bits + 1);
            // The largest number has a scaled exponent of one less at least, and subnormal ones half their unit.
            let subnormal = half_unit * 2f64.powi(exponents.0 - exponents.1 + 1);
            for size in -110..=127 {
                let values: Vec<f32> =
                    (0..64).map(|at| (at as f32 * 37.0 % 64.0 / 32.0 - 1.0) * power_of_two(size)).collect();
                let got = rounded(to, &values);
                for (group, got) in values.chunks(GROUP).zip(got.chunks(GROUP)) {
                    let largest = group.iter().fold(0.0, |most: f64, x| most.max(f64::from(x.abs())));
                    for (x, got) in group.iter().zip(got) {
                        let (off, x) = (f64::from(got - x).abs(), f64::from(x.abs()));
                        assert!(
                            off <= (half_unit * x).max(subnormal * largest),
                            "{to:?} {x:e} in {largest:e}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn numbers_that_are_none_stay() {
        for to in [RoundedFloat::Fp16, RoundedFloat::E4M3, RoundedFloat::E5M2] {
            let got = rounded(to, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, 0.0, -0.0]);
            assert!(got[0].is_nan() && got[1..3] == [f32::INFINITY, f32::NEG_INFINITY], "{got:?}");
            assert!(got[3].is_finite() && got[4].to_bits() == 0 && got[5].to_bits() == 1 << 31);
            assert_eq!(rounded(to, &[1e-44, 0.0, f32::MIN_POSITIVE])[2], f32::MIN_POSITIVE);
            assert!(rounded(to, &[f32::MAX])[0].is_finite(), "nothing overflows");
        }
    }
}
