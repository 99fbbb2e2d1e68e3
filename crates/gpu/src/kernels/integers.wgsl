// Rows as signed bytes, by groups of 32 columns: the scale is a 127th of the largest magnitude, and a code the nearest
// integer, to even where two are as near. A group of tiny numbers has a scale of zero, and one that holds an infinity or NaN
// has that for its scale; the codes of both are zero.

// The bits of 2^-119, which is 127 times the smallest normal number, rounded up to a power of two.
const LEAST: u32 = 0x04000000u;

struct Rounding { scale: f32, inverse: f32 }

// The largest magnitude, as bits, which compare as integers; those of NaN are the largest.
fn magnitude(v: vec4<f32>) -> u32 {
    let m = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(m.x, m.y), max(m.z, m.w));
}

fn rounding(largest: u32) -> Rounding {
    if largest < LEAST { return Rounding(0.0, 0.0); }
    let top = bitcast<f32>(largest);
    if largest >= 0x7f800000u { return Rounding(top, 0.0); }
    return Rounding(top * 0.00787401575, quotient(127.0, top));
}

// Four codes, as numbers.
fn rounded(v: vec4<f32>, inverse: f32) -> vec4<f32> {
    if inverse == 0.0 { return vec4<f32>(0.0); }
    return round(v * inverse);
}

fn packed_codes(codes: vec4<f32>) -> u32 {
    return pack4xI8(vec4<i32>(codes));
}

// The sum of four codes.
fn code_sum(codes: u32) -> i32 {
    return dot4I8Packed(codes, 0x01010101u);
}
