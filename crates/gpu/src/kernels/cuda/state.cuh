// How keys and values lie in a block of 64 positions, two numbers in half precision in a word (state.wgsl, held.wgsl).

DEVICE u32 key_word(u32 block, u32 heads, u32 head, u32 words, u32 word, u32 at) {
    return ((block * heads + head) * words + word) * 64 + at;
}

DEVICE u32 value_word(u32 block, u32 heads, u32 head, u32 words, u32 word, u32 at) {
    return ((block * heads + head) * 64 + at) * words + word;
}

// The nearest number in half precision; NaN stays one.
DEVICE u32 half_bits(float x) {
    u32 bits = __float_as_uint(x);
    u32 minus = (bits >> 16) & 0x8000u;
    u32 a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) return minus | 0x7e00u;
    if (a >= 0x477ff000u) return minus | 0x7c00u;
    if (a < 0x38800000u) return minus | (__float_as_uint(__uint_as_float(a) + 0.5f) - 0x3f000000u);
    return minus | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13);
}

// The number in half precision that the state holds; a finite one that it cannot hold is a fault of this value and row.
DEVICE u32 held(u32* faults, u32 id, u32 row, float x) {
    u32 bits = half_bits(x);
    if ((bits & 0x7fffu) == 0x7c00u && (__float_as_uint(x) & 0x7fffffffu) < 0x7f800000u) {
        u32 index = atomicAdd(faults, 1u);
        if (index < 1024) {
            faults[1 + index * 3] = id;
            faults[2 + index * 3] = row;
            faults[3 + index * 3] = __float_as_uint(x);
        }
    }
    return bits;
}

// The block of a row's own position.
DEVICE u32 own_block(const u32* context, u32 table, u32 row, u32 position) {
    u32 sequence = context[context[3] + row];
    return context[context[table] + sequence * context[table + 1] + position / 64];
}
