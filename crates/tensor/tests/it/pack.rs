//! Properties of every format that girih writes.

use girih_tensor::Random;
use std::ops::Range;

use girih_tensor::DType;

fn pack(dtype: DType, values: &[f32]) -> Vec<u8> {
    let (rows, columns) = dtype.tile();
    let mut bytes = vec![0; values.len() / (rows * columns) * dtype.block_bytes()];
    dtype.pack(values, &mut bytes);
    bytes
}

fn unpack(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let (rows, columns) = dtype.tile();
    let mut values = vec![0.0; bytes.len() / dtype.block_bytes() * rows * columns];
    dtype.unpack(bytes, &mut values);
    values
}

fn written() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| dtype.writes())
}

/// The permitted error of a block format.
struct Accuracy {
    /// The bytes of a block that hold the integers.
    integers: Range<usize>,
    /// The value of those bytes if all integers select the lowest level, and if all
    /// select the highest.
    ends: (u8, u8),
    /// The number of steps from the lowest to the highest level. If steps differ in
    /// size, that distance divided by the longest step.
    steps: f64,
    /// The number of steps by which a value may lie outside the levels; `None` if the
    /// scale is not chosen to cover all values.
    reach: Option<f64>,
    /// The relative and the absolute rounding error of scale and minimum, if the
    /// integers are chosen before these are rounded.
    rounding: (f64, f64),
}

/// Rounding to half precision: half a unit of 11 bits, or half of 2^-24 if subnormal.
const HALF: (f64, f64) = (1.0 / 2048.0, 1.0 / 33_554_432.0);
const NONE: (f64, f64) = (0.0, 0.0);

/// The permitted error of each block format; a new format needs its own.
fn accuracy(dtype: DType) -> Option<Accuracy> {
    let rule =
        |integers, ends, steps, reach, rounding| Some(Accuracy { integers, ends, steps, reach, rounding });
    match dtype {
        _ if dtype.tile() == (1, 1) => None,
        // The extreme value takes the lowest level; the opposite end has one level less.
        DType::Q4_0 => rule(2..18, (0x00, 0xff), 15.0, Some(1.0), HALF),
        DType::Q5_0 => rule(2..22, (0x00, 0xff), 31.0, Some(1.0), HALF),
        DType::Q4_1 => rule(4..20, (0x00, 0xff), 15.0, Some(0.0), HALF),
        DType::Q8_0 => rule(2..34, (0x81, 0x7f), 254.0, Some(0.0), HALF),
        // Least squares may leave values outside the levels; each takes the nearest.
        DType::Q4_K => rule(16..144, (0x00, 0xff), 15.0, None, NONE),
        DType::Q5_K => rule(16..176, (0x00, 0xff), 31.0, None, NONE),
        DType::Q6_K => rule(0..192, (0x00, 0xff), 63.0, None, NONE),
        // The highest level is 6 times the scale, values reach up to 8 times; the
        // longest step is 2.
        DType::MXFP4 => rule(1..17, (0xff, 0x77), 6.0, Some(1.0), NONE),
        // 15 steps, each short by at most 2^-8 of itself.
        DType::Q4NX => rule(1024..5120, (0x00, 0xff), 15.0, Some(15.0 / 256.0), NONE),
        _ => panic!("{dtype} has no permitted error in this test; add one"),
    }
}

/// Decodes the blocks after setting every byte of their integers to `fill`.
fn end(dtype: DType, bytes: &[u8], integers: &Range<usize>, fill: u8) -> Vec<f32> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        block[integers.clone()].fill(fill);
    }
    unpack(dtype, &bytes)
}

/// Checks that each value is within half a step of its decoded value, or as far away
/// as it lies outside the levels, which is at most `reach` steps.
///
/// A step is a difference of stored levels. If integers are chosen before scale and
/// minimum are rounded, level q moves by up to `rounding` times its two terms: q
/// steps and the lowest level.
fn check_steps(dtype: DType, accuracy: &Accuracy, values: &[f32], case: &str) {
    let bytes = pack(dtype, values);
    let decoded = unpack(dtype, &bytes);
    let lowest = end(dtype, &bytes, &accuracy.integers, accuracy.ends.0);
    let highest = end(dtype, &bytes, &accuracy.integers, accuracy.ends.1);
    for (i, (&value, &decoded)) in values.iter().zip(&decoded).enumerate() {
        let (value, decoded) = (f64::from(value), f64::from(decoded));
        let (a, b) = (f64::from(lowest[i]), f64::from(highest[i]));
        let (low, high) = (a.min(b), a.max(b));
        let step = (high - low) / accuracy.steps;
        let (relative, absolute) = accuracy.rounding;
        // A few roundings to f32, of numbers up to the largest level.
        let arithmetic = 4.0 * f64::from(f32::EPSILON) * (low.abs() + high.abs() + value.abs());
        // Subnormal scales have no relative precision: half a unit for each step.
        let smallest = accuracy.steps * f64::from(f32::from_bits(0x0001_0000)); // of bf16
        let moved = relative * (high - low + low.abs() + high.abs()) + absolute * (accuracy.steps + 1.0);
        let slack = moved + arithmetic + smallest;
        let outside = (low - value).max(value - high).max(0.0);
        if let Some(reach) = accuracy.reach {
            let reached = outside <= reach * step + slack;
            assert!(reached, "{dtype}, {case}, value {i}: {value} out of {low}..{high}");
        }
        let error = (value - decoded).abs();
        let bound = outside.max(step / 2.0) + slack;
        assert!(error <= bound, "{dtype}, {case}, value {i}: {value} became {decoded}, step {step}");
    }
}

