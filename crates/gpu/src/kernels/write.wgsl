// Rows become keys or values, in floats (write_floats.wgsl) or in Q8_0 (write_q8_0.wgsl).

struct Params {
    count: u32, heads: u32, size: u32, words: u32,
    is_transposed: u32, table: u32, id: u32, units: u32,
}
var<immediate> p: Params;
@group(0) @binding(0) var<storage, read> context: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> held: array<u32>;
// A count, then rows of three words: which write, which row, which number could not be held.
@group(0) @binding(3) var<storage, read_write> faults: array<atomic<u32>>;

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

fn note(row: u32, x: f32) {
    if (bitcast<u32>(x) & 0x7fffffffu) >= 0x7f800000u { return; }
    let index = atomicAdd(&faults[0], 1u);
    if index < 1024u {
        atomicStore(&faults[1u + index * 3u], p.id);
        atomicStore(&faults[2u + index * 3u], row);
        atomicStore(&faults[3u + index * 3u], bitcast<u32>(x));
    }
}

fn place(block: u32, head: u32, word: u32, at: u32) -> u32 {
    if p.is_transposed != 0u { return key_word(block, p.heads, head, p.words, word, at); }
    return value_word(block, p.heads, head, p.words, word, at);
}

fn rounded(row: u32, x: f32) -> u32 {
    var bits = 0u;
    if IS_BRAIN { bits = brain_bits(x); } else { bits = half_bits(x); }
    if is_infinite(bits) { note(row, x); }
    return bits;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * 256u + local;
    if i >= p.count { return; }
    let row = i / (p.heads * p.units);
    let head = i / p.units % p.heads;
    let unit = i % p.units;
    let sequence = context[context[3] + row];
    let position = context[context[4] + row];
    let block = context[context[p.table] + sequence * context[p.table + 1u] + position / 64u];
    write(row, block, head, unit, position % 64u);
}
