// Rows as signed bytes, by groups of 32 columns, with the bits of integers.wgsl.

struct Rounding { float scale, inverse; };

DEVICE u32 magnitude(float4 v) {
    u32 x = __float_as_uint(v.x) & 0x7fffffffu, y = __float_as_uint(v.y) & 0x7fffffffu;
    u32 z = __float_as_uint(v.z) & 0x7fffffffu, w = __float_as_uint(v.w) & 0x7fffffffu;
    return largest_of(largest_of(x, y), largest_of(z, w));
}

// From the largest magnitude, as bits.
DEVICE Rounding rounding(u32 largest) {
    if (largest < 0x04000000u) return Rounding{0.0f, 0.0f};
    float top = __uint_as_float(largest);
    if (largest >= 0x7f800000u) return Rounding{top, 0.0f};
    return Rounding{top * 0.00787401575f, 127.0f / top};
}

DEVICE u32 code(float x, float inverse) { return (u32)(inverse == 0.0f ? 0 : (int)rintf(x * inverse)) & 255u; }

DEVICE u32 packed_codes(float4 v, float inverse) {
    return code(v.x, inverse) | (code(v.y, inverse) << 8) | (code(v.z, inverse) << 16) | (code(v.w, inverse) << 24);
}
