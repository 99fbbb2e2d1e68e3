//! The exponential function in single precision and what follows from it,
//! without a branch, for tables whose processors fuse multiplication and addition.
//!
//! ```text
//! n      = x / ln 2, rounded          r = x − n · ln 2        |r| ≤ 0.3466
//! e^r    = 1 + r + r² (c₀ + c₁ r + c₂ r² + c₃ r³ + c₄ r⁴)     off by 3.1e-9 of itself
//! exp(x) = e^r · 2ⁿ
//! ```
//! GELU needs the upper tail of the normal distribution, `Q(t) = erfc(t/√2) / 2` for `t ≥ 0`:
//! ```text
//! GELU(x) = x · Q(−x) for x < 0, else x − x · Q(x)       nothing cancels
//! Q(t)    = exp(−t²/2) · P(u) / (t + 4)                  u = (t − 4) / (t + 4), −1 ≤ u ≤ 0.54
//! ```
//! `exp(t²/2) · Q(t)` is smooth and falls like 1/t, so that a polynomial in `u` approximates its
//! product with `t + 4` (Schonfelder 1978, *Math. Comp.* 32, 1232, with the same change of
//! variable). P has degree 9 and is off by 7.4e-9 of itself.
//!
//! Plain code: a table compiles it with its own instructions, and the compiler
//! makes a vector of each operation (look for `zmm` or `ymm` in the disassembly
//! of a kernel that calls it). It uses only IEEE operations on one element at a time, so an element's
//! result is the same in a vector, among the elements left over at the end, and
//! in every table that uses it.
//!
//! The kernels that call it have plain twins in `f64`.

use std::f32::consts::{LN_2, LOG2_E};
use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};

/// 1.5 · 2²³: a number below 2²² in size that is added to it is rounded to an
/// integer, to even where two are as near, and stands in the last bits of the sum.
const SHIFTER: f32 = 12_582_912.0;

/// What `LN_2` lacks of ln 2.
const LN_2_REST: f32 = (std::f64::consts::LN_2 - LN_2 as f64) as f32;

/// With these the largest relative error of `e^r` over |r| ≤ ln 2 / 2 is the
/// smallest that five coefficients can have (found by Remez' exchange).
const COEFFICIENTS: [f64; 5] =
    [0.499_999_934_517, 0.166_665_206_898, 0.041_668_387_361_3, 0.008_368_709_824_17, 0.001_381_461_326_08];

/// With these the largest relative error of `(t + 4) · exp(t²/2) · Q(t)` over 0 ≤ t ≤ 13.2 is the
/// smallest that a polynomial of degree 9 in `u` can have (found by Remez' exchange).
const TAIL_COEFFICIENTS: [f64; 10] = [
    0.755_285_135_437,
    -0.607_896_612_203,
    0.387_136_882_980,
    -0.186_522_787_333,
    0.060_404_547_985_7,
    -0.007_529_506_026_77,
    -0.003_518_977_933_73,
    0.001_576_076_484_68,
    0.000_194_499_308_47,
    -0.000_125_097_874_022,
];

/// 2⁻¹²⁴ is about `exp` of this; what is smaller becomes zero, so that no result
/// is subnormal, which many processors compute a hundred times slower.
const LEAST: f32 = -86.0;

/// `e^x` with an error of at most 1.02 ulp for `x` ≥ [`LEAST`]; zero below; infinity
/// if the result overflows; NaN for NaN.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // 2¹²⁸ times any e^r is infinite. Comparisons let NaN pass.
    let within = if x > 89.0 { 89.0 } else { x };
    let within = if within < LEAST { LEAST } else { within };
    let (beyond_one, power) = reduced(within);
    // Half of 2ⁿ is a number for each n up to 128.
    let half = f32::from_bits(power.wrapping_add(126 << 23));
    let e = (1.0 + beyond_one) * half * 2.0;
    if x < LEAST { 0.0 } else { e }
}

