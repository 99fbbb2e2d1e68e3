// Layouts of weights: kinds of codes and scales (layout.rs, integer_source.rs). `unit` is (band · groups + group) · 32 + row, so
// the next group is 32 further.

// Exact products of 16 bytes.
DEVICE int dot_of_16(uint4 w, uint4 x) {
    int sum = __dp4a((int)w.x, (int)x.x, 0);
    sum = __dp4a((int)w.y, (int)x.y, sum);
    sum = __dp4a((int)w.z, (int)x.z, sum);
    return __dp4a((int)w.w, (int)x.w, sum);
}

// Codes of four bits and a scale in half precision for a group; two groups share a word of scales. Codes are 0 to 15, less 8: as
// signed bytes they are 16 times that, so the scale has a sixteenth.
struct Q4_0 {
    struct Codes { uint4 w; };
    typedef float Scale;

    // The scales of the groups of a slice.
    struct SliceScales {
        u32 words[4];
        DEVICE_IN void load(const u32* scales, u32 unit, u32 first, u32 last) {
            #pragma unroll
            for (u32 k = 0; k < 4; k += 1) words[k] = word(scales, unit + least(first + 2 * k, last) * 32);
        }
        DEVICE_IN Scale of(u32 k) const { return scale_of(words[k / 2], k * 32); }
    };

    DEVICE u32 word(const u32* scales, u32 unit) { return __ldg(&scales[(unit / 64) * 32 + unit % 32]); }
    DEVICE Scale scale_of(u32 word, u32 unit) {
        return of_half((unit / 32) % 2 == 1 ? word >> 16 : word & 0xffffu) * 0.0625f;
    }
    DEVICE Scale scale(const u32* scales, u32 unit) { return scale_of(word(scales, unit), unit); }
    DEVICE Codes loaded(const uint4* codes, u32 unit) { return Codes{__ldg(&codes[unit])}; }
    DEVICE uint2 eight(u32 w) {
        return make_uint2(((w << 4) & 0xf0f0f0f0u) ^ 0x80808080u, (w & 0xf0f0f0f0u) ^ 0x80808080u);
    }

    // The signed bytes of a group, in the order of columns.
    DEVICE void bytes(const Codes& codes, uint4 to[2]) {
        uint2 a = eight(codes.w.x), b = eight(codes.w.y), c = eight(codes.w.z), d = eight(codes.w.w);
        to[0] = make_uint4(a.x, a.y, b.x, b.y);
        to[1] = make_uint4(c.x, c.y, d.x, d.y);
    }

    // The chain with the product of a group.
    DEVICE float added(Scale s, float x_scale, const uint4 w[2], const uint4 x[2], float chain) {
        return fmaf(s * x_scale, (float)(dot_of_16(w[0], x[0]) + dot_of_16(w[1], x[1])), chain);
    }

    // The four chains of a thread with products of 16 rows and 8 weight rows.
    DEVICE void add_tile(float sums[4], const u32 a[4], const u32 b[2], const Scale s[2], float first, float second) {
        int c[4] = {0, 0, 0, 0};
        multiply_32(c, a, b);
        sums[0] = fmaf(s[0] * first, (float)c[0], sums[0]);
        sums[1] = fmaf(s[1] * first, (float)c[1], sums[1]);
        sums[2] = fmaf(s[0] * second, (float)c[2], sums[2]);
        sums[3] = fmaf(s[1] * second, (float)c[3], sums[3]);
    }

    // The numbers of eight columns of a group.
    DEVICE void numbers(const uint4* codes, const u32* scales, u32 unit, u32 part, float to[8]) {
        u32 w = ((const u32*)&codes[unit])[part];
        float own = scale(scales, unit) * 16.0f;
        for (u32 k = 0; k < 4; k += 1) {
            to[k] = (float)((int)((w >> (8 * k)) & 15u) - 8) * own;
            to[k + 4] = (float)((int)((w >> (8 * k + 4)) & 15u) - 8) * own;
        }
    }
};

// Signed bytes, and two scales in single precision for the halves of a group.
struct Q6_K {
    struct Codes { uint4 a, b; };
    typedef float2 Scale;

    struct SliceScales {
        Scale words[8];
        DEVICE_IN void load(const u32* scales, u32 unit, u32 first, u32 last) {
            #pragma unroll
            for (u32 k = 0; k < 8; k += 1) words[k] = scale(scales, unit + least(first + k, last) * 32);
        }
        DEVICE_IN Scale of(u32 k) const { return words[k]; }
    };

    DEVICE u32 place(u32 unit) { return (unit / 32) * 64 + unit % 32; }
    DEVICE Scale scale(const u32* scales, u32 unit) {
        u32 at = place(unit);
        return make_float2(__uint_as_float(__ldg(&scales[at])), __uint_as_float(__ldg(&scales[at + 32])));
    }
    DEVICE Codes loaded(const uint4* codes, u32 unit) {
        return Codes{__ldg(&codes[place(unit)]), __ldg(&codes[place(unit) + 32])};
    }
    DEVICE void bytes(const Codes& codes, uint4 to[2]) {
        to[0] = codes.a;
        to[1] = codes.b;
    }
    DEVICE float added(Scale s, float x_scale, const uint4 w[2], const uint4 x[2], float chain) {
        float half = fmaf(s.x * x_scale, (float)dot_of_16(w[0], x[0]), chain);
        return fmaf(s.y * x_scale, (float)dot_of_16(w[1], x[1]), half);
    }
    DEVICE void add_tile(float sums[4], const u32 a[4], const u32 b[2], const Scale s[2], float first, float second) {
        int c[4] = {0, 0, 0, 0}, d[4] = {0, 0, 0, 0};
        multiply_16(c, a[0], a[1], b[0]);
        multiply_16(d, a[2], a[3], b[1]);
        #pragma unroll
        for (u32 e = 0; e < 4; e += 1) {
            float x_scale = e < 2 ? first : second;
            sums[e] = fmaf(s[e % 2].y * x_scale, (float)d[e], fmaf(s[e % 2].x * x_scale, (float)c[e], sums[e]));
        }
    }
    DEVICE void numbers(const uint4* codes, const u32* scales, u32 unit, u32 part, float to[8]) {
        const signed char* bytes = (const signed char*)&codes[place(unit) + part / 2 * 32] + part % 2 * 8;
        Scale own = scale(scales, unit);
        for (u32 k = 0; k < 8; k += 1) to[k] = (float)bytes[k] * (part < 2 ? own.x : own.y);
    }
};
