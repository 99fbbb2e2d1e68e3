//! Floats of fewer bits to which activations are rounded: bf16, and half precision and eight bits under a scale.
//!
//! No processor that girih knows multiplies eight-bit floats on its own, so rounded numbers stay `f32`, in which they are
//! exact. A scale is a power of two for 32 values of a row, the smallest one under which none exceeds the largest number
//! of the format. So scaling is exact, nothing overflows, and nothing but a group's smallest values is subnormal.

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
    digits: i32,
    /// The exponents of the smallest normal number and of the largest number.
    exponents: (i32, i32),
    /// The largest number.
    largest: f32,
}

/// The bias of the exponent of `f32`, and the exponents of its normal numbers.
const BIAS: i32 = 127;
const NORMAL: (i32, i32) = (-126, 127);

impl RoundedFloat {
    fn format(self) -> FloatFormat {
        match self {
            RoundedFloat::Bf16 => FloatFormat { digits: 7, exponents: NORMAL, largest: f32::MAX },
            RoundedFloat::Fp16 => FloatFormat { digits: 10, exponents: (-14, 15), largest: 65504.0 },
            RoundedFloat::E4M3 => FloatFormat { digits: 3, exponents: (-6, 8), largest: 448.0 },
            RoundedFloat::E5M2 => FloatFormat { digits: 2, exponents: (-14, 15), largest: 57344.0 },
        }
    }