/// `tanh(x)` with an error of at most 3 ulp, also for small `x`:
/// `(e^2x − 1) / (e^2x + 1)`, where `e^r − 1` is computed directly.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let twice = 2.0 * x.abs();
    // tanh(10) is 1 in `f32`.
    let twice = if twice > 20.0 { 20.0 } else { twice };
    let (beyond_one, power) = reduced(twice);
    let power = f32::from_bits(power.wrapping_add(127 << 23));
    let beyond_one = power.mul_add(beyond_one, power - 1.0);
    (beyond_one / (beyond_one + 2.0)).copysign(x)
}

/// `e^x − 1` for `x` ≤ 0 with an error of a few ulp, also for small `x`.
#[inline(always)]
pub(crate) fn exp_m1_of_negative(x: f32) -> f32 {
    // e^−20 is lost beside 1 in `f32`.
    let x = if x < -20.0 { -20.0 } else { x };
    let (beyond_one, power) = reduced(x);
    let power = f32::from_bits(power.wrapping_add(127 << 23));
    power.mul_add(beyond_one, power - 1.0)
}

/// `e^r − 1` and, in the bits of an exponent, n.
#[inline(always)]
fn reduced(x: f32) -> (f32, u32) {
    let shifted = x.mul_add(LOG2_E, SHIFTER);
    let n = shifted - SHIFTER;
    // The first product is subtracted without a rounding: |r| is so small that
    // its last bit weighs less than that of n · LN_2.
    let r = n.mul_add(-LN_2_REST, n.mul_add(-LN_2, x));
    let [c0, c1, c2, c3, c4] = COEFFICIENTS.map(|c| c as f32);
    let sum = r.mul_add(c4, c3);
    let sum = r.mul_add(sum, c2);
    let sum = r.mul_add(sum, c1);
    let sum = r.mul_add(sum, c0);
    ((r * r).mul_add(sum, r), shifted.to_bits() << 23)
}

/// `x / (1 + e^−x)`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x/2 · (1 + tanh(z))` is `x / (1 + e^−2z)`, in which nothing cancels.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    /// 2 · √(2/π).
    const LINEAR: f64 = SQRT_2 * FRAC_2_SQRT_PI;
    const CUBIC: f64 = 0.044715 * LINEAR;
    let twice = x * (x * x).mul_add(CUBIC as f32, LINEAR as f32);
    x / (1.0 + exp(-twice))
}

/// `x / (1 + e^(−1.702·x))`.
#[inline(always)]
pub(crate) fn quick_gelu(x: f32) -> f32 {
    x / (1.0 + exp(-1.702 * x))
}

/// `1 / (1 + e^−x)`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// `ln(1 + e^x)` is `max(x, 0) + ln(1 + t)` for `t = e^−|x|`, in which nothing cancels.
///
/// `ln(1 + t)` is `2 · artanh(s)` for `s = t / (2 + t)`. Its series in `s² ≤ 1/9` is off by 1.5e-9 of itself
/// after eight terms.
#[inline(always)]
pub(crate) fn softplus(x: f32) -> f32 {
    let t = exp(-x.abs());
    let s = t / (2.0 + t);
    let square = s * s;
    let mut sum = 1.0 / 15.0;
    for divisor in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = square.mul_add(sum, 1.0 / divisor);
    }
    let positive = if x < 0.0 { 0.0 } else { x };
    (2.0 * s).mul_add(sum, positive)
}

/// `x/2 · (1 + erf(x / √2))` with an error of at most 6.11 ulp; where `Q` underflows, below about −13,
/// it is zero.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let t = x.abs();
    // Q(14) is zero for `exp`. An infinite `t` would make `u` NaN.
    let t = if t > 14.0 { 14.0 } else { t };
    let q = tail(t);
    if x < 0.0 { x * q } else { x - t * q }
}

