// How numbers become words of state: what write.wgsl and heads.wgsl share. Both say which numbers these are (`number`), and
// where words go (`hold`).

// One head of one row: its place in the state, and its numbers.
struct Held { id: u32, row: u32, block: u32, head: u32, at: u32, size: u32, first: u32, is_transposed: bool }

fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let minus = (bits >> 16u) & 0x8000u;
    let a = bits & 0x7fffffffu;
    if a > 0x7f800000u { return minus | 0x7e00u; }
    if a >= 0x477ff000u { return minus | 0x7c00u; }
    if a < 0x38800000u {
        return minus | (bitcast<u32>(bitcast<f32>(a) + 0.5) - 0x3f000000u);
    }
    return minus | ((a + 0xfffu + ((a >> 13u) & 1u) - 0x38000000u) >> 13u);
}

fn brain_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u { return (bits >> 16u) | 0x40u; }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn is_infinite(bits: u32) -> bool {
    if IS_BRAIN { return (bits & 0x7fffu) == 0x7f80u; }
    return (bits & 0x7fffu) == 0x7c00u;
}

fn note(to: Held, x: f32) {
    if (bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u { return; }
    let index = atomicAdd(&faults[0], 1u);
    if index < 1024u {
        atomicStore(&faults[1u + index * 3u], to.id);
        atomicStore(&faults[2u + index * 3u], to.row);
        atomicStore(&faults[3u + index * 3u], bitcast<u32>(x));
    }
}

fn rounded(to: Held, x: f32) -> u32 {
    var bits = 0u;
    if IS_BRAIN { bits = brain_bits(x); } else { bits = half_bits(x); }
    if is_infinite(bits) { note(to, x); }
    return bits;
}