    /// Rounds values of a row, from the start of a group on, and calls `put` with the index and the bits of each.
    pub fn round(self, values: &[f32], mut put: impl FnMut(usize, u32)) {
        if self == RoundedFloat::Bf16 {
            return values.iter().enumerate().for_each(|(index, x)| put(index, bf16_bits(*x) << 16));
        }
        let format = self.format();
        for (group, values) in values.chunks(GROUP).enumerate() {
            let (scale, inverse) = format.scale(values);
            for (index, x) in values.iter().enumerate() {
                // A number that is none stays what it is, so that no result hides it.
                let rounded = match x.is_finite() {
                    true => (format.nearest(x * inverse) * scale).clamp(f32::MIN, f32::MAX),
                    false => *x,
                };
                put(group * GROUP + index, rounded.to_bits());
            }
        }
    }
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
        (power_of_two(exponent), power_of_two(-exponent))
    }

    /// The nearest number, ties to even; numbers beyond the largest become that.
    fn nearest(self, x: f32) -> f32 {
        let unit = power_of_two(exponent(x).max(self.exponents.0) - self.digits);
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

    /// The finite numbers of all bytes from 0 on, without sign: `torch.arange(128, dtype=torch.uint8).view(T).float()` of PyTorch
    /// 2.15.0 with `torch.float8_e4m3fn` (127 numbers) and `torch.float8_e5m2` (124).
    const E4M3: [f32; 127] = [
        0.0,
        0.001953125,
        0.00390625,
        0.005859375,
        0.0078125,
        0.009765625,
        0.01171875,
        0.013671875,
        0.015625,
        0.017578125,
        0.01953125,
        0.021484375,
        0.0234375,
        0.025390625,
        0.02734375,
        0.029296875,
        0.03125,
        0.03515625,
        0.0390625,
        0.04296875,
        0.046875,
        0.05078125,
        0.0546875,
        0.05859375,
        0.0625,
        0.0703125,
        0.078125,
        0.0859375,
        0.09375,
        0.1015625,
        0.109375,
        0.1171875,
        0.125,
        0.140625,
        0.15625,
        0.171875,
        0.1875,
        0.203125,
        0.21875,
        0.234375,
        0.25,
        0.28125,
        0.3125,
        0.34375,
        0.375,
        0.40625,
        0.4375,
        0.46875,
        0.5,
        0.5625,
        0.625,
        0.6875,
        0.75,
        0.8125,
        0.875,
        0.9375,
        1.0,
        1.125,
        1.25,
        1.375,
        1.5,
        1.625,
        1.75,
        1.875,
        2.0,
        2.25,
        2.5,
        2.75,
        3.0,
        3.25,
        3.5,
        3.75,
        4.0,
        4.5,
        5.0,
        5.5,
        6.0,
        6.5,
        7.0,
        7.5,
        8.0,
        9.0,
        10.0,
        11.0,
        12.0,
        13.0,
        14.0,
        15.0,
        16.0,
        18.0,
        20.0,
        22.0,
        24.0,
        26.0,
        28.0,
        30.0,
        32.0,
        36.0,
        40.0,
        44.0,
        48.0,
        52.0,
        56.0,
        60.0,
        64.0,
        72.0,
        80.0,
        88.0,
        96.0,
        104.0,
        112.0,
        120.0,
        128.0,
        144.0,
        160.0,
        176.0,
        192.0,
        208.0,
        224.0,
        240.0,
        256.0,
        288.0,
        320.0,
        352.0,
        384.0,
        416.0,
        448.0,
    ];
    const E5M2: [f32; 124] = [
        0.0,
        1.52587890625e-05,
        3.0517578125e-05,
        4.57763671875e-05,
        6.103515625e-05,
        7.62939453125e-05,
        9.1552734375e-05,
        0.0001068115234375,
        0.0001220703125,
        0.000152587890625,
        0.00018310546875,
        0.000213623046875,
        0.000244140625,
        0.00030517578125,
        0.0003662109375,
        0.00042724609375,
        0.00048828125,
        0.0006103515625,
        0.000732421875,
        0.0008544921875,
        0.0009765625,
        0.001220703125,
        0.00146484375,
        0.001708984375,
        0.001953125,
        0.00244140625,
        0.0029296875,
        0.00341796875,
        0.00390625,
        0.0048828125,
        0.005859375,
        0.0068359375,
        0.0078125,
        0.009765625,
        0.01171875,
        0.013671875,
        0.015625,
        0.01953125,
        0.0234375,
        0.02734375,
        0.03125,
        0.0390625,
        0.046875,
        0.0546875,
        0.0625,
        0.078125,
        0.09375,
        0.109375,
        0.125,
        0.15625,
        0.1875,
        0.21875,
        0.25,
        0.3125,
        0.375,
        0.4375,
        0.5,
        0.625,
        0.75,
        0.875,
        1.0,
        1.25,
        1.5,
        1.75,
        2.0,
        2.5,
        3.0,
        3.5,
        4.0,
        5.0,
        6.0,
        7.0,
        8.0,
        10.0,
        12.0,
        14.0,
        16.0,
        20.0,
        24.0,
        28.0,
        32.0,
        40.0,
        48.0,
        56.0,
        64.0,
        80.0,
        96.0,
        112.0,
        128.0,
        160.0,
        192.0,
        224.0,
        256.0,
        320.0,
        384.0,
        448.0,
        512.0,
        640.0,
        768.0,
        896.0,
        1024.0,
        1280.0,
        1536.0,
        1792.0,
        2048.0,
        2560.0,
        3072.0,
        3584.0,
        4096.0,
        5120.0,
        6144.0,
        7168.0,
        8192.0,
        10240.0,
        12288.0,
        14336.0,
        16384.0,
        20480.0,
        24576.0,
        28672.0,
        32768.0,
        40960.0,
        49152.0,
        57344.0,
    ];

    /// Each byte is itself; what lies between two numbers goes to the nearer one, and halfway to the even code.
    #[test]
    fn every_byte_of_eight_bits_is_a_number_of_pytorch() {
        for (to, numbers) in [(RoundedFloat::E4M3, &E4M3[..]), (RoundedFloat::E5M2, &E5M2[..])] {
            let (format, largest) = (to.format(), numbers[numbers.len() - 1]);
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
                assert_eq!(RoundedFloat::Fp16.format().nearest(x), want, "{x:e}");
            }
        }
    }

    /// Any group has the error of its format, relative to each value, or to the largest one if it is small.
    #[test]
    fn groups_of_any_size_keep_the_relative_error() {
        for to in [RoundedFloat::Fp16, RoundedFloat::E4M3, RoundedFloat::E5M2] {
            let FloatFormat { digits, exponents, .. } = to.format();
            let half_unit = 0.5f64.powi(digits + 1);
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