/// The probability that a normal number is above `t`, for `t` ≥ 0.
#[inline(always)]
fn tail(t: f32) -> f32 {
    // 4 is a power of two, so that `u` is exactly −1 at 0, where activations are most often.
    let over = 1.0 / (t + 4.0);
    let u = (t - 4.0) * over;
    let mut sum = TAIL_COEFFICIENTS[9] as f32;
    for coefficient in TAIL_COEFFICIENTS[..9].iter().rev() {
        sum = sum.mul_add(u, *coefficient as f32);
    }
    // What the rounded square lacks becomes a relative error of the exponential.
    let square = t * t;
    let lacking = t.mul_add(t, -square);
    let power = exp(-0.5 * square);
    power.mul_add(-0.5 * lacking, power) * over * sum
}

#[cfg(test)]
mod tests {
    use girih_tensor::reference;

    use super::*;

    /// How far `got` is from `want`, in units of the last place of `want`.
    fn ulps(got: f32, want: f64) -> f64 {
        let exponent = (want.abs().to_bits() >> 52) as i32 - 1023;
        (f64::from(got) - want).abs() / f64::from(f32::EPSILON) / 2f64.powi(exponent)
    }

    /// The largest error in ulp of `fast` over every `step`-th number whose
    /// bits lie from `low` to `high`.
    fn worst(fast: fn(f32) -> f32, exact: fn(f64) -> f64, [low, high]: [f32; 2], step: usize) -> f64 {
        let bits = (low.to_bits()..=high.to_bits()).step_by(step);
        bits.map(f32::from_bits).map(|x| ulps(fast(x), exact(f64::from(x)))).fold(0.0, f64::max)
    }

    #[test]
    fn the_polynomial_is_as_near_as_is_said() {
        let errors = (-1000..=1000).map(|i| {
            let r = std::f64::consts::LN_2 / 2.0 * f64::from(i) / 1000.0;
            let sum = COEFFICIENTS.iter().rev().fold(0.0, |sum, c| sum * r + c);
            ((1.0 + r + r * r * sum) / r.exp() - 1.0).abs()
        });
        let largest = errors.fold(0.0, f64::max);
        assert!((3.0e-9..3.1e-9).contains(&largest), "{largest}");
    }

    /// `Q(t)` of [`tail`] by its continued fraction (Abramowitz & Stegun, *Handbook of Mathematical
    /// Functions*, 26.2.14) for large `t`, else from `erf`, which cancels there.
    fn exact_tail(t: f64) -> f64 {
        if t < 2.5 {
            return 0.5 - 0.5 * reference::erf(t * std::f64::consts::FRAC_1_SQRT_2);
        }
        let fraction = (1..=200).rev().fold(t, |rest, n| t + f64::from(n) / rest);
        (-0.5 * t * t).exp() / (std::f64::consts::TAU.sqrt() * fraction)
    }

    fn exact_gelu(x: f64) -> f64 {
        if x < 0.0 { x * exact_tail(-x) } else { x - x * exact_tail(x) }
    }

    #[test]
    fn the_polynomial_of_the_tail_is_as_near_as_is_said() {
        let errors = (0..=1320).map(|i| {
            let t = f64::from(i) / 100.0;
            let u = (t - 4.0) / (t + 4.0);
            let sum = TAIL_COEFFICIENTS.iter().rev().fold(0.0, |sum, c| sum * u + c);
            (sum / ((t + 4.0) * (0.5 * t * t).exp() * exact_tail(t)) - 1.0).abs()
        });
        let largest = errors.fold(0.0, f64::max);
        assert!((7.2e-9..7.4e-9).contains(&largest), "{largest}");
    }

    /// The largest error of `gelu` in ulp, where its result is a normal number.
    fn check_gelu(step: usize) -> f64 {
        // Beyond these it is x/2, x or 0 but for a rounding.
        let (few, curved) = ([[1e-37, 2e-4], [14.0, 1e30]], [2e-4, 14.0]);
        let ranges = few.map(|ends| (ends, step.max(9973))).into_iter().chain([(curved, step)]);
        let both = ranges
            .flat_map(|(ends, step): ([f32; 2], usize)| [(ends, step), (ends.map(|x| -x.min(12.9)), step)]);
        let error = both.map(|(ends, step)| worst(gelu, exact_gelu, ends, step)).fold(0.0, f64::max);
        assert!(error <= 6.11, "error in ulp of gelu: {error}");
        error
    }

