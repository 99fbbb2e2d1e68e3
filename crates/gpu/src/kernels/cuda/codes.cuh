// Kinds of codes and scales of weights (layout.rs, integer_source.rs). `unit` is (band · groups + group) · 32 + row.

// Two groups share a word of scales in half precision.
DEVICE float half_scale(u32 word, u32 unit) { return of_half((unit / 32) % 2 == 1 ? word >> 16 : word & 0xffffu); }
DEVICE u32 half_scale_word(const u32* scales, u32 unit) { return __ldg(&scales[(unit / 64) * 32 + unit % 32]); }

// Codes 0 to 15, less 8. As signed bytes they are 16 times that, so the scale has a sixteenth.
struct Q4_0 {
    struct Raw { uint4 w; };
    static constexpr float FACTOR = 0.0625f;
    DEVICE Raw loaded(const uint4* codes, u32 unit) { return Raw{__ldg(&codes[unit])}; }
    DEVICE uint2 eight(u32 w) {
        return make_uint2(((w << 4) & 0xf0f0f0f0u) ^ 0x80808080u, (w & 0xf0f0f0f0u) ^ 0x80808080u);
    }
    DEVICE void bytes(const Raw& raw, uint4 to[2]) {
        uint2 a = eight(raw.w.x), b = eight(raw.w.y), c = eight(raw.w.z), d = eight(raw.w.w);
        to[0] = make_uint4(a.x, a.y, b.x, b.y);
        to[1] = make_uint4(c.x, c.y, d.x, d.y);
    }
    DEVICE void numbers(const uint4* codes, u32 unit, u32 part, float to[8]) {
        const u32* words = (const u32*)&codes[unit];
        u32 w = words[part];
        for (u32 k = 0; k < 4; k += 1) {
            to[k] = (float)((int)((w >> (8 * k)) & 15u) - 8);
            to[k + 4] = (float)((int)((w >> (8 * k + 4)) & 15u) - 8);
        }
    }
};
