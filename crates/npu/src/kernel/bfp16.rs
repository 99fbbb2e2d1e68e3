//! bfp16ebs8: eight values with one shared exponent, the block floating point
//! of the matrix unit of AIE2P.
//!
//! A value is `m · 2^(e − 127 − 6)` with `m` an int8 and `e` the largest
//! exponent field of the eight (virtio-accel notes on bfp16ebs8, measured
//! bit-exact on hardware). Rounding is to nearest, ties to even, as the kernels
//! set it; if a mantissa would round up to 128, the exponent is raised instead.

/// The number of values that share an exponent.
pub const BFP16_BLOCK: usize = 8;

/// Rounds eight values to bfp16ebs8.
///
/// Panics if there are not [`BFP16_BLOCK`] values.
pub fn bfp16_quantize(values: &mut [f32]) {
    assert_eq!(values.len(), BFP16_BLOCK, "a block of bfp16ebs8 has eight values");
    let field = |value: f32| (value.to_bits() >> 23) & 0xff;
    let mut shared = values.iter().map(|&value| field(value)).max().expect("a block is not empty");
    if shared == 255 {
        // Infinities and NaN have mantissas of their own.
        for value in values.iter_mut() {
            *value = special(*value);
        }
        return;
    }
    if values.iter().any(|&value| mantissa(value, shared).abs() > 127.0) {
        shared += 1;
    }
    let unit = f64::from(shared).mul_add(1.0, -133.0).exp2();
    for value in values.iter_mut() {
        *value = (mantissa(*value, shared) * unit) as f32;
    }
}

/// The mantissa of a value for a shared exponent field, rounded to nearest
/// even. Subnormal inputs count as zero.
fn mantissa(value: f32, shared: u32) -> f64 {
    let value = if value.is_subnormal() { 0.0 } else { value };
    (f64::from(value) * (133.0 - f64::from(shared)).exp2()).round_ties_even()
}

/// The value of an element in a block with an infinity or a NaN: mantissas ±64
/// and ±96 with the largest exponent.
fn special(value: f32) -> f32 {
    match value {
        value if value.is_nan() => f32::NAN,
        value if value.is_infinite() => value,
        _ => 0.0,
    }
}