    #[test]
    fn gelu_has_the_values_of_its_definition() {
        assert!(check_gelu(9973) > 1.0, "results are rounded more than once");
        let defined = |x: f64| 0.5 * x * (1.0 + reference::erf(x * std::f64::consts::FRAC_1_SQRT_2));
        for x in (0..10_000).map(|i| -14.0 + f64::from(i) * 0.0028) {
            // The definition in `f64` cancels for negative `x`.
            let x = f64::from(x as f32);
            let (got, want) = (f64::from(gelu(x as f32)), defined(x));
            assert!((got - want).abs() <= 6.11 * 1.2e-7 * want.abs() + 1e-15 * x.abs(), "gelu({x}) is {got}");
        }
        for (x, want) in [
            (0.0, 0.0),
            (-0.0, -0.0),
            (f32::INFINITY, f32::INFINITY),
            (f32::MAX, f32::MAX),
            (f32::MIN, 0.0),
            (-13.2, 0.0),
        ] {
            assert_eq!(gelu(x), want, "gelu({x})");
        }
        assert_eq!(gelu(-0.0).to_bits(), (-0.0f32).to_bits());
        // Half of a subnormal number, rounded.
        for bits in 1..100 {
            let x = f32::from_bits(bits);
            let off = |got: f32| f64::from(got) / f64::from(f32::from_bits(1)) - f64::from(bits) / 2.0;
            assert!(off(gelu(x)).abs() <= 1.0 && off(-gelu(-x)).abs() <= 1.0, "gelu(±{x:e})");
        }
        // As in its definition, −∞ · 0.
        assert!(gelu(f32::NEG_INFINITY).is_nan() && gelu(f32::NAN).is_nan() && gelu(-f32::NAN).is_nan());
    }

    /// In ulp, of `exp` and of `tanh`, where these are not 1, x, or 1 again.
    fn check(step: usize) -> [f64; 2] {
        // The number next to ln(MAX) lies above it.
        let largest = f32::MAX.ln().next_down();
        let exps = [[1e-9, largest], [-1e-9, LEAST]].map(|ends| worst(exp, f64::exp, ends, step));
        let tanhs = worst(tanh, f64::tanh, [1e-9, 20.0], step);
        let errors = [exps[0].max(exps[1]), tanhs];
        assert!(errors[0] <= 1.02 && errors[1] <= 3.0, "errors in ulp of exp and tanh: {errors:?}");
        errors
    }

    #[test]
    fn errors_stay_within_what_is_said() {
        check(9973);
    }

    /// `cargo test --release -p girih-cpu every_number -- --ignored --nocapture`
    #[test]
    #[ignore = "looks at two thousand million numbers, which takes some minutes"]
    fn errors_stay_within_what_is_said_for_every_number() {
        println!("errors in ulp of exp and tanh: {:?}, of gelu: {}", check(1), check_gelu(1));
    }

    #[test]
    fn limits_are_kept() {
        for (x, want) in [
            (f32::INFINITY, f32::INFINITY),
            (f32::MAX, f32::INFINITY),
            (88.73, f32::INFINITY),
            (0.0, 1.0),
            (-0.0, 1.0),
            (1e-45, 1.0),
            (-86.001, 0.0),
            (-1e30, 0.0),
            (f32::NEG_INFINITY, 0.0),
        ] {
            assert_eq!(exp(x).to_bits(), f32::to_bits(want), "exp({x})");
        }
        for (x, want) in [
            (f32::INFINITY, 1.0),
            (1e30, 1.0),
            (9.1, 1.0),
            (0.0, 0.0),
            (1e-45, 1e-45),
            (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
        ] {
            assert_eq!(tanh(x).to_bits(), f32::to_bits(want), "tanh({x})");
            assert_eq!(tanh(-x).to_bits(), f32::to_bits(-want), "tanh(-{x})");
        }
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)] {
            assert!(exp(nan).is_nan() && tanh(nan).is_nan(), "of {:x}", nan.to_bits());
        }
    }
}