/// Checks plain numbers, whose error is that of one rounding; integers saturate.
fn check_plain(dtype: DType, values: &[f32], case: &str) {
    let ends = unpack(dtype, &pack(dtype, &[f32::NEG_INFINITY, f32::INFINITY]));
    for (&value, decoded) in values.iter().zip(unpack(dtype, &pack(dtype, values))) {
        let (size, error) = (f64::from(value).abs(), (f64::from(value) - f64::from(decoded)).abs());
        let bound = match dtype {
            DType::F32 => 0.0,
            DType::F16 => size * HALF.0 + HALF.1,
            DType::BF16 => size / 256.0 + f64::from(f32::from_bits(0x0001_0000)) / 2.0,
            _ => f64::from((ends[0] - value).max(value - ends[1]).max(0.5)),
        };
        assert!(error <= bound, "{dtype}, {case}: {value} became {decoded}");
    }
}

#[test]
fn decoded_values_are_within_half_a_step() {
    let mut random = Random(3);
    for dtype in written() {
        let (rows, columns) = dtype.tile();
        let count = rows * columns * 4;
        let bells = random.bells(count);
        let scaled = |factor: f32| bells.iter().map(|value| value * factor).collect::<Vec<_>>();
        let outliers = bells.iter().enumerate().map(|(i, v)| if i % 97 == 0 { v * 300.0 } else { *v });
        let mut cases = vec![
            ("random", bells.clone()),
            ("zero", vec![0.0; count]),
            ("constant", vec![0.7; count]),
            ("constant negative", vec![-0.7; count]),
            ("negative", bells.iter().map(|value| -value.abs()).collect()),
            ("far from zero", bells.iter().map(|value| value * 0.01 + 100.0).collect()),
            ("outliers", outliers.collect()),
            ("huge", scaled(3e4)),
            ("tiny", scaled(1e-6)),
            ("smaller than half precision", scaled(1e-30)),
            ("smaller than normal", scaled(1e-40)),
        ];
        if [DType::F32, DType::BF16, DType::MXFP4, DType::Q4NX].contains(&dtype) {
            cases.push(("larger than half precision", scaled(1e38)));
        }
        for (case, values) in cases {
            match accuracy(dtype) {
                Some(accuracy) => check_steps(dtype, &accuracy, &values, case),
                None => check_plain(dtype, &values, case),
            }
        }
    }
}

#[test]
fn zeros_decode_to_zeros() {
    for dtype in written() {
        let (rows, columns) = dtype.tile();
        let values = unpack(dtype, &pack(dtype, &vec![0.0; rows * columns]));
        assert!(values.iter().all(|&value| value == 0.0), "{dtype}");
    }
}

/// Packing unpacked values gives the same bytes, for random values of ordinary
/// size. This does not hold for
/// - Q4_K, Q5_K, Q6_K: least squares fits the rounded values again;
/// - bytes that packing never writes: a scale larger than the integers need, the
///   negative zero of MXFP4, I32 beyond 2^24, signalling NaN;
/// - a range that is small compared with its distance from zero (Q4_1, Q4NX).
#[test]
fn packing_unpacked_values_gives_the_same_bytes() {
    let mut random = Random(4);
    for dtype in written().filter(|d| ![DType::Q4_K, DType::Q5_K, DType::Q6_K].contains(d)) {
        let (rows, columns) = dtype.tile();
        let values: Vec<f32> = random.bells(rows * columns * 16).iter().map(|v| v * 40.0).collect();
        let bytes = pack(dtype, &values);
        assert!(pack(dtype, &unpack(dtype, &bytes)) == bytes, "{dtype}");
    }
}

#[test]
fn non_finite_values_do_not_panic() {
    let mut random = Random(5);
    for dtype in written() {
        let (rows, columns) = dtype.tile();
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, f32::MIN_POSITIVE] {
            let mut values = random.bells(rows * columns);
            values.iter_mut().step_by(7).for_each(|value| *value = special);
            unpack(dtype, &pack(dtype, &values));
            values.fill(special);
            unpack(dtype, &pack(dtype, &values));
        }
    }
}

#[test]
fn packing_a_read_only_format_is_an_error() {
    for &dtype in DType::ALL.iter().filter(|dtype| !dtype.writes()) {
        let (rows, columns) = dtype.tile();
        let error = dtype.pack_matrix(rows, columns, &vec![0.0; rows * columns]).unwrap_err();
        assert_eq!(error.to_string(), format!("girih reads {dtype} but does not write it"));
    }
}
