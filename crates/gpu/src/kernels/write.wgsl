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

fn number(i: u32) -> f32 { return x[i]; }

fn hold(to: Held, word: u32, bits: u32) {
    var place = 0u;
    if to.is_transposed {
        place = key_word(to.block, p.heads, to.head, p.words, word, to.at);
    } else {
        place = value_word(to.block, p.heads, to.head, p.words, word, to.at);
    }
    held[place] = bits;
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
    let sequence = context[context[3] + row];
    let position = context[context[4] + row];
    let block = context[context[p.table] + sequence * context[p.table + 1u] + position / 64u];
    let first = (row * p.heads + head) * p.size;
    write(Held(p.id, row, block, head, position % 64u, p.size, first, p.is_transposed != 0u), i % p.units);
}
